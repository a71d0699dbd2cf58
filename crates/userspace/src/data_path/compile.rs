//! Compiles a service port to portals. Pure functions.

use std::sync::Arc;

use kernlink_services::Reason;
use kernlink_services::{
    ChosenEndpoint, Event, Frontend, FrontendKind, NodeFacts, Protocol, ServicePort, TrafficPolicy,
};

use super::portal::{Entrance, Portal, PortalKey};
use crate::balance::{Affinity, Backend};
use crate::proxy::{Serving, Transport};

/// The portals of a service port: one for the frontends of each traffic policy, those with source ranges apart. Node ports are at every address of
/// the node, or at those that its other links have if virtual IPs of a retiring mode are addresses of the node too: a node port of one Service may
/// be the port of another one there.
pub(super) fn compile<'a>(
    port: &ServicePort,
    owned: impl Iterator<Item = &'a Frontend>,
    node: &NodeFacts,
    has_virtual_ips: bool,
) -> (Vec<Portal>, Vec<Event>) {
    let family = port.key.family;
    let owned: Vec<&Frontend> = owned.collect();
    let mut portals: Vec<Portal> = Vec::new();
    let mut events = Vec::new();
    for (position, frontend) in owned.iter().enumerate() {
        let is_same = |other: &&&Frontend| is_same_address(frontend, other);
        if owned.iter().take(position).any(|other| is_same(&other)) {
            continue;
        }
        let transport = match frontend.protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp => {
                if events.is_empty() {
                    let text = format!(
                        "{} has protocol SCTP; valid in userspace mode: TCP, UDP",
                        port.key.name
                    );
                    events.push(event(port, "ProtocolUnsupported", text));
                }
                continue;
            }
        };
        let key = PortalKey {
            port: port.key.clone(),
            transport,
            policy: frontend.policy,
            is_restricted: !frontend.source_ranges.is_empty(),
        };
        // Of an external IP that is also the address of a load balancer, all traffic is captured.
        let is_balanced = |other: &&Frontend| other.kind == FrontendKind::LoadBalancer;
        let kind = match owned.iter().filter(is_same).find(|other| is_balanced(other)) {
            Some(balanced) => balanced.kind,
            None => frontend.kind,
        };
        let accepts_all = frontend.kind == FrontendKind::NodePort && node.accepts_all_node_ports(family);
        let address = Some(frontend.address).filter(|_| !accepts_all || has_virtual_ips);
        let loopback = node.loopback_node_port_addresses(family).iter().copied();
        let loopback = loopback.filter(|_| accepts_all && has_virtual_ips).map(Some);
        let entrances = std::iter::once(address).chain(loopback).map(|address| Entrance {
            kind,
            address,
            port: frontend.port,
            is_node_address: frontend.is_node_address,
        });
        let known = portals.iter().position(|portal| portal.key == key);
        let place = known.unwrap_or(portals.len());
        if known.is_none() {
            portals.push(Portal {
                key,
                entrances: Vec::new(),
                serving: serving(port, frontend),
                is_dropped: is_dropped(port, frontend),
            });
        }
        if let Some(portal) = portals.get_mut(place) {
            for entrance in entrances {
                if !portal.entrances.contains(&entrance) {
                    portal.entrances.push(entrance);
                }
            }
        }
    }
    for portal in &mut portals {
        // Stable: frontends of a kind keep their order. kube-proxy writes external IPs before load-balancer IPs, as the kinds are sorted.
        portal.entrances.sort_by_key(|entrance| entrance.kind);
    }
    (portals, events)
}

/// An event of this data path about a Service.
pub(super) fn event(port: &ServicePort, code: &'static str, text: String) -> Event {
    Event::service(port.key.name.service.clone(), Reason::DataPath { code, text })
}

/// Whether two frontends of a service port have rules for the same address and port: an external IP may be the address of a load balancer too.
/// The first one decides.
fn is_same_address(a: &Frontend, b: &Frontend) -> bool {
    let is_node_port = |frontend: &Frontend| frontend.kind == FrontendKind::NodePort;
    let key = |frontend: &Frontend| (frontend.address, frontend.port, frontend.protocol);
    !is_node_port(a) && !is_node_port(b) && key(a) == key(b)
}

/// As in the other modes: with no endpoint on any node, connections are refused instead.
fn is_dropped(port: &ServicePort, frontend: &Frontend) -> bool {
    frontend.policy == TrafficPolicy::Local && port.endpoints.local.is_empty() && port.endpoints.has_any
}

fn serving(port: &ServicePort, frontend: &Frontend) -> Serving {
    let chosen: &[ChosenEndpoint] = match frontend.policy {
        TrafficPolicy::Cluster => &port.endpoints.cluster,
        TrafficPolicy::Local => &port.endpoints.local,
    };
    let backends = chosen.iter().map(|endpoint| Backend {
        address: (endpoint.address, endpoint.port).into(),
        weight: endpoint.weight,
    });
    let prefix = port.options.affinity_mask.of(port.key.family);
    Serving {
        backends: backends.collect(),
        affinity: frontend.affinity.map(|timeout| Affinity { timeout, prefix }),
        source_ranges: Arc::clone(&frontend.source_ranges),
        translated_only: true,
    }
}
