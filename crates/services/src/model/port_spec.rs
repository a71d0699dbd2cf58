//! The specification of a port of a Service in one family.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use kernlink_base::Family;

use super::options::Options;
use super::service_port_name::{ServicePortKey, ServicePortName};
use crate::source::TrafficPolicy;

/// The specification of a port of a Service in one family, parsed and validated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PortSpec {
    pub(crate) name: ServicePortName,
    pub(crate) cluster_ip: IpAddr,
    pub(crate) port: NonZeroU16,
    pub(crate) node_port: Option<NonZeroU16>,
    /// The fields that all ports of the Service have in common in this family.
    pub(crate) service: Arc<ServiceSpec>,
}

/// The fields that all ports of a Service have in common in one family.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceSpec {
    pub(crate) created: Option<SystemTime>,
    pub(crate) affinity: Option<Duration>,
    /// Of this family, each once, in the order of the Service.
    pub(crate) external_ips: Vec<IpAddr>,
    /// Of this family, each once, in the order of the Service.
    pub(crate) load_balancer_ips: Vec<IpAddr>,
    /// Of this family, host bits zero, in the order of the Service, each once. If empty, sources are not restricted.
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

    /// Whether the port has frontends other than its cluster IP.
    pub(crate) fn is_externally_accessible(&self) -> bool {
        self.node_port.is_some()
            || !self.service.load_balancer_ips.is_empty()
            || !self.service.external_ips.is_empty()
    }

    /// Whether any traffic of the port has the policy `Cluster`.
    pub(crate) fn uses_cluster_endpoints(&self) -> bool {
        self.service.internal_policy == TrafficPolicy::Cluster || self.is_externally_accessible()
    }

    /// Whether any traffic of the port has the policy `Local`.
    pub(crate) fn uses_local_endpoints(&self) -> bool {
        self.service.internal_policy == TrafficPolicy::Local
            || (self.service.external_policy == TrafficPolicy::Local && self.is_externally_accessible())
    }
}
