//! The state of the configured mode.

use kernlink_proxier::DataPath;
use kernlink_proxier::any_mode::{self, AnyMode};
use kernlink_services::{FrontendKey, ObjectName};
use kernlink_userspace::{UserspaceMode, data_path as userspace};

use super::config::Config;
use super::leftovers::Leftovers;

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

/// The state of one mode.
#[derive(Debug)]
pub(super) enum Active {
    InKernel(Box<any_mode::State>),
    Userspace(Box<userspace::State>),
}

impl Active {
    fn new(config: &Config) -> Self {
        match config {
            Config::InKernel(config) => Active::InKernel(Box::new(AnyMode::new_state(config))),
            Config::Userspace(config) => {
                Active::Userspace(Box::new(UserspaceMode::new_state(&config.config)))
            }
        }
    }
}

impl Active {
    /// Whether the mode serves a frontend of a Service.
    pub(super) fn serves(&self, frontend: &FrontendKey, service: &ObjectName) -> bool {
        match self {
            Active::InKernel(state) => AnyMode::serves(state, frontend, service),
            Active::Userspace(state) => UserspaceMode::serves(state, frontend, service),
        }
    }
}

impl State {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            active: Active::new(config),
            is_new_mode: false,
            leftovers: Leftovers::new(false),
        }
    }

    pub(super) fn set_config(&mut self, config: &Config) {
        match (&mut self.active, config) {
            (Active::InKernel(state), Config::InKernel(config)) => AnyMode::set_config(state, config),
            (Active::Userspace(state), Config::Userspace(config)) => {
                UserspaceMode::set_config(state, &config.config);
            }
            _ => {
                // The other mode is found in the kernel, as after a restart.
                self.active = Active::new(config);
                self.is_new_mode = true;
                self.leftovers = Leftovers::new(true);
            }
        }
        self.leftovers.set_config(config);
        self.config = config.clone();
    }
}
