//! What a Service says about one of its ports in one family.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use kernlink_base::Family;

use super::options::Options;
use crate::escape::EscapeWriter;
use crate::source::{ObjectName, Protocol, TrafficPolicy};

/// Which port of which Service: namespace, name, port name and protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// The Service.
    pub service: ObjectName,
    /// The name of the port; empty where it has none.
    pub port: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    /// `namespace/name:port`, without the colon where the port has no name. The protocol is not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port.is_empty() {
            self.service.fmt(f)
        } else {
            write!(EscapeWriter(f), "{}:{}", self.service, self.port)
        }
    }
}

/// A port of a Service in one family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortKey {
    /// The port.
    pub name: ServicePortName,
    /// The family.
    pub family: Family,
}

impl fmt::Display for ServicePortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.family)
    }
}

/// What a Service says about one of its ports in one family, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PortSpec {
    pub(crate) name: ServicePortName,
    pub(crate) cluster_ip: IpAddr,
    pub(crate) port: NonZeroU16,
    pub(crate) node_port: Option<NonZeroU16>,
    /// What all ports of the Service share in this family.
    pub(crate) service: Arc<ServiceSpec>,
}

/// What all ports of a Service share in one family.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceSpec {
    pub(crate) created: Option<SystemTime>,
    pub(crate) affinity: Option<Duration>,
    /// Own family, each once, in the order of the Service.
    pub(crate) external_ips: Vec<IpAddr>,
    /// Own family, each once, in the order of the Service.
    pub(crate) load_balancer_ips: Vec<IpAddr>,
    /// Own family, masked, sorted, each once; empty means no restriction.
    pub(crate) source_ranges: Arc<[IpNet]>,
    pub(crate) external_policy: TrafficPolicy,
    pub(crate) internal_policy: TrafficPolicy,
    pub(crate) health_check_node_port: Option<NonZeroU16>,
    pub(crate) options: Arc<Options>,
}

impl PortSpec {
    pub(crate) fn family(&self) -> Family {
        Family::of(self.cluster_ip)
    }

    pub(crate) fn key(&self) -> ServicePortKey {
        ServicePortKey {
            name: self.name.clone(),
            family: self.family(),
        }
    }

    /// Whether anything but the cluster IP leads to this port.
    pub(crate) fn externally_accessible(&self) -> bool {
        self.node_port.is_some()
            || !self.service.load_balancer_ips.is_empty()
            || !self.service.external_ips.is_empty()
    }

    /// Whether some traffic may go to endpoints of all nodes.
    pub(crate) fn uses_cluster_endpoints(&self) -> bool {
        self.service.internal_policy == TrafficPolicy::Cluster || self.externally_accessible()
    }

    /// Whether some traffic has to stay on this node.
    pub(crate) fn uses_local_endpoints(&self) -> bool {
        self.service.internal_policy == TrafficPolicy::Local
            || (self.service.external_policy == TrafficPolicy::Local && self.externally_accessible())
    }
}
