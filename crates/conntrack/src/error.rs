//! What can go wrong, and how to tell it apart.

use std::time::Duration;

use kernlink_base::{Family, Protocol};
use kernlink_netlink::Errno;

use crate::operation::Operation;
use crate::port_range::PortRange;

/// What can go wrong. Tell the cases apart by the predicates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused an operation, or it did not get through; what it was is in the cause.
    #[error("cannot do {operation}")]
    Failed {
        /// What was asked for.
        operation: Box<Operation>,
        /// Why it failed.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// The flow keeps its timeout ([`Status::FIXED_TIMEOUT`](crate::Status::FIXED_TIMEOUT)); nothing of it was changed.
    #[error("cannot do {operation}: the flow's timeout is fixed (FIXED_TIMEOUT)")]
    TimeoutFixed {
        /// What was asked for.
        operation: Box<Operation>,
        /// The kernel's refusal (`EPERM`).
        #[source]
        source: kernlink_netlink::Error,
    },
    /// An operation was not sent, because the outcome of an earlier one of the same call is unknown.
    #[error("{operation} was not sent, because the outcome of an earlier operation is unknown")]
    NotSent {
        /// What was asked for.
        operation: Box<Operation>,
    },
    /// An operation that the kernel would take for something else; it was not sent.
    #[error("cannot do {operation}")]
    Invalid {
        /// What was asked for.
        operation: Box<Operation>,
        /// What is wrong with it.
        #[source]
        problem: InvalidOperation,
    },
    /// A filter for reading is contradictory; nothing was read.
    #[error("cannot filter by {filter}")]
    InvalidFilter {
        /// The filter, as it prints; of a list that is too long, the number of filters.
        filter: String,
        /// What is wrong with it.
        #[source]
        problem: InvalidOperation,
    },
    /// The kernel refused to create or delete an expectation, or that did not get through.
    #[error("cannot {attempt} the expectation {expectation}")]
    Expectation {
        /// What was attempted.
        attempt: &'static str,
        /// The expectation, as it prints.
        expectation: Box<str>,
        /// Why it failed.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// An expectation that the kernel would take for something else; it was not sent.
    #[error("cannot create or delete the expectation {expectation}")]
    InvalidExpectation {
        /// The expectation, as it prints.
        expectation: Box<str>,
        /// What is wrong with it.
        #[source]
        problem: InvalidOperation,
    },
    /// Some of the flows that were to be deleted are still there.
    #[error("{failed} flows could not be deleted, {deleted} were and {vanished} had gone")]
    Incomplete {
        /// Flows that were deleted.
        deleted: u64,
        /// Flows that had ended before their turn came.
        vanished: u64,
        /// Flows that could not be deleted.
        failed: u64,
        /// Why the first of them could not.
        #[source]
        first: Box<Error>,
    },
    /// Something that changes nothing failed.
    #[error("cannot {attempt}")]
    Request {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// The kernel has no connection tracking over netlink, and could not load it
    /// (module `nf_conntrack_netlink`).
    #[error("the kernel has no connection tracking over netlink (module nf_conntrack_netlink)")]
    ModuleMissing {
        /// What it said.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// An implementation of [`Conntrack`](crate::Conntrack) other than the kernel's failed; see [`Error::custom`].
    #[error("cannot {attempt}")]
    Custom {
        /// What was attempted on what.
        attempt: String,
        /// Why it failed.
        #[source]
        cause: Cause,
    },
    /// An implementation of [`Conntrack`](crate::Conntrack) returned fewer outcomes than it was given operations.
    #[error("cannot tell what became of the operation: the backend returned no outcome for it")]
    OutcomeMissing,
}

/// The cause in [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// Why an operation was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOperation {
    /// An IPv4 address beside an IPv6 address.
    #[error("{field}: source and destination are of different families")]
    MixedFamilies {
        /// Which part of the operation.
        field: &'static str,
    },
    /// Ports for a protocol without ports, or the like.
    #[error("{field}: its protocol-specific part is not one of {protocol}")]
    ProtocolPart {
        /// Which tuple.
        field: &'static str,
        /// Its protocol.
        protocol: Protocol,
    },
    /// Original and reply tuple are of different families or protocols.
    #[error("reply tuple: its family and protocol are not those of the original tuple")]
    TuplesDiffer,
    /// An ICMP type without an answer makes no flow.
    #[error("original tuple: its ICMP type has no answer, and no reply tuple is given")]
    NoInverse,
    /// A mask of another family or protocol than the expectation.
    #[error("mask: its family and protocol are not those of the tuple")]
    MaskDiffers,
    /// A time-out that the kernel cannot hold.
    #[error("timeout: {timeout:?} is not a whole number of seconds up to {}", u32::MAX)]
    Timeout {
        /// The time-out.
        timeout: Duration,
    },
    /// A name that no helper can have.
    #[error("helper: a name has 1 to 15 bytes (NF_CT_HELPER_NAME_LEN) and no NUL")]
    HelperName,
    /// The addresses of a filter are of different families.
    #[error("filter, {field}: not an address of {family}, which the filter asks for elsewhere")]
    FilterFamily {
        /// Which condition.
        field: &'static str,
        /// The family of the others.
        family: Family,
    },
    /// A TCP state beside all of the TCP state.
    #[error("tcp_state: it is given beside protocol_state, which includes it")]
    TwoStates,
    /// A window scale that TCP does not have.
    #[error("window scale: {scale} is more than 14")]
    WindowScale {
        /// The window scale.
        scale: u8,
    },
    /// The state of a DCCP connection, which is not written.
    #[error("protocol state: that of dccp cannot be written")]
    DccpState,
    /// The state of a protocol that is not the flow's.
    #[error("protocol state: it is one of {state} and the flow is of {protocol}")]
    StateOfAnotherProtocol {
        /// The protocol of the state.
        state: Protocol,
        /// The protocol of the flow.
        protocol: Protocol,
    },
    /// A range of ports of which the last is less than the first.
    #[error("filter, {field}: the range {ports} is empty")]
    PortRange {
        /// Which condition.
        field: &'static str,
        /// The range.
        ports: PortRange,
    },
    /// A condition that the kernel's filter of events does not compare.
    #[error(
        "kernel filter of events: {field} is set; valid: family, protocol, original source, original destination"
    )]
    NotInKernelFilter {
        /// Which condition.
        field: &'static str,
    },
    /// More filters than fit into one program of the kernel.
    #[error(
        "kernel filter of events: {filters} filters need {instructions} instructions; valid: at most {} (BPF_MAXINSNS)",
        kernlink_netlink::MAX_FILTER_INSTRUCTIONS
    )]
    KernelFilterLength {
        /// The number of filters.
        filters: usize,
        /// The instructions that they need.
        instructions: usize,
    },
    /// A deletion by a filter that accepts everything.
    #[error("filter: it has no condition and would delete everything; flush everything to mean that")]
    UnconditionalFilter,
}

impl Error {
    /// An error of an implementation of [`Conntrack`](crate::Conntrack) other than the kernel's. `attempt` says what was
    /// attempted on what and is printed after "cannot". `cause` is the source. All predicates are false for this error.
    ///
    /// ```
    /// let error = kernlink_conntrack::Error::custom("flush zone 7", "the zone is reserved");
    /// assert_eq!(error.to_string(), "cannot flush zone 7");
    /// assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the zone is reserved");
    /// ```
    pub fn custom(attempt: impl Into<String>, cause: impl Into<String>) -> Self {
        Error::Custom {
            attempt: attempt.into(),
            cause: Cause(cause.into()),
        }
    }

    /// The kernel's error number, where it refused or a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Failed { source, .. }
            | Error::TimeoutFixed { source, .. }
            | Error::Expectation { source, .. }
            | Error::Request { source, .. }
            | Error::ModuleMissing { source } => source.errno(),
            Error::Incomplete { first, .. } => first.errno(),
            _ => None,
        }
    }

    /// The flow is not there (any more).
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }

    /// A flow with one of the tuples is there already.
    pub fn is_already_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    /// The caller lacks `CAP_NET_ADMIN` in the user namespace that owns the network namespace.
    pub fn is_permission_denied(&self) -> bool {
        !self.is_timeout_fixed() && matches!(self.errno(), Some(Errno::EPERM | Errno::EACCES))
    }

    /// The flow keeps its timeout ([`Status::FIXED_TIMEOUT`](crate::Status::FIXED_TIMEOUT)). The kernel's number for
    /// this is `EPERM`, as for a missing capability
    /// ([`__nf_ct_change_timeout`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_core.c)).
    pub fn is_timeout_fixed(&self) -> bool {
        matches!(self, Error::TimeoutFixed { .. })
    }

    /// The running kernel does not have this: too old, or built without it.
    pub fn is_unsupported(&self) -> bool {
        self.errno() == Some(Errno::EOPNOTSUPP)
    }

    /// No room for one more flow: `net.netfilter.nf_conntrack_max` is reached, or memory is short.
    pub fn is_table_full(&self) -> bool {
        matches!(self, Error::Failed { operation, .. } if matches!(**operation, Operation::Add(_) | Operation::Ensure(_)))
            && self.errno() == Some(Errno::ENOMEM)
    }

    /// A module of the kernel is missing: connection tracking itself.
    pub fn is_module_missing(&self) -> bool {
        matches!(self, Error::ModuleMissing { .. })
    }

    /// The kernel keeps what was to be changed: status bits cannot be taken away.
    ///
    /// Kernels before 6.4 also refuse so to delete a flow that a flow table forwards
    /// ([`Status::OFFLOAD`](crate::Status::OFFLOAD)), unless they have
    /// [the fix](https://github.com/torvalds/linux/commit/9b7c68b3911aef84afa4cbfc31bce20f10570d51), as 6.3.6, 6.1.32,
    /// 5.15.115, 5.10.182 and 5.4.245 do; flushing everything deletes such flows on any kernel.
    pub fn is_busy(&self) -> bool {
        self.errno() == Some(Errno::EBUSY)
    }

    /// Whether the operation may have been carried out although this error came back.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Failed { source, .. } | Error::Expectation { source, .. } => source.is_outcome_unknown(),
            Error::Incomplete { first, .. } => first.is_outcome_unknown(),
            Error::OutcomeMissing => true,
            _ => false,
        }
    }
}
