//! Steps of sets and their entries.

use std::collections::HashMap;
use std::net::IpAddr;

use kernlink_dummylink::AddressKey;
use kernlink_engine::plan::{Needs, Subject};
use kernlink_ipset::{Element, Entry, IfExists, Operation, ProtocolPort};
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
            let need = self
                .builder
                .push(Phase::Sets, key, difference.subject, operation, Needs::none());
            self.sets.insert((family, id), need);
        }
    }

    /// What an entry of a set needs; `None` if the set exists.
    pub(super) fn set_need(&self, family: Family, id: SetId) -> Option<Need> {
        // When it becomes usable, the next plan adds its entries after the rules that look it up: a restricted frontend would be open before.
        if !self.state.is_usable(family, id) {
            return Some(Need::Waiting(Key::Set(family, id)));
        }
        if let Some(need) = self.sets.get(&(family, id)) {
            return Some(need.clone());
        }
        let sets = &self.state.sets;
        match (sets.observed(&(family, id)), sets.desired(&(family, id))) {
            (Some(observed), Some(desired)) if is_usable(observed, desired) => None,
            _ => Some(Need::Waiting(Key::Set(family, id))),
        }
    }

    /// Whether a set and its entries may be changed.
    pub(super) fn may_change_set(&self, family: Family, id: SetId) -> bool {
        self.state.is_decided(family) && self.state.is_set_known(family, id)
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
                    let is_planned =
                        |key: EntryKey| self.late.contains_key(&key) || self.entries.contains_key(&key);
                    if is_missing && !is_planned((family, id, entry.clone())) {
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
        needs.extend(self.set_need(family, id));
        if id == SetId::Ledger {
            needs.extend(self.ledger_need(family));
        }
        let operation = Operation::ensure(id.name(family), entry.clone());
        let key = Key::Entry(family, id, entry.clone());
        let need = self
            .builder
            .push(phase, key, subject, operation, Needs::all(needs));
        self.entries.insert((family, id, entry.clone()), need);
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
            for id in SetId::ALL.into_iter().filter(|id| id.is_local()) {
                let tables = &self.state.entries[family.index()];
                let Some(whole) = id.whole() else { continue };
                for difference in tables[id.index()].differences() {
                    let entry = difference.key;
                    let is_withdrawn = difference.desired.is_none() && difference.observed.is_some();
                    if is_withdrawn && self.stays(family, whole, entry) {
                        let added = self.entries.get(&(family, whole, entry.clone())).cloned();
                        let needs = added.or_else(|| self.successor_need(family, id, entry));
                        let need = self.builder.push(
                            Phase::RemoveLocalEntries,
                            Key::Entry(family, id, entry.clone()),
                            difference.subject,
                            delete_entry(family, id, entry),
                            Needs::all(needs),
                        );
                        self.removed_local.insert((family, id, entry.clone()), need);
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
        for (key, need) in &self.deleted {
            if let (Some(address), Some(protocol), Some(port)) = (key.address(), key.protocol(), key.port())
                && !self.unbound.contains_key(&address)
                && AddressKey::host(address).is_ok_and(|key| !self.state.addresses.is_observed(&key))
            {
                let key = (Family::of(address), protocol, port);
                node_ports.entry(key).or_default().push(need.clone());
            }
        }
        // The steps that remove the restriction of a frontend.
        let mut unrestricted: HashMap<(IpAddr, ProtocolPort), Need> = HashMap::new();
        for family in self.families() {
            for id in ADDITION_ORDER
                .into_iter()
                .rev()
                .filter(|id| self.state.is_set_known(family, *id))
            {
                for difference in self.state.entries[family.index()][id.index()].differences() {
                    let entry = difference.key;
                    let is_withdrawn = difference.desired.is_none() && difference.observed.is_some();
                    let of_entry = (family, id, entry.clone());
                    let is_removed = self.removed_local.contains_key(&of_entry)
                        || self.before_servers.contains_key(&of_entry);
                    if !is_withdrawn || is_removed {
                        continue;
                    }
                    let mut needs: Vec<Need> = self.successor_need(family, id, entry).into_iter().collect();
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
                            match unrestricted.get(&(*ip, *port)) {
                                Some(need) => needs.push(need.clone()),
                                // The restriction could not be removed: its allow-list is kept.
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
                        Some(Identified::VirtualServer(key)) => match self.deleted.get(&key) {
                            Some(need) => needs.push(need.clone()),
                            // Its deletion failed and is not due for a retry.
                            None if !self.state.servers.is_desired(&key)
                                && self
                                    .state
                                    .servers
                                    .observed(&key)
                                    .is_some_and(|known| known.is_owned) =>
                            {
                                needs.push(Need::Waiting(Key::VirtualServer(key)));
                            }
                            None => {}
                        },
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
                        unrestricted.insert((*ip, *port), need.clone());
                    }
                    if self.state.entries[family.index()][id.index()].is_empty() {
                        self.removed.insert((family, id, entry.clone()), need);
                    }
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
