//! Errors of operations of iptables mode, and of listings.

use crate::netfilter::SysctlError;

/// Why an operation failed, or the kernel could not be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error about chains or rules.
    #[error(transparent)]
    Rules(#[from] kernlink_iptables_restore::Error),
    /// A table was written before the error.
    #[error("after a part was written: {0}")]
    PartlyWritten(kernlink_iptables_restore::Error),
    /// The addresses of the node could not be read.
    #[error(transparent)]
    Addresses(#[from] kernlink_dummylink::Error),
    /// An error about sysctls.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// An implementation of a kernel API returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the kernel API returned none")]
    OutcomeMissing,
}
