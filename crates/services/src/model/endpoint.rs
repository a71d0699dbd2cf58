//! An endpoint of one service port.

use std::net::IpAddr;

use crate::source::{Conditions, Endpoint as SliceEndpoint, Hints};

/// An endpoint of a service port: one entry of one slice, with one of the slice's ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint<'a> {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) conditions: Conditions,
    /// Whether it runs on this node.
    pub(crate) local: bool,
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
            local: !this_node.is_empty() && endpoint.node.as_deref() == Some(this_node),
            node: endpoint.node.as_deref(),
            zone: endpoint.zone.as_deref(),
            hints: endpoint.hints.as_deref(),
        }
    }

    pub(crate) fn ready(&self) -> bool {
        self.conditions.ready
    }

    /// On its way out, but still able to answer.
    pub(crate) fn serves_while_terminating(&self) -> bool {
        self.conditions.serving && self.conditions.terminating
    }

    /// Which of two entries for one address and port counts: the lower. kube-proxy takes the one that happens to come last,
    /// unless that is terminating.
    pub(crate) fn rank(&self) -> (bool, bool, bool) {
        (self.conditions.terminating, !self.local, !self.conditions.ready)
    }
}

/// Sorts endpoints by address and port and keeps one of each. Entries of equal rank count in the order given.
pub(crate) fn without_duplicates(endpoints: &mut Vec<Endpoint<'_>>) {
    // A list has addresses of one family, which their bits put in order.
    let place = |endpoint: &Endpoint<'_>| (bits(endpoint.address), endpoint.port);
    endpoints.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.rank().cmp(&b.rank())));
    endpoints.dedup_by(|later, earlier| (later.address, later.port) == (earlier.address, earlier.port));
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
