//! Errors of operations, and of listings.

use crate::{iptables_mode, ipvs_mode};

/// Why an operation failed, or the kernel could not be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of IPVS mode.
    #[error(transparent)]
    Ipvs(#[from] ipvs_mode::Error),
    /// An error of iptables mode.
    #[error(transparent)]
    Iptables(#[from] iptables_mode::Error),
    /// A kernel API returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the kernel API returned none")]
    OutcomeMissing,
}
