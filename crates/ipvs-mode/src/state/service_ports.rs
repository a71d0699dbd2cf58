//! The desired objects of each service port, and their references in the tables.

use std::net::IpAddr;

use kernlink_dummylink::AddressKey;
use kernlink_engine::plan::Subject;
use kernlink_ipset::Entry;
use kernlink_ipvs::VirtualServerKey;
use kernlink_services::{
    Changes, Event, Family, FrontendKey, ObjectName, ServicePort, ServicePortId, Services,
};

use super::{DesiredServer, State};
use crate::compile::{Compiled, CompiledFrontend, compile};
use crate::options;
use crate::sets::SetId;
use crate::totals::PortTotals;

/// The kernel objects that a service port needs.
#[derive(Clone, Debug, Default)]
pub(super) struct PortObjects {
    /// `None` if no service port has the id.
    family: Option<Family>,
    service: Option<ObjectName>,
    pub(super) frontends: Box<[PortFrontend]>,
    entries: Box<[(SetId, Entry)]>,
    pub(super) events: Box<[Event]>,
    totals: PortTotals,
}

#[derive(Clone, Debug)]
pub(super) struct PortFrontend {
    key: VirtualServerKey,
    address: Option<IpAddr>,
    pub(super) entries: Box<[(SetId, Entry)]>,
    denied_to_node: Option<FrontendKey>,
}

impl PortObjects {
    fn of(port: &ServicePort, compiled: &mut Compiled) -> Self {
        let frontend = |frontend: &mut CompiledFrontend| PortFrontend {
            key: frontend.virtual_server.key,
            address: frontend.address,
            entries: std::mem::take(&mut frontend.entries).into_boxed_slice(),
            denied_to_node: frontend.denied_to_node,
        };
        Self {
            family: Some(port.key.family),
            service: Some(port.key.name.service.clone()),
            totals: PortTotals::of(port, compiled),
            frontends: compiled.frontends.iter_mut().map(frontend).collect(),
            entries: std::mem::take(&mut compiled.entries).into_boxed_slice(),
            events: std::mem::take(&mut compiled.events).into_boxed_slice(),
        }
    }

    fn keys(&self) -> Vec<VirtualServerKey> {
        sorted(self.frontends.iter().map(|frontend| frontend.key))
    }

    /// What the objects are for.
    fn subject(&self) -> Subject {
        Subject::of(self.service.as_ref())
    }

    fn addresses(&self) -> Vec<AddressKey> {
        let addresses = self.frontends.iter().filter_map(|frontend| frontend.address);
        sorted(addresses.filter_map(|address| AddressKey::host(address).ok()))
    }

    fn all_entries(&self) -> Vec<&(SetId, Entry)> {
        let of_frontends = self.frontends.iter().flat_map(|frontend| &frontend.entries);
        sorted(of_frontends.chain(&self.entries))
    }

    fn denied_to_node(&self) -> Vec<FrontendKey> {
        sorted(
            self.frontends
                .iter()
                .filter_map(|frontend| frontend.denied_to_node),
        )
    }
}

impl State {
    /// Brings the desired objects up to date with changes of the Services. Returns new events.
    ///
    /// [`Proxier`](kernlink_engine::Proxier) calls it before each plan. Without a proxier, it gives the desired state without a kernel.
    pub fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        let mut events = Vec::new();
        if changes.node {
            let facts = services.node_facts();
            self.node_port_addresses = Family::ALL.map(|family| facts.node_port_addresses(family).to_vec());
            self.pod_cidrs = Family::ALL.map(|family| facts.pod_cidr(family));
            for family in self.managed.clone() {
                self.set_rules_dirty(family);
            }
        }
        let is_new = self.ports.is_empty();
        if changes.ports.len() > self.ports.len() {
            self.ports.reserve(changes.ports.len());
            self.servers.reserve(changes.ports.len());
            self.addresses.reserve(changes.ports.len());
        }
        let mut ids = changes.ports.clone();
        let mut named: Vec<&ObjectName> = changes.services.iter().collect();
        // The first changes name everything.
        if std::mem::take(&mut self.is_outdated) && !is_new {
            ids.retain(|id| services.port(*id).is_none());
            ids.extend(services.ports().map(|(id, _)| id));
            named.extend(services.ports().map(|(_, port)| &port.key.name.service));
        }
        let are_foreign_changed = self.are_foreign_changed();
        let mut to_decide = self.ports_to_decide();
        to_decide.append(&mut self.restrictions_to_decide());
        if !to_decide.is_empty() {
            ids.iter().for_each(|id| _ = to_decide.remove(id));
            ids.extend(to_decide);
        }
        let compares_foreign = are_foreign_changed || !ids.is_empty();
        for id in ids {
            self.release_withheld(id);
            let Some(port) = services.port(id) else {
                self.release_open(id);
                self.replace_port(id, None, &mut events);
                continue;
            };
            let options = options::options(&port.options, &self.defaults, &self.schedulers);
            let mut compiled = compile(port, services.owned_frontends(id), &options);
            self.withhold_foreign(id, &port.key.name.service, &mut compiled);
            self.withhold_open(id, &port.key.name.service, &mut compiled);
            self.replace_port(id, Some((port, compiled)), &mut events);
        }
        for name in named {
            let service = services.service(name);
            let is_annotated = service.is_some_and(|service| !service.annotations.is_empty());
            if !is_annotated && !self.service_events.contains_key(name) {
                continue;
            }
            let annotations = services.ports_of(name).next().map(|(_, port)| &port.options);
            let now: Vec<Event> = match (service, annotations) {
                (Some(service), Some(annotations)) => {
                    let config = &self.config.services;
                    options::events(service, annotations, &self.defaults, &self.schedulers, config)
                        .into_iter()
                        .map(|reason| Event::service(name.clone(), reason))
                        .collect()
                }
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
        if compares_foreign {
            events.extend(self.foreign_events());
        }
        events
    }

    /// Replaces the objects of a service port.
    fn replace_port(
        &mut self,
        id: ServicePortId,
        compiled: Option<(&ServicePort, Compiled)>,
        events: &mut Vec<Event>,
    ) {
        let index = id.index();
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, PortObjects::default);
        }
        let Some(place) = self.ports.get_mut(index) else {
            return;
        };
        let before = std::mem::take(place);
        let (now, servers) = match compiled {
            Some((port, mut compiled)) => (PortObjects::of(port, &mut compiled), compiled.frontends),
            None => (PortObjects::default(), Vec::new()),
        };
        let new = now.events.iter().filter(|event| !before.events.contains(event));
        events.extend(new.cloned());
        if let (Some(family), Some(service)) = (before.family, &before.service) {
            self.sums[family.index()].remove(service, &before.totals);
        }
        if let (Some(family), Some(service)) = (now.family, &now.service) {
            self.sums[family.index()].add(service, &now.totals);
        }
        if before.family == now.family && before.service == now.service {
            self.update_references(id, &before, &now, servers, &now.subject());
        } else {
            // The id was used for a service port of another Service or of the other family.
            let nothing = PortObjects::default();
            self.update_references(id, &before, &nothing, Vec::new(), &before.subject());
            self.update_references(id, &nothing, &now, servers, &now.subject());
        }
        if let Some(place) = self.ports.get_mut(index) {
            *place = now;
        }
    }

    /// Moves the references in the tables from the previous objects of a service port to its present ones. Both are of one family and one
    /// subject.
    fn update_references(
        &mut self,
        id: ServicePortId,
        before: &PortObjects,
        now: &PortObjects,
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
                drain: frontend.drain,
                owner: (id, u32::try_from(position).unwrap_or(u32::MAX)),
            };
            if old.binary_search(&key).is_ok() {
                self.servers.update(&key, desired, subject);
            } else {
                self.servers.add(key, desired, subject.clone());
                // An address that waits for another virtual server can be bound for this one.
                let address = key.address().and_then(|address| AddressKey::host(address).ok());
                if let Some(address) = address.filter(|key| !self.addresses.is_observed(key)) {
                    self.addresses.set_dirty(address);
                }
            }
        }
        only_in(&old, &new).for_each(|key| self.servers.remove(key, subject));

        let (old, new) = (before.addresses(), now.addresses());
        only_in(&new, &old).for_each(|key| self.addresses.add(*key, (), subject.clone()));
        only_in(&old, &new).for_each(|key| self.addresses.remove(key, subject));

        let (old, new) = (before.all_entries(), now.all_entries());
        for (set, entry) in only_in(&new, &old) {
            let table = &mut self.entries[family.index()][set.index()];
            // The rules depend on which sets are empty.
            self.chains[family.index()].is_dirty |= table.is_empty();
            table.add(entry.clone(), (), subject.clone());
        }
        for (set, entry) in only_in(&old, &new) {
            let table = &mut self.entries[family.index()][set.index()];
            table.remove(entry, subject);
            self.chains[family.index()].is_dirty |= table.is_empty();
        }

        let (old, new) = (before.denied_to_node(), now.denied_to_node());
        let counts = &mut self.denied_to_node[family.index()];
        for frontend in only_in(&new, &old) {
            *counts.entry(*frontend).or_default() += 1;
            self.chains[family.index()].is_dirty = true;
        }
        for frontend in only_in(&old, &new) {
            if let Some(count) = counts.get_mut(frontend) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(frontend);
                }
            }
            self.chains[family.index()].is_dirty = true;
        }
    }
}

/// The items in order, each once.
pub(super) fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    items.dedup();
    items
}

/// The items that are only in the first of two sorted lists.
fn only_in<'a, T: Ord>(first: &'a [T], second: &'a [T]) -> impl Iterator<Item = &'a T> {
    first.iter().filter(|item| second.binary_search(item).is_err())
}
