//! Reads single objects again that another program may have changed, at a cost that does not depend on the number of Services.

use std::collections::BTreeSet;

use kernlink_iptables_restore::{Chain, ChainName, Error as RulesError, Table};
use kernlink_services::Family;

use super::chains::{FixedChain, jumps};
use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::observe::{observe_addresses, observe_rules, observe_sysctl};
use super::state::{State, rule_text};

/// Reads objects again and returns those that differ from what is recorded. If the jumps or fixed chains of a family do, all its tables are
/// read.
pub(super) fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
    let mut changed = Vec::new();
    let mut families: BTreeSet<Family> = BTreeSet::new();
    for key in keys {
        match key {
            // A change of the addresses of the node changes Services, which make objects dirty.
            Key::NodeAddresses => observe_addresses(state, kernel)?,
            Key::Sysctl(name) => {
                let before = state.sysctls.observed(name).cloned();
                observe_sysctl(state, kernel, name);
                if state.sysctls.observed(name) != before.as_ref() {
                    state.set_dirty(key);
                    changed.push(key.clone());
                }
            }
            Key::Flows(_) | Key::Accounting(_) => {}
            _ => families.extend(key.family()),
        }
    }
    for family in families {
        // What cannot be read does not count as changed: the next listing reports it.
        if is_damaged(state, kernel, family).unwrap_or_default() {
            let events = observe_rules(state, kernel, family);
            state.events.add(events);
            changed.push(Key::Fixed(family));
        }
    }
    Ok(changed)
}

/// Whether an object is recorded as existing. Before the first listing nothing is.
pub(super) fn is_observed(state: &State, key: &Key) -> bool {
    match key {
        Key::Sysctl(name) => state.sysctls.is_observed(name),
        Key::Accounting(name) => state.accounting.is_observed(name),
        Key::NodeAddresses | Key::Flows(_) => true,
        Key::Chain(family, name) => state.chains[family.index()].is_observed(name),
        Key::Fixed(family)
        | Key::Jump(family, _)
        | Key::Firewall(family)
        | Key::Service(family, _)
        | Key::Leftovers(family) => !state.fixed(*family).is_empty(),
    }
}

/// Whether a jump is missing, or a fixed chain without rules of Services is not as it was read or written last. Each chain is listed by itself.
fn is_damaged(state: &State, kernel: &mut Kernel, family: Family) -> Result<bool, RulesError> {
    let mut list = |table: Table, chain: &ChainName| kernel.rules.list_chain(family, table, chain);
    let mut listed: Option<((Table, ChainName), Option<Chain>)> = None;
    let mut present: Vec<_> = jumps()
        .into_iter()
        .enumerate()
        .filter(|(position, _)| state.has_jump(family, *position))
        .map(|(_, jump)| jump)
        .collect();
    present.sort_by_key(|jump| (jump.table, jump.chain));
    for jump in present {
        let place = (jump.table, jump.chain);
        if listed.as_ref().is_none_or(|(of, _)| *of != place) {
            listed = Some((place, list(jump.table, &jump.chain)?));
        }
        let chain = listed.as_ref().and_then(|(_, chain)| chain.as_ref());
        if !chain.is_some_and(|chain| chain.contains(&jump.rule, family)) {
            return Ok(true);
        }
    }
    for (chain, recorded) in state.fixed(family).iter().filter(|(chain, _)| !chain.is_shared()) {
        let Some(found) = list(chain.table(), &chain.name())? else {
            return Ok(true);
        };
        let rules: Vec<Box<str>> = found.rules().map(|rule| rule_text(rule, family)).collect();
        let is_same = if *chain == FixedChain::FilterFirewall {
            recorded.own.iter().all(|text| rules.contains(text))
        } else {
            rules == recorded.rules && found.unreadable.is_empty() != recorded.has_unreadable
        };
        if !is_same {
            return Ok(true);
        }
    }
    Ok(false)
}
