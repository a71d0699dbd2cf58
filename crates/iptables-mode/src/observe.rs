//! Reads the kernel: tables, addresses and sysctls.

mod recheck;

use std::collections::{BTreeMap, BTreeSet};

use kernlink_base::ErrorChain;
use kernlink_engine::overlap::join;
use kernlink_engine::unreadable::SYSCTL_UNREADABLE;
use kernlink_host::flows::{Reading, read_flows};
use kernlink_host::{CONNTRACK_BUCKETS, SysctlError, processors};
use kernlink_iptables_restore::{Chain, ChainName, ChainReader, Error as RulesError, Iptables, Save, Table};
use kernlink_netfilter::{unreadable_table, unreadable_tables};
use kernlink_services::{Event, Family};

use self::recheck::forget_damaged;
pub(super) use self::recheck::{is_observed, recheck};
use super::accounting;
use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::observed::{Observed, ReadTables, is_port_chain, read_observed};
use super::state::State;
use super::sysctls::TCP_BE_LIBERAL;

/// Whether the kernel has a chain of a port of a Service, in either family.
///
/// # Errors
/// If a table cannot be read.
pub fn has_service_chains(rules: &mut dyn Iptables) -> Result<bool, Error> {
    for family in Family::ALL {
        let mut finder = PortChainFinder::default();
        let request = Save::table(family, Table::Nat).lenient();
        let saved = rules.save_chains(&[request], &mut finder).pop();
        let saved = match saved.unwrap_or(Err(RulesError::OutcomeMissing)) {
            Ok(saved) => saved,
            // Without the table there is no chain.
            Err(error) if error.is_unsupported() => continue,
            Err(error) => return Err(error.into()),
        };
        if saved.is_unreadable(Table::Nat) {
            return Err(unreadable_table(&saved, Table::Nat).into());
        }
        if finder.has_found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Looks for chains of ports of Services.
#[derive(Default)]
struct PortChainFinder {
    has_found: bool,
}

impl ChainReader for PortChainFinder {
    fn begin(&mut self, _request: &Save, _table: Table) {
        self.has_found = false;
    }

    fn chain(&mut self, _request: &Save, _table: Table, name: &ChainName, _chain: Chain) -> Option<Chain> {
        self.has_found |= is_port_chain(name);
        None
    }
}

/// Reads everything that a plan depends on, except what takes long ([`observe_families`]), and makes all objects dirty.
///
/// A sysctl that cannot be read affects nothing else.
pub(super) fn observe(state: &mut State, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
    state.set_full();
    let mut events = observe_sysctls(state, kernel);
    events.extend(observe_accounting(state, kernel));
    events.extend(state.missing.events(state.families()));
    state.events.replace(&events);
    Ok(events)
}

/// Reads the tables of these families, and at the first listing the UDP flows, all at the same time.
///
/// An earlier process may have ended between a change and the deletion of the flows that it made stale. If the flows cannot be read, the
/// next listing tries again.
///
/// Tables that cannot be read affect their family only: its chains are written once without knowing what else the tables contain, and from
/// then on what was written counts as read, unless a chain that the tools print by itself shows that it was changed.
pub(super) fn observe_families(state: &mut State, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
    let is_read = |family: &Family| state.managed.contains(family) || !state.is_searched[family.index()];
    let families: Vec<Family> = families.iter().copied().filter(is_read).collect();
    let needs_flows = state.flows.tracked.reading() != Reading::Done;
    let Kernel { rules, conntrack, .. } = kernel;
    let (tables, flows) = join(
        || read_observed(&mut **rules, &families),
        || needs_flows.then(|| read_flows(&mut **conntrack, |_| true)),
    );
    let recorded = flows.and_then(|flows| state.flows.tracked.record_reading(flows));
    let mut events: Vec<Event> = recorded.into_iter().collect();
    for (family, read) in tables {
        if !state.managed.contains(&family) && !has_leftovers(state, family, &read) {
            continue;
        }
        events.extend(set_rules(state, family, read));
        forget_damaged(state, kernel, family);
    }
    state.events.returned(&events);
    events
}

/// Whether an earlier process left chains or rules of service ports in a family that is not configured: from now on it is managed, so that they
/// are removed. Each such family is searched until it could be read once.
fn has_leftovers(state: &mut State, family: Family, read: &Result<ReadTables, RulesError>) -> bool {
    let (has_any, is_read) = match read {
        Ok(ReadTables { observed, .. }) => {
            let has_any = !observed.chains.is_empty() || observed.has_service_rules();
            (has_any, observed.unread.is_empty())
        }
        // Without the tables there is no chain.
        Err(error) => (false, error.is_unsupported()),
    };
    state.is_searched[family.index()] = has_any || is_read;
    if has_any {
        state.manage(family);
    }
    has_any
}

/// Reads single objects again. Tables are read as a whole, but only what concerns the keys is recorded: all others stay as they are, so that
/// their retries are not affected.
pub(super) fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
    let mut families: BTreeMap<Family, Vec<&Key>> = BTreeMap::new();
    for key in keys {
        match key {
            Key::Sysctl(name) => observe_sysctl(state, kernel, name),
            // A pass is repeated as it was, and an object is created unless it exists.
            Key::Flows(_) | Key::Accounting(_) => {}
            _ if state.is_refused(key) => {}
            _ => {
                if let Some(family) = key.class().family {
                    families.entry(family).or_default().push(key);
                }
            }
        }
    }
    for (family, keys) in families {
        let is_shared = |key: &&&Key| key.class().is_shared;
        let events = if keys.iter().any(|key| is_shared(&key)) {
            observe_rules(state, kernel, family)
        } else {
            observe_objects(state, kernel, family, &keys)
        };
        state.events.add(events);
    }
    Ok(())
}

/// Reads one sysctl.
pub(super) fn observe_sysctl(state: &mut State, kernel: &mut Kernel, name: &str) {
    match kernel.sysctls.read(name) {
        Ok(value) => {
            if name == TCP_BE_LIBERAL {
                state.set_tcp_be_liberal(value.as_deref());
            }
            state.sysctls.observe(name.into(), value.map(Into::into));
        }
        Err(error) => {
            state.sysctls.observe(name.into(), None);
            state.events.add([unreadable_sysctl(&error)]);
        }
    }
}

/// Reads which accounting objects exist or can be created. Returns an event if that failed although the kernel has such objects.
fn observe_accounting(state: &mut State, kernel: &mut Kernel) -> Option<Event> {
    let config = state.config();
    let families = &config.services.families;
    let serves_loopback = config.serves_loopback_node_ports() && families.contains(&Family::Ipv4);
    let did_exist = |name: &str| state.accounting.is_observed(&Box::from(name));
    let found = accounting::find(&mut *kernel.accounting, serves_loopback, did_exist);
    state.observe_accounting(found.available, found.existing);
    let error = found.error?;
    let text = format!(
        "accounting objects (nfacct) cannot be read; the packets of those that are unknown are not counted: {}",
        ErrorChain(&error)
    );
    Some(Event::host("AccountingUnavailable", text))
}

fn observe_sysctls(state: &mut State, kernel: &mut Kernel) -> Vec<Event> {
    let mut events = Vec::new();
    state.configure_sysctls(processors());
    let mut names: BTreeSet<Box<str>> = state
        .sysctls
        .iter_desired()
        .map(|(name, _)| name.clone())
        .collect();
    names.insert(TCP_BE_LIBERAL.into());
    let mut values = Vec::new();
    for name in names {
        match kernel.sysctls.read(&name) {
            Ok(value) => {
                if *name == *TCP_BE_LIBERAL {
                    state.set_tcp_be_liberal(value.as_deref());
                }
                // The other one is read only.
                if state.sysctls.is_desired(&name) {
                    values.extend(value.map(|value| (name, value.into())));
                }
            }
            Err(error) => {
                events.push(unreadable_sysctl(&error));
                // Without a value rules stay as they are.
                if *name == *TCP_BE_LIBERAL && state.tcp_be_liberal.is_none() {
                    state.set_tcp_be_liberal(None);
                }
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

fn unreadable_sysctl(error: &SysctlError) -> Event {
    Event::host(SYSCTL_UNREADABLE, ErrorChain(error).to_string())
}

/// Reads the tables of a family.
pub(super) fn observe_rules(state: &mut State, kernel: &mut Kernel, family: Family) -> Vec<Event> {
    let read = read_one(kernel, family);
    set_rules(state, family, read)
}

fn read_one(kernel: &mut Kernel, family: Family) -> Result<ReadTables, RulesError> {
    let read = read_observed(&mut *kernel.rules, &[family]).pop();
    read.map_or(Err(RulesError::OutcomeMissing), |(_, read)| read)
}

/// Sets the observed tables of a family. Returns what cannot be read.
fn set_rules(state: &mut State, family: Family, read: Result<ReadTables, RulesError>) -> Vec<Event> {
    let mut events = Vec::new();
    let observed = match read {
        Ok(read) => {
            events.extend(read.events);
            state.set_unsupported(family, false);
            state.readings.succeed(family);
            read.observed
        }
        Err(error) => {
            events.push(unreadable_tables(&error, family));
            if state.is_readable(family) {
                // It was read before: what is recorded stays in use until the next listing.
                state.record_unread(family);
                return events;
            }
            state.set_unsupported(family, error.is_unsupported());
            Observed::nothing()
        }
    };
    state.observe_rules(family, observed);
    events
}

/// Reads the chains and rules of these keys.
fn observe_objects(state: &mut State, kernel: &mut Kernel, family: Family, keys: &[&Key]) -> Vec<Event> {
    match read_one(kernel, family) {
        Ok(read) => {
            state.observe_objects(family, &read.observed, keys);
            read.events
        }
        // What is recorded stays in use: the chains are declared again, and what is double then is found by the next listing.
        Err(error) => {
            if state.is_readable(family) {
                state.record_unread(family);
            }
            vec![unreadable_tables(&error, family)]
        }
    }
}
