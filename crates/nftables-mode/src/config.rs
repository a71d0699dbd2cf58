//! The configuration of nftables mode.

use std::time::Duration;

use ipnet::IpNet;
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::pace::Pace;
use kernlink_engine::schedule::Intervals;
use kernlink_host::{Conntrack, LocalDetection, MasqueradeBit};
use kernlink_services::NodePortAddresses;

/// The number of transactions that may follow each other at once.
const BURST: u32 = 20;

/// After so much time without a pause there is one, in which a listing of the tables by another program ends.
const PAUSE_AFTER: Duration = Duration::from_secs(20);

/// After so much time without a pause urgent changes wait for one too, so that a listing of at most 5 seconds ends within a minute.
const URGENT_PAUSE_AFTER: Duration = Duration::from_secs(30);

/// The configuration of nftables mode. [`Config::new`] has kube-proxy's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The node, and which of the Services it serves. Node ports are served at the node's address in each family by default
    /// ([`NodePortAddresses::Primary`]), and never at loopback addresses.
    pub services: kernlink_services::Config,
    /// Masquerades all traffic to cluster IPs, from any source. Default: false.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading. Default: 14.
    pub masquerade_bit: MasqueradeBit,
    /// How traffic from pods of this node is recognised. Default: [`ClusterCidr`](LocalDetection::ClusterCidr) without a network.
    pub local_detection: LocalDetection,
    /// The networks that cluster IPs are allocated from. Traffic to an address in them that no Service has is dropped. Other networks change
    /// elements of a set only. `None`: they are not known yet, and those that an earlier process wrote stay. Valid: any but those with the
    /// prefix length 0. Default: no networks.
    pub service_cidrs: Option<Vec<IpNet>>,
    /// Limits and timeouts of connection tracking.
    pub conntrack: Conntrack,
    /// The longest time between two readings of the whole kernel, for the embedder's schedule. Default: 30 seconds.
    pub sync_period: Duration,
    /// The shortest time between two transactions while changes do not end, for the embedder's schedule: each transaction makes every listing
    /// of nf_tables in the network namespace begin again, of any table. 0: every change is written at once, without a pause, so that listings
    /// by other programs may never end. Default: 1 second.
    pub min_sync_period: Duration,
}

impl Config {
    /// kube-proxy's defaults for the node with this name.
    #[must_use]
    pub fn new(node_name: impl Into<std::sync::Arc<str>>) -> Self {
        let mut services = kernlink_services::Config::new(node_name);
        services.node_port_addresses = NodePortAddresses::Primary;
        Self {
            services,
            masquerade_all: false,
            masquerade_bit: MasqueradeBit::default(),
            local_detection: LocalDetection::ClusterCidr(Vec::new()),
            service_cidrs: Some(Vec::new()),
            conntrack: Conntrack::default(),
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::from_secs(1),
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

    /// The pace of transactions: a few follow each other at once, half of them only for urgent changes: removed endpoints, and Services that get
    /// their first endpoint or lose their last one. While changes do not end, there is one in each `min_sync_period`, or ten if they are
    /// urgent.
    #[must_use]
    pub fn pace(&self) -> Pace {
        Pace {
            burst: BURST,
            reserved: BURST / 2,
            pause_after: PAUSE_AFTER,
            urgent_pause_after: URGENT_PAUSE_AFTER,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Everything that is invalid.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let mut problems = self.services.problems();
        if let Some(net) = self
            .service_cidrs
            .iter()
            .flatten()
            .find(|net| net.prefix_len() == 0)
        {
            problems.push((
                "service_cidrs",
                format!(
                    "{net} contains all addresses; valid: the networks that cluster IPs are allocated from"
                ),
            ));
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(InvalidConfig { problems })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_what_would_drop_all_traffic_is_not() {
        let mut config = Config::new("a");
        assert_eq!(config.validate(), Ok(()));
        config.services.families.clear();
        config.service_cidrs = Some(vec!["10.96.0.0/12".parse().unwrap(), "::/0".parse().unwrap()]);
        let error = config.validate().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid configuration: services.families: no address family; valid: IPv4, IPv6 or both; service_cidrs: ::/0 contains all \
             addresses; valid: the networks that cluster IPs are allocated from"
        );
    }
}
