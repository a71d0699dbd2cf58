//! Compiles a service port to the kernel objects that it needs.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use kernlink_ipset::Entry;
use kernlink_ipvs::{RealServer, VirtualServer};
use kernlink_services::event::limit;
use kernlink_services::{
    Event, Family, Frontend, FrontendKey, FrontendKind, Precedence, Reason, ServicePort, ServicePortName,
    TrafficPolicy,
};

use super::drain::Drain;
use super::forwarding::Forwarding;
use super::options::IpvsOptions;
use super::sets::{self, SetId};
use super::virtual_servers::{self, RealServers, serving};

/// The kernel objects that a service port needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Compiled {
    /// One for each frontend key that the service port owns.
    pub(super) frontends: Vec<CompiledFrontend>,
    /// Entries that belong to no frontend, sorted, each once.
    pub(super) entries: Vec<(SetId, Entry)>,
    /// Events about how the service port is served.
    pub(super) events: Vec<Event>,
}

/// The kernel objects that a frontend needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CompiledFrontend {
    pub(super) policy: TrafficPolicy,
    pub(super) forwarding: Forwarding,
    pub(super) virtual_server: VirtualServer,
    /// Sorted by key.
    pub(super) real_servers: Arc<[RealServer]>,
    pub(super) drain: Drain,
    /// The address to bind.
    pub(super) address: Option<IpAddr>,
    pub(super) entries: Vec<(SetId, Entry)>,
    /// The frontend, if processes of this node must not reach it.
    pub(super) denied_to_node: Option<FrontendKey>,
}

/// Compiles a service port with the frontends that it owns.
pub(super) fn compile<'a>(
    port: &ServicePort,
    owned: impl Iterator<Item = &'a Frontend>,
    options: &IpvsOptions,
) -> Compiled {
    let mut compiled = Compiled {
        frontends: Vec::with_capacity(port.frontends.len()),
        ..Compiled::default()
    };
    let event = |reason| Event::service(port.key.name.service.clone(), reason);
    compiled.events.extend(local_policy_events(port).map(event));
    let (virtual_ips, obstacle) = forwarding_of_virtual_ips(port, options);
    compiled.events.extend(obstacle.map(event));
    let mut real_servers = RealServers::default();
    let mut known: HashMap<_, usize> = HashMap::new();
    for frontend in owned {
        let is_virtual_ip = matches!(
            frontend.kind,
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer
        );
        if is_virtual_ip && frontend.is_node_address {
            compiled
                .events
                .push(event(address_of_this_node(frontend.address)));
        }
        let forwarding = if is_virtual_ip {
            virtual_ips
        } else {
            Forwarding::Masquerade
        };
        let new = compile_frontend(port, frontend, forwarding, options, &mut real_servers);
        // The common case is one frontend, which needs no map.
        let place = if port.frontends.len() > 1 {
            known.insert(new.virtual_server.key, compiled.frontends.len())
        } else {
            None
        };
        let Some(place) = place else {
            compiled.frontends.push(new);
            continue;
        };
        known.insert(new.virtual_server.key, place);
        match compiled.frontends.get_mut(place) {
            Some(known) if known.agrees_with(&new) => known.merge(new),
            _ => compiled.events.push(event(conflict(port, frontend))),
        }
    }
    compiled.entries = sets::of_endpoints(port);
    compiled.entries.extend(
        port.health_check
            .as_ref()
            .map(|check| (SetId::HealthCheckNodePort, Entry::port(check.port.get()))),
    );
    limit(&mut compiled.events);
    compiled
}

fn compile_frontend(
    port: &ServicePort,
    frontend: &Frontend,
    forwarding: Forwarding,
    options: &IpvsOptions,
    real_servers: &mut RealServers,
) -> CompiledFrontend {
    // Cluster IPs are always bound; external and load-balancer IPs unless another link of this node has them; node ports never,
    // because the node has these addresses already.
    let bind = match frontend.kind {
        FrontendKind::ClusterIp => true,
        FrontendKind::ExternalIp | FrontendKind::LoadBalancer => !frontend.is_node_address,
        FrontendKind::NodePort => false,
    };
    let address = bind.then_some(frontend.address);
    let virtual_server = virtual_servers::virtual_server(port, frontend, options);
    let mut entries = sets::of_frontend(frontend, forwarding);
    entries.extend(sets::of_virtual_server(&virtual_server.key).map(|entry| (SetId::Ledger, entry)));
    entries.extend(address.map(|address| (SetId::IpvsIps, Entry::ip(address))));
    CompiledFrontend {
        policy: frontend.policy,
        forwarding,
        drain: Drain::of(&virtual_server, port.options.drain_timeout),
        virtual_server,
        real_servers: real_servers.of(port, frontend.policy, forwarding),
        address,
        entries,
        denied_to_node: (!frontend.admits_node).then(|| FrontendKey::of(frontend)),
    }
}

impl CompiledFrontend {
    fn agrees_with(&self, other: &Self) -> bool {
        self.policy == other.policy
            && self.forwarding == other.forwarding
            && self.virtual_server == other.virtual_server
    }

    fn merge(&mut self, other: Self) {
        self.address = self.address.or(other.address);
        self.denied_to_node = self.denied_to_node.or(other.denied_to_node);
        for entry in other.entries {
            if !self.entries.contains(&entry) {
                self.entries.push(entry);
            }
        }
    }
}

/// The forwarding method of external and load-balancer IPs: the configured one, unless an endpoint that serves them cannot be reached by
/// it.
fn forwarding_of_virtual_ips(port: &ServicePort, options: &IpvsOptions) -> (Forwarding, Option<Reason>) {
    let method = options.forwarding;
    let is_virtual_ip = |frontend: &&Frontend| {
        matches!(
            frontend.kind,
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer
        )
    };
    let Some(frontend) = port.frontends.iter().find(is_virtual_ip) else {
        return (Forwarding::Masquerade, None);
    };
    let serving = serving(&port.endpoints, frontend.policy);
    let Some((endpoint, obstacle)) = method.obstacle(frontend.port, serving) else {
        return (method, None);
    };
    let name = &port.key.name;
    let text = format!(
        "forwarding-method: {method}: {name} is masqueraded, because its endpoint {endpoint} {obstacle}"
    );
    let reason = Reason::DataPath {
        code: "MasqueradedInstead",
        text,
    };
    (Forwarding::Masquerade, Some(reason))
}

/// Events for traffic policies `Local` without an endpoint on this node: all endpoints are used.
fn local_policy_events(port: &ServicePort) -> impl Iterator<Item = Reason> {
    let falls_back = port.endpoints.local.is_empty() && !port.endpoints.cluster.is_empty();
    let uses = |internal: bool| {
        let frontends = port.frontends.iter().filter(|_| falls_back);
        let mut of_traffic =
            frontends.filter(|frontend| (frontend.kind == FrontendKind::ClusterIp) == internal);
        of_traffic.any(|frontend| frontend.policy == TrafficPolicy::Local)
    };
    let (name, family): (&ServicePortName, Family) = (&port.key.name, port.key.family);
    let reason = |field: &str| Reason::DataPath {
        code: "LocalPolicyFallsBack",
        text: format!("{field}: Local: {name} has no {family} endpoint on this node, so all are used"),
    };
    let internal = uses(true).then(|| reason("internalTrafficPolicy"));
    let external = uses(false).then(|| reason("externalTrafficPolicy"));
    internal.into_iter().chain(external)
}

fn address_of_this_node(address: IpAddr) -> Reason {
    Reason::DataPath {
        code: "AddressOfThisNode",
        text: format!("{address} is an address of this node: it is served, but not bound to the dummy link"),
    }
}

/// The event for a frontend whose virtual server differs from that of an earlier frontend of the same service port with the same key.
fn conflict(port: &ServicePort, frontend: &Frontend) -> Reason {
    let key = FrontendKey::of(frontend);
    let mut frontends = port.frontends.iter();
    let earlier = frontends.find(|other| FrontendKey::of(other) == key);
    Reason::Conflict {
        kind: frontend.kind,
        address: frontend.address,
        port: frontend.port,
        protocol: frontend.protocol,
        owner: port.key.name.clone(),
        precedence: Precedence::SamePort(earlier.unwrap_or(frontend).kind),
    }
}
