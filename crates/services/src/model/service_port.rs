//! The result of the model: how a service port is reached, and what serves it. It knows nothing of any data path.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;

use super::options::Options;
use super::port_spec::ServicePortKey;
use crate::event::Event;
use crate::source::{ObjectName, Protocol, TrafficPolicy};

/// A port of a Service in one family, resolved on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePort {
    /// The service port.
    pub key: ServicePortKey,
    /// `metadata.creationTimestamp` of the Service. The older Service owns a frontend that two define; one without a time is
    /// younger than any other.
    pub created: Option<SystemTime>,
    /// How it is reached, ordered by kind, within a kind as in the Service. Each address occurs at most once per kind.
    pub frontends: Vec<Frontend>,
    /// What serves it.
    pub endpoints: ChosenEndpoints,
    /// All endpoints on this node, ready or not, sorted, each once: pods that may reach themselves through the Service
    /// (hairpin).
    pub local_endpoints: Vec<(IpAddr, u16)>,
    /// The health-check node port of the Service.
    pub health_check: Option<HealthCheck>,
    /// What the Service asks for beyond Kubernetes.
    pub options: Arc<Options>,
    /// Events about it.
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
    pub policy: TrafficPolicy,
    /// How long a client sticks to an endpoint; `None` balances each connection by itself.
    pub affinity: Option<Duration>,
    /// Which sources may come in, sorted; empty lets all in. Only load balancers have any.
    pub source_ranges: Arc<[IpNet]>,
    /// Whether the node's own address is in one of the source ranges; `true` without ranges.
    pub admits_node: bool,
    /// Whether an interface of this node has the address, see [`Services::set_interface_addresses`](crate::Services::set_interface_addresses).
    pub is_node_address: bool,
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
    /// For the policy `Cluster`, sorted by address and port; empty where no frontend uses it.
    pub cluster: Vec<ChosenEndpoint>,
    /// For the policy `Local`, sorted; empty where no frontend uses it or none is on this node. What happens to traffic then is
    /// up to the data path.
    pub local: Vec<ChosenEndpoint>,
    /// Whether any endpoint, on any node, can take traffic.
    pub has_any: bool,
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
    /// Whether it is on this node.
    pub is_local: bool,
}

/// The port at which a load balancer checks whether a Service has endpoints on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: NonZeroU16,
    /// The Service.
    pub service: ObjectName,
    /// How many of its addresses are on this node and ready.
    pub local_endpoints: usize,
}
