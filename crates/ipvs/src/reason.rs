//! Why the kernel refused an operation. The kernel sends only an error number, so the reason is derived from the operation.

use std::net::IpAddr;

use kernlink_base::Family;
use kernlink_netlink::Errno;

use crate::availability::Availability;
use crate::forwarding::ForwardingMethod;
use crate::operation::Operation;
use crate::real_server::TunnelKind;
use crate::scheduler::{PersistenceEngine, Scheduler};

/// Why the kernel refused an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The virtual server does not exist.
    #[error("the virtual server does not exist")]
    VirtualServerAbsent,
    /// The virtual server exists, the real server does not.
    #[error("the real server does not exist")]
    RealServerAbsent,
    /// The object to add already exists.
    #[error("it already exists")]
    AlreadyExists,
    /// The scheduler is not loaded, and the kernel did not load a module for it.
    #[error("scheduler {scheduler} is not available (module ip_vs_{scheduler}){}", remedy(.module, "ip_vs_", scheduler))]
    SchedulerUnavailable {
        /// The scheduler.
        scheduler: Scheduler,
        /// Whether its module is installed, according to the caller's file system.
        module: Availability,
    },
    /// The persistence engine is not loaded, and the kernel did not load a module for it.
    #[error("persistence engine {engine} is not available (module ip_vs_pe_{engine}){}", remedy(.module, "ip_vs_pe_", engine))]
    PersistenceEngineUnavailable {
        /// The persistence engine.
        engine: PersistenceEngine,
        /// Whether its module is installed, according to the caller's file system.
        module: Availability,
    },
    /// One of the two is missing. The kernel does not report which, and neither is known to be loaded.
    #[error(
        "scheduler {scheduler} is not available (module ip_vs_{scheduler}) or persistence engine {engine} is not available \
         (module ip_vs_pe_{engine})"
    )]
    SchedulerOrPersistenceEngineUnavailable {
        /// The scheduler.
        scheduler: Scheduler,
        /// The persistence engine.
        engine: PersistenceEngine,
    },
    /// The caller lacks `CAP_NET_ADMIN` in the initial user namespace.
    #[error("not permitted; IPVS requires CAP_NET_ADMIN in the initial user namespace")]
    NotPermitted,
    /// The address is not valid for a real server.
    #[error("invalid real server address {address}: it is {kind}")]
    ForbiddenAddress {
        /// The address.
        address: IpAddr,
        /// The kind of address, with its article: "a multicast address".
        kind: &'static str,
    },
    /// The network namespace has no local routing table yet, so no IPv4 address is a unicast address for the kernel.
    #[error(
        "the interface lo of this network namespace has never been up; IPVS rejects every IPv4 real server until `ip link set lo up`"
    )]
    LoopbackDown,
    /// Virtual server and real server have different families, and the forwarding method is not tunnel.
    #[error(
        "an {real_server} real server of an {virtual_server} virtual server requires the forwarding method tunnel"
    )]
    MixedFamilies {
        /// Family of the virtual server.
        virtual_server: Family,
        /// Family of the real server.
        real_server: Family,
    },
    /// The operation would result in a running synchronization daemon and a real server of another family than its virtual server.
    #[error(
        "connection synchronization daemons do not support real servers of another address family than their virtual server"
    )]
    MixedFamiliesWithDaemon,
    /// GUE without a port.
    #[error("invalid port 0 of a GUE tunnel; valid: 1 to 65535")]
    TunnelPortMissing,
    /// The kernel refused the thresholds.
    #[error("invalid thresholds; the lower one must not exceed the upper one")]
    Thresholds,
    /// The kernel was built without this address family.
    #[error("the kernel was built without IPVS for {family}")]
    FamilyUnsupported {
        /// The family.
        family: Family,
    },
    /// A synchronization daemon with this role is already running.
    #[error("a daemon with this role is already running")]
    DaemonRunning,
    /// No synchronization daemon with this role is running.
    #[error("no daemon with this role is running")]
    DaemonAbsent,
    /// The interface does not exist.
    #[error("interface {interface} does not exist")]
    InterfaceAbsent {
        /// The interface.
        interface: String,
    },
    /// The interface has no source address for the daemon.
    #[error("interface {interface} has no address of the multicast group's family")]
    InterfaceWithoutAddress {
        /// The interface.
        interface: String,
    },
    /// The multicast group of the daemon is not a multicast address.
    #[error("invalid multicast group {group}: it is not a multicast address")]
    GroupNotMulticast {
        /// The group.
        group: IpAddr,
    },
    /// The kernel could not allocate memory (`ENOMEM`).
    #[error("the kernel is out of memory")]
    OutOfMemory,
    /// The meaning of the error number is not known for this operation. The number is the source of the error.
    #[error("the kernel returned an error number of unknown meaning")]
    Unexplained,
}

impl Reason {
    /// The meaning of an error number, derived from the operation alone.
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
                let (virtual_family, real_family) = (virtual_server.family(), real_server.key.family());
                match errno {
                    Errno::EEXIST => Self::AlreadyExists,
                    Errno::ESRCH => Self::VirtualServerAbsent,
                    Errno::ENOENT => Self::RealServerAbsent,
                    Errno::ERANGE => Self::Thresholds,
                    Errno::EAFNOSUPPORT => Self::FamilyUnsupported { family: real_family },
                    Errno::EINVAL => {
                        // In the order of the checks in the kernel.
                        if virtual_family != real_family && real_server.forwarding != ForwardingMethod::Tunnel
                        {
                            Self::MixedFamilies {
                                virtual_server: virtual_family,
                                real_server: real_family,
                            }
                        } else if real_server.tunnel.kind == TunnelKind::Gue && real_server.tunnel.port == 0 {
                            Self::TunnelPortMissing
                        } else if let Some(kind) = forbidden_address(real_server.key.address) {
                            Self::ForbiddenAddress {
                                address: real_server.key.address,
                                kind,
                            }
                        } else if virtual_family != real_family {
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

/// The remedy for a module that the kernel did not load; empty if it is unknown.
fn remedy(module: &Availability, prefix: &str, name: &impl std::fmt::Display) -> String {
    match module {
        Availability::Loadable => format!(
            "; the module is installed but was not loaded automatically; run `modprobe {prefix}{name}` as root of the host"
        ),
        Availability::Missing => "; the module is not installed for this kernel".to_owned(),
        Availability::Loaded | Availability::Unknown => String::new(),
    }
}

/// Why an operation with a scheduler is not sent, and the remedy.
pub(crate) fn not_loaded(scheduler: &Scheduler, module: &Availability) -> String {
    let name = format!("ip_vs_{scheduler}");
    let remedy = match module {
        Availability::Missing => "; the module is not installed for this kernel".to_owned(),
        _ => format!(
            ", and the kernel could block if it loaded the module for this request; run `modprobe {name}` as root of the host"
        ),
    };
    format!("scheduler {scheduler} is not loaded (module {name}){remedy}")
}

/// The kind of an address that is not valid for a real server on any host. In addition, the broadcast addresses of a host's own
/// networks are not valid on this host.
///
/// IPv4: all addresses whose type in `inet_addr_type` is neither unicast nor local. IPv6: all except unicast addresses, and
/// link-local addresses.
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
