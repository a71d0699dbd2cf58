//! The configuration of iptables mode.

use std::time::Duration;

use ipnet::IpNet;
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::schedule::Intervals;
use kernlink_host::{Conntrack, LocalDetection, MasqueradeBit};
use kernlink_netfilter::LOOPBACK_IPV4;
use kernlink_services::{Family, NodePortAddresses};

/// The configuration of iptables mode. [`Config::new`] has kube-proxy's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The node, and which of the Services it serves.
    pub services: kernlink_services::Config,
    /// Masquerades all traffic to cluster IPs, from any source. Default: false.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading. Default: 14.
    pub masquerade_bit: MasqueradeBit,
    /// How traffic from pods of this node is recognised. Default: [`ClusterCidr`](LocalDetection::ClusterCidr) without a network.
    pub local_detection: LocalDetection,
    /// Serves IPv4 node ports on loopback addresses too, if [`node_port_addresses`](kernlink_services::Config::node_port_addresses)
    /// permits it. It needs the sysctl `net.ipv4.conf.all.route_localnet`. Default: true.
    pub loopback_node_ports: bool,
    /// Limits and timeouts of connection tracking. Packets that conntrack considers invalid are dropped unless the sysctl
    /// `net.netfilter.nf_conntrack_tcp_be_liberal` of the kernel is set, which `tcp_be_liberal` requests.
    pub conntrack: Conntrack,
    /// The longest time between two syncs, for the embedder's schedule. Default: 30 seconds.
    pub sync_period: Duration,
    /// The shortest time between two syncs, for the embedder's schedule; 0 is no limit. Default: 1 second.
    pub min_sync_period: Duration,
    /// Chooses source ports at random when masquerading (`--random-fully`, iptables 1.6.2). Default: true.
    pub random_fully: bool,
}

impl Config {
    /// kube-proxy's defaults for the node with this name.
    #[must_use]
    pub fn new(node_name: impl Into<std::sync::Arc<str>>) -> Self {
        Self {
            services: kernlink_services::Config::new(node_name),
            masquerade_all: false,
            masquerade_bit: MasqueradeBit::default(),
            local_detection: LocalDetection::ClusterCidr(Vec::new()),
            loopback_node_ports: true,
            conntrack: Conntrack::default(),
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::from_secs(1),
            random_fully: true,
        }
    }

    /// The intervals of a [`Schedule`](kernlink_engine::Schedule), from `min_sync_period` and `sync_period`.
    #[must_use]
    pub fn intervals(&self) -> Intervals {
        Intervals {
            min: self.min_sync_period,
            max: self.sync_period,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Everything that is invalid.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let problems = self.services.problems();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(InvalidConfig { problems })
        }
    }

    /// Whether IPv4 node ports are served on loopback addresses.
    #[must_use]
    pub fn serves_loopback_node_ports(&self) -> bool {
        let is_permitted = match &self.services.node_port_addresses {
            NodePortAddresses::All => true,
            NodePortAddresses::Networks(nets) => {
                let mut nets = nets
                    .iter()
                    .filter(|net| Family::of(net.addr()) == Family::Ipv4)
                    .peekable();
                // Without a network of the family all its addresses are permitted.
                nets.peek().is_none() || nets.any(overlaps_loopback)
            }
            NodePortAddresses::Primary => false,
        };
        self.loopback_node_ports && is_permitted
    }
}

/// Whether a network is inside 127.0.0.0/8 or contains it.
fn overlaps_loopback(net: &IpNet) -> bool {
    LOOPBACK_IPV4.contains(net) || net.contains(&LOOPBACK_IPV4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_node_ports_require_a_network_with_loopback_addresses() {
        let mut config = Config::new("a");
        let mut serves = |nets: Option<&[&str]>| {
            config.services.node_port_addresses = match nets {
                Some(nets) => {
                    NodePortAddresses::Networks(nets.iter().map(|net| net.parse().unwrap()).collect())
                }
                None => NodePortAddresses::Primary,
            };
            config.serves_loopback_node_ports()
        };
        assert!(serves(Some(&["127.0.0.0/8"])));
        assert!(serves(Some(&["192.0.2.0/24", "127.0.0.1/32"])));
        assert!(serves(Some(&["0.0.0.0/0"])));
        assert!(serves(Some(&["2001:db8::/32"])));
        assert!(!serves(Some(&["192.0.2.0/24"])));
        assert!(!serves(None));
        assert!(Config::new("a").serves_loopback_node_ports());
        config = Config::new("a");
        config.loopback_node_ports = false;
        assert!(!config.serves_loopback_node_ports());
    }

    #[test]
    fn the_defaults_are_valid_and_a_config_without_family_is_not() {
        let mut config = Config::new("a");
        assert_eq!(config.validate(), Ok(()));
        config.services.families.clear();
        let error = config.validate().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid configuration: services.families: no address family; valid: IPv4, IPv6 or both"
        );
    }
}
