//! An in-memory implementation of [`Ipvs`] for tests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use kernlink_netlink::Errno;

use crate::availability::Availability;
use crate::client::Ipvs;
use crate::daemon::{Daemon, DaemonRole, InterfaceName};
use crate::error::Error;
use crate::forwarding::ForwardingMethod;
use crate::info::{Info, Version};
use crate::operation::Operation;
use crate::real_server::{RealServer, RealServerKey, TunnelKind};
use crate::reason::{Reason, forbidden_address};
use crate::scheduler::{PersistenceEngine, Scheduler};
use crate::snapshot::{Consistency, RealServerSummary, Snapshot, SnapshotEntry};
use crate::stats::{ConnectionCounts, RealServerStatus, Stats, VirtualServerStatus};
use crate::timeouts::Timeouts;
use crate::virtual_server::{VirtualServer, VirtualServerKey};
use crate::wire;

/// An in-memory IPVS table for tests without a kernel. It refuses the same operations as the kernel, with the same errors.
///
/// A new fake is like a new network namespace with `lo` up: it is empty, has all schedulers of [`Scheduler::KNOWN`] and the
/// persistence engine `sip`, and has an interface `lo`. Real servers have no connections except those of
/// [`set_connections`](Self::set_connections).
#[derive(Debug)]
pub struct Fake {
    servers: BTreeMap<VirtualServerKey, Entry>,
    /// Deleted real servers with connections, as in the kernel's `dest_trash`. When they are added again, they get their counters.
    trash: HashMap<(VirtualServerKey, RealServerKey), RealServerStatus>,
    timeouts: Timeouts,
    daemons: BTreeMap<DaemonRole, Daemon>,
    schedulers: BTreeSet<Scheduler>,
    /// The schedulers whose modules are not loaded and must not be loaded for an operation.
    not_loaded: BTreeSet<Scheduler>,
    /// The schedulers of `permit_loading`.
    permitted: BTreeSet<Scheduler>,
    engines: BTreeSet<PersistenceEngine>,
    /// Interfaces with their MTU in bytes.
    interfaces: BTreeMap<InterfaceName, u32>,
    is_permitted: bool,
    is_loopback_up: bool,
    refusals: HashMap<Operation, Errno>,
    executed: Vec<Operation>,
}

#[derive(Debug)]
struct Entry {
    status: VirtualServerStatus,
    real_servers: BTreeMap<RealServerKey, RealServerStatus>,
}

impl Fake {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        let mut fake = Self {
            servers: BTreeMap::new(),
            trash: HashMap::new(),
            timeouts: Timeouts::new(
                Duration::from_secs(900),
                Duration::from_secs(120),
                Duration::from_secs(300),
            ),
            daemons: BTreeMap::new(),
            schedulers: Scheduler::KNOWN
                .iter()
                .copied()
                .chain([Scheduler::NONE])
                .collect(),
            not_loaded: BTreeSet::new(),
            permitted: BTreeSet::new(),
            engines: BTreeSet::from([PersistenceEngine::SIP]),
            interfaces: BTreeMap::new(),
            is_permitted: true,
            is_loopback_up: true,
            refusals: HashMap::new(),
            executed: Vec::new(),
        };
        if let Ok(loopback) = InterfaceName::new("lo") {
            fake.interfaces.insert(loopback, 65_536);
        }
        fake
    }

    /// Sets the schedulers, as on a kernel without the other modules. [`Scheduler::NONE`] always exists.
    #[must_use]
    pub fn with_schedulers(mut self, schedulers: impl IntoIterator<Item = Scheduler>) -> Self {
        self.schedulers = schedulers.into_iter().chain([Scheduler::NONE]).collect();
        self
    }

    /// Makes these schedulers behave like `lblc` and `lblcr` on a kernel that has not loaded them, for a process that cannot load modules:
    /// operations with them fail with [`Error::is_scheduler_not_loaded`], unless [`permit_loading`](Ipvs::permit_loading) names them.
    #[must_use]
    pub fn with_schedulers_not_loaded(mut self, schedulers: impl IntoIterator<Item = Scheduler>) -> Self {
        self.not_loaded = schedulers.into_iter().collect();
        self
    }

    /// Loads the module of a scheduler of [`with_schedulers_not_loaded`](Self::with_schedulers_not_loaded), as `modprobe` does.
    pub fn load_scheduler(&mut self, scheduler: Scheduler) {
        self.not_loaded.remove(&scheduler);
    }

    /// Makes all methods fail as for a caller without `CAP_NET_ADMIN`.
    #[must_use]
    pub fn without_permission(mut self) -> Self {
        self.is_permitted = false;
        self
    }

    /// Makes the fake behave like a network namespace whose `lo` has never been up: no IPv4 real server can be added.
    #[must_use]
    pub fn with_loopback_down(mut self) -> Self {
        self.is_loopback_up = false;
        self
    }

    /// Adds an interface for daemons, with its MTU in bytes.
    #[must_use]
    pub fn with_interface(mut self, name: InterfaceName, mtu: u32) -> Self {
        self.interfaces.insert(name, mtu);
        self
    }

    /// Refuses operations that are equal to this one with this error number, until [`refuse_nothing`](Self::refuse_nothing).
    pub fn refuse(&mut self, operation: Operation, errno: Errno) {
        self.refusals.insert(operation, errno);
    }

    /// Removes all refusals of [`refuse`](Self::refuse).
    pub fn refuse_nothing(&mut self) {
        self.refusals.clear();
    }

    /// The operations that were executed successfully, in order.
    #[must_use]
    pub fn executed(&self) -> &[Operation] {
        &self.executed
    }

    /// Clears the list of executed operations.
    pub fn forget_executed(&mut self) {
        self.executed.clear();
    }

    /// Sets the numbers of connections of a real server. Returns false if it does not exist.
    pub fn set_connections(
        &mut self,
        virtual_server: &VirtualServerKey,
        real_server: &RealServerKey,
        connections: ConnectionCounts,
    ) -> bool {
        let found = self
            .servers
            .get_mut(virtual_server)
            .and_then(|entry| entry.real_servers.get_mut(real_server));
        match found {
            Some(status) => {
                status.connections = connections;
                true
            }
            None => false,
        }
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), Errno> {
        if !self.is_permitted {
            return Err(Errno::EPERM);
        }
        if let Some(errno) = self.refusals.get(operation) {
            return Err(*errno);
        }
        if let Some([add, update]) = operation.add_and_update() {
            return match self.apply(&add) {
                Err(Errno::EEXIST) => self.apply(&update),
                outcome => outcome,
            };
        }
        match operation {
            Operation::AddVirtualServer(server) => {
                if self.servers.contains_key(&server.key) {
                    return Err(Errno::EEXIST);
                }
                self.check_modules(server)?;
                let entry = Entry {
                    status: VirtualServerStatus::new(server.clone()),
                    real_servers: BTreeMap::new(),
                };
                self.servers.insert(server.key, entry);
            }
            Operation::UpdateVirtualServer(server) => {
                self.entry(&server.key)?;
                self.check_modules(server)?;
                self.entry(&server.key)?.status.server = server.clone();
            }
            Operation::DeleteVirtualServer(key) => {
                let entry = self.servers.remove(key).ok_or(Errno::ESRCH)?;
                for status in entry.real_servers.into_values() {
                    self.move_to_trash(*key, status);
                }
            }
            Operation::AddRealServer {
                virtual_server,
                real_server,
            } => {
                self.entry(virtual_server)?;
                self.check_family(virtual_server, real_server)?;
                check_tunnel(real_server)?;
                if self
                    .entry(virtual_server)?
                    .real_servers
                    .contains_key(&real_server.key)
                {
                    return Err(Errno::EEXIST);
                }
                let revived = self.trash.remove(&(*virtual_server, real_server.key));
                if revived.is_none() {
                    self.check_address(real_server.key.address)?;
                }
                let mut status = revived.unwrap_or_else(|| RealServerStatus::new(real_server.clone()));
                status.server = real_server.clone();
                self.entry(virtual_server)?
                    .real_servers
                    .insert(real_server.key, status);
            }
            Operation::UpdateRealServer {
                virtual_server,
                real_server,
            } => {
                self.entry(virtual_server)?;
                self.check_family(virtual_server, real_server)?;
                check_tunnel(real_server)?;
                let entry = self.entry(virtual_server)?;
                entry
                    .real_servers
                    .get_mut(&real_server.key)
                    .ok_or(Errno::ENOENT)?
                    .server = real_server.clone();
            }
            Operation::DeleteRealServer {
                virtual_server,
                real_server,
            } => {
                let entry = self.entry(virtual_server)?;
                let status = entry.real_servers.remove(real_server).ok_or(Errno::ENOENT)?;
                self.move_to_trash(*virtual_server, status);
            }
            Operation::Flush => {
                for (key, entry) in std::mem::take(&mut self.servers) {
                    for status in entry.real_servers.into_values() {
                        self.move_to_trash(key, status);
                    }
                }
            }
            Operation::Zero(key) => self.entry(key)?.zero(),
            Operation::ZeroAll => self.servers.values_mut().for_each(Entry::zero),
            Operation::SetTimeouts(timeouts) => {
                for (current, timeout) in [
                    (&mut self.timeouts.tcp, timeouts.tcp),
                    (&mut self.timeouts.tcp_fin, timeouts.tcp_fin),
                    (&mut self.timeouts.udp, timeouts.udp),
                ] {
                    if !timeout.is_zero() {
                        *current = timeout;
                    }
                }
            }
            Operation::StartDaemon(daemon) => self.start(daemon)?,
            Operation::StopDaemon(role) => {
                self.daemons.remove(role).ok_or(Errno::ESRCH)?;
            }
            // Handled above.
            Operation::EnsureVirtualServer(_) | Operation::EnsureRealServer { .. } => {}
        }
        Ok(())
    }

    fn entry(&mut self, key: &VirtualServerKey) -> Result<&mut Entry, Errno> {
        self.servers.get_mut(key).ok_or(Errno::ESRCH)
    }

    /// The scheduler of an operation that the client would not send.
    fn refused_scheduler(&self, operation: &Operation) -> Option<Scheduler> {
        match operation {
            Operation::AddVirtualServer(server)
            | Operation::UpdateVirtualServer(server)
            | Operation::EnsureVirtualServer(server) => Some(server.scheduler),
            _ => None,
        }
        .filter(|scheduler| self.not_loaded.contains(scheduler) && !self.permitted.contains(scheduler))
    }

    fn check_modules(&self, server: &VirtualServer) -> Result<(), Errno> {
        let has_engine = server
            .persistence_engine
            .is_none_or(|engine| self.engines.contains(&engine));
        if self.schedulers.contains(&server.scheduler) && has_engine {
            Ok(())
        } else {
            Err(Errno::ENOENT)
        }
    }

    fn check_family(&self, virtual_server: &VirtualServerKey, server: &RealServer) -> Result<(), Errno> {
        let is_mixed = virtual_server.family() != server.key.family();
        let is_allowed = server.forwarding == ForwardingMethod::Tunnel && self.daemons.is_empty();
        if is_mixed && !is_allowed {
            Err(Errno::EINVAL)
        } else {
            Ok(())
        }
    }

    fn check_address(&self, address: IpAddr) -> Result<(), Errno> {
        let is_forbidden =
            forbidden_address(address).is_some() || (address.is_ipv4() && !self.is_loopback_up);
        if is_forbidden { Err(Errno::EINVAL) } else { Ok(()) }
    }

    fn move_to_trash(&mut self, virtual_server: VirtualServerKey, status: RealServerStatus) {
        if status.connections.total() > 0 {
            self.trash.insert((virtual_server, status.server.key), status);
        }
    }

    fn start(&mut self, daemon: &Daemon) -> Result<(), Errno> {
        if daemon.group.is_some_and(|group| !group.is_multicast()) {
            return Err(Errno::EINVAL);
        }
        let is_mixed = |(key, entry): (&VirtualServerKey, &Entry)| {
            entry
                .real_servers
                .keys()
                .any(|real_server| real_server.family() != key.family())
        };
        if self.servers.iter().any(is_mixed) {
            return Err(Errno::EINVAL);
        }
        if self.daemons.contains_key(&daemon.role) {
            return Err(Errno::EEXIST);
        }
        let mtu = *self.interfaces.get(&daemon.interface).ok_or(Errno::ENODEV)?;
        // The defaults of start_sync_thread in net/netfilter/ipvs/ip_vs_sync.c.
        let group = daemon.group.unwrap_or(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 81)));
        let headers = if group.is_ipv4() { 20 + 8 } else { 40 + 8 };
        let (mtu, least) = match daemon.role {
            DaemonRole::Master => (1500, 1),
            DaemonRole::Backup => (mtu.clamp(1500, 65_535), 1024),
        };
        let max_length = match daemon.max_length {
            None | Some(0) => mtu - headers,
            Some(length) => u32::from(length).clamp(least, 65_535 - headers),
        };
        let started = Daemon {
            group: Some(group),
            // Less than 65 535.
            max_length: Some(max_length as u16),
            port: Some(daemon.port.filter(|port| *port != 0).unwrap_or(8848)),
            ttl: Some(daemon.ttl.filter(|ttl| *ttl != 0).unwrap_or(1)),
            ..daemon.clone()
        };
        self.daemons.insert(daemon.role, started);
        Ok(())
    }

    fn check_permission(&self, attempt: &'static str) -> Result<(), Error> {
        if self.is_permitted {
            Ok(())
        } else {
            Err(Error::NotPermitted { attempt })
        }
    }
}

impl Entry {
    fn zero(&mut self) {
        self.status.stats = Stats::default();
        for real_server in self.real_servers.values_mut() {
            real_server.stats = Stats::default();
        }
    }
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Ipvs for Fake {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let outcome = |operation: &Operation| {
            wire::check(operation).map_err(|problem| Error::Invalid {
                operation: Box::new(operation.clone()),
                problem,
            })?;
            if let Some(scheduler) = self.refused_scheduler(operation) {
                return Err(Error::SchedulerNotLoaded {
                    operation: Box::new(operation.clone()),
                    scheduler,
                    module: Availability::Loadable,
                });
            }
            self.apply(operation).map_err(|errno| {
                let reason = match (Reason::of(operation, errno), operation) {
                    (
                        Reason::Unexplained,
                        Operation::AddRealServer { .. } | Operation::EnsureRealServer { .. },
                    ) if errno == Errno::EINVAL => Reason::LoopbackDown,
                    (reason, _) => reason,
                };
                Error::refused(operation, errno, reason)
            })?;
            self.executed.push(operation.clone());
            Ok(())
        };
        operations.iter().map(outcome).collect()
    }

    fn is_scheduler_refused(&mut self, scheduler: Scheduler) -> bool {
        self.not_loaded.contains(&scheduler) && !self.permitted.contains(&scheduler)
    }

    fn permit_loading(&mut self, schedulers: &[Scheduler]) {
        self.permitted = schedulers.iter().copied().collect();
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
        self.check_permission("list the virtual servers")?;
        Ok(self.servers.values().map(|entry| entry.status.clone()).collect())
    }

    fn find_virtual_server(&mut self, key: &VirtualServerKey) -> Result<Option<VirtualServerStatus>, Error> {
        self.check_permission("read a virtual server")?;
        Ok(self.servers.get(key).map(|entry| entry.status.clone()))
    }

    fn list_real_servers(
        &mut self,
        virtual_server: &VirtualServerKey,
    ) -> Result<Vec<RealServerStatus>, Error> {
        self.check_permission("list the real servers")?;
        let entry = self.servers.get(virtual_server);
        Ok(entry
            .map(|entry| entry.real_servers.values().cloned().collect())
            .unwrap_or_default())
    }

    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        self.check_permission("list the virtual servers")?;
        let entries = self.servers.values().map(|entry| {
            let real_servers = entry.real_servers.values().map(RealServerSummary::from).collect();
            SnapshotEntry::new(entry.status.clone(), real_servers)
        });
        Ok(Snapshot::new(entries.collect(), Consistency::Verified))
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.check_permission("read the timeouts")?;
        Ok(self.timeouts)
    }

    fn list_daemons(&mut self) -> Result<Vec<Daemon>, Error> {
        self.check_permission("list the daemons")?;
        Ok(self.daemons.values().cloned().collect())
    }

    fn info(&mut self) -> Result<Info, Error> {
        self.check_permission("read the IPVS version")?;
        Ok(Info::new(
            Version {
                major: 1,
                minor: 2,
                patch: 1,
            },
            4096,
        ))
    }
}

fn check_tunnel(server: &RealServer) -> Result<(), Errno> {
    if server.tunnel.kind == TunnelKind::Gue && server.tunnel.port == 0 {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fake_passes_the_contract() {
        crate::contract::run(|check| (check.run)(&mut Fake::new())).unwrap();
    }

    #[test]
    fn refuse_nothing_removes_the_refusals() {
        let mut fake = Fake::new();
        fake.refuse(Operation::Flush, Errno::ENOMEM);
        assert_eq!(fake.flush().unwrap_err().reason(), Some(&Reason::OutOfMemory));
        fake.zero_all().unwrap();
        fake.refuse_nothing();
        fake.flush().unwrap();
        assert_eq!(fake.executed(), [Operation::ZeroAll, Operation::Flush]);
    }

    #[test]
    fn a_real_server_that_is_deleted_and_added_again_keeps_its_connections() {
        let mut fake = Fake::new();
        let key = VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80);
        let real = RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 0, 0, 2), 80));
        fake.add_virtual_server(&VirtualServer::new(key, Scheduler::RR))
            .unwrap();
        fake.add_real_server(&key, &real).unwrap();
        let connections = ConnectionCounts {
            active: 3,
            ..ConnectionCounts::default()
        };
        assert!(fake.set_connections(&key, &real.key, connections));
        fake.delete_real_server(&key, &real.key).unwrap();
        fake.add_real_server(&key, &real).unwrap();
        assert_eq!(fake.list_real_servers(&key).unwrap()[0].connections, connections);
    }

    #[test]
    fn a_scheduler_that_is_not_loaded_is_refused_until_it_is_loaded_or_permitted() {
        let schedulers = [Scheduler::LBLC, Scheduler::LBLCR];
        let mut fake = Fake::new().with_schedulers_not_loaded(schedulers);
        let key = VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80);
        for scheduler in schedulers {
            let server = VirtualServer::new(key, scheduler);
            assert!(fake.is_scheduler_refused(scheduler));
            let error = fake.ensure_virtual_server(&server).unwrap_err();
            assert!(error.is_scheduler_not_loaded(), "{error}");
            assert_eq!(
                error.to_string(),
                format!(
                    "cannot ensure virtual server -t 10.0.0.1:80: scheduler {scheduler} is not loaded (module ip_vs_{scheduler}), and the \
                     kernel could block if it loaded the module for this request; run `modprobe ip_vs_{scheduler}` as root of the host"
                )
            );
            assert_eq!(fake.list_virtual_servers().unwrap(), []);
        }
        fake.load_scheduler(Scheduler::LBLC);
        fake.permit_loading(&[Scheduler::LBLCR]);
        for scheduler in schedulers {
            assert!(!fake.is_scheduler_refused(scheduler));
            fake.ensure_virtual_server(&VirtualServer::new(key, scheduler))
                .unwrap();
        }
    }

    #[test]
    fn without_permission_all_methods_fail() {
        let mut fake = Fake::new().without_permission();
        for error in [fake.flush().unwrap_err(), fake.info().unwrap_err()] {
            assert!(error.is_permission_denied() && !error.is_unsupported(), "{error}");
            assert!(
                error
                    .to_string()
                    .contains("CAP_NET_ADMIN in the initial user namespace"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_error_with_loopback_down_names_it() {
        let mut fake = Fake::new().with_loopback_down();
        let key = VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80);
        fake.add_virtual_server(&VirtualServer::new(key, Scheduler::RR))
            .unwrap();
        let real = RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 0, 0, 2), 80));
        let error = fake.add_real_server(&key, &real).unwrap_err();
        assert_eq!(error.reason(), Some(&Reason::LoopbackDown));
    }
}
