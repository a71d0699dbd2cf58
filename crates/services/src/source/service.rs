//! Services, with the fields that a service proxy uses.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kernlink_base::Family;

use super::ObjectName;

/// A `v1` Service. Addresses and ranges are text as written; [`Services`](crate::Services) parses them and reports those that are
/// invalid in events.
///
/// `publishNotReadyAddresses` is missing, because Kubernetes applies it to the condition `ready` of EndpointSlices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp`; a Service without it counts as the youngest.
    pub created: Option<SystemTime>,
    /// `metadata.labels`; those that a service proxy does not use may be missing.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`; those that a service proxy does not use may be missing.
    pub annotations: BTreeMap<String, String>,
    /// `spec.type`.
    pub service_type: ServiceType,
    /// `spec.clusterIP`; empty, `None` (headless) or an address.
    pub cluster_ip: String,
    /// `spec.clusterIPs`, in the order of [`Service::ip_families`].
    pub cluster_ips: Vec<String>,
    /// `spec.ipFamilies`, the primary family first. If empty, the family of [`Service::cluster_ip`].
    pub ip_families: Vec<Family>,
    /// `spec.ports`.
    pub ports: Vec<Port>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<String>,
    /// `spec.loadBalancerSourceRanges`; empty means no restriction.
    pub load_balancer_source_ranges: Vec<String>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.healthCheckNodePort`; 0 if absent.
    pub health_check_node_port: u16,
    /// `spec.sessionAffinity` and its configuration.
    pub session_affinity: SessionAffinity,
}

impl Service {
    /// A Service of type `ClusterIP` without addresses and ports. Traffic policies are `Cluster`, session affinity is `None`.
    #[must_use]
    pub fn new(name: ObjectName) -> Self {
        Self {
            name,
            created: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            service_type: ServiceType::ClusterIp,
            cluster_ip: String::new(),
            cluster_ips: Vec::new(),
            ip_families: Vec::new(),
            ports: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_source_ranges: Vec::new(),
            ingress: Vec::new(),
            external_traffic_policy: TrafficPolicy::Cluster,
            internal_traffic_policy: TrafficPolicy::Cluster,
            health_check_node_port: 0,
            session_affinity: SessionAffinity::None,
        }
    }

    /// With this `spec.clusterIP`: a text, or an [`IpAddr`](std::net::IpAddr).
    #[must_use]
    pub fn with_cluster_ip(mut self, address: impl ToString) -> Self {
        self.cluster_ip = address.to_string();
        self
    }

    /// With one more port.
    #[must_use]
    pub fn with_port(mut self, port: Port) -> Self {
        self.ports.push(port);
        self
    }
}

/// `spec.type` of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// `ClusterIP`: reachable at the cluster IP.
    ClusterIp,
    /// `NodePort`: also reachable at a port of every node.
    NodePort,
    /// `LoadBalancer`: also reachable at the addresses of a load balancer.
    LoadBalancer,
    /// `ExternalName`: a name in DNS, which a service proxy does not serve.
    ExternalName,
}

/// `spec.externalTrafficPolicy` and `spec.internalTrafficPolicy`: the endpoints that receive traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// Endpoints of all nodes.
    #[default]
    Cluster,
    /// Endpoints of this node. If this node has no endpoint, the data path decides.
    Local,
}

impl fmt::Display for TrafficPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        })
    }
}

/// `spec.sessionAffinity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SessionAffinity {
    /// Each connection is balanced separately.
    #[default]
    None,
    /// `ClientIP`: connections of one client go to the same endpoint, until there was none for this time. Whole seconds; Kubernetes
    /// allows 1 to 86 400 and defaults to 10 800.
    ClientIp(Duration),
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// The name; empty for a port without a name.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port of cluster IPs, external IPs and load-balancer IPs.
    pub port: u16,
    /// The port of the nodes; 0 if the port has no node port.
    pub node_port: u16,
}

impl Port {
    /// A TCP port without a node port.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, port: u16) -> Self {
        Self {
            name: name.into(),
            protocol: Protocol::Tcp,
            port,
            node_port: 0,
        }
    }

    /// With this protocol.
    #[must_use]
    pub fn with_protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// With this node port.
    #[must_use]
    pub fn with_node_port(mut self, port: u16) -> Self {
        self.node_port = port;
        self
    }
}

/// The protocols that a port of a Service may have. [`kernlink_base::Protocol`] is any IP protocol number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl From<Protocol> for kernlink_base::Protocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::TCP,
            Protocol::Udp => Self::UDP,
            Protocol::Sctp => Self::SCTP,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        })
    }
}

/// A text that is not the name of a [`Protocol`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid protocol {0:?}; valid: TCP, UDP, SCTP")]
pub struct ParseProtocolError(pub String);

impl FromStr for Protocol {
    type Err = ParseProtocolError;

    /// Parses `TCP`, `UDP` or `SCTP`, in upper case as in Kubernetes.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "TCP" => Ok(Protocol::Tcp),
            "UDP" => Ok(Protocol::Udp),
            "SCTP" => Ok(Protocol::Sctp),
            other => Err(ParseProtocolError(other.to_owned())),
        }
    }
}

/// An entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ingress {
    /// The address as written; empty if the load balancer has only a host name.
    pub ip: String,
    /// `ipMode`.
    pub mode: IngressMode,
}

/// `ipMode`: the destination address of packets that a load balancer sends to the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IngressMode {
    /// `VIP`: the address of the load balancer, which the node must serve.
    #[default]
    Vip,
    /// `Proxy`: an address of the node or of a pod. The node does not serve the load balancer's address.
    Proxy,
}
