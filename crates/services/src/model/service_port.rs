//! The result of resolution: the frontends and endpoints of a service port.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;

use super::frontend_kind::FrontendKind;
use super::options::Options;
use super::service_port_name::ServicePortKey;
use crate::event::Event;
use crate::source::{ObjectName, Protocol, TrafficPolicy};

/// A port of a Service in one family, resolved on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePort {
    /// The name and family.
    pub key: ServicePortKey,
    /// `metadata.creationTimestamp` of the Service. Of several Services with one frontend of one kind the oldest owns it; a Service
    /// without it counts as the youngest.
    pub created: Option<SystemTime>,
    /// The frontends, sorted by kind, those of a kind in the order of the Service. An address occurs at most once per kind.
    pub frontends: Vec<Frontend>,
    /// `nodePort`. It is set even if no address of this node accepts node ports, so that there is no frontend for it.
    pub node_port: Option<NonZeroU16>,
    /// `externalTrafficPolicy`, for all external frontends; `Cluster` if the Service has none.
    pub external_policy: TrafficPolicy,
    /// The endpoints, by traffic policy.
    pub endpoints: ChosenEndpoints,
    /// The number of all endpoints, chosen or not, ready or not.
    pub endpoint_count: usize,
    /// All endpoints on this node, ready or not, sorted, each once: pods that may reach themselves through the Service (hairpin).
    pub local_endpoints: Vec<(IpAddr, u16)>,
    /// The health-check node port of the Service.
    pub health_check: Option<HealthCheck>,
    /// The options from annotations of the Service and the configuration.
    pub options: Arc<Options>,
    /// Events about the service port.
    pub events: Vec<Event>,
}

/// An address, protocol and port at which a service port is reachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// The field that the address is from.
    pub kind: FrontendKind,
    /// The address.
    pub address: IpAddr,
    /// The port; never 0.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The traffic policy: the internal one for a cluster IP, the external one for other kinds.
    pub policy: TrafficPolicy,
    /// The timeout of session affinity, 1 s to 24 h. `None`: each connection is balanced separately.
    pub affinity: Option<Duration>,
    /// The sources that are admitted, in the order of the Service, each once; if empty, all are. Only load-balancer IPs have source ranges.
    pub source_ranges: Arc<[IpNet]>,
    /// Whether the source ranges admit the node's address; true if [`source_ranges`](Self::source_ranges) is empty.
    pub admits_node: bool,
    /// Whether an interface of this node has the address, see [`Services::set_interface_addresses`](crate::Services::set_interface_addresses).
    pub is_node_address: bool,
}

/// The endpoints of a service port, chosen for each traffic policy as in kube-proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChosenEndpoints {
    /// For the policy `Cluster`, sorted by address and port; empty if no frontend has this policy.
    pub cluster: Vec<ChosenEndpoint>,
    /// For the policy `Local`, sorted by address and port; empty if no frontend has this policy, or if no endpoint is on this node. In
    /// the latter case the data path decides what happens to traffic.
    pub local: Vec<ChosenEndpoint>,
    /// Whether any endpoint, on any node, accepts traffic.
    pub has_any: bool,
}

/// An endpoint that receives traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenEndpoint {
    /// The address.
    pub address: IpAddr,
    /// The port; never 0.
    pub port: u16,
    /// The weight for new connections, relative to other endpoints; 0 receives none.
    pub weight: u16,
    /// Whether the endpoint is on this node.
    pub is_local: bool,
}

/// A health-check node port: load balancers query it to find out whether a Service has endpoints on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: NonZeroU16,
    /// The Service.
    pub service: ObjectName,
    /// The number of addresses of the Service that are on this node and ready.
    pub local_endpoints: usize,
}
