//! The trait for IPVS tables, and the client of the kernel's table.

use kernlink_base::{KernelRelease, Modules};
use kernlink_netlink::generic::Family;
use kernlink_netlink::{Batch, Connection, Errno, Namespace, Protocol};

use self::load::Loading;
use self::namespace::ClientNamespace;
use self::read::complete;
use crate::availability::{Availability, Support};
use crate::connections::{ConnectionFilter, Connections};
use crate::daemon::{Daemon, DaemonRole};
use crate::difference::Executed;
use crate::error::{Error, Unavailable};
use crate::info::Info;
use crate::operation::Operation;
use crate::real_server::{RealServer, RealServerKey, Weight};
use crate::reason::Reason;
use crate::scheduler::Scheduler;
use crate::snapshot::{Consistency, RealServerSummary, Snapshot, SnapshotEntry};
use crate::stats::{RealServerStatus, VirtualServerStatus};
use crate::sysctl::{Sysctl, Value};
use crate::timeouts::Timeouts;
use crate::uapi::*;
use crate::virtual_server::{VirtualServer, VirtualServerKey};
use crate::wire;

mod execute;
mod listing;
mod load;
mod namespace;
mod read;

/// An IPVS table: the kernel's through [`Client`](crate::Client), or one in memory through `Fake` (feature `fake`).
///
/// All changes are made by [`execute`](Self::execute); the methods for single changes call it.
///
/// An implementation has four required methods: [`execute`](Self::execute),
/// [`list_virtual_servers`](Self::list_virtual_servers), [`list_real_servers`](Self::list_real_servers) and
/// [`timeouts`](Self::timeouts). A wrapper of another implementation should forward [`snapshot`](Self::snapshot) too, because the
/// provided method lists the real servers of each virtual server separately, and
/// [`is_scheduler_refused`](Self::is_scheduler_refused) and [`permit_loading`](Self::permit_loading). [`Error::custom`] is for errors that do not come from
/// the kernel.
///
/// ```
/// use kernlink_ipvs::{Error, Ipvs, Operation, RealServerStatus, Timeouts, VirtualServerKey, VirtualServerStatus};
///
/// /// Adds no virtual server on port 22.
/// struct WithoutSsh<I>(I);
///
/// impl<I: Ipvs> Ipvs for WithoutSsh<I> {
///     fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
///         let execute = |operation: &Operation| match operation {
///             Operation::AddVirtualServer(server) | Operation::EnsureVirtualServer(server)
///                 if server.key.port() == Some(22) =>
///             {
///                 Err(Error::custom(operation.describe(), "port 22 is reserved for the host"))
///             }
///             operation => self.0.execute_one(operation.clone()),
///         };
///         operations.iter().map(execute).collect()
///     }
///
///     fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
///         self.0.list_virtual_servers()
///     }
///
///     fn list_real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<RealServerStatus>, Error> {
///         self.0.list_real_servers(key)
///     }
///
///     fn timeouts(&mut self) -> Result<Timeouts, Error> {
///         self.0.timeouts()
///     }
/// }
/// ```
pub trait Ipvs: Send {
    /// Executes operations in order, in as few system calls as possible, and returns one outcome for each, in order. The
    /// operations after a failed one are executed.
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// All virtual servers, in the order of their keys: `ipvsadm -L -n`.
    ///
    /// The list has every virtual server that exists from the beginning to the end of the call, once. A virtual server that is
    /// added or deleted during the call may or may not be in it.
    ///
    /// # Errors
    /// [`Error::is_interrupted`] if ten attempts failed because the table changed too fast, in this network namespace or in
    /// another one.
    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error>;

    /// One virtual server; `None` if it does not exist: `ipvsadm -L -n -t ADDRESS:PORT`.
    fn find_virtual_server(&mut self, key: &VirtualServerKey) -> Result<Option<VirtualServerStatus>, Error> {
        let servers = self.list_virtual_servers()?;
        Ok(servers.into_iter().find(|status| status.server.key == *key))
    }

    /// The real servers of a virtual server with their configuration and counters, in the order of their keys. The list is empty
    /// also if the virtual server does not exist, because the kernel does not distinguish the two cases.
    ///
    /// The list has every real server that exists from the beginning to the end of the call, once. A real server that is
    /// added or deleted during the call may or may not be in it.
    ///
    /// # Errors
    /// [`Error::is_interrupted`] if ten attempts failed because the real servers changed too fast.
    fn list_real_servers(
        &mut self,
        virtual_server: &VirtualServerKey,
    ) -> Result<Vec<RealServerStatus>, Error>;

    /// All virtual servers with a summary of their real servers, and whether servers may be missing. This is the cheapest way to
    /// read the whole table.
    ///
    /// The provided method lists the real servers of each virtual server, and fails if a listing fails.
    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        let mut entries = Vec::new();
        for status in self.list_virtual_servers()? {
            let real_servers = self.list_real_servers(&status.server.key)?;
            let summaries = real_servers.iter().map(RealServerSummary::from).collect();
            entries.push(SnapshotEntry::new(status, summaries));
        }
        Ok(Snapshot::new(entries, Consistency::Verified))
    }

    /// The timeouts of idle connections: `ipvsadm -L --timeout`.
    fn timeouts(&mut self) -> Result<Timeouts, Error>;

    /// The running connection synchronization daemons, the master first: `ipvsadm -L --daemon`.
    ///
    /// # Errors
    /// [`Error::Custom`] from an implementation without daemons.
    fn list_daemons(&mut self) -> Result<Vec<Daemon>, Error> {
        Err(Error::custom("list the daemons", NOT_IMPLEMENTED))
    }

    /// The version of IPVS and the size of its connection table.
    ///
    /// # Errors
    /// [`Error::Custom`] from an implementation without them.
    fn info(&mut self) -> Result<Info, Error> {
        Err(Error::custom("read the IPVS version", NOT_IMPLEMENTED))
    }

    /// Whether a virtual server with this scheduler is refused with [`Error::is_scheduler_not_loaded`], because the kernel would have to
    /// load its module for the request, and the implementation cannot load it before. See [Modules](Scheduler#modules). Nothing is loaded.
    ///
    /// False does not guarantee that the scheduler is available. The provided method returns false; a wrapper of another
    /// implementation should forward it.
    fn is_scheduler_refused(&mut self, _scheduler: Scheduler) -> bool {
        false
    }

    /// Permits that the kernel loads the modules of these schedulers for a request, although it can block then. See
    /// [Modules](Scheduler#modules). Replaces the schedulers of the last call; at first none is permitted. For schedulers that an
    /// administrator chose, not for those that any user of a machine or cluster can choose.
    ///
    /// The provided method does nothing; a wrapper of another implementation should forward it.
    fn permit_loading(&mut self, _schedulers: &[Scheduler]) {}

    /// All virtual servers with the whole configuration of their real servers, in the order of the keys:
    /// [`notation::save`](crate::notation::save) prints this. It takes one listing for each virtual server;
    /// [`snapshot`](Self::snapshot) is cheaper and has fewer fields. A virtual server that is deleted during the call may be in the
    /// list without real servers.
    ///
    /// # Errors
    /// [`Error::is_interrupted`] if the table changed too fast, as for the single listings.
    fn list_all(&mut self) -> Result<Vec<(VirtualServer, Vec<RealServer>)>, Error> {
        let mut table = Vec::new();
        for status in self.list_virtual_servers()? {
            let real_servers = self.list_real_servers(&status.server.key)?;
            table.push((
                status.server,
                real_servers.into_iter().map(|status| status.server).collect(),
            ));
        }
        Ok(table)
    }

    /// Makes the table equal to `desired`: lists it, executes the operations of [`difference`](crate::difference), and returns each
    /// operation with its outcome. Virtual servers that are not desired are deleted only if `is_owned` returns true for them.
    /// Without differences nothing is executed.
    ///
    /// # Errors
    /// Those of [`list_all`](Self::list_all). Nothing was executed in this case.
    fn converge(
        &mut self,
        desired: &[(VirtualServer, Vec<RealServer>)],
        is_owned: &dyn Fn(&VirtualServerKey) -> bool,
    ) -> Result<Vec<Executed>, Error> {
        let operations = crate::difference(desired, &self.list_all()?, is_owned);
        let outcomes = if operations.is_empty() {
            Vec::new()
        } else {
            self.execute(&operations)
        };
        let outcomes = outcomes
            .into_iter()
            .chain(std::iter::repeat_with(|| Err(Error::OutcomeMissing)));
        let executed = operations
            .into_iter()
            .zip(outcomes)
            .map(|(operation, outcome)| Executed { operation, outcome });
        Ok(executed.collect())
    }

    /// Adds a virtual server: `ipvsadm -A`.
    ///
    /// # Errors
    /// [`Error::is_already_exists`], or [`Error::is_scheduler_unavailable`] without the scheduler's module; also
    /// [`Error::is_scheduler_not_loaded`] if it would not be safe that the kernel loads it.
    fn add_virtual_server(&mut self, server: &VirtualServer) -> Result<(), Error> {
        self.execute_one(Operation::AddVirtualServer(server.clone()))
    }

    /// Replaces the configuration of a virtual server and keeps its real servers and connections: `ipvsadm -E`.
    ///
    /// # Errors
    /// [`Error::is_not_found`], or [`Error::is_scheduler_unavailable`] without the scheduler's module; also
    /// [`Error::is_scheduler_not_loaded`] if it would not be safe that the kernel loads it.
    fn update_virtual_server(&mut self, server: &VirtualServer) -> Result<(), Error> {
        self.execute_one(Operation::UpdateVirtualServer(server.clone()))
    }

    /// Adds a virtual server, or updates it if it exists.
    ///
    /// # Errors
    /// [`Error::is_scheduler_unavailable`] without the scheduler's module; also [`Error::is_scheduler_not_loaded`] if it would not be safe
    /// that the kernel loads it.
    fn ensure_virtual_server(&mut self, server: &VirtualServer) -> Result<(), Error> {
        self.execute_one(Operation::EnsureVirtualServer(server.clone()))
    }

    /// Deletes a virtual server and its real servers: `ipvsadm -D`.
    ///
    /// # Errors
    /// [`Error::is_not_found`].
    fn delete_virtual_server(&mut self, key: &VirtualServerKey) -> Result<(), Error> {
        self.execute_one(Operation::DeleteVirtualServer(*key))
    }

    /// Adds a real server: `ipvsadm -a`.
    ///
    /// # Errors
    /// [`Error::is_already_exists`], [`Error::is_virtual_server_absent`], or [`Error::is_invalid`] if the kernel does not accept a
    /// real server with this configuration.
    fn add_real_server(
        &mut self,
        virtual_server: &VirtualServerKey,
        server: &RealServer,
    ) -> Result<(), Error> {
        self.execute_one(Operation::AddRealServer {
            virtual_server: *virtual_server,
            real_server: server.clone(),
        })
    }

    /// Replaces the configuration of a real server and keeps its connections: `ipvsadm -e`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it or its virtual server does not exist, or [`Error::is_invalid`] if the kernel does not accept a
    /// real server with this configuration.
    fn update_real_server(
        &mut self,
        virtual_server: &VirtualServerKey,
        server: &RealServer,
    ) -> Result<(), Error> {
        self.execute_one(Operation::UpdateRealServer {
            virtual_server: *virtual_server,
            real_server: server.clone(),
        })
    }

    /// Adds a real server, or updates it if it exists.
    ///
    /// # Errors
    /// [`Error::is_virtual_server_absent`], or [`Error::is_invalid`] if the kernel does not accept a real server with this
    /// configuration.
    fn ensure_real_server(
        &mut self,
        virtual_server: &VirtualServerKey,
        server: &RealServer,
    ) -> Result<(), Error> {
        self.execute_one(Operation::EnsureRealServer {
            virtual_server: *virtual_server,
            real_server: server.clone(),
        })
    }

    /// Changes only the weight of a real server. Returns the previous weight.
    ///
    /// The kernel replaces the whole configuration of a real server at once, so the current one is listed first. A change that
    /// another client makes to this real server between the listing and the update is lost.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it or its virtual server does not exist, and those of
    /// [`list_real_servers`](Self::list_real_servers).
    fn set_weight(
        &mut self,
        virtual_server: &VirtualServerKey,
        real_server: &RealServerKey,
        weight: Weight,
    ) -> Result<Weight, Error> {
        let listed = self.list_real_servers(virtual_server)?;
        let found = listed
            .into_iter()
            .find(|status| status.server.key == *real_server);
        let Some(RealServerStatus { server, .. }) = found else {
            let (errno, reason) = match self.find_virtual_server(virtual_server)? {
                Some(_) => (Errno::ENOENT, Reason::RealServerAbsent),
                None => (Errno::ESRCH, Reason::VirtualServerAbsent),
            };
            let operation = Operation::UpdateRealServer {
                virtual_server: *virtual_server,
                real_server: RealServer::new(*real_server).with_weight(weight),
            };
            return Err(Error::refused(&operation, errno, reason));
        };
        let before = server.weight;
        if before != weight {
            self.update_real_server(virtual_server, &server.with_weight(weight))?;
        }
        Ok(before)
    }

    /// Deletes a real server: `ipvsadm -d`. To let its connections end first, set weight 0 and wait.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it or its virtual server does not exist.
    fn delete_real_server(
        &mut self,
        virtual_server: &VirtualServerKey,
        real_server: &RealServerKey,
    ) -> Result<(), Error> {
        self.execute_one(Operation::DeleteRealServer {
            virtual_server: *virtual_server,
            real_server: *real_server,
        })
    }

    /// Deletes all virtual servers: `ipvsadm -C`. Succeeds if there is none.
    fn flush(&mut self) -> Result<(), Error> {
        self.execute_one(Operation::Flush)
    }

    /// Zeroes the counters of a virtual server and its real servers: `ipvsadm -Z -t ADDRESS:PORT`.
    ///
    /// # Errors
    /// [`Error::is_not_found`].
    fn zero(&mut self, key: &VirtualServerKey) -> Result<(), Error> {
        self.execute_one(Operation::Zero(*key))
    }

    /// Zeroes all counters: `ipvsadm -Z`.
    fn zero_all(&mut self) -> Result<(), Error> {
        self.execute_one(Operation::ZeroAll)
    }

    /// Sets timeouts: `ipvsadm --set`. A timeout of zero is not changed.
    fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        self.execute_one(Operation::SetTimeouts(timeouts))
    }

    /// Starts a connection synchronization daemon: `ipvsadm --start-daemon`.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if a daemon with this role is running.
    fn start_daemon(&mut self, daemon: &Daemon) -> Result<(), Error> {
        self.execute_one(Operation::StartDaemon(daemon.clone()))
    }

    /// Stops a connection synchronization daemon: `ipvsadm --stop-daemon`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if no daemon with this role is running.
    fn stop_daemon(&mut self, role: DaemonRole) -> Result<(), Error> {
        self.execute_one(Operation::StopDaemon(role))
    }

    /// Executes one operation.
    fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
        self.execute(&[operation])
            .pop()
            .unwrap_or(Err(Error::OutcomeMissing))
    }
}

const NOT_IMPLEMENTED: &str = "not supported by this implementation of Ipvs";

/// The IPVS table of one network namespace of the running kernel.
///
/// A client has one netlink socket. It uses the network namespace in which it was opened, regardless of the thread that calls it.
/// Clients share no state; a client can be moved to another thread.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    /// The number of the generic-netlink family `IPVS`.
    family: u16,
    /// Reused between calls to keep its allocation.
    batch: Batch,
    namespace: ClientNamespace,
    loading: Loading,
    /// The running kernel, once a request depended on it.
    release: Option<KernelRelease>,
    /// Whether the last listing had more virtual servers than fit into one datagram.
    has_many: bool,
}

impl Client {
    /// Opens the table of the calling thread's network namespace. The kernel loads the module `ip_vs` if it is installed.
    ///
    /// Opening requires no privilege. All requests over netlink require `CAP_NET_ADMIN` in the initial user namespace.
    ///
    /// # Errors
    /// [`Error::is_unavailable`] if the kernel has no IPVS.
    pub fn open() -> Result<Self, Error> {
        let namespace = ClientNamespace::current().map_err(Error::request("open the network namespace"))?;
        let mut connection =
            Connection::open(Protocol::Generic).map_err(Error::request("open a netlink socket"))?;
        let family = match Family::resolve(&mut connection, IPVS_GENL_NAME) {
            Ok(family) => family.id,
            Err(kernlink_netlink::Error::UnknownFamily { .. }) => {
                return Err(Unavailable::diagnose().into());
            }
            Err(error) => return Err(Error::request("look up the netlink family IPVS")(error)),
        };
        Ok(Self {
            connection,
            family,
            batch: Batch::new(),
            namespace,
            loading: Loading::default(),
            release: None,
            has_many: false,
        })
    }

    /// Opens the table of another network namespace. The calling thread does not change its namespace.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and an error if the namespace cannot be entered.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        namespace
            .run(Self::open)
            .map_err(Error::request("open IPVS in another network namespace"))?
    }

    /// Sets how long to wait for an answer of the kernel. `None` is no limit. The default is 30 seconds.
    ///
    /// # Errors
    /// The socket does not accept the timeout.
    pub fn set_timeout(&mut self, timeout: Option<std::time::Duration>) -> Result<(), Error> {
        self.connection
            .set_timeout(timeout)
            .map_err(Error::request("set the timeout"))
    }

    /// The release, IPVS version and schedulers of the running kernel.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`].
    pub fn support(&mut self) -> Result<Support, Error> {
        let info = self.info()?;
        let modules = Modules::of_running_kernel();
        let schedulers = Scheduler::KNOWN
            .iter()
            .copied()
            .map(|scheduler| {
                (
                    scheduler,
                    Availability::of(&format!("ip_vs_{scheduler}"), &modules),
                )
            })
            .collect();
        Ok(Support {
            release: modules.release().to_owned(),
            info,
            schedulers,
        })
    }

    /// The connections of the client's network namespace that match a filter: `ipvsadm -L -n -c`. They are read while the iterator
    /// advances; it does not borrow the client.
    ///
    /// # Errors
    /// The table in `/proc` cannot be opened.
    pub fn connections(&mut self, filter: ConnectionFilter) -> Result<Connections, Error> {
        self.in_namespace(|| Connections::open(filter))?
    }

    /// Reads a sysctl of the client's network namespace.
    ///
    /// # Errors
    /// [`Error::is_unsupported`] if the kernel does not have it: the kernel is older ([`Error::is_kernel_too_old`]), a module is
    /// not loaded, or a configuration option is off.
    pub fn sysctl<T: Value>(&mut self, sysctl: &Sysctl<T>) -> Result<T, Error> {
        self.in_namespace(|| sysctl.read())?
    }

    /// Writes a sysctl of the client's network namespace.
    ///
    /// # Errors
    /// [`Error::is_invalid`] if the value is out of range, [`Error::is_unsupported`] if the kernel does not have the sysctl, or
    /// [`Error::is_permission_denied`].
    pub fn set_sysctl<T: Value>(&mut self, sysctl: &Sysctl<T>, value: &T) -> Result<(), Error> {
        self.in_namespace(|| sysctl.write(value))?
    }

    /// Calls `work` in the client's network namespace.
    fn in_namespace<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.namespace
            .run(work)
            .map_err(Error::request("enter the network namespace of the client"))
    }
}

impl Ipvs for Client {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.execute_chunks(operations)
    }

    fn is_scheduler_refused(&mut self, scheduler: Scheduler) -> bool {
        self.loading.refuses(scheduler)
    }

    fn permit_loading(&mut self, schedulers: &[Scheduler]) {
        self.loading.permit(schedulers);
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
        complete(self.read_virtual_servers()?, "list the virtual servers")
    }

    fn find_virtual_server(&mut self, key: &VirtualServerKey) -> Result<Option<VirtualServerStatus>, Error> {
        self.read_virtual_server(key)
    }

    fn list_real_servers(
        &mut self,
        virtual_server: &VirtualServerKey,
    ) -> Result<Vec<RealServerStatus>, Error> {
        complete(self.read_real_servers(virtual_server)?, "list the real servers")
    }

    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        self.take_snapshot()
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.request_one(
            "read the timeouts",
            [IPVS_CMD_GET_CONFIG, IPVS_CMD_SET_CONFIG],
            wire::read_timeouts,
        )
    }

    fn list_daemons(&mut self) -> Result<Vec<Daemon>, Error> {
        let mut daemons = self
            .connection
            .dump_all(
                self.family,
                0,
                |writer| wire::write_header(writer, IPVS_CMD_GET_DAEMON),
                |message| {
                    wire::body(message.payload, IPVS_CMD_NEW_DAEMON)
                        .and_then(wire::read_daemon)
                        .map(Some)
                },
            )
            .map_err(Error::request("list the daemons"))?;
        daemons.sort_by_key(|daemon| daemon.role);
        Ok(daemons)
    }

    fn info(&mut self) -> Result<Info, Error> {
        self.request_one(
            "read the IPVS version",
            [IPVS_CMD_GET_INFO, IPVS_CMD_SET_INFO],
            wire::read_info,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_send() {
        fn is_send<T: Send>() {}
        is_send::<Client>();
    }
}
