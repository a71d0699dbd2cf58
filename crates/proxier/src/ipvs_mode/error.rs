//! Why the kernel refused, or could not be read.

use std::sync::Arc;

use kernlink_netlink::Errno;

/// An operation on a kernel object failed, or kernel objects could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Virtual servers and real servers.
    #[error(transparent)]
    Ipvs(#[from] kernlink_ipvs::Error),
    /// Sets and entries.
    #[error(transparent)]
    Set(#[from] kernlink_ipset::Error),
    /// Chains and rules.
    #[error(transparent)]
    Rules(#[from] kernlink_iptables_restore::Error),
    /// The dummy link and addresses.
    #[error(transparent)]
    Link(#[from] kernlink_dummylink::Error),
    /// Sysctls.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// An implementation of a kernel API returned fewer outcomes than it was given operations.
    #[error("no outcome was returned for the operation")]
    NoOutcome,
    /// The error of an implementation that is not the kernel.
    #[error(transparent)]
    Other(Arc<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// The error of an implementation that is not the kernel.
    pub fn other(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error::Other(Arc::new(error))
    }
}

impl PartialEq for Error {
    /// Errors that are not the kernel's are equal if they print the same.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Error::Ipvs(a), Error::Ipvs(b)) => a == b,
            (Error::Set(a), Error::Set(b)) => a == b,
            (Error::Rules(a), Error::Rules(b)) => a == b,
            (Error::Link(a), Error::Link(b)) => a == b,
            (Error::Sysctl(a), Error::Sysctl(b)) => a == b,
            (Error::NoOutcome, Error::NoOutcome) => true,
            (Error::Other(a), Error::Other(b)) => a.to_string() == b.to_string(),
            _ => false,
        }
    }
}

/// A sysctl could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {verb} sysctl {name}")]
pub struct SysctlError {
    /// `read` or `write`.
    pub verb: &'static str,
    /// The sysctl.
    pub name: Box<str>,
    /// Why.
    #[source]
    pub cause: SysctlErrorCause,
}

/// Why a sysctl could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SysctlErrorCause {
    /// The file of the sysctl.
    #[error(transparent)]
    File(Errno),
    /// The network namespace could not be entered.
    #[error(transparent)]
    Namespace(kernlink_netlink::Error),
}

impl SysctlError {
    pub(crate) fn new(verb: &'static str, name: &str, error: &std::io::Error) -> Self {
        Self {
            verb,
            name: name.into(),
            cause: SysctlErrorCause::File(Errno::of(error)),
        }
    }

    pub(crate) fn namespace(error: kernlink_netlink::Error) -> Self {
        Self {
            verb: "access",
            name: "net".into(),
            cause: SysctlErrorCause::Namespace(error),
        }
    }

    /// Whether the process may not read or write it.
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        matches!(self.cause, SysctlErrorCause::File(Errno::EACCES | Errno::EPERM))
    }
}
