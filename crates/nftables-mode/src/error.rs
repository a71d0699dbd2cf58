//! Errors of operations of nftables mode, and of listings.

use kernlink_host::SysctlError;

/// Why an operation failed, or the kernel could not be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error about tables, rules or elements.
    #[error(transparent)]
    Tables(#[from] kernlink_nftables::Error),
    /// The rules of the tables could not be built: a fault of this crate.
    #[error("cannot build the rules of the table")]
    Rule(#[from] kernlink_nftables::RuleError),
    /// The addresses of the node could not be read.
    #[error(transparent)]
    Addresses(#[from] kernlink_dummylink::Error),
    /// An error about tracked flows.
    #[error(transparent)]
    Conntrack(#[from] kernlink_conntrack::Error),
    /// An error about sysctls.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// A connection to the kernel could not be opened.
    #[error(transparent)]
    Netlink(#[from] kernlink_netlink::Error),
    /// An implementation of a kernel API returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the kernel API returned none")]
    OutcomeMissing,
}

impl Error {
    /// Whether the operation may have been executed nevertheless.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Tables(error) => error.is_outcome_unknown(),
            Error::OutcomeMissing => true,
            // A pass that may have been executed is repeated: it deletes what is still stale.
            Error::Rule(_)
            | Error::Addresses(_)
            | Error::Sysctl(_)
            | Error::Conntrack(_)
            | Error::Netlink(_) => false,
        }
    }
}
