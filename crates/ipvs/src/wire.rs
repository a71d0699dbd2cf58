//! How operations become bytes, and bytes nouns. Encoding and decoding of a noun stand side by side.
//!
//! Source for attribute types: [`ip_vs_ctl.c` at v6.1][source], its `ip_vs_*_policy` tables and `ip_vs_genl_fill_*`.
//!
//! [source]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use kernlink_base::Family;
use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error, generic};

use crate::daemon::{Daemon, DaemonRole, InterfaceName};
use crate::error::InvalidOperation;
use crate::forwarding::ForwardingMethod;
use crate::info::{Info, Version};
use crate::operation::Operation;
use crate::real_server::{RealServer, RealServerKey, Thresholds, Tunnel, TunnelFlags, TunnelKind, Weight};
use crate::scheduler::{PersistenceEngine, Scheduler, SchedulerFlags};
use crate::stats::{ConnectionCounts, Rates, RealServerStatus, Stats, VirtualServerStatus};
use crate::timeouts::Timeouts;
use crate::uapi::*;
use crate::virtual_server::{Granularity, Persistence, Protocol, VirtualServer, VirtualServerKey};

/// The command that an operation is.
pub(crate) fn command(operation: &Operation) -> u8 {
    match operation {
        // The first of two requests of those that ensure something.
        Operation::AddVirtualServer(_) | Operation::EnsureVirtualServer(_) => IPVS_CMD_NEW_SERVICE,
        Operation::UpdateVirtualServer(_) => IPVS_CMD_SET_SERVICE,
        Operation::DeleteVirtualServer(_) => IPVS_CMD_DEL_SERVICE,
        Operation::AddRealServer { .. } | Operation::EnsureRealServer { .. } => IPVS_CMD_NEW_DEST,
        Operation::UpdateRealServer { .. } => IPVS_CMD_SET_DEST,
        Operation::DeleteRealServer { .. } => IPVS_CMD_DEL_DEST,
        Operation::Flush => IPVS_CMD_FLUSH,
        Operation::Zero(_) | Operation::ZeroAll => IPVS_CMD_ZERO,
        Operation::SetTimeouts(_) => IPVS_CMD_SET_CONFIG,
        Operation::StartDaemon(_) => IPVS_CMD_NEW_DAEMON,
        Operation::StopDaemon(_) => IPVS_CMD_DEL_DAEMON,
    }
}

/// What the kernel would take for something else in silence.
pub(crate) fn check(operation: &Operation) -> Result<(), InvalidOperation> {
    match operation {
        Operation::AddVirtualServer(server)
        | Operation::UpdateVirtualServer(server)
        | Operation::EnsureVirtualServer(server) => {
            let family = server.key.family();
            match netmask(server) {
                Some(_) => Ok(()),
                None => Err(InvalidOperation::Granularity { family }),
            }
        }
        Operation::AddRealServer { real_server, .. }
        | Operation::UpdateRealServer { real_server, .. }
        | Operation::EnsureRealServer { real_server, .. } => {
            let (address, number) = (real_server.key.address, real_server.forwarding.number());
            if let IpAddr::V6(v6) = address
                && let Some(ipv4) = v6.to_ipv4_mapped()
            {
                return Err(InvalidOperation::MappedAddress { address: v6, ipv4 });
            }
            if number > IP_VS_CONN_F_FWD_MASK {
                return Err(InvalidOperation::ForwardingMethod { number });
            }
            Ok(())
        }
        Operation::SetTimeouts(timeouts) => match timeouts.seconds() {
            Ok(_) => Ok(()),
            Err((name, timeout)) => Err(InvalidOperation::Timeout { name, timeout }),
        },
        Operation::StartDaemon(Daemon { sync_id, .. }) if *sync_id > 255 => {
            Err(InvalidOperation::SyncId { sync_id: *sync_id })
        }
        _ => Ok(()),
    }
}

/// Writes everything behind the netlink header. [`check`] comes before.
pub(crate) fn write_operation(writer: &mut AttributeWriter<'_>, operation: &Operation) {
    write_header(writer, command(operation));
    match operation {
        Operation::AddVirtualServer(server)
        | Operation::UpdateVirtualServer(server)
        | Operation::EnsureVirtualServer(server) => {
            writer.nested(IPVS_CMD_ATTR_SERVICE, |writer| {
                write_virtual_server(writer, server)
            });
        }
        Operation::DeleteVirtualServer(key) | Operation::Zero(key) => write_service_key(writer, key),
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
            write_service_key(writer, virtual_server);
            writer.nested(IPVS_CMD_ATTR_DEST, |writer| {
                write_real_server(writer, real_server)
            });
        }
        Operation::DeleteRealServer {
            virtual_server,
            real_server,
        } => {
            write_service_key(writer, virtual_server);
            writer.nested(IPVS_CMD_ATTR_DEST, |writer| {
                write_real_server_key(writer, real_server)
            });
        }
        Operation::Flush | Operation::ZeroAll => {}
        Operation::SetTimeouts(timeouts) => write_timeouts(writer, timeouts),
        Operation::StartDaemon(daemon) => write_daemon_body(writer, daemon),
        Operation::StopDaemon(role) => {
            writer.nested(IPVS_CMD_ATTR_DAEMON, |writer| {
                writer.ne_u32(IPVS_DAEMON_ATTR_STATE, role.number());
            });
        }
    }
}

/// Writes the generic header alone: a whole request for dumps and for information.
pub(crate) fn write_header(writer: &mut AttributeWriter<'_>, command: u8) {
    writer.header(&generic::header(command, IPVS_GENL_VERSION));
}

/// Writes the attribute that names a virtual server.
pub(crate) fn write_service_key(writer: &mut AttributeWriter<'_>, key: &VirtualServerKey) {
    writer.nested(IPVS_CMD_ATTR_SERVICE, |writer| {
        write_virtual_server_key(writer, key)
    });
}

// Virtual servers.

fn write_virtual_server_key(writer: &mut AttributeWriter<'_>, key: &VirtualServerKey) {
    writer.ne_u16(IPVS_SVC_ATTR_AF, family_number(key.family()));
    match key {
        VirtualServerKey::Address {
            address,
            protocol,
            port,
        } => {
            writer
                .ne_u16(IPVS_SVC_ATTR_PROTOCOL, protocol.number())
                .address(IPVS_SVC_ATTR_ADDR, *address)
                .be_u16(IPVS_SVC_ATTR_PORT, *port);
        }
        VirtualServerKey::Mark { mark, .. } => {
            writer.ne_u32(IPVS_SVC_ATTR_FWMARK, mark.get());
        }
    }
}

fn write_virtual_server(writer: &mut AttributeWriter<'_>, server: &VirtualServer) {
    write_virtual_server_key(writer, &server.key);
    let mut flags = server.scheduler_flags.bits();
    if server.persistence.is_some() {
        flags |= IP_VS_SVC_F_PERSISTENT;
    }
    if server.one_packet {
        flags |= IP_VS_SVC_F_ONEPACKET;
    }
    let mut flags_and_mask = [0xff; 8];
    flags_and_mask[..4].copy_from_slice(&flags.to_ne_bytes());
    let timeout = server.persistence.map_or(0, |persistence| persistence.seconds());
    writer
        .string(IPVS_SVC_ATTR_SCHED_NAME, server.scheduler.as_str())
        .bytes(IPVS_SVC_ATTR_FLAGS, &flags_and_mask)
        .ne_u32(IPVS_SVC_ATTR_TIMEOUT, timeout)
        .bytes(IPVS_SVC_ATTR_NETMASK, &netmask(server).unwrap_or([0xff; 4]));
    if let Some(engine) = &server.persistence_engine {
        writer.string(IPVS_SVC_ATTR_PE_NAME, engine.as_str());
    }
}

/// The persistence mask as the kernel takes it: a mask for IPv4, a number of bits in host order for IPv6. `None` if it is
/// one of the other family.
fn netmask(server: &VirtualServer) -> Option<[u8; 4]> {
    let granularity = server
        .persistence
        .map(|persistence| persistence.granularity())
        .unwrap_or_default();
    match server.key.family() {
        Family::Ipv4 => granularity.mask().map(|mask| mask.octets()),
        Family::Ipv6 => granularity
            .prefix_length()
            .map(|length| u32::from(length).to_ne_bytes()),
    }
}

/// Writes a message as the kernel's service listing has it.
#[cfg(feature = "netlink-packet")]
pub(crate) fn write_virtual_server_status(writer: &mut AttributeWriter<'_>, status: &VirtualServerStatus) {
    writer.nested(IPVS_CMD_ATTR_SERVICE, |writer| {
        write_virtual_server(writer, &status.server);
        write_stats_64(writer, IPVS_SVC_ATTR_STATS64, &status.stats);
    });
}

/// Reads a message of a service listing.
pub(crate) fn read_virtual_server(body: AttributeReader<'_>) -> Result<VirtualServerStatus, Error> {
    for attribute in body {
        let attribute = attribute?;
        if attribute.kind() == IPVS_CMD_ATTR_SERVICE {
            return read_service(attribute.nested());
        }
    }
    Err(malformed("answer about a virtual server: nothing in it"))
}

fn read_service(attributes: AttributeReader<'_>) -> Result<VirtualServerStatus, Error> {
    let (mut family, mut protocol, mut address, mut port, mut mark) = (None, None, None, None, None);
    let (mut scheduler, mut flags, mut timeout, mut netmask, mut engine) = (None, 0, 0, None, None);
    let mut stats = Counters::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            IPVS_SVC_ATTR_AF => family = Some(read_family(&attribute)?),
            IPVS_SVC_ATTR_PROTOCOL => protocol = Some(Protocol::from_number(attribute.ne_u16()?)),
            IPVS_SVC_ATTR_ADDR => address = Some(attribute.bytes()),
            IPVS_SVC_ATTR_PORT => port = Some(attribute.be_u16()?),
            IPVS_SVC_ATTR_FWMARK => mark = NonZeroU32::new(attribute.ne_u32()?),
            IPVS_SVC_ATTR_SCHED_NAME => {
                scheduler = Some(
                    Scheduler::new(attribute.string()?)
                        .map_err(|_| malformed("virtual server: a scheduler name that cannot be"))?,
                );
            }
            IPVS_SVC_ATTR_FLAGS => {
                let [f0, f1, f2, f3, ..] = attribute.array::<8>()?;
                flags = u32::from_ne_bytes([f0, f1, f2, f3]);
            }
            IPVS_SVC_ATTR_TIMEOUT => timeout = attribute.ne_u32()?,
            IPVS_SVC_ATTR_NETMASK => netmask = Some(attribute.array::<4>()?),
            IPVS_SVC_ATTR_PE_NAME => {
                engine =
                    Some(PersistenceEngine::new(attribute.string()?).map_err(|_| {
                        malformed("virtual server: a persistence engine name that cannot be")
                    })?);
            }
            IPVS_SVC_ATTR_STATS => stats.read_32(&attribute)?,
            IPVS_SVC_ATTR_STATS64 => stats.read_64(&attribute)?,
            _ => {}
        }
    }
    let family = family.ok_or(malformed("virtual server: no address family"))?;
    let key = match (mark, address, protocol, port) {
        (Some(mark), ..) => VirtualServerKey::Mark { family, mark },
        (None, Some(address), Some(protocol), Some(port)) => VirtualServerKey::Address {
            address: read_address(family, address)?,
            protocol,
            port,
        },
        _ => {
            return Err(malformed(
                "virtual server: neither mark nor address, protocol and port",
            ));
        }
    };
    let scheduler = scheduler.ok_or(malformed("virtual server: no scheduler"))?;
    let mut server = VirtualServer::new(key, scheduler);
    server.scheduler_flags = SchedulerFlags::from_bits_truncate(flags);
    server.one_packet = flags & IP_VS_SVC_F_ONEPACKET != 0;
    if flags & IP_VS_SVC_F_PERSISTENT != 0 {
        server.persistence = Some(Persistence::from_kernel(
            timeout,
            read_granularity(family, netmask)?,
        ));
    }
    server.persistence_engine = engine;
    Ok(VirtualServerStatus {
        server,
        stats: stats.finish(),
    })
}

fn read_granularity(family: Family, netmask: Option<[u8; 4]>) -> Result<Granularity, Error> {
    match (family, netmask) {
        (_, None) => Ok(Granularity::ADDRESS),
        (Family::Ipv4, Some(mask)) => Ok(Granularity::from_mask(Ipv4Addr::from(mask))),
        (Family::Ipv6, Some(length)) => u8::try_from(u32::from_ne_bytes(length))
            .ok()
            .and_then(|length| Granularity::from_prefix_length(length).ok())
            .ok_or(malformed(
                "virtual server: a persistence prefix length that cannot be",
            )),
    }
}

// Real servers.

fn write_real_server_key(writer: &mut AttributeWriter<'_>, key: &RealServerKey) {
    // Without its family the kernel would read an IPv6 address as an IPv4 one under an IPv4 virtual server.
    writer
        .ne_u16(IPVS_DEST_ATTR_ADDR_FAMILY, family_number(key.family()))
        .address(IPVS_DEST_ATTR_ADDR, key.address)
        .be_u16(IPVS_DEST_ATTR_PORT, key.port);
}

fn write_real_server(writer: &mut AttributeWriter<'_>, server: &RealServer) {
    write_real_server_key(writer, &server.key);
    writer
        .ne_u32(IPVS_DEST_ATTR_FWD_METHOD, server.forwarding.number())
        .ne_u32(IPVS_DEST_ATTR_WEIGHT, server.weight.get())
        .ne_u32(IPVS_DEST_ATTR_U_THRESH, server.thresholds.upper())
        .ne_u32(IPVS_DEST_ATTR_L_THRESH, server.thresholds.lower());
    // Absent is the default for the kernel too, also in an update, and saves a fifth of the message.
    if server.tunnel != Tunnel::IPIP {
        writer
            .u8(IPVS_DEST_ATTR_TUN_TYPE, server.tunnel.kind.number())
            .be_u16(IPVS_DEST_ATTR_TUN_PORT, server.tunnel.port)
            .ne_u16(IPVS_DEST_ATTR_TUN_FLAGS, server.tunnel.flags.bits());
    }
}

/// Writes a message as the kernel's destination listing has it.
#[cfg(feature = "netlink-packet")]
pub(crate) fn write_real_server_status(writer: &mut AttributeWriter<'_>, status: &RealServerStatus) {
    writer.nested(IPVS_CMD_ATTR_DEST, |writer| {
        write_real_server(writer, &status.server);
        writer
            .ne_u32(IPVS_DEST_ATTR_ACTIVE_CONNS, status.connections.active)
            .ne_u32(IPVS_DEST_ATTR_INACT_CONNS, status.connections.inactive)
            .ne_u32(IPVS_DEST_ATTR_PERSIST_CONNS, status.connections.persistent);
        write_stats_64(writer, IPVS_DEST_ATTR_STATS64, &status.stats);
    });
}

/// Reads a message of a destination listing. `service_family` is for kernels before 3.18, which do not tell the real server's.
pub(crate) fn read_real_server(
    body: AttributeReader<'_>,
    service_family: Option<Family>,
) -> Result<RealServerStatus, Error> {
    for attribute in body {
        let attribute = attribute?;
        if attribute.kind() == IPVS_CMD_ATTR_DEST {
            return read_destination(attribute.nested(), service_family);
        }
    }
    Err(malformed("answer about a real server: nothing in it"))
}

/// A number of connections: the kernel's `atomic_t`, which can be below zero for a moment.
fn read_count(attribute: &Attribute<'_>) -> Result<u32, Error> {
    let count = attribute.ne_u32()?;
    Ok(if count > i32::MAX as u32 { 0 } else { count })
}

fn read_destination(
    attributes: AttributeReader<'_>,
    service_family: Option<Family>,
) -> Result<RealServerStatus, Error> {
    let mut family = service_family;
    let (mut address, mut port) = (None, None);
    let (mut forwarding, mut weight) = (ForwardingMethod::Masquerade, Weight::ONE);
    let (mut upper, mut lower) = (0, 0);
    let mut tunnel = Tunnel::IPIP;
    let mut connections = ConnectionCounts::default();
    let mut stats = Counters::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            IPVS_DEST_ATTR_ADDR => address = Some(attribute.bytes()),
            IPVS_DEST_ATTR_ADDR_FAMILY => family = Some(read_family(&attribute)?),
            IPVS_DEST_ATTR_PORT => port = Some(attribute.be_u16()?),
            IPVS_DEST_ATTR_FWD_METHOD => forwarding = ForwardingMethod::from_number(attribute.ne_u32()?),
            IPVS_DEST_ATTR_WEIGHT => {
                weight = Weight::new(attribute.ne_u32()?)
                    .map_err(|_| malformed("real server: a negative weight"))?;
            }
            IPVS_DEST_ATTR_U_THRESH => upper = attribute.ne_u32()?,
            IPVS_DEST_ATTR_L_THRESH => lower = attribute.ne_u32()?,
            IPVS_DEST_ATTR_ACTIVE_CONNS => connections.active = read_count(&attribute)?,
            IPVS_DEST_ATTR_INACT_CONNS => connections.inactive = read_count(&attribute)?,
            IPVS_DEST_ATTR_PERSIST_CONNS => connections.persistent = read_count(&attribute)?,
            IPVS_DEST_ATTR_TUN_TYPE => tunnel.kind = TunnelKind::from_number(attribute.u8()?),
            IPVS_DEST_ATTR_TUN_PORT => tunnel.port = attribute.be_u16()?,
            IPVS_DEST_ATTR_TUN_FLAGS => tunnel.flags = TunnelFlags::from_bits_retain(attribute.ne_u16()?),
            IPVS_DEST_ATTR_STATS => stats.read_32(&attribute)?,
            IPVS_DEST_ATTR_STATS64 => stats.read_64(&attribute)?,
            _ => {}
        }
    }
    let (Some(family), Some(address), Some(port)) = (family, address, port) else {
        return Err(malformed("real server: no address family, no address or no port"));
    };
    let mut server = RealServer::new(RealServerKey::new(read_address(family, address)?, port));
    server.forwarding = forwarding;
    server.weight = weight;
    server.thresholds =
        Thresholds::new(upper, lower).map_err(|_| malformed("real server: thresholds that cannot be"))?;
    server.tunnel = tunnel;
    Ok(RealServerStatus {
        server,
        connections,
        stats: stats.finish(),
    })
}

// Counters, the same for both.

/// 64-bit counters win over 32-bit ones, whichever come first.
#[derive(Default)]
struct Counters {
    narrow: Stats,
    wide: Option<Stats>,
}

impl Counters {
    fn read_32(&mut self, attribute: &Attribute<'_>) -> Result<(), Error> {
        self.narrow = read_stats(attribute, |counter| match counter.kind() {
            IPVS_STATS_ATTR_INBYTES | IPVS_STATS_ATTR_OUTBYTES => counter.ne_u64(),
            _ => counter.ne_u32().map(u64::from),
        })?;
        Ok(())
    }

    fn read_64(&mut self, attribute: &Attribute<'_>) -> Result<(), Error> {
        self.wide = Some(read_stats(attribute, |counter| counter.ne_u64())?);
        Ok(())
    }

    fn finish(self) -> Stats {
        self.wide.unwrap_or(self.narrow)
    }
}

#[cfg(feature = "netlink-packet")]
fn write_stats_64(writer: &mut AttributeWriter<'_>, kind: u16, stats: &Stats) {
    writer.nested(kind, |writer| {
        writer
            .ne_u64(IPVS_STATS_ATTR_CONNS, stats.connections)
            .ne_u64(IPVS_STATS_ATTR_INPKTS, stats.incoming_packets)
            .ne_u64(IPVS_STATS_ATTR_OUTPKTS, stats.outgoing_packets)
            .ne_u64(IPVS_STATS_ATTR_INBYTES, stats.incoming_bytes)
            .ne_u64(IPVS_STATS_ATTR_OUTBYTES, stats.outgoing_bytes)
            .ne_u64(IPVS_STATS_ATTR_CPS, stats.rates.connections)
            .ne_u64(IPVS_STATS_ATTR_INPPS, stats.rates.incoming_packets)
            .ne_u64(IPVS_STATS_ATTR_OUTPPS, stats.rates.outgoing_packets)
            .ne_u64(IPVS_STATS_ATTR_INBPS, stats.rates.incoming_bytes)
            .ne_u64(IPVS_STATS_ATTR_OUTBPS, stats.rates.outgoing_bytes);
    });
}

fn read_stats(
    attribute: &Attribute<'_>,
    counter: impl Fn(&Attribute<'_>) -> Result<u64, Error>,
) -> Result<Stats, Error> {
    let mut stats = Stats::default();
    let mut rates = Rates::default();
    for attribute in attribute.nested() {
        let attribute = attribute?;
        let place = match attribute.kind() {
            IPVS_STATS_ATTR_CONNS => &mut stats.connections,
            IPVS_STATS_ATTR_INPKTS => &mut stats.incoming_packets,
            IPVS_STATS_ATTR_OUTPKTS => &mut stats.outgoing_packets,
            IPVS_STATS_ATTR_INBYTES => &mut stats.incoming_bytes,
            IPVS_STATS_ATTR_OUTBYTES => &mut stats.outgoing_bytes,
            IPVS_STATS_ATTR_CPS => &mut rates.connections,
            IPVS_STATS_ATTR_INPPS => &mut rates.incoming_packets,
            IPVS_STATS_ATTR_OUTPPS => &mut rates.outgoing_packets,
            IPVS_STATS_ATTR_INBPS => &mut rates.incoming_bytes,
            IPVS_STATS_ATTR_OUTBPS => &mut rates.outgoing_bytes,
            // Also IPVS_STATS_ATTR_PAD, which aligns the 64-bit values and says nothing.
            _ => continue,
        };
        *place = counter(&attribute)?;
    }
    stats.rates = rates;
    Ok(stats)
}

// Time-outs.

pub(crate) fn write_timeouts(writer: &mut AttributeWriter<'_>, timeouts: &Timeouts) {
    // `check` made sure of a change that they fit; of an answer the kernel did.
    let [tcp, tcp_fin, udp] = [timeouts.tcp, timeouts.tcp_fin, timeouts.udp]
        .map(|timeout| u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
    writer
        .ne_u32(IPVS_CMD_ATTR_TIMEOUT_TCP, tcp)
        .ne_u32(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, tcp_fin)
        .ne_u32(IPVS_CMD_ATTR_TIMEOUT_UDP, udp);
}

pub(crate) fn read_timeouts(body: AttributeReader<'_>) -> Result<Timeouts, Error> {
    let (mut tcp, mut tcp_fin, mut udp) = (None, None, None);
    for attribute in body {
        let attribute = attribute?;
        let place = match attribute.kind() {
            IPVS_CMD_ATTR_TIMEOUT_TCP => &mut tcp,
            IPVS_CMD_ATTR_TIMEOUT_TCP_FIN => &mut tcp_fin,
            IPVS_CMD_ATTR_TIMEOUT_UDP => &mut udp,
            _ => continue,
        };
        *place = Some(Duration::from_secs(u64::from(attribute.ne_u32()?)));
    }
    // A kernel built without TCP or UDP in IPVS leaves its time-outs out.
    Ok(Timeouts::new(
        tcp.unwrap_or_default(),
        tcp_fin.unwrap_or_default(),
        udp.unwrap_or_default(),
    ))
}

// Daemons.

pub(crate) fn write_daemon_body(writer: &mut AttributeWriter<'_>, daemon: &Daemon) {
    writer.nested(IPVS_CMD_ATTR_DAEMON, |writer| write_daemon(writer, daemon));
}

fn write_daemon(writer: &mut AttributeWriter<'_>, daemon: &Daemon) {
    writer
        .ne_u32(IPVS_DAEMON_ATTR_STATE, daemon.role.number())
        .string(IPVS_DAEMON_ATTR_MCAST_IFN, daemon.interface.as_str())
        .ne_u32(IPVS_DAEMON_ATTR_SYNC_ID, daemon.sync_id);
    if let Some(max_length) = daemon.max_length {
        writer.ne_u16(IPVS_DAEMON_ATTR_SYNC_MAXLEN, max_length);
    }
    match daemon.group {
        Some(group @ IpAddr::V4(_)) => {
            writer.address(IPVS_DAEMON_ATTR_MCAST_GROUP, group);
        }
        Some(group @ IpAddr::V6(_)) => {
            writer.address(IPVS_DAEMON_ATTR_MCAST_GROUP6, group);
        }
        None => {}
    }
    if let Some(port) = daemon.port {
        // The only port of this family in host byte order.
        writer.ne_u16(IPVS_DAEMON_ATTR_MCAST_PORT, port);
    }
    if let Some(ttl) = daemon.ttl {
        writer.u8(IPVS_DAEMON_ATTR_MCAST_TTL, ttl);
    }
}

/// Reads a message of a daemon listing.
pub(crate) fn read_daemon(body: AttributeReader<'_>) -> Result<Daemon, Error> {
    for attribute in body {
        let attribute = attribute?;
        if attribute.kind() == IPVS_CMD_ATTR_DAEMON {
            return read_daemon_settings(attribute.nested());
        }
    }
    Err(malformed("answer about a daemon: nothing in it"))
}

fn read_daemon_settings(attributes: AttributeReader<'_>) -> Result<Daemon, Error> {
    let (mut role, mut interface, mut sync_id) = (None, None, 0);
    let (mut max_length, mut group, mut port, mut ttl) = (None, None, None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            IPVS_DAEMON_ATTR_STATE => {
                role = Some(
                    DaemonRole::from_number(attribute.ne_u32()?)
                        .ok_or(malformed("daemon: neither master nor backup"))?,
                );
            }
            IPVS_DAEMON_ATTR_MCAST_IFN => {
                interface = Some(
                    InterfaceName::new(attribute.string()?)
                        .map_err(|_| malformed("daemon: an interface name that cannot be"))?,
                );
            }
            IPVS_DAEMON_ATTR_SYNC_ID => sync_id = attribute.ne_u32()?,
            IPVS_DAEMON_ATTR_SYNC_MAXLEN => max_length = Some(attribute.ne_u16()?),
            IPVS_DAEMON_ATTR_MCAST_GROUP => group = Some(IpAddr::from(attribute.array::<4>()?)),
            IPVS_DAEMON_ATTR_MCAST_GROUP6 => group = Some(IpAddr::from(attribute.array::<16>()?)),
            IPVS_DAEMON_ATTR_MCAST_PORT => port = Some(attribute.ne_u16()?),
            IPVS_DAEMON_ATTR_MCAST_TTL => ttl = Some(attribute.u8()?),
            _ => {}
        }
    }
    let (Some(role), Some(interface)) = (role, interface) else {
        return Err(malformed("daemon: no role or no interface"));
    };
    let mut daemon = Daemon::new(role, interface);
    daemon.sync_id = sync_id;
    daemon.max_length = max_length;
    daemon.group = group;
    daemon.port = port;
    daemon.ttl = ttl;
    Ok(daemon)
}

// Information.

#[cfg(feature = "netlink-packet")]
pub(crate) fn write_info(writer: &mut AttributeWriter<'_>, info: &Info) {
    let Version { major, minor, patch } = info.version;
    writer
        .ne_u32(
            IPVS_INFO_ATTR_VERSION,
            u32::from_be_bytes([0, major, minor, patch]),
        )
        .ne_u32(IPVS_INFO_ATTR_CONN_TAB_SIZE, info.connection_table_size);
}

pub(crate) fn read_info(body: AttributeReader<'_>) -> Result<Info, Error> {
    let (mut version, mut size) = (None, None);
    for attribute in body {
        let attribute = attribute?;
        match attribute.kind() {
            IPVS_INFO_ATTR_VERSION => version = Some(Version::from_code(attribute.ne_u32()?)),
            IPVS_INFO_ATTR_CONN_TAB_SIZE => size = Some(attribute.ne_u32()?),
            _ => {}
        }
    }
    match (version, size) {
        (Some(version), Some(size)) => Ok(Info::new(version, size)),
        _ => Err(malformed("information: no version or no table size")),
    }
}

// Shared by all.

/// The attributes of a message that should be an answer of this command.
pub(crate) fn body(payload: &[u8], expected: u8) -> Result<AttributeReader<'_>, Error> {
    match *payload {
        [command, ..] if command == expected => AttributeReader::behind(payload, generic::HEADER_LENGTH),
        _ => Err(malformed("answer: not of the command expected")),
    }
}

fn read_family(attribute: &Attribute<'_>) -> Result<Family, Error> {
    match attribute.ne_u16()? {
        AF_INET => Ok(Family::Ipv4),
        AF_INET6 => Ok(Family::Ipv6),
        _ => Err(malformed("address family: neither IPv4 nor IPv6")),
    }
}

fn family_number(family: Family) -> u16 {
    match family {
        Family::Ipv4 => AF_INET,
        Family::Ipv6 => AF_INET6,
    }
}

/// The kernel sends 16 bytes for both families.
fn read_address(family: Family, bytes: &[u8]) -> Result<IpAddr, Error> {
    let too_short = malformed("address: too short for its family");
    match family {
        Family::Ipv4 => bytes
            .first_chunk::<4>()
            .map(|octets| Ipv4Addr::from(*octets).into())
            .ok_or(too_short),
        Family::Ipv6 => bytes
            .first_chunk::<16>()
            .map(|octets| Ipv6Addr::from(*octets).into())
            .ok_or(too_short),
    }
}

fn malformed(what: &'static str) -> Error {
    Error::Malformed { what }
}
