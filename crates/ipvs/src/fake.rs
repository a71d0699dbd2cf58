//! The kernel's table, in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use kernlink_netlink::Errno;

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

/// An IPVS table in memory that refuses what the kernel refuses, with the same errors, for tests without a kernel.
///
/// A new one is like a new network namespace with `lo` up: empty, with every scheduler of [`Scheduler::KNOWN`] and the
/// persistence engine `sip`, and an interface `lo`. Nothing connects to it unless [`set_connections`](Self::set_connections)
/// says so.
#[derive(Debug)]
pub struct Fake {
    servers: BTreeMap<VirtualServerKey, Entry>,
    /// Deleted real servers with connections: they come back as they were.
    trash: HashMap<(VirtualServerKey, RealServerKey), RealServerStatus>,
    timeouts: Timeouts,
    daemons: BTreeMap<DaemonRole, Daemon>,
    schedulers: BTreeSet<Scheduler>,
    engines: BTreeSet<PersistenceEngine>,
    /// Interfaces with their MTU.
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
            schedulers: Scheduler::KNOWN.into_iter().chain([Scheduler::NONE]).collect(),
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

    /// The same with only these schedulers, as on a kernel without the other modules.
    pub fn with_schedulers(mut self, schedulers: impl IntoIterator<Item = Scheduler>) -> Self {
        self.schedulers = schedulers.into_iter().chain([Scheduler::NONE]).collect();
        self
    }

    /// The same for a caller without `CAP_NET_ADMIN`.
    pub fn without_permission(mut self) -> Self {
        self.is_permitted = false;
        self
    }

    /// The same in a network namespace whose `lo` was never up: no IPv4 real server can be added.
    pub fn with_loopback_down(mut self) -> Self {
        self.is_loopback_up = false;
        self
    }

    /// The same with one more interface for daemons.
    pub fn with_interface(mut self, name: InterfaceName, mtu: u32) -> Self {
        self.interfaces.insert(name, mtu);
        self
    }

    /// From now on refuses exactly this operation with this error number, for tests of what a caller does then.
    pub fn refuse(&mut self, operation: Operation, errno: Errno) {
        self.refusals.insert(operation, errno);
    }

    /// Ends every [`refuse`](Self::refuse).
    pub fn refuse_nothing(&mut self) {
        self.refusals.clear();
    }

    /// What was executed with success so far, in order.
    pub fn executed(&self) -> &[Operation] {
        &self.executed
    }

    /// Forgets what was executed so far.
    pub fn forget_executed(&mut self) {
        self.executed.clear();
    }

    /// Gives a real server connections. False if there is no such real server.
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
                self.find_modules(server)?;
                let entry = Entry {
                    status: VirtualServerStatus::new(server.clone()),
                    real_servers: BTreeMap::new(),
                };
                self.servers.insert(server.key, entry);
            }
            Operation::UpdateVirtualServer(server) => {
                self.entry(&server.key)?;
                self.find_modules(server)?;
                self.entry(&server.key)?.status.server = server.clone();
            }
            Operation::DeleteVirtualServer(key) => {
                let entry = self.servers.remove(key).ok_or(Errno::ESRCH)?;
                for status in entry.real_servers.into_values() {
                    self.throw_away(*key, status);
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
                self.throw_away(*virtual_server, status);
            }
            Operation::Flush => {
                for (key, entry) in std::mem::take(&mut self.servers) {
                    for status in entry.real_servers.into_values() {
                        self.throw_away(key, status);
                    }
                }
            }
            Operation::Zero(key) => self.entry(key)?.zero(),
            Operation::ZeroAll => self.servers.values_mut().for_each(Entry::zero),
            Operation::SetTimeouts(timeouts) => {
                for (place, timeout) in [
                    (&mut self.timeouts.tcp, timeouts.tcp),
                    (&mut self.timeouts.tcp_fin, timeouts.tcp_fin),
                    (&mut self.timeouts.udp, timeouts.udp),
                ] {
                    if !timeout.is_zero() {
                        *place = timeout;
                    }
                }
            }
            Operation::StartDaemon(daemon) => self.start(daemon)?,
            Operation::StopDaemon(role) => {
                self.daemons.remove(role).ok_or(Errno::ESRCH)?;
            }
            // Done above.
            Operation::EnsureVirtualServer(_) | Operation::EnsureRealServer { .. } => {}
        }
        Ok(())
    }

    fn entry(&mut self, key: &VirtualServerKey) -> Result<&mut Entry, Errno> {
        self.servers.get_mut(key).ok_or(Errno::ESRCH)
    }

    fn find_modules(&self, server: &VirtualServer) -> Result<(), Errno> {
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
        let may_be = server.forwarding == ForwardingMethod::Tunnel && self.daemons.is_empty();
        if is_mixed && !may_be {
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

    fn throw_away(&mut self, virtual_server: VirtualServerKey, status: RealServerStatus) {
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
        // What the kernel chooses: start_sync_thread in net/netfilter/ipvs/ip_vs_sync.c.
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

    fn may_read(&self, attempt: &'static str) -> Result<(), Error> {
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

    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
        self.may_read("list the virtual servers")?;
        Ok(self.servers.values().map(|entry| entry.status.clone()).collect())
    }

    fn find_virtual_server(&mut self, key: &VirtualServerKey) -> Result<Option<VirtualServerStatus>, Error> {
        self.may_read("read a virtual server")?;
        Ok(self.servers.get(key).map(|entry| entry.status.clone()))
    }

    fn list_real_servers(
        &mut self,
        virtual_server: &VirtualServerKey,
    ) -> Result<Vec<RealServerStatus>, Error> {
        self.may_read("list the real servers")?;
        let entry = self.servers.get(virtual_server);
        Ok(entry
            .map(|entry| entry.real_servers.values().cloned().collect())
            .unwrap_or_default())
    }

    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        self.may_read("list the virtual servers")?;
        let entries = self.servers.values().map(|entry| {
            let real_servers = entry.real_servers.values().map(RealServerSummary::from).collect();
            SnapshotEntry::new(entry.status.clone(), real_servers)
        });
        Ok(Snapshot::new(entries.collect(), Consistency::Verified))
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.may_read("read the time-outs")?;
        Ok(self.timeouts)
    }

    fn list_daemons(&mut self) -> Result<Vec<Daemon>, Error> {
        self.may_read("list the daemons")?;
        Ok(self.daemons.values().cloned().collect())
    }

    fn info(&mut self) -> Result<Info, Error> {
        self.may_read("read version and table size")?;
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
    fn refusals_end_where_they_should() {
        let mut fake = Fake::new();
        fake.refuse(Operation::Flush, Errno::ENOMEM);
        assert_eq!(fake.flush().unwrap_err().reason(), Some(&Reason::OutOfMemory));
        fake.zero_all().unwrap();
        fake.refuse_nothing();
        fake.flush().unwrap();
        assert_eq!(fake.executed(), [Operation::ZeroAll, Operation::Flush]);
    }

    #[test]
    fn deleted_real_server_with_connections_comes_back_with_them() {
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
    fn caller_without_the_right_is_told_so() {
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
    fn loopback_that_was_never_up_is_named() {
        let mut fake = Fake::new().with_loopback_down();
        let key = VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80);
        fake.add_virtual_server(&VirtualServer::new(key, Scheduler::RR))
            .unwrap();
        let real = RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 0, 0, 2), 80));
        let error = fake.add_real_server(&key, &real).unwrap_err();
        assert_eq!(error.reason(), Some(&Reason::LoopbackDown));
    }
}
