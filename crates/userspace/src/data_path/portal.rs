//! Portals: the frontends of a service port that lead to one listening port.

use std::fmt;
use std::net::IpAddr;

use kernlink_services::{Family, FrontendKind, ServicePortKey, TrafficPolicy};

use crate::proxy::{Serving, Transport};

/// Identifies a portal. Frontends of a service port that have the same endpoints and restrictions share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PortalKey {
    /// The service port.
    pub(super) port: ServicePortKey,
    /// Its protocol.
    pub(super) transport: Transport,
    /// The traffic policy of the frontends.
    pub(super) policy: TrafficPolicy,
    /// Whether the frontends have source ranges.
    pub(super) is_restricted: bool,
}

impl PortalKey {
    /// The address family.
    pub(super) fn family(&self) -> Family {
        self.port.family
    }
}

impl fmt::Display for PortalKey {
    /// `default/web:http (IPv4, tcp)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {}", self.port.name, self.port.family, self.transport)?;
        if self.policy == TrafficPolicy::Local {
            f.write_str(", local endpoints")?;
        }
        if self.is_restricted {
            f.write_str(", with source ranges")?;
        }
        f.write_str(")")
    }
}

/// An address and port that leads to a listening port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Entrance {
    pub(super) kind: FrontendKind,
    /// `None`: every address of this node.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    /// Whether the address is one of this node, so that another program could bind it.
    pub(super) is_node_address: bool,
}

impl Entrance {
    /// Whether its rules capture all traffic to the address: not that of programs of the node and of bridged pods to an external IP that the
    /// node does not have.
    pub(super) fn captures_all(&self) -> bool {
        self.kind != FrontendKind::ExternalIp || self.is_node_address
    }
}

/// A portal: its entrances, sorted by kind, and what its listening port serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Portal {
    pub(super) key: PortalKey,
    pub(super) entrances: Vec<Entrance>,
    pub(super) serving: Serving,
    /// Whether new connections are dropped: the traffic policy is `Local`, and all endpoints are on other nodes. A load balancer then tries
    /// another node.
    pub(super) is_dropped: bool,
}
