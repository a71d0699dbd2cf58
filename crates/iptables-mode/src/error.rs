//! Errors of operations of iptables mode, and of listings.

use kernlink_host::SysctlError;
use kernlink_iptables_restore::{Edit, Refused};

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
    /// Too many other inputs were refused in the same sync. Nothing was changed.
    #[error("not attempted: {refused} other inputs were refused in the same sync")]
    NotAttempted {
        /// The number of refused inputs.
        refused: usize,
    },
    /// The addresses of the node could not be read.
    #[error(transparent)]
    Addresses(#[from] kernlink_dummylink::Error),
    /// An error about tracked flows.
    #[error(transparent)]
    Conntrack(#[from] kernlink_conntrack::Error),
    /// Accounting objects are not accessible.
    #[error("cannot access accounting objects: {0}")]
    Accounting(#[from] kernlink_netlink::Error),
    /// An error about sysctls.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// An implementation of a kernel API returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the kernel API returned none")]
    OutcomeMissing,
}

impl Error {
    /// Whether the operation may have been executed nevertheless, at least in part, or the kernel differs from what was recorded: its objects are
    /// read again.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Rules(kernlink_iptables_restore::Error::Refused { refused, .. }) => match &**refused {
                // Which tables were written is not known.
                Refused::Whole(_) => true,
                // Another program removed the rule: the kernel differs from what is recorded.
                Refused::Edit { edit, .. } => matches!(edit, Edit::Delete { .. }),
                _ => false,
            },
            Error::PartlyWritten(_) | Error::OutcomeMissing => true,
            Error::Rules(error) => error.is_outcome_unknown(),
            // A pass that may have been executed is repeated: it deletes what is still stale.
            Error::Addresses(_) | Error::Sysctl(_) | Error::Conntrack(_) | Error::Accounting(_) => false,
            Error::NotAttempted { .. } => false,
        }
    }
}
