//! From objects to what each service port means on this node.
//!
//! [`Model`] holds the objects of all sources, and what depends on them only through this node. It ends in one [`Exposure`]
//! per service port and family, computed when asked for. A change names the Services it touches; nothing else is looked at.

pub(crate) mod annotations;
mod endpoint;
mod endpoints;
mod forwarding;
mod frontend;
mod node;
mod objects;
mod service_port;
mod services;
mod topology;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

pub use annotations::{AffinityMask, Options, Weights};
pub use forwarding::{Forwarding, ForwardingObstacle, UnknownForwarding};
pub use frontend::{ChosenEndpoint, ChosenEndpoints, Exposure, Frontend, FrontendKind, HealthCheck};
pub use node::{InterfaceAddress, ThisNode};
pub use service_port::{ServicePortKey, ServicePortName};
pub use services::LeftOut;

use crate::config::{Config, NodePortAddresses};
use crate::event::{AddressScope, Event, Reason, Subject, Traffic};
use crate::family::Family;
use crate::name_map::{NameMap, NameSet};
use crate::source::{Change, EndpointSlice, Kind, Node, ObjectName, Policy, Service, SourceId};
use objects::Objects;
use service_port::ServicePort;
use services::ServicePorts;

/// The objects of all sources, and this node.
#[derive(Clone, Debug)]
pub struct Model {
    config: Arc<Config>,
    families: Vec<Family>,
    defaults: Arc<Options>,
    services: Objects<Service>,
    slices: Objects<EndpointSlice>,
    nodes: Objects<Node>,
    ports: NameMap<ServicePorts>,
    /// The names of a Service's slices, in order.
    slices_of: NameMap<Vec<Arc<str>>>,
    interfaces: Vec<InterfaceAddress>,
    this_node: ThisNode,
    /// The addresses of the other nodes; one that several claim belongs to the first by name.
    other_nodes: BTreeMap<IpAddr, BTreeSet<ObjectName>>,
    /// The Services of which an object changed; may name one more than once.
    touched: Vec<ObjectName>,
    settings_touched: bool,
}

/// What has to be folded into the desired state again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// The Services of which an object changed, each once, in the order of the changes.
    pub services: Vec<ObjectName>,
    /// Whether what concerns no single Service may have changed: the configuration, or this node.
    pub settings: bool,
}

impl Touched {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.settings
    }
}

impl Model {
    /// A model without objects, on a node whose interfaces are not known yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let config = Arc::new(config);
        Self {
            families: config.families.iter().copied().collect(),
            defaults: defaults(&config),
            this_node: ThisNode::new(&config, None, &[]),
            config,
            services: Objects::new(),
            slices: Objects::new(),
            nodes: Objects::new(),
            ports: NameMap::default(),
            slices_of: NameMap::default(),
            interfaces: Vec::new(),
            other_nodes: BTreeMap::new(),
            touched: Vec::new(),
            settings_touched: true,
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// This node, as far as known.
    #[must_use]
    pub fn this_node(&self) -> &ThisNode {
        &self.this_node
    }

    /// Makes [`Model::is_ready`] wait for a source's first full list of a kind. A source that hands anything of a kind in is
    /// waited for anyway; this is for sources that may come late.
    pub fn expect(&mut self, source: SourceId, kind: Kind) {
        match kind {
            Kind::Service => self.services.expect(source),
            Kind::EndpointSlice => self.slices.expect(source),
            Kind::Node => self.nodes.expect(source),
        }
    }

    /// Whether there is a source of Services and one of EndpointSlices, and every source has handed in its first full list of
    /// every kind it has. Before that nothing may be planned: half a model would delete working Services.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.services.has_sources()
            && self.slices.has_sources()
            && self.services.is_complete()
            && self.slices.is_complete()
            && self.nodes.is_complete()
    }

    /// Takes a change in, and says what is odd about it. What is odd about a service port in its surroundings is said by the
    /// desired state, once it is folded in.
    pub fn change(&mut self, source: SourceId, change: Change) -> Vec<Event> {
        let mut events = Vec::new();
        match change {
            Change::Services(change) => {
                let changed = self.services.change(source, change, &mut events);
                self.ports.reserve(changed.len().saturating_sub(self.ports.len()));
                for changed in changed {
                    self.service_changed(changed.name, &mut events);
                }
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

    /// Tells the addresses of this node's interfaces, the dummy link's own included. What depends on them is touched.
    pub fn set_interface_addresses(&mut self, mut addresses: Vec<InterfaceAddress>) {
        addresses.sort();
        addresses.dedup();
        if addresses != self.interfaces {
            self.interfaces = addresses;
            self.this_node_changed();
        }
    }

    /// Replaces the configuration. Everything is touched, unless it is the same.
    pub fn set_config(&mut self, config: Config) {
        if config == *self.config {
            return;
        }
        self.config = Arc::new(config);
        self.families = self.config.families.iter().copied().collect();
        self.defaults = defaults(&self.config);
        let services = self.services.iter();
        self.ports = services
            .map(|service| {
                let name = self.config.service_proxy_name.as_deref();
                (
                    service.name.clone(),
                    services::service_ports(service, &self.families, name, &self.defaults),
                )
            })
            .collect();
        self.touched.extend(self.ports.keys().cloned());
        self.this_node_changed();
        self.other_nodes.clear();
        let nodes: Vec<Node> = self.nodes.iter().cloned().collect();
        for node in &nodes {
            self.add_other_node(node);
        }
        self.settings_touched = true;
    }

    /// What was touched since this was asked last.
    pub fn take_touched(&mut self) -> Touched {
        let mut services = std::mem::take(&mut self.touched);
        if services.len() > 1 {
            // The order of arrival is the order in memory, which a fold from nothing is glad of.
            let mut seen: NameSet<&ObjectName> = NameSet::default();
            seen.reserve(services.len());
            let first: Vec<bool> = services.iter().map(|service| seen.insert(service)).collect();
            let mut first = first.into_iter();
            services.retain(|_| first.next() == Some(true));
        }
        Touched {
            services,
            settings: std::mem::take(&mut self.settings_touched),
        }
    }

    /// What each port of a Service means here, IPv4 first; nothing if the Service is gone or not for us.
    pub fn exposures<'a>(&'a self, service: &ObjectName) -> impl Iterator<Item = Exposure> + 'a {
        let ports = self.ports.get(service).map_or(&[][..], |ports| &ports.ports);
        ports.iter().map(|port| self.exposure(port))
    }

    /// Whether a Service means anything here.
    #[must_use]
    pub fn has_exposures(&self, service: &ObjectName) -> bool {
        self.ports
            .get(service)
            .is_some_and(|ports| !ports.ports.is_empty())
    }

    /// What is odd about a Service by itself.
    #[must_use]
    pub fn service_events(&self, service: &ObjectName) -> &[Event] {
        self.ports.get(service).map_or(&[], |ports| &ports.events)
    }

    /// What is odd about all Services and EndpointSlices by themselves, sorted.
    #[must_use]
    pub fn object_events(&self) -> Vec<Event> {
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

    /// What is odd about the configuration on this node.
    #[must_use]
    pub fn configuration_events(&self) -> Vec<Event> {
        let named = |family: Family| match &self.config.node_port_addresses {
            NodePortAddresses::All => None,
            NodePortAddresses::Networks(nets) => Some(nets.iter().any(|net| Family::of_net(net) == family)),
            NodePortAddresses::Primary => Some(!self.this_node.node_ip(family).is_loopback()),
        };
        let limited = self.families.iter().any(|&family| named(family) == Some(true));
        let missing = |family: &&Family| limited && named(**family) == Some(false);
        let reason = |&family| Event::configuration(Reason::NodePortAddressesOfOtherFamily(family));
        let mut events: Vec<Event> = self.families.iter().filter(missing).map(reason).collect();
        let scheduler = self.config.defaults.scheduler;
        if let Err(problem) = annotations::known_scheduler(scheduler.as_str()) {
            events.push(Event::configuration(Reason::Invalid {
                field: "scheduler".to_owned(),
                value: scheduler.to_string(),
                problem: format!("{problem}; {} is used", self.defaults.scheduler),
            }));
        }
        events
    }

    /// How many Services there are that are no business of a service proxy, by reason.
    #[must_use]
    pub fn left_out(&self) -> BTreeMap<LeftOut, usize> {
        let mut counts = BTreeMap::new();
        for reason in self.ports.values().filter_map(|ports| ports.left_out) {
            *counts.entry(reason).or_default() += 1;
        }
        counts
    }

    fn service_changed(&mut self, name: ObjectName, events: &mut Vec<Event>) {
        match self.services.get(&name) {
            Some(service) => {
                let proxy_name = self.config.service_proxy_name.as_deref();
                let ports = services::service_ports(service, &self.families, proxy_name, &self.defaults);
                match self.ports.entry(name.clone()) {
                    Entry::Vacant(entry) => {
                        events.extend(ports.events.iter().cloned());
                        entry.insert(ports);
                    }
                    Entry::Occupied(mut entry) => {
                        let known = &entry.get().events;
                        let news = ports.events.iter().filter(|event| !known.contains(event));
                        events.extend(news.cloned());
                        entry.insert(ports);
                    }
                }
            }
            None => {
                self.ports.remove(&name);
            }
        }
        self.touched.push(name);
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
        let was = before.and_then(owner);
        if was != now
            && let Some(service) = was
        {
            if let Some(slices) = self.slices_of.get_mut(&service) {
                slices.retain(|slice| *slice != name.name);
                if slices.is_empty() {
                    self.slices_of.remove(&service);
                }
            }
            self.touched.push(service);
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
            self.touched.push(service);
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
        }
        if *name.name == *self.config.node_name {
            self.this_node_changed();
        }
        self.touch(|port| virtual_ips(port).any(|address| addresses.contains(address)));
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

    /// Takes this node's facts anew and touches the Services whose meaning depends on what changed.
    fn this_node_changed(&mut self) {
        let own = ObjectName::new("", Arc::clone(&self.config.node_name));
        let now = ThisNode::new(&self.config, self.nodes.get(&own), &self.interfaces);
        let was = std::mem::replace(&mut self.this_node, now);
        let now = self.this_node.clone();
        if was == now {
            return;
        }
        self.settings_touched = true;
        let zone_changed = was.zone() != now.zone();
        let of_family = |family: Family| {
            (
                was.node_port_addresses(family) != now.node_port_addresses(family),
                was.node_ip(family) != now.node_ip(family),
            )
        };
        let changed = Family::ALL.map(of_family);
        self.touch(|port| {
            let (node_ports, node_ip) = changed[port.family().index()];
            (node_ports && port.node_port.is_some())
                || (node_ip && !port.service.source_ranges.is_empty())
                || virtual_ips(port).any(|&ip| was.has_on_other_link(ip) != now.has_on_other_link(ip))
        });
        if zone_changed {
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
            self.touched.extend(hinted);
        }
    }

    /// Touches the Services with a port of this sort.
    fn touch(&mut self, concerned: impl Fn(&ServicePort) -> bool) {
        for (name, ports) in &self.ports {
            if ports.ports.iter().any(&concerned) {
                self.touched.push(name.clone());
            }
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

    fn exposure(&self, port: &ServicePort) -> Exposure {
        let service = &port.name.service;
        let family = port.family();
        let node_name = &self.config.node_name;
        let mut events = Vec::new();
        let endpoints = endpoints::of_port(
            self.slices_of(service),
            family,
            &port.name.port,
            port.name.protocol,
            node_name,
        );
        let choice = topology::choose(&endpoints, port, node_name, self.this_node.zone());
        let chosen = |list: &[&endpoint::Endpoint<'_>]| {
            list.iter()
                .map(|e| ChosenEndpoint {
                    address: e.address,
                    port: e.port,
                    weight: port.service.options.weights.of(e.node, e.zone),
                })
                .collect()
        };
        let chosen = ChosenEndpoints {
            cluster: chosen(&choice.cluster),
            local: chosen(&choice.local),
            any: choice.any,
        };
        let facts = &port.service;
        if chosen.local.is_empty() && !chosen.cluster.is_empty() {
            let external = facts.external_policy == Policy::Local && port.externally_accessible();
            let policies = [
                (facts.internal_policy == Policy::Local, Traffic::Internal),
                (external, Traffic::External),
            ];
            for (_, traffic) in policies.into_iter().filter(|(local, _)| *local) {
                let reason = Reason::LocalPolicyFallsBack {
                    port: port.name.clone(),
                    family,
                    traffic,
                };
                events.push(Event::service(service.clone(), reason));
            }
        }
        Exposure {
            key: port.key(),
            created: facts.created,
            frontends: self.frontends(port, &choice, &mut events),
            endpoints: chosen,
            local_endpoints: endpoints
                .iter()
                .filter(|e| e.local)
                .map(|e| (e.address, e.port))
                .collect(),
            health_check: facts.health_check_node_port.map(|port| HealthCheck {
                port,
                service: service.clone(),
                local_endpoints: endpoints::local_ready_addresses(self.slices_of(service), family, node_name),
            }),
            options: Arc::clone(&facts.options),
            events,
        }
    }

    fn frontends(
        &self,
        port: &ServicePort,
        choice: &topology::Choice<'_>,
        events: &mut Vec<Event>,
    ) -> Vec<Frontend> {
        let facts = &port.service;
        let service = &port.name.service;
        let unrestricted: Arc<[ipnet::IpNet]> = Arc::default();
        let frontend = |kind, address, number| Frontend {
            kind,
            address,
            port: number,
            protocol: port.name.protocol,
            policy: match kind {
                FrontendKind::ClusterIp => facts.internal_policy,
                _ => facts.external_policy,
            },
            affinity: facts.affinity,
            source_ranges: Arc::clone(&unrestricted),
            admits_node: true,
            on_this_node: false,
            forwarding: Forwarding::Masquerade,
        };
        let mut frontends = Vec::with_capacity(1);
        match unusable(port.cluster_ip) {
            None => frontends.push(frontend(FrontendKind::ClusterIp, port.cluster_ip, port.port)),
            Some(reason) => events.push(Event::service(service.clone(), reason)),
        }
        let external = facts
            .external_ips
            .iter()
            .map(|&address| (FrontendKind::ExternalIp, address));
        let balanced = facts
            .load_balancer_ips
            .iter()
            .map(|&address| (FrontendKind::LoadBalancer, address));
        for (kind, address) in external.chain(balanced) {
            if let Some(reason) = self.refusal(address) {
                events.push(Event::service(service.clone(), reason));
                continue;
            }
            let mut frontend = frontend(kind, address, port.port);
            frontend.on_this_node = self.this_node.has_on_other_link(address);
            if frontend.on_this_node {
                events.push(Event::service(
                    service.clone(),
                    Reason::AddressOfThisNode(address),
                ));
            }
            if kind == FrontendKind::LoadBalancer && !facts.source_ranges.is_empty() {
                frontend.source_ranges = Arc::clone(&facts.source_ranges);
                let node_ip = self.this_node.node_ip(port.family());
                frontend.admits_node = facts.source_ranges.iter().any(|net| net.contains(&node_ip));
            }
            frontends.push(frontend);
        }
        let is_virtual = |frontend: &Frontend| frontend.kind != FrontendKind::ClusterIp;
        if facts.options.forwarding.keeps_addresses() && frontends.iter().any(is_virtual) {
            let forwarding = forwarding_of(port, choice, events);
            for frontend in frontends.iter_mut().filter(|frontend| is_virtual(frontend)) {
                frontend.forwarding = forwarding;
            }
        }
        if let Some(node_port) = port.node_port {
            let addresses = self.this_node.node_port_addresses(port.family());
            if addresses.is_empty() {
                events.push(Event::service(
                    service.clone(),
                    Reason::NoNodePortAddress(port.family()),
                ));
            }
            let node_ports = addresses.iter().map(|&address| Frontend {
                on_this_node: true,
                ..frontend(FrontendKind::NodePort, address, node_port.get())
            });
            frontends.extend(node_ports);
        }
        frontends
    }

    /// Why a virtual IP must not be served here, for the sake of the network.
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

/// What Services get that ask for nothing else. A scheduler that no kernel has is none.
fn defaults(config: &Config) -> Arc<Options> {
    let mut defaults = config.defaults.clone();
    if annotations::known_scheduler(defaults.scheduler.as_str()).is_err() {
        let usual = Options::default();
        defaults.scheduler = usual.scheduler;
        defaults.scheduler_flags = usual.scheduler_flags;
    }
    Arc::new(defaults)
}

/// Why an address cannot be a virtual IP on any node.
fn unusable(address: IpAddr) -> Option<Reason> {
    let scope = AddressScope::of(address)?;
    Some(Reason::UnusableAddress { address, scope })
}

/// What to say about a slice.
fn slice_event(slice: &EndpointSlice, reason: Reason) -> Event {
    Event {
        subject: Subject::Object(Kind::EndpointSlice, slice.name.clone()),
        reason,
    }
}

/// How external and load-balancer IPs of a port are forwarded: as asked, unless some endpoint that would serve them cannot be
/// reached like this.
fn forwarding_of(port: &ServicePort, choice: &topology::Choice<'_>, events: &mut Vec<Event>) -> Forwarding {
    let method = port.service.options.forwarding;
    let serving = choice.of(port.service.external_policy);
    let Some((endpoint, obstacle)) = method.obstacle(port.port, serving) else {
        return method;
    };
    let reason = Reason::MasqueradedInstead {
        port: port.name.clone(),
        method,
        endpoint,
        obstacle,
    };
    events.push(Event::service(port.name.service.clone(), reason));
    Forwarding::Masquerade
}

/// The addresses of a port that somebody else may have too.
fn virtual_ips(port: &ServicePort) -> impl Iterator<Item = &IpAddr> {
    port.service
        .external_ips
        .iter()
        .chain(&port.service.load_balancer_ips)
}
