//! Notices changes that other programs make to portal rules and to the addresses of the node.
//!
//! | object | how a change is noticed |
//! |---|---|
//! | the addresses of the node | events of route netlink |
//! | jumps, whole tables | notifications of nf_tables |
//! | jumps in legacy tables | the built-in chains are read every 5 seconds |
//! | single portal rules | only a full listing finds a change |
//!
//! Portal chains change with every Service: their notifications are nearly always about own changes. What flushes a table also removes
//! the jumps, so it is noticed, and everything is then read.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use kernlink_host::watch::{Changed, WatchError, WatchOptions, Watchable, Watched};
use kernlink_iptables_restore::{Chain, ChainName, Error as RulesError, Table};
use kernlink_netfilter::{detect_watch_options, watched_tables};
use kernlink_services::Family;

use super::chains::PortalChain;
use super::config::Config;
use super::kernel::Kernel;
use super::key::Key;
use super::observe::observe_again;
use super::state::State;

impl Watchable for Config {
    type Key = Key;
    type Kernel = Kernel;

    fn watched(&self) -> Result<Watched<Key>, WatchError> {
        let mut built_in: Vec<(Table, Box<str>)> = PortalChain::ALL
            .iter()
            .copied()
            .map(|chain| (chain.table(), chain.jump().0.as_str().into()))
            .collect();
        built_in.sort_unstable();
        built_in.dedup();
        let key = |changed| match changed {
            Changed::Rules(family) => Some(Key::Chains(family, Table::Nat)),
            // Without a link, no address is bound.
            _ => None,
        };
        Ok(Watched::new(None, watched_tables(built_in), key))
    }

    /// As the iptables tools of this host write rules.
    fn watch_options(&self) -> WatchOptions {
        detect_watch_options(self.services.families.iter().copied())
    }
}

/// Reads objects again at a cost that does not depend on the number of Services, and returns those that differ from what is recorded. If
/// the jumps of a family do, its tables are read.
pub(super) fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Vec<Key> {
    let mut changed = Vec::new();
    let is_of = |key: &Key, family: Family| match key {
        Key::Chains(of, _) => *of == family,
        Key::Rules(key) => key.family == family,
        Key::Listener(_) | Key::Claim(_) | Key::Flows(_) => false,
    };
    for family in Family::ALL {
        if !keys.iter().any(|key| is_of(key, family)) {
            continue;
        }
        // What cannot be read does not count as changed: the next listing reports it.
        if is_damaged(state, kernel, family).unwrap_or_default() {
            observe_again(state, kernel, family);
            changed.push(Key::Chains(family, Table::Nat));
        }
    }
    changed
}

/// Whether a jump is missing that was recorded. Each built-in chain is listed by itself.
fn is_damaged(state: &State, kernel: &mut Kernel, family: Family) -> Result<bool, RulesError> {
    let mut listed: BTreeMap<(Table, ChainName), Option<Chain>> = BTreeMap::new();
    for chain in &state.chains[family.index()].jumps {
        let (from, jump, _) = chain.jump();
        let found = match listed.entry((chain.table(), from)) {
            Entry::Occupied(listed) => listed.into_mut(),
            Entry::Vacant(place) => place.insert(kernel.rules.list_chain(family, chain.table(), &from)?),
        };
        if !found.as_ref().is_some_and(|found| found.contains(&jump, family)) {
            return Ok(true);
        }
    }
    Ok(false)
}
