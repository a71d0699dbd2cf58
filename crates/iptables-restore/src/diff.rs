//! From what is there to what is wanted, touching only what is ours.

use std::num::NonZeroU32;

use indexmap::IndexMap;

use crate::apply::empty_table;
use crate::chain::ChainName;
use crate::desired::{Jump, Owned, Place, Wanted, WantedTable};
use crate::family::Family;
use crate::operation::Operation;
use crate::restore::{Edit, Restore};
use crate::rule::Rule;
use crate::ruleset::{Chain, Ruleset, TableRules};
use crate::table::Table;
use crate::targets::Target;

/// The smallest input that turns what is there into what is wanted.
///
/// Written again are only chains that differ in meaning, each as a whole; put in are only jumps that are
/// missing; taken out are chains that are ours and not wanted, and rules of others' chains that lead to a chain
/// of ours and are not wanted, or are there a second time. All else is left alone, and nothing at all is written
/// where everything is right. Policies and counters are never written.
///
/// Of what a [tolerant](crate::Save::tolerant) read could not understand,
///
/// - a rule in one of our chains makes that chain differ, so the chain is written again;
/// - a rule in another's chain stays and counts for the places of jumps;
/// - a rule that jumps to a chain of ours that goes keeps that chain: it is emptied, not deleted;
/// - a table that is [unreadable](Ruleset::is_unreadable) gets all wanted chains, no jump is put in or taken out, and no chain
///   is deleted. [`diff_operations`] has the jumps too.
///
/// The input is right for tables as they are in `saved`. If somebody writes in between, a rule to be taken out
/// may be gone, which the tool refuses, or a jump placed relative to another rule may end elsewhere; reading and
/// comparing again puts it right.
pub fn diff(saved: &Ruleset, wanted: &Wanted, owned: &Owned) -> Restore {
    let mut restore = Restore::new(wanted.family);
    let nothing = WantedTable::default();
    for (table, wanted_table) in &wanted.tables {
        if saved.is_unreadable(*table) {
            wanted_table.declare_and_fill(&mut restore, *table);
            continue;
        }
        let made = saved.table(*table).is_none().then(|| empty_table(*table));
        if let Some(rules) = saved.table(*table).or(made.as_ref()) {
            diff_table(&mut restore, *table, rules, wanted_table, owned);
        }
    }
    for (table, rules) in saved
        .tables()
        .filter(|(table, _)| !wanted.tables.contains_key(table))
    {
        diff_table(&mut restore, table, rules, &nothing, owned);
    }
    restore
}

/// The operations that turn what is there into what is wanted: the restore that [`diff`] makes, unless it is empty, and an
/// [`Operation::EnsureJump`] for each jump wanted in a table that is [unreadable](Ruleset::is_unreadable).
///
/// No operation is left where everything is right and every table was read. An unreadable table is written at each call, because
/// nobody can tell whether it is right.
pub fn diff_operations(saved: &Ruleset, wanted: &Wanted, owned: &Owned) -> Vec<Operation> {
    let restore = diff(saved, wanted, owned);
    let restore = (!restore.is_empty()).then_some(Operation::Restore(restore));
    let jumps = wanted
        .jumps()
        .filter(|(table, _)| saved.is_unreadable(*table))
        .map(|(table, jump)| Operation::ensure_jump(wanted.family, table, jump.clone()));
    restore.into_iter().chain(jumps).collect()
}

fn diff_table(restore: &mut Restore, table: Table, saved: &TableRules, wanted: &WantedTable, owned: &Owned) {
    let family = restore.family;
    let is_ours =
        |name: &ChainName| !table.is_builtin(name) && (wanted.chains.contains_key(name) || owned.holds(name));
    // Whether a rule in a chain of others is ours to take out.
    let may_go = |rule: &Rule, wish: Wish| {
        let leads_to_us = rule.target.as_ref().and_then(Target::chain).is_some_and(is_ours);
        leads_to_us && (wish == Wish::Wanted || !owned.shares_chains)
    };
    let changed: Vec<_> = wanted
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
        .filter(|name| is_ours(name) && !wanted.chains.contains_key(*name))
        .collect();

    let foreign_unreadable: Vec<_> = saved
        .chains()
        .filter(|(name, _)| !is_ours(name))
        .flat_map(|(_, chain)| chain.unreadable.values())
        .chain(&saved.unreadable_lines)
        .collect();

    let mut edits = Vec::new();
    // Declaring empties, so chains that go hold no references to each other any more.
    edits.extend(changed.iter().map(|(name, _)| Edit::declare(**name)));
    edits.extend(stale.iter().map(|name| Edit::declare(**name)));
    let mut jumps = Vec::new();
    let mut jumps_of: IndexMap<ChainName, Vec<&Jump>> = IndexMap::new();
    for jump in &wanted.jumps {
        jumps_of.entry(jump.from).or_default().push(jump);
    }
    for (name, chain) in saved.chains().filter(|(name, _)| !is_ours(name)) {
        let wanted_here = jumps_of.shift_remove(name).unwrap_or_default();
        diff_foreign(name, chain, &wanted_here, &may_go, family, &mut edits, &mut jumps);
    }
    // Chains that are not there: the tool will say so.
    for (name, wanted_here) in jumps_of {
        diff_foreign(
            &name,
            &Chain::default(),
            &wanted_here,
            &may_go,
            family,
            &mut edits,
            &mut jumps,
        );
    }
    for (name, rules) in &changed {
        edits.extend(rules.iter().map(|rule| Edit::append(**name, rule.clone())));
    }
    edits.append(&mut jumps);
    // The kernel refuses to delete a chain that a rule refers to, and with it the whole table.
    let is_held = |name: &ChainName| foreign_unreadable.iter().any(|line| line.leads_to(name));
    edits.extend(
        stale
            .iter()
            .filter(|name| !is_held(name))
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
            .all(|(saved, wanted)| saved.means_the_same(wanted, family))
}

/// Whether a rule that stands somewhere is one of those wanted there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Wanted,
    Unwanted,
}

/// Takes out of a chain of others what leads to us and is not wanted there, and puts in what is missing.
fn diff_foreign(
    name: &ChainName,
    chain: &Chain,
    wanted: &[&Jump],
    may_go: &dyn Fn(&Rule, Wish) -> bool,
    family: Family,
    deletions: &mut Vec<Edit>,
    insertions: &mut Vec<Edit>,
) {
    if wanted.is_empty() && !chain.rules().any(|rule| may_go(rule, Wish::Unwanted)) {
        return;
    }
    let normal: Vec<Rule> = chain.rules().map(|rule| rule.normal_form(family)).collect();
    let wanted: Vec<(Rule, &Place)> = wanted
        .iter()
        .map(|jump| (jump.rule.normal_form(family), &jump.place))
        .collect();
    // The chain as it will be; none for a rule that could not be read.
    let mut rules = Vec::with_capacity(chain.len());
    let mut at = 0;
    for saved in chain.slots() {
        let (Some(saved), Some(rule)) = (saved, normal.get(at)) else {
            rules.push(None);
            continue;
        };
        at += 1;
        let is_wanted = wanted.iter().any(|(jump, _)| jump == rule);
        let right = is_wanted && !normal.iter().skip(at).any(|later| later == rule);
        let wish = if is_wanted { Wish::Wanted } else { Wish::Unwanted };
        if !right && may_go(saved, wish) {
            deletions.push(Edit::delete(*name, saved.clone()));
        } else {
            rules.push(Some(rule.clone()));
        }
    }
    let mut first = 0;
    for (jump, place) in wanted {
        if rules.iter().flatten().any(|rule| *rule == jump) {
            continue;
        }
        let anchor = |anchor: &Rule| {
            let normal = anchor.normal_form(family);
            rules.iter().position(|rule| rule.as_ref() == Some(&normal))
        };
        let at = match place {
            Place::First => first,
            Place::Last => rules.len(),
            Place::Before(rule) => anchor(rule).unwrap_or(0),
            Place::After(rule) => anchor(rule).map_or(rules.len(), |at| at + 1),
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
:OURS-A - [0:0]
:OURS-B - [0:0]
:OURS-OLD - [0:0]
-A PREROUTING -m comment --comment \"to ours\" -j OURS-A
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -j DOCKER
-A OUTPUT -j OURS-OLD
-A DOCKER -j RETURN
-A OURS-A -s 10.0.0.1/32 -j OURS-B
-A OURS-B -j MARK --set-xmark 0x4000/0x4000
-A OURS-OLD -j OURS-B
COMMIT
";

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    fn chain(text: &str) -> ChainName {
        text.parse().unwrap()
    }

    fn jump(from: &str, text: &str, place: Place) -> Jump {
        Jump {
            from: chain(from),
            rule: rule(text),
            place,
        }
    }

    fn wanted() -> Wanted {
        let mut wanted = Wanted::new(Family::Ipv4);
        wanted
            .set_chain(Table::Nat, chain("OURS-A"), [rule("-s 10.0.0.1 -j OURS-B")])
            .unwrap();
        wanted
            .set_chain(Table::Nat, chain("OURS-B"), [rule("-j MARK --or-mark 0x4000")])
            .unwrap();
        let to_ours = "-m comment --comment \"to ours\" -j OURS-A";
        wanted
            .add_jump(Table::Nat, jump("PREROUTING", to_ours, Place::First))
            .unwrap();
        wanted
    }

    fn lines(saved: &str, wanted: &Wanted) -> Vec<String> {
        let owned = Owned::new().with_prefix("OURS-");
        let restore = diff(&saved.parse().unwrap(), wanted, &owned);
        restore
            .tables()
            .flat_map(|(_, edits)| edits.iter().map(Edit::to_string))
            .collect()
    }

    #[test]
    fn only_what_is_not_right_is_written() {
        let right = SAVED
            .lines()
            .filter(|line| !line.contains("OURS-OLD"))
            .collect::<Vec<_>>()
            .join("\n")
            + "\n";
        assert_eq!(lines(&right, &wanted()), Vec::<String>::new());
        assert_eq!(
            lines(SAVED, &wanted()),
            [":OURS-OLD - [0:0]", "-D OUTPUT -j OURS-OLD", "-X OURS-OLD"]
        );
        let mut other = wanted();
        other
            .set_chain(Table::Nat, chain("OURS-B"), [rule("-j RETURN")])
            .unwrap();
        other.set_chain(Table::Nat, chain("OURS-C"), []).unwrap();
        assert_eq!(
            lines(&right, &other),
            [":OURS-B - [0:0]", ":OURS-C - [0:0]", "-A OURS-B -j RETURN"]
        );
    }

    #[test]
    fn of_shared_chains_only_the_second_of_a_wanted_jump_is_taken_out() {
        let twice = "-A PREROUTING -m comment --comment \"to ours\" -j OURS-A\n";
        let saved = SAVED.replacen(twice, &twice.repeat(2), 1);
        let owned = Owned::new().with_shared_chains();
        let restore = diff(&saved.parse().unwrap(), &wanted(), &owned);
        let lines: Vec<_> = restore
            .tables()
            .flat_map(|(_, edits)| edits.iter().map(Edit::to_string))
            .collect();
        assert_eq!(
            lines,
            ["-D PREROUTING -m comment --comment \"to ours\" -j OURS-A"]
        );
    }

    #[test]
    fn without_wishes_all_that_is_ours_goes_and_nothing_else() {
        assert_eq!(
            lines(SAVED, &Wanted::new(Family::Ipv4)),
            [
                ":OURS-A - [0:0]",
                ":OURS-B - [0:0]",
                ":OURS-OLD - [0:0]",
                "-D PREROUTING -m comment --comment \"to ours\" -j OURS-A",
                "-D OUTPUT -j OURS-OLD",
                "-X OURS-A",
                "-X OURS-B",
                "-X OURS-OLD",
            ]
        );
    }

    #[test]
    fn missing_jumps_go_where_they_are_wanted() {
        let mut wanted = Wanted::new(Family::Ipv4);
        for name in ["OURS-A", "OURS-B", "OURS-OLD"] {
            wanted.set_chain(Table::Nat, chain(name), []).unwrap();
        }
        let docker = || rule("-m addrtype --dst-type LOCAL -j DOCKER");
        for (text, place) in [
            ("-p tcp -j OURS-A", Place::First),
            ("-p udp -j OURS-A", Place::First),
            ("-p tcp -j OURS-B", Place::Before(docker())),
            ("-p udp -j OURS-B", Place::After(docker())),
            ("-p sctp -j OURS-B", Place::Last),
            ("-p sctp -j OURS-A", Place::After(rule("-j NOBODY"))),
        ] {
            wanted
                .add_jump(Table::Nat, jump("PREROUTING", text, place))
                .unwrap();
        }
        let mut saved: Ruleset = SAVED.parse().unwrap();
        let owned = Owned::new().with_prefix("OURS-");
        let restore = diff(&saved, &wanted, &owned);
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
                "-p tcp -j OURS-A",
                "-p udp -j OURS-A",
                "-p tcp -j OURS-B",
                "-m addrtype --dst-type LOCAL -j DOCKER",
                "-p udp -j OURS-B",
                "-p sctp -j OURS-B",
                "-p sctp -j OURS-A",
            ]
        );
        assert!(diff(&saved, &wanted, &owned).is_empty());
    }

    #[test]
    fn a_jump_that_is_there_twice_stays_once() {
        let line = "-A OUTPUT -j OURS-OLD\n";
        let doubled = SAVED.replace(line, &line.repeat(3));
        let mut wanted = wanted();
        wanted
            .set_chain(Table::Nat, chain("OURS-OLD"), [rule("-j OURS-B")])
            .unwrap();
        wanted
            .add_jump(Table::Nat, jump("OUTPUT", "-j OURS-OLD", Place::First))
            .unwrap();
        assert_eq!(
            lines(&doubled, &wanted),
            ["-D OUTPUT -j OURS-OLD", "-D OUTPUT -j OURS-OLD"]
        );
    }

    #[test]
    fn a_table_that_is_not_there_is_as_good_as_empty() {
        let mut wanted = Wanted::new(Family::Ipv4);
        wanted
            .set_chain(Table::Mangle, chain("OURS-A"), [rule("-j RETURN")])
            .unwrap();
        wanted
            .add_jump(Table::Mangle, jump("INPUT", "-j OURS-A", Place::First))
            .unwrap();
        assert_eq!(
            lines("", &wanted),
            [":OURS-A - [0:0]", "-A OURS-A -j RETURN", "-A INPUT -j OURS-A"]
        );
    }

    #[test]
    fn long_chains_of_others_are_no_trouble() {
        let mut saved = Ruleset::new();
        *saved.table_mut(Table::Nat) = empty_table(Table::Nat);
        let theirs =
            (0..10_000).map(|place| rule(&format!("-s 10.1.{}.{} -j ACCEPT", place / 256, place % 256)));
        let stale = std::iter::repeat_n(rule("-j OURS-OLD"), 10_000);
        let rules = theirs.zip(stale).flat_map(|(theirs, ours)| [theirs, ours]);
        saved.table_mut(Table::Nat).chain_mut(chain("PREROUTING")).rules = rules.map(Into::into).collect();
        saved.table_mut(Table::Nat).chain_mut(chain("OURS-OLD"));
        let owned = Owned::new().with_prefix("OURS-");
        let restore = diff(&saved, &wanted(), &owned);
        let edits = restore.tables().map(|(_, edits)| edits.len()).sum::<usize>();
        // Three declared, two rules, one jump, one chain deleted.
        assert_eq!(edits, 10_000 + 7);
    }

    /// `SAVED` with rules that cannot be read: in a chain of others that our jump is in, in one of our chains, and one that
    /// leads to a chain of ours that is not wanted.
    const HIDDEN: &str = "\
*nat
:PREROUTING ACCEPT [1:2]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [3:4]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:OURS-A - [0:0]
:OURS-B - [0:0]
:OURS-OLD - [0:0]
:OURS-OLDER - [0:0]
-A PREROUTING -m comment --comment \"line
feed\" -j DOCKER
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT -j OURS-OLD
-A OUTPUT -m comment --comment \"line
feed\" -j OURS-OLD
-A OURS-A -s 10.0.0.1/32 -j OURS-B
-A OURS-B -j MARK --set-xmark 0x4000/0x4000
-A OURS-B -m comment --comment \"line
feed\"
-A OURS-OLDER -m comment --comment \"line
feed\" -j OURS-OLDER
COMMIT
";

    #[test]
    fn what_cannot_be_read_never_counts_as_right_and_keeps_nothing_from_being_written() {
        let saved = Ruleset::read_tolerant(HIDDEN);
        let owned = Owned::new().with_prefix("OURS-");
        let mut wanted = wanted();
        let local = rule("-m addrtype --dst-type LOCAL -j DOCKER");
        wanted
            .add_jump(
                Table::Nat,
                jump("PREROUTING", "-p tcp -j OURS-A", Place::Before(local.clone())),
            )
            .unwrap();
        wanted
            .add_jump(
                Table::Nat,
                jump("PREROUTING", "-p udp -j OURS-A", Place::After(local)),
            )
            .unwrap();
        let restore = diff(&saved, &wanted, &owned);
        let lines: Vec<_> = restore
            .tables()
            .flat_map(|(_, edits)| edits.iter().map(Edit::to_string))
            .collect();
        assert_eq!(
            lines,
            [
                ":OURS-B - [0:0]",
                ":OURS-OLD - [0:0]",
                ":OURS-OLDER - [0:0]",
                "-D OUTPUT -j OURS-OLD",
                "-A OURS-B -j MARK --or-mark 0x4000",
                "-I PREROUTING -m comment --comment \"to ours\" -j OURS-A",
                // Behind the first jump and the rule that was not read.
                "-I PREROUTING 3 -p tcp -j OURS-A",
                "-A PREROUTING -p udp -j OURS-A",
                "-X OURS-OLDER",
            ]
        );
        let mut after = saved.clone();
        crate::apply::apply(&mut after, &restore, None).unwrap();
        // Those of others are still there.
        assert_eq!(after.unreadable().len(), 2);
        assert_eq!(
            lines_of(&after, &wanted),
            [":OURS-OLD - [0:0]"],
            "the chain that something leads to stays, empty"
        );
    }

    fn lines_of(saved: &Ruleset, wanted: &Wanted) -> Vec<String> {
        let restore = diff(saved, wanted, &Owned::new().with_prefix("OURS-"));
        let edits = restore.tables().flat_map(|(_, edits)| edits);
        edits.map(Edit::to_string).collect()
    }

    #[test]
    fn a_table_that_cannot_be_printed_gets_its_chains_and_jumps() {
        let saved = Ruleset::read_tolerant("# Table `nat' is incompatible, use 'nft' tool.\n");
        let wanted = wanted();
        let operations = diff_operations(&saved, &wanted, &Owned::new().with_prefix("OURS-"));
        let to_ours = "-m comment --comment \"to ours\" -j OURS-A";
        let jump = jump("PREROUTING", to_ours, Place::First);
        assert_eq!(
            operations,
            [
                Operation::Restore(wanted.to_restore()),
                Operation::ensure_jump(Family::Ipv4, Table::Nat, jump),
            ]
        );
        assert_eq!(
            wanted.to_restore().render(crate::Style::SAVE),
            "\
*nat
:OURS-A - [0:0]
:OURS-B - [0:0]
-A OURS-A -s 10.0.0.1 -j OURS-B
-A OURS-B -j MARK --or-mark 0x4000
COMMIT
"
        );
        // What was read needs no second operation.
        let saved: Ruleset = SAVED.parse().unwrap();
        let operations = diff_operations(&saved, &wanted, &Owned::new().with_prefix("OURS-"));
        assert_eq!(operations.len(), 1);
    }

    mod properties {
        use super::*;
        use crate::apply::apply;
        use proptest::prelude::*;

        const OURS: [&str; 4] = ["OURS-A", "OURS-B", "OURS-C", "OURS-D"];
        const OTHERS: [&str; 3] = ["INPUT", "FORWARD", "THEIRS"];

        /// A rule that leads only to chains later in `OURS`, so that there are no loops.
        fn rules(after: usize, to_others: bool) -> impl Strategy<Value = Vec<Rule>> {
            let mut texts = vec![
                "-s 10.0.0.1 -j ACCEPT".to_owned(),
                "-s 10.0.0.1/32 -j ACCEPT".to_owned(),
                "-j MARK --or-mark 0x4000".to_owned(),
                "-j MARK --set-xmark 0x4000/0x4000".to_owned(),
                "-p tcp -j RETURN".to_owned(),
            ];
            for target in &OURS[after..] {
                texts.push(format!("-j {target}"));
                texts.push(format!("-p udp -g {target}"));
            }
            if to_others {
                texts.push("-j THEIRS".into());
            }
            let texts = prop::sample::select(texts).prop_map(|text| rule(&text));
            prop::collection::vec(texts, 0..5)
        }

        prop_compose! {
            /// Each of our chains there or not, each jump only to a chain that is there.
            fn saved()(
                present in prop::collection::vec(any::<bool>(), OURS.len()),
                ours in (rules(1, false), rules(2, false), rules(3, false), rules(4, false)),
                others in (rules(0, true), rules(0, false), rules(0, false)),
            ) -> Ruleset {
                let mut ruleset = Ruleset::new();
                let table = ruleset.table_mut(Table::Filter);
                *table = empty_table(Table::Filter);
                let is_there = |rule: &Rule| match rule.target.as_ref().and_then(Target::chain) {
                    Some(name) => OURS.iter().zip(&present).all(|(ours, there)| *there || *ours != name.as_str()),
                    None => true,
                };
                let fill = |rules: Vec<Rule>| {
                    rules.into_iter().filter(is_there).map(|rule| rule.normal_form(Family::Ipv4)).map(Into::into).collect()
                };
                let ours: Vec<Vec<Rule>> = vec![ours.0, ours.1, ours.2, ours.3];
                for ((name, rules), there) in OURS.iter().zip(ours).zip(&present) {
                    if *there {
                        table.chain_mut(chain(name)).rules = fill(rules);
                    }
                }
                let others: Vec<Vec<Rule>> = vec![others.0, others.1, others.2];
                for (name, rules) in OTHERS.iter().zip(others) {
                    table.chain_mut(chain(name)).rules = fill(rules);
                }
                ruleset
            }
        }

        fn place() -> impl Strategy<Value = Place> {
            prop::sample::select(vec![
                Place::First,
                Place::Last,
                Place::Before(rule("-p tcp -j RETURN")),
                Place::After(rule("-p tcp -j RETURN")),
            ])
        }

        prop_compose! {
            fn wishes()(
                wanted in prop::collection::vec(any::<bool>(), OURS.len()),
                ours in (rules(1, false), rules(2, false), rules(3, false), rules(4, false)),
                jumps in prop::collection::vec((0..OTHERS.len(), 0..OURS.len(), any::<bool>(), place()), 0..4),
            ) -> Wanted {
                let mut wishes = Wanted::new(Family::Ipv4);
                let is_there = |name: &str| OURS.iter().zip(&wanted).all(|(ours, there)| *there || *ours != name);
                let ours: Vec<Vec<Rule>> = vec![ours.0, ours.1, ours.2, ours.3];
                for ((name, rules), there) in OURS.iter().zip(ours).zip(&wanted) {
                    if *there {
                        let rules = rules.into_iter().filter(|rule| {
                            rule.target.as_ref().and_then(Target::chain).is_none_or(|name| is_there(name.as_str()))
                        });
                        wishes.set_chain(Table::Filter, chain(name), rules).unwrap();
                    }
                }
                for (from, to, tcp, place) in jumps {
                    if is_there(OURS[to]) {
                        let text = format!("{}-j {}", if tcp { "-p tcp " } else { "" }, OURS[to]);
                        wishes.add_jump(Table::Filter, jump(OTHERS[from], &text, place)).unwrap();
                    }
                }
                wishes
            }
        }

        fn theirs(saved: &Ruleset, name: &str) -> Vec<Rule> {
            let chain = saved.chain(Table::Filter, &chain(name)).unwrap();
            let ours = |rule: &&Rule| {
                rule.target
                    .as_ref()
                    .and_then(Target::chain)
                    .is_some_and(|name| name.as_str().starts_with("OURS"))
            };
            chain.rules().filter(|rule| !ours(rule)).cloned().collect()
        }

        proptest! {
            #[test]
            fn applying_the_difference_gives_what_is_wanted_and_leaves_others_alone(
                before in saved(), wishes in wishes()
            ) {
                let owned = Owned::new().with_prefix("OURS-");
                let restore = diff(&before, &wishes, &owned);
                let mut after = before.clone();
                prop_assert_eq!(apply(&mut after, &restore, None), Ok(()), "{}", restore);
                for name in OURS {
                    let name = chain(name);
                    match (after.chain(Table::Filter, &name), wishes.chain(Table::Filter, &name)) {
                        (Some(chain), Some(rules)) => {
                            prop_assert!(same_rules(chain, rules, Family::Ipv4), "{after}");
                        }
                        (chain, rules) => prop_assert_eq!(chain.is_some(), rules.is_some()),
                    }
                }
                for name in OTHERS {
                    prop_assert_eq!(theirs(&after, name), theirs(&before, name));
                }
                for jump in wishes.tables.get(&Table::Filter).map_or(&[][..], |table| &table.jumps) {
                    let from = after.chain(Table::Filter, &jump.from).unwrap();
                    let normal = jump.rule.normal_form(Family::Ipv4);
                    prop_assert_eq!(from.rules().filter(|rule| **rule == normal).count(), 1);
                }
                prop_assert!(diff(&after, &wishes, &owned).is_empty());
                // And all of it can be taken away again.
                let away = diff(&after, &Wanted::new(Family::Ipv4), &owned);
                prop_assert_eq!(apply(&mut after, &away, None), Ok(()), "{}", away);
                for name in OURS {
                    prop_assert!(after.chain(Table::Filter, &chain(name)).is_none());
                }
                for name in OTHERS {
                    let rules: Vec<Rule> = after.chain(Table::Filter, &chain(name)).unwrap().rules().cloned().collect();
                    prop_assert_eq!(rules, theirs(&before, name));
                }
            }
        }
    }
}
