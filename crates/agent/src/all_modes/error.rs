//! Errors of operations, and of listings.

use std::fmt;

use kernlink_proxier::any_mode;
use kernlink_userspace::data_path as userspace;

/// Why an operation failed, or the kernel could not be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// An error of iptables or IPVS mode.
    InKernel(any_mode::Error),
    /// An error of userspace mode.
    Userspace(userspace::Error),
    /// The proxy of userspace mode cannot start.
    Start(String),
    /// The outcome of an operation is missing.
    OutcomeMissing,
}

impl From<any_mode::Error> for Error {
    fn from(error: any_mode::Error) -> Self {
        Error::InKernel(error)
    }
}

impl From<userspace::Error> for Error {
    fn from(error: userspace::Error) -> Self {
        Error::Userspace(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InKernel(error) => error.fmt(f),
            Error::Userspace(error) => error.fmt(f),
            Error::Start(text) => write!(f, "the proxy of userspace mode cannot start: {text}"),
            Error::OutcomeMissing => {
                f.write_str("the outcome of the operation is unknown: the kernel API returned none")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::InKernel(error) => error.source(),
            Error::Userspace(error) => error.source(),
            Error::Start(_) | Error::OutcomeMissing => None,
        }
    }
}
