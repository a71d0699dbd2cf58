//! Arbitration: which service port owns each frontend key. Conflicts between Services are decided here, once for all data paths.
//!
//! A frontend key is an address, a protocol and a port. If several service ports define one key, the port of the oldest Service owns
//! it; if they are of equal age, the one with the lower namespace, name, port name and protocol. When the owner is removed, the next
//! one in this order owns the key. The same applies to health-check node ports.

mod changes;
mod frontend;
mod owners;
mod slab;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use foldhash::quality::RandomState;
use kernlink_base::Family;

pub use self::changes::{Changes, UpdateReport};
pub use self::frontend::{ArbitratedFrontend, FrontendKey};
use self::owners::{Added, Candidates, Owners, Removed};
pub use self::slab::ServicePortId;
use self::slab::{Slab, precedence};
use crate::event::{Event, Reason};
use crate::model::{Affected, Frontend, HealthCheck, Model, ServicePort, ServicePortKey};
use crate::name_map::NameMap;
use crate::source::{ObjectName, TrafficPolicy};

/// The service ports, and the owner of each key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arbitration {
    ports: Slab,
    ports_of: NameMap<Vec<ServicePortId>>,
    frontends: Owners<FrontendKey>,
    /// The keys that several service ports define.
    conflicting: BTreeSet<FrontendKey>,
    health_checks: [Owners<u16>; 2],
    changes: Changes,
    /// The ports in `changes`.
    changed: HashSet<ServicePortId, RandomState>,
    /// Used during an update: the conflicts, before it, of the keys whose conflicts may change.
    conflicts_before: HashMap<FrontendKey, Vec<Event>, RandomState>,
}

impl Arbitration {
    /// Resolves the affected Services again.
    pub(crate) fn update(&mut self, model: &Model, affected: Affected) -> UpdateReport {
        let mut updated = UpdateReport::default();
        self.changes.node |= affected.node;
        // Service ports that no longer exist are removed first, so that no conflict with them is reported.
        if self.ports_of.is_empty() {
            self.ports_of.reserve(affected.services.len());
            self.ports.reserve(affected.services.len());
            self.frontends.reserve(affected.services.len());
            self.changes.ports.reserve(affected.services.len());
            self.changes.frontends.reserve(affected.services.len());
            self.changed.reserve(affected.services.len());
        } else {
            for service in &affected.services {
                if self.ports_of.contains_key(service) && !model.has_ports(service) {
                    self.replace_service(service, Vec::new(), &mut updated);
                }
            }
        }
        for service in &affected.services {
            let mut ports = model.service_ports(service);
            updated.resolved += ports.len();
            ports.iter_mut().for_each(remove_conflicting_policies);
            self.replace_service(service, ports, &mut updated);
        }
        self.changes.services.extend(affected.services);
        // Conflicts are reported as they are after the update, so the order of the Services has no influence.
        for (key, before) in std::mem::take(&mut self.conflicts_before) {
            let now = self.conflicts(key);
            let new = now.into_iter().filter(|event| !before.contains(event));
            updated.events.extend(new);
        }
        updated.events.sort();
        updated.events.dedup();
        updated
    }

    pub(crate) fn take_changes(&mut self) -> Changes {
        // `clear` costs the capacity, which is that of the largest change so far.
        self.changed = HashSet::default();
        std::mem::take(&mut self.changes)
    }

    pub(crate) fn port(&self, id: ServicePortId) -> Option<&ServicePort> {
        self.ports.get(id)
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = (ServicePortId, &ServicePort)> {
        self.ports.iter()
    }

    pub(crate) fn ports_of(
        &self,
        service: &ObjectName,
    ) -> impl Iterator<Item = (ServicePortId, &ServicePort)> {
        let ids = self.ports_of.get(service).into_iter().flatten();
        ids.filter_map(|&id| Some((id, self.ports.get(id)?)))
    }

    pub(crate) fn port_by_key(&self, key: &ServicePortKey) -> Option<&ServicePort> {
        let mut ports = self.ports_of(&key.name.service).map(|(_, port)| port);
        ports.find(|port| port.key == *key)
    }

    pub(crate) fn frontend(&self, key: &FrontendKey) -> Option<ArbitratedFrontend<'_>> {
        self.arbitrated(*key, self.frontends.get(key)?)
    }

    pub(crate) fn frontends(&self) -> impl Iterator<Item = ArbitratedFrontend<'_>> {
        let frontends = self.frontends.iter();
        frontends.filter_map(|(key, candidates)| self.arbitrated(*key, candidates))
    }

    fn arbitrated(&self, key: FrontendKey, candidates: &Candidates) -> Option<ArbitratedFrontend<'_>> {
        let id = candidates.owner();
        let owner = self.ports.get(id)?;
        Some(ArbitratedFrontend { key, id, owner })
    }

    pub(crate) fn owned_frontends(&self, id: ServicePortId) -> impl Iterator<Item = &Frontend> {
        let frontends = self.ports.get(id).map_or(&[][..], |port| &port.frontends);
        frontends
            .iter()
            .filter(move |frontend| self.owns(id, &FrontendKey::of(frontend)))
    }

    /// Whether a service port owns a key that it defines.
    fn owns(&self, id: ServicePortId, key: &FrontendKey) -> bool {
        // Few keys are in conflict. The set of these is small, so that it is cheaper to search than the map of all keys.
        let is_owner = |candidates: &Candidates| candidates.owner() == id;
        !self.conflicting.contains(key) || self.frontends.get(key).is_some_and(is_owner)
    }

    pub(crate) fn health_checks(&self, family: Family) -> Vec<&HealthCheck> {
        let mut checks: Vec<&HealthCheck> = self.health_checks[family.index()]
            .iter()
            .filter_map(|(_, candidates)| self.ports.get(candidates.owner())?.health_check.as_ref())
            .collect();
        checks.sort_by_key(|check| check.port);
        checks
    }

    pub(crate) fn health_check(&self, family: Family, port: u16) -> Option<&HealthCheck> {
        let candidates = self.health_checks[family.index()].get(&port)?;
        self.ports.get(candidates.owner())?.health_check.as_ref()
    }

    /// All events about service ports, sorted.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self
            .ports
            .iter()
            .flat_map(|(_, port)| &port.events)
            .cloned()
            .collect();
        events.extend(self.conflicting.iter().flat_map(|key| self.conflicts(*key)));
        for checks in &self.health_checks {
            for (&port, candidates) in checks.iter() {
                let (owner, others) = (candidates.owner(), candidates.others().iter());
                events.extend(others.filter_map(|&other| self.health_check_conflict(port, owner, other)));
            }
        }
        events.sort();
        events.dedup();
        events
    }

    /// Replaces all ports of a Service.
    fn replace_service(&mut self, service: &ObjectName, ports: Vec<ServicePort>, updated: &mut UpdateReport) {
        let mut before = self.ports_of.get(service).cloned().unwrap_or_default();
        let mut now = Vec::with_capacity(ports.len());
        if before.is_empty() {
            for port in ports {
                now.extend(self.add(port, updated));
            }
            if !now.is_empty() {
                self.ports_of.insert(service.clone(), now);
            }
            return;
        }
        let mut known: BTreeMap<ServicePortKey, ServicePortId> = BTreeMap::new();
        for id in before.drain(..) {
            if let Some(port) = self.ports.get(id) {
                known.insert(port.key.clone(), id);
            }
        }
        let mut added = Vec::new();
        for port in ports {
            match known.remove(&port.key) {
                Some(id) => {
                    now.push(id);
                    self.replace(id, port, updated);
                }
                None => added.push(port),
            }
        }
        for id in known.into_values() {
            self.remove(id, updated);
        }
        for port in added {
            now.extend(self.add(port, updated));
        }
        if now.is_empty() {
            self.ports_of.remove(service);
        } else {
            self.ports_of.insert(service.clone(), now);
        }
    }

    fn add(&mut self, port: ServicePort, updated: &mut UpdateReport) -> Option<ServicePortId> {
        updated.events.extend(port.events.iter().cloned());
        let id = self.ports.add(port)?;
        self.update_keys(id, None, updated);
        Some(id)
    }

    fn remove(&mut self, id: ServicePortId, updated: &mut UpdateReport) {
        let before = self.ports.replace(id, None);
        self.update_keys(id, before, updated);
        self.ports.release(id);
    }

    fn replace(&mut self, id: ServicePortId, port: ServicePort, updated: &mut UpdateReport) {
        let Some(known) = self.ports.get(id) else { return };
        if *known == port {
            return;
        }
        let new = port.events.iter().filter(|event| !known.events.contains(event));
        updated.events.extend(new.cloned());
        if precedence(known, &port).is_eq() {
            let before = self.ports.replace(id, Some(port));
            self.update_keys(id, before, updated);
        } else {
            // The order of the service ports that define its keys changes.
            let before = self.ports.replace(id, None);
            self.update_keys(id, before, updated);
            self.ports.replace(id, Some(port));
            self.update_keys(id, None, updated);
        }
    }

    /// Removes a service port from the keys that only `before` defines, and adds it to those that only the one in the slab defines.
    fn update_keys(&mut self, id: ServicePortId, before: Option<ServicePort>, updated: &mut UpdateReport) {
        self.record_port(id);
        let old = keys(before.as_ref());
        let new = keys(self.ports.get(id));
        for key in old.iter().filter(|key| new.binary_search(key).is_err()) {
            updated.map_entries += 1;
            if self.conflicting.contains(key) {
                self.record_conflicts(*key);
            }
            match self.frontends.remove(*key, id) {
                Removed::OwnerUnchanged => {}
                Removed::Last => _ = self.changes.frontends.insert(*key),
                Removed::NewOwner(owner) => {
                    self.changes.frontends.insert(*key);
                    self.record_port(owner);
                }
            }
            let candidates = self.frontends.get(key);
            if candidates.is_none_or(|candidates| candidates.others().is_empty()) {
                self.conflicting.remove(key);
            }
        }
        for key in new.iter().filter(|key| old.binary_search(key).is_err()) {
            updated.map_entries += 1;
            match self.frontends.add(*key, id, &self.ports) {
                Added::Owner => {}
                Added::NewOwner(former) => {
                    self.record_conflicts(*key);
                    self.conflicting.insert(*key);
                    self.record_port(former);
                }
                Added::Conflict(_) => {
                    self.record_conflicts(*key);
                    self.conflicting.insert(*key);
                    continue;
                }
            }
            self.changes.frontends.insert(*key);
        }
        if let (Some(before), Some(now)) = (&before, self.ports.get(id)) {
            let is_same = before.endpoints == now.endpoints && before.options == now.options;
            for (key, old, new) in common(before, now) {
                if self.owns(id, &key) && !(is_same && old == new) {
                    updated.map_entries += 1;
                    self.changes.frontends.insert(key);
                }
            }
        }
        self.update_health_check(id, before.as_ref(), updated);
    }

    fn update_health_check(
        &mut self,
        id: ServicePortId,
        before: Option<&ServicePort>,
        updated: &mut UpdateReport,
    ) {
        let now = self.ports.get(id);
        let check = |port: Option<&ServicePort>| port.and_then(|port| port.health_check.clone());
        let (old, new) = (check(before), check(now));
        let Some(family) = before.or(now).map(|port| port.key.family).filter(|_| old != new) else {
            return;
        };
        let number = |check: &Option<HealthCheck>| check.as_ref().map(|check| check.port.get());
        let (old, new) = (number(&old), number(&new));
        if old != new {
            if let Some(port) = old {
                updated.map_entries += 1;
                self.health_checks[family.index()].remove(port, id);
            }
            if let Some(port) = new {
                updated.map_entries += 1;
                let checks = &mut self.health_checks[family.index()];
                let conflict = match checks.add(port, id, &self.ports) {
                    Added::Owner => None,
                    Added::NewOwner(former) => Some((id, former)),
                    Added::Conflict(owner) => Some((owner, id)),
                };
                let event =
                    conflict.and_then(|(owner, other)| self.health_check_conflict(port, owner, other));
                updated.events.extend(event);
            }
        }
        let ports = old.into_iter().chain(new).map(|port| (family, port));
        self.changes.health_checks.extend(ports);
    }

    fn record_port(&mut self, id: ServicePortId) {
        if self.changed.insert(id) {
            self.changes.ports.push(id);
        }
    }

    /// Records the conflicts of a key before the update. A key that only one service port defined had none.
    fn record_conflicts(&mut self, key: FrontendKey) {
        if !self.conflicts_before.contains_key(&key) {
            let before = if self.conflicting.contains(&key) {
                self.conflicts(key)
            } else {
                Vec::new()
            };
            self.conflicts_before.insert(key, before);
        }
    }

    /// Events about the service ports that define a key without owning it.
    fn conflicts(&self, key: FrontendKey) -> Vec<Event> {
        let Some(candidates) = self.frontends.get(&key) else {
            return Vec::new();
        };
        let others = candidates.others().iter();
        others
            .filter_map(|&other| self.conflict(key, candidates.owner(), other))
            .collect()
    }

    fn conflict(&self, key: FrontendKey, owner: ServicePortId, other: ServicePortId) -> Option<Event> {
        let owner = &self.ports.get(owner)?.key;
        let other = self.ports.get(other)?;
        let frontend = other
            .frontends
            .iter()
            .find(|frontend| FrontendKey::of(frontend) == key)?;
        let reason = Reason::Conflict {
            kind: frontend.kind,
            address: key.address,
            port: key.port,
            protocol: key.protocol,
            owner: owner.name.clone(),
        };
        Some(Event::service(other.key.name.service.clone(), reason))
    }

    fn health_check_conflict(&self, port: u16, owner: ServicePortId, other: ServicePortId) -> Option<Event> {
        let owner = &self.ports.get(owner)?.key.name.service;
        let other = &self.ports.get(other)?.key.name.service;
        let reason = Reason::HealthCheckConflict {
            port,
            owner: owner.clone(),
        };
        (other != owner).then(|| Event::service(other.clone(), reason))
    }
}

/// The keys of a service port, sorted, each once.
fn keys(port: Option<&ServicePort>) -> Vec<FrontendKey> {
    let frontends = port.into_iter().flat_map(|port| &port.frontends);
    let mut keys: Vec<FrontendKey> = frontends.map(FrontendKey::of).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The keys that both service ports have, with the frontends of each.
fn common<'a>(
    before: &'a ServicePort,
    now: &'a ServicePort,
) -> Vec<(FrontendKey, Vec<&'a Frontend>, Vec<&'a Frontend>)> {
    let by_key = |port: &'a ServicePort| {
        let mut map: HashMap<FrontendKey, Vec<&'a Frontend>, RandomState> = HashMap::default();
        for frontend in &port.frontends {
            map.entry(FrontendKey::of(frontend)).or_default().push(frontend);
        }
        map
    };
    let mut before = by_key(before);
    by_key(now)
        .into_iter()
        .filter_map(|(key, new)| Some((key, before.remove(&key)?, new)))
        .collect()
}

/// Removes a frontend, with an event, if an earlier frontend of the service port has the same key and another traffic policy.
fn remove_conflicting_policies(port: &mut ServicePort) {
    if port.frontends.len() < 2 {
        return;
    }
    let mut policies: HashMap<FrontendKey, TrafficPolicy, RandomState> = HashMap::default();
    let (name, events) = (&port.key.name, &mut port.events);
    port.frontends.retain(|frontend| {
        let policy = *policies
            .entry(FrontendKey::of(frontend))
            .or_insert(frontend.policy);
        if policy != frontend.policy {
            let reason = Reason::Conflict {
                kind: frontend.kind,
                address: frontend.address,
                port: frontend.port,
                protocol: frontend.protocol,
                owner: name.clone(),
            };
            events.push(Event::service(name.service.clone(), reason));
        }
        policy == frontend.policy
    });
}
