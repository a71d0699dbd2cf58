//! The behaviour that every [`Iptables`] must show, as checks to run against one.
//!
//! Each check wants tables in which nothing is but what the kernel puts there, and changes them. They panic
//! with what is wrong, as tests do.

use crate::chain::ChainName;
use crate::desired::{Jump, Owned, Place, Wanted};
use crate::diff::diff;
use crate::error::{Error, Refused};
use crate::family::Family;
use crate::operation::{Iptables, Operation, Save};
use crate::restore::{Edit, Restore, RestoreMode};
use crate::rule::Rule;
use crate::ruleset::{Chain, Ruleset};
use crate::table::{Counters, Policy, Table};

/// A check.
pub type Check = fn(&mut dyn Iptables, Family);

/// Every check, with its name.
pub const CHECKS: &[(&str, Check)] = &[
    ("what_is_restored_is_read_back", what_is_restored_is_read_back),
    (
        "a_declared_chain_is_emptied_and_a_built_in_one_is_not",
        a_declared_chain_is_emptied_and_a_built_in_one_is_not,
    ),
    ("doing_it_twice_changes_nothing", doing_it_twice_changes_nothing),
    ("jumps_go_where_they_are_put", jumps_go_where_they_are_put),
    (
        "a_refused_rule_is_named_and_leaves_its_table_alone",
        a_refused_rule_is_named_and_leaves_its_table_alone,
    ),
    (
        "tables_before_the_refused_one_stand",
        tables_before_the_refused_one_stand,
    ),
    ("missing_things_are_not_found", missing_things_are_not_found),
    (
        "a_jump_to_a_missing_chain_is_refused",
        a_jump_to_a_missing_chain_is_refused,
    ),
    ("a_chain_in_use_is_not_deleted", a_chain_in_use_is_not_deleted),
    (
        "a_chain_that_is_there_is_not_made_again",
        a_chain_that_is_there_is_not_made_again,
    ),
    ("loops_are_refused", loops_are_refused),
    (
        "a_target_in_the_wrong_table_is_refused",
        a_target_in_the_wrong_table_is_refused,
    ),
    ("counters_are_set_and_read", counters_are_set_and_read),
    ("policies_are_set", policies_are_set),
    (
        "replacing_takes_everything_else_away",
        replacing_takes_everything_else_away,
    ),
    (
        "a_batch_has_one_outcome_for_each_operation",
        a_batch_has_one_outcome_for_each_operation,
    ),
    ("a_test_changes_nothing", a_test_changes_nothing),
    ("a_jump_is_ensured_once", a_jump_is_ensured_once),
    (
        "a_jump_that_cannot_be_ensured_is_named",
        a_jump_that_cannot_be_ensured_is_named,
    ),
    (
        "chains_are_written_without_reading",
        chains_are_written_without_reading,
    ),
];

/// Runs every check, each on tables emptied before it, in both families.
pub fn check_all(iptables: &mut dyn Iptables) {
    for family in Family::ALL {
        for (_, check) in CHECKS {
            empty(iptables, family);
            check(iptables, family);
        }
        empty(iptables, family);
    }
}

/// Empties the tables that the checks use.
pub fn empty(iptables: &mut dyn Iptables, family: Family) {
    let mut nothing = Ruleset::new();
    for table in [Table::Nat, Table::Filter] {
        let rules = nothing.table_mut(table);
        for name in table.builtin_chains() {
            rules.insert(chain(name), Chain::default().with_policy(Policy::Accept));
        }
    }
    ok(iptables.restore(&nothing.to_restore(family)));
}

fn what_is_restored_is_read_back(iptables: &mut dyn Iptables, family: Family) {
    let net = network(family);
    let wanted = [
        rule(&format!("-s {net} -p tcp -m tcp --dport 1234 -j ACCEPT")),
        rule("-m comment --comment \"it's \\\"quoted\\\" \\\\ é\" -j DROP"),
        rule("-p udp -m udp --sport 5:6 -m mark ! --mark 0x10/0xff -j RETURN"),
        rule("-j MARK --or-mark 0x4000"),
        rule("-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"),
    ];
    let mut restore = Restore::new(family).with(Table::Filter, Edit::declare(chain("KL-A")));
    for rule in &wanted {
        restore.push(Table::Filter, Edit::append(chain("KL-A"), rule.clone()));
    }
    ok(iptables.restore(&restore));
    let read = rules(iptables, family, Table::Filter, "KL-A");
    let expected: Vec<Rule> = wanted.iter().map(|rule| rule.normal_form(family)).collect();
    same(&read, &expected);
}

fn a_declared_chain_is_emptied_and_a_built_in_one_is_not(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j DROP")))
        .with(Table::Filter, Edit::append(chain("INPUT"), rule("-j KL-A")));
    ok(iptables.restore(&restore));
    let policy = Edit::Declare {
        chain: chain("INPUT"),
        policy: Some(Policy::Accept),
        counters: Counters::default(),
    };
    let restore = Restore::new(family)
        .with(Table::Filter, policy)
        .with(Table::Filter, Edit::declare(chain("KL-A")));
    ok(iptables.restore(&restore));
    same(&rules(iptables, family, Table::Filter, "KL-A"), &[]);
    same(
        &rules(iptables, family, Table::Filter, "INPUT"),
        &[rule("-j KL-A")],
    );
}

fn doing_it_twice_changes_nothing(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Nat, Edit::declare(chain("KL-A")))
        .with(Table::Nat, Edit::declare(chain("KL-B")))
        .with(
            Table::Nat,
            Edit::append(chain("KL-A"), rule("-p tcp -m tcp --dport 80 -j KL-B")),
        )
        .with(Table::Nat, Edit::append(chain("KL-B"), rule("-j RETURN")));
    ok(iptables.restore(&restore));
    let first = ok(iptables.save(&Save::all(family)));
    ok(iptables.restore(&restore));
    assert_eq!(ok(iptables.save(&Save::all(family))), first);
}

fn jumps_go_where_they_are_put(iptables: &mut dyn Iptables, family: Family) {
    let mut restore = Restore::new(family);
    for name in ["KL-A", "KL-B", "KL-C", "KL-D"] {
        restore.push(Table::Filter, Edit::declare(chain(name)));
    }
    restore.push(Table::Filter, Edit::append(chain("FORWARD"), rule("-j KL-A")));
    restore.push(Table::Filter, Edit::insert(chain("FORWARD"), rule("-j KL-B")));
    ok(iptables.restore(&restore));
    let second = Edit::Insert {
        chain: chain("FORWARD"),
        position: position(2),
        rule: rule("-j KL-C"),
    };
    ok(iptables.restore(&Restore::new(family).with(Table::Filter, second)));
    same(
        &rules(iptables, family, Table::Filter, "FORWARD"),
        &[rule("-j KL-B"), rule("-j KL-C"), rule("-j KL-A")],
    );
    let Some(first) = position(1) else { return };
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::delete(chain("FORWARD"), rule("-j KL-C")))
        .with(
            Table::Filter,
            Edit::DeleteAt {
                chain: chain("FORWARD"),
                position: first,
            },
        );
    ok(iptables.restore(&restore));
    same(
        &rules(iptables, family, Table::Filter, "FORWARD"),
        &[rule("-j KL-A")],
    );
}

fn a_refused_rule_is_named_and_leaves_its_table_alone(iptables: &mut dyn Iptables, family: Family) {
    let before = ok(iptables.save(&Save::table(family, Table::Filter)));
    let culprit = Edit::append(chain("KL-A"), rule("-j REJECT --reject-with tcp-reset"));
    let mut restore = Restore::new(family).with(Table::Filter, Edit::declare(chain("KL-A")));
    for port in 1..20 {
        restore.push(
            Table::Filter,
            Edit::append(chain("KL-A"), rule(&format!("-p tcp -m tcp --dport {port}"))),
        );
    }
    restore.push(Table::Filter, culprit.clone());
    for port in 1..20 {
        restore.push(
            Table::Filter,
            Edit::append(chain("KL-A"), rule(&format!("-p udp -m udp --dport {port}"))),
        );
    }
    let error = refused(iptables.restore(&restore));
    names(
        &error,
        &Refused::Edit {
            table: Table::Filter,
            edit: culprit,
        },
    );
    assert_eq!(error.applied(), []);
    assert_eq!(ok(iptables.save(&Save::table(family, Table::Filter))), before);
}

fn tables_before_the_refused_one_stand(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Nat, Edit::declare(chain("KL-A")))
        .with(Table::Nat, Edit::append(chain("KL-A"), rule("-j RETURN")))
        .with(Table::Filter, Edit::declare(chain("KL-B")))
        .with(Table::Filter, Edit::delete(chain("KL-B"), rule("-j RETURN")));
    let error = refused(iptables.restore(&restore));
    assert_eq!(error.applied(), [Table::Nat], "{error}");
    let saved = ok(iptables.save(&Save::all(family)));
    assert!(saved.chain(Table::Nat, &chain("KL-A")).is_some(), "{saved}");
    assert!(saved.chain(Table::Filter, &chain("KL-B")).is_none(), "{saved}");
}

fn missing_things_are_not_found(iptables: &mut dyn Iptables, family: Family) {
    for edit in [
        Edit::append(chain("KL-NONE"), rule("-j DROP")),
        Edit::Flush {
            chain: chain("KL-NONE"),
        },
        Edit::delete_chain(chain("KL-NONE")),
        Edit::delete_chain(chain("INPUT")),
        Edit::delete(chain("INPUT"), rule("-j DROP")),
    ] {
        let error = refused(iptables.restore(&Restore::new(family).with(Table::Filter, edit.clone())));
        assert!(error.is_not_found(), "{edit}: {error:?}");
        names(
            &error,
            &Refused::Edit {
                table: Table::Filter,
                edit,
            },
        );
    }
}

fn a_jump_to_a_missing_chain_is_refused(iptables: &mut dyn Iptables, family: Family) {
    let culprit = Edit::append(chain("KL-A"), rule("-j KL-NONE"));
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j ACCEPT")))
        .with(Table::Filter, culprit.clone())
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j DROP")));
    let error = refused(iptables.restore(&restore));
    assert!(error.is_not_found(), "{error:?}");
    names(
        &error,
        &Refused::Edit {
            table: Table::Filter,
            edit: culprit,
        },
    );
}

fn a_chain_in_use_is_not_deleted(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("INPUT"), rule("-j KL-A")));
    ok(iptables.restore(&restore));
    let delete = Restore::new(family).with(Table::Filter, Edit::delete_chain(chain("KL-A")));
    assert!(refused(iptables.restore(&delete)).is_in_use());
    let delete = Restore::new(family)
        .with(Table::Filter, Edit::delete(chain("INPUT"), rule("-j KL-A")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j DROP")))
        .with(Table::Filter, Edit::delete_chain(chain("KL-A")));
    assert!(refused(iptables.restore(&delete)).is_in_use());
    let delete = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::delete(chain("INPUT"), rule("-j KL-A")))
        .with(Table::Filter, Edit::delete_chain(chain("KL-A")));
    ok(iptables.restore(&delete));
    assert!(
        ok(iptables.save(&Save::all(family)))
            .chain(Table::Filter, &chain("KL-A"))
            .is_none()
    );
}

fn a_chain_that_is_there_is_not_made_again(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family).with(Table::Filter, Edit::NewChain { chain: chain("KL-A") });
    ok(iptables.restore(&restore));
    assert!(refused(iptables.restore(&restore)).is_already_exists());
}

fn loops_are_refused(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::declare(chain("KL-B")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j KL-B")))
        .with(Table::Filter, Edit::append(chain("KL-B"), rule("-j KL-A")))
        .with(Table::Filter, Edit::append(chain("INPUT"), rule("-j KL-A")));
    let error = refused(iptables.restore(&restore));
    assert!(matches!(error, Error::Refused { .. }));
    same(&rules(iptables, family, Table::Filter, "INPUT"), &[]);
}

fn a_target_in_the_wrong_table_is_refused(iptables: &mut dyn Iptables, family: Family) {
    let culprit = Edit::append(chain("KL-A"), rule("-j MASQUERADE"));
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j ACCEPT")))
        .with(Table::Filter, culprit.clone());
    names(
        &refused(iptables.restore(&restore)),
        &Refused::Edit {
            table: Table::Filter,
            edit: culprit,
        },
    );
}

fn counters_are_set_and_read(iptables: &mut dyn Iptables, family: Family) {
    let counted = Edit::Append {
        chain: chain("KL-A"),
        rule: rule("-j RETURN"),
        counters: Some(Counters::new(0x1234, 0x0056_789a)),
    };
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, counted)
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j DROP")));
    ok(iptables.restore(&restore));
    let counters = |saved: Ruleset| -> Vec<Option<Counters>> {
        let chain = saved
            .chain(Table::Filter, &chain("KL-A"))
            .cloned()
            .unwrap_or_default();
        chain.rules.iter().map(|counted| counted.counters).collect()
    };
    let saved = ok(iptables.save(&Save::table(family, Table::Filter).with_counters()));
    let read = counters(saved);
    let kept = [
        Some(Counters::new(0x1234, 0x0056_789a)),
        Some(Counters::default()),
    ];
    // ip6tables-nft-restore 1.8.9 takes the counters of a rule and writes zero.
    let lost = family == Family::Ipv6 && read == [Some(Counters::default()); 2];
    assert!(lost || read == kept, "{read:?}");
    let saved = ok(iptables.save(&Save::table(family, Table::Filter)));
    assert_eq!(counters(saved), [None, None]);
}

fn policies_are_set(iptables: &mut dyn Iptables, family: Family) {
    let policy = |policy| Edit::Declare {
        chain: chain("FORWARD"),
        policy: Some(policy),
        counters: Counters::default(),
    };
    for wanted in [Policy::Drop, Policy::Accept] {
        ok(iptables.restore(&Restore::new(family).with(Table::Filter, policy(wanted))));
        let saved = ok(iptables.save(&Save::table(family, Table::Filter)));
        let read = saved
            .chain(Table::Filter, &chain("FORWARD"))
            .and_then(|chain| chain.policy);
        assert_eq!(read, Some(wanted));
    }
    let foreign = Edit::Declare {
        chain: chain("KL-A"),
        policy: Some(Policy::Drop),
        counters: Counters::default(),
    };
    let refused = iptables.restore(&Restore::new(family).with(Table::Filter, foreign));
    assert!(
        refused.is_err(),
        "a policy on a chain that is not built in was taken"
    );
}

fn replacing_takes_everything_else_away(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("INPUT"), rule("-j KL-A")))
        .with(Table::Nat, Edit::declare(chain("KL-B")));
    ok(iptables.restore(&restore));
    let mut replace = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-C")))
        .with(Table::Filter, Edit::append(chain("KL-C"), rule("-j DROP")));
    replace.mode = RestoreMode::Replace;
    ok(iptables.restore(&replace));
    let saved = ok(iptables.save(&Save::all(family)));
    assert!(saved.chain(Table::Filter, &chain("KL-A")).is_none());
    assert!(
        saved.chain(Table::Nat, &chain("KL-B")).is_some(),
        "another table was changed"
    );
    same(
        &rules(iptables, family, Table::Filter, "KL-C"),
        &[rule("-j DROP")],
    );
    same(&rules(iptables, family, Table::Filter, "INPUT"), &[]);
}

fn a_batch_has_one_outcome_for_each_operation(iptables: &mut dyn Iptables, family: Family) {
    let good = |name| Restore::new(family).with(Table::Filter, Edit::declare(chain(name)));
    let bad = Restore::new(family).with(Table::Filter, Edit::delete_chain(chain("KL-NONE")));
    let operations: Vec<Operation> = [good("KL-A"), bad, good("KL-B"), Restore::new(family)]
        .into_iter()
        .map(Operation::Restore)
        .collect();
    let outcomes = iptables.execute(&operations);
    let fine: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(fine, [true, false, true, true], "{outcomes:?}");
    assert!(iptables.execute(&[]).is_empty());
}

fn a_test_changes_nothing(iptables: &mut dyn Iptables, family: Family) {
    let before = ok(iptables.save(&Save::table(family, Table::Filter)));
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j DROP")));
    ok(iptables.test(&restore));
    assert_eq!(ok(iptables.save(&Save::table(family, Table::Filter))), before);
    // A refusal names no table as changed.
    let refused = Restore::new(family)
        .with(Table::Nat, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("INPUT"), rule("-j REDIRECT")));
    if let Err(error) = iptables.test(&refused) {
        assert!(error.applied().is_empty(), "{error:?}");
    }
    let nat = ok(iptables.save(&Save::table(family, Table::Nat)));
    assert!(nat.chain(Table::Nat, &chain("KL-A")).is_none());
}

fn jump(from: &str, text: &str, place: Place) -> Jump {
    Jump {
        from: chain(from),
        rule: rule(text),
        place,
    }
}

fn a_jump_is_ensured_once(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("INPUT"), rule("-j ACCEPT")));
    ok(iptables.restore(&restore));
    let net = network(family);
    let commented = format!("! -s {net} -m comment --comment \"it's \\\"ours\\\" -j\" -j KL-A");
    let jumps = [
        jump("INPUT", "-p tcp -j KL-A", Place::First),
        jump("INPUT", "-p udp -j KL-A", Place::Last),
        jump("INPUT", &commented, Place::Before(rule("-j ACCEPT"))),
        jump("INPUT", "-p sctp -g KL-A", Place::After(rule("-j ACCEPT"))),
        // What is written differently and means the same is there already.
        jump("INPUT", "--protocol 6 --jump KL-A", Place::First),
    ];
    for _ in 0..2 {
        for jump in &jumps {
            ok(iptables.ensure_jump(family, Table::Filter, jump));
        }
        same(
            &rules(iptables, family, Table::Filter, "INPUT"),
            &[
                rule(&commented),
                rule("-p tcp -j KL-A"),
                rule("-j ACCEPT"),
                rule("-p udp -j KL-A"),
                rule("-p sctp -g KL-A"),
            ],
        );
    }
}

fn a_jump_that_cannot_be_ensured_is_named(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family).with(Table::Filter, Edit::declare(chain("KL-A")));
    ok(iptables.restore(&restore));
    for jump in [
        jump("KL-NONE", "-j KL-A", Place::First),
        jump("INPUT", "-j KL-NONE", Place::First),
    ] {
        let error = refused(iptables.ensure_jump(family, Table::Filter, &jump));
        assert!(error.is_not_found(), "{error:?}");
        let edit = Edit::insert(jump.from, jump.rule);
        names(
            &error,
            &Refused::Edit {
                table: Table::Filter,
                edit,
            },
        );
    }
}

fn chains_are_written_without_reading(iptables: &mut dyn Iptables, family: Family) {
    let old = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::declare(chain("KL-THEIRS")))
        .with(Table::Filter, Edit::append(chain("KL-THEIRS"), rule("-j KL-A")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j DROP")));
    ok(iptables.restore(&old));
    let mut wanted = Wanted::new(family);
    for (name, text) in [("KL-A", "-j KL-B"), ("KL-B", "-j RETURN")] {
        ok(wanted.set_chain(Table::Filter, chain(name), [rule(text)]));
    }
    ok(wanted.add_jump(Table::Filter, jump("OUTPUT", "-j KL-A", Place::First)));
    for _ in 0..2 {
        ok(iptables.restore(&wanted.to_restore()));
        for (table, jump) in wanted.jumps() {
            ok(iptables.ensure_jump(family, table, jump));
        }
        let saved = ok(iptables.save(&Save::table(family, Table::Filter).tolerant()));
        let owned = Owned::new().with_shared_chains();
        assert!(diff(&saved, &wanted, &owned).is_empty(), "{saved}");
        same(
            &rules(iptables, family, Table::Filter, "KL-THEIRS"),
            &[rule("-j KL-A")],
        );
    }
}

fn chain(name: &str) -> ChainName {
    ok(ChainName::new(name))
}

fn rule(text: &str) -> Rule {
    ok(text.parse())
}

fn position(place: u32) -> Option<std::num::NonZeroU32> {
    std::num::NonZeroU32::new(place)
}

fn network(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "10.1.2.0/24",
        Family::Ipv6 => "2001:db8:1::/48",
    }
}

fn rules(iptables: &mut dyn Iptables, family: Family, table: Table, name: &str) -> Vec<Rule> {
    let saved = ok(iptables.save(&Save::table(family, table)));
    saved
        .chain(table, &chain(name))
        .map(|chain| chain.rules().cloned().collect())
        .unwrap_or_default()
}

fn same(read: &[Rule], expected: &[Rule]) {
    let list = |rules: &[Rule]| rules.iter().map(Rule::to_string).collect::<Vec<_>>().join("\n");
    assert_eq!(list(read), list(expected));
}

#[expect(clippy::panic, reason = "a check says what is wrong by panicking")]
fn ok<T>(outcome: Result<T, Error>) -> T {
    match outcome {
        Ok(value) => value,
        Err(error) => panic!("{error}\n{error:?}"),
    }
}

#[expect(clippy::panic, reason = "a check says what is wrong by panicking")]
fn refused(outcome: Result<(), Error>) -> Error {
    match outcome {
        Ok(()) => panic!("was not refused"),
        Err(error) => error,
    }
}

#[expect(clippy::panic, reason = "a check says what is wrong by panicking")]
fn names(error: &Error, expected: &Refused) {
    match error {
        Error::Refused { refused, .. } => assert_eq!(refused.as_ref(), expected, "{error:?}"),
        other => panic!("not a refusal: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn the_fake_behaves_as_the_contract_says() {
        for family in Family::ALL {
            for (name, check) in CHECKS {
                println!("{family} {name}");
                check(&mut Fake::new(), family);
            }
        }
        check_all(&mut Fake::new());
    }
}
