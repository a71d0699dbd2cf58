//! The configuration, which chooses the mode.

use std::time::Duration;

use kernlink_kubernetes::kube_proxy_config::KubeProxyConfiguration;
use kernlink_proxier::any_mode::{self, AnyMode};
use kernlink_proxier::watch::{WatchError, Watchable, Watched};
use kernlink_proxier::{DataPath, Intervals, InvalidConfig, ipvs_mode};
use kernlink_userspace::{Limits, UserspaceMode, data_path as userspace};

use super::key::Key;
use super::mode::Mode;

/// The configuration of a mode.
#[derive(Clone, Debug, PartialEq)]
pub enum Config {
    /// iptables or IPVS mode.
    InKernel(Box<any_mode::Config>),
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
    /// What decides which objects of another mode are owned, and so removed. Its Services are those of `config`.
    pub retiring: any_mode::Config,
}

impl Config {
    /// The configuration in a file of kube-proxy, in the mode that its field `mode` names.
    ///
    /// # Errors
    /// A mode that is not supported, and every value that the mode cannot use.
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Result<Self, InvalidConfig> {
        match file.mode.parse() {
            Ok(Mode::InKernel(_)) => any_mode::Config::from_kube_proxy(file).map(Config::from),
            Ok(Mode::Userspace) => {
                let mut retiring = any_mode::Config::new(any_mode::Mode::Iptables, "");
                if let any_mode::Config::Iptables(retiring) = &mut retiring {
                    retiring.exclude_cidrs.clone_from(&file.ipvs.exclude_cidrs);
                }
                Ok(Config::Userspace(Box::new(UserspaceConfig {
                    config: userspace::Config::from_kube_proxy(file)?,
                    limits: Limits::from_kube_proxy(file),
                    retiring,
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
            Config::InKernel(config) => Mode::InKernel(config.mode()),
            Config::Userspace(_) => Mode::Userspace,
        }
    }

    /// The node, and which of the Services it serves.
    #[must_use]
    pub fn services(&self) -> &kernlink_services::Config {
        match self {
            Config::InKernel(config) => config.services(),
            Config::Userspace(config) => &config.config.services,
        }
    }

    /// The node, and which of the Services it serves, to be changed.
    pub fn services_mut(&mut self) -> &mut kernlink_services::Config {
        match self {
            Config::InKernel(config) => config.services_mut(),
            Config::Userspace(config) => &mut config.config.services,
        }
    }

    /// The configuration of IPVS mode for the removal of what it left.
    #[must_use]
    pub fn retiring_ipvs(&self) -> ipvs_mode::Config {
        match self {
            Config::InKernel(config) => config.retiring_ipvs(),
            Config::Userspace(config) => config.retiring_modes().retiring_ipvs(),
        }
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
            Config::InKernel(config) => config.intervals(),
            Config::Userspace(config) => config.config.intervals(),
        }
    }

    pub(super) fn validate(&self) -> Result<(), InvalidConfig> {
        match self {
            Config::InKernel(config) => AnyMode::validate(config),
            Config::Userspace(config) => UserspaceMode::validate(&config.config),
        }
    }
}

impl From<any_mode::Config> for Config {
    fn from(config: any_mode::Config) -> Self {
        Config::InKernel(Box::new(config))
    }
}

impl UserspaceConfig {
    /// What decides which objects of another mode are owned, with the Services of this configuration.
    pub(super) fn retiring_modes(&self) -> any_mode::Config {
        let mut retiring = self.retiring.clone();
        retiring.services_mut().clone_from(&self.config.services);
        retiring
    }
}

impl Watchable for Config {
    type Key = Key;

    fn watched(&self) -> Result<Watched<Key>, WatchError> {
        Ok(match self {
            Config::InKernel(config) => config.watched()?.map(Key::InKernel),
            Config::Userspace(config) => config.config.watched()?.map(Key::Userspace),
        })
    }
}
