//! Properties of the difference on random states.

use kernlink_base::Family;
use proptest::prelude::*;

use super::tests::{chain, jump, rule};
use super::{diff, same_rules};
use crate::apply::{apply, empty_table};
use crate::desired::{Desired, Position};
use crate::ownership::Ownership;
use crate::rule::Rule;
use crate::ruleset::Ruleset;
use crate::table::Table;
use crate::targets::Target;

const OWNED: [&str; 4] = ["OWNED-A", "OWNED-B", "OWNED-C", "OWNED-D"];
const FOREIGN: [&str; 3] = ["INPUT", "FORWARD", "FOREIGN"];

/// Rules that jump only to later chains of `OWNED`, so that there are no loops.
fn rules(after: usize, to_foreign: bool) -> impl Strategy<Value = Vec<Rule>> {
    let mut texts = vec![
        "-s 10.0.0.1 -j ACCEPT".to_owned(),
        "-s 10.0.0.1/32 -j ACCEPT".to_owned(),
        "-j MARK --or-mark 0x4000".to_owned(),
        "-j MARK --set-xmark 0x4000/0x4000".to_owned(),
        "-p tcp -j RETURN".to_owned(),
    ];
    for target in &OWNED[after..] {
        texts.push(format!("-j {target}"));
        texts.push(format!("-p udp -g {target}"));
    }
    if to_foreign {
        texts.push("-j FOREIGN".into());
    }
    let texts = prop::sample::select(texts).prop_map(|text| rule(&text));
    prop::collection::vec(texts, 0..5)
}

prop_compose! {
    /// Any of the owned chains, with jumps only to existing chains.
    fn saved()(
        present in prop::collection::vec(any::<bool>(), OWNED.len()),
        owned in (rules(1, false), rules(2, false), rules(3, false), rules(4, false)),
        foreign in (rules(0, true), rules(0, false), rules(0, false)),
    ) -> Ruleset {
        let mut ruleset = Ruleset::new();
        let table = ruleset.table_mut(Table::Filter);
        *table = empty_table(Table::Filter);
        let exists = |rule: &Rule| match rule.target.as_ref().and_then(Target::chain) {
            Some(name) => OWNED.iter().zip(&present).all(|(owned, there)| *there || *owned != name.as_str()),
            None => true,
        };
        let fill = |rules: Vec<Rule>| {
            rules.into_iter().filter(exists).map(|rule| rule.normal_form(Family::Ipv4)).map(Into::into).collect()
        };
        let owned: Vec<Vec<Rule>> = vec![owned.0, owned.1, owned.2, owned.3];
        for ((name, rules), there) in OWNED.iter().zip(owned).zip(&present) {
            if *there {
                table.chain_mut(chain(name)).rules = fill(rules);
            }
        }
        let foreign: Vec<Vec<Rule>> = vec![foreign.0, foreign.1, foreign.2];
        for (name, rules) in FOREIGN.iter().zip(foreign) {
            table.chain_mut(chain(name)).rules = fill(rules);
        }
        ruleset
    }
}

fn position() -> impl Strategy<Value = Position> {
    prop::sample::select(vec![
        Position::First,
        Position::Last,
        Position::Before(rule("-p tcp -j RETURN")),
        Position::After(rule("-p tcp -j RETURN")),
    ])
}

prop_compose! {
    fn desired_tables()(
        desired in prop::collection::vec(any::<bool>(), OWNED.len()),
        owned in (rules(1, false), rules(2, false), rules(3, false), rules(4, false)),
        jumps in prop::collection::vec((0..FOREIGN.len(), 0..OWNED.len(), any::<bool>(), position()), 0..4),
    ) -> Desired {
        let mut desired_tables = Desired::new(Family::Ipv4);
        let exists = |name: &str| OWNED.iter().zip(&desired).all(|(owned, there)| *there || *owned != name);
        let owned: Vec<Vec<Rule>> = vec![owned.0, owned.1, owned.2, owned.3];
        for ((name, rules), there) in OWNED.iter().zip(owned).zip(&desired) {
            if *there {
                let rules = rules.into_iter().filter(|rule| {
                    rule.target.as_ref().and_then(Target::chain).is_none_or(|name| exists(name.as_str()))
                });
                desired_tables.set_chain(Table::Filter, chain(name), rules).unwrap();
            }
        }
        for (from, to, tcp, position) in jumps {
            if exists(OWNED[to]) {
                let text = format!("{}-j {}", if tcp { "-p tcp " } else { "" }, OWNED[to]);
                desired_tables.add_jump(Table::Filter, jump(FOREIGN[from], &text, position)).unwrap();
            }
        }
        desired_tables
    }
}

fn foreign(saved: &Ruleset, name: &str) -> Vec<Rule> {
    let chain = saved.chain(Table::Filter, &chain(name)).unwrap();
    let is_owned = |rule: &&Rule| {
        rule.target
            .as_ref()
            .and_then(Target::chain)
            .is_some_and(|name| name.as_str().starts_with("OWNED"))
    };
    chain.rules().filter(|rule| !is_owned(rule)).cloned().collect()
}

proptest! {
    #[test]
    fn applying_the_difference_gives_the_desired_state_and_keeps_foreign_rules(
        before in saved(), desired_tables in desired_tables()
    ) {
        let owned = Ownership::new().with_prefix("OWNED-");
        let restore = diff(&before, &desired_tables, &owned);
        let mut after = before.clone();
        prop_assert_eq!(apply(&mut after, &restore, None), Ok(()), "{}", restore);
        for name in OWNED {
            let name = chain(name);
            match (after.chain(Table::Filter, &name), desired_tables.chain(Table::Filter, &name)) {
                (Some(chain), Some(rules)) => {
                    prop_assert!(same_rules(chain, rules, Family::Ipv4), "{after}");
                }
                (chain, rules) => prop_assert_eq!(chain.is_some(), rules.is_some()),
            }
        }
        for name in FOREIGN {
            prop_assert_eq!(foreign(&after, name), foreign(&before, name));
        }
        for jump in desired_tables.tables.get(&Table::Filter).map_or(&[][..], |table| &table.jumps) {
            let from = after.chain(Table::Filter, &jump.from).unwrap();
            let normal = jump.rule.normal_form(Family::Ipv4);
            prop_assert_eq!(from.rules().filter(|rule| **rule == normal).count(), 1);
        }
        prop_assert!(diff(&after, &desired_tables, &owned).is_empty());
        // Everything owned can be deleted again.
        let removal = diff(&after, &Desired::new(Family::Ipv4), &owned);
        prop_assert_eq!(apply(&mut after, &removal, None), Ok(()), "{}", removal);
        for name in OWNED {
            prop_assert!(after.chain(Table::Filter, &chain(name)).is_none());
        }
        for name in FOREIGN {
            let rules: Vec<Rule> = after.chain(Table::Filter, &chain(name)).unwrap().rules().cloned().collect();
            prop_assert_eq!(rules, foreign(&before, name));
        }
    }
}
