//! Errors.

// Circle of imports: an error holds the operation that failed and the state of its modules, and the checks of an operation return an error.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use kernlink_base::{Family, KernelRelease};
use kernlink_netlink::Errno;

use crate::availability::Availability;
use crate::operation::Operation;
use crate::reason::{Reason, not_loaded};
use crate::scheduler::Scheduler;

/// An error. The predicates distinguish the cases. The text contains what was attempted on which object; the cause is in the text
/// or in the source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused an operation.
    #[error("cannot {}: {reason}", operation.describe())]
    Refused {
        /// The refused operation.
        operation: Box<Operation>,
        /// The kernel's error number.
        #[source]
        errno: Errno,
        /// The meaning of the number for this operation. The kernel sends no text, so it is derived from the operation.
        reason: Reason,
    },
    /// An operation that the kernel would execute differently without an error. It was not sent.
    #[error("cannot {}", operation.describe())]
    Invalid {
        /// The operation.
        operation: Box<Operation>,
        /// Why it is invalid.
        #[source]
        problem: InvalidOperation,
    },
    /// The module of the scheduler is not loaded, and the kernel could block if it loaded the module for the operation, which was not
    /// sent. See [Modules](Scheduler#modules).
    #[error("cannot {}: {}", operation.describe(), not_loaded(scheduler, module))]
    SchedulerNotLoaded {
        /// The operation.
        operation: Box<Operation>,
        /// Its scheduler.
        scheduler: Scheduler,
        /// Whether the module is installed, according to the caller's file system.
        module: Availability,
    },
    /// The kernel has no IPVS.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The caller lacks `CAP_NET_ADMIN` in the initial user namespace, which IPVS requires even for reading.
    #[error("not permitted to {attempt}; IPVS requires CAP_NET_ADMIN in the initial user namespace")]
    NotPermitted {
        /// What was attempted.
        attempt: &'static str,
    },
    /// A request that does not change the table failed.
    #[error("cannot {attempt}")]
    Request {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// An operation was not sent, or its outcome was not received; see
    /// [`is_outcome_unknown`](kernlink_netlink::Error::is_outcome_unknown).
    #[error("cannot {}", operation.describe())]
    Transport {
        /// The operation.
        operation: Box<Operation>,
        /// The error of the netlink connection.
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
    /// A file of `/proc` has unexpected content.
    #[error("{path}, line {line}: {problem}")]
    Syntax {
        /// The file.
        path: &'static str,
        /// The line, from 1.
        line: usize,
        /// What is wrong in the line.
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
    /// An implementation of [`Ipvs`](crate::Ipvs) other than the kernel client failed; see [`Error::custom`].
    #[error("cannot {attempt}")]
    Custom {
        /// What was attempted on which object: `add virtual server -t 10.96.0.10:80`.
        attempt: String,
        /// Why it failed.
        #[source]
        cause: Cause,
    },
    /// An implementation of [`Ipvs`](crate::Ipvs) returned fewer outcomes than operations.
    #[error("the outcome of the operation is unknown: the implementation of Ipvs returned none")]
    OutcomeMissing,
}

/// The cause in [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// Why an operation is invalid. It is not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOperation {
    /// A mask of IPv4 for an IPv6 virtual server, or a prefix length of IPv6 for an IPv4 virtual server.
    #[error("invalid persistence granularity for {family}; valid: a mask for IPv4, a prefix length for IPv6")]
    Granularity {
        /// Family of the virtual server.
        family: Family,
    },
    /// A timeout with a fraction of a second, or one that is too long.
    #[error(
        "invalid {name} timeout {timeout:?}; valid: whole seconds from 0 to {}",
        crate::Timeouts::MAX_SECONDS
    )]
    Timeout {
        /// `tcp`, `tcp-fin` or `udp`.
        name: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// A forwarding method above 7. The kernel uses three bits of it.
    #[error("invalid forwarding method {number}; valid: 0 to 7")]
    ForwardingMethod {
        /// The number of the method.
        number: u32,
    },
    /// An IPv4-mapped IPv6 address, which is not a unicast address for the kernel.
    #[error("invalid real server address {address}: it is IPv4-mapped; use {ipv4}")]
    MappedAddress {
        /// The address of the real server.
        address: Ipv6Addr,
        /// The IPv4 address in it.
        ipv4: Ipv4Addr,
    },
    /// An `Ensure` operation consists of an addition and an update, so it cannot be one message.
    #[error("the operation requires two messages: an addition and an update")]
    TwoMessages,
    /// A sync id above 255. The synchronization messages have eight bits for it.
    #[error("invalid sync id {sync_id}; valid: 0 to 255")]
    SyncId {
        /// The sync id.
        sync_id: u32,
    },
    /// A tunnel other than IPIP on an older kernel, which would ignore the kind and use IPIP.
    #[error("tunnels other than IPIP require Linux 5.3 or newer; this is Linux {release}")]
    TunnelKind {
        /// The running kernel.
        release: KernelRelease,
    },
}

/// Why the kernel has no IPVS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The module is installed but not loaded.
    #[error(
        "the module ip_vs is installed but was not loaded automatically; run `modprobe ip_vs` as root of the host"
    )]
    NotLoaded,
    /// The kernel was built without IPVS, or the module is not installed.
    #[error(
        "kernel {release} has no IPVS: {directory} does not contain the module ip_vs; install the kernel's full module package or \
         use a kernel with CONFIG_IP_VS"
    )]
    NotInstalled {
        /// The running kernel.
        release: String,
        /// The directory of its modules.
        directory: String,
    },
    /// IPVS is not loaded, and the module directory is not visible, for example in a container.
    #[error(
        "kernel {release} has not loaded IPVS, and {directory} does not exist here, so it is unknown whether the module ip_vs is \
         installed; run `modprobe ip_vs` as root of the host"
    )]
    Unknown {
        /// The running kernel.
        release: String,
        /// The directory of its modules.
        directory: String,
    },
}

impl Error {
    /// An error of an implementation of [`Ipvs`](crate::Ipvs) other than the kernel client. `attempt` is printed after "cannot":
    /// use [`Operation::describe`] for an operation. `cause` is the source. All predicates are false for this error.
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

    /// Whether the virtual server, real server or daemon of the operation does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.reason(),
            Some(Reason::VirtualServerAbsent | Reason::RealServerAbsent | Reason::DaemonAbsent)
        )
    }

    /// Whether the virtual server does not exist. True also for operations on its real servers.
    #[must_use]
    pub fn is_virtual_server_absent(&self) -> bool {
        matches!(self.reason(), Some(Reason::VirtualServerAbsent))
    }

    /// Whether the object to add already exists.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        matches!(self.reason(), Some(Reason::AlreadyExists | Reason::DaemonRunning))
    }

    /// Whether the running kernel does not support it: no IPVS, an unknown scheduler, persistence engine, sysctl or address family,
    /// or an older release.
    #[must_use]
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

    /// Whether the kernel has no IPVS; [`Unavailable`] contains the remedy.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Whether the scheduler is not available. If the operation has a persistence engine too, the engine may be the missing one.
    #[must_use]
    pub fn is_scheduler_unavailable(&self) -> bool {
        self.is_scheduler_not_loaded()
            || matches!(
                self.reason(),
                Some(
                    Reason::SchedulerUnavailable { .. }
                        | Reason::SchedulerOrPersistenceEngineUnavailable { .. }
                )
            )
    }

    /// Whether the operation was not sent because the kernel would have to load the module of its scheduler, and could block then. Remedies:
    /// load the module before, or permit it with [`Ipvs::permit_loading`](crate::Ipvs::permit_loading). See
    /// [Modules](Scheduler#modules).
    #[must_use]
    pub fn is_scheduler_not_loaded(&self) -> bool {
        matches!(self, Self::SchedulerNotLoaded { .. })
    }

    /// Whether a newer kernel release is required.
    #[must_use]
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

    /// Whether the caller lacks a privilege.
    #[must_use]
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

    /// Whether the request is invalid on every kernel.
    #[must_use]
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

    /// Whether a listing failed because the table changed too fast in every attempt, so that servers may be missing. The call can
    /// be repeated.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(
            self,
            Self::Request {
                source: kernlink_netlink::Error::DumpInterrupted { .. },
                ..
            }
        )
    }

    /// Whether the operation may have been executed although it failed, because its answer was lost.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Transport { source, .. } | Self::Request { source, .. } => source.is_outcome_unknown(),
            Self::OutcomeMissing => true,
            _ => false,
        }
    }

    /// Why the kernel refused the operation. `None` for all errors other than [`Error::Refused`].
    #[must_use]
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

    /// The error of a request that does not change the table.
    pub(crate) fn request(attempt: &'static str) -> impl Fn(kernlink_netlink::Error) -> Self {
        move |source| match source.errno() {
            Some(Errno::EPERM | Errno::EACCES) => Self::NotPermitted { attempt },
            _ => Self::Request { attempt, source },
        }
    }
}
