//! Destinations of UDP flows whose stale flows are to be deleted.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use kernlink_ipvs::{ForwardingMethod, Operation, Protocol, RealServer, VirtualServerKey};
use kernlink_services::Family;

use super::{ObservedServer, State};
use crate::netfilter::DeleteFlows;
use crate::netfilter::flows::{FlowDestination, Reading};

/// What is known about the UDP flows in connection tracking.
///
/// The table is read once, by the first listing. Afterwards only passes read it, and only after changes that make flows stale.
#[derive(Clone, Debug, Default)]
pub(in crate::ipvs_mode) struct Flows {
    pub(in crate::ipvs_mode) reading: Reading,
    /// Destination and reply source of the flows to UDP virtual servers, as read, until the next plan compares them.
    pub(in crate::ipvs_mode) observed: BTreeSet<(SocketAddr, SocketAddr)>,
    /// By family: the destinations whose stale flows were not deleted yet.
    pending: [BTreeSet<SocketAddr>; 2],
    is_dirty: [bool; 2],
}

impl Flows {
    pub(in crate::ipvs_mode) fn set_dirty(&mut self, family: Family) {
        self.is_dirty[family.index()] = true;
    }

    pub(super) fn is_dirty(&self, family: Family) -> bool {
        self.is_dirty[family.index()]
    }

    pub(super) fn clear_dirty(&mut self) {
        self.is_dirty = [false; 2];
    }

    /// The destinations whose stale flows were not deleted yet.
    pub(in crate::ipvs_mode) fn pending(&self, family: Family) -> &BTreeSet<SocketAddr> {
        &self.pending[family.index()]
    }

    /// Whether a pass for the pending destinations is to be planned.
    pub(in crate::ipvs_mode) fn is_due(&self, family: Family) -> bool {
        self.is_dirty(family) && !self.pending(family).is_empty()
    }

    pub(super) fn add_pending(&mut self, address: SocketAddr) {
        let family = Family::of(address.ip());
        self.pending[family.index()].insert(address);
    }

    /// Records that a pass failed: its destinations are those of the next one too.
    pub(in crate::ipvs_mode) fn keep_pending(&mut self, operation: &DeleteFlows) {
        let destinations = operation
            .destinations
            .iter()
            .map(|destination| destination.address);
        self.pending[operation.family.index()].extend(destinations);
    }

    pub(super) fn remove_pending(&mut self, operation: &DeleteFlows) {
        let pending = &mut self.pending[operation.family.index()];
        for destination in &operation.destinations {
            pending.remove(&destination.address);
        }
    }
}

impl State {
    /// The UDP destination whose flows an operation makes stale: it removes a virtual server or a real server, or adds the first real
    /// server.
    pub(in crate::ipvs_mode) fn flows_changed_by(&self, operation: &Operation) -> Option<SocketAddr> {
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
    pub(in crate::ipvs_mode) fn compare_flows(
        &mut self,
        key: &VirtualServerKey,
        read: Option<&ObservedServer>,
    ) {
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
            self.flows.add_pending(address);
            self.flows.set_dirty(Family::of(address.ip()));
        }
    }

    /// The same for all virtual servers.
    pub(in crate::ipvs_mode) fn compare_flows_of_all(&mut self, read: &[(VirtualServerKey, ObservedServer)]) {
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
    pub(in crate::ipvs_mode) fn flow_destination(&self, address: SocketAddr) -> FlowDestination {
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

    /// Compares the flows that were read with the desired real servers. Destinations of withdrawn virtual servers are found by the steps
    /// that remove these.
    pub(in crate::ipvs_mode) fn find_stale_flows(&mut self) {
        for (address, reply_source) in std::mem::take(&mut self.flows.observed) {
            let is_desired = self.servers.is_desired(&virtual_server(address));
            if is_desired && !self.flow_destination(address).admits(reply_source) {
                self.flows.add_pending(address);
            }
        }
    }
}

fn virtual_server(address: SocketAddr) -> VirtualServerKey {
    VirtualServerKey::udp(address.ip(), address.port())
}

/// The address and port of a UDP virtual server.
pub(in crate::ipvs_mode) fn udp_address(key: &VirtualServerKey) -> Option<SocketAddr> {
    match *key {
        VirtualServerKey::Address {
            address,
            protocol: Protocol::Udp,
            port,
        } => Some(SocketAddr::new(address, port)),
        _ => None,
    }
}
