//! Operations and listed objects as attributes of the family `IPVS`. Encoding and decoding of an object are next to each other.
//!
//! Source for attribute types: [`ip_vs_ctl.c` at v6.1][source], its `ip_vs_*_policy` tables and `ip_vs_genl_fill_*`.
//!
//! [source]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use kernlink_base::Family;
use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error, generic};

use self::real_server::{write_real_server, write_real_server_key};
use self::virtual_server::{netmask, write_virtual_server, write_virtual_server_key};
use crate::daemon::Daemon;
use crate::error::InvalidOperation;
use crate::info::{Info, Version};
use crate::operation::Operation;
use crate::timeouts::Timeouts;
use crate::uapi::*;
use crate::virtual_server::VirtualServerKey;

mod daemon;
mod real_server;
mod stats;
mod virtual_server;

pub(crate) use self::daemon::{read_daemon, write_daemon_body};
pub(crate) use self::real_server::read_real_server;
#[cfg(feature = "netlink-packet")]
pub(crate) use self::real_server::write_real_server_status;
pub(crate) use self::virtual_server::read_virtual_server;
#[cfg(feature = "netlink-packet")]
pub(crate) use self::virtual_server::write_virtual_server_status;

/// The command of an operation.
pub(crate) fn command(operation: &Operation) -> u8 {
    match operation {
        // The first of the two requests of an `Ensure` operation.
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

/// Refuses operations that the kernel would execute differently without an error.
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

/// Writes everything after the netlink header. The operation must have passed [`check`].
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

/// Writes the generic header, which is the whole request for dumps and for version and timeouts.
pub(crate) fn write_header(writer: &mut AttributeWriter<'_>, command: u8) {
    writer.header(&generic::header(command, IPVS_GENL_VERSION));
}

/// Writes the attribute that identifies a virtual server.
pub(crate) fn write_service_key(writer: &mut AttributeWriter<'_>, key: &VirtualServerKey) {
    writer.nested(IPVS_CMD_ATTR_SERVICE, |writer| {
        write_virtual_server_key(writer, key)
    });
}

pub(crate) fn write_timeouts(writer: &mut AttributeWriter<'_>, timeouts: &Timeouts) {
    // Timeouts of an operation have passed `check`; timeouts of an answer come from the kernel.
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
    // A kernel built without TCP or UDP in IPVS does not send its timeouts.
    Ok(Timeouts::new(
        tcp.unwrap_or_default(),
        tcp_fin.unwrap_or_default(),
        udp.unwrap_or_default(),
    ))
}

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

/// The attributes of a message, which must be an answer with this command.
pub(crate) fn body(payload: &[u8], expected: u8) -> Result<AttributeReader<'_>, Error> {
    match *payload {
        [command, ..] if command == expected => {
            AttributeReader::after_header(payload, generic::HEADER_LENGTH)
        }
        _ => Err(malformed("answer: unexpected command")),
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

/// The kernel sends 16 bytes for both families. An IPv4 address is in the first 4.
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
