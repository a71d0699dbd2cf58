//! Connection synchronization daemons: the attribute `IPVS_CMD_ATTR_DAEMON`.

use std::net::IpAddr;

use kernlink_netlink::{AttributeReader, AttributeWriter, Error};

use super::malformed;
use crate::daemon::{Daemon, DaemonRole, InterfaceName};
use crate::uapi::*;

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
            return read_daemon_fields(attribute.nested());
        }
    }
    Err(malformed("daemon: no attribute IPVS_CMD_ATTR_DAEMON"))
}

fn read_daemon_fields(attributes: AttributeReader<'_>) -> Result<Daemon, Error> {
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
                        .map_err(|_| malformed("daemon: invalid interface name"))?,
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
