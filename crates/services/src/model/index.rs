//! Indexes of Services, by the facts of the node on which they depend.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::quality::RandomState;

use super::port_spec::PortSpec;
use super::service_spec::ServicePorts;
use crate::source::ObjectName;

/// The Services that depend on addresses of this node and of other nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceIndex {
    /// The Services with an external or load-balancer IP, by address.
    by_virtual_ip: HashMap<IpAddr, BTreeSet<ObjectName>, RandomState>,
    /// The Services with a node port.
    with_node_ports: BTreeSet<ObjectName>,
    /// The Services with source ranges.
    with_source_ranges: BTreeSet<ObjectName>,
}

impl ServiceIndex {
    /// The Services that have an address as external or load-balancer IP.
    pub(super) fn with_virtual_ip(&self, address: IpAddr) -> impl Iterator<Item = &ObjectName> {
        self.by_virtual_ip.get(&address).into_iter().flatten()
    }

    /// The Services with a node port, sorted.
    pub(super) fn with_node_ports(&self) -> impl Iterator<Item = &ObjectName> {
        self.with_node_ports.iter()
    }

    /// The Services with source ranges, sorted.
    pub(super) fn with_source_ranges(&self) -> impl Iterator<Item = &ObjectName> {
        self.with_source_ranges.iter()
    }

    /// Replaces the entries for the previous ports of a Service by those for its present ports.
    pub(super) fn update(
        &mut self,
        name: &ObjectName,
        before: Option<&ServicePorts>,
        now: Option<&ServicePorts>,
    ) {
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
        let update =
            |set: &mut BTreeSet<ObjectName>, is: fn(&PortSpec) -> bool| match (any(before, is), any(now, is))
            {
                (false, true) => _ = set.insert(name.clone()),
                (true, false) => _ = set.remove(name),
                _ => {}
            };
        update(&mut self.with_node_ports, |port| port.node_port.is_some());
        update(&mut self.with_source_ranges, |port| {
            !port.service.source_ranges.is_empty()
        });
    }
}

/// The external and load-balancer IPs of a Service, in all families.
fn virtual_ips(ports: &ServicePorts) -> impl Iterator<Item = IpAddr> + '_ {
    // The ports of one family are adjacent and share one specification.
    let specs = ports.ports.chunk_by(|a, b| Arc::ptr_eq(&a.service, &b.service));
    specs.filter_map(|ports| ports.first()).flat_map(|port| {
        let spec = &port.service;
        spec.external_ips.iter().chain(&spec.load_balancer_ips).copied()
    })
}
