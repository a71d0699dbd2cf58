//! The configuration, which chooses the mode.

use std::sync::Arc;
use std::time::Duration;

use kernlink_kubernetes::kube_proxy_config::KubeProxyConfiguration;
use kernlink_proxier::iptables_mode::{self, IptablesMode};
use kernlink_proxier::ipvs_mode::{self, IpvsMode};
use kernlink_proxier::watch::{WatchError, Watchable, Watched};
use kernlink_proxier::{DataPath, Intervals, InvalidConfig};
use kernlink_userspace::{Limits, UserspaceMode, data_path as userspace};

use super::key::Key;
use super::mode::Mode;

/// The configuration of a mode.
#[derive(Clone, Debug, PartialEq)]
pub enum Config {
    /// IPVS mode.
    Ipvs(ipvs_mode::Config),
    /// iptables mode.
    Iptables(iptables_mode::Config),
    /// Userspace mode.
    Userspace(Box<UserspaceConfig>),
}

/// The configuration of userspace mode.
#[derive(Clone, Debug, PartialEq)]
pub struct UserspaceConfig {
    /// That of the data path.
    pub config: userspace::Config,
    /// The limits of the proxy.
    pub limits: Limits,
    /// The configuration of IPVS mode, for the removal of what it left: it decides what is owned. Its Services are those of `config`.
    pub retiring_ipvs: ipvs_mode::Config,
}

impl Config {
    /// kube-proxy's defaults in a mode, for the node with this name.
    #[must_use]
    pub fn new(mode: Mode, node_name: impl Into<Arc<str>>) -> Self {
        match mode {
            Mode::Ipvs => Config::Ipvs(ipvs_mode::Config::new(node_name)),
            Mode::Iptables => Config::Iptables(iptables_mode::Config::new(node_name)),
            Mode::Userspace => Config::Userspace(Box::new(UserspaceConfig {
                config: userspace::Config::new(node_name),
                limits: Limits::default(),
                retiring_ipvs: ipvs_mode::Config::new(""),
            })),
        }
    }

    /// The configuration in a file of kube-proxy, in the mode that its field `mode` names; empty is `iptables`. The node name is
    /// `hostnameOverride`.
    ///
    /// # Errors
    /// A mode that is not supported, and every value that the mode cannot use.
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Result<Self, InvalidConfig> {
        match file.mode.parse() {
            Ok(Mode::Ipvs) => ipvs_mode::Config::from_kube_proxy(file).map(Config::Ipvs),
            Ok(Mode::Iptables) => iptables_mode::Config::from_kube_proxy(file).map(Config::Iptables),
            Ok(Mode::Userspace) => {
                let mut retiring_ipvs = ipvs_mode::Config::new("");
                retiring_ipvs.exclude_cidrs.clone_from(&file.ipvs.exclude_cidrs);
                Ok(Config::Userspace(Box::new(UserspaceConfig {
                    config: userspace::Config::from_kube_proxy(file)?,
                    limits: Limits::from_kube_proxy(file),
                    retiring_ipvs,
                })))
            }
            Err(error) => Err(InvalidConfig {
                problems: vec![("mode", error.to_string())],
            }),
        }
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Config::Ipvs(_) => Mode::Ipvs,
            Config::Iptables(_) => Mode::Iptables,
            Config::Userspace(_) => Mode::Userspace,
        }
    }

    /// The node, and which of the Services it serves.
    #[must_use]
    pub fn services(&self) -> &kernlink_services::Config {
        match self {
            Config::Ipvs(config) => &config.services,
            Config::Iptables(config) => &config.services,
            Config::Userspace(config) => &config.config.services,
        }
    }

    /// The node, and which of the Services it serves, to be changed.
    pub fn services_mut(&mut self) -> &mut kernlink_services::Config {
        match self {
            Config::Ipvs(config) => &mut config.services,
            Config::Iptables(config) => &mut config.services,
            Config::Userspace(config) => &mut config.config.services,
        }
    }

    /// The configuration of IPVS mode for the removal of what it left. If another mode is configured: kube-proxy's defaults, with the
    /// `services` and the `exclude_cidrs` of this configuration, which decide what is owned, and in iptables mode with its sysctls of
    /// connection tracking.
    #[must_use]
    pub fn retiring_ipvs(&self) -> ipvs_mode::Config {
        let mut retiring = match self {
            Config::Ipvs(config) => config.clone(),
            Config::Iptables(config) => {
                let mut retiring = ipvs_mode::Config::new("");
                retiring.exclude_cidrs.clone_from(&config.exclude_cidrs);
                retiring.conntrack = config.conntrack;
                retiring
            }
            Config::Userspace(config) => config.retiring_ipvs.clone(),
        };
        retiring.services.clone_from(self.services());
        retiring
    }

    /// The longest time between two syncs.
    #[must_use]
    pub fn sync_period(&self) -> Duration {
        self.intervals().max
    }

    /// The intervals of the schedule.
    #[must_use]
    pub fn intervals(&self) -> Intervals {
        match self {
            Config::Ipvs(config) => config.intervals(),
            Config::Iptables(config) => config.intervals(),
            Config::Userspace(config) => config.config.intervals(),
        }
    }

    pub(super) fn validate(&self) -> Result<(), InvalidConfig> {
        match self {
            Config::Ipvs(config) => IpvsMode::validate(config),
            Config::Iptables(config) => IptablesMode::validate(config),
            Config::Userspace(config) => UserspaceMode::validate(&config.config),
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

impl Watchable for Config {
    type Key = Key;

    fn watched(&self) -> Result<Watched<Key>, WatchError> {
        Ok(match self {
            Config::Ipvs(config) => config.watched()?.map(Key::Ipvs),
            Config::Iptables(config) => config.watched()?.map(Key::Iptables),
            Config::Userspace(config) => config.config.watched()?.map(Key::Userspace),
        })
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
