//! Steps of sets and their entries.

use std::collections::HashMap;

use kernlink_dummylink::AddressKey;
use kernlink_engine::plan::{Needs, Subject};
use kernlink_ipset::{Element, Entry, IfExists, Operation};
use kernlink_ipvs::{Protocol, VirtualServerKey};
use kernlink_services::Family;

use super::{EntryKey, Need, Planner};
use crate::key::Key;
use crate::order::Phase;
use crate::ownership::{Identified, identified};
use crate::replacement::definition_for;
use crate::sets::{SetId, is_replaceable, is_usable};

impl Planner<'_, '_, '_> {
    pub(super) fn sets(&mut self) {
        for difference in self.state.sets.differences() {
            let (family, id) = *difference.key;
            let Some(desired) = difference.desired.filter(|_| self.may_change_set(family, id)) else {
                continue;
            };
            let key = Key::Set(family, id);
            let operation: crate::Operation = match difference.observed {
                Some(observed) if is_usable(observed, desired) => continue,
                Some(observed) if is_replaceable(observed, desired) => {
                    if self.builder.is_waiting(&key) {
                        continue;
                    }
                    self.replacement(family, id, desired).into()
                }
                // One of another type or family is created too: the report then contains the error of the kernel.
                _ => {
                    let entries = self.most_entries(family, id);
                    Operation::ensure_set(definition_for(desired, entries)).into()
                }
            };
            self.builder
                .push(Phase::Sets, key, difference.subject, operation, Needs::none());
        }
    }

    /// What an entry of a set needs: nothing if the set exists.
    pub(super) fn set_needs(&self, family: Family, id: SetId) -> Vec<Need> {
        let key = Key::Set(family, id);
        // When it becomes usable, the next plan adds its entries after the rules that look it up: a restricted frontend would be open before.
        if !self.state.is_usable(family, id) {
            return vec![Need::Waiting(key)];
        }
        // One that is replaced because it is too small can be used before.
        if self.is_set_in_place(family, id) {
            return Vec::new();
        }
        self.builder.after(&key, false)
    }

    /// Whether a set exists with usable parameters.
    pub(super) fn is_set_in_place(&self, family: Family, id: SetId) -> bool {
        let sets = &self.state.sets;
        match (sets.observed(&(family, id)), sets.desired(&(family, id))) {
            (Some(observed), Some(desired)) => is_usable(observed, desired),
            _ => false,
        }
    }

    /// What a step needs that requires an entry.
    pub(super) fn entry_needs(&self, family: Family, id: SetId, entry: Entry) -> Vec<Need> {
        let is_observed = self.state.entries[family.index()][id.index()].is_observed(&entry);
        self.builder.after(&Key::Entry(family, id, entry), is_observed)
    }

    /// The steps on an entry so far: its addition, or its removal.
    pub(super) fn steps_of_entry(&self, family: Family, id: SetId, entry: &Entry) -> Vec<Need> {
        self.builder.steps_of(&Key::Entry(family, id, entry.clone()))
    }

    /// Whether a set and its entries may be changed.
    pub(super) fn may_change_set(&self, family: Family, id: SetId) -> bool {
        self.state.is_ownership_known(family) && self.state.is_set_known(family, id)
    }

    /// Finds the local-policy entries of virtual servers whose real servers are removed. They are added after these steps.
    pub(super) fn find_late_entries(&mut self) {
        let state = self.state;
        for difference in &self.servers {
            let (Some(desired), Some(observed)) = (difference.desired, difference.observed) else {
                continue;
            };
            if observed.real_servers_agree(&desired.real_servers) {
                continue;
            }
            // A real server that drains already has no new connections.
            let mut known = observed.real_servers.iter();
            let loses_any =
                known.any(|(key, known)| desired.real_server(key).is_none() && !known.is_draining());
            let Some(family) = difference.key.address().map(Family::of).filter(|_| loses_any) else {
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

    pub(super) fn add_entries(&mut self) {
        for family in self.families() {
            for id in ADDITION_ORDER
                .into_iter()
                .filter(|id| self.state.is_set_known(family, *id))
            {
                for difference in self.state.entries[family.index()][id.index()].differences() {
                    let entry = difference.key;
                    let is_missing = difference.desired.is_some() && difference.observed.is_none();
                    let is_planned = || {
                        self.late.contains_key(&(family, id, entry.clone()))
                            || !self.steps_of_entry(family, id, entry).is_empty()
                    };
                    if is_missing && !is_planned() {
                        if self.server_before_entry(id, entry).is_some() {
                            let later = (family, id, entry.clone(), difference.subject);
                            self.after_servers.push(later);
                            continue;
                        }
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

    pub(super) fn add_entry(
        &mut self,
        phase: Phase,
        family: Family,
        id: SetId,
        entry: &Entry,
        subject: Subject,
        mut needs: Vec<Need>,
    ) {
        needs.extend(self.set_needs(family, id));
        if id == SetId::Ledger {
            needs.extend(self.ledger_need(family));
        }
        let operation = Operation::ensure(id.name(family), entry.clone());
        let key = Key::Entry(family, id, entry.clone());
        self.builder
            .push(phase, key, subject, operation, Needs::all(needs));
    }

    /// Whether the frontend of an entry of a local-policy set is desired with another policy, or its virtual server for a frontend of another
    /// kind, such as a node port at an address that was an external IP. `whole` is the set of all policies.
    pub(super) fn stays(&self, family: Family, whole: SetId, entry: &Entry) -> bool {
        let is_server = || match entry.element() {
            Element::IpPort { ip, port } => {
                let protocol = Protocol::from_number(u16::from(port.protocol.0));
                let key = VirtualServerKey::new(*ip, port.port, protocol);
                self.state.servers.is_desired(&key)
            }
            _ => false,
        };
        self.state.entries[family.index()][whole.index()].is_desired(entry) || is_server()
    }

    /// Removes entries of local-policy sets whose frontends are desired with another policy.
    pub(super) fn remove_local_entries(&mut self) {
        for family in self.families() {
            for id in SetId::ALL.iter().copied().filter(|id| id.is_local()) {
                let tables = &self.state.entries[family.index()];
                let Some(whole) = id.whole() else { continue };
                for difference in tables[id.index()].differences() {
                    let entry = difference.key;
                    let is_withdrawn = difference.desired.is_none() && difference.observed.is_some();
                    if is_withdrawn && self.stays(family, whole, entry) {
                        let mut needs = self.steps_of_entry(family, whole, entry);
                        if needs.is_empty() {
                            needs = self.successor_needs(family, id, entry);
                        }
                        self.builder.push(
                            Phase::RemoveLocalEntries,
                            Key::Entry(family, id, entry.clone()),
                            difference.subject,
                            delete_entry(family, id, entry),
                            Needs::all(needs),
                        );
                    }
                }
            }
        }
    }

    pub(super) fn add_late_entries(&mut self) {
        let mut late: Vec<(EntryKey, Vec<Need>)> = std::mem::take(&mut self.late).into_iter().collect();
        late.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for ((family, id, entry), needs) in late {
            let table = &self.state.entries[family.index()][id.index()];
            let subject = table.subject(&entry).cloned().unwrap_or(Subject::DataPath);
            self.add_entry(Phase::AddLocalEntries, family, id, &entry, subject, needs);
        }
    }

    pub(super) fn remove_entries(&mut self) {
        // The deleted virtual servers that a node-port entry identifies: those at addresses that are not bound.
        let mut node_ports: HashMap<(Family, Protocol, u16), Vec<Need>> = HashMap::new();
        for difference in &self.servers {
            let key = difference.key;
            if let (Some(address), Some(protocol), Some(port)) = (key.address(), key.protocol(), key.port())
                && difference.desired.is_none()
                && AddressKey::host(address).is_ok_and(|key| !self.state.addresses.is_observed(&key))
            {
                let deleted = self.builder.steps_of(&Key::VirtualServer(*key));
                let key = (Family::of(address), protocol, port);
                node_ports.entry(key).or_default().extend(deleted);
            }
        }
        for family in self.families() {
            for id in ADDITION_ORDER
                .into_iter()
                .rev()
                .filter(|id| self.state.is_set_known(family, *id))
            {
                for difference in self.state.entries[family.index()][id.index()].differences() {
                    let entry = difference.key;
                    let is_withdrawn = difference.desired.is_none() && difference.observed.is_some();
                    if !is_withdrawn || !self.steps_of_entry(family, id, entry).is_empty() {
                        continue;
                    }
                    let mut needs = self.successor_needs(family, id, entry);
                    match (id, entry.element()) {
                        (SetId::IpvsIps, Element::Ip(address)) => {
                            needs.extend(self.unbound(*address));
                        }
                        (
                            SetId::LoadBalancerSourceCidr | SetId::LoadBalancerSourceIp,
                            Element::IpPortNet { ip, port, .. } | Element::IpPortIp { ip, port, .. },
                        ) => {
                            let frontend = Entry::ip_port(*ip, *port);
                            let firewall =
                                &self.state.entries[family.index()][SetId::LoadBalancerFirewall.index()];
                            // If the restriction cannot be removed, its allow-list is kept.
                            if !firewall.is_desired(&frontend) && firewall.is_observed(&frontend) {
                                let key = Key::Entry(family, SetId::LoadBalancerFirewall, frontend);
                                needs.extend(self.builder.after(&key, false));
                            }
                        }
                        _ => {}
                    }
                    match identified(id, entry) {
                        Some(Identified::VirtualServer(key)) => {
                            let servers = &self.state.servers;
                            let is_owned = servers.observed(&key).is_some_and(|known| known.is_owned);
                            if is_owned && !servers.is_desired(&key) {
                                needs.extend(self.builder.after(&Key::VirtualServer(key), false));
                            }
                        }
                        Some(Identified::NodePort(protocol, port)) => {
                            let servers = node_ports.get(&(family, protocol, port));
                            needs.extend(servers.into_iter().flatten().cloned());
                        }
                        None => {}
                    }
                    self.builder.push(
                        Phase::RemoveEntries,
                        Key::Entry(family, id, entry.clone()),
                        difference.subject,
                        delete_entry(family, id, entry),
                        Needs::all(needs),
                    );
                }
            }
        }
    }
}

pub(super) fn delete_entry(family: Family, id: SetId, entry: &Entry) -> Operation {
    Operation::Delete {
        set: id.name(family),
        entry: entry.clone(),
        if_exists: IfExists::Succeed,
    }
}

/// The sets in the order in which entries are added to them: the ledger before everything that a virtual server needs; allowed sources before
/// the entry that restricts a frontend to them, local policy before the frontend. So the rules never accept a source that is not allowed, and
/// drop one that is allowed only if its entry could not be added. Entries are removed in reverse order.
const ADDITION_ORDER: [SetId; 18] = [
    SetId::Ledger,
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
