//! What can go wrong, and why.

use std::net::IpAddr;
use std::time::Duration;

use kernlink_netlink::Errno;

use crate::operation::Operation;
use crate::scheduler::{PersistenceEngine, Scheduler};
use crate::support::Availability;
use crate::virtual_server::Family;

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
    /// A kernel setting is outside its range; it was not written.
    #[error("setting {name} is {value}, which is not {range}")]
    SettingRange {
        /// The file under `/proc/sys/net/ipv4/vs`.
        name: &'static str,
        /// The value asked for, or read.
        value: String,
        /// What it may be.
        range: String,
    },
    /// The running kernel has no such setting.
    #[error("the kernel has no setting {name}: it is there since {since}{}{}", if needs.is_some() { ", with " } else { "" }, needs.unwrap_or_default())]
    NoSuchSetting {
        /// The file under `/proc/sys/net/ipv4/vs`.
        name: &'static str,
        /// Since which kernel it is there.
        since: &'static str,
        /// What must be there besides such a kernel: a module, or an option that the kernel was built with.
        needs: Option<&'static str>,
    },
    /// An implementation of [`Ipvs`](crate::Ipvs) returned fewer outcomes than it was given operations.
    #[error("cannot tell what became of the operation: the backend returned no outcome for it")]
    OutcomeMissing,
}

/// Why the kernel refused an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The virtual server is not there.
    #[error("the virtual server does not exist")]
    VirtualServerAbsent,
    /// The virtual server is there, the real server is not.
    #[error("the real server does not exist")]
    RealServerAbsent,
    /// It is there already.
    #[error("it exists already")]
    AlreadyExists,
    /// The kernel has no such scheduler and did not load a module for it.
    #[error("the kernel has no scheduler {scheduler} (module ip_vs_{scheduler}){}", remedy(.module, "ip_vs_", scheduler))]
    SchedulerUnavailable {
        /// The scheduler asked for.
        scheduler: Scheduler,
        /// Whether its module can be had, as far as the caller's file system tells.
        module: Availability,
    },
    /// The kernel has no such persistence engine and did not load a module for it.
    #[error("the kernel has no persistence engine {engine} (module ip_vs_pe_{engine}){}", remedy(.module, "ip_vs_pe_", engine))]
    PersistenceEngineUnavailable {
        /// The persistence engine asked for.
        engine: PersistenceEngine,
        /// Whether its module can be had, as far as the caller's file system tells.
        module: Availability,
    },
    /// The kernel lacks one of the two and does not say which; neither is known to be loaded.
    #[error(
        "the kernel has no scheduler {scheduler} (module ip_vs_{scheduler}) or no persistence engine {engine} \
         (module ip_vs_pe_{engine})"
    )]
    SchedulerOrPersistenceEngineUnavailable {
        /// The scheduler asked for.
        scheduler: Scheduler,
        /// The persistence engine asked for.
        engine: PersistenceEngine,
    },
    /// The caller lacks `CAP_NET_ADMIN` in the initial user namespace.
    #[error("not permitted: IPVS needs CAP_NET_ADMIN in the initial user namespace")]
    NotPermitted,
    /// The address can be no real server's.
    #[error("{address} is {kind}, which no real server can have")]
    ForbiddenAddress {
        /// The address.
        address: IpAddr,
        /// What kind of address it is, with its article.
        kind: &'static str,
    },
    /// The network namespace has no local routing table yet, and so no address is a unicast one.
    #[error(
        "the interface lo of this network namespace was never up, so that the kernel takes no address for unicast"
    )]
    LoopbackDown,
    /// Virtual server and real server of different families without a tunnel.
    #[error("an {real} real server of an {virtual_} virtual server must be reached by a tunnel")]
    MixedFamilies {
        /// Family of the virtual server.
        virtual_: Family,
        /// Family of the real server.
        real: Family,
    },
    /// Virtual server and real server of different families cannot be while a synchronisation daemon runs.
    #[error(
        "real server and virtual server of different families exclude connection-synchronisation daemons"
    )]
    MixedFamiliesWithDaemon,
    /// GUE without a port.
    #[error("a GUE tunnel needs a port other than 0")]
    TunnelPortMissing,
    /// Thresholds that the kernel does not take.
    #[error("the thresholds are out of range")]
    Thresholds,
    /// The kernel is built without this address family.
    #[error("the kernel's IPVS is built without {family}")]
    FamilyUnsupported {
        /// The family asked for.
        family: Family,
    },
    /// A synchronisation daemon of this role runs already.
    #[error("a daemon of this role runs already")]
    DaemonRunning,
    /// No synchronisation daemon of this role runs.
    #[error("no daemon of this role runs")]
    DaemonAbsent,
    /// There is no such interface.
    #[error("there is no interface {interface}")]
    InterfaceAbsent {
        /// The interface asked for.
        interface: String,
    },
    /// The interface has no address that the daemon could send from.
    #[error("the interface {interface} has no address of the group's family")]
    InterfaceWithoutAddress {
        /// The interface asked for.
        interface: String,
    },
    /// The daemon's multicast group is not a multicast address.
    #[error("the group {group} is not a multicast address")]
    GroupNotMulticast {
        /// The group asked for.
        group: IpAddr,
    },
    /// The kernel is short of memory.
    #[error("the kernel is short of memory")]
    OutOfMemory,
    /// Nothing that this crate has an explanation for; see the error number.
    #[error("the kernel gave no reason")]
    Unexplained,
}

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
    /// The packets hold eight bits of it.
    #[error("the sync id {sync_id} is more than 255")]
    SyncId {
        /// The sync id asked for.
        sync_id: u32,
    },
    /// The kernel ignores what it does not know: it would make an ordinary tunnel.
    #[error("tunnels other than IPIP need Linux 5.3 or newer, and this is {release}")]
    TunnelKind {
        /// The running kernel.
        release: String,
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
            || matches!(self, Self::NoSuchSetting { .. })
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
            Self::NoSuchSetting { needs: None, .. }
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
        matches!(self, Self::Invalid { .. } | Self::SettingRange { .. })
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

impl Reason {
    /// What an error number means for an operation, as far as the operation alone tells.
    pub(crate) fn of(operation: &Operation, errno: Errno) -> Self {
        match errno {
            Errno::EPERM | Errno::EACCES => return Self::NotPermitted,
            Errno::ENOMEM => return Self::OutOfMemory,
            _ => {}
        }
        match operation {
            Operation::AddVirtualServer(server) | Operation::UpdateVirtualServer(server) => match errno {
                Errno::EEXIST => Self::AlreadyExists,
                Errno::ESRCH => Self::VirtualServerAbsent,
                Errno::EAFNOSUPPORT => Self::FamilyUnsupported {
                    family: server.key.family(),
                },
                Errno::ENOENT => match (server.scheduler, server.persistence_engine) {
                    (Scheduler::NONE, Some(engine)) => Self::PersistenceEngineUnavailable {
                        engine,
                        module: Availability::Unknown,
                    },
                    (scheduler, Some(engine)) => {
                        Self::SchedulerOrPersistenceEngineUnavailable { scheduler, engine }
                    }
                    (scheduler, None) => Self::SchedulerUnavailable {
                        scheduler,
                        module: Availability::Unknown,
                    },
                },
                _ => Self::Unexplained,
            },
            Operation::DeleteVirtualServer(key) | Operation::Zero(key) => match errno {
                Errno::ESRCH => Self::VirtualServerAbsent,
                Errno::EAFNOSUPPORT => Self::FamilyUnsupported { family: key.family() },
                _ => Self::Unexplained,
            },
            Operation::AddRealServer {
                virtual_server,
                real_server,
            }
            | Operation::UpdateRealServer {
                virtual_server,
                real_server,
            } => {
                let (virtual_, real) = (virtual_server.family(), real_server.key.family());
                match errno {
                    Errno::EEXIST => Self::AlreadyExists,
                    Errno::ESRCH => Self::VirtualServerAbsent,
                    Errno::ENOENT => Self::RealServerAbsent,
                    Errno::ERANGE => Self::Thresholds,
                    Errno::EAFNOSUPPORT => Self::FamilyUnsupported { family: real },
                    Errno::EINVAL => {
                        use crate::forwarding::ForwardingMethod;
                        use crate::real_server::TunnelKind;
                        // In the order in which the kernel looks at them.
                        if virtual_ != real && real_server.forwarding != ForwardingMethod::Tunnel {
                            Self::MixedFamilies { virtual_, real }
                        } else if real_server.tunnel.kind == TunnelKind::Gue && real_server.tunnel.port == 0 {
                            Self::TunnelPortMissing
                        } else if let Some(kind) = forbidden_address(real_server.key.address) {
                            Self::ForbiddenAddress {
                                address: real_server.key.address,
                                kind,
                            }
                        } else if virtual_ != real {
                            Self::MixedFamiliesWithDaemon
                        } else {
                            Self::Unexplained
                        }
                    }
                    _ => Self::Unexplained,
                }
            }
            Operation::DeleteRealServer { real_server, .. } => match errno {
                Errno::ESRCH => Self::VirtualServerAbsent,
                Errno::ENOENT => Self::RealServerAbsent,
                Errno::EAFNOSUPPORT => Self::FamilyUnsupported {
                    family: real_server.family(),
                },
                _ => Self::Unexplained,
            },
            Operation::StartDaemon(daemon) => match errno {
                Errno::EEXIST => Self::DaemonRunning,
                Errno::ENODEV => Self::InterfaceAbsent {
                    interface: daemon.interface.to_string(),
                },
                Errno::EADDRNOTAVAIL => Self::InterfaceWithoutAddress {
                    interface: daemon.interface.to_string(),
                },
                Errno::EINVAL => match daemon.group {
                    Some(group) if !group.is_multicast() => Self::GroupNotMulticast { group },
                    _ => Self::MixedFamiliesWithDaemon,
                },
                _ => Self::Unexplained,
            },
            Operation::StopDaemon(_) => match errno {
                Errno::ESRCH => Self::DaemonAbsent,
                _ => Self::Unexplained,
            },
            Operation::Flush | Operation::ZeroAll | Operation::SetTimeouts(_) => Self::Unexplained,
        }
    }
}

/// What to do about a module that the kernel did not load, as far as it is known.
fn remedy(module: &Availability, prefix: &str, name: &impl std::fmt::Display) -> String {
    match module {
        Availability::Loadable => format!(
            ", which is installed but was not loaded by itself: run `modprobe {prefix}{name}` as root of the host"
        ),
        Availability::Missing => "; no such module is installed for this kernel".to_owned(),
        Availability::Loaded | Availability::Unknown => String::new(),
    }
}

/// What keeps an address from being a real server's on every host, if anything does. On one host its own broadcast
/// addresses come in addition.
///
/// IPv4: all that `inet_addr_type` calls neither unicast nor local. IPv6: all but unicast, and link-local addresses.
/// Source: [`ip_vs_new_dest` at v6.1](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c).
pub(crate) fn forbidden_address(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) if v4.is_multicast() => Some("a multicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("a broadcast address"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("an address of the network 0.0.0.0/8"),
        IpAddr::V6(v6) if v6.is_multicast() => Some("a multicast address"),
        IpAddr::V6(v6) if v6.is_unspecified() => Some("the unspecified address"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("a link-local address"),
        _ => None,
    }
}
