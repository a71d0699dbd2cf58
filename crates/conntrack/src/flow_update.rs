//! Changes of a flow.

use std::fmt;
use std::time::Duration;

use crate::flow::Labels;
use crate::protocol_state::{ProtocolState, TcpState};
use crate::status::Status;

/// What to change of a flow; `None` leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// Whole seconds until the flow ends without a packet, from 0 (at once) to `u32::MAX`.
    pub timeout: Option<Duration>,
    /// Value and mask of the mark: bits in the mask become those of the value.
    pub mark: Option<(u32, u32)>,
    /// All status bits that it has and shall have: the kernel refuses to take away
    /// [`Status::SEEN_REPLY`] and [`Status::ASSURED`]. [`Status::CONFIRMED`] is added.
    pub status: Option<Status>,
    /// Value and mask of the labels: labels in the mask become those of the value, the others stay. Refused
    /// (`ENOSPC`) for a flow that was made while no rule used labels.
    pub labels: Option<(Labels, Labels)>,
    /// State of a TCP connection.
    pub tcp_state: Option<TcpState>,
    /// All that the kernel knows of a TCP connection or an SCTP association, in place of `tcp_state`; see
    /// [`NewFlow::protocol_state`].
    pub protocol_state: Option<ProtocolState>,
}

impl Changes {
    /// No change.
    pub fn new() -> Self {
        Changes::default()
    }

    /// Another timeout. Refused ([`Error::is_timeout_fixed`](crate::Error::is_timeout_fixed)) for a flow with
    /// [`Status::FIXED_TIMEOUT`].
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Another mark.
    pub fn with_mark(self, mark: u32) -> Self {
        self.with_masked_mark(mark, u32::MAX)
    }

    /// Other bits of the mark, those in the mask.
    pub fn with_masked_mark(mut self, mark: u32, mask: u32) -> Self {
        self.mark = Some((mark, mask));
        self
    }

    /// The status bits that it has and shall have.
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = Some(status);
        self
    }

    /// Other labels, those in the mask.
    pub fn with_labels(mut self, labels: Labels, mask: Labels) -> Self {
        self.labels = Some((labels, mask));
        self
    }

    /// Another TCP state.
    pub fn with_tcp_state(mut self, state: TcpState) -> Self {
        self.tcp_state = Some(state);
        self
    }

    /// Another state of its protocol, TCP or SCTP: state, flags, window scales, verification tags.
    pub fn with_protocol_state(mut self, state: ProtocolState) -> Self {
        self.protocol_state = Some(state);
        self
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(timeout) = self.timeout {
            write!(f, " timeout={}", timeout.as_secs())?;
        }
        match self.mark {
            Some((mark, u32::MAX)) => write!(f, " mark={mark}")?,
            Some((mark, mask)) => write!(f, " mark={mark:#x}/{mask:#x}")?,
            None => {}
        }
        if let Some(status) = self.status {
            write!(f, " status={status}")?;
        }
        if let Some((labels, mask)) = self.labels {
            write!(f, " labels={:#x}/{:#x}", labels.0, mask.0)?;
        }
        if let Some(state) = self.tcp_state {
            write!(f, " state={state}")?;
        }
        match self.protocol_state {
            Some(state) => write!(f, " {state}"),
            None => Ok(()),
        }
    }
}
