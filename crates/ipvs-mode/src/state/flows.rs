//! Destinations of UDP flows whose stale flows are to be deleted.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use kernlink_host::flows::FlowDestination;
use kernlink_ipset::Entry;
use kernlink_ipvs::{ForwardingMethod, Operation, Protocol, RealServer, VirtualServerKey};
use kernlink_services::Family;

use super::{ObservedServer, State};
use crate::ownership::{Identified, identified};
use crate::sets::SetId;

impl State {
    /// The UDP destination whose flows an operation makes stale: it removes a virtual server or a real server, or adds the first real
    /// server.
    pub(crate) fn flows_changed_by(&self, operation: &Operation) -> Option<SocketAddr> {
        match operation {
            Operation::DeleteVirtualServer(key)
            | Operation::DeleteRealServer {
                virtual_server: key, ..
            } => udp_address(key),
            Operation::AddRealServer {
                virtual_server: key, ..
            } => {
                let observed = self.servers.observed(key);
                let is_first = observed.is_none_or(|server| server.real_servers.is_empty());
                udp_address(key).filter(|_| is_first)
            }
            _ => None,
        }
    }

    /// Compares a virtual server that was read again with what is recorded. Its flows are stale if it lost a real server or got the first
    /// one since: by an operation whose outcome was unknown, or by another program.
    pub(crate) fn compare_flows(&mut self, key: &VirtualServerKey, read: Option<&ObservedServer>) {
        let (Some(address), Some(before)) = (udp_address(key), self.servers.observed(key)) else {
            return;
        };
        let is_stale = before.is_owned
            && read.is_none_or(|read| {
                let is_first = before.real_servers.is_empty() && !read.real_servers.is_empty();
                let mut servers = before.real_servers.iter();
                is_first || servers.any(|(server, _)| read.real_server(server).is_none())
            });
        if is_stale {
            self.flows.add_stale(address);
            self.flows.set_dirty(Family::of(address.ip()));
        }
    }

    /// The same for all virtual servers.
    pub(crate) fn compare_flows_of_all(&mut self, read: &[(VirtualServerKey, ObservedServer)]) {
        let is_udp = |key: &VirtualServerKey| udp_address(key).is_some();
        let before = self.servers.iter_observed().map(|(key, _)| *key);
        let before: Vec<VirtualServerKey> = before.filter(is_udp).collect();
        let read: HashMap<&VirtualServerKey, &ObservedServer> = read
            .iter()
            .filter(|(key, _)| is_udp(key))
            .map(|(key, server)| (key, server))
            .collect();
        for key in before {
            self.compare_flows(&key, read.get(&key).copied());
        }
    }

    /// The valid flows to an address.
    pub(crate) fn flow_destination(&self, address: SocketAddr) -> FlowDestination {
        match self.servers.desired(&virtual_server(address)) {
            Some(desired) => {
                let servers = desired.real_servers.iter();
                let is_unchanged =
                    |server: &RealServer| !matches!(server.forwarding, ForwardingMethod::Masquerade);
                let admits_untranslated = servers.clone().any(is_unchanged);
                let endpoints = servers.map(|server| SocketAddr::new(server.key.address, server.key.port));
                FlowDestination::served(address, endpoints.collect(), admits_untranslated)
            }
            None => FlowDestination::withdrawn(address),
        }
    }

    /// The UDP frontends that an entry of a set names and that have no virtual server: those of node ports at these addresses.
    pub(crate) fn left_over(&self, set: SetId, entry: &Entry, node_addresses: &[IpAddr]) -> Vec<SocketAddr> {
        let keys = match identified(set, entry) {
            Some(Identified::VirtualServer(key)) => vec![key],
            Some(Identified::NodePort(protocol, port)) => node_addresses
                .iter()
                .map(|address| VirtualServerKey::new(*address, port, protocol))
                .collect(),
            None => Vec::new(),
        };
        let without_server = keys
            .iter()
            .filter(|key| !self.servers.is_observed(key) && !self.servers.is_desired(key));
        without_server.filter_map(udp_address).collect()
    }

    /// Compares the flows that were read with the desired real servers. Destinations of withdrawn virtual servers are found by the steps
    /// that remove these.
    pub(crate) fn find_stale_flows(&mut self) {
        for (address, reply_source) in self.flows.take_observed() {
            let is_desired = self.servers.is_desired(&virtual_server(address));
            if is_desired && !self.flow_destination(address).admits(reply_source) {
                self.flows.add_stale(address);
            }
        }
    }
}

fn virtual_server(address: SocketAddr) -> VirtualServerKey {
    VirtualServerKey::udp(address.ip(), address.port())
}

/// The address and port of a UDP virtual server.
pub(crate) fn udp_address(key: &VirtualServerKey) -> Option<SocketAddr> {
    match *key {
        VirtualServerKey::Address {
            address,
            protocol: Protocol::Udp,
            port,
        } => Some(SocketAddr::new(address, port)),
        _ => None,
    }
}
