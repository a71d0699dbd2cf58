//! What can be done with an IPVS table, the kernel's or another.

use kernlink_netlink::Errno;

use crate::daemon::{Daemon, DaemonRole};
use crate::difference::Executed;
use crate::error::Error;
use crate::info::Info;
use crate::operation::Operation;
use crate::real_server::{RealServer, RealServerKey, Weight};
use crate::reason::Reason;
use crate::snapshot::{Consistency, RealServerSummary, Snapshot, SnapshotEntry};
use crate::stats::{RealServerStatus, VirtualServerStatus};
use crate::timeouts::Timeouts;
use crate::virtual_server::{VirtualServer, VirtualServerKey};

mod kernel;
mod listing;

pub use kernel::Client;
pub(crate) use kernel::kernel_release;

/// An IPVS table: the kernel's through [`Client`](crate::Client), or one in memory through `Fake` (feature `fake`).
///
/// Changes go through [`execute`](Self::execute); the single verbs are made of it.
///
/// Your own implementation needs four methods: [`execute`](Self::execute),
/// [`list_virtual_servers`](Self::list_virtual_servers), [`list_real_servers`](Self::list_real_servers) and
/// [`timeouts`](Self::timeouts). A wrapper around another implementation should forward [`snapshot`](Self::snapshot) too: the
/// provided one lists the real servers of each virtual server separately. [`Error::custom`] is for errors that do not come
/// from the kernel.
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
///                 Err(Error::custom(operation.describe(), "port 22 is this host's own"))
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
    /// Executes operations in order, in as few system calls as possible, and returns one outcome for each, in order. A
    /// failed operation does not stop those behind it.
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// All virtual servers, in the order of their keys. `ipvsadm -L -n` shows them.
    ///
    /// The list has every virtual server that exists from the beginning to the end of the call, once. A virtual server that is
    /// added or deleted during the call may or may not be in it.
    ///
    /// # Errors
    /// [`Error::is_interrupted`] if ten attempts failed because the table changed too fast, in this network namespace or in
    /// another.
    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error>;

    /// One virtual server; `None` if it is absent. `ipvsadm -L -n -t ADDRESS:PORT` shows it.
    fn find_virtual_server(&mut self, key: &VirtualServerKey) -> Result<Option<VirtualServerStatus>, Error> {
        let servers = self.list_virtual_servers()?;
        Ok(servers.into_iter().find(|status| status.server.key == *key))
    }

    /// The real servers of a virtual server with all settings and counters, in the order of their keys. Empty also if the
    /// virtual server is absent: the kernel does not tell these apart.
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

    /// All virtual servers with their real servers, the cheapest way there is, and whether some may be missing.
    ///
    /// The provided method lists the real servers of each virtual server, and fails where a list fails.
    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        let mut entries = Vec::new();
        for status in self.list_virtual_servers()? {
            let real_servers = self.list_real_servers(&status.server.key)?;
            let summaries = real_servers.iter().map(RealServerSummary::from).collect();
            entries.push(SnapshotEntry::new(status, summaries));
        }
        Ok(Snapshot::new(entries, Consistency::Verified))
    }

    /// The timeouts of idle connections. `ipvsadm -L --timeout` shows them.
    fn timeouts(&mut self) -> Result<Timeouts, Error>;

    /// The connection-synchronisation daemons that run, the master first. `ipvsadm -L --daemon` shows them.
    ///
    /// # Errors
    /// [`Error::Custom`] from an implementation that has no daemons.
    fn list_daemons(&mut self) -> Result<Vec<Daemon>, Error> {
        Err(Error::custom("list the daemons", NOT_IMPLEMENTED))
    }

    /// Version and connection table size.
    ///
    /// # Errors
    /// [`Error::Custom`] from an implementation that has neither.
    fn info(&mut self) -> Result<Info, Error> {
        Err(Error::custom("read version and table size", NOT_IMPLEMENTED))
    }

    /// Every virtual server with all settings of its real servers, in the order of the keys: what
    /// [`notation::save`](crate::notation::save) prints. One listing for each virtual server; [`snapshot`](Self::snapshot)
    /// is cheaper and knows less. A virtual server that is deleted during the call may be in the list without real servers.
    ///
    /// # Errors
    /// [`Error::is_interrupted`] if the table changed too fast, as for the single lists.
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

    /// Makes the table the desired one: lists it, executes the operations of [`difference`](crate::difference) and returns each
    /// with its outcome. Virtual servers that are not desired are deleted if `is_owned` holds of them. May be repeated; without
    /// differences nothing is executed.
    ///
    /// # Errors
    /// Those of [`list_all`](Self::list_all); nothing was executed then.
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
    /// [`Error::is_already_exists`] if it is there, [`Error::is_scheduler_unavailable`] without the scheduler's module.
    fn add_virtual_server(&mut self, server: &VirtualServer) -> Result<(), Error> {
        self.execute_one(Operation::AddVirtualServer(server.clone()))
    }

    /// Replaces all settings of a virtual server and leaves its real servers and connections alone: `ipvsadm -E`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it is absent, [`Error::is_scheduler_unavailable`] without the scheduler's module.
    fn update_virtual_server(&mut self, server: &VirtualServer) -> Result<(), Error> {
        self.execute_one(Operation::UpdateVirtualServer(server.clone()))
    }

    /// Adds a virtual server, or updates it if it is there. May be repeated.
    ///
    /// # Errors
    /// [`Error::is_scheduler_unavailable`] without the scheduler's module.
    fn ensure_virtual_server(&mut self, server: &VirtualServer) -> Result<(), Error> {
        self.execute_one(Operation::EnsureVirtualServer(server.clone()))
    }

    /// Deletes a virtual server and its real servers: `ipvsadm -D`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it is absent.
    fn delete_virtual_server(&mut self, key: &VirtualServerKey) -> Result<(), Error> {
        self.execute_one(Operation::DeleteVirtualServer(*key))
    }

    /// Adds a real server: `ipvsadm -a`.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if it is there, [`Error::is_virtual_server_absent`] if its virtual server is not,
    /// [`Error::is_invalid`] if the kernel takes no real server with these settings.
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

    /// Replaces all settings of a real server and leaves its connections alone: `ipvsadm -e`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it or its virtual server is absent, [`Error::is_invalid`] if the kernel takes no real server
    /// with these settings.
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

    /// Adds a real server, or updates it if it is there. May be repeated.
    ///
    /// # Errors
    /// [`Error::is_virtual_server_absent`] if its virtual server is not there, [`Error::is_invalid`] if the kernel takes no
    /// real server with these settings.
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

    /// Changes the weight of a real server and nothing else. Returns the weight it had.
    ///
    /// The kernel replaces all settings of a real server at once, so the present ones are listed first. A change that another
    /// client makes to this real server between the list and the update is lost.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it or its virtual server is absent, and those of
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

    /// Deletes a real server: `ipvsadm -d`. To let its connections end first, give it weight 0 and wait.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it or its virtual server is absent.
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

    /// Deletes every virtual server: `ipvsadm -C`. May be repeated.
    fn flush(&mut self) -> Result<(), Error> {
        self.execute_one(Operation::Flush)
    }

    /// Zeroes the counters of a virtual server and its real servers: `ipvsadm -Z -t ADDRESS:PORT`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it is absent.
    fn zero(&mut self, key: &VirtualServerKey) -> Result<(), Error> {
        self.execute_one(Operation::Zero(*key))
    }

    /// Zeroes all counters: `ipvsadm -Z`.
    fn zero_all(&mut self) -> Result<(), Error> {
        self.execute_one(Operation::ZeroAll)
    }

    /// Sets time-outs; those of zero stay as they are: `ipvsadm --set`.
    fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        self.execute_one(Operation::SetTimeouts(timeouts))
    }

    /// Starts a connection-synchronisation daemon: `ipvsadm --start-daemon`.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if one of its role runs.
    fn start_daemon(&mut self, daemon: &Daemon) -> Result<(), Error> {
        self.execute_one(Operation::StartDaemon(daemon.clone()))
    }

    /// Stops a connection-synchronisation daemon: `ipvsadm --stop-daemon`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if none of this role runs.
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

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        /// The table behind the pointer.
        impl<T: Ipvs + ?Sized> Ipvs for $pointer {
            fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
                (**self).execute(operations)
            }

            fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
                (**self).list_virtual_servers()
            }

            fn find_virtual_server(
                &mut self,
                key: &VirtualServerKey,
            ) -> Result<Option<VirtualServerStatus>, Error> {
                (**self).find_virtual_server(key)
            }

            fn list_real_servers(
                &mut self,
                virtual_server: &VirtualServerKey,
            ) -> Result<Vec<RealServerStatus>, Error> {
                (**self).list_real_servers(virtual_server)
            }

            fn snapshot(&mut self) -> Result<Snapshot, Error> {
                (**self).snapshot()
            }

            fn timeouts(&mut self) -> Result<Timeouts, Error> {
                (**self).timeouts()
            }

            fn list_daemons(&mut self) -> Result<Vec<Daemon>, Error> {
                (**self).list_daemons()
            }

            fn info(&mut self) -> Result<Info, Error> {
                (**self).info()
            }

            fn list_all(&mut self) -> Result<Vec<(VirtualServer, Vec<RealServer>)>, Error> {
                (**self).list_all()
            }
        }
    )*};
}

forward!(Box<T>, &mut T);
