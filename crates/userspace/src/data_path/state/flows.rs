//! The UDP flows in connection tracking, and which of them are stale.
//!
//! The kernel translates all datagrams of a flow as its first one. A flow that rules led to another listening port, or that began before there
//! were rules, does not reach the present one as long as its client sends.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use kernlink_host::DeleteFlows;
use kernlink_host::flows::FlowDestination;
use kernlink_services::Family;

use super::State;
use crate::data_path::key::{Part, RulesKey};
use crate::proxy::Transport;

/// The keys of the rules that may capture UDP traffic to an address and port, the first one that exists does.
fn keys_of(destination: SocketAddr, is_node_address: bool) -> impl Iterator<Item = RulesKey> {
    let key = move |part, address| RulesKey {
        family: Family::of(destination.ip()),
        part,
        transport: Transport::Udp,
        address,
        port: destination.port(),
    };
    let address = Some(destination.ip());
    let any_address = is_node_address.then(|| key(Part::NodePorts, None));
    [key(Part::Portals, address), key(Part::NodePorts, address)]
        .into_iter()
        .chain(any_address)
}

impl State {
    /// Whether the kernel has rules that capture UDP traffic.
    pub(in crate::data_path) fn has_udp_rules(&self) -> bool {
        let mut observed = self.rules.iter().flat_map(|rules| rules.iter_observed());
        observed.any(|(key, _)| key.transport == Transport::Udp)
    }

    /// Whether rules in the kernel capture UDP traffic to an address and port.
    pub(in crate::data_path) fn is_captured(&self, destination: SocketAddr) -> bool {
        let mut keys = keys_of(destination, self.is_node_address(destination.ip()));
        keys.any(|key| self.rules[key.family.index()].is_observed(&key))
    }

    /// The addresses and ports whose traffic the rules of a key capture.
    pub(in crate::data_path) fn destinations(&self, key: &RulesKey) -> Vec<SocketAddr> {
        match (key.part, key.address) {
            (Part::Admission, _) => Vec::new(),
            (Part::Portals | Part::NodePorts, Some(address)) => vec![SocketAddr::new(address, key.port)],
            (Part::Portals, None) => Vec::new(),
            (Part::NodePorts, None) => {
                let addresses = self.node_addresses(key.family);
                addresses
                    .map(|address| SocketAddr::new(address, key.port))
                    .collect()
            }
        }
    }

    /// The pass over these destinations.
    pub(in crate::data_path) fn flows_pass(
        &self,
        family: Family,
        destinations: BTreeSet<SocketAddr>,
    ) -> DeleteFlows {
        let destinations = destinations.into_iter();
        DeleteFlows::new(family, destinations.map(|address| self.flow_destination(address)))
    }

    /// The valid flows to an address and port: those to the listening port of its portal.
    fn flow_destination(&self, destination: SocketAddr) -> FlowDestination {
        let family = Family::of(destination.ip());
        let mut keys = keys_of(destination, self.is_node_address(destination.ip()));
        let Some(desired) = keys.find_map(|key| self.rules[family.index()].desired(&key)) else {
            return FlowDestination::withdrawn(destination);
        };
        let listener = desired.listener.address;
        // REDIRECT chooses an address of the interface at which the first datagram arrived.
        let addresses: BTreeSet<IpAddr> = if listener.ip().is_unspecified() {
            let host = self.node.node_ip(family);
            self.node_addresses(family).chain([host]).collect()
        } else {
            [listener.ip()].into()
        };
        let sources = addresses.into_iter();
        let sources: Arc<[SocketAddr]> = sources
            .map(|address| SocketAddr::new(address, listener.port()))
            .collect();
        FlowDestination::served(destination, sources, !desired.captures_all)
    }

    /// Compares the flows that were read with the desired portals. Those to portals that are not desired are found by the writes that
    /// delete their rules.
    pub(in crate::data_path) fn find_stale_flows(&mut self) {
        for (destination, reply_source) in self.flows.take_observed() {
            let family = Family::of(destination.ip());
            let mut keys = keys_of(destination, self.is_node_address(destination.ip()));
            let is_desired = keys.any(|key| self.rules[family.index()].is_desired(&key));
            if is_desired && !self.flow_destination(destination).admits(reply_source) {
                self.flows.add_stale(destination);
            }
        }
    }

    fn node_addresses(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        let addresses = self.interfaces.iter().map(|interface| interface.address);
        addresses.filter(move |address| Family::of(*address) == family)
    }

    fn is_node_address(&self, address: IpAddr) -> bool {
        self.node_addresses(Family::of(address))
            .any(|of_node| of_node == address)
    }
}
