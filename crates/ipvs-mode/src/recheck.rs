//! Reads single objects again that another program may have changed.

use std::collections::BTreeSet;

use kernlink_engine::DataPath;
use kernlink_iptables_restore::{Ownership, Ruleset, diff_operations};
use kernlink_ipvs::Timeouts;
use kernlink_netfilter::{TABLES, read_tables};
use kernlink_services::Family;

use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::observe::{fail, observe_keys, sets};
use super::rules;
use super::state::{ObservedRealServer, ObservedRules, ObservedServer, Part, State};

/// Reads objects again and makes those dirty that differ from what is recorded. Returns those.
///
/// Sets are read with their entries. Tables that cannot be read do not count as different: the next listing reports and repairs them.
pub(super) fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
    let mut changed = Vec::new();
    let mut families: BTreeSet<Family> = BTreeSet::new();
    let mut others: Vec<Key> = Vec::new();
    for key in keys {
        match key {
            Key::Rules(family) | Key::Jump(family, _) => _ = families.insert(*family),
            Key::Set(family, set) => {
                match sets::recheck(state, kernel, *family, *set) {
                    Ok(is_changed) => changed.extend(is_changed.then(|| key.clone())),
                    // The next listing reads it.
                    Err(error) => fail(state, Part::Sets, Some(error)),
                }
            }
            other => others.push(other.clone()),
        }
    }
    let before: Vec<Observed> = others.iter().map(|key| Observed::of(state, key)).collect();
    observe_keys(state, kernel, &others)?;
    for (key, before) in others.iter().zip(before) {
        if Observed::of(state, key) != before {
            state.set_dirty(key);
            changed.push(key.clone());
        }
    }
    for family in families {
        if recheck_rules(state, kernel, family) {
            changed.push(Key::Rules(family));
        }
    }
    Ok(changed)
}

/// The observed value of an object.
#[derive(PartialEq)]
enum Observed {
    Exists(bool),
    Sysctl(Option<Box<str>>),
    Timeouts(Option<Timeouts>),
    Server(Option<ObservedServer>),
    RealServer(Option<ObservedRealServer>),
    /// An object that another way compares.
    Elsewhere,
}

impl Observed {
    fn of(state: &State, key: &Key) -> Self {
        match key {
            Key::Sysctl(name) => Observed::Sysctl(state.sysctls.observed(name).cloned()),
            Key::Timeouts => Observed::Timeouts(state.timeouts.observed),
            Key::VirtualServer(key) => Observed::Server(state.servers.observed(key).cloned()),
            Key::RealServer(server, key) => {
                let server = state.servers.observed(server);
                Observed::RealServer(server.and_then(|server| server.real_server(key)))
            }
            Key::Link(_) | Key::Address(_) | Key::Entry(..) => Observed::Exists(is_observed(state, key)),
            Key::Set(..) | Key::TemporarySet(..) | Key::Rules(_) | Key::Jump(..) | Key::Flows(_) => {
                Observed::Elsewhere
            }
            // The next listing reads them.
            Key::DrainSet(_) | Key::Deadline(..) => Observed::Elsewhere,
        }
    }
}

/// Whether an object is recorded as existing. Rules and flows always are.
pub(super) fn is_observed(state: &State, key: &Key) -> bool {
    match key {
        Key::Sysctl(name) => state.sysctls.is_observed(name),
        Key::Timeouts => state.timeouts.observed.is_some(),
        Key::Link(name) => state.links.is_observed(name),
        Key::Set(family, set) => state.sets.is_observed(&(*family, *set)),
        Key::TemporarySet(family, set) => state.temporary_sets.is_observed(&(*family, *set)),
        Key::Entry(family, set, entry) => state.entries[family.index()][set.index()].is_observed(entry),
        Key::VirtualServer(key) => state.servers.is_observed(key),
        Key::RealServer(server, key) => {
            let server = state.servers.observed(server);
            server.is_some_and(|server| server.real_server(key).is_some())
        }
        Key::Address(key) => state.addresses.is_observed(key),
        Key::DrainSet(family) => state.drains.set(*family).is_some(),
        Key::Deadline(server, address) => state.drains.deadline(server, *address).is_some(),
        Key::Rules(_) | Key::Jump(..) | Key::Flows(_) => true,
    }
}

/// Reads the tables of a family again and compares the owned chains and jumps with those that were written.
fn recheck_rules(state: &mut State, kernel: &mut Kernel, family: Family) -> bool {
    let saved = match read_tables(&mut *kernel.rules, family) {
        Ok(saved) if !TABLES.iter().any(|table| saved.is_unreadable(*table)) => saved,
        _ => return false,
    };
    let chains = &mut state.chains[family.index()];
    if std::mem::take(&mut chains.has_unreadable) {
        // No other program changed them: they can be read for the first time.
        chains.observed = ObservedRules::Saved(Box::new(saved));
        state.set_rules_dirty(family);
        return false;
    }
    let is_same = match &chains.observed {
        ObservedRules::Written(written) if chains.is_in_place => is_as_written(family, &saved, written),
        // A step failed since: the plan compares them anyway.
        _ => false,
    };
    if !is_same {
        chains.observed = ObservedRules::Saved(Box::new(saved));
        state.set_rules_dirty(family);
    }
    !is_same
}

/// Whether tables contain the owned chains and the jumps as they were written.
pub(super) fn is_as_written(family: Family, saved: &Ruleset, written: &Ruleset) -> bool {
    let owned = Ownership::new().with_foreign_jumps();
    diff_operations(saved, &rules::desired(family, written), &owned).is_empty()
}
