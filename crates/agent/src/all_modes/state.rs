//! The state of all modes.

use kernlink_proxier::DataPath;
use kernlink_proxier::iptables_mode::IptablesMode;
use kernlink_proxier::ipvs_mode::IpvsMode;
use kernlink_services::{FrontendKey, ObjectName};
use kernlink_userspace::UserspaceMode;

use super::active::{Active, in_mode};
use super::config::Config;
use super::leftovers::Leftovers;
use super::mode::Mode;
use super::retiring_ipvs::RetiringIpvs;

/// The desired and observed objects of the configured mode, and what another mode left.
#[derive(Debug)]
pub struct State {
    pub(super) config: Config,
    /// The configured mode.
    pub(super) active: Active,
    /// Whether the mode changed and nothing was compiled since: the changes of the Services before it are missing in `active`.
    pub(super) is_new_mode: bool,
    pub(super) leftovers: Leftovers,
}

impl State {
    /// The state before Services and kernel were read: that of a node without Services.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            active: Active::new(config),
            is_new_mode: false,
            leftovers: Leftovers::new(false),
        }
    }

    pub(super) fn set_config(&mut self, config: &Config) {
        match (&mut self.active, config) {
            (Active::Ipvs(state), Config::Ipvs(config)) => IpvsMode::set_config(state, config),
            (Active::Iptables(state), Config::Iptables(config)) => IptablesMode::set_config(state, config),
            (Active::Userspace(state), Config::Userspace(config)) => {
                UserspaceMode::set_config(state, &config.config);
            }
            (active, config) => {
                let before = std::mem::replace(active, Active::new(config));
                self.is_new_mode = true;
                self.leftovers = match (before, config) {
                    (Active::Ipvs(state), Config::Iptables(_)) => {
                        Leftovers::of_ipvs(RetiringIpvs::after(state))
                    }
                    // The other mode is found in the kernel, as after a restart.
                    _ => Leftovers::new(true),
                };
            }
        }
        self.leftovers.set_config(config);
        self.config = config.clone();
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The configured mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.config.mode()
    }

    /// The state of the configured mode.
    #[must_use]
    pub fn active(&self) -> &Active {
        &self.active
    }
}

impl Active {
    /// Whether the mode serves a frontend of a Service.
    pub(super) fn serves(&self, frontend: &FrontendKey, service: &ObjectName) -> bool {
        in_mode!(self, |M, state| M::serves(state, frontend, service))
    }
}
