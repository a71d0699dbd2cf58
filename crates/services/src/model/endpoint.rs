//! Endpoints of a service port.

use std::net::IpAddr;

use crate::source::{Conditions, Endpoint as SliceEndpoint, Hints};

/// An endpoint of a service port: an endpoint of a slice with one of the slice's ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint<'a> {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) conditions: Conditions,
    /// Whether it runs on this node.
    pub(crate) is_local: bool,
    pub(crate) node: Option<&'a str>,
    pub(crate) zone: Option<&'a str>,
    pub(crate) hints: Option<&'a Hints>,
}

impl<'a> Endpoint<'a> {
    pub(crate) fn new(endpoint: &'a SliceEndpoint, port: u16, this_node: &str) -> Self {
        Self {
            address: endpoint.address.to_canonical(),
            port,
            conditions: endpoint.conditions,
            is_local: !this_node.is_empty() && endpoint.node.as_deref() == Some(this_node),
            node: endpoint.node.as_deref(),
            zone: endpoint.zone.as_deref(),
            hints: endpoint.hints.as_deref(),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.conditions.ready
    }

    /// Whether it is used if no endpoint is ready: it terminates, but still accepts connections.
    pub(crate) fn is_serving_terminating(&self) -> bool {
        self.conditions.serving && self.conditions.terminating
    }

    /// The order of several entries with one address and port, of which the lowest is used. kube-proxy uses the one that it reads
    /// last, unless that one terminates.
    pub(crate) fn rank(&self) -> (bool, bool, bool) {
        (
            self.conditions.terminating,
            !self.is_local,
            !self.conditions.ready,
        )
    }
}

/// Sorts endpoints by address and port, and keeps the entry of the lowest rank of each. Of several with equal rank the first is kept.
pub(crate) fn sort_and_deduplicate(endpoints: &mut Vec<Endpoint<'_>>) {
    // All addresses have the same family, so their order is that of their bits.
    let socket = |endpoint: &Endpoint<'_>| (bits(endpoint.address), endpoint.port);
    endpoints.sort_by(|a, b| socket(a).cmp(&socket(b)).then_with(|| a.rank().cmp(&b.rank())));
    endpoints.dedup_by(|later, earlier| (later.address, later.port) == (earlier.address, earlier.port));
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
