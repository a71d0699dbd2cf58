//! Reads the state of the kernel into the observed values of the tables.

mod flows;
mod sources;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use kernlink_base::ErrorChain;
use kernlink_dummylink::{AddressKey, Selection};
use kernlink_ipset::{Element, Entry, Set, SetType};
use kernlink_iptables_restore::{Error as RulesError, Ruleset};
use kernlink_ipvs::{Consistency, RealServerKey, VirtualServerKey};
use kernlink_services::{Event, Family, InterfaceAddress};

use super::drain;
use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::ownership::{self, KernelFacts};
use super::replacement;
use super::sets::SetId;
use super::state::{HostFacts, ObservedRealServer, ObservedRules, ObservedServer, State};
use super::sysctls::CONNTRACK_BUCKETS;
use crate::netfilter::{processors, read_tables, read_tables_of, unreadable_rules, unreadable_tables};

/// Sets and addresses as listed.
#[derive(Debug, Default)]
struct Listed {
    has_link: bool,
    addresses: HashSet<AddressKey>,
    interfaces: BTreeSet<InterfaceAddress>,
    node_addresses: HashSet<IpAddr>,
    /// The addresses in entries of frontend sets.
    frontend_addresses: HashSet<IpAddr>,
    sets: BTreeMap<(Family, SetId), (Set, HashSet<Entry>)>,
    temporary_sets: BTreeSet<(Family, SetId)>,
    /// The sets of deadlines.
    drain_sets: Vec<(Family, Set, Vec<Entry>)>,
}

impl KernelFacts for Listed {
    fn has_ledger(&self, family: Family) -> bool {
        let ledger = self.sets.get(&(family, SetId::Ledger));
        ledger.is_some_and(|(_, entries)| !entries.is_empty())
    }

    fn has_entry(&self, family: Family, set: SetId, entry: &Entry) -> bool {
        let set = self.sets.get(&(family, set));
        set.is_some_and(|(_, entries)| entries.contains(entry))
    }

    fn is_bound(&self, address: IpAddr) -> bool {
        AddressKey::host(address).is_ok_and(|key| self.addresses.contains(&key))
    }

    fn is_frontend_address(&self, address: IpAddr) -> bool {
        self.frontend_addresses.contains(&address)
    }

    fn is_node_address(&self, address: IpAddr) -> bool {
        self.node_addresses.contains(&address)
    }
}

/// Reads everything that a plan depends on, except the tables ([`observe_families`]), and makes all objects dirty.
///
/// If links, sets or virtual servers cannot be read, the observed values do not change: an error is never taken for an absent object.
/// Tables that cannot be read affect their family only; a sysctl that cannot be read affects nothing else.
pub(super) fn observe(state: &mut State, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
    let mut events = Vec::new();
    let link = state.config().link();
    let mut listed = Listed::default();
    if let Some(link) = link {
        listed.has_link = kernel.links.exists(&link)?;
    }
    for address in kernel.links.list(Selection::All)? {
        let key = address.address.key;
        if Some(address.link) == link {
            if !is_link_local_v6(key.address()) {
                listed.addresses.insert(key);
            }
        } else if !state.is_dummy_link(&address.link) {
            let interface = InterfaceAddress::new(address.link.to_string(), key.address());
            listed.interfaces.insert(interface);
            listed.node_addresses.insert(key.address());
        }
    }
    for header in kernel.sets.headers()? {
        if let Some(key) = SetId::of_name(&header.set.name) {
            let contents = kernel.sets.list_set(&header.set.name)?;
            let entries: HashSet<Entry> = contents.entries.into_iter().collect();
            if ownership::FRONTEND_SETS.contains(&key.1) {
                let addresses = entries.iter().filter_map(|entry| match entry.element() {
                    Element::IpPort { ip, .. } => Some(*ip),
                    _ => None,
                });
                listed.frontend_addresses.extend(addresses);
            }
            listed.sets.insert(key, (contents.header.set, entries));
        } else if let Some(key) = replacement::of_temporary(&header.set.name) {
            listed.temporary_sets.insert(key);
        } else if let Some(family) = drain::family_of_set(&header.set.name) {
            let contents = kernel.sets.list_set(&header.set.name)?;
            listed
                .drain_sets
                .push((family, contents.header.set, contents.entries));
        }
    }
    let snapshot = kernel.ipvs.snapshot()?;
    if let Consistency::Unverified { attempts } = snapshot.consistency {
        let text =
            format!("IPVS changed during {attempts} listings; virtual servers that exist may be missing");
        events.push(Event::host("TornListing", text));
    }
    let timeouts = kernel.ipvs.timeouts()?;
    // Errors from here on do not prevent a plan.
    let with_weight_0 = snapshot.virtual_servers.iter().map(|entry| {
        let of_weight_0 = entry.real_servers.iter().filter(|real| real.weight.is_draining());
        let idle = of_weight_0.map(|real| (real.key, real.total_connections() == 0));
        (entry.virtual_server.server.key, idle.collect())
    });
    state.drains.observe_all(with_weight_0);
    let exclude_cidrs = &state.config().exclude_cidrs;
    let servers: Vec<(VirtualServerKey, ObservedServer)> = snapshot
        .virtual_servers
        .into_iter()
        .map(|entry| {
            let virtual_server = entry.virtual_server.server;
            let key = virtual_server.key;
            let known = state.servers.observed(&key).map(|known| known.is_owned);
            let summaries = entry.real_servers.iter();
            let real_servers: Vec<(RealServerKey, ObservedRealServer)> =
                summaries.map(|summary| (summary.key, summary.into())).collect();
            let is_owned = known.unwrap_or_else(|| {
                ownership::is_owned(&listed, exclude_cidrs, &key)
                    && !state.is_of_another_program(&key, &virtual_server, &real_servers)
            });
            let observed = ObservedServer {
                virtual_server,
                real_servers,
                is_owned,
            };
            (key, observed)
        })
        .collect();
    state.compare_flows_of_all(&servers);
    let foreign = servers.iter().filter(|(_, server)| !server.is_owned);
    state.set_foreign(foreign.map(|(key, _)| *key).collect());
    state.servers.observe_all(servers);
    state.drains.observe_sets(listed.drain_sets);
    state.set_deadlines_dirty();
    state.timeouts.observed = Some(timeouts);
    state.timeouts.is_dirty = true;
    if let Some(link) = link {
        state.links.observe(link, listed.has_link.then_some(()));
    }
    state.links.set_all_dirty();
    let addresses = listed.addresses.into_iter().map(|key| (key, ()));
    state.addresses.observe_all(addresses);
    state.interfaces = listed.interfaces;
    let mut entries: BTreeMap<(Family, SetId), HashSet<Entry>> = BTreeMap::new();
    let mut sets = Vec::new();
    for (key, (set, of_set)) in listed.sets {
        sets.push((key, set));
        entries.insert(key, of_set);
    }
    state.sets.observe_all(sets);
    let temporary_sets = listed.temporary_sets.into_iter();
    state
        .temporary_sets
        .observe_all(temporary_sets.map(|key| (key, ())));
    for family in Family::ALL {
        for set in SetId::ALL {
            let of_set = entries.remove(&(family, set)).unwrap_or_default();
            let of_set = of_set.into_iter().map(|entry| (entry, ()));
            state.entries[family.index()][set.index()].observe_all(of_set);
        }
    }
    if state.retired.is_some() {
        sources::observe_sources(state, kernel);
        state.retired_listed();
    } else {
        events.extend(flows::observe_flows(state, kernel));
        events.extend(observe_sysctls(state, kernel));
    }
    for family in Family::ALL {
        state.check_ledger(family);
    }
    for family in Family::ALL {
        state.chains[family.index()].is_unread = true;
    }
    Ok(events)
}

/// Reads the tables of these families, all at the same time.
pub(super) fn observe_families(state: &mut State, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
    let is_managed = |family: &Family| state.managed.contains(family);
    let families: Vec<Family> = families.iter().copied().filter(is_managed).collect();
    let tables = read_tables_of(&mut *kernel.rules, &families);
    let mut events = Vec::new();
    for (family, read) in families.into_iter().zip(tables) {
        events.extend(set_rules(state, family, read));
    }
    events
}

/// Reads single objects again: virtual servers, tables, sysctls, timeouts, links, addresses, sets that exist, and set entries. Deadlines are
/// not read: adding them again is idempotent. A virtual server that was not observed before is owned if the
/// ledger names it.
pub(super) fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
    let mut servers: BTreeSet<VirtualServerKey> = BTreeSet::new();
    let mut addresses: Vec<AddressKey> = Vec::new();
    let mut entries: BTreeMap<(Family, SetId), Vec<Entry>> = BTreeMap::new();
    let mut families: BTreeSet<Family> = BTreeSet::new();
    for key in keys {
        match key {
            Key::VirtualServer(key) | Key::RealServer(key, _) => _ = servers.insert(*key),
            Key::Rules(family) | Key::Jump(family, _) => _ = families.insert(*family),
            Key::Sysctl(name) => {
                let value = kernel.sysctls.read(name).unwrap_or_default();
                state.sysctls.observe(name.clone(), value.map(Into::into));
            }
            Key::Timeouts => state.timeouts.observed = Some(kernel.ipvs.timeouts()?),
            Key::Link(name) => {
                let exists = kernel.links.exists(name)?;
                state.links.observe(*name, exists.then_some(()));
            }
            Key::Address(key) => addresses.push(*key),
            Key::Entry(family, set, entry) => entries.entry((*family, *set)).or_default().push(entry.clone()),
            Key::NodeAddresses => {
                state.interfaces = read_interfaces(state, kernel)?;
                sources::observe_sources(state, kernel);
            }
            // If the set does not exist, creating it again is idempotent. If it exists, its replacement may have been executed.
            Key::Set(family, set) if state.sets.is_observed(&(*family, *set)) => {
                let header = match kernel.sets.header(&set.name(*family)) {
                    Ok(header) => Some(header.set),
                    Err(error) if error.is_not_found() => None,
                    Err(error) => return Err(error.into()),
                };
                state.sets.observe((*family, *set), header);
            }
            // Adding deadlines and deleting stale flows again is idempotent.
            Key::Set(..) | Key::TemporarySet(..) | Key::DrainSet(_) | Key::Deadline(..) | Key::Flows(_) => {}
        }
    }
    for ((family, set), entries) in entries {
        observe_entries(state, kernel, family, set, entries)?;
    }
    if !addresses.is_empty() {
        let mut bound: HashSet<AddressKey> = HashSet::new();
        for address in kernel.links.list(Selection::All)? {
            if Some(address.link) == state.config().link() {
                bound.insert(address.address.key);
            }
        }
        for key in addresses {
            state.addresses.observe(key, bound.contains(&key).then_some(()));
        }
    }
    for key in servers {
        let status = kernel.ipvs.find_virtual_server(&key)?;
        let observed = match status {
            None => None,
            Some(status) => {
                let listed = kernel.ipvs.list_real_servers(&key)?;
                let of_weight_0 = listed.iter().filter(|real| real.server.weight.is_draining());
                let idle = of_weight_0.map(|real| (real.server.key, real.connections.total() == 0));
                state.drains.observe(key, idle);
                let mut real_servers: Vec<(RealServerKey, ObservedRealServer)> = listed
                    .iter()
                    .map(|status| (status.server.key, (&status.server).into()))
                    .collect();
                real_servers.sort_unstable_by_key(|(key, _)| *key);
                // The decision of the listing applies. One that did not exist then and was added by this process is in the ledger.
                let known = state.servers.observed(&key).map(|known| known.is_owned);
                let is_owned = known.unwrap_or_else(|| {
                    state.is_in_ledger(&key)
                        && !state.is_of_another_program(&key, &status.server, &real_servers)
                });
                Some(ObservedServer {
                    virtual_server: status.server,
                    real_servers,
                    is_owned,
                })
            }
        };
        state.forget_existing(&key);
        state.compare_flows(&key, observed.as_ref());
        let is_foreign = observed.as_ref().is_some_and(|server| !server.is_owned);
        state.observe_foreign(key, is_foreign);
        state.servers.observe(key, observed);
    }
    for family in families {
        observe_rules(state, kernel, family);
        state.retired_tables_read(family);
    }
    Ok(())
}

/// Reads the addresses of the interfaces of this node, without those of the dummy links.
fn read_interfaces(state: &State, kernel: &mut Kernel) -> Result<BTreeSet<InterfaceAddress>, Error> {
    let addresses = kernel.links.list(Selection::All)?.into_iter();
    Ok(addresses
        .filter(|address| !state.is_dummy_link(&address.link))
        .map(|address| InterfaceAddress::new(address.link.to_string(), address.address.key.address()))
        .collect())
}

/// Reads entries of a set again.
fn observe_entries(
    state: &mut State,
    kernel: &mut Kernel,
    family: Family,
    set: SetId,
    entries: Vec<Entry>,
) -> Result<(), Error> {
    let name = set.name(family);
    let table = &mut state.entries[family.index()][set.index()];
    let exists: Vec<bool> = if set.set_type() == SetType::HashIpPortNet {
        // A test of an address would also find a network that contains it.
        let listed = match kernel.sets.list_set(&name) {
            Ok(contents) => contents.entries,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let listed: HashSet<Entry> = listed.into_iter().collect();
        entries.iter().map(|entry| listed.contains(entry)).collect()
    } else {
        let tests = kernel.sets.test_all(&name, &entries).into_iter();
        let exists = tests.map(|test| match test {
            Err(error) if error.is_not_found() => Ok(false),
            test => test,
        });
        exists.collect::<Result<_, _>>()?
    };
    let mut present = Vec::new();
    for (entry, exists) in entries.into_iter().zip(exists) {
        if exists && set == SetId::Ledger {
            present.push(entry.clone());
        }
        table.observe(entry, exists.then_some(()));
    }
    // The addition whose outcome was unknown was executed.
    for entry in present {
        state.adopt(&entry);
    }
    Ok(())
}

/// Reads the facts of the host and the desired sysctls.
fn observe_sysctls(state: &mut State, kernel: &mut Kernel) -> Vec<Event> {
    let mut events = Vec::new();
    let release = kernel.sysctls.read("kernel.osrelease").ok().flatten();
    state.host = HostFacts {
        kernel: release.and_then(|text| text.parse().ok()).unwrap_or_default(),
        processors: processors(),
    };
    state.configure_sysctls();
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
            Err(error) if *name == *CONNTRACK_BUCKETS && error.is_permission_denied() => {
                // Only root may read it; CAP_NET_ADMIN is not enough.
                let text = format!(
                    "{}; the size of the connection table is not changed",
                    ErrorChain(&error)
                );
                events.push(Event::host("SysctlUnreadable", text));
                if let Some(value) = state.sysctls.desired(&name).cloned() {
                    values.push((name, value));
                }
            }
            Err(error) => events.push(Event::host("SysctlUnreadable", ErrorChain(&error).to_string())),
        }
    }
    state.sysctls.observe_all(values);
    events
}

/// Reads the tables of a family.
fn observe_rules(state: &mut State, kernel: &mut Kernel, family: Family) -> Vec<Event> {
    let read = read_tables(&mut *kernel.rules, family);
    set_rules(state, family, read)
}

/// Sets the observed tables of a family. Returns what cannot be read.
fn set_rules(state: &mut State, family: Family, read: Result<Ruleset, RulesError>) -> Vec<Event> {
    let mut events = Vec::new();
    let observed = match read {
        Ok(rules) => {
            events.extend(unreadable_rules(&rules, family));
            ObservedRules::Saved(Box::new(rules))
        }
        Err(error) => {
            events.push(unreadable_tables(&error, family));
            ObservedRules::Unreadable(error.into())
        }
    };
    let chains = &mut state.chains[family.index()];
    chains.is_unread = false;
    let before = std::mem::replace(&mut chains.observed, observed);
    if let (ObservedRules::Written(before), true) = (before, chains.is_in_place) {
        chains.before = Some(before);
    }
    if state.retired.is_none() {
        state.observe_former(family);
    }
    state.set_rules_dirty(family);
    events
}

/// Whether an address is IPv6 link-local. The kernel adds such an address to every link that is up.
fn is_link_local_v6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
