//! Reads the state of the kernel into the observed values of the tables.

mod flows;
mod links;
pub(super) mod sets;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kernlink_base::ErrorChain;
use kernlink_dummylink::{AddressKey, LinkName};
use kernlink_engine::overlap::join;
use kernlink_engine::unreadable::SYSCTL_UNREADABLE;
use kernlink_host::processors;
use kernlink_ipset::Entry;
use kernlink_iptables_restore::{Error as RulesError, Ruleset};
use kernlink_ipvs::{
    Consistency, Ipvs, RealServerKey, RealServerSummary, Snapshot, SnapshotEntry, VirtualServerKey,
};
use kernlink_netfilter::{TABLES, read_tables, read_tables_of, unreadable_rules, unreadable_tables};
use kernlink_services::{Event, Family};

pub(super) use self::links::observe_addresses;
use super::error::Error;
use super::facts::Facts;
use super::kernel::Kernel;
use super::key::Key;
use super::ownership::{self, Identified};
use super::sets::SetId;
use super::state::{HostFacts, ObservedRealServer, ObservedRules, ObservedServer, Part, State};
use super::sysctls::CONNTRACK_BUCKETS;

/// Reads everything that a plan depends on, and makes all objects dirty. The tables are read by [`observe_families`], or together with the
/// virtual servers if there were any.
///
/// Only IPVS is necessary: if virtual servers cannot be read, nothing is planned. What else cannot be read keeps its recorded values, and
/// is read again after a delay ([`Readings`](super::state::Readings)).
pub(super) fn observe(state: &mut State, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
    let mut events = Vec::new();
    state.readings.begin();
    // Before the virtual servers: they decide about ownership.
    events.extend(links::observe(state, kernel));
    events.extend(sets::observe(state, kernel));
    state.readings.end();
    state.manage_leftovers();
    // What cannot be read on a node that another mode serves is not taken for removed.
    if state.has_successor()
        && let Some(error) = state.readings.error.take()
    {
        return Err(error);
    }
    let families = state.families_read_early();
    let (ipvs, rules) = (&mut kernel.ipvs, &mut kernel.rules);
    let (tables, snapshot) = if families.is_empty() {
        (Vec::new(), ipvs.snapshot())
    } else {
        join(|| read_tables_of(&mut **rules, &families), || ipvs.snapshot())
    };
    let mut snapshot = snapshot?;
    if let Consistency::Unverified { attempts } = snapshot.consistency {
        complete(state, &mut *kernel.ipvs, &mut snapshot)?;
        let text = format!(
            "IPVS changed during {attempts} listings; the virtual servers that belong to this program were read one by one, and others may be missing"
        );
        events.push(Event::host("InconsistentListing", text));
    }
    let timeouts = kernel.ipvs.timeouts()?;
    if state.retired.is_none() {
        events.extend(state.observe_schedulers(&mut *kernel.ipvs));
    }
    // Errors from here on do not prevent a plan.
    let with_weight_0 = snapshot.virtual_servers.iter().map(|entry| {
        let of_weight_0 = entry.real_servers.iter().filter(|real| real.weight.is_draining());
        let idle = of_weight_0.map(|real| (real.key, real.total_connections() == 0));
        (entry.virtual_server.server.key, idle.collect())
    });
    state.drains.observe_all(with_weight_0);
    let facts = Facts::of(state);
    let exclude_cidrs = &state.config().exclude_cidrs;
    let servers: Vec<(VirtualServerKey, ObservedServer)> = snapshot
        .virtual_servers
        .into_iter()
        .map(|entry| {
            let virtual_server = entry.virtual_server.server;
            let key = virtual_server.key;
            // Without what decides about ownership, one that was not owned counted as foreign.
            let was_undecided = key
                .address()
                .is_some_and(|address| state.readings.had_undecided_servers[Family::of(address).index()]);
            let known = state.servers.observed(&key).map(|known| known.is_owned);
            let known = known.filter(|is_owned| *is_owned || !was_undecided);
            let summaries = entry.real_servers.iter();
            let real_servers: Vec<(RealServerKey, ObservedRealServer)> =
                summaries.map(|summary| (summary.key, summary.into())).collect();
            let is_owned = known.unwrap_or_else(|| {
                state.is_server_decided(&key)
                    && ownership::is_owned(&facts, exclude_cidrs, &key)
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
    let foreign = servers
        .iter()
        .filter(|(key, server)| !server.is_owned && state.is_server_decided(key));
    let foreign: BTreeSet<VirtualServerKey> = foreign.map(|(key, _)| *key).collect();
    let is_new = |key: &&VirtualServerKey| state.is_new_foreign(key);
    let new = foreign.iter().filter(is_new);
    let served = new.filter(|key| ownership::is_served_frontend(&facts, exclude_cidrs, key));
    let served: BTreeSet<VirtualServerKey> = served.copied().collect();
    state.compare_flows_of_all(&servers);
    state.set_foreign(foreign, served);
    state.servers.observe_all(servers);
    state.readings.had_undecided_servers = Family::ALL.map(|family| !state.is_ownership_known(family));
    state.set_deadlines_dirty();
    state.timeouts.observed = Some(timeouts);
    state.timeouts.is_dirty = true;
    if let Some(retired) = &mut state.retired {
        let totals = kernel.conntrack.totals();
        retired.is_conntrack_missing = totals.is_err_and(|error| error.is_module_missing());
        if state.has_successor() {
            sources::observe_sources(state, kernel);
        }
        state.retired_listed();
    } else {
        events.extend(flows::observe_flows(state, kernel));
        events.extend(observe_sysctls(state, kernel));
    }
    for family in Family::ALL {
        state.check_ledger(family);
    }
    events.extend(state.extension_events());
    for family in Family::ALL {
        state.chains[family.index()].is_unread = true;
    }
    state.early_tables = tables.into_iter().collect();
    Ok(events)
}

/// Reads each virtual server again that is recorded, or that the sets name, with its real servers: a listing that is not verified may lack it.
/// Those of node ports are named by their ports, at the addresses of this node.
///
/// # Errors
/// The first virtual server that could not be read.
fn complete(state: &State, ipvs: &mut dyn Ipvs, snapshot: &mut Snapshot) -> Result<(), Error> {
    const SETS: [SetId; 3] = [SetId::Ledger, SetId::NodePortTcp, SetId::NodePortUdp];
    let recorded = state.servers.iter_observed().map(|(key, _)| *key);
    let mut named = Vec::new();
    for family in Family::ALL {
        let addresses = state.interfaces.iter().map(|interface| interface.address);
        let addresses: BTreeSet<IpAddr> = addresses
            .filter(|address| Family::of(*address) == family)
            .collect();
        for set in SETS.into_iter().chain(ownership::FRONTEND_SETS) {
            let entries = state.entries[family.index()][set.index()].iter_observed();
            for identified in entries.filter_map(|(entry, ())| ownership::identified(set, entry)) {
                match identified {
                    Identified::VirtualServer(key) => named.push(key),
                    Identified::NodePort(protocol, port) => {
                        let keys = addresses
                            .iter()
                            .map(|address| VirtualServerKey::new(*address, port, protocol));
                        named.extend(keys);
                    }
                }
            }
        }
    }
    let keys: BTreeSet<VirtualServerKey> = recorded.chain(named).collect();
    snapshot
        .virtual_servers
        .retain(|entry| !keys.contains(&entry.virtual_server.server.key));
    for key in keys {
        if let Some(status) = ipvs.find_virtual_server(&key)? {
            let real_servers = ipvs.list_real_servers(&key)?;
            let summaries = real_servers.iter().map(RealServerSummary::from).collect();
            snapshot
                .virtual_servers
                .push(SnapshotEntry::new(status, summaries));
        }
    }
    Ok(())
}

/// Reads the tables of these families, all at the same time, unless [`observe`] did.
pub(super) fn observe_families(state: &mut State, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
    // What is not requested now may be outdated at the next call: a plan is executed before it.
    let mut read = std::mem::take(&mut state.early_tables);
    let is_missing = |family: &Family| state.managed.contains(family) && !read.contains_key(family);
    let missing: Vec<Family> = families.iter().copied().filter(is_missing).collect();
    read.extend(read_tables_of(&mut *kernel.rules, &missing));
    read.retain(|family, _| families.contains(family));
    let mut events = Vec::new();
    for (family, read) in read {
        events.extend(set_rules(state, family, read));
    }
    events
}

/// Reads single objects again: virtual servers, tables, sysctls, timeouts, links, addresses, sets that exist, and set entries. Deadlines are
/// not read: adding them again is idempotent. A virtual server that was not observed before is owned if the
/// ledger names it.
///
/// Links, addresses, sets and entries that cannot be read keep their recorded values; the whole kernel is read again after a delay.
pub(super) fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
    let mut servers: BTreeSet<VirtualServerKey> = BTreeSet::new();
    let mut addresses: Vec<AddressKey> = Vec::new();
    let mut links: Vec<LinkName> = Vec::new();
    let mut has_flows = false;
    let mut set_keys: Vec<(Family, SetId)> = Vec::new();
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
            Key::Link(name) => links.push(*name),
            Key::Address(key) => addresses.push(*key),
            Key::Entry(family, set, entry) => entries.entry((*family, *set)).or_default().push(entry.clone()),
            // If the set does not exist, creating it again is idempotent. If it exists, its replacement may have been executed.
            Key::Set(family, set) if state.sets.is_observed(&(*family, *set)) => {
                set_keys.push((*family, *set))
            }
            // Adding deadlines again is idempotent.
            Key::Set(..) | Key::TemporarySet(..) | Key::DrainSet(_) | Key::Deadline(..) => {}
            Key::Flows(_) => has_flows = true,
        }
    }
    let read = links::observe_keys(state, kernel, &links, addresses);
    fail(state, Part::Links, read.err());
    // Deleting stale flows again is idempotent.
    if has_flows {
        sources::observe_sources(state, kernel);
    }
    for key in set_keys {
        let read = sets::observe_header(state, kernel, key);
        fail(state, Part::Sets, read.err());
    }
    for ((family, set), entries) in entries {
        let read = sets::observe_entries(state, kernel, family, set, entries);
        fail(state, Part::Sets, read.err());
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
        let is_foreign =
            state.is_server_decided(&key) && observed.as_ref().is_some_and(|server| !server.is_owned);
        state.observe_foreign(key, is_foreign);
        state.servers.observe(key, observed);
    }
    for family in families {
        observe_rules(state, kernel, family);
        state.retired_tables_read(family);
    }
    Ok(())
}

/// Records that a part could not be read.
pub(super) fn fail(state: &mut State, part: Part, error: Option<Error>) {
    if let Some(error) = error {
        let now = state.drains.now();
        state.readings.fail(part, now);
        state.readings.error.get_or_insert(error);
    }
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
                events.push(Event::host(SYSCTL_UNREADABLE, text));
                if let Some(value) = state.sysctls.desired(&name).cloned() {
                    values.push((name, value));
                }
            }
            Err(error) => events.push(Event::host(SYSCTL_UNREADABLE, ErrorChain(&error).to_string())),
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
    let chains = &mut state.chains[family.index()];
    let before = std::mem::take(&mut chains.observed);
    if let (ObservedRules::Written(before), true) = (&before, chains.is_in_place) {
        chains.before = Some(before.clone());
    }
    let observed = match read {
        Ok(rules) => {
            events.extend(unreadable_rules(&rules, family));
            ObservedRules::Saved(Box::new(rules))
        }
        Err(error) => {
            events.push(unreadable_tables(&error, family));
            ObservedRules::Unreadable(error.into(), before.last())
        }
    };
    chains.is_unread = false;
    chains.has_unreadable = match &observed {
        ObservedRules::Saved(saved) => TABLES.iter().any(|table| saved.is_unreadable(*table)),
        // A host without the tables has no rules in them.
        ObservedRules::Unreadable(Error::Rules(error), _) => !error.is_unsupported(),
        _ => true,
    };
    chains.observed = observed;
    state.set_rules_dirty(family);
    events
}
