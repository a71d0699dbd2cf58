//! Transactions.

use kernlink_base::checks;
use kernlink_base::contract::Check;

use super::{
    Rules, add_base, add_chain, add_table, elements, jump, number, numbers, ok, port, ports, refused, rule,
    table,
};
use crate::data_type::DataType;
use crate::error::Error;
use crate::operation::{Flush, Operation};
use crate::set::Set;
use crate::table::{Table, TableKey};
use crate::table_family::TableFamily;
use crate::verdict::Verdict;

pub(super) const CHECKS: &[Check<Rules>] = checks!(
    Rules:
    a_transaction_is_executed_as_a_whole_or_not_at_all,
    every_refused_operation_has_its_own_error,
    the_refused_element_is_named,
    a_transaction_of_another_generation_is_refused,
    each_transaction_that_changes_something_has_a_generation,
    nothing_is_executed_without_operations,
    the_rest_is_executed_without_what_is_refused,
    only_the_refused_elements_are_left_out,
    tables_are_added_once_and_deleted_with_everything_in_them,
    an_invalid_operation_is_not_sent,
);

fn a_transaction_is_executed_as_a_whole_or_not_at_all(rules: &mut Rules) {
    let outcomes = rules.execute(&[add_table(), add_chain("a"), jump("a", "missing"), add_chain("b")]);
    assert_eq!(outcomes.len(), 4);
    for index in [0, 1, 3] {
        let Some(Err(Error::NotExecuted { refused: 2 })) = outcomes.get(index) else {
            panic!("{outcomes:?}");
        };
    }
    refused(outcomes.into_iter().nth(2).unwrap_or(Ok(())), Error::is_not_found);
    assert_eq!(ok(rules.tables(None)), []);
    ok(rules.apply(&[
        add_table(),
        add_chain("missing"),
        add_chain("a"),
        jump("a", "missing"),
    ]));
    assert_eq!(ok(rules.rules(&table(), Some("a"))).len(), 1);
}

fn every_refused_operation_has_its_own_error(rules: &mut Rules) {
    ok(rules.apply(&[add_table(), add_chain("a")]));
    let outcomes = rules.execute(&[
        Operation::create(Table::new(table())),
        add_chain("b"),
        Operation::delete(table().chain("missing")),
    ]);
    let mut outcomes = outcomes.into_iter();
    refused(outcomes.next().unwrap_or(Ok(())), Error::is_already_exists);
    refused(outcomes.next().unwrap_or(Ok(())), Error::is_not_executed);
    refused(outcomes.next().unwrap_or(Ok(())), Error::is_not_found);
    assert_eq!(ok(rules.chains(&table())).len(), 1);
}

fn the_refused_element_is_named(rules: &mut Rules) {
    ok(rules.apply(&[add_table(), Operation::add(ports("s").with_size(2))]));
    let three = Operation::add(elements("s", [port(1), port(2), port(3)]));
    let outcome = rules.execute(&[three]).pop();
    let Some(Err(Error::Refused {
        element, operation, ..
    })) = &outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!(*element, Some(2));
    assert!(
        operation.ends_with("add element ip t s { 0x0003 }"),
        "{operation}"
    );
    refused(outcome.unwrap_or(Ok(())), Error::is_full);
    // By the thousand, in several messages.
    let many = (0..20_000).map(number).chain([number(7)]);
    ok(rules.apply(&[Operation::add(numbers("many", 32_768))]));
    let missing = Operation::delete(elements("many", (0..20_000).map(number)));
    ok(rules.apply(&[Operation::add(elements("many", (0..20_000).map(number)))]));
    ok(rules.apply(std::slice::from_ref(&missing)));
    ok(rules.apply(&[Operation::add(elements("many", (0..19_000).map(number)))]));
    let outcome = rules.execute(std::slice::from_ref(&missing)).pop();
    let Some(Err(Error::Refused {
        element: Some(19_000),
        ..
    })) = outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!(ok(rules.list_elements(&table().set("many"))).len(), 19_000);
    ok(rules.add_elements(&elements("many", many), 1_000));
    assert_eq!(ok(rules.list_elements(&table().set("many"))).len(), 20_000);
}

fn a_transaction_of_another_generation_is_refused(rules: &mut Rules) {
    let generation = ok(rules.generation());
    ok(rules.apply(&[add_table()]));
    let outcomes = rules.execute_at(Some(generation), &[add_chain("a"), add_chain("b")]);
    assert_eq!(outcomes.len(), 2);
    for outcome in outcomes {
        refused(outcome, Error::is_generation_changed);
    }
    assert_eq!(ok(rules.chains(&table())), []);
    let generation = ok(rules.generation());
    assert_eq!(rules.execute_at(Some(generation), &[add_chain("a")]), [Ok(())]);
    assert_eq!(rules.execute_at(Some(0), &[add_chain("b")]), [Ok(())]);
}

fn each_transaction_that_changes_something_has_a_generation(rules: &mut Rules) {
    // The kernel is port 0.
    let port = rules.port();
    assert_ne!(port, Some(0));
    let first = ok(rules.generation());
    ok(rules.apply(&[add_table(), add_chain("a")]));
    assert_eq!(rules.port(), port);
    let second = ok(rules.generation());
    assert_ne!(first, second);
    ok(rules.ruleset());
    assert_eq!(ok(rules.generation()), second);
    refused(rules.apply(&[jump("a", "missing")]), Error::is_not_found);
    assert_eq!(ok(rules.generation()), second);
}

fn nothing_is_executed_without_operations(rules: &mut Rules) {
    let generation = ok(rules.generation());
    assert_eq!(rules.execute(&[]), []);
    ok(rules.apply(&[]));
    assert_eq!(rules.execute_rest(&[]), []);
    assert_eq!(ok(rules.generation()), generation);
}

fn the_rest_is_executed_without_what_is_refused(rules: &mut Rules) {
    ok(rules.apply(&[add_table(), Operation::add(ports("s"))]));
    let outcomes = rules.execute_rest(&[
        add_chain("a"),
        // Another type of key.
        Operation::add(Set::new(table().set("s"), &[DataType::Mark])),
        Operation::create(Table::new(table())),
        add_chain("b"),
        jump("b", "missing"),
        jump("a", "b"),
        Operation::delete(table().chain("missing")),
    ]);
    let is_ok: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(
        is_ok,
        [true, false, false, false, false, false, false],
        "{outcomes:?}"
    );
    let outcomes = rules.execute_rest(&[
        add_chain("a"),
        Operation::add(Set::new(table().set("s"), &[DataType::Mark])),
        Operation::add(elements("s", [port(1)])),
        add_chain("b"),
        jump("b", "missing"),
        jump("a", "b"),
    ]);
    let is_ok: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(is_ok, [true, false, false, true, false, true], "{outcomes:?}");
    assert!(matches!(
        outcomes.get(2),
        Some(Err(Error::NotExecuted { refused: 1 }))
    ));
    assert_eq!(ok(rules.rules(&table(), None)).len(), 1);
}

fn only_the_refused_elements_are_left_out(rules: &mut Rules) {
    ok(rules.apply(&[
        add_table(),
        add_chain("a"),
        Operation::add(ports("s")),
        Operation::add(elements("s", [port(1), port(3)])),
        Operation::add(Set::verdict_map(table().set("v"), &[DataType::Service])),
    ]));
    let to = |number: u16, chain: &str| port(number).with_verdict(Verdict::jump(chain));
    let outcomes = rules.execute_rest_by_element(&[
        Operation::create(elements("s", [port(0), port(1), port(2), port(3), port(4)])),
        // Another type of key: refused, with the chain that would use it.
        Operation::add(Set::new(table().set("s"), &[DataType::Mark])),
        jump("missing", "a"),
        Operation::add(elements("v", [to(7, "a"), to(8, "missing"), to(9, "a")])),
        Operation::delete(elements("s", [port(3), port(99)])),
    ]);
    let left_out = |index: usize| match outcomes.get(index) {
        Some(Ok(elements)) => elements.iter().map(|(element, _)| *element).collect(),
        other => {
            assert!(matches!(other, Some(Err(_))), "{other:?}");
            vec![usize::MAX]
        }
    };
    let all: Vec<Vec<usize>> = (0..outcomes.len()).map(left_out).collect();
    let operation = vec![usize::MAX];
    // Elements of a set whose definition was refused are left out with it.
    assert_eq!(
        all,
        [vec![1, 3], operation.clone(), operation, vec![1], vec![0, 1]],
        "{outcomes:?}"
    );
    for (_, error) in outcomes.iter().flatten().flatten() {
        assert!(
            matches!(error, Error::Refused { .. } | Error::NotExecuted { refused: 1 }),
            "{error:?}"
        );
    }
    let found = |name: &str, rules: &mut Rules| ok(rules.list_elements(&table().set(name))).len();
    assert_eq!((found("s", rules), found("v", rules)), (5, 2));
}

fn tables_are_added_once_and_deleted_with_everything_in_them(rules: &mut Rules) {
    let other = TableKey::new(TableFamily::Inet, "t");
    refused(rules.apply(&[Operation::delete(table())]), Error::is_not_found);
    ok(rules.apply(&[
        add_table(),
        add_table(),
        Operation::add(Table::new(other.clone())),
    ]));
    refused(
        rules.apply(&[Operation::create(Table::new(table()))]),
        Error::is_already_exists,
    );
    ok(rules.apply(&[
        add_base("in"),
        add_chain("a"),
        jump("in", "a"),
        Operation::add(ports("s")),
        Operation::add(elements("s", [port(80)])),
        Operation::add(rule("in", Verdict::Accept)),
    ]));
    let names = |rules: &mut Rules, family| {
        let tables = ok(rules.tables(family)).into_iter();
        tables.map(|table| table.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(rules, Some(TableFamily::Ip)), ["ip t"]);
    assert_eq!(names(rules, None).len(), 2);
    let contents = ok(rules.ruleset())
        .tables
        .into_iter()
        .find(|contents| contents.table.key == table());
    let contents = contents.unwrap_or_else(|| panic!("table missing"));
    assert_eq!((contents.chains.len(), contents.sets.len()), (2, 1));
    assert_eq!(ok(rules.table_contents(&table())).as_ref(), Some(&contents));
    let missing = TableKey::new(TableFamily::Ip, "missing");
    assert_eq!(ok(rules.table_contents(&missing)), None);
    let operations = contents.operations();
    ok(rules.apply(&[Operation::delete(table())]));
    assert_eq!(ok(rules.table(&table())), None);
    assert_eq!(ok(rules.chains(&table())), []);
    assert_eq!(ok(rules.rules(&table(), None)), []);
    assert_eq!(ok(rules.sets(&table())), []);
    assert_eq!(ok(rules.objects(&table())), []);
    assert_eq!(ok(rules.flowtables(&table())), []);
    refused(rules.list_elements(&table().set("s")), Error::is_not_found);
    ok(rules.apply(&operations));
    assert_eq!(ok(rules.rules(&table(), Some("in"))).len(), 2);
    assert_eq!(ok(rules.list_elements(&table().set("s"))), [port(80)]);
    ok(rules.apply(&[Operation::Flush(Flush::Family(TableFamily::Ip))]));
    assert_eq!(names(rules, None), ["inet t"]);
    ok(rules.apply(&[Operation::Flush(Flush::Ruleset)]));
    assert_eq!(names(rules, None), [""; 0]);
}

fn an_invalid_operation_is_not_sent(rules: &mut Rules) {
    let generation = ok(rules.generation());
    let invalid = Operation::add(Table::new(TableKey::new(TableFamily::Ip, "")));
    let outcomes = rules.execute(&[add_table(), invalid]);
    assert!(
        matches!(
            *outcomes,
            [Err(Error::NotExecuted { refused: 1 }), Err(Error::Invalid { .. })]
        ),
        "{outcomes:?}"
    );
    assert_eq!(ok(rules.generation()), generation);
}
