//! Errors of operations of userspace mode, and of readings.

use std::io;

use kernlink_iptables_restore::Error as RulesError;

use crate::proxy::ListenerKey;

/// Why an operation failed, or the kernel could not be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error about chains or rules.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The addresses of the node could not be read.
    #[error(transparent)]
    Addresses(#[from] kernlink_dummylink::Error),
    /// An error about tracked flows.
    #[error(transparent)]
    Conntrack(#[from] kernlink_conntrack::Error),
    /// A socket could not be opened.
    #[error("cannot {attempt} {key}: {text}")]
    Socket {
        /// What was attempted.
        attempt: &'static str,
        /// The protocol, address and port.
        key: ListenerKey,
        /// The kind of the error.
        kind: io::ErrorKind,
        /// The kernel's text.
        text: String,
    },
    /// An implementation of a kernel API returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the kernel API returned none")]
    OutcomeMissing,
}

impl Error {
    pub(super) fn socket(attempt: &'static str, key: ListenerKey, error: &io::Error) -> Self {
        Error::Socket {
            attempt,
            key,
            kind: error.kind(),
            text: error.to_string(),
        }
    }

    /// Whether another program uses the port.
    #[must_use]
    pub fn is_address_in_use(&self) -> bool {
        matches!(
            self,
            Error::Socket {
                kind: io::ErrorKind::AddrInUse,
                ..
            }
        )
    }

    /// Whether the operation may have been executed, or the kernel differs from what was recorded: its objects are read again.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Rules(RulesError::Refused { .. }) | Error::OutcomeMissing => true,
            Error::Rules(error) => error.is_outcome_unknown(),
            // A pass that may have been executed is repeated: it deletes what is still stale.
            Error::Addresses(_) | Error::Conntrack(_) | Error::Socket { .. } => false,
        }
    }
}
