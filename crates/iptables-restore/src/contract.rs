//! The behaviour that every implementation of [`Iptables`] must have.

use std::num::NonZeroU32;

use kernlink_base::Family;
use kernlink_base::contract::{Check, Failures};

use crate::chain::ChainName;
use crate::chain_reader::ChainReader;
use crate::client::Iptables;
use crate::desired::{Desired, Jump, Position};
use crate::diff::diff;
use crate::error::{Error, Refused};
use crate::operation::Operation;
use crate::ownership::Ownership;
use crate::restore::{Edit, Restore, RestoreMode};
use crate::rule::Rule;
use crate::ruleset::{Chain, Ruleset};
use crate::save::Save;
use crate::table::{Counters, Policy, Table};

/// Runs every check in order. `each` gets a check and must run it on an implementation whose tables are as the kernel creates them, in
/// both families.
///
/// ```
/// use kernlink_iptables_restore::{Fake, contract};
///
/// contract::run(|check| (check.run)(&mut Fake::new())).unwrap();
/// ```
///
/// # Errors
///
/// All checks for which `each` panicked.
pub fn run(each: impl FnMut(&Check<dyn Iptables>)) -> Result<(), Failures> {
    kernlink_base::contract::run(CHECKS, each)
}

/// Names functions that check one family as [`Check`]s of both.
macro_rules! in_both_families {
    ($($check:ident),* $(,)?) => {
        &[$(Check {
            name: stringify!($check),
            run: |iptables| {
                for family in Family::ALL {
                    $check(iptables, family);
                }
            },
        }),*]
    };
}

const CHECKS: &[Check<dyn Iptables>] = in_both_families!(
    restored_rules_are_read_in_their_normal_form,
    a_declaration_flushes_a_chain_unless_it_is_built_in,
    repeating_a_restore_changes_nothing,
    rules_are_added_and_deleted_at_their_position,
    a_refused_rule_is_reported_and_its_table_is_unchanged,
    tables_before_the_refused_one_stay_changed,
    chains_are_passed_to_a_reader_with_their_rules,
    missing_chains_and_rules_are_not_found,
    a_jump_to_a_missing_chain_is_refused,
    a_chain_in_use_is_not_deleted,
    an_existing_chain_is_not_created_again,
    loops_are_refused,
    a_target_in_the_wrong_table_is_refused,
    counters_are_set_and_read,
    policies_are_set,
    replacing_a_table_deletes_everything_else_in_it,
    a_batch_has_one_outcome_for_each_operation,
    a_test_changes_nothing,
    a_jump_is_ensured_once,
    a_refused_jump_is_reported,
    desired_chains_are_written_without_a_read,
    one_chain_is_listed_as_it_is_saved,
);

fn one_chain_is_listed_as_it_is_saved(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Nat, Edit::declare(chain("KL-A")))
        .with(Table::Nat, Edit::declare(chain("KL-B")))
        .with(
            Table::Nat,
            Edit::append(chain("OUTPUT"), rule("-m comment --comment \"a b\" -j KL-A")),
        )
        .with(Table::Nat, Edit::append(chain("KL-A"), rule("-j KL-B")))
        .with(
            Table::Nat,
            Edit::append(chain("KL-A"), rule("-p udp -m udp --dport 53 -j RETURN")),
        );
    ok(iptables.restore(&restore));
    for name in ["OUTPUT", "KL-A", "KL-B"] {
        let listed = ok(iptables.list_chain(family, Table::Nat, &chain(name)));
        let listed: Option<Vec<Rule>> = listed.map(|chain| chain.rules().cloned().collect());
        assert_eq!(listed, Some(rules(iptables, family, Table::Nat, name)));
    }
    assert_eq!(
        ok(iptables.list_chain(family, Table::Nat, &chain("KL-NONE"))),
        None
    );
}

fn restored_rules_are_read_in_their_normal_form(iptables: &mut dyn Iptables, family: Family) {
    let net = network(family);
    let desired = [
        rule(&format!("-s {net} -p tcp -m tcp --dport 1234 -j ACCEPT")),
        rule("-m comment --comment \"it's \\\"quoted\\\" \\\\ é\" -j DROP"),
        rule("-p udp -m udp --sport 5:6 -m mark ! --mark 0x10/0xff -j RETURN"),
        rule("-j MARK --or-mark 0x4000"),
        rule("-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"),
    ];
    let mut restore = Restore::new(family).with(Table::Filter, Edit::declare(chain("KL-A")));
    for rule in &desired {
        restore.push(Table::Filter, Edit::append(chain("KL-A"), rule.clone()));
    }
    ok(iptables.restore(&restore));
    let read = rules(iptables, family, Table::Filter, "KL-A");
    let expected: Vec<Rule> = desired.iter().map(|rule| rule.normal_form(family)).collect();
    same(&read, &expected);
}

fn a_declaration_flushes_a_chain_unless_it_is_built_in(iptables: &mut dyn Iptables, family: Family) {
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

fn repeating_a_restore_changes_nothing(iptables: &mut dyn Iptables, family: Family) {
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

fn rules_are_added_and_deleted_at_their_position(iptables: &mut dyn Iptables, family: Family) {
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

fn a_refused_rule_is_reported_and_its_table_is_unchanged(iptables: &mut dyn Iptables, family: Family) {
    let before = ok(iptables.save(&Save::table(family, Table::Filter)));
    let refused_edit = Edit::append(chain("KL-A"), rule("-j REJECT --reject-with tcp-reset"));
    let mut restore = Restore::new(family).with(Table::Filter, Edit::declare(chain("KL-A")));
    for port in 1..20 {
        restore.push(
            Table::Filter,
            Edit::append(chain("KL-A"), rule(&format!("-p tcp -m tcp --dport {port}"))),
        );
    }
    restore.push(Table::Filter, refused_edit.clone());
    for port in 1..20 {
        restore.push(
            Table::Filter,
            Edit::append(chain("KL-A"), rule(&format!("-p udp -m udp --dport {port}"))),
        );
    }
    let error = refused(iptables.restore(&restore));
    assert_refused(
        &error,
        &Refused::Edit {
            table: Table::Filter,
            edit: refused_edit,
        },
    );
    assert_eq!(error.applied(), []);
    assert_eq!(ok(iptables.save(&Save::table(family, Table::Filter))), before);
}

fn tables_before_the_refused_one_stay_changed(iptables: &mut dyn Iptables, family: Family) {
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

fn missing_chains_and_rules_are_not_found(iptables: &mut dyn Iptables, family: Family) {
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
        assert_refused(
            &error,
            &Refused::Edit {
                table: Table::Filter,
                edit,
            },
        );
    }
}

fn a_jump_to_a_missing_chain_is_refused(iptables: &mut dyn Iptables, family: Family) {
    let refused_edit = Edit::append(chain("KL-A"), rule("-j KL-NONE"));
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j ACCEPT")))
        .with(Table::Filter, refused_edit.clone())
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j DROP")));
    let error = refused(iptables.restore(&restore));
    assert!(error.is_not_found(), "{error:?}");
    assert_refused(
        &error,
        &Refused::Edit {
            table: Table::Filter,
            edit: refused_edit,
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

fn an_existing_chain_is_not_created_again(iptables: &mut dyn Iptables, family: Family) {
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
    let refused_edit = Edit::append(chain("KL-A"), rule("-j MASQUERADE"));
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j ACCEPT")))
        .with(Table::Filter, refused_edit.clone());
    assert_refused(
        &refused(iptables.restore(&restore)),
        &Refused::Edit {
            table: Table::Filter,
            edit: refused_edit,
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
    let stored = [
        Some(Counters::new(0x1234, 0x0056_789a)),
        Some(Counters::default()),
    ];
    // ip6tables-nft-restore 1.8.9 writes zero for the counters of a rule.
    let lost = family == Family::Ipv6 && read == [Some(Counters::default()); 2];
    assert!(lost || read == stored, "{read:?}");
    let saved = ok(iptables.save(&Save::table(family, Table::Filter)));
    assert_eq!(counters(saved), [None, None]);
}

/// Receives all chains, and keeps those that are built in.
struct Received(Vec<(Table, ChainName, Chain)>);

impl ChainReader for Received {
    fn begin(&mut self, _request: &Save, table: Table) {
        self.0.retain(|(of, ..)| *of != table);
    }

    fn chain(&mut self, _request: &Save, table: Table, name: &ChainName, chain: Chain) -> Option<Chain> {
        self.0.push((table, *name, chain.clone()));
        table.is_builtin(name).then_some(chain)
    }
}

fn chains_are_passed_to_a_reader_with_their_rules(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::declare(chain("KL-B")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-p tcp -j KL-B")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j DROP")))
        .with(Table::Filter, Edit::append(chain("INPUT"), rule("-j KL-A")))
        .with(Table::Nat, Edit::declare(chain("KL-A")));
    ok(iptables.restore(&restore));
    let requests = [Table::Filter, Table::Nat].map(|table| Save::table(family, table).lenient());
    let mut received = Received(Vec::new());
    let mut passed = iptables.save_chains(&requests, &mut received).into_iter();
    for request in &requests {
        let whole = ok(iptables.save(request));
        let passed = ok(passed.next().unwrap_or(Err(Error::OutcomeMissing)));
        for (table, rules) in whole.tables() {
            let of_table = received.0.iter().filter(|(of, ..)| *of == table);
            let mut of_table: Vec<_> = of_table.map(|(_, name, chain)| (name, chain)).collect();
            let mut all: Vec<_> = rules.chains().collect();
            of_table.sort_by_key(|(name, _)| **name);
            all.sort_by_key(|(name, _)| **name);
            assert_eq!(of_table, all);
            all.retain(|(name, _)| table.is_builtin(name));
            let mut kept: Vec<_> = passed
                .table(table)
                .into_iter()
                .flat_map(|rules| rules.chains())
                .collect();
            kept.sort_by_key(|(name, _)| **name);
            assert_eq!(kept, all);
        }
    }
}

fn policies_are_set(iptables: &mut dyn Iptables, family: Family) {
    let policy = |policy| Edit::Declare {
        chain: chain("FORWARD"),
        policy: Some(policy),
        counters: Counters::default(),
    };
    for desired in [Policy::Drop, Policy::Accept] {
        ok(iptables.restore(&Restore::new(family).with(Table::Filter, policy(desired))));
        let saved = ok(iptables.save(&Save::table(family, Table::Filter)));
        let read = saved
            .chain(Table::Filter, &chain("FORWARD"))
            .and_then(|chain| chain.policy);
        assert_eq!(read, Some(desired));
    }
    let foreign = Edit::Declare {
        chain: chain("KL-A"),
        policy: Some(Policy::Drop),
        counters: Counters::default(),
    };
    let refused = iptables.restore(&Restore::new(family).with(Table::Filter, foreign));
    assert!(
        refused.is_err(),
        "a policy of a chain that is not built in was accepted"
    );
}

fn replacing_a_table_deletes_everything_else_in_it(iptables: &mut dyn Iptables, family: Family) {
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
    // A refusal reports no table as changed.
    let refused = Restore::new(family)
        .with(Table::Nat, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("INPUT"), rule("-j REDIRECT")));
    if let Err(error) = iptables.test(&refused) {
        assert!(error.applied().is_empty(), "{error:?}");
    }
    let nat = ok(iptables.save(&Save::table(family, Table::Nat)));
    assert!(nat.chain(Table::Nat, &chain("KL-A")).is_none());
}

fn jump(from: &str, text: &str, position: Position) -> Jump {
    Jump {
        from: chain(from),
        rule: rule(text),
        position,
    }
}

fn a_jump_is_ensured_once(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::append(chain("INPUT"), rule("-j ACCEPT")));
    ok(iptables.restore(&restore));
    let net = network(family);
    let commented = format!("! -s {net} -m comment --comment \"it's \\\"owned\\\" -j\" -j KL-A");
    let jumps = [
        jump("INPUT", "-p tcp -j KL-A", Position::First),
        jump("INPUT", "-p udp -j KL-A", Position::Last),
        jump("INPUT", &commented, Position::Before(rule("-j ACCEPT"))),
        jump("INPUT", "-p sctp -g KL-A", Position::After(rule("-j ACCEPT"))),
        // An equivalent rule exists already.
        jump("INPUT", "--protocol 6 --jump KL-A", Position::First),
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

fn a_refused_jump_is_reported(iptables: &mut dyn Iptables, family: Family) {
    let restore = Restore::new(family).with(Table::Filter, Edit::declare(chain("KL-A")));
    ok(iptables.restore(&restore));
    for jump in [
        jump("KL-NONE", "-j KL-A", Position::First),
        jump("INPUT", "-j KL-NONE", Position::First),
    ] {
        let error = refused(iptables.ensure_jump(family, Table::Filter, &jump));
        assert!(error.is_not_found(), "{error:?}");
        let edit = Edit::insert(jump.from, jump.rule);
        assert_refused(
            &error,
            &Refused::Edit {
                table: Table::Filter,
                edit,
            },
        );
    }
}

fn desired_chains_are_written_without_a_read(iptables: &mut dyn Iptables, family: Family) {
    let old = Restore::new(family)
        .with(Table::Filter, Edit::declare(chain("KL-A")))
        .with(Table::Filter, Edit::declare(chain("KL-FOREIGN")))
        .with(Table::Filter, Edit::append(chain("KL-FOREIGN"), rule("-j KL-A")))
        .with(Table::Filter, Edit::append(chain("KL-A"), rule("-j DROP")));
    ok(iptables.restore(&old));
    let mut desired = Desired::new(family);
    for (name, text) in [("KL-A", "-j KL-B"), ("KL-B", "-j RETURN")] {
        ok(desired.set_chain(Table::Filter, chain(name), [rule(text)]));
    }
    ok(desired.add_jump(Table::Filter, jump("OUTPUT", "-j KL-A", Position::First)));
    for _ in 0..2 {
        ok(iptables.restore(&desired.to_restore()));
        for (table, jump) in desired.jumps() {
            ok(iptables.ensure_jump(family, table, jump));
        }
        let saved = ok(iptables.save(&Save::table(family, Table::Filter).lenient()));
        let owned = Ownership::new().with_foreign_jumps();
        assert!(diff(&saved, &desired, &owned).is_empty(), "{saved}");
        same(
            &rules(iptables, family, Table::Filter, "KL-FOREIGN"),
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

fn position(number: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(number)
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

#[expect(clippy::panic, reason = "a check fails by panicking")]
fn ok<T>(outcome: Result<T, Error>) -> T {
    match outcome {
        Ok(value) => value,
        Err(error) => panic!("{error}\n{error:?}"),
    }
}

#[expect(clippy::panic, reason = "a check fails by panicking")]
fn refused(outcome: Result<(), Error>) -> Error {
    match outcome {
        Ok(()) => panic!("the restore was not refused"),
        Err(error) => error,
    }
}

#[expect(clippy::panic, reason = "a check fails by panicking")]
fn assert_refused(error: &Error, expected: &Refused) {
    match error {
        Error::Refused { refused, .. } => assert_eq!(refused.as_ref(), expected, "{error:?}"),
        other => panic!("expected a refusal: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn the_fake_satisfies_the_contract() {
        run(|check| (check.run)(&mut Fake::new())).unwrap();
    }
}
