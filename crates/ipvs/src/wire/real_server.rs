//! Real servers: the attribute `IPVS_CMD_ATTR_DEST`.

use kernlink_base::Family;
use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error};

use super::stats::Counters;
#[cfg(feature = "netlink-packet")]
use super::stats::write_stats_64;
use super::{family_number, malformed, read_address, read_family};
use crate::forwarding::ForwardingMethod;
use crate::real_server::{RealServer, RealServerKey, Thresholds, Tunnel, TunnelFlags, TunnelKind, Weight};
use crate::stats::{ConnectionCounts, RealServerStatus};
use crate::uapi::*;

pub(super) fn write_real_server_key(writer: &mut AttributeWriter<'_>, key: &RealServerKey) {
    // Without the family the kernel uses the family of the virtual server.
    writer
        .ne_u16(IPVS_DEST_ATTR_ADDR_FAMILY, family_number(key.family()))
        .address(IPVS_DEST_ATTR_ADDR, key.address)
        .be_u16(IPVS_DEST_ATTR_PORT, key.port);
}

pub(super) fn write_real_server(writer: &mut AttributeWriter<'_>, server: &RealServer) {
    write_real_server_key(writer, &server.key);
    writer
        .ne_u32(IPVS_DEST_ATTR_FWD_METHOD, server.forwarding.number())
        .ne_u32(IPVS_DEST_ATTR_WEIGHT, server.weight.get())
        .ne_u32(IPVS_DEST_ATTR_U_THRESH, server.thresholds.upper())
        .ne_u32(IPVS_DEST_ATTR_L_THRESH, server.thresholds.lower());
    // The default of the kernel, also in an update. Omitting it saves a fifth of the message.
    if server.tunnel != Tunnel::IPIP {
        writer
            .u8(IPVS_DEST_ATTR_TUN_TYPE, server.tunnel.kind.number())
            .be_u16(IPVS_DEST_ATTR_TUN_PORT, server.tunnel.port)
            .ne_u16(IPVS_DEST_ATTR_TUN_FLAGS, server.tunnel.flags.bits());
    }
}

/// Writes the content of a message of a destination listing.
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

/// Reads a message of a destination listing. `service_family` is for kernels before 3.18, which do not send the real server's
/// family.
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
    Err(malformed("real server: no attribute IPVS_CMD_ATTR_DEST"))
}

/// A number of connections. The kernel's `atomic_t` can be negative temporarily; this is 0.
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
                    .map_err(|_| malformed("real server: negative weight"))?;
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
        Thresholds::new(upper, lower).map_err(|_| malformed("real server: invalid thresholds"))?;
    server.tunnel = tunnel;
    Ok(RealServerStatus {
        server,
        connections,
        stats: stats.finish(),
    })
}
