//! Everything that changes the kernel's state, as plain data.

use std::fmt;

use kernlink_netlink::Batch;

use crate::daemon::{Daemon, DaemonRole};
use crate::error::Error;
use crate::notation::fmt_virtual_server;
use crate::real_server::{RealServer, RealServerKey};
use crate::timeouts::Timeouts;
use crate::virtual_server::{VirtualServer, VirtualServerKey};
use crate::wire;

/// One change, as [`Ipvs::execute`](crate::Ipvs::execute) takes it. Prints as the options of the `ipvsadm` command that
/// does the same; the two that ensure something, for which there is none, as two commands.
///
/// ```
/// use kernlink_ipvs::{Operation, RealServer, RealServerKey, VirtualServerKey};
/// use std::net::Ipv4Addr;
///
/// let operation = Operation::AddRealServer {
///     virtual_server: VirtualServerKey::tcp(Ipv4Addr::new(10, 96, 0, 10), 80),
///     real_server: RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 1, 2, 3), 8080)),
/// };
/// let line = operation.to_string();
/// assert_eq!(line, "-a -t 10.96.0.10:80 -r 10.1.2.3:8080 -m -w 1");
/// assert_eq!(line.parse(), Ok(operation));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Adds a virtual server without real servers; fails if it is there.
    #[doc(alias = "IPVS_CMD_NEW_SERVICE")]
    AddVirtualServer(VirtualServer),
    /// Replaces all settings of a virtual server; fails if it is absent. Connections and real servers stay.
    #[doc(alias = "IPVS_CMD_SET_SERVICE")]
    UpdateVirtualServer(VirtualServer),
    /// Adds a virtual server, or replaces all its settings if it is there. May be repeated.
    EnsureVirtualServer(VirtualServer),
    /// Deletes a virtual server together with its real servers; fails if it is absent.
    #[doc(alias = "IPVS_CMD_DEL_SERVICE")]
    DeleteVirtualServer(VirtualServerKey),
    /// Adds a real server; fails if it is there or the virtual server is absent. One that was deleted while it had
    /// connections comes back with its old counters.
    #[doc(alias = "IPVS_CMD_NEW_DEST")]
    AddRealServer {
        /// The virtual server it belongs to.
        virtual_server: VirtualServerKey,
        /// The real server.
        real_server: RealServer,
    },
    /// Replaces all settings of a real server; fails if it or the virtual server is absent.
    #[doc(alias = "IPVS_CMD_SET_DEST")]
    UpdateRealServer {
        /// The virtual server it belongs to.
        virtual_server: VirtualServerKey,
        /// The real server.
        real_server: RealServer,
    },
    /// Adds a real server, or replaces all its settings if it is there; fails if the virtual server is absent. May be
    /// repeated.
    EnsureRealServer {
        /// The virtual server it belongs to.
        virtual_server: VirtualServerKey,
        /// The real server.
        real_server: RealServer,
    },
    /// Deletes a real server; fails if it or the virtual server is absent. Its connections end.
    #[doc(alias = "IPVS_CMD_DEL_DEST")]
    DeleteRealServer {
        /// The virtual server it belongs to.
        virtual_server: VirtualServerKey,
        /// Which real server.
        real_server: RealServerKey,
    },
    /// Deletes every virtual server of the network namespace. Does nothing if there is none.
    #[doc(alias = "IPVS_CMD_FLUSH")]
    Flush,
    /// Zeroes the counters of a virtual server and of its real servers; fails if it is absent.
    #[doc(alias = "IPVS_CMD_ZERO")]
    Zero(VirtualServerKey),
    /// Zeroes all counters of the network namespace.
    ZeroAll,
    /// Sets time-outs; those of zero stay as they are.
    #[doc(alias = "IPVS_CMD_SET_CONFIG")]
    SetTimeouts(Timeouts),
    /// Starts a connection-synchronisation daemon; fails if one of its role runs.
    #[doc(alias = "IPVS_CMD_NEW_DAEMON")]
    StartDaemon(Daemon),
    /// Stops the daemon of a role; fails if none runs.
    #[doc(alias = "IPVS_CMD_DEL_DAEMON")]
    StopDaemon(DaemonRole),
}

impl Operation {
    /// The virtual server that it is about, if it is about one.
    pub fn virtual_server(&self) -> Option<VirtualServerKey> {
        match self {
            Self::AddVirtualServer(server)
            | Self::UpdateVirtualServer(server)
            | Self::EnsureVirtualServer(server) => Some(server.key),
            Self::DeleteVirtualServer(key) | Self::Zero(key) => Some(*key),
            Self::AddRealServer { virtual_server, .. }
            | Self::UpdateRealServer { virtual_server, .. }
            | Self::EnsureRealServer { virtual_server, .. }
            | Self::DeleteRealServer { virtual_server, .. } => Some(*virtual_server),
            Self::Flush
            | Self::ZeroAll
            | Self::SetTimeouts(_)
            | Self::StartDaemon(_)
            | Self::StopDaemon(_) => None,
        }
    }

    /// What an operation that ensures something is made of: an addition, which fails with [`Error::is_already_exists`] if it
    /// is there, and an update. In this order the outcome of the update says whether it is as wanted. `None` for other
    /// operations.
    pub fn add_and_update(&self) -> Option<[Self; 2]> {
        match self {
            Self::EnsureVirtualServer(server) => Some([
                Self::AddVirtualServer(server.clone()),
                Self::UpdateVirtualServer(server.clone()),
            ]),
            Self::EnsureRealServer {
                virtual_server,
                real_server,
            } => Some([
                Self::AddRealServer {
                    virtual_server: *virtual_server,
                    real_server: real_server.clone(),
                },
                Self::UpdateRealServer {
                    virtual_server: *virtual_server,
                    real_server: real_server.clone(),
                },
            ]),
            _ => None,
        }
    }

    /// Whether it is an addition and an update.
    pub(crate) fn is_two_requests(&self) -> bool {
        matches!(self, Self::EnsureVirtualServer(_) | Self::EnsureRealServer { .. })
    }

    /// Appends the operation to a batch, for connections of one's own; [`Client`](crate::Client) does it by itself. `family` is the
    /// number of the generic-netlink family `IPVS`, see [`kernlink_netlink::generic::Family`]. Allocates only as the batch grows.
    ///
    /// It is one request, and two for an operation that ensures something: those of [`add_and_update`](Self::add_and_update).
    ///
    /// # Errors
    /// [`Error::is_invalid`] if the kernel would take it for something else; the batch is then as it was.
    pub fn encode(&self, family: u16, batch: &mut Batch) -> Result<(), Error> {
        wire::check(self).map_err(|problem| Error::Invalid {
            operation: Box::new(self.clone()),
            problem,
        })?;
        if let Some([add, update]) = self.add_and_update() {
            // Of the same length, so that neither or both fit.
            add.encode(family, batch)?;
            return update.encode(family, batch);
        }
        batch
            .push(family, 0, |writer| wire::write_operation(writer, self))
            .map_err(|source| Error::Transport {
                operation: Box::new(self.clone()),
                source,
            })
    }

    /// What is attempted on what, for error texts: `add real server 10.1.0.1:80 of -t 10.0.0.1:80`.
    pub fn describe(&self) -> String {
        match self {
            Self::AddVirtualServer(server) => format!("add virtual server {}", server.key),
            Self::UpdateVirtualServer(server) => format!("update virtual server {}", server.key),
            Self::EnsureVirtualServer(server) => format!("ensure virtual server {}", server.key),
            Self::DeleteVirtualServer(key) => format!("delete virtual server {key}"),
            Self::AddRealServer {
                virtual_server,
                real_server,
            } => {
                format!("add real server {} of {virtual_server}", real_server.key)
            }
            Self::UpdateRealServer {
                virtual_server,
                real_server,
            } => {
                format!("update real server {} of {virtual_server}", real_server.key)
            }
            Self::EnsureRealServer {
                virtual_server,
                real_server,
            } => {
                format!("ensure real server {} of {virtual_server}", real_server.key)
            }
            Self::DeleteRealServer {
                virtual_server,
                real_server,
            } => {
                format!("delete real server {real_server} of {virtual_server}")
            }
            Self::Flush => "delete all virtual servers".to_owned(),
            Self::Zero(key) => format!("zero the counters of {key}"),
            Self::ZeroAll => "zero all counters".to_owned(),
            Self::SetTimeouts(_) => "set the time-outs".to_owned(),
            Self::StartDaemon(daemon) => format!("start the {} daemon on {}", daemon.role, daemon.interface),
            Self::StopDaemon(role) => format!("stop the {role} daemon"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddVirtualServer(server) => server.fmt(f),
            Self::UpdateVirtualServer(server) => {
                write!(f, "-E ")?;
                fmt_virtual_server(server, f)
            }
            Self::EnsureVirtualServer(server) => {
                write!(f, "{server} || -E ")?;
                fmt_virtual_server(server, f)
            }
            Self::DeleteVirtualServer(key) => write!(f, "-D {key}"),
            Self::AddRealServer {
                virtual_server,
                real_server,
            } => write!(f, "-a {virtual_server} {real_server}"),
            Self::UpdateRealServer {
                virtual_server,
                real_server,
            } => {
                write!(f, "-e {virtual_server} {real_server}")
            }
            Self::EnsureRealServer {
                virtual_server,
                real_server,
            } => {
                let options = format!("{virtual_server} {real_server}");
                write!(f, "-a {options} || -e {options}")
            }
            Self::DeleteRealServer {
                virtual_server,
                real_server,
            } => {
                write!(f, "-d {virtual_server} -r {real_server}")
            }
            Self::Flush => write!(f, "-C"),
            Self::Zero(key) => write!(f, "-Z {key}"),
            Self::ZeroAll => write!(f, "-Z"),
            Self::SetTimeouts(timeouts) => {
                write!(f, "--set")?;
                for timeout in [timeouts.tcp, timeouts.tcp_fin, timeouts.udp] {
                    // A fraction is shown, so that nothing prints as what it is not; `ipvsadm` takes whole seconds.
                    match timeout.subsec_nanos() {
                        0 => write!(f, " {}", timeout.as_secs())?,
                        _ => write!(f, " {}", timeout.as_secs_f64())?,
                    }
                }
                Ok(())
            }
            Self::StartDaemon(daemon) => daemon.fmt(f),
            Self::StopDaemon(role) => write!(f, "--stop-daemon {role}"),
        }
    }
}
