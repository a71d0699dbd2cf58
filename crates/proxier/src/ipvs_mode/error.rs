//! Errors of operations on kernel objects and of readings.

use kernlink_netlink::Errno;

/// An operation on a kernel object failed, or kernel objects could not be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error about virtual servers or real servers.
    #[error(transparent)]
    Ipvs(#[from] kernlink_ipvs::Error),
    /// An error about sets or entries.
    #[error(transparent)]
    Set(#[from] kernlink_ipset::Error),
    /// An error about chains or rules.
    #[error(transparent)]
    Rules(#[from] kernlink_iptables_restore::Error),
    /// An error about the dummy link or addresses.
    #[error(transparent)]
    Link(#[from] kernlink_dummylink::Error),
    /// An error about sysctls.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// An implementation of a kernel API returned fewer outcomes than it was given operations.
    #[error("no outcome was returned for the operation")]
    NoOutcome,
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
