//! Reads the kernel: tables, addresses and sysctls.

use std::collections::BTreeSet;

use kernlink_base::ErrorChain;
use kernlink_dummylink::Selection;
use kernlink_iptables_restore::{Iptables, Save, Table};
use kernlink_services::{Event, Family, InterfaceAddress};

use super::chains::{Counters, jumps};
use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::observed::{Observed, is_port_chain};
use super::state::State;
use crate::netfilter::{CONNTRACK_BUCKETS, processors, read_tables, unreadable_rules, unreadable_tables};

/// Whether the kernel has a chain of a port of a Service, in either family.
///
/// # Errors
/// If a table cannot be read.
pub fn has_service_chains(rules: &mut dyn Iptables) -> Result<bool, Error> {
    for family in Family::ALL {
        let saved = match rules.save(&Save::table(family, Table::Nat).lenient()) {
            Ok(saved) => saved,
            // Without the table there is no chain.
            Err(error) if error.is_unsupported() => continue,
            Err(error) => return Err(error.into()),
        };
        let mut chains = saved.table(Table::Nat).into_iter().flat_map(|nat| nat.chains());
        if chains.any(|(name, _)| is_port_chain(name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads everything that a plan depends on, and makes all objects dirty.
///
/// Tables that cannot be read affect their family only: its chains are written without knowing what else the tables contain. A sysctl
/// that cannot be read affects nothing else.
pub(super) fn observe(state: &mut State, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
    let mut interfaces = BTreeSet::new();
    for address in kernel.links.list(Selection::All)? {
        interfaces.insert(InterfaceAddress::new(
            address.link.to_string(),
            address.address.key.address(),
        ));
    }
    state.interfaces = interfaces;
    state.set_counters(Counters::default());
    let mut events = observe_sysctls(state, kernel);
    for family in state.managed.clone() {
        events.extend(observe_rules(state, kernel, family));
    }
    Ok(events)
}

/// Reads the families and sysctls of some keys again.
pub(super) fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) {
    let families: BTreeSet<Family> = keys.iter().filter_map(Key::family).collect();
    for family in families {
        observe_rules(state, kernel, family);
    }
    for key in keys {
        if let Key::Sysctl(name) = key {
            let value = kernel.sysctls.read(name).unwrap_or_default();
            state.sysctls.observe(name.clone(), value.map(Into::into));
        }
    }
}

fn observe_sysctls(state: &mut State, kernel: &mut Kernel) -> Vec<Event> {
    let mut events = Vec::new();
    state.configure_sysctls(processors());
    let names: Vec<Box<str>> = state
        .sysctls
        .iter_desired()
        .map(|(name, _)| name.clone())
        .collect();
    let mut values = Vec::new();
    for name in names {
        match kernel.sysctls.read(&name) {
            Ok(Some(value)) => values.push((name, value.into())),
            Ok(None) => {}
            Err(error) => {
                events.push(Event::host("SysctlUnreadable", ErrorChain(&error).to_string()));
                if *name == *CONNTRACK_BUCKETS && error.is_permission_denied() {
                    // Only root may read it; the size of the connection table is then not changed.
                    if let Some(value) = state.sysctls.desired(&name).cloned() {
                        values.push((name, value));
                    }
                }
            }
        }
    }
    state.sysctls.observe_all(values);
    events
}

/// Reads the tables of a family.
fn observe_rules(state: &mut State, kernel: &mut Kernel, family: Family) -> Vec<Event> {
    let mut events = Vec::new();
    let observed = match read_tables(&mut *kernel.rules, family) {
        Ok(ruleset) => {
            events.extend(unreadable_rules(&ruleset, family));
            Observed::of(&ruleset, family)
        }
        Err(error) => {
            events.push(unreadable_tables(&error, family));
            if state.is_readable(family) {
                // It was read before: what is recorded stays in use until the next listing.
                return events;
            }
            Observed {
                jumps: vec![false; jumps().len()],
                ..Observed::default()
            }
        }
    };
    state.observe_rules(family, observed);
    events
}
