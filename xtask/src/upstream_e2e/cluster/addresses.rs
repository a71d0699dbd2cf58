//! The addresses of the cluster. All of it is dual-stack.

/// Of the router, which the control plane runs on.
pub(super) const ROUTER: [&str; 2] = ["172.30.0.1", "fd00:30::1"];
/// The lengths of the prefixes of the nodes' networks.
pub(super) const LENGTHS: [u8; 2] = [16, 64];
/// Of the place where the tests run: not in the network of the nodes, so that they see whether source addresses are preserved.
pub(super) const OUTSIDE: [&str; 2] = ["192.168.77.2", "fd00:77::2"];
/// Of the router, as that place sees it.
pub(super) const OUTSIDE_ROUTER: [&str; 2] = ["192.168.77.1", "fd00:77::1"];
pub(super) const OUTSIDE_LENGTHS: [u8; 2] = [24, 64];

/// The networks of cluster IPs.
pub(super) const SERVICES: &str = "10.96.0.0/16,fd00:10:96::/112";
/// Those of the Service `kubernetes`.
pub(super) const API: [&str; 2] = ["10.96.0.1", "fd00:10:96::1"];
/// The one of the DNS server.
pub(crate) const DNS: &str = "10.96.0.10";
/// The networks that contain those of all nodes' pods.
pub(super) const PODS: &str = "10.244.0.0/16,fd00:10:244::/48";
pub(super) const DOMAIN: &str = "cluster.local";

/// The number of zones.
const ZONES: usize = 3;

/// One of the nodes, by its number, which begins with 1 and is at most 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node(pub(super) usize);

impl Node {
    pub(super) fn all(count: usize) -> impl Iterator<Item = Self> + Clone {
        (1..=count).map(Self)
    }

    pub(super) fn name(self) -> String {
        format!("node{}", self.0)
    }

    pub(super) fn zone(self) -> String {
        format!("zone{}", (self.0 - 1) % ZONES + 1)
    }

    pub(super) fn addresses(self) -> [String; 2] {
        [format!("172.30.0.1{}", self.0), format!("fd00:30::1{}", self.0)]
    }

    /// The networks of its pods.
    pub(super) fn pods(self) -> [String; 2] {
        [
            format!("10.244.{}.0/24", self.0),
            format!("fd00:10:244:{}::/64", self.0),
        ]
    }
}

/// The addresses of a load balancer, by the number that the Service has. They are in no network of the cluster.
pub(super) fn load_balancer(number: u8, family: &str) -> String {
    match family {
        "IPv6" => format!("fd00:31::{number:x}"),
        _ => format!("172.31.0.{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_nodes_are_in_three_zones_of_two() {
        let zones: Vec<_> = Node::all(6).map(Node::zone).collect();
        assert_eq!(zones, ["zone1", "zone2", "zone3", "zone1", "zone2", "zone3"]);
    }

    #[test]
    fn addresses_and_networks_belong_to_one_node() {
        let node = Node(2);
        assert_eq!(node.addresses(), ["172.30.0.12", "fd00:30::12"]);
        assert_eq!(node.pods(), ["10.244.2.0/24", "fd00:10:244:2::/64"]);
    }
}
