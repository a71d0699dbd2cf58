//! The configuration, which chooses the mode.

use std::time::Duration;

use super::mode::Mode;
use crate::schedule::Intervals;
use crate::{iptables_mode, ipvs_mode};

/// The configuration of either mode.
#[derive(Clone, Debug, PartialEq)]
pub enum Config {
    /// IPVS mode.
    Ipvs(ipvs_mode::Config),
    /// iptables mode.
    Iptables(iptables_mode::Config),
}

impl Config {
    /// kube-proxy's defaults in a mode, for the node with this name.
    #[must_use]
    pub fn new(mode: Mode, node_name: impl Into<std::sync::Arc<str>>) -> Self {
        match mode {
            Mode::Ipvs => Config::Ipvs(ipvs_mode::Config::new(node_name)),
            Mode::Iptables => Config::Iptables(iptables_mode::Config::new(node_name)),
        }
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Config::Ipvs(_) => Mode::Ipvs,
            Config::Iptables(_) => Mode::Iptables,
        }
    }

    /// The node, and which of the Services it serves.
    #[must_use]
    pub fn services(&self) -> &kernlink_services::Config {
        match self {
            Config::Ipvs(config) => &config.services,
            Config::Iptables(config) => &config.services,
        }
    }

    /// The node, and which of the Services it serves, to be changed.
    pub fn services_mut(&mut self) -> &mut kernlink_services::Config {
        match self {
            Config::Ipvs(config) => &mut config.services,
            Config::Iptables(config) => &mut config.services,
        }
    }

    /// The configuration of IPVS mode for the removal of what it left. If iptables mode is configured: kube-proxy's defaults, with the
    /// `services` and the `exclude_cidrs` of this configuration, which decide what is owned, and with its sysctls of connection tracking.
    #[must_use]
    pub fn retiring_ipvs(&self) -> ipvs_mode::Config {
        match self {
            Config::Ipvs(config) => config.clone(),
            Config::Iptables(config) => {
                let mut retiring = ipvs_mode::Config::new("");
                retiring.services = config.services.clone();
                retiring.exclude_cidrs.clone_from(&config.exclude_cidrs);
                retiring.conntrack = config.conntrack;
                retiring
            }
        }
    }

    /// The longest time between two syncs, for the embedder's schedule.
    #[must_use]
    pub fn sync_period(&self) -> Duration {
        self.intervals().max
    }

    /// The intervals of a [`Schedule`](crate::Schedule).
    #[must_use]
    pub fn intervals(&self) -> Intervals {
        match self {
            Config::Ipvs(config) => config.intervals(),
            Config::Iptables(config) => config.intervals(),
        }
    }
}

impl From<ipvs_mode::Config> for Config {
    fn from(config: ipvs_mode::Config) -> Self {
        Config::Ipvs(config)
    }
}

impl From<iptables_mode::Config> for Config {
    fn from(config: iptables_mode::Config) -> Self {
        Config::Iptables(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_removal_of_ipvs_mode_writes_no_other_sysctls_of_connection_tracking() {
        let mut config = iptables_mode::Config::new("node-a");
        config.conntrack.max_per_core = 0;
        let conntrack = config.conntrack;
        assert_eq!(Config::Iptables(config).retiring_ipvs().conntrack, conntrack);
    }
}
