//! The neutral result of the model: how a service port is reached, and what serves it. Nothing here knows of sets, chains or
//! virtual servers, so that each mapping to a kernel can be replaced on its own.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;

use super::annotations::Options;
use super::forwarding::Forwarding;
use super::service_port::ServicePortKey;
use crate::event::Event;
use crate::source::{ObjectName, Policy, Protocol};

/// Everything a service port comes to in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct Exposure {
    /// The service port.
    pub key: ServicePortKey,
    /// `metadata.creationTimestamp` of the Service: who is older wins a conflict; absent is younger than any.
    pub created: Option<SystemTime>,
    /// How it is reached, ordered by kind, within a kind as in the Service. Each address at most once per kind.
    pub frontends: Vec<Frontend>,
    /// What serves it.
    pub endpoints: ChosenEndpoints,
    /// All endpoints on this node, ready or not, chosen or not, sorted, each once: they may reach themselves.
    pub local_endpoints: Vec<(IpAddr, u16)>,
    /// The health-check node port of the Service.
    pub health_check: Option<HealthCheck>,
    /// What the Service asks for beyond Kubernetes.
    pub options: Arc<Options>,
    /// What an operator should know.
    pub events: Vec<Event>,
}

/// One way to reach a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Where the address comes from.
    pub kind: FrontendKind,
    /// The address.
    pub address: IpAddr,
    /// The port; never 0.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// Whether traffic stays on this node.
    pub policy: Policy,
    /// How long a client sticks to an endpoint; `None` balances each connection by itself.
    pub affinity: Option<Duration>,
    /// Which sources may come in, sorted; empty lets all in. Only load balancers have any.
    pub source_ranges: Arc<[IpNet]>,
    /// Whether the node's own address is in one of the ranges; `true` without ranges.
    pub admits_node: bool,
    /// Whether the address is one of this node on a link of its own, so that it needs no binding.
    pub on_this_node: bool,
    /// How packets get to the endpoints. Of cluster IPs and node ports always [`Forwarding::Masquerade`].
    pub forwarding: Forwarding,
}

/// Where the address of a frontend comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// `clusterIPs`.
    ClusterIp,
    /// `externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// An address of this node with the node port.
    NodePort,
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

/// The endpoints of a service port by traffic policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChosenEndpoints {
    /// For a policy of `Cluster`, sorted by address and port; empty where no frontend needs it.
    pub cluster: Vec<ChosenEndpoint>,
    /// For a policy of `Local`, sorted; empty where no frontend needs it or none is on this node.
    pub local: Vec<ChosenEndpoint>,
    /// Whether any endpoint, on whatever node, could take traffic.
    pub any: bool,
}

impl ChosenEndpoints {
    /// What serves traffic of a policy: for `Local` without endpoints on this node that is all of them (as in kube-proxy's
    /// IPVS mode, since PR 97081).
    #[must_use]
    pub fn of(&self, policy: Policy) -> &[ChosenEndpoint] {
        serving(policy, &self.cluster, &self.local)
    }
}

/// Which of the two lists of endpoints serves traffic of a policy, see [`ChosenEndpoints::of`].
pub(super) fn serving<'a, T>(policy: Policy, cluster: &'a [T], local: &'a [T]) -> &'a [T] {
    match policy {
        Policy::Local if !local.is_empty() => local,
        Policy::Local | Policy::Cluster => cluster,
    }
}

/// One chosen endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenEndpoint {
    /// The address.
    pub address: IpAddr,
    /// The port; never 0.
    pub port: u16,
    /// Its share of new connections; 0 takes none.
    pub weight: u16,
}

/// The port at which a load balancer asks whether a Service has endpoints here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: NonZeroU16,
    /// The Service.
    pub service: ObjectName,
    /// How many of its addresses are on this node and ready.
    pub local_endpoints: usize,
}
