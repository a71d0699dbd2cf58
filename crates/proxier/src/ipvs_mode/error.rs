//! Errors of operations on kernel objects, and of listings.

use kernlink_netlink::Errno;

/// Why an operation on a kernel object failed, or kernel objects could not be read.
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
    #[error("the outcome of the operation is unknown: the kernel API returned none")]
    OutcomeMissing,
}

/// A sysctl that could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {verb} sysctl {name}")]
pub struct SysctlError {
    /// What was attempted: `read` or `write`, or `access` for all sysctls of the network namespace.
    pub verb: &'static str,
    /// The name of the sysctl; `net` for all sysctls of the network namespace.
    pub name: Box<str>,
    /// The cause.
    #[source]
    pub cause: SysctlErrorCause,
}

/// Why a sysctl could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SysctlErrorCause {
    /// The file of the sysctl could not be read or written.
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
            cause: SysctlErrorCause::File(Errno::from_io(error)),
        }
    }

    pub(crate) fn namespace(error: kernlink_netlink::Error) -> Self {
        Self {
            verb: "access",
            name: "net".into(),
            cause: SysctlErrorCause::Namespace(error),
        }
    }

    /// Whether the process lacks the permission to read or write it (`EACCES`, `EPERM`).
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        matches!(self.cause, SysctlErrorCause::File(Errno::EACCES | Errno::EPERM))
    }
}
