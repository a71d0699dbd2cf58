//! Changes of the table, as plain data.

use std::fmt;

use kernlink_netlink::Batch;

use crate::daemon::{Daemon, DaemonRole};
use crate::error::Error;
use crate::notation::fmt_virtual_server;
use crate::real_server::{RealServer, RealServerKey};
use crate::timeouts::Timeouts;
use crate::virtual_server::{VirtualServer, VirtualServerKey};
use crate::wire;

/// One change, executed by [`Ipvs::execute`](crate::Ipvs::execute). Prints as the options of the equivalent `ipvsadm` command. The
/// `Ensure` operations have no equivalent command; they print as two commands.
///
/// ```
/// use std::net::Ipv4Addr;
///
/// use kernlink_ipvs::{Operation, RealServer, RealServerKey, VirtualServerKey};
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
    /// Adds a virtual server without real servers; fails if it exists.
    #[doc(alias = "IPVS_CMD_NEW_SERVICE")]
    AddVirtualServer(VirtualServer),
    /// Replaces the configuration of a virtual server; fails if it does not exist. Connections and real servers are kept.
    #[doc(alias = "IPVS_CMD_SET_SERVICE")]
    UpdateVirtualServer(VirtualServer),
    /// Adds a virtual server, or replaces its configuration if it exists.
    EnsureVirtualServer(VirtualServer),
    /// Deletes a virtual server with its real servers; fails if it does not exist.
    #[doc(alias = "IPVS_CMD_DEL_SERVICE")]
    DeleteVirtualServer(VirtualServerKey),
    /// Adds a real server; fails if it exists or if the virtual server does not exist. If it was deleted while it had connections,
    /// it gets its previous counters.
    #[doc(alias = "IPVS_CMD_NEW_DEST")]
    AddRealServer {
        /// Its virtual server.
        virtual_server: VirtualServerKey,
        /// The real server.
        real_server: RealServer,
    },
    /// Replaces the configuration of a real server; fails if it or the virtual server does not exist.
    #[doc(alias = "IPVS_CMD_SET_DEST")]
    UpdateRealServer {
        /// Its virtual server.
        virtual_server: VirtualServerKey,
        /// The real server.
        real_server: RealServer,
    },
    /// Adds a real server, or replaces its configuration if it exists; fails if the virtual server does not exist.
    EnsureRealServer {
        /// Its virtual server.
        virtual_server: VirtualServerKey,
        /// The real server.
        real_server: RealServer,
    },
    /// Deletes a real server; fails if it or the virtual server does not exist. The kernel drops packets of its connections; with the
    /// sysctl `net.ipv4.vs.expire_nodest_conn` the next packet also removes the connection. If the real server is added again before,
    /// its connections continue.
    #[doc(alias = "IPVS_CMD_DEL_DEST")]
    DeleteRealServer {
        /// Its virtual server.
        virtual_server: VirtualServerKey,
        /// The real server.
        real_server: RealServerKey,
    },
    /// Deletes all virtual servers of the network namespace. Succeeds if there is none.
    #[doc(alias = "IPVS_CMD_FLUSH")]
    Flush,
    /// Zeroes the counters of a virtual server and of its real servers; fails if it does not exist.
    #[doc(alias = "IPVS_CMD_ZERO")]
    Zero(VirtualServerKey),
    /// Zeroes all counters of the network namespace.
    ZeroAll,
    /// Sets timeouts. A timeout of zero is not changed.
    #[doc(alias = "IPVS_CMD_SET_CONFIG")]
    SetTimeouts(Timeouts),
    /// Starts a connection synchronization daemon; fails if one with this role is running.
    #[doc(alias = "IPVS_CMD_NEW_DAEMON")]
    StartDaemon(Daemon),
    /// Stops the daemon with a role; fails if none is running.
    #[doc(alias = "IPVS_CMD_DEL_DAEMON")]
    StopDaemon(DaemonRole),
}

impl Operation {
    /// The virtual server that the operation changes, or whose real server it changes. `None` for operations on the whole table.
    #[must_use]
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

    /// The two operations of an `Ensure` operation: an addition, which fails with [`Error::is_already_exists`] if the object
    /// exists, and an update, whose outcome is the outcome of the `Ensure` operation. `None` for other operations.
    #[must_use]
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

    /// Whether [`add_and_update`](Self::add_and_update) returns two operations.
    pub(crate) fn is_two_requests(&self) -> bool {
        matches!(self, Self::EnsureVirtualServer(_) | Self::EnsureRealServer { .. })
    }

    /// Appends the operation to a batch, for callers with their own [`Connection`](kernlink_netlink::Connection); callers of
    /// [`Client`](crate::Client) do not need it. `family` is the number of the generic-netlink family `IPVS`, see
    /// [`kernlink_netlink::generic::Family`]. It allocates only if the batch grows.
    ///
    /// The modules of schedulers are not loaded, and not checked: see [Modules](crate::Scheduler#modules).
    ///
    /// An operation is one request. An `Ensure` operation is two requests: those of [`add_and_update`](Self::add_and_update).
    ///
    /// # Errors
    /// [`Error::is_invalid`] if the kernel would execute it differently. The batch is not changed then.
    pub fn encode(&self, family: u16, batch: &mut Batch) -> Result<(), Error> {
        wire::check(self).map_err(|problem| Error::Invalid {
            operation: Box::new(self.clone()),
            problem,
        })?;
        if let Some([add, update]) = self.add_and_update() {
            // Both have the same length, so either both fit into the batch or neither.
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

    /// A description for error texts: `add real server 10.1.0.1:80 of -t 10.0.0.1:80`.
    #[must_use]
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
            Self::SetTimeouts(_) => "set the timeouts".to_owned(),
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
                    // A fraction is invalid for `ipvsadm`, but printing it truncated would hide it.
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
