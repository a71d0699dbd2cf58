//! Objects, and their resolution to service ports.
//!
//! The model has the objects of all sources and the facts of this node. It resolves a Service to one [`ServicePort`] per port and
//! family. For every change it determines the affected Services; indexes make the cost of this independent of the number of Services.

mod affected;
pub(crate) mod annotation;
mod annotation_policy;
mod endpoint;
mod endpoints;
mod explanation;
mod frontend_kind;
mod index;
mod node_facts;
mod not_chosen;
mod objects;
pub mod options;
mod other_nodes;
mod port_spec;
mod resolution;
mod service_port;
mod service_port_name;
mod service_spec;
mod topology;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use kernlink_base::Family;

use self::affected::AffectedServices;
pub use self::annotation_policy::AnnotationPolicy;
pub use self::endpoints::{UnusedReason, UnusedSlice};
pub use self::explanation::{ExplainedEndpoint, ExplainedEndpoints};
pub use self::frontend_kind::FrontendKind;
use self::index::ServiceIndex;
pub use self::node_facts::{InterfaceAddress, NodeFacts};
pub use self::not_chosen::NotChosen;
use self::objects::{Changed, Objects};
pub use self::options::{AffinityMask, Options, Weights};
use self::other_nodes::OtherNodes;
use self::port_spec::PortSpec;
pub use self::service_port::{ChosenEndpoint, ChosenEndpoints, Frontend, HealthCheck, ServicePort};
pub use self::service_port_name::{ServicePortKey, ServicePortName};
pub use self::service_spec::ExclusionReason;
use self::service_spec::ServicePorts;
use crate::config::{Config, NodePortAddresses};
use crate::event::{self, Event, Reason, Subject};
use crate::name_map::NameMap;
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
    /// By the name of the Service.
    resolvable: NameMap<Resolvable>,
    index: ServiceIndex,
    interfaces: Vec<InterfaceAddress>,
    /// The last Node object of this node, with the last addresses and the last pod networks that it had. It is used even after the object
    /// was deleted.
    own_node: Option<Node>,
    node_facts: NodeFacts,
    other_nodes: OtherNodes,
    /// The Services that changes affected since the last update.
    affected: AffectedServices,
    /// Whether the configuration or the facts of this node changed.
    node_changed: bool,
    /// Whether a change of an EndpointSlice must not wait for others.
    is_urgent: bool,
}

/// What a Service is resolved from. It has a Service or a slice.
#[derive(Clone, Debug, Default)]
struct Resolvable {
    /// `None` if the Service does not exist.
    ports: Option<ServicePorts>,
    /// The effective slices of the Service, sorted by name.
    slices: Vec<Arc<EndpointSlice>>,
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
            resolvable: NameMap::default(),
            index: ServiceIndex::default(),
            interfaces: Vec::new(),
            own_node: None,
            other_nodes: OtherNodes::default(),
            affected: AffectedServices::default(),
            node_changed: true,
            is_urgent: false,
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
        self.services.iter().map(Arc::as_ref)
    }

    pub(crate) fn number_of_services(&self) -> usize {
        self.services.len()
    }

    /// This node, unless its object does not exist.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.nodes
            .get(&ObjectName::new("", Arc::clone(&self.config.node_name)))
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
                let changes = self.services.single_changes(source, change, &mut events);
                self.resolvable
                    .reserve(changes.size_hint().0.saturating_sub(self.resolvable.len()));
                for change in changes {
                    if let Some(changed) = self.services.apply(source, change, &mut events) {
                        self.service_changed(changed, &mut events);
                    }
                }
            }
            Change::EndpointSlices(change) => {
                for change in self.slices.single_changes(source, change, &mut events) {
                    if let Some(changed) = self.slices.apply(source, change, &mut events) {
                        self.slice_changed(changed, &mut events);
                    }
                }
            }
            Change::Nodes(change) => {
                for change in self.nodes.single_changes(source, change, &mut events) {
                    if let Some(changed) = self.nodes.apply(source, change, &mut events) {
                        self.node_changed(&changed);
                    }
                }
            }
        }
        self.limit_affected();
        events
    }

    /// Removes a source with all its objects. Returns new events about the changed objects.
    pub(crate) fn remove_source(&mut self, source: SourceId) -> Vec<Event> {
        let mut events = Vec::new();
        for changed in self.services.remove_source(source) {
            self.service_changed(changed, &mut events);
        }
        for changed in self.slices.remove_source(source) {
            self.slice_changed(changed, &mut events);
        }
        for changed in self.nodes.remove_source(source) {
            self.node_changed(&changed);
        }
        self.limit_affected();
        events
    }

    /// Whether a change since the last call must not wait for others.
    pub(crate) fn take_urgent(&mut self) -> bool {
        std::mem::take(&mut self.is_urgent)
    }

    pub(crate) fn set_interface_addresses(&mut self, mut addresses: Vec<InterfaceAddress>) {
        addresses.sort();
        addresses.dedup();
        if addresses != self.interfaces {
            self.interfaces = addresses;
            self.node_facts_changed();
            self.limit_affected();
        }
    }

    /// Replaces the configuration. All Services are affected, unless the configuration is the same. Returns new events about them.
    pub(crate) fn set_config(&mut self, config: Config) -> Vec<Event> {
        let mut events = Vec::new();
        if config == *self.config {
            return events;
        }
        self.config = Arc::new(config);
        self.families = self.config.families.iter().copied().collect();
        self.defaults = Arc::new(self.config.defaults.clone());
        let mut services: Vec<Arc<Service>> = self.services.iter().cloned().collect();
        services.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for service in services {
            self.set_service(service.name.clone(), Some(&service), &mut events);
        }
        let own = ObjectName::new("", Arc::clone(&self.config.node_name));
        if self.own_node.as_ref().is_none_or(|node| node.name != own) {
            self.own_node = self.nodes.get(&own).cloned();
        }
        self.node_facts_changed();
        self.other_nodes = OtherNodes::default();
        for node in self.nodes.iter().filter(|node| *node.name.name != *own.name) {
            self.other_nodes.add(node);
        }
        self.node_changed = true;
        self.limit_affected();
        events
    }

    /// The changes since the last call.
    pub(crate) fn take_affected(&mut self) -> Affected {
        Affected {
            services: self.affected.take(),
            node: std::mem::take(&mut self.node_changed),
        }
    }

    pub(crate) fn has_ports(&self, service: &ObjectName) -> bool {
        !self.ports_of(service).is_empty()
    }

    /// Events about the fields of all Services and EndpointSlices, sorted, each once.
    pub(crate) fn object_events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self
            .resolvable
            .values()
            .filter_map(|resolvable| resolvable.ports.as_ref())
            .flat_map(|ports| &ports.events)
            .cloned()
            .collect();
        for slice in self.slices.iter() {
            events.extend(slice_events(slice));
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
        let reason = |family| {
            if is_primary {
                Reason::NoPrimaryAddress(family)
            } else {
                Reason::NoNodePortNetwork(family)
            }
        };
        missing
            .filter(|_| is_limited)
            .map(|&family| Event::configuration(reason(family)))
            .collect()
    }

    /// Why a Service is not served. `None` if it does not exist, or is served.
    pub(crate) fn exclusion(&self, service: &ObjectName) -> Option<ExclusionReason> {
        self.resolvable.get(service)?.ports.as_ref()?.excluded
    }

    /// The events about the fields of a Service, and about those of its slices.
    pub(crate) fn events_of(&self, service: &ObjectName) -> Vec<Event> {
        let Some(resolvable) = self.resolvable.get(service) else {
            return Vec::new();
        };
        let of_ports = resolvable.ports.iter().flat_map(|ports| &ports.events).cloned();
        let of_slices = resolvable.slices.iter().flat_map(|slice| slice_events(slice));
        of_ports.chain(of_slices).collect()
    }

    /// The number of Services that are not served, by reason.
    pub(crate) fn excluded(&self) -> BTreeMap<ExclusionReason, usize> {
        let mut counts = BTreeMap::new();
        let ports = self
            .resolvable
            .values()
            .filter_map(|resolvable| resolvable.ports.as_ref());
        for reason in ports.filter_map(|ports| ports.excluded) {
            *counts.entry(reason).or_default() += 1;
        }
        counts
    }

    fn service_changed(&mut self, changed: Changed<Service>, events: &mut Vec<Event>) {
        self.set_service(changed.name, changed.now.as_deref(), events);
    }

    fn set_service(&mut self, name: ObjectName, service: Option<&Service>, events: &mut Vec<Event>) {
        let now = service.map(|service| {
            service_spec::service_ports(service, &self.families, &self.config, &self.defaults)
        });
        let resolvable = self.resolvable.entry(name.clone()).or_default();
        let before = std::mem::replace(&mut resolvable.ports, now);
        let now = resolvable.ports.as_ref();
        let known = before.as_ref().map_or(&[][..], |ports| &ports.events);
        let new = now.into_iter().flat_map(|now| &now.events);
        events.extend(new.filter(|event| !known.contains(event)).cloned());
        self.index.update(&name, before.as_ref(), now);
        if now.is_none() && resolvable.slices.is_empty() {
            self.resolvable.remove(&name);
        }
        self.affected.push(name);
    }

    fn slice_changed(&mut self, changed: Changed<EndpointSlice>, events: &mut Vec<Event>) {
        let Changed { name, before, now } = changed;
        self.is_urgent = self.is_urgent || is_urgent(before.as_deref(), now.as_deref());
        if let Some(slice) = now.as_deref() {
            let known = before.as_deref().map(slice_events).unwrap_or_default();
            let now = slice_events(slice).into_iter();
            events.extend(now.filter(|event| !known.contains(event)));
        }
        let owner = |slice: &Arc<EndpointSlice>| {
            let service = slice.service.as_ref()?;
            Some(ObjectName::new(Arc::clone(&name.namespace), Arc::clone(service)))
        };
        let (earlier, owner) = (before.as_ref().and_then(owner), now.as_ref().and_then(owner));
        if earlier != owner
            && let Some(service) = earlier
        {
            if let Entry::Occupied(mut entry) = self.resolvable.entry(service.clone()) {
                let resolvable = entry.get_mut();
                resolvable.slices.retain(|slice| slice.name != name);
                if resolvable.ports.is_none() && resolvable.slices.is_empty() {
                    entry.remove();
                }
            }
            self.affected.push(service);
        }
        if let (Some(service), Some(slice)) = (owner, now) {
            let slices = &mut self.resolvable.entry(service.clone()).or_default().slices;
            match slices.binary_search_by(|known| known.name.cmp(&name)) {
                Ok(place) => slices[place] = slice,
                Err(place) => slices.insert(place, slice),
            }
            self.affected.push(service);
        }
    }

    fn node_changed(&mut self, changed: &Changed<Node>) {
        let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
        if let Some(before) = &changed.before {
            addresses.extend(before.addresses.iter().map(|address| address.address));
            self.other_nodes.remove(before);
        }
        if let Some(now) = &changed.now {
            addresses.extend(now.addresses.iter().map(|address| address.address));
            if *now.name.name == *self.config.node_name {
                self.set_own_node(Node::clone(now));
                self.node_facts_changed();
            } else {
                self.other_nodes.add(now);
            }
        }
        for address in addresses {
            self.affect_virtual_ip(address);
        }
    }

    /// Keeps the addresses and pod networks of a Node that has none any more: the kubelet registers a deleted Node again without them.
    fn set_own_node(&mut self, mut node: Node) {
        if let Some(before) = self.own_node.take() {
            if node.addresses.is_empty() {
                node.addresses = before.addresses;
            }
            if node.pod_cidrs.is_empty() {
                node.pod_cidrs = before.pod_cidrs;
            }
        }
        self.own_node = Some(node);
    }

    /// Adds the Services that have an address as external or load-balancer IP to the affected ones.
    fn affect_virtual_ip(&mut self, address: IpAddr) {
        self.affected.extend(self.index.with_virtual_ip(address).cloned());
    }

    /// Bounds the affected Services, see [`AffectedServices::limit`].
    fn limit_affected(&mut self) {
        self.affected.limit(self.resolvable.len());
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
            let hinted: BTreeSet<ObjectName> = self
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

    fn ports_of(&self, service: &ObjectName) -> &[PortSpec] {
        let resolvable = self.resolvable.get(service);
        let ports = resolvable.and_then(|resolvable| resolvable.ports.as_ref());
        ports.map_or(&[], |ports| &ports.ports)
    }
}

/// Whether an endpoint does not accept traffic any more, or the first one does.
fn is_urgent(before: Option<&EndpointSlice>, now: Option<&EndpointSlice>) -> bool {
    fn accepting(slice: Option<&EndpointSlice>) -> impl Iterator<Item = IpAddr> + '_ {
        let endpoints = slice.into_iter().flat_map(|slice| &slice.endpoints);
        endpoints
            .filter(|endpoint| endpoint.conditions.ready)
            .map(|endpoint| endpoint.address)
    }
    let accepts: BTreeSet<IpAddr> = accepting(now).collect();
    let mut accepted = accepting(before).peekable();
    let had_any = accepted.peek().is_some();
    accepted.any(|address| !accepts.contains(&address)) || (!had_any && !accepts.is_empty())
}

/// Events about the parts of a slice that are ignored, sorted.
fn slice_events(slice: &EndpointSlice) -> Vec<Event> {
    let subject = || Subject::Object(Kind::EndpointSlice, slice.name.clone());
    let mut events = endpoints::unusable(slice)
        .map(|reason| Event {
            subject: subject(),
            reason,
        })
        .collect();
    event::limit(&mut events);
    events
}
