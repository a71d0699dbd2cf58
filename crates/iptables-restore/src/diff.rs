//! The difference between observed and desired tables.

#[cfg(test)]
mod properties;

use std::num::NonZeroU32;

use indexmap::IndexMap;
use kernlink_base::Family;

use crate::apply::empty_table;
use crate::chain::ChainName;
use crate::desired::{Desired, DesiredTable, Jump, Position};
use crate::operation::Operation;
use crate::ownership::Ownership;
use crate::restore::{Edit, Restore};
use crate::rule::Rule;
use crate::ruleset::{Chain, Ruleset, TableRules};
use crate::table::Table;
use crate::targets::Target;

/// The smallest input that changes the saved tables to the desired ones.
///
/// - A desired chain is written, as a whole, if it is missing or its rules are not equivalent.
/// - A desired jump is added if it is missing; further copies of it are deleted.
/// - An owned chain that is not desired is deleted.
/// - A rule in a foreign chain that jumps to an owned chain is deleted if it is not desired.
///
/// Nothing else is changed. The input is empty if the tables are as desired. Policies and counters are never written.
///
/// For what a [lenient](crate::Save::lenient) read could not parse:
///
/// - an owned chain with an unreadable rule is written;
/// - an unreadable rule in a foreign chain stays and counts for the positions of jumps;
/// - an owned chain that is not desired and that an unreadable foreign rule jumps to is flushed, not deleted;
/// - in an [unreadable](Ruleset::is_unreadable) table all desired chains are written; no jump is added or deleted and no chain is deleted.
///   [`diff_operations`] adds the jumps too.
///
/// The input is valid for the tables in `saved`. If another program changes them in between, a rule to be deleted may be gone, which
/// the tool refuses, or a jump may be inserted at another position. The next read and diff corrects that.
#[must_use]
pub fn diff(saved: &Ruleset, desired: &Desired, owned: &Ownership) -> Restore {
    let mut restore = Restore::new(desired.family);
    let nothing = DesiredTable::default();
    for (table, desired_table) in &desired.tables {
        if saved.is_unreadable(*table) {
            desired_table.declare_and_fill(&mut restore, *table);
            continue;
        }
        let created = saved.table(*table).is_none().then(|| empty_table(*table));
        if let Some(rules) = saved.table(*table).or(created.as_ref()) {
            diff_table(&mut restore, *table, rules, desired_table, owned);
        }
    }
    for (table, rules) in saved
        .tables()
        .filter(|(table, _)| !desired.tables.contains_key(table))
    {
        diff_table(&mut restore, table, rules, &nothing, owned);
    }
    restore
}

/// The operations that change the saved tables to the desired ones: the restore of [`diff`], unless it is empty, and an
/// [`Operation::EnsureJump`] for each desired jump of an [unreadable](Ruleset::is_unreadable) table.
///
/// Empty if all tables were read and are as desired. An unreadable table is written in each call, because its state is unknown.
#[must_use]
pub fn diff_operations(saved: &Ruleset, desired: &Desired, owned: &Ownership) -> Vec<Operation> {
    let restore = diff(saved, desired, owned);
    let restore = (!restore.is_empty()).then_some(Operation::Restore(restore));
    let jumps = desired
        .jumps()
        .filter(|(table, _)| saved.is_unreadable(*table))
        .map(|(table, jump)| Operation::ensure_jump(desired.family, table, jump.clone()));
    restore.into_iter().chain(jumps).collect()
}

fn diff_table(
    restore: &mut Restore,
    table: Table,
    saved: &TableRules,
    desired: &DesiredTable,
    owned: &Ownership,
) {
    let family = restore.family;
    let is_owned = |name: &ChainName| {
        !table.is_builtin(name) && (desired.chains.contains_key(name) || owned.is_owned(name))
    };
    // Whether a rule in a foreign chain may be deleted.
    let may_delete = |rule: &Rule, state: State| {
        let jumps_to_owned = rule.target.as_ref().and_then(Target::chain).is_some_and(is_owned);
        jumps_to_owned && (state == State::Desired || !owned.keeps_foreign_jumps)
    };
    let changed: Vec<_> = desired
        .chains
        .iter()
        .filter(|(name, rules)| {
            saved
                .chain(name)
                .is_none_or(|chain| !same_rules(chain, rules, family))
        })
        .collect();
    let stale: Vec<_> = saved
        .chains()
        .map(|(name, _)| name)
        .filter(|name| is_owned(name) && !desired.chains.contains_key(*name))
        .collect();

    let foreign_unreadable: Vec<_> = saved
        .chains()
        .filter(|(name, _)| !is_owned(name))
        .flat_map(|(_, chain)| chain.unreadable.values())
        .chain(&saved.unreadable_lines)
        .collect();

    let mut edits = Vec::new();
    // A declaration flushes, so chains to be deleted no longer refer to each other.
    edits.extend(changed.iter().map(|(name, _)| Edit::declare(**name)));
    edits.extend(stale.iter().map(|name| Edit::declare(**name)));
    let mut jumps = Vec::new();
    let mut jumps_of: IndexMap<ChainName, Vec<&Jump>> = IndexMap::new();
    for jump in &desired.jumps {
        jumps_of.entry(jump.from).or_default().push(jump);
    }
    for (name, chain) in saved.chains().filter(|(name, _)| !is_owned(name)) {
        let desired_jumps = jumps_of.shift_remove(name).unwrap_or_default();
        diff_foreign(
            name,
            chain,
            &desired_jumps,
            &may_delete,
            family,
            &mut edits,
            &mut jumps,
        );
    }
    // Chains that do not exist: the tool reports them.
    for (name, desired_jumps) in jumps_of {
        diff_foreign(
            &name,
            &Chain::default(),
            &desired_jumps,
            &may_delete,
            family,
            &mut edits,
            &mut jumps,
        );
    }
    for (name, rules) in &changed {
        edits.extend(rules.iter().map(|rule| Edit::append(**name, rule.clone())));
    }
    edits.append(&mut jumps);
    // If a rule refers to a chain to be deleted, the kernel refuses the whole table.
    let is_referenced = |name: &ChainName| foreign_unreadable.iter().any(|line| line.jumps_to(name));
    edits.extend(
        stale
            .iter()
            .filter(|name| !is_referenced(name))
            .map(|name| Edit::delete_chain(**name)),
    );
    if !edits.is_empty() {
        restore.table_mut(table).append(&mut edits);
    }
}

fn same_rules(chain: &Chain, rules: &[Rule], family: Family) -> bool {
    chain.unreadable.is_empty()
        && chain.rules.len() == rules.len()
        && chain
            .rules()
            .zip(rules)
            .all(|(saved, desired)| saved.is_equivalent(desired, family))
}

/// Whether a rule of a foreign chain is a desired jump of this chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Desired,
    NotDesired,
}

/// Deletes rules of a foreign chain that jump to owned chains and are not desired, and adds missing jumps.
fn diff_foreign(
    name: &ChainName,
    chain: &Chain,
    desired: &[&Jump],
    may_delete: &dyn Fn(&Rule, State) -> bool,
    family: Family,
    deletions: &mut Vec<Edit>,
    insertions: &mut Vec<Edit>,
) {
    if desired.is_empty() && !chain.rules().any(|rule| may_delete(rule, State::NotDesired)) {
        return;
    }
    let normal: Vec<Rule> = chain.rules().map(|rule| rule.normal_form(family)).collect();
    let desired: Vec<(Rule, &Position)> = desired
        .iter()
        .map(|jump| (jump.rule.normal_form(family), &jump.position))
        .collect();
    // The resulting chain; `None` for an unreadable rule.
    let mut rules = Vec::with_capacity(chain.len());
    let mut at = 0;
    for saved in chain.slots() {
        let (Some(saved), Some(rule)) = (saved, normal.get(at)) else {
            rules.push(None);
            continue;
        };
        at += 1;
        let is_desired = desired.iter().any(|(jump, _)| jump == rule);
        let is_last_copy = is_desired && !normal.iter().skip(at).any(|later| later == rule);
        let state = if is_desired {
            State::Desired
        } else {
            State::NotDesired
        };
        if !is_last_copy && may_delete(saved, state) {
            deletions.push(Edit::delete(*name, saved.clone()));
        } else {
            rules.push(Some(rule.clone()));
        }
    }
    let mut first = 0;
    for (jump, position) in desired {
        if rules.iter().flatten().any(|rule| *rule == jump) {
            continue;
        }
        let anchor = |anchor: &Rule| {
            let normal = anchor.normal_form(family);
            rules.iter().position(|rule| rule.as_ref() == Some(&normal))
        };
        let at = match position {
            Position::First => first,
            Position::Last => rules.len(),
            Position::Before(rule) => anchor(rule).unwrap_or(0),
            Position::After(rule) => anchor(rule).map_or(rules.len(), |at| at + 1),
        };
        if at <= first {
            first += 1;
        }
        insertions.push(match u32::try_from(at + 1).ok().and_then(NonZeroU32::new) {
            _ if at == rules.len() => Edit::append(*name, jump.clone()),
            Some(position) if at > 0 => Edit::Insert {
                chain: *name,
                position: Some(position),
                rule: jump.clone(),
            },
            _ => Edit::insert(*name, jump.clone()),
        });
        rules.insert(at, Some(jump));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "\
*nat
:PREROUTING ACCEPT [1:2]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [3:4]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:OWNED-A - [0:0]
:OWNED-B - [0:0]
:OWNED-OLD - [0:0]
-A PREROUTING -m comment --comment \"to owned\" -j OWNED-A
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -j DOCKER
-A OUTPUT -j OWNED-OLD
-A DOCKER -j RETURN
-A OWNED-A -s 10.0.0.1/32 -j OWNED-B
-A OWNED-B -j MARK --set-xmark 0x4000/0x4000
-A OWNED-OLD -j OWNED-B
COMMIT
";

    pub(super) fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    pub(super) fn chain(text: &str) -> ChainName {
        text.parse().unwrap()
    }

    pub(super) fn jump(from: &str, text: &str, position: Position) -> Jump {
        Jump {
            from: chain(from),
            rule: rule(text),
            position,
        }
    }

    fn desired() -> Desired {
        let mut desired = Desired::new(Family::Ipv4);
        desired
            .set_chain(Table::Nat, chain("OWNED-A"), [rule("-s 10.0.0.1 -j OWNED-B")])
            .unwrap();
        desired
            .set_chain(Table::Nat, chain("OWNED-B"), [rule("-j MARK --or-mark 0x4000")])
            .unwrap();
        let to_owned_chain = "-m comment --comment \"to owned\" -j OWNED-A";
        desired
            .add_jump(Table::Nat, jump("PREROUTING", to_owned_chain, Position::First))
            .unwrap();
        desired
    }

    fn lines(saved: &str, desired: &Desired) -> Vec<String> {
        let owned = Ownership::new().with_prefix("OWNED-");
        let restore = diff(&saved.parse().unwrap(), desired, &owned);
        restore
            .tables()
            .flat_map(|(_, edits)| edits.iter().map(Edit::to_string))
            .collect()
    }

    #[test]
    fn only_differences_are_written() {
        let as_desired = SAVED
            .lines()
            .filter(|line| !line.contains("OWNED-OLD"))
            .collect::<Vec<_>>()
            .join("\n")
            + "\n";
        assert_eq!(lines(&as_desired, &desired()), Vec::<String>::new());
        assert_eq!(
            lines(SAVED, &desired()),
            [":OWNED-OLD - [0:0]", "-D OUTPUT -j OWNED-OLD", "-X OWNED-OLD"]
        );
        let mut other = desired();
        other
            .set_chain(Table::Nat, chain("OWNED-B"), [rule("-j RETURN")])
            .unwrap();
        other.set_chain(Table::Nat, chain("OWNED-C"), []).unwrap();
        assert_eq!(
            lines(&as_desired, &other),
            [":OWNED-B - [0:0]", ":OWNED-C - [0:0]", "-A OWNED-B -j RETURN"]
        );
    }

    #[test]
    fn with_foreign_jumps_only_the_second_copy_of_a_desired_jump_is_deleted() {
        let twice = "-A PREROUTING -m comment --comment \"to owned\" -j OWNED-A\n";
        let saved = SAVED.replacen(twice, &twice.repeat(2), 1);
        let owned = Ownership::new().with_foreign_jumps();
        let restore = diff(&saved.parse().unwrap(), &desired(), &owned);
        let lines: Vec<_> = restore
            .tables()
            .flat_map(|(_, edits)| edits.iter().map(Edit::to_string))
            .collect();
        assert_eq!(
            lines,
            ["-D PREROUTING -m comment --comment \"to owned\" -j OWNED-A"]
        );
    }

    #[test]
    fn without_desired_chains_everything_owned_is_deleted_and_nothing_else() {
        assert_eq!(
            lines(SAVED, &Desired::new(Family::Ipv4)),
            [
                ":OWNED-A - [0:0]",
                ":OWNED-B - [0:0]",
                ":OWNED-OLD - [0:0]",
                "-D PREROUTING -m comment --comment \"to owned\" -j OWNED-A",
                "-D OUTPUT -j OWNED-OLD",
                "-X OWNED-A",
                "-X OWNED-B",
                "-X OWNED-OLD",
            ]
        );
    }

    #[test]
    fn missing_jumps_are_added_at_their_positions() {
        let mut desired = Desired::new(Family::Ipv4);
        for name in ["OWNED-A", "OWNED-B", "OWNED-OLD"] {
            desired.set_chain(Table::Nat, chain(name), []).unwrap();
        }
        let docker = || rule("-m addrtype --dst-type LOCAL -j DOCKER");
        for (text, position) in [
            ("-p tcp -j OWNED-A", Position::First),
            ("-p udp -j OWNED-A", Position::First),
            ("-p tcp -j OWNED-B", Position::Before(docker())),
            ("-p udp -j OWNED-B", Position::After(docker())),
            ("-p sctp -j OWNED-B", Position::Last),
            ("-p sctp -j OWNED-A", Position::After(rule("-j MISSING"))),
        ] {
            desired
                .add_jump(Table::Nat, jump("PREROUTING", text, position))
                .unwrap();
        }
        let mut saved: Ruleset = SAVED.parse().unwrap();
        let owned = Ownership::new().with_prefix("OWNED-");
        let restore = diff(&saved, &desired, &owned);
        crate::apply::apply(&mut saved, &restore, None).unwrap();
        let read: Vec<String> = saved
            .chain(Table::Nat, &chain("PREROUTING"))
            .unwrap()
            .rules()
            .map(|rule| rule.to_string())
            .collect();
        assert_eq!(
            read,
            [
                "-p tcp -j OWNED-A",
                "-p udp -j OWNED-A",
                "-p tcp -j OWNED-B",
                "-m addrtype --dst-type LOCAL -j DOCKER",
                "-p udp -j OWNED-B",
                "-p sctp -j OWNED-B",
                "-p sctp -j OWNED-A",
            ]
        );
        assert!(diff(&saved, &desired, &owned).is_empty());
    }

    #[test]
    fn of_two_copies_of_a_jump_one_is_deleted() {
        let line = "-A OUTPUT -j OWNED-OLD\n";
        let doubled = SAVED.replace(line, &line.repeat(3));
        let mut desired = desired();
        desired
            .set_chain(Table::Nat, chain("OWNED-OLD"), [rule("-j OWNED-B")])
            .unwrap();
        desired
            .add_jump(Table::Nat, jump("OUTPUT", "-j OWNED-OLD", Position::First))
            .unwrap();
        assert_eq!(
            lines(&doubled, &desired),
            ["-D OUTPUT -j OWNED-OLD", "-D OUTPUT -j OWNED-OLD"]
        );
    }

    #[test]
    fn a_missing_table_is_treated_as_empty() {
        let mut desired = Desired::new(Family::Ipv4);
        desired
            .set_chain(Table::Mangle, chain("OWNED-A"), [rule("-j RETURN")])
            .unwrap();
        desired
            .add_jump(Table::Mangle, jump("INPUT", "-j OWNED-A", Position::First))
            .unwrap();
        assert_eq!(
            lines("", &desired),
            [":OWNED-A - [0:0]", "-A OWNED-A -j RETURN", "-A INPUT -j OWNED-A"]
        );
    }

    #[test]
    fn long_foreign_chains_are_compared() {
        let mut saved = Ruleset::new();
        *saved.table_mut(Table::Nat) = empty_table(Table::Nat);
        let foreign =
            (0..10_000).map(|number| rule(&format!("-s 10.1.{}.{} -j ACCEPT", number / 256, number % 256)));
        let stale = std::iter::repeat_n(rule("-j OWNED-OLD"), 10_000);
        let rules = foreign.zip(stale).flat_map(|(foreign, owned)| [foreign, owned]);
        saved.table_mut(Table::Nat).chain_mut(chain("PREROUTING")).rules = rules.map(Into::into).collect();
        saved.table_mut(Table::Nat).chain_mut(chain("OWNED-OLD"));
        let owned = Ownership::new().with_prefix("OWNED-");
        let restore = diff(&saved, &desired(), &owned);
        let edits = restore.tables().map(|(_, edits)| edits.len()).sum::<usize>();
        // Three declared, two rules, one jump, one chain deleted.
        assert_eq!(edits, 10_000 + 7);
    }

    /// `SAVED` with unreadable rules: in the foreign chain of a desired jump, in an owned chain, and one that jumps to an owned chain
    /// that is not desired.
    const UNREADABLE: &str = "\
*nat
:PREROUTING ACCEPT [1:2]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [3:4]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:OWNED-A - [0:0]
:OWNED-B - [0:0]
:OWNED-OLD - [0:0]
:OWNED-OLDER - [0:0]
-A PREROUTING -m comment --comment \"line
feed\" -j DOCKER
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT -j OWNED-OLD
-A OUTPUT -m comment --comment \"line
feed\" -j OWNED-OLD
-A OWNED-A -s 10.0.0.1/32 -j OWNED-B
-A OWNED-B -j MARK --set-xmark 0x4000/0x4000
-A OWNED-B -m comment --comment \"line
feed\"
-A OWNED-OLDER -m comment --comment \"line
feed\" -j OWNED-OLDER
COMMIT
";

    #[test]
    fn unreadable_rules_are_never_equal_to_desired_ones() {
        let saved = Ruleset::parse_lenient(UNREADABLE);
        let owned = Ownership::new().with_prefix("OWNED-");
        let mut desired = desired();
        let local = rule("-m addrtype --dst-type LOCAL -j DOCKER");
        desired
            .add_jump(
                Table::Nat,
                jump("PREROUTING", "-p tcp -j OWNED-A", Position::Before(local.clone())),
            )
            .unwrap();
        desired
            .add_jump(
                Table::Nat,
                jump("PREROUTING", "-p udp -j OWNED-A", Position::After(local)),
            )
            .unwrap();
        let restore = diff(&saved, &desired, &owned);
        let lines: Vec<_> = restore
            .tables()
            .flat_map(|(_, edits)| edits.iter().map(Edit::to_string))
            .collect();
        assert_eq!(
            lines,
            [
                ":OWNED-B - [0:0]",
                ":OWNED-OLD - [0:0]",
                ":OWNED-OLDER - [0:0]",
                "-D OUTPUT -j OWNED-OLD",
                "-A OWNED-B -j MARK --or-mark 0x4000",
                "-I PREROUTING -m comment --comment \"to owned\" -j OWNED-A",
                // After the first jump and the unreadable rule.
                "-I PREROUTING 3 -p tcp -j OWNED-A",
                "-A PREROUTING -p udp -j OWNED-A",
                "-X OWNED-OLDER",
            ]
        );
        let mut after = saved.clone();
        crate::apply::apply(&mut after, &restore, None).unwrap();
        // The foreign ones still exist.
        assert_eq!(after.unreadable().len(), 2);
        assert_eq!(
            lines_of(&after, &desired),
            [":OWNED-OLD - [0:0]"],
            "the chain with a reference is flushed and not deleted"
        );
    }

    fn lines_of(saved: &Ruleset, desired: &Desired) -> Vec<String> {
        let restore = diff(saved, desired, &Ownership::new().with_prefix("OWNED-"));
        let edits = restore.tables().flat_map(|(_, edits)| edits);
        edits.map(Edit::to_string).collect()
    }

    #[test]
    fn an_unreadable_table_gets_its_chains_and_jumps() {
        let saved = Ruleset::parse_lenient("# Table `nat' is incompatible, use 'nft' tool.\n");
        let desired = desired();
        let operations = diff_operations(&saved, &desired, &Ownership::new().with_prefix("OWNED-"));
        let to_owned_chain = "-m comment --comment \"to owned\" -j OWNED-A";
        let jump = jump("PREROUTING", to_owned_chain, Position::First);
        assert_eq!(
            operations,
            [
                Operation::Restore(desired.to_restore()),
                Operation::ensure_jump(Family::Ipv4, Table::Nat, jump),
            ]
        );
        assert_eq!(
            desired.to_restore().render(crate::Style::SAVE),
            "\
*nat
:OWNED-A - [0:0]
:OWNED-B - [0:0]
-A OWNED-A -s 10.0.0.1 -j OWNED-B
-A OWNED-B -j MARK --or-mark 0x4000
COMMIT
"
        );
        // A table that was read needs no second operation.
        let saved: Ruleset = SAVED.parse().unwrap();
        let operations = diff_operations(&saved, &desired, &Ownership::new().with_prefix("OWNED-"));
        assert_eq!(operations.len(), 1);
    }
}
