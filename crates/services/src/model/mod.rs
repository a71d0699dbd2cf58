//! Objects, and their resolution to service ports.
//!
//! The model has the objects of all sources and the facts of this node. It resolves a Service to one [`ServicePort`] per port and
//! family. For every change it determines the affected Services; indexes make the cost of this independent of the number of Services.

mod endpoint;
mod endpoints;
mod index;
mod node_facts;
mod objects;
pub mod options;
mod other_nodes;
mod port_spec;
mod resolution;
mod service_port;
mod service_spec;
mod topology;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use kernlink_base::Family;

use self::index::ServiceIndex;
pub use self::node_facts::{InterfaceAddress, NodeFacts};
use self::objects::Objects;
pub use self::options::{AffinityMask, Options, Weights};
use self::other_nodes::OtherNodes;
pub use self::port_spec::{ServicePortKey, ServicePortName};
pub use self::service_port::{
    ChosenEndpoint, ChosenEndpoints, Frontend, FrontendKind, HealthCheck, ServicePort,
};
pub use self::service_spec::ExclusionReason;
use self::service_spec::ServicePorts;
use crate::config::{Config, NodePortAddresses};
use crate::event::{Event, Reason, Subject};
use crate::name_map::{NameMap, NameSet};
use crate::source::{Change, EndpointSlice, Kind, Node, ObjectName, Service, SourceId};

/// The objects of all sources, and the facts of this node.
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
    index: ServiceIndex,
    interfaces: Vec<InterfaceAddress>,
    /// The last Node object of this node. It is used even after the object was deleted.
    own_node: Option<Node>,
    node_facts: NodeFacts,
    other_nodes: OtherNodes,
    /// The Services that changes affected; a Service may occur more than once.
    affected: Vec<ObjectName>,
    /// Whether the configuration or the facts of this node changed.
    node_changed: bool,
}

/// The changes of the model since the last update.
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
            index: ServiceIndex::default(),
            interfaces: Vec::new(),
            own_node: None,
            other_nodes: OtherNodes::default(),
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

    /// The required kinds for which no source is registered.
    pub(crate) fn without_source(&self) -> Vec<Kind> {
        let kinds = [
            (Kind::Service, self.services.has_sources()),
            (Kind::EndpointSlice, self.slices.has_sources()),
        ];
        let missing = kinds.into_iter().filter(|(_, has_sources)| !has_sources);
        missing.map(|(kind, _)| kind).collect()
    }

    /// Applies a change. Returns new events about the changed objects.
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

    /// Removes a source with all its objects. Returns new events about the changed objects.
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

    /// Replaces the configuration. All Services are affected, unless the configuration is the same.
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
        self.other_nodes = OtherNodes::default();
        for node in self.nodes.iter().filter(|node| *node.name.name != *own.name) {
            self.other_nodes.add(node);
        }
        self.node_changed = true;
    }

    /// The changes since the last call.
    pub(crate) fn take_affected(&mut self) -> Affected {
        let mut services = std::mem::take(&mut self.affected);
        if services.len() > 1 {
            // The order of the changes is kept: it is the order in memory, which makes the first update faster.
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

    pub(crate) fn has_ports(&self, service: &ObjectName) -> bool {
        self.ports
            .get(service)
            .is_some_and(|ports| !ports.ports.is_empty())
    }

    /// Events about the fields of all Services and EndpointSlices, sorted, each once.
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
        self.index.update(&name, before.as_ref(), self.ports.get(&name));
        self.affected.push(name);
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
            addresses.extend(before.addresses.iter().map(|address| address.address));
            self.other_nodes.remove(before);
        }
        if let Some(now) = self.nodes.get(name).cloned() {
            addresses.extend(now.addresses.iter().map(|address| address.address));
            if *name.name == *self.config.node_name {
                self.own_node = Some(now);
                self.node_facts_changed();
            } else {
                self.other_nodes.add(&now);
            }
        }
        for address in addresses {
            self.affect_virtual_ip(address);
        }
    }

    /// Adds the Services that have an address as external or load-balancer IP to the affected ones.
    fn affect_virtual_ip(&mut self, address: IpAddr) {
        self.affected.extend(self.index.with_virtual_ip(address).cloned());
    }

    /// Determines the facts of this node again, and adds the Services that depend on changed facts to the affected ones.
    fn node_facts_changed(&mut self) {
        let now = NodeFacts::new(&self.config, self.own_node.as_ref(), &self.interfaces);
        let before = std::mem::replace(&mut self.node_facts, now.clone());
        if before == now {
            return;
        }
        self.node_changed = true;
        let differs = |of: &dyn Fn(Family) -> bool| Family::ALL.into_iter().any(of);
        if differs(&|family| before.node_port_addresses(family) != now.node_port_addresses(family)) {
            self.affected.extend(self.index.with_node_ports().cloned());
        }
        if differs(&|family| before.node_ip(family) != now.node_ip(family)) {
            self.affected.extend(self.index.with_source_ranges().cloned());
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
}

fn slice_event(slice: &EndpointSlice, reason: Reason) -> Event {
    Event {
        subject: Subject::Object(Kind::EndpointSlice, slice.name.clone()),
        reason,
    }
}
