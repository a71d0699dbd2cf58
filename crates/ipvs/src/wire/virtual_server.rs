//! Virtual servers: the attribute `IPVS_CMD_ATTR_SERVICE`.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;

use kernlink_base::Family;
use kernlink_netlink::{AttributeReader, AttributeWriter, Error};

use super::stats::Counters;
#[cfg(feature = "netlink-packet")]
use super::stats::write_stats_64;
use super::{family_number, malformed, read_address, read_family};
use crate::scheduler::{PersistenceEngine, Scheduler, SchedulerFlags};
use crate::stats::VirtualServerStatus;
use crate::uapi::*;
use crate::virtual_server::{Granularity, Persistence, Protocol, VirtualServer, VirtualServerKey};

pub(super) fn write_virtual_server_key(writer: &mut AttributeWriter<'_>, key: &VirtualServerKey) {
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

pub(super) fn write_virtual_server(writer: &mut AttributeWriter<'_>, server: &VirtualServer) {
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

/// The value of `IPVS_SVC_ATTR_NETMASK`: a mask for IPv4, a number of bits in host byte order for IPv6. `None` if the granularity
/// is for the other family.
pub(super) fn netmask(server: &VirtualServer) -> Option<[u8; 4]> {
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

/// Writes the content of a message of a service listing.
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
    Err(malformed("virtual server: no attribute IPVS_CMD_ATTR_SERVICE"))
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
                        .map_err(|_| malformed("virtual server: invalid scheduler name"))?,
                );
            }
            IPVS_SVC_ATTR_FLAGS => {
                let [f0, f1, f2, f3, ..] = attribute.array::<8>()?;
                flags = u32::from_ne_bytes([f0, f1, f2, f3]);
            }
            IPVS_SVC_ATTR_TIMEOUT => timeout = attribute.ne_u32()?,
            IPVS_SVC_ATTR_NETMASK => netmask = Some(attribute.array::<4>()?),
            IPVS_SVC_ATTR_PE_NAME => {
                engine = Some(
                    PersistenceEngine::new(attribute.string()?)
                        .map_err(|_| malformed("virtual server: invalid persistence engine name"))?,
                );
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
            .ok_or(malformed("virtual server: invalid persistence prefix length")),
    }
}
