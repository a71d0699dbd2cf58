//! The state of the configured mode.

use std::time::Instant;

use super::config::Config;
use super::mode::Mode;
use super::retiring::Retiring;
use crate::data_path::DataPath;
use crate::iptables_mode::{self, IptablesMode};
use crate::ipvs_mode::{self, IpvsMode};

/// The desired and observed kernel objects of the configured mode.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) config: Config,
    /// The configured mode.
    pub(super) active: ModeState,
    /// Whether the mode changed and nothing was compiled since: the changes of the Services before it are missing in `active`.
    pub(super) is_new_mode: bool,
    /// What IPVS mode left, while iptables mode serves the node.
    pub(super) retiring: Option<Retiring>,
    /// The time of the sync in progress.
    pub(super) now: Option<Instant>,
}

/// The state of one mode.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ModeState {
    /// That of IPVS mode.
    Ipvs(Box<ipvs_mode::State>),
    /// That of iptables mode.
    Iptables(Box<iptables_mode::State>),
}

impl ModeState {
    fn new(config: &Config) -> Self {
        match config {
            Config::Ipvs(config) => ModeState::Ipvs(Box::new(IpvsMode::new_state(config))),
            Config::Iptables(config) => ModeState::Iptables(Box::new(IptablesMode::new_state(config))),
        }
    }
}

impl State {
    /// The state before Services and kernel were read: that of a node without Services.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            active: ModeState::new(config),
            is_new_mode: false,
            retiring: None,
            now: None,
        }
    }

    pub(super) fn set_config(&mut self, config: &Config) {
        match (&mut self.active, config) {
            (ModeState::Ipvs(state), Config::Ipvs(config)) => IpvsMode::set_config(state, config),
            (ModeState::Iptables(state), Config::Iptables(config)) => {
                IptablesMode::set_config(state, config);
            }
            _ => {
                let before = std::mem::replace(&mut self.active, ModeState::new(config));
                self.retiring = match before {
                    ModeState::Ipvs(state) => Some(Retiring::after(state)),
                    ModeState::Iptables(_) => None,
                };
                self.is_new_mode = true;
            }
        }
        if let Some(retiring) = &mut self.retiring {
            retiring.set_config(config);
        }
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
    pub fn active(&self) -> &ModeState {
        &self.active
    }
}
