//! What can go wrong, and why.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use kernlink_base::{Family, KernelRelease};
use kernlink_netlink::Errno;

use crate::operation::Operation;
use crate::reason::Reason;

/// What can go wrong. Tell the cases apart by the predicates; the text says what was attempted on what, and why it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused an operation.
    #[error("cannot {}: {reason}", operation.describe())]
    Refused {
        /// What was asked of it.
        operation: Box<Operation>,
        /// The kernel's error number.
        #[source]
        errno: Errno,
        /// What the number means for this operation. The kernel sends no text, so this is worked out from what was sent.
        reason: Reason,
    },
    /// An operation that the kernel would take for something else or cut in silence; it was not sent.
    #[error("cannot {}", operation.describe())]
    Invalid {
        /// What was asked for.
        operation: Box<Operation>,
        /// What is wrong with it.
        #[source]
        problem: InvalidOperation,
    },
    /// There is no IPVS to talk to.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The caller may not do this: IPVS wants `CAP_NET_ADMIN` in the initial user namespace, for reading too.
    #[error("not permitted to {attempt}: IPVS needs CAP_NET_ADMIN in the initial user namespace")]
    NotPermitted {
        /// What was attempted.
        attempt: &'static str,
    },
    /// A request that changes nothing failed.
    #[error("cannot {attempt}")]
    Request {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// An operation did not get through, or its outcome did not: see
    /// [`is_outcome_unknown`](kernlink_netlink::Error::is_outcome_unknown).
    #[error("cannot {}", operation.describe())]
    Transport {
        /// What was asked for.
        operation: Box<Operation>,
        /// What happened to it.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// A file of `/proc` could not be read or written.
    #[error("cannot {attempt} {path}")]
    File {
        /// `read` or `write`.
        attempt: &'static str,
        /// The file.
        path: String,
        /// Why it failed.
        #[source]
        errno: Errno,
    },
    /// A file of `/proc` does not read as its kernel documentation says.
    #[error("{path}, line {line}: {problem}")]
    Syntax {
        /// The file.
        path: &'static str,
        /// The line, from 1.
        line: usize,
        /// What was expected there.
        problem: &'static str,
    },
    /// The value of a sysctl is outside its range. A value to write was not written.
    #[error("invalid value {value} of sysctl net.ipv4.vs.{name}; valid: {range}")]
    SysctlOutOfRange {
        /// The file below `/proc/sys/net/ipv4/vs`.
        name: &'static str,
        /// The value to write, or the value that was read.
        value: String,
        /// The valid values.
        range: String,
    },
    /// The running kernel does not have this sysctl.
    #[error(
        "unsupported sysctl net.ipv4.vs.{name}; it requires {since}{}{}",
        if requires.is_some() { " and " } else { "" },
        requires.unwrap_or_default()
    )]
    SysctlUnsupported {
        /// The file below `/proc/sys/net/ipv4/vs`.
        name: &'static str,
        /// The first kernel release that has it.
        since: &'static str,
        /// What it requires in addition to this release: a module, or an option of the kernel's configuration.
        requires: Option<&'static str>,
    },
    /// An implementation of [`Ipvs`](crate::Ipvs) other than the kernel's failed; see [`Error::custom`].
    #[error("cannot {attempt}")]
    Custom {
        /// What was attempted on what: `add virtual server -t 10.96.0.10:80`.
        attempt: String,
        /// Why it failed.
        #[source]
        cause: Cause,
    },
    /// An implementation of [`Ipvs`](crate::Ipvs) returned fewer outcomes than it was given operations.
    #[error("cannot tell what became of the operation: the backend returned no outcome for it")]
    OutcomeMissing,
}

/// The cause in [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// Why an operation is not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOperation {
    /// A persistence mask of IPv4 for an IPv6 virtual server, or the other way round.
    #[error("the persistence granularity is not one of {family}")]
    Granularity {
        /// Family of the virtual server.
        family: Family,
    },
    /// A time-out that is no whole number of seconds, or too long.
    #[error(
        "the {name} time-out {timeout:?} is not a whole number of seconds up to {}",
        crate::Timeouts::MAX_SECONDS
    )]
    Timeout {
        /// `tcp`, `tcp-fin` or `udp`.
        name: &'static str,
        /// The time asked for.
        timeout: Duration,
    },
    /// The kernel keeps three bits of the forwarding method.
    #[error("invalid forwarding method {number}; valid: 0 to 7")]
    ForwardingMethod {
        /// The kernel's number of the method asked for.
        number: u32,
    },
    /// The kernel takes an IPv4-mapped address for no unicast address.
    #[error("invalid real server address {address}: it is IPv4-mapped; use {ipv4}")]
    MappedAddress {
        /// The address asked for.
        address: Ipv6Addr,
        /// The IPv4 address in it.
        ipv4: Ipv4Addr,
    },
    /// An operation that ensures something is an addition and an update, and cannot be one message.
    #[error("it takes two messages: an addition and an update")]
    TwoMessages,
    /// The packets hold eight bits of it.
    #[error("the sync id {sync_id} is more than 255")]
    SyncId {
        /// The sync id asked for.
        sync_id: u32,
    },
    /// The kernel ignores what it does not know: it would make an ordinary tunnel.
    #[error("tunnels other than IPIP require Linux 5.3 or newer; this is Linux {release}")]
    TunnelKind {
        /// The running kernel.
        release: KernelRelease,
    },
}

/// Why there is no IPVS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// A module for the running kernel is on disk, but not in the kernel.
    #[error(
        "the module ip_vs is not loaded and the kernel did not load it by itself: run `modprobe ip_vs` as root of the host"
    )]
    NotLoaded,
    /// The running kernel has no IPVS and its module directory has no module for it.
    #[error(
        "the kernel {release} has no IPVS: there is no module ip_vs for it in {directory}; install the kernel's full module \
         package or take a kernel with CONFIG_IP_VS"
    )]
    NotInstalled {
        /// The running kernel.
        release: String,
        /// Where its modules would be.
        directory: String,
    },
    /// The running kernel has no IPVS, and this file system (a container's, say) does not show its modules.
    #[error(
        "the kernel {release} has no IPVS now, and {directory} is not here to tell whether it has the module: run \
         `modprobe ip_vs` as root of the host"
    )]
    Unknown {
        /// The running kernel.
        release: String,
        /// Where its modules would be.
        directory: String,
    },
}

impl Error {
    /// An error of an implementation of [`Ipvs`](crate::Ipvs) other than the kernel's. `attempt` says what was attempted on what
    /// and is printed after "cannot": [`Operation::describe`] for an operation. `cause` is the source. All predicates are false
    /// for this error.
    ///
    /// ```
    /// let error = kernlink_ipvs::Error::custom("add virtual server -t 10.96.0.10:80", "the address is reserved");
    /// assert_eq!(error.to_string(), "cannot add virtual server -t 10.96.0.10:80");
    /// assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the address is reserved");
    /// ```
    pub fn custom(attempt: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::Custom {
            attempt: attempt.into(),
            cause: Cause(cause.into()),
        }
    }

    /// Whether the virtual server, real server or daemon named is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.reason(),
            Some(Reason::VirtualServerAbsent | Reason::RealServerAbsent | Reason::DaemonAbsent)
        )
    }

    /// Whether the virtual server is not there. The real servers of an absent virtual server are not found for this reason.
    pub fn is_virtual_server_absent(&self) -> bool {
        matches!(self.reason(), Some(Reason::VirtualServerAbsent))
    }

    /// Whether what was to be added is there already.
    pub fn is_already_exists(&self) -> bool {
        matches!(self.reason(), Some(Reason::AlreadyExists | Reason::DaemonRunning))
    }

    /// Whether the running kernel cannot do it: no IPVS, no such scheduler, persistence engine, setting or address family,
    /// too old.
    pub fn is_unsupported(&self) -> bool {
        self.is_unavailable()
            || self.is_scheduler_unavailable()
            || matches!(self, Self::SysctlUnsupported { .. })
            || self.is_kernel_too_old()
            || matches!(
                self.reason(),
                Some(Reason::PersistenceEngineUnavailable { .. } | Reason::FamilyUnsupported { .. })
            )
    }

    /// Whether there is no IPVS at all; [`Unavailable`] says what to do.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Whether the scheduler is missing (or, if a persistence engine was named too, perhaps that).
    pub fn is_scheduler_unavailable(&self) -> bool {
        matches!(
            self.reason(),
            Some(
                Reason::SchedulerUnavailable { .. } | Reason::SchedulerOrPersistenceEngineUnavailable { .. }
            )
        )
    }

    /// Whether a newer kernel could do it.
    pub fn is_kernel_too_old(&self) -> bool {
        matches!(
            self,
            Self::SysctlUnsupported { requires: None, .. }
                | Self::Invalid {
                    problem: InvalidOperation::TunnelKind { .. },
                    ..
                }
        )
    }

    /// Whether the caller lacks the right.
    pub fn is_permission_denied(&self) -> bool {
        match self {
            Self::NotPermitted { .. }
            | Self::Refused {
                reason: Reason::NotPermitted,
                ..
            } => true,
            Self::File { errno, .. } => matches!(*errno, Errno::EPERM | Errno::EACCES),
            _ => false,
        }
    }

    /// Whether what was asked for can never be done as it stands, on any kernel.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Invalid { .. } | Self::SysctlOutOfRange { .. })
            || matches!(
                self.reason(),
                Some(
                    Reason::ForbiddenAddress { .. }
                        | Reason::MixedFamilies { .. }
                        | Reason::TunnelPortMissing
                        | Reason::Thresholds
                        | Reason::GroupNotMulticast { .. }
                )
            )
    }

    /// Whether a list is not returned because the table changed so fast in every attempt that servers may be missing. The call
    /// can be repeated.
    pub fn is_interrupted(&self) -> bool {
        matches!(
            self,
            Self::Request {
                source: kernlink_netlink::Error::DumpInterrupted { .. },
                ..
            }
        )
    }

    /// Whether the operation may have been executed although it failed: its answer was lost.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Transport { source, .. } | Self::Request { source, .. } => source.is_outcome_unknown(),
            Self::OutcomeMissing => true,
            _ => false,
        }
    }

    /// Why the kernel refused, if it did.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Refused { reason, .. } => Some(reason),
            _ => None,
        }
    }

    pub(crate) fn refused(operation: &Operation, errno: Errno, reason: Reason) -> Self {
        Self::Refused {
            operation: Box::new(operation.clone()),
            errno,
            reason,
        }
    }

    /// For a request that changes nothing.
    pub(crate) fn request(attempt: &'static str) -> impl Fn(kernlink_netlink::Error) -> Self {
        move |source| match source.errno() {
            Some(Errno::EPERM | Errno::EACCES) => Self::NotPermitted { attempt },
            _ => Self::Request { attempt, source },
        }
    }
}
