//! Reads single objects again that another program may have changed, at a cost that does not depend on the number of Services.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kernlink_engine::DataPath;
use kernlink_iptables_restore::{Chain, ChainName, Rule, Table, Variant};
use kernlink_services::Family;

use super::{observe_rules, observe_sysctl};
use crate::chains::{FixedChain, jumps};
use crate::error::Error;
use crate::kernel::Kernel;
use crate::key::Key;
use crate::observed::ObservedChain;
use crate::rule_key::{RuleText, rule_text};
use crate::state::State;

/// Reads objects again and returns those that differ from what is recorded. If the jumps or fixed chains of a family do, all its tables are
/// read.
pub(crate) fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
    let mut changed = Vec::new();
    let mut families: BTreeSet<Family> = BTreeSet::new();
    for key in keys {
        match key {
            Key::Sysctl(name) => {
                let before = state.sysctls.observed(name).cloned();
                observe_sysctl(state, kernel, name);
                if state.sysctls.observed(name) != before.as_ref() {
                    state.set_dirty(key);
                    changed.push(key.clone());
                }
            }
            Key::Flows(_) | Key::Accounting(_) => {}
            _ => families.extend(key.class().family),
        }
    }
    for family in families {
        if let Some(table) = damaged_table(state, kernel, family) {
            let events = observe_rules(state, kernel, family);
            // If it is not printed, all of it is written again.
            state.forget(family, table);
            state.events.add(events);
            changed.push(Key::Fixed(family));
        }
    }
    Ok(changed)
}

/// Has a damaged table that could not be read written again: what is recorded of it is what this process wrote.
pub(super) fn forget_damaged(state: &mut State, kernel: &mut Kernel, family: Family) {
    if state.is_readable(family) || state.fixed(family).is_empty() {
        return;
    }
    let shared = FixedChain::ALL.iter().copied().filter(|chain| chain.is_shared());
    let mut unread = shared.filter(|chain| state.is_unread(family, chain.table()));
    let incomplete = unread.find(|chain| lacks_rules(state, kernel, family, *chain));
    let damaged = incomplete.map(FixedChain::table);
    if let Some(table) = damaged.or_else(|| damaged_table(state, kernel, family)) {
        state.forget(family, table);
    }
}

/// Whether a chain with rules of Services lacks one that was written.
fn lacks_rules(state: &State, kernel: &mut Kernel, family: Family, chain: FixedChain) -> bool {
    let Some(recorded) = state.fixed(family).get(&chain) else {
        return false;
    };
    let listed = kernel.rules.list_chain(family, chain.table(), &chain.name());
    let Ok(Some(listed)) = listed else {
        return false;
    };
    let found: HashSet<RuleText> = listed.rules().map(|rule| rule_text(rule, family)).collect();
    let written = state.rules[family.index()].iter_observed();
    let mut written = written.map(|(key, ())| key).filter(|key| key.chain == chain);
    !recorded.own.iter().all(|text| found.contains(text)) || written.any(|key| !found.contains(&key.text))
}

/// Whether an object is recorded as existing. Before the first listing nothing is.
pub(crate) fn is_observed(state: &State, key: &Key) -> bool {
    match key {
        Key::Sysctl(name) => state.sysctls.is_observed(name),
        Key::Accounting(name) => state.accounting.is_observed(name),
        Key::Flows(_) => true,
        Key::Chain(family, name) => state.chains[family.index()].is_observed(name),
        Key::Fixed(family)
        | Key::Jump(family, _)
        | Key::Firewall(family)
        | Key::Service(family, _)
        | Key::Replaced(family, _)
        | Key::Leftovers(family) => !state.fixed(*family).is_empty(),
    }
}

/// The number of chains of table `nat` above which only one of its watched chains is read at a time if the tools are legacy: they read the whole
/// table for each.
const MOST_CHAINS_READ_AT_ONCE: usize = 1_000;

/// A chain that is watched: the jumps that it must have, and its rules as read or written last.
#[derive(Default)]
struct Watched<'a> {
    jumps: Vec<Rule>,
    recorded: Option<(FixedChain, &'a ObservedChain)>,
}

impl Watched<'_> {
    fn is_damaged(&self, found: &Chain, family: Family) -> bool {
        let has_jump = |jump: &Rule| found.contains(jump, family);
        if !self.jumps.iter().all(has_jump) {
            return true;
        }
        let Some((chain, recorded)) = self.recorded else {
            return false;
        };
        let rules: Vec<RuleText> = found.rules().map(|rule| rule_text(rule, family)).collect();
        if chain == FixedChain::FilterFirewall {
            return !recorded.own.iter().all(|text| rules.contains(text));
        }
        rules != recorded.rules || found.unreadable.is_empty() == recorded.has_unreadable
    }
}

/// A table in which a jump is missing, or a fixed chain without rules of Services is not as it was read or written last. Each chain is listed by
/// itself. What cannot be read does not count: the next listing reports it.
fn damaged_table(state: &mut State, kernel: &mut Kernel, family: Family) -> Option<Table> {
    let reads_one = has_many_chains(state, family) && kernel.rules.variant(family) == Some(Variant::Legacy);
    let turn = state.next_turn(family);
    let mut watched: BTreeMap<(Table, ChainName), Watched<'_>> = BTreeMap::new();
    for (position, jump) in jumps().iter().enumerate() {
        if state.has_jump(family, position) {
            let place = watched.entry((jump.table, jump.chain)).or_default();
            place.jumps.push(jump.rule.clone());
        }
    }
    for (chain, recorded) in state.fixed(family).iter().filter(|(chain, _)| !chain.is_shared()) {
        let place = watched.entry((chain.table(), chain.name())).or_default();
        place.recorded = Some((*chain, recorded));
    }
    if reads_one {
        let of_nat: Vec<_> = watched
            .keys()
            .filter(|(table, _)| *table == Table::Nat)
            .copied()
            .collect();
        let read = turn
            .checked_rem(of_nat.len())
            .and_then(|turn| of_nat.get(turn))
            .copied();
        watched.retain(|place, _| place.0 != Table::Nat || Some(*place) == read);
    }
    for ((table, name), place) in &watched {
        match kernel.rules.list_chain(family, *table, name) {
            Ok(found) => {
                if found.is_none_or(|found| place.is_damaged(&found, family)) {
                    return Some(*table);
                }
            }
            // The tools print other chains of a table in which another program has rules that they do not print.
            Err(error) if error.is_unreadable() => {}
            Err(_) => return None,
        }
    }
    None
}

fn has_many_chains(state: &State, family: Family) -> bool {
    let mut chains = state.chains[family.index()].iter_observed();
    chains.nth(MOST_CHAINS_READ_AT_ONCE).is_some()
}
