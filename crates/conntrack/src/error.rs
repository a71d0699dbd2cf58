//! Errors.

// Circle of imports: an error holds the operation that failed, and the checks of an operation and of its parts return an error.

use std::time::Duration;

use kernlink_base::{Family, Protocol};
use kernlink_netlink::Errno;

use crate::operation::Operation;
use crate::port_range::PortRange;

/// An error of connection tracking. The predicates (`is_...`) distinguish the cases without error numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused an operation, or the communication failed.
    #[error("cannot execute conntrack {operation}{}", requirement(.source))]
    Failed {
        /// The operation.
        operation: Box<Operation>,
        /// The cause.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// The timeout of the flow is fixed ([`Status::FIXED_TIMEOUT`](crate::Status::FIXED_TIMEOUT)). The flow was not changed.
    #[error("cannot execute conntrack {operation}: the timeout of the flow is fixed (FIXED_TIMEOUT)")]
    TimeoutFixed {
        /// The operation.
        operation: Box<Operation>,
        /// The kernel's error (`EPERM`).
        #[source]
        source: kernlink_netlink::Error,
    },
    /// The operation was not sent, because the outcome of an earlier operation of the same call is unknown.
    #[error("conntrack {operation} not sent, because the outcome of an earlier operation is unknown")]
    NotSent {
        /// The operation.
        operation: Box<Operation>,
    },
    /// The operation is invalid and was not sent.
    #[error("invalid operation: conntrack {operation}")]
    Invalid {
        /// The operation.
        operation: Box<Operation>,
        /// The reason.
        #[source]
        problem: InvalidOperation,
    },
    /// A filter or a tuple of a listing or subscription is invalid. No request was sent.
    #[error("invalid filter {filter}")]
    InvalidFilter {
        /// The filter as it prints; of a list that is too long, the number of filters.
        filter: String,
        /// The reason.
        #[source]
        problem: InvalidOperation,
    },
    /// The kernel refused to add or delete an expectation, or the communication failed.
    #[error("cannot {attempt} the expectation {expectation}{}", requirement(.source))]
    Expectation {
        /// The attempted action, in the infinitive.
        attempt: &'static str,
        /// The expectation, as it prints.
        expectation: Box<str>,
        /// The cause.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// The expectation is invalid and was not sent.
    #[error("invalid expectation {expectation}")]
    InvalidExpectation {
        /// The expectation, as it prints.
        expectation: Box<str>,
        /// The reason.
        #[source]
        problem: InvalidOperation,
    },
    /// Some flows could not be deleted.
    #[error("cannot delete {failed} flows; {deleted} deleted, {not_found} not found")]
    Incomplete {
        /// Number of deleted flows.
        deleted: u64,
        /// Number of flows that did not exist any more.
        not_found: u64,
        /// Number of flows that could not be deleted.
        failed: u64,
        /// The error of the first flow that could not be deleted.
        #[source]
        first: Box<Error>,
    },
    /// A request that does not change the table failed.
    #[error("cannot {attempt}{}", requirement(.source))]
    Request {
        /// The attempted action, in the infinitive.
        attempt: &'static str,
        /// The cause.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// The kernel does not support connection tracking over netlink, and could not load the module `nf_conntrack_netlink`.
    #[error("the kernel does not support connection tracking over netlink (module nf_conntrack_netlink)")]
    ModuleMissing {
        /// The kernel's error.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// An error of another implementation of [`Conntrack`](crate::Conntrack); see [`Error::custom`].
    #[error("cannot {attempt}")]
    Custom {
        /// The attempted action and its object, in the infinitive.
        attempt: String,
        /// The cause.
        #[source]
        cause: Cause,
    },
    /// An implementation of [`Conntrack`](crate::Conntrack) returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the implementation of Conntrack returned none")]
    OutcomeMissing,
}

/// The cause of [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// The reason why an operation, a filter or an expectation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOperation {
    /// An IPv4 address together with an IPv6 address.
    #[error("{field}: addresses of different families")]
    MixedFamilies {
        /// The part of the operation.
        field: &'static str,
    },
    /// Ports or ICMP fields of another protocol, or none for a protocol that requires them.
    #[error("{field}: ports or ICMP fields do not match protocol {protocol}")]
    ProtocolPartMismatch {
        /// The tuple.
        field: &'static str,
        /// The protocol of the tuple.
        protocol: Protocol,
    },
    /// Original and reply tuple have different families or protocols.
    #[error("reply tuple: family or protocol differs from the original tuple")]
    TupleMismatch,
    /// An ICMP type without a reply type, and no reply tuple.
    #[error("original tuple: the ICMP type has no reply type; set the reply tuple")]
    NoReplyType,
    /// Mask and tuple of an expectation have different families or protocols.
    #[error("mask: family or protocol differs from the tuple")]
    MaskMismatch,
    /// A timeout that the kernel cannot store.
    #[error("invalid timeout {timeout:?}; valid: whole seconds from 0 to {}", u32::MAX)]
    Timeout {
        /// The timeout.
        timeout: Duration,
    },
    /// An invalid name of a helper.
    #[error(
        "invalid helper name; valid: 1 to 15 bytes without NUL (NF_CT_HELPER_NAME_LEN includes the terminating NUL)"
    )]
    HelperName,
    /// Conditions of a filter have different families.
    #[error("filter: {field} is not an {family} network; all conditions must have one family")]
    FilterFamilyMismatch {
        /// The condition.
        field: &'static str,
        /// The family of the other conditions.
        family: Family,
    },
    /// `tcp_state` and a TCP `protocol_state` are both set.
    #[error("tcp_state and protocol_state are both set; valid: one of them")]
    ConflictingStates,
    /// An invalid TCP window scale.
    #[error("invalid window scale {scale}; valid: 0 to 14")]
    WindowScale {
        /// The window scale.
        scale: u8,
    },
    /// The state of a DCCP connection, which cannot be set.
    #[error("protocol state of dccp cannot be set; valid: tcp, sctp")]
    UnsupportedDccpState,
    /// The state of another protocol.
    #[error("protocol state of {state} for a flow of {protocol}")]
    StateMismatch {
        /// The protocol of the state.
        state: Protocol,
        /// The protocol of the flow.
        protocol: Protocol,
    },
    /// A port range whose last port is less than the first.
    #[error("filter, {field}: empty port range {ports}")]
    EmptyPortRange {
        /// The condition.
        field: &'static str,
        /// The range.
        ports: PortRange,
    },
    /// A condition that a kernel filter of events does not support.
    #[error(
        "kernel filter of events: {field} is set; valid: family, protocol, original source, original destination"
    )]
    UnsupportedInKernelFilter {
        /// The condition.
        field: &'static str,
    },
    /// More filters than one program of the kernel can compare.
    #[error(
        "kernel filter of events: {filters} filters need {instructions} instructions; valid: at most {} (BPF_MAXINSNS)",
        kernlink_netlink::MAX_FILTER_INSTRUCTIONS
    )]
    KernelFilterTooLong {
        /// The number of filters.
        filters: usize,
        /// The required instructions.
        instructions: usize,
    },
    /// A deletion by a filter without a condition.
    #[error("filter without a condition; use a flush to delete all flows")]
    UnconditionalFilter,
}

/// What the caller lacks, for the text of an error.
fn requirement(source: &kernlink_netlink::Error) -> &'static str {
    match source {
        // Another capability is required in the user namespaces of a network namespace that is entered; the source names it.
        kernlink_netlink::Error::Namespace { .. } => "",
        _ if matches!(source.errno(), Some(Errno::EPERM | Errno::EACCES)) => {
            "; CAP_NET_ADMIN is required in the user namespace that owns the network namespace"
        }
        _ => "",
    }
}

impl Error {
    /// An error of another implementation of [`Conntrack`](crate::Conntrack). `attempt` is the attempted action and its object,
    /// printed after "cannot". `cause` is the source. All predicates are false for this error.
    ///
    /// ```
    /// let error = kernlink_conntrack::Error::custom("flush zone 7", "the zone is reserved");
    /// assert_eq!(error.to_string(), "cannot flush zone 7");
    /// assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the zone is reserved");
    /// ```
    #[must_use]
    pub fn custom(attempt: impl Into<String>, cause: impl Into<String>) -> Self {
        Error::Custom {
            attempt: attempt.into(),
            cause: Cause(cause.into()),
        }
    }

    /// The error number, if the kernel refused a request or a system call failed.
    #[must_use]
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

    /// Whether the flow does not exist (any more).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }

    /// Whether a flow with one of the tuples exists already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    /// Whether the caller lacks `CAP_NET_ADMIN` in the user namespace that owns the network namespace.
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        !self.is_timeout_fixed() && matches!(self.errno(), Some(Errno::EPERM | Errno::EACCES))
    }

    /// Whether the timeout of the flow is fixed ([`Status::FIXED_TIMEOUT`](crate::Status::FIXED_TIMEOUT)). The kernel returns
    /// `EPERM`, as for a missing capability
    /// ([`__nf_ct_change_timeout`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_core.c)).
    #[must_use]
    pub fn is_timeout_fixed(&self) -> bool {
        matches!(self, Error::TimeoutFixed { .. })
    }

    /// Whether the running kernel does not support the operation: it is too old, or built without support.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.errno() == Some(Errno::EOPNOTSUPP)
    }

    /// Whether the table is full: `net.netfilter.nf_conntrack_max` is reached, or the kernel has no memory.
    #[must_use]
    pub fn is_table_full(&self) -> bool {
        matches!(self, Error::Failed { operation, .. } if matches!(**operation, Operation::Add(_) | Operation::Ensure(_)))
            && self.errno() == Some(Errno::ENOMEM)
    }

    /// Whether the kernel module `nf_conntrack_netlink` is missing.
    #[must_use]
    pub fn is_module_missing(&self) -> bool {
        matches!(self, Error::ModuleMissing { .. })
    }

    /// Whether the kernel refused to clear status bits (`EBUSY`).
    ///
    /// Kernels before 6.4 also refuse to delete a flow that a flow table forwards
    /// ([`Status::OFFLOAD`](crate::Status::OFFLOAD)), unless they have
    /// [the fix](https://github.com/torvalds/linux/commit/9b7c68b3911aef84afa4cbfc31bce20f10570d51), as 6.3.6, 6.1.32,
    /// 5.15.115, 5.10.182 and 5.4.245 do. A flush of all flows deletes such flows on every kernel.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.errno() == Some(Errno::EBUSY)
    }

    /// Whether the operation may have been executed although it failed.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Failed { source, .. } | Error::Expectation { source, .. } => source.is_outcome_unknown(),
            Error::Incomplete { first, .. } => first.is_outcome_unknown(),
            Error::OutcomeMissing => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_is_named() {
        let of = |errno| {
            let source = kernlink_netlink::Error::Refused(kernlink_netlink::Refusal::new(errno));
            let attempt = "list flows";
            Error::Request { attempt, source }.to_string()
        };
        assert_eq!(
            of(Errno::EPERM),
            "cannot list flows; CAP_NET_ADMIN is required in the user namespace that owns the network namespace"
        );
        assert_eq!(of(Errno::ENOMEM), "cannot list flows");
    }
}
