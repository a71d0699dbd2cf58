//! Errors of operations on kernel objects, and of listings.

pub use kernlink_host::{SysctlError, SysctlErrorCause};

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
    /// An error about connection tracking.
    #[error(transparent)]
    Conntrack(#[from] kernlink_conntrack::Error),
    /// An error about sysctls.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// An implementation of a kernel API returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the kernel API returned none")]
    OutcomeMissing,
}
