//! The state of the configured mode, and what each mode is of all modes.

use kernlink_proxier::DataPath;
use kernlink_proxier::iptables_mode::{self, IptablesMode};
use kernlink_proxier::ipvs_mode::{self, IpvsMode};
use kernlink_userspace::{UserspaceMode, data_path as userspace};

use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::mode::Mode;
use super::operation::{Operation, Phase};
use super::totals::Totals;

/// The state of one mode.
#[derive(Debug)]
pub enum Active {
    /// That of IPVS mode.
    Ipvs(Box<ipvs_mode::State>),
    /// That of iptables mode.
    Iptables(Box<iptables_mode::State>),
    /// That of userspace mode.
    Userspace(Box<userspace::State>),
}

/// Evaluates an expression with the state of the mode that is active, and with the name of its data path.
macro_rules! in_mode {
    ($active:expr, |$mode:ident, $state:ident| $value:expr) => {
        match $active {
            Active::Ipvs($state) => {
                type $mode = IpvsMode;
                $value
            }
            Active::Iptables($state) => {
                type $mode = IptablesMode;
                $value
            }
            Active::Userspace($state) => {
                type $mode = UserspaceMode;
                $value
            }
        }
    };
}
pub(super) use in_mode;

impl Active {
    pub(super) fn new(config: &Config) -> Self {
        match config {
            Config::Ipvs(config) => Active::Ipvs(Box::new(IpvsMode::new(config))),
            Config::Iptables(config) => Active::Iptables(Box::new(IptablesMode::new(config))),
            Config::Userspace(config) => Active::Userspace(Box::new(UserspaceMode::new(&config.config))),
        }
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Active::Ipvs(_) => Mode::Ipvs,
            Active::Iptables(_) => Mode::Iptables,
            Active::Userspace(_) => Mode::Userspace,
        }
    }
}

/// One of the modes: its part of the types of all modes.
pub(super) trait OneMode:
    DataPath<
        Key: Into<Key>,
        Operation: Into<Operation>,
        Phase: Into<Phase>,
        Error: Into<Error>,
        Totals: Into<Totals>,
    >
{
    fn key(key: &Key) -> Option<&Self::Key>;

    fn operation(operation: &Operation) -> Option<&Self::Operation>;

    fn error(error: &Error) -> Option<&Self::Error>;

    /// Its kernel APIs; opens them if they are not open.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    fn kernel<'a>(kernel: &'a mut Kernel, config: &Config) -> Result<&'a mut Self::Kernel, Error>;

    /// Those of its keys.
    fn keys(keys: &[Key]) -> Vec<Self::Key> {
        keys.iter().filter_map(Self::key).cloned().collect()
    }
}

impl OneMode for IpvsMode {
    fn key(key: &Key) -> Option<&ipvs_mode::Key> {
        match key {
            Key::Ipvs(key) => Some(key),
            _ => None,
        }
    }

    fn operation(operation: &Operation) -> Option<&ipvs_mode::Operation> {
        match operation {
            Operation::Ipvs(operation) => Some(operation),
            _ => None,
        }
    }

    fn error(error: &Error) -> Option<&ipvs_mode::Error> {
        match error {
            Error::Ipvs(error) => Some(error),
            _ => None,
        }
    }

    fn kernel<'a>(kernel: &'a mut Kernel, _config: &Config) -> Result<&'a mut ipvs_mode::Kernel, Error> {
        kernel.ipvs()
    }
}

impl OneMode for IptablesMode {
    fn key(key: &Key) -> Option<&iptables_mode::Key> {
        match key {
            Key::Iptables(key) => Some(key),
            _ => None,
        }
    }

    fn operation(operation: &Operation) -> Option<&iptables_mode::Operation> {
        match operation {
            Operation::Iptables(operation) => Some(operation),
            _ => None,
        }
    }

    fn error(error: &Error) -> Option<&iptables_mode::Error> {
        match error {
            Error::Iptables(error) => Some(error),
            _ => None,
        }
    }

    fn kernel<'a>(kernel: &'a mut Kernel, _config: &Config) -> Result<&'a mut iptables_mode::Kernel, Error> {
        kernel.iptables()
    }
}

impl OneMode for UserspaceMode {
    fn key(key: &Key) -> Option<&userspace::Key> {
        match key {
            Key::Userspace(key) => Some(key),
            _ => None,
        }
    }

    fn operation(operation: &Operation) -> Option<&userspace::Operation> {
        match operation {
            Operation::Userspace(operation) => Some(operation),
            _ => None,
        }
    }

    fn error(error: &Error) -> Option<&userspace::Error> {
        match error {
            Error::Userspace(error) => Some(error),
            _ => None,
        }
    }

    fn kernel<'a>(kernel: &'a mut Kernel, config: &Config) -> Result<&'a mut userspace::Kernel, Error> {
        kernel.userspace(config)
    }
}
