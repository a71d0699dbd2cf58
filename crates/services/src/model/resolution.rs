//! Resolution: from the specification of a service port and its EndpointSlices to frontends and endpoints.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnet::IpNet;

use super::endpoint::Endpoint;
use super::frontend_kind::FrontendKind;
use super::port_spec::PortSpec;
use super::service_port::{ChosenEndpoint, ChosenEndpoints, Frontend, HealthCheck, ServicePort};
use super::{Model, endpoints, topology};
use crate::event::{self, AddressScope, Event, Reason};
use crate::source::{EndpointSlice, ObjectName};

impl Model {
    /// The resolved ports of a Service, IPv4 first. Empty if the Service does not exist or is not served.
    pub(crate) fn service_ports(&self, service: &ObjectName) -> Vec<ServicePort> {
        let Some(resolvable) = self.resolvable.get(service) else {
            return Vec::new();
        };
        let slices = resolvable.slices.iter().map(Arc::as_ref);
        let ports = resolvable.ports.as_ref().map_or(&[][..], |ports| &ports.ports);
        // Counted once per family, for all ports of the Service.
        let mut local_endpoints: [Option<usize>; 2] = [None; 2];
        ports
            .iter()
            .map(|port| {
                let family = port.family();
                let count = |local_endpoints: &mut Option<usize>| {
                    *local_endpoints.get_or_insert_with(|| {
                        endpoints::local_ready_addresses(slices.clone(), family, &self.config.node_name)
                    })
                };
                let health_check = port.service.health_check_node_port.map(|port| HealthCheck {
                    port,
                    service: service.clone(),
                    local_endpoints: count(&mut local_endpoints[family.index()]),
                });
                self.service_port(port, slices.clone(), health_check)
            })
            .collect()
    }

    fn service_port<'a>(
        &self,
        port: &PortSpec,
        slices: impl Iterator<Item = &'a EndpointSlice>,
        health_check: Option<HealthCheck>,
    ) -> ServicePort {
        let family = port.family();
        let node_name = &self.config.node_name;
        let mut events = Vec::new();
        let endpoints = endpoints::of_port(slices, family, &port.name.port, port.name.protocol, node_name);
        let choice = topology::choose(&endpoints, port, node_name, self.node_facts.zone());
        let chosen = |list: &[&Endpoint<'_>]| {
            list.iter()
                .map(|e| ChosenEndpoint {
                    address: e.address,
                    port: e.port,
                    weight: port.service.options.weights.of(e.node, e.zone),
                    is_local: e.is_local,
                })
                .collect()
        };
        let frontends = self.frontends(port, &mut events);
        event::limit(&mut events);
        ServicePort {
            key: port.key(),
            created: port.service.created,
            frontends,
            node_port: port.node_port,
            external_policy: port.service.external_policy,
            endpoints: ChosenEndpoints {
                cluster: chosen(&choice.cluster),
                local: chosen(&choice.local),
                has_any: choice.has_any,
            },
            endpoint_count: endpoints.len(),
            local_endpoints: endpoints
                .iter()
                .filter(|e| e.is_local)
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
        let unrestricted: Arc<[IpNet]> = Arc::default();
        let frontend = |kind, address, number: NonZeroU16| Frontend {
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
        // An external IP that is also the address of a load balancer with source ranges is restricted.
        let is_restricted =
            |address: &IpAddr| !spec.source_ranges.is_empty() && spec.load_balancer_ips.contains(address);
        let external = spec
            .external_ips
            .iter()
            .filter(|address| !is_restricted(address))
            .map(|&address| (FrontendKind::ExternalIp, address));
        let balanced = spec
            .load_balancer_ips
            .iter()
            .map(|&address| (FrontendKind::LoadBalancer, address));
        for (kind, address) in external.chain(balanced) {
            if let Some(reason) = self.unusable_on_node(address) {
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

    /// The reason why a virtual IP must not be served on this node, if there is one.
    fn unusable_on_node(&self, address: IpAddr) -> Option<Reason> {
        if let Some(reason) = unusable(address) {
            return Some(reason);
        }
        let node = self.other_nodes.with_address(address)?;
        Some(Reason::AddressOfOtherNode {
            address,
            node: node.clone(),
        })
    }
}

/// The reason why an address cannot be a virtual IP on any node, if there is one.
fn unusable(address: IpAddr) -> Option<Reason> {
    let scope = AddressScope::of(address)?;
    Some(Reason::UnusableVirtualIp { address, scope })
}
