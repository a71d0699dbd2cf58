//! How traffic from pods of this node is recognised.

use ipnet::IpNet;
use kernlink_iptables_restore::{Condition, InterfacePattern, Match};
use kernlink_services::Family;

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

    /// The match of traffic from pods of this node, or of all other traffic. `None` if it cannot be recognised in the family.
    #[must_use]
    pub fn condition(&self, family: Family, pod_cidr: Option<IpNet>, is_local: bool) -> Option<Match> {
        fn condition<T>(value: T, is_local: bool) -> Condition<T> {
            if is_local {
                Condition::Is(value)
            } else {
                Condition::Not(value)
            }
        }
        let source =
            |net: Option<IpNet>| net.map(|net| Match::Source(condition(net.trunc().into(), is_local)));
        match self {
            LocalDetection::ClusterCidr(nets) => {
                source(nets.iter().find(|net| Family::of(net.addr()) == family).copied())
            }
            LocalDetection::NodeCidr => source(pod_cidr),
            LocalDetection::BridgeInterface(name) | LocalDetection::InterfacePrefix(name) => {
                Some(Match::InInterface(condition(name.clone(), is_local)))
            }
        }
    }
}
