//! Nodes, with the fields that a service proxy uses.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::ObjectName;

/// A `v1` Node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The name; the namespace is empty.
    pub name: ObjectName,
    /// The label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// `status.addresses` that are IP addresses, in their order.
    pub addresses: Vec<NodeAddress>,
    /// `spec.podCIDRs`, at most one of each family.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether `metadata.deletionTimestamp` is set, or `spec.taints` has the key `ToBeDeletedByClusterAutoscaler`. Load balancers should
    /// not send traffic to such a node; the Services on it do not depend on it.
    pub is_leaving: bool,
}

impl Node {
    /// A Node without zone, addresses and pod networks.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: ObjectName::new("", name),
            zone: None,
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            is_leaving: false,
        }
    }

    /// In this zone.
    #[must_use]
    pub fn with_zone(mut self, zone: impl Into<Arc<str>>) -> Self {
        self.zone = Some(zone.into());
        self
    }

    /// With one more internal address.
    #[must_use]
    pub fn with_internal_address(mut self, address: IpAddr) -> Self {
        self.addresses.push(NodeAddress {
            address,
            address_type: NodeAddressType::Internal,
        });
        self
    }

    /// With one more pod network.
    #[must_use]
    pub fn with_pod_cidr(mut self, net: IpNet) -> Self {
        self.pod_cidrs.push(net);
        self
    }
}

/// An address of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    /// The address.
    pub address: IpAddr,
    /// Its type.
    pub address_type: NodeAddressType,
}

/// The types of Node address that are IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeAddressType {
    /// `InternalIP`.
    Internal,
    /// `ExternalIP`.
    External,
}
