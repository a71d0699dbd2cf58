//! The kinds of frontends.

use std::fmt;

/// The field that the address of a frontend is from. See [`precedence`](Self::precedence) for the order in arbitration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// `clusterIPs`.
    ClusterIp,
    /// `externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// `nodePort` at an address of this node.
    NodePort,
}

impl FrontendKind {
    /// The position of the kind in arbitration: of several Services with one address, port and protocol, that with the lowest position
    /// owns it, regardless of age. Cluster IPs (0) and node ports (1) are allocated by the API server, which gives none to two Services.
    /// Load-balancer IPs (2) are written by a controller. External IPs (3) are what a user of any namespace writes.
    #[must_use]
    pub fn precedence(self) -> u8 {
        match self {
            FrontendKind::ClusterIp => 0,
            FrontendKind::NodePort => 1,
            FrontendKind::LoadBalancer => 2,
            FrontendKind::ExternalIp => 3,
        }
    }
}

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrontendKind::ClusterIp => "cluster IP",
            FrontendKind::ExternalIp => "external IP",
            FrontendKind::LoadBalancer => "load-balancer IP",
            FrontendKind::NodePort => "node port",
        })
    }
}
