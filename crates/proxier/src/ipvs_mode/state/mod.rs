//! The tables of IPVS mode: for each kind of kernel object what is desired, what is observed, and what to compare.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_dummylink::{AddressKey, LinkName};
use kernlink_ipset::{Entry, Set};
use kernlink_iptables_restore::Ruleset;
use kernlink_ipvs::{
    ForwardingSummary, RealServer, RealServerKey, RealServerSummary, Timeouts, VirtualServer,
    VirtualServerKey, Weight,
};
use kernlink_services::{
    Changes, Event, Family, InterfaceAddress, NameMap, ObjectName, Reason, ServicePortId, ServicePortKey,
    Services,
};

use super::compile::{Compiled, CompiledFrontend, compile};
use super::config::{Config, DEFAULT_DUMMY_LINK};
use super::error::Error;
use super::key::Key;
use super::operation::Operation;
use super::options::{self, IpvsOptions};
use super::rules::{self, Blocked, RuleInputs, family_of};
use super::sets::SetId;
use super::sysctls::{self, KernelVersion};
use crate::plan::Subject;
use crate::table::Table;

/// The desired and observed kernel objects of IPVS mode.
#[derive(Clone, Debug)]
pub struct State {
    config: Arc<Config>,
    defaults: Arc<IpvsOptions>,
    /// The families that are served, and those that were before the configuration changed.
    pub(super) managed: BTreeSet<Family>,
    pod_cidrs: [Option<IpNet>; 2],
    pub(super) host: HostFacts,
    pub(super) interfaces: BTreeSet<InterfaceAddress>,
    pub(super) sysctls: Table<Box<str>, Box<str>>,
    pub(super) timeouts: ObservedTimeouts,
    /// The configured link, and links that were configured before and still exist.
    pub(super) links: Table<LinkName, ()>,
    pub(super) addresses: Table<AddressKey, ()>,
    pub(super) sets: Table<(Family, SetId), Set>,
    pub(super) entries: [[Table<Entry, ()>; SetId::ALL.len()]; 2],
    pub(super) chains: [Chains; 2],
    pub(super) servers: Table<VirtualServerKey, DesiredServer, ObservedServer>,
    /// What each service port contributes, by its id.
    units: Vec<Unit>,
    blocked: [BTreeMap<Blocked, usize>; 2],
    /// Events about Services as a whole.
    service_events: NameMap<Vec<Event>>,
    /// Whether all service ports have to be compiled again.
    is_outdated: bool,
    /// Whether the events about the configuration were returned.
    is_config_reported: bool,
    /// The foreign virtual servers as last listed.
    pub(super) foreign: Vec<VirtualServerKey>,
    /// Foreign virtual servers at bound addresses that were reported.
    reported_foreign: BTreeSet<VirtualServerKey>,
}

/// Facts of the host that the desired state depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The version of the running kernel.
    pub kernel: KernelVersion,
    /// The number of processors that are online.
    pub processors: u32,
}

/// The IPVS timeouts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObservedTimeouts {
    pub(super) observed: Option<Timeouts>,
    pub(super) is_marked: bool,
}

/// A virtual server that should exist.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredServer {
    pub(super) virtual_server: VirtualServer,
    /// Sorted by key, each once.
    pub(super) real_servers: Arc<[RealServer]>,
    /// The service port that owns it, and the position of the frontend there.
    owner: (ServicePortId, u32),
}

/// A virtual server that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedServer {
    pub(super) virtual_server: VirtualServer,
    /// Sorted by key.
    pub(super) real_servers: Vec<(RealServerKey, ObservedRealServer)>,
    pub(super) is_owned: bool,
}

/// The settings of a real server that exists, as far as a listing of all tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObservedRealServer {
    weight: Weight,
    forwarding: ForwardingSummary,
}

impl ObservedRealServer {
    /// Whether nothing that is known differs from the desired settings. Thresholds and tunnel settings are not known.
    pub(super) fn agrees_with(self, desired: &RealServer) -> bool {
        self == Self::from(desired)
    }
}

impl From<&RealServer> for ObservedRealServer {
    fn from(server: &RealServer) -> Self {
        Self {
            weight: server.weight,
            forwarding: server.forwarding.into(),
        }
    }
}

impl From<&RealServerSummary> for ObservedRealServer {
    fn from(summary: &RealServerSummary) -> Self {
        Self {
            weight: summary.weight,
            forwarding: summary.forwarding,
        }
    }
}

impl ObservedServer {
    pub(super) fn real_server(&self, key: &RealServerKey) -> Option<ObservedRealServer> {
        let found = self.real_servers.binary_search_by_key(key, |(key, _)| *key);
        self.real_servers.get(found.ok()?).map(|(_, server)| *server)
    }
}

/// The chains of one family.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains {
    pub(super) observed: ObservedRules,
    pub(super) is_marked: bool,
    /// Whether the chains and jumps are what they should be.
    pub(super) is_in_place: bool,
    /// How many operations of the last plan are not done yet. `None`: there is no way to bring them in place.
    pub(super) pending: Option<usize>,
    /// What the last plan writes at first, if it is not what is desired in the end.
    pub(super) interim: Option<Interim>,
}

/// Chains that still have the rules of sets that become empty, and what removes these rules then.
#[derive(Clone, Debug)]
pub(super) struct Interim {
    pub(super) rules: Box<Ruleset>,
    pub(super) removal: Box<kernlink_iptables_restore::Operation>,
}

/// The tables of one family.
#[derive(Clone, Debug, Default)]
pub(super) enum ObservedRules {
    /// Never read.
    #[default]
    Unknown,
    /// As read.
    Saved(Box<Ruleset>),
    /// They could not be read.
    Unreadable(Error),
    /// As written: the owned chains hold these rules.
    Written(Box<Ruleset>),
}

/// What a service port contributes.
#[derive(Clone, Debug, Default)]
struct Unit {
    /// `None` for an id that is not in use.
    family: Option<Family>,
    service: Option<ObjectName>,
    frontends: Box<[UnitFrontend]>,
    entries: Box<[(SetId, Entry)]>,
    events: Box<[Event]>,
}

#[derive(Clone, Debug)]
struct UnitFrontend {
    key: VirtualServerKey,
    address: Option<IpAddr>,
    entries: Box<[(SetId, Entry)]>,
    blocked: Option<Blocked>,
}

impl Unit {
    fn of(family: Family, service: &ObjectName, compiled: &mut Compiled) -> Self {
        let frontend = |frontend: &mut CompiledFrontend| UnitFrontend {
            key: frontend.virtual_server.key,
            address: frontend.address,
            entries: std::mem::take(&mut frontend.entries).into_boxed_slice(),
            blocked: frontend.blocked,
        };
        Self {
            family: Some(family),
            service: Some(service.clone()),
            frontends: compiled.frontends.iter_mut().map(frontend).collect(),
            entries: std::mem::take(&mut compiled.entries).into_boxed_slice(),
            events: std::mem::take(&mut compiled.events).into_boxed_slice(),
        }
    }

    fn keys(&self) -> Vec<VirtualServerKey> {
        sorted(self.frontends.iter().map(|frontend| frontend.key))
    }

    fn addresses(&self) -> Vec<AddressKey> {
        let addresses = self.frontends.iter().filter_map(|frontend| frontend.address);
        sorted(addresses.filter_map(|address| AddressKey::host(address).ok()))
    }

    fn all_entries(&self) -> Vec<&(SetId, Entry)> {
        let of_frontends = self.frontends.iter().flat_map(|frontend| &frontend.entries);
        sorted(of_frontends.chain(&self.entries))
    }

    fn blocked(&self) -> Vec<Blocked> {
        sorted(self.frontends.iter().filter_map(|frontend| frontend.blocked))
    }
}

/// The items in order, each once.
fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    items.dedup();
    items
}

/// The items that are only in the first of two sorted lists.
fn only_in<'a, T: Ord>(first: &'a [T], second: &'a [T]) -> impl Iterator<Item = &'a T> {
    first.iter().filter(|item| second.binary_search(item).is_err())
}

/// A virtual server that should exist.
#[derive(Clone, Copy, Debug)]
pub struct DesiredVirtualServer<'a> {
    /// Its key and settings.
    pub virtual_server: &'a VirtualServer,
    /// Its real servers, sorted by key, each once; may be empty.
    pub real_servers: &'a Arc<[RealServer]>,
    /// The set entries that its frontend needs.
    pub entries: &'a [(SetId, Entry)],
    /// What it is for.
    pub subject: &'a Subject,
}

impl State {
    pub(super) fn new(config: &Config) -> Self {
        let mut state = Self {
            config: Arc::new(config.clone()),
            defaults: Arc::default(),
            managed: BTreeSet::new(),
            pod_cidrs: [None; 2],
            host: HostFacts::default(),
            interfaces: BTreeSet::new(),
            sysctls: Table::default(),
            timeouts: ObservedTimeouts::default(),
            links: Table::default(),
            addresses: Table::default(),
            sets: Table::default(),
            entries: std::array::from_fn(|_| std::array::from_fn(|_| Table::default())),
            chains: std::array::from_fn(|_| Chains::default()),
            servers: Table::default(),
            units: Vec::new(),
            blocked: std::array::from_fn(|_| BTreeMap::new()),
            service_events: NameMap::default(),
            is_outdated: false,
            is_config_reported: false,
            foreign: Vec::new(),
            reported_foreign: BTreeSet::new(),
        };
        state.configure();
        state
    }

    pub(super) fn set_config(&mut self, config: &Config) {
        if *config == *self.config {
            return;
        }
        let compiles_otherwise = config.defaults != self.config.defaults;
        let before = self.config.link();
        self.config = Arc::new(config.clone());
        self.is_config_reported = false;
        if let Some(before) = before.filter(|before| Some(*before) != config.link()) {
            self.links.remove(&before);
            // They are on the former link, which goes with them.
            self.addresses.observe_all([]);
        }
        self.configure();
        self.is_outdated |= compiles_otherwise;
    }

    /// Takes over what the tables take from the configuration.
    fn configure(&mut self) {
        self.defaults = Arc::new(self.config.defaults.usable());
        self.managed.extend(&self.config.services.families);
        if let Some(link) = self.config.link().filter(|link| !self.links.is_desired(link)) {
            self.links.add(link, (), Subject::DataPath);
        }
        for family in self.managed.clone() {
            for set in SetId::ALL {
                let key = (family, set);
                self.sets
                    .set(key, Some(set.definition(family)), Subject::DataPath);
            }
            self.mark_rules(family);
        }
        self.timeouts.is_marked = true;
        self.configure_sysctls();
    }

    /// Sets the sysctls that must have a value on this host.
    pub(super) fn configure_sysctls(&mut self) {
        let HostFacts { kernel, processors } = self.host;
        let mut desired: BTreeMap<Box<str>, Box<str>> = sysctls::sysctls(&self.config, kernel, processors)
            .into_iter()
            .map(|sysctl| (sysctl.name.into(), sysctl.value.to_string().into()))
            .collect();
        if let Some(buckets) = sysctls::conntrack_buckets(&self.config, processors) {
            desired.insert(sysctls::CONNTRACK_BUCKETS.into(), buckets.to_string().into());
        }
        let withdrawn: Vec<Box<str>> = self
            .sysctls
            .iter_desired()
            .filter(|(name, _)| !desired.contains_key(*name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in withdrawn {
            self.sysctls.remove(&name);
        }
        for (name, value) in desired {
            self.sysctls.set(name, Some(value), Subject::Node);
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Facts of the host, as last read.
    #[must_use]
    pub fn host(&self) -> HostFacts {
        self.host
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        self.config.services.families.iter().copied()
    }

    /// Brings the desired objects up to date with changes of the Services. Returns new events.
    ///
    /// [`Proxier`](crate::Proxier) calls it before each plan; call it to see the desired state without a kernel.
    pub fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        let mut events = Vec::new();
        if changes.node {
            self.pod_cidrs = Family::ALL.map(|family| services.node_facts().pod_cidr(family));
            for family in self.managed.clone() {
                self.mark_rules(family);
            }
        }
        if self.units.is_empty() {
            self.units.reserve(changes.ports.len());
            self.servers.reserve(changes.ports.len());
            self.addresses.reserve(changes.ports.len());
        }
        let mut ids = changes.ports.clone();
        let mut named: Vec<&ObjectName> = changes.services.iter().collect();
        if std::mem::take(&mut self.is_outdated) {
            ids.retain(|id| services.port(*id).is_none());
            ids.extend(services.ports().map(|(id, _)| id));
            named.extend(services.ports().map(|(_, port)| &port.key.name.service));
        }
        for id in ids {
            let Some(port) = services.port(id) else {
                self.replace_unit(id, None, &mut events);
                continue;
            };
            let options = options::options(&port.options, &self.defaults);
            let compiled = compile(port, services.owned_frontends(id), &options);
            self.replace_unit(id, Some((&port.key, compiled)), &mut events);
        }
        for name in named {
            let service = services.service(name);
            let is_annotated = service.is_some_and(|service| !service.annotations.is_empty());
            if !is_annotated && !self.service_events.contains_key(name) {
                continue;
            }
            let annotations = services.ports_of(name).next().map(|(_, port)| &port.options);
            let now: Vec<Event> = match (service, annotations) {
                (Some(service), Some(annotations)) => options::events(service, annotations, &self.defaults)
                    .into_iter()
                    .map(|reason| Event::service(name.clone(), reason))
                    .collect(),
                _ => Vec::new(),
            };
            let before = self.service_events.remove(name).unwrap_or_default();
            events.extend(now.iter().filter(|event| !before.contains(event)).cloned());
            if !now.is_empty() {
                self.service_events.insert(name.clone(), now);
            }
        }
        if !std::mem::replace(&mut self.is_config_reported, true) {
            events.extend(self.configuration_events());
        }
        events.extend(self.foreign_events());
        events
    }

    /// Replaces what a service port contributes.
    fn replace_unit(
        &mut self,
        id: ServicePortId,
        compiled: Option<(&ServicePortKey, Compiled)>,
        events: &mut Vec<Event>,
    ) {
        let index = id.index();
        if self.units.len() <= index {
            self.units.resize_with(index + 1, Unit::default);
        }
        let Some(place) = self.units.get_mut(index) else {
            return;
        };
        let before = std::mem::take(place);
        let (now, servers) = match compiled {
            Some((key, mut compiled)) => (
                Unit::of(key.family, &key.name.service, &mut compiled),
                compiled.frontends,
            ),
            None => (Unit::default(), Vec::new()),
        };
        let subject = now.service.clone().map_or(Subject::DataPath, Subject::Service);
        let subject = &subject;
        let new = now.events.iter().filter(|event| !before.events.contains(event));
        events.extend(new.cloned());
        if before.family == now.family && before.service == now.service {
            self.exchange(id, &before, &now, servers, subject);
        } else {
            // The id was used for a service port of another Service or of the other family.
            self.exchange(id, &before, &Unit::default(), Vec::new(), subject);
            self.exchange(id, &Unit::default(), &now, servers, subject);
        }
        if let Some(place) = self.units.get_mut(index) {
            *place = now;
        }
    }

    /// Moves the references of a service port from what it contributed to what it contributes. Both are of one family.
    fn exchange(
        &mut self,
        id: ServicePortId,
        before: &Unit,
        now: &Unit,
        servers: Vec<CompiledFrontend>,
        subject: &Subject,
    ) {
        let Some(family) = before.family.or(now.family) else {
            return;
        };
        let (old, new) = (before.keys(), now.keys());
        for (position, frontend) in servers.into_iter().enumerate() {
            let key = frontend.virtual_server.key;
            let desired = DesiredServer {
                virtual_server: frontend.virtual_server,
                real_servers: frontend.real_servers,
                owner: (id, u32::try_from(position).unwrap_or(u32::MAX)),
            };
            if old.binary_search(&key).is_ok() {
                self.servers.update(&key, desired, subject.clone());
            } else {
                self.servers.add(key, desired, subject.clone());
                if self.servers.observed(&key).is_some_and(|known| !known.is_owned)
                    && let Some(known) = self.servers.observed_mut(&key)
                {
                    known.is_owned = true;
                }
                // An address that waits for another virtual server need not wait any more.
                let address = key.address().and_then(|address| AddressKey::host(address).ok());
                if let Some(address) = address.filter(|key| !self.addresses.is_observed(key)) {
                    self.addresses.mark(address);
                }
            }
        }
        only_in(&old, &new).for_each(|key| self.servers.remove(key));

        let (old, new) = (before.addresses(), now.addresses());
        only_in(&new, &old).for_each(|key| self.addresses.add(*key, (), subject.clone()));
        only_in(&old, &new).for_each(|key| self.addresses.remove(key));

        let (old, new) = (before.all_entries(), now.all_entries());
        for (set, entry) in only_in(&new, &old) {
            let table = &mut self.entries[family.index()][set.index()];
            // Which sets are empty decides which rules there are.
            self.chains[family.index()].is_marked |= table.is_empty();
            table.add(entry.clone(), (), subject.clone());
        }
        for (set, entry) in only_in(&old, &new) {
            let table = &mut self.entries[family.index()][set.index()];
            table.remove(entry);
            self.chains[family.index()].is_marked |= table.is_empty();
        }

        let (old, new) = (before.blocked(), now.blocked());
        let counts = &mut self.blocked[family.index()];
        for blocked in only_in(&new, &old) {
            *counts.entry(*blocked).or_default() += 1;
            self.chains[family.index()].is_marked = true;
        }
        for blocked in only_in(&old, &new) {
            if let Some(count) = counts.get_mut(blocked) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(blocked);
                }
            }
            self.chains[family.index()].is_marked = true;
        }
    }

    /// Events about the configuration.
    fn configuration_events(&self) -> Vec<Event> {
        let scheduler = self.config.defaults.scheduler;
        let problem = options::known_scheduler(scheduler.as_str()).err();
        let event = |problem: String| {
            Event::configuration(Reason::Invalid {
                field: "scheduler".to_owned(),
                value: scheduler.to_string(),
                problem: format!("{problem}; {} is used", self.defaults.scheduler),
            })
        };
        problem.map(event).into_iter().collect()
    }

    /// New events about foreign virtual servers at addresses that the dummy link has or gets: they answer there too, and stay.
    fn foreign_events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for key in &self.foreign {
            let Some(address) = key.address() else { continue };
            let is_bound = AddressKey::host(address).is_ok_and(|key| self.addresses.is_desired(&key));
            let is_foreign = self.servers.observed(key).is_some_and(|known| !known.is_owned);
            if is_bound && is_foreign && self.reported_foreign.insert(*key) {
                let text =
                    format!("virtual server {key} is foreign and stays, although {address} is a virtual IP");
                events.push(Event::host("ForeignVirtualServer", text));
            }
        }
        events
    }

    /// All events that describe the present desired state, sorted, each once. Those of [`Services::events`] are not among them.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let of_units = self.units.iter().flat_map(|unit| &unit.events).cloned();
        let of_services = self.service_events.values().flatten().cloned();
        let of_configuration = self.configuration_events().into_iter();
        sorted(of_units.chain(of_services).chain(of_configuration))
    }

    /// The virtual servers of a family that should exist, sorted by key.
    pub fn virtual_servers(&self, family: Family) -> impl Iterator<Item = DesiredVirtualServer<'_>> {
        let keys = self.servers.sorted_keys().into_iter();
        let of_family = keys.filter(move |key| key.address().map(Family::of) == Some(family));
        of_family.filter_map(|key| self.virtual_server(key))
    }

    /// The virtual server with a key, if it should exist.
    #[must_use]
    pub fn virtual_server(&self, key: &VirtualServerKey) -> Option<DesiredVirtualServer<'_>> {
        let desired = self.servers.desired(key)?;
        Some(DesiredVirtualServer {
            virtual_server: &desired.virtual_server,
            real_servers: &desired.real_servers,
            entries: self.entries_of(desired),
            subject: self.servers.subject(key)?,
        })
    }

    /// The set entries that the frontend of a virtual server needs.
    pub(super) fn entries_of(&self, server: &DesiredServer) -> &[(SetId, Entry)] {
        let (id, position) = server.owner;
        let unit = self.units.get(id.index());
        let frontend = unit.and_then(|unit| unit.frontends.get(position as usize));
        frontend.map_or(&[], |frontend| &frontend.entries)
    }

    /// The addresses of a family that the dummy link should have, sorted, each with the full prefix length.
    pub fn addresses(&self, family: Family) -> impl Iterator<Item = IpAddr> + '_ {
        let keys = self.addresses.sorted_keys().into_iter();
        keys.map(|key| key.address())
            .filter(move |address| Family::of(*address) == family)
    }

    /// The entries that a set should have, sorted.
    pub fn entries(&self, set: SetId, family: Family) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries[family.index()][set.index()]
            .sorted_keys()
            .into_iter()
    }

    /// Whether a set should have an entry.
    #[must_use]
    pub fn has_entry(&self, set: SetId, family: Family, entry: &Entry) -> bool {
        self.entries[family.index()][set.index()].is_desired(entry)
    }

    /// The frontends of a family that processes of this node must not reach, sorted.
    pub fn blocked(&self, family: Family) -> impl Iterator<Item = &Blocked> {
        self.blocked[family.index()].keys()
    }

    /// The chains of a family with the rules that they should have.
    #[must_use]
    pub fn rules(&self, family: Family) -> Ruleset {
        self.rules_of(family, |_, table| !table.is_empty())
    }

    /// The chains of a family with the rules that they need while there are entries that are withdrawn. `None` if these are no others.
    pub(super) fn interim_rules(&self, family: Family) -> Option<Ruleset> {
        self.emptied(family).next()?;
        Some(self.rules_of(family, |set, table| {
            !table.is_empty() || self.emptied(family).any(|emptied| emptied == set)
        }))
    }

    /// The sets of a family that have entries and should have none.
    pub(super) fn emptied(&self, family: Family) -> impl Iterator<Item = SetId> {
        let tables = &self.entries[family.index()];
        let is_emptied = |table: &Table<Entry, ()>| table.is_empty() && table.iter_observed().len() > 0;
        SetId::ALL
            .into_iter()
            .filter(move |set| is_emptied(&tables[set.index()]))
    }

    fn rules_of(&self, family: Family, has_rules: impl Fn(SetId, &Table<Entry, ()>) -> bool) -> Ruleset {
        let mut filled = [false; SetId::ALL.len()];
        for set in SetId::ALL {
            filled[set.index()] = has_rules(set, &self.entries[family.index()][set.index()]);
        }
        rules::rules(&RuleInputs {
            config: &self.config,
            family,
            pod_cidr: self.pod_cidrs[family.index()],
            filled,
            blocked: self.blocked(family).copied().collect(),
        })
    }

    /// Marks the chains of a family to be compared.
    pub(super) fn mark_rules(&mut self, family: Family) {
        self.chains[family.index()].is_marked = true;
    }

    /// The number of map entries that were looked up to change them, since the state was made.
    #[must_use]
    pub fn work(&self) -> usize {
        let entries = self.entries.iter().flatten().map(Table::work);
        self.sysctls.work()
            + self.links.work()
            + self.addresses.work()
            + self.sets.work()
            + self.servers.work()
            + entries.sum::<usize>()
    }

    /// Marks an object to be compared.
    pub(super) fn mark(&mut self, key: &Key) {
        match key {
            Key::Sysctl(name) => self.sysctls.mark(name.clone()),
            Key::Timeouts => self.timeouts.is_marked = true,
            Key::Link(name) => self.links.mark(*name),
            Key::Set(family, set) => self.sets.mark((*family, *set)),
            Key::Entry(family, set, entry) => {
                self.entries[family.index()][set.index()].mark(entry.clone());
            }
            Key::Rules(family) | Key::Jump(family, _) => self.mark_rules(*family),
            Key::VirtualServer(key) | Key::RealServer(key, _) => self.servers.mark(*key),
            Key::Address(key) => self.addresses.mark(*key),
        }
    }

    /// Whether an object is marked.
    pub(super) fn is_marked(&self, key: &Key) -> bool {
        match key {
            Key::Sysctl(name) => self.sysctls.is_marked(name),
            Key::Timeouts => self.timeouts.is_marked,
            Key::Link(name) => self.links.is_marked(name),
            Key::Set(family, set) => self.sets.is_marked(&(*family, *set)),
            Key::Entry(family, set, entry) => self.entries[family.index()][set.index()].is_marked(entry),
            Key::Rules(family) | Key::Jump(family, _) => self.chains[family.index()].is_marked,
            Key::VirtualServer(key) | Key::RealServer(key, _) => self.servers.is_marked(key),
            Key::Address(key) => self.addresses.is_marked(key),
        }
    }

    /// Removes all marks.
    pub(super) fn settle(&mut self) {
        self.sysctls.settle();
        self.timeouts.is_marked = false;
        self.links.settle();
        self.addresses.settle();
        self.sets.settle();
        self.entries.iter_mut().flatten().for_each(Table::settle);
        self.servers.settle();
        for family in Family::ALL {
            let chains = &mut self.chains[family.index()];
            if !std::mem::take(&mut chains.is_marked) {
                continue;
            }
            chains.is_in_place = chains.pending == Some(0);
            if chains.is_in_place && matches!(chains.observed, ObservedRules::Saved(_)) {
                // Only the owned chains matter from now on.
                let interim = chains.interim.take().map(|interim| interim.rules);
                let rules = interim.unwrap_or_else(|| Box::new(self.rules(family)));
                self.chains[family.index()].observed = ObservedRules::Written(rules);
            }
        }
    }

    /// Records an operation that was done.
    pub(super) fn record(&mut self, operation: &Operation) {
        match operation {
            Operation::Sysctl(operation) => {
                self.sysctls
                    .observe(operation.name.clone(), Some(operation.value.clone()));
            }
            Operation::Link(operation) => self.record_link(operation),
            Operation::Set(operation) => self.record_set(operation),
            Operation::Rules(operation) => {
                let family = family_of(operation.family());
                let is_restore = matches!(**operation, kernlink_iptables_restore::Operation::Restore(_));
                let rules = is_restore.then(|| Box::new(self.rules(family)));
                let chains = &mut self.chains[family.index()];
                if chains
                    .interim
                    .as_ref()
                    .is_some_and(|interim| interim.removal == *operation)
                {
                    chains.interim = None;
                } else {
                    chains.pending = chains.pending.map(|pending| pending.saturating_sub(1));
                }
                if let Some(rules) = rules {
                    let interim = chains.interim.as_ref().map(|interim| interim.rules.clone());
                    chains.observed = ObservedRules::Written(interim.unwrap_or(rules));
                }
            }
            Operation::Ipvs(operation) => self.record_ipvs(operation),
        }
    }

    fn record_link(&mut self, operation: &kernlink_dummylink::Operation) {
        use kernlink_dummylink::Operation;
        match operation {
            Operation::AddLink(link) | Operation::EnsureLink(link) => {
                self.links.observe(link.name, Some(()));
            }
            Operation::DeleteLink(name) => self.links.observe(*name, None),
            Operation::AddAddress(_, address) | Operation::EnsureAddress(_, address) => {
                self.addresses.observe(address.key, Some(()));
            }
            Operation::DeleteAddress(_, key) => self.addresses.observe(*key, None),
            // No plan holds another operation.
            _ => {}
        }
    }

    fn record_set(&mut self, operation: &kernlink_ipset::Operation) {
        use kernlink_ipset::Operation;
        let Some((family, id)) = SetId::of_name(operation.set()) else {
            return;
        };
        let entries = &mut self.entries[family.index()][id.index()];
        match operation {
            Operation::Create { set, .. } => self.sets.observe((family, id), Some((**set).clone())),
            Operation::Add { entry, .. } => entries.observe(entry.clone(), Some(())),
            Operation::Delete { entry, .. } => entries.observe(entry.clone(), None),
            // No plan holds another operation.
            _ => {}
        }
    }

    fn record_ipvs(&mut self, operation: &kernlink_ipvs::Operation) {
        use kernlink_ipvs::Operation;
        match operation {
            Operation::AddVirtualServer(server) => {
                let observed = ObservedServer {
                    virtual_server: server.clone(),
                    real_servers: Vec::new(),
                    is_owned: true,
                };
                self.servers.observe(server.key, Some(observed));
            }
            Operation::UpdateVirtualServer(server) => {
                if let Some(observed) = self.servers.observed_mut(&server.key) {
                    observed.virtual_server = server.clone();
                    observed.is_owned = true;
                }
            }
            Operation::DeleteVirtualServer(key) => self.servers.observe(*key, None),
            Operation::AddRealServer {
                virtual_server,
                real_server,
            }
            | Operation::UpdateRealServer {
                virtual_server,
                real_server,
            } => {
                if let Some(observed) = self.servers.observed_mut(virtual_server) {
                    observed.set_real_server(real_server.key, Some(real_server.into()));
                }
            }
            Operation::DeleteRealServer {
                virtual_server,
                real_server,
            } => {
                if let Some(observed) = self.servers.observed_mut(virtual_server) {
                    observed.set_real_server(*real_server, None);
                }
            }
            Operation::SetTimeouts(timeouts) => {
                let observed = self.timeouts.observed.get_or_insert_default();
                let set = |observed: &mut Duration, value: Duration| {
                    // Zero leaves the value as it is.
                    if !value.is_zero() {
                        *observed = value;
                    }
                };
                set(&mut observed.tcp, timeouts.tcp);
                set(&mut observed.tcp_fin, timeouts.tcp_fin);
                set(&mut observed.udp, timeouts.udp);
            }
            // No plan holds another operation.
            _ => {}
        }
    }

    /// The addresses of the interfaces of this node, without those of the dummy links.
    pub(super) fn interface_addresses(&self) -> Vec<InterfaceAddress> {
        self.interfaces.iter().cloned().collect()
    }

    /// Whether an interface carries virtual IPs: the configured link, one that was configured before, or kube-proxy's.
    pub(super) fn is_dummy_link(&self, name: &LinkName) -> bool {
        let text = name.to_string();
        text == self.config.dummy_link
            || text == DEFAULT_DUMMY_LINK
            || self.links.is_observed(name)
            || self.links.is_desired(name)
    }
}

impl ObservedServer {
    fn set_real_server(&mut self, key: RealServerKey, server: Option<ObservedRealServer>) {
        match (
            self.real_servers.binary_search_by_key(&key, |(key, _)| *key),
            server,
        ) {
            (Ok(position), Some(server)) => {
                if let Some(place) = self.real_servers.get_mut(position) {
                    place.1 = server;
                }
            }
            (Ok(position), None) => _ = self.real_servers.remove(position),
            (Err(position), Some(server)) => self.real_servers.insert(position, (key, server)),
            (Err(_), None) => {}
        }
    }
}
