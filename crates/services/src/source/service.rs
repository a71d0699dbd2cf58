//! The Service, as far as a service proxy needs it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kernlink_base::Family;

use super::ObjectName;

/// A `v1` Service. Addresses and ranges are kept as written: the model reads them and says which it left out.
///
/// `publishNotReadyAddresses` is not here, because it reaches a service proxy as `ready` in the EndpointSlices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp`; absent counts as younger than any other.
    pub created: Option<SystemTime>,
    /// `metadata.labels`; those without meaning to a service proxy may be left out.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`; those without meaning to a service proxy may be left out.
    pub annotations: BTreeMap<String, String>,
    /// `spec.type`.
    pub service_type: ServiceType,
    /// `spec.clusterIP`; empty, `None` (headless) or an address.
    pub cluster_ip: String,
    /// `spec.clusterIPs`, in the order of [`Service::ip_families`].
    pub cluster_ips: Vec<String>,
    /// `spec.ipFamilies`, the primary family first; empty when the API server did not fill it.
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
    /// `spec.healthCheckNodePort`; 0 is none.
    pub health_check_node_port: u16,
    /// `spec.sessionAffinity` and its configuration.
    pub session_affinity: SessionAffinity,
}

impl Service {
    /// A ClusterIP Service without an address or a port.
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

    /// With this cluster IP as the only one.
    #[must_use]
    pub fn with_cluster_ip(mut self, address: impl Into<String>) -> Self {
        self.cluster_ip = address.into();
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    /// Reached at its cluster IP.
    ClusterIp,
    /// Reached at a port of every node as well.
    NodePort,
    /// Reached at the address of a load balancer as well.
    LoadBalancer,
    /// A name in DNS only; no business of a service proxy.
    ExternalName,
}

/// Whether traffic may go to endpoints of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// To endpoints of all nodes.
    #[default]
    Cluster,
    /// To endpoints of this node, as long as there are any.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionAffinity {
    /// Each connection is balanced by itself.
    #[default]
    None,
    /// Connections of one client go to one endpoint until none came for this long. Whole seconds; Kubernetes allows 1 to
    /// 86 400 and defaults to 10 800.
    ClientIp(Duration),
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name; empty where the Service has a single port without one.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port on virtual IPs.
    pub port: u16,
    /// The port on the nodes; 0 is none.
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

/// The protocols a Service may use.
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

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        })
    }
}

/// A protocol that no Service can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not TCP, UDP or SCTP")]
pub struct ParseProtocolError(pub String);

impl FromStr for Protocol {
    type Err = ParseProtocolError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "TCP" => Ok(Protocol::Tcp),
            "UDP" => Ok(Protocol::Udp),
            "SCTP" => Ok(Protocol::Sctp),
            other => Err(ParseProtocolError(other.to_owned())),
        }
    }
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// The address as written; empty where the load balancer has only a host name.
    pub ip: String,
    /// How the load balancer delivers.
    pub mode: IngressMode,
}

/// How a load balancer delivers packets to the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IngressMode {
    /// With the load balancer's address as destination, so that the node must serve it.
    #[default]
    Vip,
    /// With an address of the node or pod as destination; the node has nothing to do.
    Proxy,
}
