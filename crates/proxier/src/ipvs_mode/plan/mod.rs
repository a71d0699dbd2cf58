//! From marked objects to steps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use kernlink_dummylink::{AddressKey, DummyLink, LinkAddress, LinkName, Operation as LinkOperation};
use kernlink_ipset::{Element, Entry, OnRepeat, Operation as SetOperation, ProtocolPort, Set};
use kernlink_iptables_restore::{
    Edit, Operation as RulesOperation, Owned, Restore, Ruleset, diff_operations,
};
use kernlink_ipvs::{Operation as IpvsOperation, Protocol, RealServer, Timeouts, VirtualServerKey};
use kernlink_services::Family;

use super::IpvsMode;
use super::error::Error;
use super::key::Key;
use super::operation::SysctlOperation;
use super::order::Phase;
use super::ownership::{Identified, identified};
use super::rules;
use super::sets::SetId;
use super::state::{DesiredServer, Interim, ObservedRules, ObservedServer, State};
use super::sysctls::CONNTRACK_BUCKETS;
use crate::plan::{Needs, PlanBuilder, Subject};
use crate::table::Difference;

type Need = crate::plan::Need<Key>;
type EntryKey = (Family, SetId, Entry);

/// Adds the steps for all marked objects.
pub(super) fn plan(state: &mut State, builder: &mut PlanBuilder<'_, IpvsMode>) {
    let rules = plan_rules(state);
    for (family, operations, interim) in &rules {
        let chains = &mut state.chains[family.index()];
        chains.pending = operations.as_ref().map(Vec::len);
        chains.interim.clone_from(interim);
    }
    let mut planner = Planner {
        state,
        builder,
        servers: state.servers.differences(),
        sets: HashMap::new(),
        entries: HashMap::new(),
        late: HashMap::new(),
        lifted: HashMap::new(),
        removed: HashMap::new(),
        allowed: HashMap::new(),
        rules: BTreeMap::new(),
        new_servers: HashMap::new(),
        added: HashMap::new(),
        unbound: HashMap::new(),
        deleted: HashMap::new(),
        link: None,
        bound: Vec::new(),
    };
    planner.sysctls();
    planner.links();
    planner.sets();
    planner.unbind_addresses();
    planner.find_late_entries();
    planner.add_entries();
    planner.rules(rules);
    planner.virtual_servers();
    planner.remove_local_entries();
    planner.real_servers();
    planner.bind_addresses();
    planner.remove_real_servers();
    planner.add_late_entries();
    planner.remove_virtual_servers();
    planner.remove_entries();
    planner.remove_rules();
    planner.remove_links();
}

/// How many new real servers the removal of an old one names, of which one must be in place.
const MOST_ALTERNATIVES: usize = 16;

type ServerDifference<'a> = Difference<'a, VirtualServerKey, DesiredServer, ObservedServer>;

struct Planner<'a, 'b, 'c> {
    state: &'a State,
    builder: &'b mut PlanBuilder<'c, IpvsMode>,
    servers: Vec<ServerDifference<'a>>,
    // The steps so far that later ones may need.
    sets: HashMap<(Family, SetId), Need>,
    entries: HashMap<EntryKey, Need>,
    /// Local-policy entries that are added late, with the changes of real servers that they wait for.
    late: HashMap<EntryKey, Vec<Need>>,
    /// Local-policy entries that are removed early.
    lifted: HashMap<EntryKey, Need>,
    /// The removed entries of sets that become empty.
    removed: HashMap<EntryKey, Need>,
    /// The entries of allow-lists by frontend.
    allowed: HashMap<(IpAddr, ProtocolPort), Vec<Need>>,
    rules: BTreeMap<Family, Vec<Need>>,
    /// Virtual servers that do not exist yet.
    new_servers: HashMap<VirtualServerKey, Need>,
    /// Real servers that are added, by virtual server.
    added: HashMap<VirtualServerKey, Vec<Need>>,
    unbound: HashMap<IpAddr, Need>,
    deleted: HashMap<VirtualServerKey, Need>,
    link: Option<Need>,
    bound: Vec<Need>,
}

impl<'a> Planner<'a, '_, '_> {
    fn sysctls(&mut self) {
        for difference in self.state.sysctls.differences() {
            let Some(desired) = difference.desired else {
                continue;
            };
            let is_set = match difference.observed {
                None => false,
                // More buckets than needed do no harm.
                Some(observed) if **difference.key == *CONNTRACK_BUCKETS => {
                    let number = |text: &str| text.parse::<u64>().ok();
                    number(observed) >= number(desired)
                }
                Some(observed) => observed == desired,
            };
            if !is_set {
                let operation = SysctlOperation {
                    name: difference.key.clone(),
                    value: desired.clone(),
                };
                let key = Key::Sysctl(difference.key.clone());
                self.builder
                    .push(Phase::Sysctls, key, difference.subject, operation, Needs::none());
            }
        }
        let desired = self.state.config().ipvs_timeouts.whole_seconds();
        let agrees = self.state.timeouts.observed.is_some_and(|observed| {
            [
                (desired.tcp, observed.tcp),
                (desired.tcp_fin, observed.tcp_fin),
                (desired.udp, observed.udp),
            ]
            .into_iter()
            .all(|(desired, observed)| desired.is_zero() || desired == observed)
        });
        if self.state.timeouts.is_marked && !desired.is_unset() && !agrees {
            let timeouts = Timeouts::new(desired.tcp, desired.tcp_fin, desired.udp);
            let operation = IpvsOperation::SetTimeouts(timeouts);
            self.builder.push(
                Phase::Sysctls,
                Key::Timeouts,
                Subject::Node,
                operation,
                Needs::none(),
            );
        }
    }

    fn links(&mut self) {
        let Some(link) = self.state.config().link() else {
            return;
        };
        if self.state.links.is_observed(&link) {
            return;
        }
        self.link = Some(if self.state.links.is_marked(&link) {
            let operation = LinkOperation::EnsureLink(DummyLink::new(link));
            self.builder.push(
                Phase::Link,
                Key::Link(link),
                Subject::DataPath,
                operation,
                Needs::none(),
            )
        } else {
            Need::Waiting(Key::Link(link))
        });
    }

    fn sets(&mut self) {
        for difference in self.state.sets.differences() {
            let (family, id) = *difference.key;
            let Some(desired) = difference.desired else {
                continue;
            };
            // A set with other parameters is tried too: the refusal of the kernel is the report.
            if difference
                .observed
                .is_none_or(|observed| !serves(observed, desired))
            {
                let operation = SetOperation::ensure_set(desired.clone());
                let key = Key::Set(family, id);
                let need = self
                    .builder
                    .push(Phase::Sets, key, difference.subject, operation, Needs::none());
                self.sets.insert((family, id), need);
            }
        }
    }

    /// What an entry of a set needs. Nothing if the set exists.
    fn set_need(&self, family: Family, id: SetId) -> Option<Need> {
        if let Some(need) = self.sets.get(&(family, id)) {
            return Some(need.clone());
        }
        let sets = &self.state.sets;
        match (sets.observed(&(family, id)), sets.desired(&(family, id))) {
            (Some(observed), Some(desired)) if serves(observed, desired) => None,
            _ => Some(Need::Waiting(Key::Set(family, id))),
        }
    }

    fn unbind_addresses(&mut self) {
        let Some(link) = self.state.config().link() else {
            return;
        };
        for difference in self.state.addresses.differences() {
            let key = *difference.key;
            let is_managed = self.state.managed.contains(&Family::of(key.address()));
            if difference.observed.is_some() && difference.desired.is_none() && is_managed {
                let operation = LinkOperation::DeleteAddress(link, key);
                let need = self.builder.push(
                    Phase::UnbindAddresses,
                    Key::Address(key),
                    difference.subject,
                    operation,
                    Needs::none(),
                );
                self.unbound.insert(key.address(), need);
            }
        }
    }

    /// Finds the local-policy entries of virtual servers whose real servers are changed or removed.
    fn find_late_entries(&mut self) {
        let state = self.state;
        for difference in &self.servers {
            let (Some(desired), Some(observed)) = (difference.desired, difference.observed) else {
                continue;
            };
            let changes = observed.real_servers.iter().any(|(key, observed)| {
                real_server(desired, key).is_none_or(|desired| !observed.agrees_with(desired))
            });
            let Some(family) = difference.key.address().map(Family::of).filter(|_| changes) else {
                continue;
            };
            for (set, entry) in state.entries_of(desired).iter().filter(|(set, _)| set.is_local()) {
                let table = &state.entries[family.index()][set.index()];
                if !table.is_observed(entry) {
                    self.late.entry((family, *set, entry.clone())).or_default();
                }
            }
        }
    }

    fn add_entries(&mut self) {
        for family in self.families() {
            for id in NARROWING_FIRST {
                for difference in self.state.entries[family.index()][id.index()].differences() {
                    let entry = difference.key;
                    let is_missing = difference.desired.is_some() && difference.observed.is_none();
                    if is_missing && !self.late.contains_key(&(family, id, entry.clone())) {
                        self.add_entry(
                            Phase::AddEntries,
                            family,
                            id,
                            entry,
                            difference.subject,
                            Vec::new(),
                        );
                    }
                }
            }
        }
    }

    fn add_entry(
        &mut self,
        phase: Phase,
        family: Family,
        id: SetId,
        entry: &Entry,
        subject: Subject,
        mut needs: Vec<Need>,
    ) {
        needs.extend(self.set_need(family, id));
        // Restricting a frontend whose allow-list is incomplete would shut out clients that may use it.
        if let (SetId::LoadBalancerFirewall, Element::IpPort { ip, port }) = (id, entry.element()) {
            needs.extend(self.allowed.get(&(*ip, *port)).into_iter().flatten().cloned());
        }
        let operation = SetOperation::ensure(id.name(family), entry.clone());
        let key = Key::Entry(family, id, entry.clone());
        let need = self
            .builder
            .push(phase, key, subject, operation, Needs::all(needs));
        if let (
            SetId::LoadBalancerSourceCidr | SetId::LoadBalancerSourceIp,
            Element::IpPortNet { ip, port, .. } | Element::IpPortIp { ip, port, .. },
        ) = (id, entry.element())
        {
            self.allowed.entry((*ip, *port)).or_default().push(need.clone());
        }
        self.entries.insert((family, id, entry.clone()), need);
    }

    fn rules(&mut self, rules: Vec<RulesPlan>) {
        for (family, operations, _) in rules {
            let mut sets: Vec<_> = self.sets.iter().filter(|((of, _), _)| *of == family).collect();
            sets.sort_unstable_by_key(|(key, _)| **key);
            let needs: Vec<Need> = sets.into_iter().map(|(_, need)| need.clone()).collect();
            let mut steps: Vec<Need> = Vec::new();
            for (position, operation) in operations.unwrap_or_default().into_iter().enumerate() {
                let key = match operation {
                    RulesOperation::EnsureJump { .. } => Key::Jump(family, position),
                    _ => Key::Rules(family),
                };
                // A jump needs the chain that it leads to.
                let needs = Needs::all(needs.iter().chain(&steps).cloned());
                let need = self
                    .builder
                    .push(Phase::Rules, key, Subject::DataPath, operation, needs);
                steps.push(need);
            }
            self.rules.insert(family, steps);
        }
    }

    /// What needs the rules of a family to be in place.
    fn rules_needs(&self, family: Family) -> Vec<Need> {
        let chains = &self.state.chains[family.index()];
        match self.rules.get(&family) {
            Some(steps) if chains.pending.is_some() => steps.clone(),
            None if chains.is_in_place => Vec::new(),
            _ => vec![Need::Waiting(Key::Rules(family))],
        }
    }

    fn virtual_servers(&mut self) {
        let mut new = HashMap::new();
        for difference in &self.servers {
            let Some(desired) = difference.desired else {
                continue;
            };
            let server = &desired.virtual_server;
            let operation = match difference.observed {
                None => IpvsOperation::AddVirtualServer(server.clone()),
                Some(observed) if observed.virtual_server != *server => {
                    IpvsOperation::UpdateVirtualServer(server.clone())
                }
                Some(_) => continue,
            };
            let needs = Needs::all(self.needs_of_server(difference.key, desired));
            let key = Key::VirtualServer(*difference.key);
            let subject = difference.subject.clone();
            let need = self
                .builder
                .push(Phase::VirtualServers, key, subject, operation, needs);
            if difference.observed.is_none() {
                new.insert(*difference.key, need);
            }
        }
        self.new_servers = new;
    }

    /// A virtual server needs its entries, which identify it as owned. One with restricted sources needs the rules too.
    fn needs_of_server(&self, key: &VirtualServerKey, desired: &DesiredServer) -> Vec<Need> {
        let Some(family) = key.address().map(Family::of) else {
            return Vec::new();
        };
        let mut needs = Vec::new();
        for (set, entry) in self.state.entries_of(desired) {
            let of_plan = (family, *set, entry.clone());
            if self.late.contains_key(&of_plan) {
                continue;
            }
            match self.entries.get(&of_plan) {
                Some(need) => needs.push(need.clone()),
                None if self.state.entries[family.index()][set.index()].is_observed(entry) => {}
                None => needs.push(Need::Waiting(Key::Entry(family, *set, entry.clone()))),
            }
            if *set == SetId::LoadBalancerFirewall {
                needs.extend(self.rules_needs(family));
            }
        }
        needs
    }

    /// Removes entries of local-policy sets whose frontend stays with another policy.
    fn remove_local_entries(&mut self) {
        for family in self.families() {
            for id in SetId::ALL.into_iter().filter(|id| id.is_local()) {
                let tables = &self.state.entries[family.index()];
                let Some(whole) = id.whole() else { continue };
                for difference in tables[id.index()].differences() {
                    let entry = difference.key;
                    let is_withdrawn = difference.desired.is_none() && difference.observed.is_some();
                    if is_withdrawn && tables[whole.index()].is_desired(entry) {
                        let needs = self.entries.get(&(family, whole, entry.clone())).cloned();
                        let need = self.builder.push(
                            Phase::RemoveLocalEntries,
                            Key::Entry(family, id, entry.clone()),
                            difference.subject,
                            delete_entry(family, id, entry),
                            Needs::all(needs),
                        );
                        self.lifted.insert((family, id, entry.clone()), need);
                    }
                }
            }
        }
    }

    fn real_servers(&mut self) {
        let mut added: HashMap<VirtualServerKey, Vec<Need>> = HashMap::new();
        let mut late: HashMap<EntryKey, Vec<Need>> = HashMap::new();
        for difference in &self.servers {
            let Some(desired) = difference.desired else {
                continue;
            };
            let key = *difference.key;
            let new = self.new_servers.get(&key);
            if matches!(new, Some(Need::Waiting(_))) {
                // They are planned with their virtual server.
                continue;
            }
            let lifted = self.lifted_of(&key);
            for server in desired.real_servers.iter() {
                let observed = difference
                    .observed
                    .and_then(|known| known.real_server(&server.key));
                let operation = match observed {
                    None => IpvsOperation::AddRealServer {
                        virtual_server: key,
                        real_server: server.clone(),
                    },
                    Some(observed) if !observed.agrees_with(server) => IpvsOperation::UpdateRealServer {
                        virtual_server: key,
                        real_server: server.clone(),
                    },
                    Some(_) => continue,
                };
                let needs = Needs::all(new.into_iter().chain(&lifted).cloned());
                let need = self.builder.push(
                    Phase::RealServers,
                    Key::RealServer(key, server.key),
                    difference.subject.clone(),
                    operation,
                    needs,
                );
                if observed.is_none() {
                    added.entry(key).or_default().push(need);
                } else {
                    for entry in self.late_of(difference) {
                        late.entry(entry).or_default().push(need.clone());
                    }
                }
            }
        }
        self.added = added;
        for (entry, needs) in late {
            self.late.entry(entry).or_default().extend(needs);
        }
    }

    /// The removals of local-policy entries after which real servers may be added to a virtual server.
    fn lifted_of(&self, key: &VirtualServerKey) -> Vec<Need> {
        let (Some(address), Some(port), Some(protocol)) = (key.address(), key.port(), key.protocol()) else {
            return Vec::new();
        };
        let number = match protocol {
            Protocol::Tcp => kernlink_ipset::Protocol::TCP,
            Protocol::Udp => kernlink_ipset::Protocol::UDP,
            Protocol::Sctp => kernlink_ipset::Protocol::SCTP,
            _ => return Vec::new(),
        };
        let by_port = match protocol {
            Protocol::Tcp => Some(SetId::NodePortLocalTcp),
            Protocol::Udp => Some(SetId::NodePortLocalUdp),
            _ => None,
        };
        let family = Family::of(address);
        let frontend = Entry::ip_port(address, ProtocolPort::new(number, port));
        let by_frontend = [
            SetId::ExternalIpLocal,
            SetId::LoadBalancerLocal,
            SetId::NodePortLocalSctp,
        ];
        let entries = by_frontend
            .map(|set| (family, set, frontend.clone()))
            .into_iter()
            .chain(by_port.map(|set| (family, set, Entry::port(port))));
        let is_left = |(family, set, entry): &EntryKey| {
            let tables = &self.state.entries[family.index()];
            let table = &tables[set.index()];
            let stays = |whole: SetId| tables[whole.index()].is_desired(entry);
            table.is_observed(entry) && !table.is_desired(entry) && set.whole().is_some_and(stays)
        };
        entries
            .filter_map(|key| match self.lifted.get(&key) {
                Some(need) => Some(need.clone()),
                // Its removal failed, and is not tried by this plan.
                None if is_left(&key) => Some(Need::Waiting(Key::Entry(key.0, key.1, key.2))),
                None => None,
            })
            .collect()
    }

    /// The late entries of a virtual server.
    fn late_of(&self, difference: &ServerDifference<'_>) -> Vec<EntryKey> {
        let family = difference.key.address().map(Family::of);
        let (Some(desired), Some(family)) = (difference.desired, family) else {
            return Vec::new();
        };
        let entries = self.state.entries_of(desired).iter();
        entries
            .map(|(set, entry)| (family, *set, entry.clone()))
            .filter(|entry| self.late.contains_key(entry))
            .collect()
    }

    fn bind_addresses(&mut self) {
        let Some(link) = self.state.config().link() else {
            return;
        };
        let differences = self.state.addresses.differences();
        let missing = |difference: &&Difference<'_, AddressKey, (), ()>| {
            difference.desired.is_some() && difference.observed.is_none()
        };
        if !differences.iter().any(|difference| missing(&difference)) {
            return;
        }
        // The virtual servers of each address that are marked: `None` for one that exists.
        let mut servers: HashMap<IpAddr, Vec<Option<Need>>> = HashMap::new();
        for difference in self
            .servers
            .iter()
            .filter(|difference| difference.desired.is_some())
        {
            if let Some(address) = difference.key.address() {
                let need = self.new_servers.get(difference.key).cloned();
                servers.entry(address).or_default().push(need);
            }
        }
        // Each service port that needs an address has one virtual server there: these addresses have others than the marked ones.
        let incomplete: HashSet<IpAddr> = differences
            .iter()
            .filter(|difference| missing(difference))
            .map(|difference| difference.key)
            .filter(|key| {
                let marked = servers.get(&key.address()).map_or(0, Vec::len);
                marked < self.state.addresses.references(key)
            })
            .map(AddressKey::address)
            .collect();
        if !incomplete.is_empty() {
            for (key, _) in self.state.servers.iter_desired() {
                let address = key.address().filter(|address| incomplete.contains(address));
                if let Some(address) = address.filter(|_| !self.state.servers.is_marked(key)) {
                    let is_there = self.state.servers.is_observed(key);
                    let need = (!is_there).then_some(Need::Waiting(Key::VirtualServer(*key)));
                    servers.entry(address).or_default().push(need);
                }
            }
        }
        for difference in differences.iter().filter(missing) {
            let address = difference.key.address();
            let family = Family::of(address);
            let Ok(host) = LinkAddress::host(address) else {
                continue;
            };
            let mut needs: Vec<Need> = self.link.iter().cloned().collect();
            // Without KUBE-IPVS-FILTER clients would reach whatever the node listens on.
            needs.extend(self.rules_needs(family));
            let entry = Entry::ip(address);
            match self.entries.get(&(family, SetId::IpvsIps, entry.clone())) {
                Some(need) => needs.push(need.clone()),
                None => {
                    let table = &self.state.entries[family.index()][SetId::IpvsIps.index()];
                    if !table.is_observed(&entry) {
                        needs.push(Need::Waiting(Key::Entry(family, SetId::IpvsIps, entry)));
                    }
                }
            }
            // An address without a virtual server attracts traffic that nothing serves.
            let of_address = servers.remove(&address).unwrap_or_default();
            let any: Vec<Need> = if of_address.iter().any(Option::is_none) {
                Vec::new()
            } else {
                of_address.into_iter().flatten().collect()
            };
            let need = self.builder.push(
                Phase::BindAddresses,
                Key::Address(*difference.key),
                difference.subject.clone(),
                LinkOperation::EnsureAddress(link, host),
                Needs::all(needs).and_any(any),
            );
            self.bound.push(need);
        }
    }

    fn remove_real_servers(&mut self) {
        let mut late: HashMap<EntryKey, Vec<Need>> = HashMap::new();
        for difference in &self.servers {
            let (Some(desired), Some(observed)) = (difference.desired, difference.observed) else {
                continue;
            };
            let key = *difference.key;
            let stays = |(known, _): &(_, _)| real_server(desired, known).is_some();
            // While no desired real server is in place, the others stay until one of the new ones is.
            let added = self
                .added
                .get(&key)
                .filter(|_| !observed.real_servers.iter().any(stays));
            let waits = !desired.real_servers.is_empty() && !observed.real_servers.iter().any(stays);
            let any: Vec<Need> = match added {
                // A few, so that a plan does not grow with the square of the real servers. If all of these are refused, the
                // others let the old real servers go when these are retried.
                Some(added) => added.iter().take(MOST_ALTERNATIVES).cloned().collect(),
                None if waits => continue,
                None => Vec::new(),
            };
            let late_entries = self.late_of(difference);
            for (server, _) in observed.real_servers.iter().filter(|known| !stays(known)) {
                let operation = IpvsOperation::DeleteRealServer {
                    virtual_server: key,
                    real_server: *server,
                };
                let need = self.builder.push(
                    Phase::RemoveRealServers,
                    Key::RealServer(key, *server),
                    difference.subject.clone(),
                    operation,
                    Needs::none().and_any(any.iter().cloned()),
                );
                for entry in &late_entries {
                    late.entry(entry.clone()).or_default().push(need.clone());
                }
            }
        }
        for (entry, needs) in late {
            self.late.entry(entry).or_default().extend(needs);
        }
    }

    fn add_late_entries(&mut self) {
        let mut late: Vec<(EntryKey, Vec<Need>)> = std::mem::take(&mut self.late).into_iter().collect();
        late.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for ((family, id, entry), needs) in late {
            let table = &self.state.entries[family.index()][id.index()];
            let subject = table.subject(&entry).cloned().unwrap_or(Subject::DataPath);
            self.add_entry(Phase::AddLocalEntries, family, id, &entry, subject, needs);
        }
    }

    fn remove_virtual_servers(&mut self) {
        let mut deleted = HashMap::new();
        for difference in &self.servers {
            let (None, Some(observed), Some(address)) =
                (difference.desired, difference.observed, difference.key.address())
            else {
                continue;
            };
            if !observed.is_owned || !self.state.managed.contains(&Family::of(address)) {
                continue;
            }
            let needs = Needs::all(self.unbound.get(&address).cloned());
            let need = self.builder.push(
                Phase::RemoveVirtualServers,
                Key::VirtualServer(*difference.key),
                difference.subject.clone(),
                IpvsOperation::DeleteVirtualServer(*difference.key),
                needs,
            );
            deleted.insert(*difference.key, need);
        }
        self.deleted = deleted;
    }

    fn remove_entries(&mut self) {
        // The deleted virtual servers that a node-port entry identifies: those at addresses that are not bound.
        let mut node_ports: HashMap<(Family, Protocol, u16), Vec<Need>> = HashMap::new();
        for (key, need) in &self.deleted {
            if let (Some(address), Some(protocol), Some(port)) = (key.address(), key.protocol(), key.port())
                && !self.unbound.contains_key(&address)
                && AddressKey::host(address).is_ok_and(|key| !self.state.addresses.is_observed(&key))
            {
                let key = (Family::of(address), protocol, port);
                node_ports.entry(key).or_default().push(need.clone());
            }
        }
        // The steps that lift the restriction of a frontend.
        let mut lifted: HashMap<(IpAddr, ProtocolPort), Need> = HashMap::new();
        for family in self.families() {
            for id in NARROWING_FIRST.into_iter().rev() {
                for difference in self.state.entries[family.index()][id.index()].differences() {
                    let entry = difference.key;
                    let is_withdrawn = difference.desired.is_none() && difference.observed.is_some();
                    if !is_withdrawn || self.lifted.contains_key(&(family, id, entry.clone())) {
                        continue;
                    }
                    let mut needs: Vec<Need> = Vec::new();
                    match (id, entry.element()) {
                        (SetId::IpvsIps, Element::Ip(address)) => {
                            needs.extend(self.unbound.get(address).cloned());
                        }
                        (
                            SetId::LoadBalancerSourceCidr | SetId::LoadBalancerSourceIp,
                            Element::IpPortNet { ip, port, .. } | Element::IpPortIp { ip, port, .. },
                        ) => {
                            let frontend = Entry::ip_port(*ip, *port);
                            let firewall =
                                &self.state.entries[family.index()][SetId::LoadBalancerFirewall.index()];
                            match lifted.get(&(*ip, *port)) {
                                Some(need) => needs.push(need.clone()),
                                // The restriction could not be lifted: its allow-list stays.
                                None if !firewall.is_desired(&frontend)
                                    && firewall.is_observed(&frontend) =>
                                {
                                    let key = Key::Entry(family, SetId::LoadBalancerFirewall, frontend);
                                    needs.push(Need::Waiting(key));
                                }
                                None => {}
                            }
                        }
                        _ => {}
                    }
                    match identified(id, entry) {
                        Some(Identified::VirtualServer(key)) => needs.extend(self.deleted.get(&key).cloned()),
                        Some(Identified::NodePort(protocol, port)) => {
                            let servers = node_ports.get(&(family, protocol, port));
                            needs.extend(servers.into_iter().flatten().cloned());
                        }
                        None => {}
                    }
                    let need = self.builder.push(
                        Phase::RemoveEntries,
                        Key::Entry(family, id, entry.clone()),
                        difference.subject,
                        delete_entry(family, id, entry),
                        Needs::all(needs),
                    );
                    if let (SetId::LoadBalancerFirewall, Element::IpPort { ip, port }) = (id, entry.element())
                    {
                        lifted.insert((*ip, *port), need.clone());
                    }
                    if self.state.entries[family.index()][id.index()].is_empty() {
                        self.removed.insert((family, id, entry.clone()), need);
                    }
                }
            }
        }
    }

    /// Removes the rules of sets that have become empty.
    fn remove_rules(&mut self) {
        for family in self.families() {
            let chains = &self.state.chains[family.index()];
            let Some(interim) = chains.interim.as_ref().filter(|_| chains.is_marked) else {
                continue;
            };
            let mut needs = self.rules_needs(family);
            for id in self.state.emptied(family) {
                for (entry, ()) in self.state.entries[family.index()][id.index()].iter_observed() {
                    let key = (family, id, entry.clone());
                    let need = self.removed.get(&key).or_else(|| self.lifted.get(&key)).cloned();
                    needs.push(need.unwrap_or(Need::Waiting(Key::Entry(family, id, entry.clone()))));
                }
            }
            self.builder.push(
                Phase::RemoveRules,
                Key::Rules(family),
                Subject::DataPath,
                (*interim.removal).clone(),
                Needs::all(needs),
            );
        }
    }

    fn remove_links(&mut self) {
        for difference in self.state.links.differences() {
            if difference.desired.is_none() && difference.observed.is_some() {
                let name: LinkName = *difference.key;
                self.builder.push(
                    Phase::RemoveLink,
                    Key::Link(name),
                    difference.subject,
                    LinkOperation::DeleteLink(name),
                    Needs::all(self.bound.iter().cloned()),
                );
            }
        }
    }

    fn families(&self) -> Vec<Family> {
        self.state.managed.iter().copied().collect()
    }
}

fn real_server<'a>(server: &'a DesiredServer, key: &kernlink_ipvs::RealServerKey) -> Option<&'a RealServer> {
    let found = server.real_servers.binary_search_by_key(key, |server| server.key);
    server.real_servers.get(found.ok()?)
}

fn delete_entry(family: Family, id: SetId, entry: &Entry) -> SetOperation {
    SetOperation::Delete {
        set: id.name(family),
        entry: entry.clone(),
        on_repeat: OnRepeat::Succeed,
    }
}

/// Whether a set that exists can be used as the desired one: everything but its hash size is the same.
fn serves(observed: &Set, desired: &Set) -> bool {
    let (is, want) = (&observed.options, &desired.options);
    observed.set_type == desired.set_type
        && observed.family == desired.family
        && (is.range, is.netmask, is.bitmask, is.markmask)
            == (want.range, want.netmask, want.bitmask, want.markmask)
        && (is.timeout, is.counters, is.comment, is.skbinfo, is.forceadd)
            == (
                want.timeout,
                want.counters,
                want.comment,
                want.skbinfo,
                want.forceadd,
            )
        && want.maxelem.is_none_or(|desired| is.maxelem == Some(desired))
}

/// The operations that bring the chains and jumps of a family in place, `None` where there is no way to; and what is in place then, if it
/// is not what is desired in the end.
type RulesPlan = (Family, Option<Vec<RulesOperation>>, Option<Interim>);

/// How to bring the chains and jumps of each marked family in place.
fn plan_rules(state: &State) -> Vec<RulesPlan> {
    let marked = state.managed.iter().copied();
    let marked = marked.filter(|family| state.chains[family.index()].is_marked);
    marked
        .map(|family| {
            let interim = interim(state, family);
            let desired = match &interim {
                Some(interim) => (*interim.rules).clone(),
                None => state.rules(family),
            };
            (family, rules_operations(state, family, &desired), interim)
        })
        .collect()
}

/// The rules of a family while sets become empty, if they differ from the desired ones.
fn interim(state: &State, family: Family) -> Option<Interim> {
    let rules = state.interim_rules(family)?;
    let removal = changed_chains(family, &rules, &state.rules(family))?;
    Some(Interim {
        rules: Box::new(rules),
        removal: Box::new(removal.into()),
    })
}

fn rules_operations(state: &State, family: Family, desired: &Ruleset) -> Option<Vec<RulesOperation>> {
    let wanted = rules::wanted(family, desired);
    match &state.chains[family.index()].observed {
        // Others jump to the chains too (a container runtime's host ports to `KUBE-MARK-MASQ`, say); their rules stay.
        ObservedRules::Saved(saved) => {
            let owned = Owned::new().with_shared_chains();
            Some(diff_operations(saved, &wanted, &owned))
        }
        ObservedRules::Written(written) if state.chains[family.index()].is_in_place => Some(
            changed_chains(family, written, desired)
                .into_iter()
                .map(Into::into)
                .collect(),
        ),
        // A host without the tables of a family can have no Services in it.
        ObservedRules::Unreadable(Error::Rules(error))
            if error.is_unsupported() && !has_servers(state, family) =>
        {
            None
        }
        // Where something failed since the chains were written, the jumps may be missing too.
        ObservedRules::Unreadable(_) | ObservedRules::Unknown | ObservedRules::Written(_) => {
            let jumps = wanted.jumps().map(|(table, jump)| {
                let family = rules::iptables_family(family);
                RulesOperation::ensure_jump(family, table, jump.clone())
            });
            let restore = RulesOperation::from(wanted.to_restore());
            Some(std::iter::once(restore).chain(jumps).collect())
        }
    }
}

fn has_servers(state: &State, family: Family) -> bool {
    let mut servers = state.servers.iter_desired();
    servers.any(|(key, _)| key.address().map(Family::of) == Some(family))
}

/// The restore that writes the chains that differ from what was written last.
fn changed_chains(family: Family, written: &Ruleset, desired: &Ruleset) -> Option<Restore> {
    let mut restore = Restore::new(rules::iptables_family(family));
    for (table, chains) in desired.tables() {
        let changed: Vec<_> = chains
            .chains()
            .filter(|(name, chain)| {
                let known = written.chain(table, name);
                known.is_none_or(|known| !known.rules().eq(chain.rules()))
            })
            .collect();
        if changed.is_empty() {
            continue;
        }
        let edits = restore.table_mut(table);
        edits.extend(changed.iter().map(|(name, _)| Edit::declare(**name)));
        for (name, chain) in changed {
            edits.extend(chain.rules().map(|rule| Edit::append(*name, rule.clone())));
        }
    }
    (!restore.is_empty()).then_some(restore)
}

/// The sets in the order in which their entries are added: allowed sources before the entry that restricts a frontend to them, local
/// policy before the frontend. So no source is accepted or dropped by mistake in between. Entries are removed in reverse order.
const NARROWING_FIRST: [SetId; 17] = [
    SetId::LoadBalancerSourceCidr,
    SetId::LoadBalancerSourceIp,
    SetId::LoadBalancerFirewall,
    SetId::LoadBalancerLocal,
    SetId::LoadBalancer,
    SetId::ExternalIpLocal,
    SetId::ExternalIp,
    SetId::NodePortLocalTcp,
    SetId::NodePortLocalUdp,
    SetId::NodePortLocalSctp,
    SetId::NodePortTcp,
    SetId::NodePortUdp,
    SetId::NodePortSctp,
    SetId::HealthCheckNodePort,
    SetId::LoopBack,
    SetId::ClusterIp,
    SetId::IpvsIps,
];
