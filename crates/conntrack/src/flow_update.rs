//! Updates of flows.

use std::fmt;
use std::time::Duration;

use crate::flow::Labels;
use crate::protocol_state::{ProtocolState, TcpState};
use crate::status::Status;

/// New values of fields of a flow. A field that is `None` does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowUpdate {
    /// Time until the flow ends without a packet, whole seconds from 0 (at once) to `u32::MAX`.
    pub timeout: Option<Duration>,
    /// Value and mask of the mark. Bits outside the mask do not change.
    pub mark: Option<(u32, u32)>,
    /// All status bits. The kernel refuses to clear [`Status::SEEN_REPLY`] and [`Status::ASSURED`]. [`Status::CONFIRMED`] is added.
    pub status: Option<Status>,
    /// Value and mask of the labels. Labels outside the mask do not change. Refused (`ENOSPC`) for a flow without room for labels.
    pub labels: Option<(Labels, Labels)>,
    /// State of a TCP connection.
    pub tcp_state: Option<TcpState>,
    /// State of a TCP connection or an SCTP association with all fields, instead of `tcp_state`; see
    /// [`NewFlow::protocol_state`](crate::NewFlow::protocol_state).
    pub protocol_state: Option<ProtocolState>,
}

impl FlowUpdate {
    /// An update without changes.
    #[must_use]
    pub fn new() -> Self {
        FlowUpdate::default()
    }

    /// Sets the timeout. Refused ([`Error::is_timeout_fixed`](crate::Error::is_timeout_fixed)) for a flow with
    /// [`Status::FIXED_TIMEOUT`].
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the mark.
    #[must_use]
    pub fn with_mark(self, mark: u32) -> Self {
        self.with_masked_mark(mark, u32::MAX)
    }

    /// Sets the bits of the mark that are in `mask`.
    #[must_use]
    pub fn with_masked_mark(mut self, value: u32, mask: u32) -> Self {
        self.mark = Some((value, mask));
        self
    }

    /// Sets all status bits; see [`status`](Self::status).
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets the labels that are in `mask`.
    #[must_use]
    pub fn with_labels(mut self, labels: Labels, mask: Labels) -> Self {
        self.labels = Some((labels, mask));
        self
    }

    /// Sets the TCP state.
    #[must_use]
    pub fn with_tcp_state(mut self, state: TcpState) -> Self {
        self.tcp_state = Some(state);
        self
    }

    /// Sets the state of TCP or SCTP: state, flags, window scales, verification tags.
    #[must_use]
    pub fn with_protocol_state(mut self, state: ProtocolState) -> Self {
        self.protocol_state = Some(state);
        self
    }
}

impl fmt::Display for FlowUpdate {
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
