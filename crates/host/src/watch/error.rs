//! Errors of watching.

use std::io;

/// Why events cannot be received.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// Events of links and addresses.
    #[error("cannot watch links and addresses")]
    Links(#[source] kernlink_dummylink::Error),
    /// Notifications of nf_tables.
    #[error("cannot watch the rules of nf_tables")]
    Rules(#[source] kernlink_netlink::Error),
    /// The name of the dummy link is invalid; see `dummy_link` of the configuration.
    #[error("invalid name of the dummy link `{0}`; valid: 1 to 15 bytes without `/` and white space")]
    InvalidLink(Box<str>),
    /// The system cannot start a thread or wait for events.
    #[error("cannot {call} the thread that watches the kernel: {kind}")]
    Thread {
        /// `start`, or `wait in`.
        call: &'static str,
        /// What the system returned.
        kind: io::ErrorKind,
    },
}
