//! Arbitration: which service port owns each frontend key. Conflicts between Services are decided here, once for all data paths.
//!
//! A frontend key is an address, a protocol and a port. If several service ports define one key, the kind of the frontend decides which of
//! them owns it: a cluster IP takes precedence over a node port, this over a load-balancer IP, and this over an external IP. So an external
//! IP, which a user of any namespace writes, never takes the traffic of a cluster IP. Of one kind, the port of the oldest Service
//! owns it; if they are of equal age, the one with the lower namespace, name, port name and protocol. When the owner is removed, the next
//! one in this order owns the key. A service port that has a key as several kinds counts as the first of them in this order.
//!
//! A node port has a key for each address of this node that accepts node ports, and is arbitrated at each of them separately.
//!
//! The same applies to health-check node ports, where only age and name decide.
//!
//! Any user can give many Services one external IP. So neither the events about one key nor the cost of a change grow with the number of
//! Services that define it, except for the logarithm.

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
use self::owners::{Added, Candidates, Owners, Rank, Removed};
pub use self::slab::ServicePortId;
use self::slab::Slab;
use crate::event::{Event, Precedence, Reason};
use crate::model::{Affected, Frontend, FrontendKind, HealthCheck, Model, ServicePort, ServicePortKey};
use crate::name_map::NameMap;
use crate::source::{ObjectName, TrafficPolicy};

/// Of the service ports that define a key without owning it, so many are reported by an event each: those that are next in the order. How many
/// there are besides is reported by one event about the owner.
const REPORTED_CONFLICTS: usize = 8;

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
    conflicts_before: HashMap<SharedKey, Vec<Event>, RandomState>,
}

/// A key that several service ports may define.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SharedKey {
    Frontend(FrontendKey),
    HealthCheck(Family, u16),
}

/// The health-check node port of a Service in one family. Every port of the Service has the same one, so one of them is enough to
/// arbitrate it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServiceCheck {
    id: ServicePortId,
    rank: Rank,
    check: HealthCheck,
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

    /// The service ports that define a key and do not own it, in order of precedence.
    pub(crate) fn contenders(
        &self,
        key: &FrontendKey,
    ) -> impl Iterator<Item = (&ServicePort, FrontendKind, Precedence)> {
        let candidates = self.frontends.get(key);
        let owner = candidates.and_then(|candidates| {
            let owner = self.ports.get(candidates.owner())?;
            Some(Rank::new(candidates.kind(), owner))
        });
        let others = candidates.into_iter().flat_map(Candidates::others);
        others.filter_map(move |(rank, id)| {
            let precedence = owner.as_ref()?.precedence_over(rank);
            Some((self.ports.get(*id)?, rank.kind?, precedence))
        })
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
        let frontends = self.conflicting.iter().copied().map(SharedKey::Frontend);
        let checks = Family::ALL.into_iter().flat_map(|family| {
            let checks = self.health_checks[family.index()].iter();
            checks.map(move |(port, _)| SharedKey::HealthCheck(family, *port))
        });
        events.extend(frontends.chain(checks).flat_map(|key| self.conflicts(key)));
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
            self.update_health_checks([None, None], &now, updated);
            if !now.is_empty() {
                self.ports_of.insert(service.clone(), now);
            }
            return;
        }
        let checks = self.health_checks_of(&before);
        for (family, check) in Family::ALL.into_iter().zip(&checks) {
            if let Some(check) = check {
                self.record_conflicts(SharedKey::HealthCheck(family, check.check.port.get()));
            }
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
        self.update_health_checks(checks, &now, updated);
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
        self.record_conflicts_of(id);
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
        self.record_conflicts_of(id);
        let before = self.ports.replace(id, Some(port));
        self.update_keys(id, before, updated);
    }

    /// Removes a service port from the keys that only `before` defines, adds it to those that only the one in the slab defines, and moves
    /// it in the order of those that both define, if its kind or age changed.
    fn update_keys(&mut self, id: ServicePortId, before: Option<ServicePort>, updated: &mut UpdateReport) {
        self.record_port(id);
        let old = keys(before.as_ref());
        let new = keys(self.ports.get(id));
        if let Some(before) = &before {
            for &(key, kind) in old.iter().filter(|(key, _)| kind_of(&new, key).is_none()) {
                updated.map_entries += 1;
                self.remove_key(id, key, &Rank::new(Some(kind), before));
            }
        }
        for &(key, kind) in new.iter().filter(|(key, _)| kind_of(&old, key).is_none()) {
            updated.map_entries += 1;
            self.add_key(id, key, kind);
        }
        if let Some(before) = &before {
            let now = self.ports.get(id);
            let is_age_same = now.is_none_or(|now| now.created == before.created);
            for &(key, kind) in &new {
                let Some(known) = kind_of(&old, &key).filter(|known| !is_age_same || *known != kind) else {
                    continue;
                };
                updated.map_entries += 1;
                self.move_key(id, key, &Rank::new(Some(known), before), kind);
            }
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
    }

    /// The number of keys that several service ports define.
    pub(crate) fn conflicting(&self) -> usize {
        self.conflicting.len()
    }

    fn add_key(&mut self, id: ServicePortId, key: FrontendKey, kind: FrontendKind) {
        if self.conflicting.contains(&key) {
            self.record_conflicts(SharedKey::Frontend(key));
        }
        let added = self.frontends.add(key, id, Some(kind), &self.ports);
        if added != Added::Owner && self.conflicting.insert(key) {
            // Before the update, or since a removal during it, only one service port defined the key.
            self.conflicts_before.entry(SharedKey::Frontend(key)).or_default();
        }
        if let Added::NewOwner(previous) = added {
            self.record_port(previous);
        }
        if added != Added::Conflict {
            self.changes.frontends.insert(key);
        }
    }

    /// Removes a service port with the rank that it had.
    fn remove_key(&mut self, id: ServicePortId, key: FrontendKey, rank: &Rank) {
        match self.frontends.remove(key, id, rank) {
            Removed::OwnerUnchanged => {}
            Removed::Last => _ = self.changes.frontends.insert(key),
            Removed::NewOwner(owner) => {
                self.changes.frontends.insert(key);
                self.record_port(owner);
            }
        }
        let candidates = self.frontends.get(&key);
        if candidates.is_none_or(|candidates| candidates.others().is_empty()) {
            self.conflicting.remove(&key);
        }
    }

    /// Moves a service port that had a rank and has another one.
    fn move_key(&mut self, id: ServicePortId, key: FrontendKey, rank: &Rank, kind: FrontendKind) {
        if !self.conflicting.contains(&key) {
            self.frontends.set_kind(&key, Some(kind));
            return;
        }
        let owner = |frontends: &Owners<FrontendKey>| frontends.get(&key).map(Candidates::owner);
        let before = owner(&self.frontends);
        self.frontends.remove(key, id, rank);
        self.frontends.add(key, id, Some(kind), &self.ports);
        let now = owner(&self.frontends);
        if before != now {
            self.changes.frontends.insert(key);
            before
                .into_iter()
                .chain(now)
                .for_each(|port| self.record_port(port));
        }
    }

    /// The health-check node ports of a Service with these ports, by family.
    fn health_checks_of(&self, ids: &[ServicePortId]) -> [Option<ServiceCheck>; 2] {
        let mut checks = [None, None];
        for &id in ids {
            let Some(port) = self.ports.get(id) else { continue };
            if let (Some(check), place @ None) = (&port.health_check, &mut checks[port.key.family.index()]) {
                *place = Some(ServiceCheck {
                    id,
                    rank: Rank::new(None, port),
                    check: check.clone(),
                });
            }
        }
        checks
    }

    /// Replaces the health-check node ports of a Service, which has these ports now.
    fn update_health_checks(
        &mut self,
        before: [Option<ServiceCheck>; 2],
        ids: &[ServicePortId],
        updated: &mut UpdateReport,
    ) {
        let now = self.health_checks_of(ids);
        for (family, (before, now)) in Family::ALL.into_iter().zip(before.into_iter().zip(now)) {
            if before == now {
                continue;
            }
            let checks = &mut self.health_checks[family.index()];
            if let Some(before) = &before {
                let port = before.check.port.get();
                updated.map_entries += 1;
                self.changes.health_checks.insert((family, port));
                checks.remove(port, before.id, &before.rank);
            }
            if let Some(now) = &now {
                let port = now.check.port.get();
                updated.map_entries += 1;
                self.changes.health_checks.insert((family, port));
                self.record_conflicts(SharedKey::HealthCheck(family, port));
                self.health_checks[family.index()].add(port, now.id, None, &self.ports);
            }
        }
    }

    fn record_port(&mut self, id: ServicePortId) {
        if self.changed.insert(id) {
            self.changes.ports.push(id);
        }
    }

    /// Records the conflicts about the keys of a service port before it changes.
    fn record_conflicts_of(&mut self, id: ServicePortId) {
        if self.conflicting.is_empty() {
            return;
        }
        for (key, _) in keys(self.ports.get(id)) {
            if self.conflicting.contains(&key) {
                self.record_conflicts(SharedKey::Frontend(key));
            }
        }
    }

    /// Records the conflicts about a key before it changes, unless they were recorded in this update.
    fn record_conflicts(&mut self, key: SharedKey) {
        if !self.conflicts_before.contains_key(&key) {
            let before = self.conflicts(key);
            self.conflicts_before.insert(key, before);
        }
    }

    /// Events about the service ports that define a key without owning it.
    fn conflicts(&self, key: SharedKey) -> Vec<Event> {
        let candidates = match key {
            SharedKey::Frontend(key) => self.frontends.get(&key),
            SharedKey::HealthCheck(family, port) => self.health_checks[family.index()].get(&port),
        };
        let Some(candidates) = candidates.filter(|candidates| !candidates.others().is_empty()) else {
            return Vec::new();
        };
        let Some(owner) = self.ports.get(candidates.owner()) else {
            return Vec::new();
        };
        let owner = Rank::new(candidates.kind(), owner);
        let others = candidates.others();
        let reported = others.keys().take(REPORTED_CONFLICTS);
        let mut events: Vec<Event> = reported
            .filter_map(|other| conflict(key, &owner, other))
            .collect();
        events.extend(more_conflicts(key, &owner, others.len()));
        events
    }
}

/// The event about the service ports with a key that have no event of their own.
fn more_conflicts(key: SharedKey, owner: &Rank, others: usize) -> Option<Event> {
    // A power of two, so that a new event does not follow from every Service that comes or goes.
    let at_least = 1 << others.checked_sub(REPORTED_CONFLICTS)?.checked_ilog2()?;
    let reason = match key {
        SharedKey::Frontend(key) => Reason::MoreConflicts {
            address: key.address,
            port: key.port,
            protocol: key.protocol,
            at_least,
        },
        SharedKey::HealthCheck(_, port) => Reason::MoreHealthCheckConflicts { port, at_least },
    };
    Some(Event::service(owner.port.name.service.clone(), reason))
}

/// The event about a service port that defines a key of another one.
fn conflict(key: SharedKey, owner: &Rank, other: &Rank) -> Option<Event> {
    #[cfg(test)]
    tests::count_visit();
    let precedence = owner.precedence_over(other);
    let owner = owner.port.name.clone();
    let reason = match key {
        SharedKey::Frontend(key) => Reason::Conflict {
            kind: other.kind?,
            address: key.address,
            port: key.port,
            protocol: key.protocol,
            owner,
            precedence,
        },
        SharedKey::HealthCheck(_, port) => Reason::HealthCheckConflict {
            port,
            owner: owner.service,
            precedence,
        },
    };
    Some(Event::service(other.port.name.service.clone(), reason))
}

/// The keys of a service port, sorted, each once, with the kind that takes precedence of those that the service port has it as.
fn keys(port: Option<&ServicePort>) -> Vec<(FrontendKey, FrontendKind)> {
    let frontends = port.into_iter().flat_map(|port| &port.frontends);
    let mut keys: Vec<(FrontendKey, FrontendKind)> = frontends
        .map(|frontend| (FrontendKey::of(frontend), frontend.kind))
        .collect();
    keys.sort_unstable_by_key(|(key, kind)| (*key, kind.precedence()));
    keys.dedup_by_key(|(key, _)| *key);
    keys
}

/// The kind of a key in what [`keys`] returned.
fn kind_of(keys: &[(FrontendKey, FrontendKind)], key: &FrontendKey) -> Option<FrontendKind> {
    let place = keys.binary_search_by_key(key, |(key, _)| *key).ok()?;
    keys.get(place).map(|(_, kind)| *kind)
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
    let mut first: HashMap<FrontendKey, (TrafficPolicy, FrontendKind), RandomState> = HashMap::default();
    let (name, events) = (&port.key.name, &mut port.events);
    port.frontends.retain(|frontend| {
        let (policy, kind) = *first
            .entry(FrontendKey::of(frontend))
            .or_insert((frontend.policy, frontend.kind));
        if policy != frontend.policy {
            let reason = Reason::Conflict {
                kind: frontend.kind,
                address: frontend.address,
                port: frontend.port,
                protocol: frontend.protocol,
                owner: name.clone(),
                precedence: Precedence::SamePort(kind),
            };
            events.push(Event::service(name.service.clone(), reason));
        }
        policy == frontend.policy
    });
}
