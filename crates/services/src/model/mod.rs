//! From objects to resolved service ports.
//!
//! The model holds the objects of all sources and the facts of this node. It resolves one [`ServicePort`] per port of a Service
//! and family when asked. A change names the Services that it affects; indexes keep its cost independent of the number of
//! Services.

mod endpoint;
mod endpoints;
mod node_facts;
mod objects;
pub mod options;
mod port_spec;
mod service_port;
mod service_spec;
mod topology;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::quality::RandomState;
use kernlink_base::Family;

pub use self::node_facts::{InterfaceAddress, NodeFacts};
use self::objects::Objects;
pub use self::options::{AffinityMask, Options, Weights};
use self::port_spec::PortSpec;
pub use self::port_spec::{ServicePortKey, ServicePortName};
pub use self::service_port::{
    ChosenEndpoint, ChosenEndpoints, Frontend, FrontendKind, HealthCheck, ServicePort,
};
pub use self::service_spec::ExclusionReason;
use self::service_spec::ServicePorts;
use crate::config::{Config, NodePortAddresses};
use crate::event::{AddressScope, Event, Reason, Subject};
use crate::name_map::{NameMap, NameSet};
use crate::source::{Change, EndpointSlice, Kind, Node, ObjectName, Service, SourceId};

/// The objects of all sources, and this node.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    config: Arc<Config>,
    families: Vec<Family>,
    defaults: Arc<Options>,
    services: Objects<Service>,
    slices: Objects<EndpointSlice>,
    nodes: Objects<Node>,
    ports: NameMap<ServicePorts>,
    /// The names of a Service's slices, sorted.
    slices_of: NameMap<Vec<Arc<str>>>,
    /// The Services with an external or load-balancer IP, by address.
    by_virtual_ip: HashMap<IpAddr, BTreeSet<ObjectName>, RandomState>,
    /// The Services with a node port.
    with_node_ports: NameSet,
    /// The Services with source ranges.
    with_source_ranges: NameSet,
    interfaces: Vec<InterfaceAddress>,
    /// The last Node object of this node. It stays in use when the object is deleted.
    own_node: Option<Node>,
    node_facts: NodeFacts,
    /// The addresses of the other nodes. An address of several belongs to the first by name.
    other_nodes: BTreeMap<IpAddr, BTreeSet<ObjectName>>,
    /// The Services affected by changes; may name one more than once.
    affected: Vec<ObjectName>,
    /// Whether the configuration or the facts of this node changed.
    node_changed: bool,
}

/// What changed in the model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Affected {
    /// The Services to resolve again, each once, in the order of the changes.
    pub(crate) services: Vec<ObjectName>,
    /// Whether the configuration or the facts of this node changed.
    pub(crate) node: bool,
}

impl Model {
    pub(crate) fn new(config: Config) -> Self {
        let config = Arc::new(config);
        Self {
            families: config.families.iter().copied().collect(),
            defaults: Arc::new(config.defaults.clone()),
            node_facts: NodeFacts::new(&config, None, &[]),
            config,
            services: Objects::new(),
            slices: Objects::new(),
            nodes: Objects::new(),
            ports: NameMap::default(),
            slices_of: NameMap::default(),
            by_virtual_ip: HashMap::default(),
            with_node_ports: NameSet::default(),
            with_source_ranges: NameSet::default(),
            interfaces: Vec::new(),
            own_node: None,
            other_nodes: BTreeMap::new(),
            affected: Vec::new(),
            node_changed: true,
        }
    }

    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub(crate) fn node_facts(&self) -> &NodeFacts {
        &self.node_facts
    }

    pub(crate) fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.get(name)
    }

    pub(crate) fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter()
    }

    pub(crate) fn register_source(&mut self, source: SourceId, kind: Kind) {
        match kind {
            Kind::Service => self.services.register(source),
            Kind::EndpointSlice => self.slices.register(source),
            Kind::Node => self.nodes.register(source),
        }
    }

    /// The sources that have not delivered their first full list of a kind.
    pub(crate) fn not_synced(&self) -> Vec<(SourceId, Kind)> {
        let services = self.services.not_synced().map(|source| (source, Kind::Service));
        let slices = self
            .slices
            .not_synced()
            .map(|source| (source, Kind::EndpointSlice));
        let nodes = self.nodes.not_synced().map(|source| (source, Kind::Node));
        services.chain(slices).chain(nodes).collect()
    }

    /// The kinds that some source has to deliver and none does.
    pub(crate) fn without_source(&self) -> Vec<Kind> {
        let kinds = [
            (Kind::Service, self.services.has_sources()),
            (Kind::EndpointSlice, self.slices.has_sources()),
        ];
        let missing = kinds.into_iter().filter(|(_, has_sources)| !has_sources);
        missing.map(|(kind, _)| kind).collect()
    }

    /// Applies a change and returns new events about the objects by themselves.
    pub(crate) fn change(&mut self, source: SourceId, change: Change) -> Vec<Event> {
        let mut events = Vec::new();
        match change {
            Change::Services(change) => {
                let changed = self.services.change(source, change, &mut events);
                self.services_changed(changed, &mut events);
            }
            Change::EndpointSlices(change) => {
                for changed in self.slices.change(source, change, &mut events) {
                    self.slice_changed(&changed.name, changed.before.as_deref(), &mut events);
                }
            }
            Change::Nodes(change) => {
                for changed in self.nodes.change(source, change, &mut events) {
                    self.node_changed(&changed.name, changed.before.as_deref());
                }
            }
        }
        events
    }

    /// Removes a source with all its objects.
    pub(crate) fn remove_source(&mut self, source: SourceId) -> Vec<Event> {
        let mut events = Vec::new();
        let changed = self.services.remove_source(source);
        self.services_changed(changed, &mut events);
        for changed in self.slices.remove_source(source) {
            self.slice_changed(&changed.name, changed.before.as_deref(), &mut events);
        }
        for changed in self.nodes.remove_source(source) {
            self.node_changed(&changed.name, changed.before.as_deref());
        }
        events
    }

    pub(crate) fn set_interface_addresses(&mut self, mut addresses: Vec<InterfaceAddress>) {
        addresses.sort();
        addresses.dedup();
        if addresses != self.interfaces {
            self.interfaces = addresses;
            self.node_facts_changed();
        }
    }

    /// Replaces the configuration. All Services are affected, unless it is the same.
    pub(crate) fn set_config(&mut self, config: Config) {
        if config == *self.config {
            return;
        }
        self.config = Arc::new(config);
        self.families = self.config.families.iter().copied().collect();
        self.defaults = Arc::new(self.config.defaults.clone());
        let names: Vec<ObjectName> = self.services.iter().map(|service| service.name.clone()).collect();
        for name in names {
            self.service_changed(name, &mut Vec::new());
        }
        let own = ObjectName::new("", Arc::clone(&self.config.node_name));
        if self.own_node.as_ref().is_some_and(|node| node.name != own) {
            self.own_node = None;
        }
        if let Some(node) = self.nodes.get(&own) {
            self.own_node = Some(node.clone());
        }
        self.node_facts_changed();
        self.other_nodes.clear();
        let nodes: Vec<Node> = self.nodes.iter().cloned().collect();
        for node in &nodes {
            self.add_other_node(node);
        }
        self.node_changed = true;
    }

    /// What changed since the last call.
    pub(crate) fn take_affected(&mut self) -> Affected {
        let mut services = std::mem::take(&mut self.affected);
        if services.len() > 1 {
            // The order of arrival is the order in memory, which makes the first pass over all Services faster.
            let mut seen: NameSet<&ObjectName> = NameSet::default();
            seen.reserve(services.len());
            let first: Vec<bool> = services.iter().map(|service| seen.insert(service)).collect();
            let mut first = first.into_iter();
            services.retain(|_| first.next() == Some(true));
        }
        Affected {
            services,
            node: std::mem::take(&mut self.node_changed),
        }
    }

    /// The resolved ports of a Service, IPv4 first. None if the Service is gone or not served.
    pub(crate) fn service_ports(&self, service: &ObjectName) -> Vec<ServicePort> {
        let ports = self.ports.get(service).map_or(&[][..], |ports| &ports.ports);
        // Counted once for all ports of the Service in a family.
        let mut local_endpoints: [Option<usize>; 2] = [None; 2];
        ports
            .iter()
            .map(|port| {
                let family = port.family();
                let count = |local_endpoints: &mut Option<usize>| {
                    *local_endpoints.get_or_insert_with(|| {
                        let slices = self.slices_of(service);
                        endpoints::local_ready_addresses(slices, family, &self.config.node_name)
                    })
                };
                let health_check = port.service.health_check_node_port.map(|port| HealthCheck {
                    port,
                    service: service.clone(),
                    local_endpoints: count(&mut local_endpoints[family.index()]),
                });
                self.service_port(port, health_check)
            })
            .collect()
    }

    pub(crate) fn has_ports(&self, service: &ObjectName) -> bool {
        self.ports
            .get(service)
            .is_some_and(|ports| !ports.ports.is_empty())
    }

    /// Events about all Services and EndpointSlices by themselves, sorted.
    pub(crate) fn object_events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self
            .ports
            .values()
            .flat_map(|ports| &ports.events)
            .cloned()
            .collect();
        for slice in self.slices.iter() {
            events.extend(endpoints::unusable(slice).map(|reason| slice_event(slice, reason)));
        }
        events.sort();
        events.dedup();
        events
    }

    /// Events about the configuration on this node.
    pub(crate) fn configuration_events(&self) -> Vec<Event> {
        let named = |family: Family| match &self.config.node_port_addresses {
            NodePortAddresses::All => None,
            NodePortAddresses::Networks(nets) => {
                Some(nets.iter().any(|net| Family::of(net.addr()) == family))
            }
            NodePortAddresses::Primary => Some(self.node_facts.has_node_ip(family)),
        };
        let is_primary = self.config.node_port_addresses == NodePortAddresses::Primary;
        if is_primary && !self.node_facts.is_known() {
            return vec![Event::configuration(Reason::NodeAddressUnknown)];
        }
        let is_limited = self.families.iter().any(|&family| named(family) == Some(true));
        let missing = self
            .families
            .iter()
            .filter(|&&family| named(family) == Some(false));
        missing
            .filter(|_| is_limited)
            .map(|&family| Event::configuration(Reason::NoNodePortNetwork(family)))
            .collect()
    }

    /// The number of Services that are not served, by reason.
    pub(crate) fn excluded(&self) -> BTreeMap<ExclusionReason, usize> {
        let mut counts = BTreeMap::new();
        for reason in self.ports.values().filter_map(|ports| ports.excluded) {
            *counts.entry(reason).or_default() += 1;
        }
        counts
    }

    fn services_changed(&mut self, changed: Vec<objects::Changed<Service>>, events: &mut Vec<Event>) {
        self.ports.reserve(changed.len().saturating_sub(self.ports.len()));
        for changed in changed {
            self.service_changed(changed.name, events);
        }
    }

    fn service_changed(&mut self, name: ObjectName, events: &mut Vec<Event>) {
        let now = self.services.get(&name).map(|service| {
            let proxy_name = self.config.service_proxy_name.as_deref();
            service_spec::service_ports(service, &self.families, proxy_name, &self.defaults)
        });
        let before = match (now, self.ports.entry(name.clone())) {
            (Some(now), Entry::Vacant(entry)) => {
                events.extend(now.events.iter().cloned());
                entry.insert(now);
                None
            }
            (Some(now), Entry::Occupied(mut entry)) => {
                let known = &entry.get().events;
                let new = now.events.iter().filter(|event| !known.contains(event));
                events.extend(new.cloned());
                Some(entry.insert(now))
            }
            (None, Entry::Occupied(entry)) => Some(entry.remove()),
            (None, Entry::Vacant(_)) => None,
        };
        self.index(&name, before.as_ref());
        self.affected.push(name);
    }

    /// Brings the indexes from what a Service had to what it has.
    fn index(&mut self, name: &ObjectName, before: Option<&ServicePorts>) {
        let now = self.ports.get(name);
        // The lists of addresses are shared by all ports of a family.
        for ip in before.into_iter().flat_map(virtual_ips) {
            if let Entry::Occupied(mut entry) = self.by_virtual_ip.entry(ip) {
                entry.get_mut().remove(name);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
        for ip in now.into_iter().flat_map(virtual_ips) {
            self.by_virtual_ip.entry(ip).or_default().insert(name.clone());
        }
        let any = |ports: Option<&ServicePorts>, is: fn(&PortSpec) -> bool| {
            ports.is_some_and(|ports| ports.ports.iter().any(is))
        };
        let keep = |set: &mut NameSet, is: fn(&PortSpec) -> bool| match (any(before, is), any(now, is)) {
            (false, true) => _ = set.insert(name.clone()),
            (true, false) => _ = set.remove(name),
            _ => {}
        };
        keep(&mut self.with_node_ports, |port| port.node_port.is_some());
        keep(&mut self.with_source_ranges, |port| {
            !port.service.source_ranges.is_empty()
        });
    }

    fn slice_changed(&mut self, name: &ObjectName, before: Option<&EndpointSlice>, events: &mut Vec<Event>) {
        let owner = |slice: &EndpointSlice| {
            slice
                .service
                .as_ref()
                .map(|service| ObjectName::new(Arc::clone(&name.namespace), Arc::clone(service)))
        };
        let slice = self.slices.get(name);
        if let Some(slice) = slice {
            let known: BTreeSet<_> = before.into_iter().flat_map(endpoints::unusable).collect();
            let new: BTreeSet<_> = endpoints::unusable(slice)
                .filter(|reason| !known.contains(reason))
                .collect();
            events.extend(new.into_iter().map(|reason| slice_event(slice, reason)));
        }
        let now = slice.and_then(owner);
        let earlier = before.and_then(owner);
        if earlier != now
            && let Some(service) = earlier
        {
            if let Some(slices) = self.slices_of.get_mut(&service) {
                slices.retain(|slice| *slice != name.name);
                if slices.is_empty() {
                    self.slices_of.remove(&service);
                }
            }
            self.affected.push(service);
        }
        if let Some(service) = now {
            match self.slices_of.entry(service.clone()) {
                Entry::Vacant(entry) => _ = entry.insert(vec![Arc::clone(&name.name)]),
                Entry::Occupied(mut entry) => {
                    if let Err(place) = entry.get().binary_search(&name.name) {
                        entry.get_mut().insert(place, Arc::clone(&name.name));
                    }
                }
            }
            self.affected.push(service);
        }
    }

    fn node_changed(&mut self, name: &ObjectName, before: Option<&Node>) {
        let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
        if let Some(before) = before {
            for address in &before.addresses {
                addresses.insert(address.address);
                if let Some(names) = self.other_nodes.get_mut(&address.address) {
                    names.remove(name);
                    if names.is_empty() {
                        self.other_nodes.remove(&address.address);
                    }
                }
            }
        }
        if let Some(now) = self.nodes.get(name).cloned() {
            addresses.extend(now.addresses.iter().map(|address| address.address));
            self.add_other_node(&now);
            if *name.name == *self.config.node_name {
                self.own_node = Some(now);
                self.node_facts_changed();
            }
        }
        for address in addresses {
            self.affect_virtual_ip(address);
        }
    }

    fn add_other_node(&mut self, node: &Node) {
        if *node.name.name != *self.config.node_name {
            for address in &node.addresses {
                self.other_nodes
                    .entry(address.address)
                    .or_default()
                    .insert(node.name.clone());
            }
        }
    }

    /// Marks the Services as affected that have an address as external or load-balancer IP.
    fn affect_virtual_ip(&mut self, address: IpAddr) {
        if let Some(services) = self.by_virtual_ip.get(&address) {
            self.affected.extend(services.iter().cloned());
        }
    }

    /// Determines the facts of this node again, and the Services that depend on those that changed.
    fn node_facts_changed(&mut self) {
        let now = NodeFacts::new(&self.config, self.own_node.as_ref(), &self.interfaces);
        let before = std::mem::replace(&mut self.node_facts, now.clone());
        if before == now {
            return;
        }
        self.node_changed = true;
        let differs = |of: &dyn Fn(Family) -> bool| Family::ALL.into_iter().any(of);
        if differs(&|family| before.node_port_addresses(family) != now.node_port_addresses(family)) {
            self.affected.extend(self.with_node_ports.iter().cloned());
        }
        if differs(&|family| before.node_ip(family) != now.node_ip(family)) {
            self.affected.extend(self.with_source_ranges.iter().cloned());
        }
        let changed: Vec<IpAddr> = before
            .interface_addresses()
            .symmetric_difference(now.interface_addresses())
            .copied()
            .collect();
        for address in changed {
            self.affect_virtual_ip(address);
        }
        if before.zone() != now.zone() {
            let hinted: Vec<ObjectName> = self
                .slices
                .iter()
                .filter(|slice| slice.endpoints.iter().any(|endpoint| endpoint.hints.is_some()))
                .filter_map(|slice| {
                    let service = slice.service.as_ref()?;
                    Some(ObjectName::new(
                        Arc::clone(&slice.name.namespace),
                        Arc::clone(service),
                    ))
                })
                .collect();
            self.affected.extend(hinted);
        }
    }

    fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> + Clone {
        let names = self.slices_of.get(service).into_iter().flatten();
        let namespace = Arc::clone(&service.namespace);
        names.filter_map(move |name| {
            self.slices.get(&ObjectName {
                namespace: Arc::clone(&namespace),
                name: Arc::clone(name),
            })
        })
    }

    fn service_port(&self, port: &PortSpec, health_check: Option<HealthCheck>) -> ServicePort {
        let family = port.family();
        let node_name = &self.config.node_name;
        let mut events = Vec::new();
        let endpoints = endpoints::of_port(
            self.slices_of(&port.name.service),
            family,
            &port.name.port,
            port.name.protocol,
            node_name,
        );
        let choice = topology::choose(&endpoints, port, node_name, self.node_facts.zone());
        let chosen = |list: &[&endpoint::Endpoint<'_>]| {
            list.iter()
                .map(|e| ChosenEndpoint {
                    address: e.address,
                    port: e.port,
                    weight: port.service.options.weights.of(e.node, e.zone),
                    is_local: e.local,
                })
                .collect()
        };
        ServicePort {
            key: port.key(),
            created: port.service.created,
            frontends: self.frontends(port, &mut events),
            endpoints: ChosenEndpoints {
                cluster: chosen(&choice.cluster),
                local: chosen(&choice.local),
                has_any: choice.has_any,
            },
            local_endpoints: endpoints
                .iter()
                .filter(|e| e.local)
                .map(|e| (e.address, e.port))
                .collect(),
            health_check,
            options: Arc::clone(&port.service.options),
            events,
        }
    }

    fn frontends(&self, port: &PortSpec, events: &mut Vec<Event>) -> Vec<Frontend> {
        let spec = &port.service;
        let service = &port.name.service;
        let unrestricted: Arc<[ipnet::IpNet]> = Arc::default();
        let frontend = |kind, address, number: std::num::NonZeroU16| Frontend {
            kind,
            address,
            port: number.get(),
            protocol: port.name.protocol,
            policy: match kind {
                FrontendKind::ClusterIp => spec.internal_policy,
                _ => spec.external_policy,
            },
            affinity: spec.affinity,
            source_ranges: Arc::clone(&unrestricted),
            admits_node: true,
            is_node_address: false,
        };
        let mut frontends = Vec::with_capacity(1);
        match unusable(port.cluster_ip) {
            None => frontends.push(frontend(FrontendKind::ClusterIp, port.cluster_ip, port.port)),
            Some(reason) => events.push(Event::service(service.clone(), reason)),
        }
        let external = spec
            .external_ips
            .iter()
            .map(|&address| (FrontendKind::ExternalIp, address));
        let balanced = spec
            .load_balancer_ips
            .iter()
            .map(|&address| (FrontendKind::LoadBalancer, address));
        for (kind, address) in external.chain(balanced) {
            if let Some(reason) = self.refusal(address) {
                events.push(Event::service(service.clone(), reason));
                continue;
            }
            let mut frontend = frontend(kind, address, port.port);
            frontend.is_node_address = self.node_facts.has_address(address);
            if kind == FrontendKind::LoadBalancer && !spec.source_ranges.is_empty() {
                frontend.source_ranges = Arc::clone(&spec.source_ranges);
                let node_ip = self.node_facts.node_ip(port.family());
                frontend.admits_node = spec.source_ranges.iter().any(|net| net.contains(&node_ip));
            }
            frontends.push(frontend);
        }
        if let Some(node_port) = port.node_port {
            let addresses = self.node_facts.node_port_addresses(port.family());
            if addresses.is_empty() {
                events.push(Event::service(
                    service.clone(),
                    Reason::NoNodePortAddress(port.family()),
                ));
            }
            let node_ports = addresses.iter().map(|&address| Frontend {
                is_node_address: true,
                ..frontend(FrontendKind::NodePort, address, node_port)
            });
            frontends.extend(node_ports);
        }
        frontends
    }

    /// Why a virtual IP must not be served on this node.
    fn refusal(&self, address: IpAddr) -> Option<Reason> {
        if let Some(reason) = unusable(address) {
            return Some(reason);
        }
        let node = self.other_nodes.get(&address)?.first()?;
        Some(Reason::AddressOfOtherNode {
            address,
            node: node.clone(),
        })
    }
}

/// Why an address cannot be a virtual IP on any node.
fn unusable(address: IpAddr) -> Option<Reason> {
    let scope = AddressScope::of(address)?;
    Some(Reason::UnusableVirtualIp { address, scope })
}

fn slice_event(slice: &EndpointSlice, reason: Reason) -> Event {
    Event {
        subject: Subject::Object(Kind::EndpointSlice, slice.name.clone()),
        reason,
    }
}

/// The external and load-balancer IPs of a Service, in all families.
fn virtual_ips(ports: &ServicePorts) -> impl Iterator<Item = IpAddr> + '_ {
    // Ports of one family stand together and share one specification.
    let specs = ports.ports.chunk_by(|a, b| Arc::ptr_eq(&a.service, &b.service));
    specs.filter_map(|ports| ports.first()).flat_map(|port| {
        let spec = &port.service;
        spec.external_ips.iter().chain(&spec.load_balancer_ips).copied()
    })
}
