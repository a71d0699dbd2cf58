//! The desired objects of service ports.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use kernlink_base::parallel;
use kernlink_engine::DataPath;
use kernlink_engine::plan::Subject;
use kernlink_engine::table::Table;
use kernlink_host::flows;
use kernlink_iptables_restore::ChainName;
use kernlink_services::{
    Changes, Event, Family, Frontend, NodeFacts, ObjectName, Protocol, ServicePort, ServicePortId, Services,
};

use super::State;
use crate::chains::FixedChain;
use crate::compile::{Inputs, compile};
use crate::key::Key;
use crate::port_chain::PortChain;
use crate::rule_key::{RuleKey, RuleText, rule_text};
use crate::totals::PortCounts;

/// Above this number of endpoints of a family, ready or not, its rules of endpoints have no comments, as in kube-proxy.
const MOST_ENDPOINTS_WITH_COMMENTS: usize = 1000;

/// The fewest service ports that are compiled by a thread of their own; it takes longer to start one than to compile fewer.
const FEWEST_PORTS: NonZeroUsize = NonZeroUsize::new(200).unwrap();

/// The objects of a service port.
#[derive(Clone, Debug, Default)]
pub(super) struct PortObjects {
    /// `None` if no service port has the id.
    pub(super) family: Option<Family>,
    pub(super) service: Option<ObjectName>,
    /// For listings: its name.
    pub(super) name: Box<str>,
    pub(super) chains: Box<[ChainName]>,
    /// In kube-proxy's order.
    pub(super) rules: Box<[(FixedChain, RuleText)]>,
    endpoints: usize,
    /// The addresses and ports to which clients send UDP packets.
    udp: Box<[SocketAddr]>,
    counts: PortCounts,
}

/// What a service port means.
struct CompiledPort {
    objects: PortObjects,
    /// The content of its chains.
    chains: Vec<(ChainName, PortChain)>,
    /// The endpoints of UDP packets.
    udp_endpoints: Arc<[SocketAddr]>,
}

impl Default for CompiledPort {
    fn default() -> Self {
        Self {
            objects: PortObjects::default(),
            chains: Vec::new(),
            udp_endpoints: Arc::new([]),
        }
    }
}

/// The chains of a service port, and its rules in shared chains.
type ObjectsOf<'a> = (Family, &'a [ChainName], &'a [(FixedChain, RuleText)]);

impl State {
    /// The objects of a service port. `None` if it does not exist.
    pub(crate) fn objects_of(&self, id: ServicePortId) -> Option<ObjectsOf<'_>> {
        let objects = self.ports.get(id.index())?;
        Some((objects.family?, &objects.chains, &objects.rules))
    }

    /// Brings the desired chains and rules up to date with changes of the Services. Returns new events.
    pub fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        if changes.node {
            let before = std::mem::replace(&mut self.node, services.node_facts().clone());
            let pod_cidr = |node: &NodeFacts| Family::ALL.map(|family| node.pod_cidr(family));
            self.is_outdated |= pod_cidr(&before) != pod_cidr(&self.node);
            for family in self.managed.clone() {
                self.set_fixed_dirty(family);
            }
        }
        let mut ids: Vec<ServicePortId> = changes.ports.clone();
        for id in &ids {
            self.count_endpoints(*id, services);
        }
        let has_comments = self
            .endpoints
            .map(|endpoints| endpoints <= MOST_ENDPOINTS_WITH_COMMENTS);
        if has_comments != self.has_comments {
            self.has_comments = has_comments;
            self.is_outdated = true;
        }
        if std::mem::take(&mut self.is_outdated) {
            ids.retain(|id| services.port(*id).is_none());
            ids.extend(services.ports().map(|(id, _)| id));
        }
        // The Service of a destination that moves to another one depends on the order.
        ids.sort_unstable_by_key(|id| id.index());
        let mut names: BTreeSet<ObjectName> = BTreeSet::new();
        if self.chains.iter().all(Table::is_empty) {
            for family in Family::ALL {
                // Most service ports have one chain, and one for each endpoint.
                self.chains[family.index()].reserve(self.endpoints[family.index()] + ids.len());
            }
        }
        let state = &*self;
        let compiled = parallel::map(ids, FEWEST_PORTS, |id| (id, state.compile_port(id, services)));
        for (id, port) in compiled {
            names.extend(self.ports.get(id.index()).and_then(|port| port.service.clone()));
            names.extend(port.objects.service.clone());
            self.replace_port(id, port);
        }
        // An operation of a Service that is not done yet becomes a part of the next one.
        // Replaced rules may wait for any of them.
        let is_undone = |key: &&Key| match key {
            Key::Service(_, name) => names.contains(name),
            Key::Replaced(..) => !names.is_empty(),
            _ => false,
        };
        let undone: Vec<Key> = self.touched.keys().filter(is_undone).cloned().collect();
        for key in undone {
            self.set_dirty(&key);
        }
        self.events.take()
    }

    fn port_mut(&mut self, id: ServicePortId) -> Option<&mut PortObjects> {
        let index = id.index();
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, PortObjects::default);
        }
        self.ports.get_mut(index)
    }

    /// Brings the numbers of endpoints up to date with a service port, before it is compiled.
    fn count_endpoints(&mut self, id: ServicePortId, services: &Services) {
        let now = services
            .port(id)
            .map(|port| (port.key.family, port.endpoint_count));
        let Some(place) = self.port_mut(id) else { return };
        let before = place.family.map(|family| (family, place.endpoints));
        place.endpoints = now.map_or(0, |(_, endpoints)| endpoints);
        if let Some((family, endpoints)) = now {
            self.endpoints[family.index()] += endpoints;
        }
        if let Some((family, endpoints)) = before {
            self.endpoints[family.index()] = self.endpoints[family.index()].saturating_sub(endpoints);
        }
    }

    /// What a service port means, without a change of the state.
    fn compile_port(&self, id: ServicePortId, services: &Services) -> CompiledPort {
        let Some(port) = services.port(id) else {
            return CompiledPort::default();
        };
        let family = port.key.family;
        let inputs = Inputs {
            config: &self.config,
            pod_cidr: self.node.pod_cidr(family),
            counters: self.counters,
            has_comments: self.has_comments[family.index()],
            missing: self.missing.of(family),
        };
        let compiled = compile(port, services.owned_frontends(id), &inputs);
        let rules = compiled.rules.iter();
        let flows = udp_endpoints(port);
        CompiledPort {
            objects: PortObjects {
                family: Some(family),
                service: Some(port.key.name.service.clone()),
                name: port.key.name.to_string().into(),
                chains: compiled.chains.iter().map(|(name, _)| *name).collect(),
                rules: rules
                    .map(|(chain, rule)| (*chain, rule_text(rule, family)))
                    .collect(),
                endpoints: 0,
                udp: match &flows {
                    Some(_) => self.udp_destinations(port, services.owned_frontends(id)),
                    None => Box::new([]),
                },
                counts: PortCounts::of(&compiled),
            },
            chains: compiled.chains,
            udp_endpoints: flows.unwrap_or_else(|| Arc::new([])),
        }
    }

    /// Replaces the objects of a service port.
    fn replace_port(&mut self, id: ServicePortId, compiled: CompiledPort) {
        let is_other = self.ports.get(id.index()).is_some_and(|before| {
            let now = &compiled.objects;
            let is_used = before.family.is_some() && now.family.is_some();
            is_used && (before.family != now.family || before.service != now.service)
        });
        if is_other {
            // The id was used for a service port of another Service or of the other family.
            self.replace_objects(id, CompiledPort::default());
        }
        self.replace_objects(id, compiled);
    }

    /// Replaces the objects of an id. Both are of one Service and one family.
    fn replace_objects(&mut self, id: ServicePortId, compiled: CompiledPort) {
        let CompiledPort {
            objects: mut now,
            chains: contents,
            udp_endpoints,
        } = compiled;
        let Some(place) = self.port_mut(id) else { return };
        now.endpoints = place.endpoints;
        let before = std::mem::take(place);
        let subject = Subject::of(now.service.as_ref());
        if let Some(family) = now.family {
            let (chains, rules) = self.tables(family);
            for (name, chain) in contents {
                chains.add(name, chain, subject.clone());
            }
            for (chain, text) in &now.rules {
                rules.add(RuleKey::new(*chain, text), (), subject.clone());
            }
        }
        if let Some(family) = now.family.or(before.family) {
            self.sums[family.index()].replace(before.counts, now.counts);
        }
        if let Some(service) = now.service.as_ref().or(before.service.as_ref()) {
            self.flows
                .replace(id, service, &before.udp, &now.udp, &udp_endpoints);
        }
        // After the additions: a key that stays keeps a reference and its value.
        if let Some(family) = before.family {
            let subject = Subject::of(before.service.as_ref());
            let (chains, rules) = self.tables(family);
            for name in &before.chains {
                chains.remove(name, &subject);
            }
            for (chain, text) in &before.rules {
                rules.remove(&RuleKey::new(*chain, text), &subject);
            }
        }
        if let Some(place) = self.port_mut(id) {
            *place = now;
        }
    }

    /// The addresses and ports of a UDP service port.
    fn udp_destinations<'a>(
        &self,
        port: &ServicePort,
        frontends: impl Iterator<Item = &'a Frontend>,
    ) -> Box<[SocketAddr]> {
        let family = port.key.family;
        let served = frontends.map(|frontend| SocketAddr::new(frontend.address, frontend.port));
        let mut destinations: Vec<SocketAddr> = served.collect();
        let serves_loopback = family == Family::Ipv4 && self.config.serves_loopback_node_ports();
        if let Some(number) = port.node_port.filter(|_| serves_loopback) {
            let loopback = self.node.loopback_node_port_addresses(family).iter();
            destinations.extend(loopback.map(|address| SocketAddr::new(*address, number.get())));
        }
        destinations.sort_unstable();
        destinations.dedup();
        destinations.into()
    }
}

/// The endpoints that flows of a UDP service port may have. `None` for other protocols.
fn udp_endpoints(port: &ServicePort) -> Option<Arc<[SocketAddr]>> {
    let chosen = port.endpoints.cluster.iter().chain(&port.endpoints.local);
    let endpoints =
        || flows::endpoints(chosen.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port)));
    (port.key.name.protocol == Protocol::Udp).then(endpoints)
}
