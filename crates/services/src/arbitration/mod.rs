//! Which service port owns each frontend: conflicts between Services are decided here, once, for every data path.
//!
//! A frontend key is an address, protocol and port. Where several service ports define one, the oldest Service owns it, then the
//! lower namespace and name, then the lower port name; the others get it when the owner is gone. The same holds for health-check
//! node ports.

mod owners;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use foldhash::quality::RandomState;
use kernlink_base::Family;

pub use self::owners::ServicePortId;
use self::owners::{ClaimMap, Claimed, Claims, Released, Slab, claim, precedence, release};
use crate::event::{Event, Reason};
use crate::model::{Affected, Frontend, HealthCheck, Model, ServicePort, ServicePortKey};
use crate::name_map::NameMap;
use crate::source::{ObjectName, Protocol, TrafficPolicy};

/// Address, protocol and port: what clients connect to, and what at most one service port owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; never 0.
    pub port: u16,
}

impl FrontendKey {
    /// The key of a frontend.
    #[must_use]
    pub fn of(frontend: &Frontend) -> Self {
        Self {
            address: frontend.address,
            protocol: frontend.protocol,
            port: frontend.port,
        }
    }

    /// The address family.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }
}

impl fmt::Display for FrontendKey {
    /// `10.96.0.1:443/TCP`, `[fd00::1]:443/TCP`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}",
            SocketAddr::new(self.address, self.port),
            self.protocol
        )
    }
}

/// A frontend key with its owner.
#[derive(Clone, Copy, Debug)]
pub struct ArbitratedFrontend<'a> {
    /// The key.
    pub key: FrontendKey,
    /// The id of the owner.
    pub id: ServicePortId,
    /// The service port that owns the key, with the endpoints that serve it.
    pub owner: &'a ServicePort,
}

impl<'a> ArbitratedFrontend<'a> {
    /// The frontends of the owner at this key; at least one. There are several where a Service has one address twice, as external
    /// IP and for its load balancer, say. They agree in their policy and affinity.
    pub fn frontends(&self) -> impl Iterator<Item = &'a Frontend> + use<'a> {
        let key = self.key;
        let frontends = self.owner.frontends.iter();
        frontends.filter(move |frontend| FrontendKey::of(frontend) == key)
    }
}

/// What changed since [`Services::take_changes`](crate::Services::take_changes) was called last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// Service ports that were added, removed, or resolve differently, or that own other frontends than before. Each once, in
    /// the order of the changes.
    pub ports: Vec<ServicePortId>,
    /// Services that an update resolved again, because an object of theirs or something that they depend on changed. An update
    /// appends each once.
    pub services: Vec<ObjectName>,
    /// Frontends whose owner, settings or endpoints changed, or that are gone.
    pub frontends: HashSet<FrontendKey, RandomState>,
    /// Health-check node ports that were added, removed, or count other endpoints.
    pub health_checks: BTreeSet<(Family, u16)>,
    /// Whether the facts of this node or the configuration changed.
    pub node: bool,
}

impl Changes {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
            && self.services.is_empty()
            && self.frontends.is_empty()
            && self.health_checks.is_empty()
            && !self.node
    }
}

/// What an update did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateReport {
    /// The number of service ports that were resolved again.
    pub resolved: usize,
    /// The number of map entries that were looked up to change them.
    pub map_entries: usize,
    /// New events.
    pub events: Vec<Event>,
}

/// The service ports, and who owns each key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arbitration {
    ports: Slab,
    ports_of: NameMap<Vec<ServicePortId>>,
    frontends: ClaimMap<FrontendKey>,
    /// The keys that several service ports define.
    contested: BTreeSet<FrontendKey>,
    health_checks: [ClaimMap<u16>; 2],
    changes: Changes,
    /// The ports in `changes`.
    changed: HashSet<ServicePortId, RandomState>,
    /// During an update: the conflicts of each contested key before it.
    conflicts_before: HashMap<FrontendKey, Vec<Event>, RandomState>,
}

impl Arbitration {
    /// Resolves the affected Services again.
    pub(crate) fn update(&mut self, model: &Model, affected: &Affected) -> UpdateReport {
        let mut updated = UpdateReport::default();
        self.changes.node |= affected.node;
        self.changes.services.extend(affected.services.iter().cloned());
        // Service ports that are gone release their keys first, so that no conflict with them is reported.
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
            ports.iter_mut().for_each(keep_agreeing_frontends);
            self.replace_service(service, ports, &mut updated);
        }
        // Conflicts are reported as they are after the update, in whatever order claims came in.
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
        self.changed.clear();
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
        frontends.filter_map(|(key, claims)| self.arbitrated(*key, claims))
    }

    fn arbitrated(&self, key: FrontendKey, claims: &Claims) -> Option<ArbitratedFrontend<'_>> {
        let id = claims.owner();
        let owner = self.ports.get(id)?;
        Some(ArbitratedFrontend { key, id, owner })
    }

    pub(crate) fn owned_frontends(&self, id: ServicePortId) -> impl Iterator<Item = &Frontend> {
        let frontends = self.ports.get(id).map_or(&[][..], |port| &port.frontends);
        frontends.iter().filter(move |frontend| {
            let claims = self.frontends.get(&FrontendKey::of(frontend));
            claims.is_some_and(|claims| claims.owner() == id)
        })
    }

    pub(crate) fn health_checks(&self, family: Family) -> Vec<&HealthCheck> {
        let mut checks: Vec<&HealthCheck> = self.health_checks[family.index()]
            .values()
            .filter_map(|claims| self.ports.get(claims.owner())?.health_check.as_ref())
            .collect();
        checks.sort_by_key(|check| check.port);
        checks
    }

    /// All events about service ports, sorted.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self
            .ports
            .iter()
            .flat_map(|(_, port)| &port.events)
            .cloned()
            .collect();
        events.extend(self.contested.iter().flat_map(|key| self.conflicts(*key)));
        for checks in &self.health_checks {
            for (&port, claims) in checks {
                let losers = claims.others().iter();
                events.extend(
                    losers.filter_map(|&loser| self.health_check_conflict(port, claims.owner(), loser)),
                );
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
        self.exchange(id, None, updated);
        Some(id)
    }

    fn remove(&mut self, id: ServicePortId, updated: &mut UpdateReport) {
        let before = self.ports.replace(id, None);
        self.exchange(id, before, updated);
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
            self.exchange(id, before, updated);
        } else {
            // Its position among the claims changes.
            let before = self.ports.replace(id, None);
            self.exchange(id, before, updated);
            self.ports.replace(id, Some(port));
            self.exchange(id, None, updated);
        }
    }

    /// Brings the claims of a service port from those of `before` to those of the one in the slab.
    fn exchange(&mut self, id: ServicePortId, before: Option<ServicePort>, updated: &mut UpdateReport) {
        self.note_port(id);
        let old = keys(before.as_ref());
        let new = keys(self.ports.get(id));
        for key in old.iter().filter(|key| new.binary_search(key).is_err()) {
            updated.map_entries += 1;
            if self.contested.contains(key) {
                self.note_conflicts(*key);
            }
            match release(&mut self.frontends, *key, id) {
                Released::Unchanged => {}
                Released::Gone => _ = self.changes.frontends.insert(*key),
                Released::PassedTo(owner) => {
                    self.changes.frontends.insert(*key);
                    self.note_port(owner);
                }
            }
            let claims = self.frontends.get(key);
            if claims.is_none_or(|claims| claims.others().is_empty()) {
                self.contested.remove(key);
            }
        }
        for key in new.iter().filter(|key| old.binary_search(key).is_err()) {
            updated.map_entries += 1;
            match claim(&mut self.frontends, *key, id, &self.ports) {
                Claimed::Sole => {}
                Claimed::Over(displaced) => {
                    self.note_conflicts(*key);
                    self.contested.insert(*key);
                    self.note_port(displaced);
                }
                Claimed::Behind(_) => {
                    self.note_conflicts(*key);
                    self.contested.insert(*key);
                    continue;
                }
            }
            self.changes.frontends.insert(*key);
        }
        if let (Some(before), Some(now)) = (&before, self.ports.get(id)) {
            let is_same = before.endpoints == now.endpoints && before.options == now.options;
            for (key, old, new) in common(before, now) {
                let is_owner = self.frontends.get(&key).is_some_and(|c| c.owner() == id);
                if is_owner && !(is_same && old == new) {
                    updated.map_entries += 1;
                    self.changes.frontends.insert(key);
                }
            }
        }
        self.exchange_health_check(id, before.as_ref(), updated);
    }

    fn exchange_health_check(
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
                release(&mut self.health_checks[family.index()], port, id);
            }
            if let Some(port) = new {
                updated.map_entries += 1;
                let checks = &mut self.health_checks[family.index()];
                let conflict = match claim(checks, port, id, &self.ports) {
                    Claimed::Sole => None,
                    Claimed::Over(displaced) => Some((id, displaced)),
                    Claimed::Behind(owner) => Some((owner, id)),
                };
                let event =
                    conflict.and_then(|(owner, loser)| self.health_check_conflict(port, owner, loser));
                updated.events.extend(event);
            }
        }
        let ports = old.into_iter().chain(new).map(|port| (family, port));
        self.changes.health_checks.extend(ports);
    }

    fn note_port(&mut self, id: ServicePortId) {
        if self.changed.insert(id) {
            self.changes.ports.push(id);
        }
    }

    /// Remembers the conflicts of a key before the update. A key that was not contested had none.
    fn note_conflicts(&mut self, key: FrontendKey) {
        if !self.conflicts_before.contains_key(&key) {
            let before = if self.contested.contains(&key) {
                self.conflicts(key)
            } else {
                Vec::new()
            };
            self.conflicts_before.insert(key, before);
        }
    }

    /// Events about the service ports that define a key and do not own it.
    fn conflicts(&self, key: FrontendKey) -> Vec<Event> {
        let Some(claims) = self.frontends.get(&key) else {
            return Vec::new();
        };
        let losers = claims.others().iter();
        losers
            .filter_map(|&loser| self.conflict(key, claims.owner(), loser))
            .collect()
    }

    fn conflict(&self, key: FrontendKey, owner: ServicePortId, loser: ServicePortId) -> Option<Event> {
        let owner = &self.ports.get(owner)?.key;
        let loser = self.ports.get(loser)?;
        let frontend = loser
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
        Some(Event::service(loser.key.name.service.clone(), reason))
    }

    fn health_check_conflict(&self, port: u16, owner: ServicePortId, loser: ServicePortId) -> Option<Event> {
        let owner = &self.ports.get(owner)?.key.name.service;
        let loser = &self.ports.get(loser)?.key.name.service;
        let reason = Reason::HealthCheckConflict {
            port,
            owner: owner.clone(),
        };
        (loser != owner).then(|| Event::service(loser.clone(), reason))
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

/// Removes frontends of an address and port that the service port has already with another policy, and reports them.
fn keep_agreeing_frontends(port: &mut ServicePort) {
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
