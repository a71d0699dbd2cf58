//! Why the kernel refused an operation, worked out from what was sent: it gives a bare number.

use std::net::IpAddr;

use kernlink_base::Family;
use kernlink_netlink::Errno;

use crate::availability::Availability;
use crate::operation::Operation;
use crate::scheduler::{PersistenceEngine, Scheduler};

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

impl Reason {
    /// What an error number means for an operation, as far as the operation alone tells.
    pub(crate) fn of(operation: &Operation, errno: Errno) -> Self {
        match errno {
            Errno::EPERM | Errno::EACCES => return Self::NotPermitted,
            Errno::ENOMEM => return Self::OutOfMemory,
            _ => {}
        }
        match operation {
            Operation::AddVirtualServer(server)
            | Operation::UpdateVirtualServer(server)
            | Operation::EnsureVirtualServer(server) => match errno {
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
            }
            | Operation::EnsureRealServer {
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
