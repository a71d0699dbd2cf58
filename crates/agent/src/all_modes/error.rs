//! Errors of operations, and of listings.

use std::fmt;

use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_userspace::data_path as userspace;

/// Why an operation failed, or the kernel could not be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// An error of IPVS mode.
    Ipvs(ipvs_mode::Error),
    /// An error of iptables mode.
    Iptables(iptables_mode::Error),
    /// An error of userspace mode.
    Userspace(userspace::Error),
    /// The proxy of userspace mode cannot start.
    Start(String),
    /// The outcome of an operation is missing.
    OutcomeMissing,
}

impl Error {
    /// The error of the mode.
    fn of_mode(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Ipvs(error) => Some(error),
            Error::Iptables(error) => Some(error),
            Error::Userspace(error) => Some(error),
            Error::Start(_) | Error::OutcomeMissing => None,
        }
    }
}

impl From<ipvs_mode::Error> for Error {
    fn from(error: ipvs_mode::Error) -> Self {
        Error::Ipvs(error)
    }
}

impl From<iptables_mode::Error> for Error {
    fn from(error: iptables_mode::Error) -> Self {
        Error::Iptables(error)
    }
}

impl From<userspace::Error> for Error {
    fn from(error: userspace::Error) -> Self {
        Error::Userspace(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.of_mode()) {
            (_, Some(error)) => fmt::Display::fmt(error, f),
            (Error::Start(text), None) => write!(f, "the proxy of userspace mode cannot start: {text}"),
            (_, None) => f.write_str("the outcome of the operation is unknown: the kernel API returned none"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.of_mode().and_then(std::error::Error::source)
    }
}
