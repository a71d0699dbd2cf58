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
    /// A socket could not be opened.
    #[error("cannot {attempt} {key}")]
    Socket {
        /// What was attempted.
        attempt: &'static str,
        /// The protocol, address and port.
        key: ListenerKey,
        /// Why.
        #[source]
        cause: SocketError,
    },
    /// An implementation of a kernel API returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the kernel API returned none")]
    OutcomeMissing,
}

/// Why a socket could not be opened. Those that fail for one reason have equal errors, so that it is reported once; a port that another
/// program uses is a reason of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct SocketError {
    /// The kind of the error.
    pub kind: io::ErrorKind,
    /// What is wrong.
    text: String,
}

/// The text of the kernel, with the port if another program uses it.
fn socket_text(key: ListenerKey, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!("another program uses {key} ({error})"),
        _ => error.to_string(),
    }
}

impl Error {
    /// A port could not be opened for a portal.
    pub(super) fn listen(key: ListenerKey, error: &io::Error) -> Self {
        let address = key.address.ip();
        let is_bind_address = error.kind() == io::ErrorKind::AddrNotAvailable && !address.is_unspecified();
        let text = if is_bind_address {
            format!(
                "bindAddress: {address} is not an address of this node; valid: an address of this node, or 0.0.0.0 or :: for all of them"
            )
        } else {
            socket_text(key, error)
        };
        Self::socket("listen at", key, error.kind(), text)
    }

    /// A port could not be claimed.
    pub(super) fn claim(key: ListenerKey, error: &io::Error) -> Self {
        Self::socket("claim", key, error.kind(), socket_text(key, error))
    }

    fn socket(attempt: &'static str, key: ListenerKey, kind: io::ErrorKind, text: String) -> Self {
        let cause = SocketError { kind, text };
        Error::Socket { attempt, key, cause }
    }

    /// Whether another program uses the port.
    #[must_use]
    pub fn is_address_in_use(&self) -> bool {
        matches!(
            self,
            Error::Socket { cause, .. } if cause.kind == io::ErrorKind::AddrInUse
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
            Error::NotAttempted { .. } => false,
        }
    }
}
