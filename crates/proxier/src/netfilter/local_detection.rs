//! How traffic from pods of this node is recognised.

use ipnet::IpNet;
use kernlink_iptables_restore::InterfacePattern;

/// How traffic from pods of this node is recognised; other traffic to a cluster IP is masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetection {
    /// By the network of all pods: the first one of each family. Without a network of a family, traffic of that family is not recognised.
    ClusterCidr(Vec<IpNet>),
    /// By the network of the pods of this node.
    NodeCidr,
    /// By the bridge that is the input interface.
    BridgeInterface(InterfacePattern),
    /// By the prefix of the name of the input interface; the pattern ends in `+`.
    InterfacePrefix(InterfacePattern),
}

impl LocalDetection {
    /// By the prefix of the name of the input interface.
    ///
    /// # Errors
    /// If no interface name can begin with `prefix`.
    pub fn interface_prefix(prefix: &str) -> Result<Self, kernlink_iptables_restore::Error> {
        InterfacePattern::new(&format!("{prefix}+")).map(LocalDetection::InterfacePrefix)
    }

    /// By the bridge that is the input interface.
    ///
    /// # Errors
    /// If no interface can have this name.
    pub fn bridge_interface(name: &str) -> Result<Self, kernlink_iptables_restore::Error> {
        InterfacePattern::new(name).map(LocalDetection::BridgeInterface)
    }
}
