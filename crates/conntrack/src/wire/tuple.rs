//! Tuples.

use std::net::IpAddr;

use kernlink_base::Protocol;
use kernlink_netlink::{Attribute, AttributeWriter, Error};

use crate::tuple::{ProtocolPart, Tuple};
use crate::uapi::*;

pub(crate) fn write_tuple(w: &mut AttributeWriter<'_>, kind: u16, tuple: &Tuple, zone: Option<u16>) {
    let (source, destination) = match tuple.source {
        IpAddr::V4(_) => (CTA_IP_V4_SRC, CTA_IP_V4_DST),
        IpAddr::V6(_) => (CTA_IP_V6_SRC, CTA_IP_V6_DST),
    };
    w.nested(kind, |w| {
        w.nested(CTA_TUPLE_IP, |w| {
            w.address(source, tuple.source)
                .address(destination, tuple.destination);
        });
        w.nested(CTA_TUPLE_PROTO, |w| {
            w.u8(CTA_PROTO_NUM, tuple.protocol.0);
            match tuple.part {
                ProtocolPart::None => {}
                ProtocolPart::Ports { source, destination } => {
                    w.be_u16(CTA_PROTO_SRC_PORT, source)
                        .be_u16(CTA_PROTO_DST_PORT, destination);
                }
                ProtocolPart::Icmp {
                    kind,
                    code,
                    identifier,
                } if tuple.protocol == Protocol::ICMPV6 => {
                    w.be_u16(CTA_PROTO_ICMPV6_ID, identifier)
                        .u8(CTA_PROTO_ICMPV6_TYPE, kind)
                        .u8(CTA_PROTO_ICMPV6_CODE, code);
                }
                ProtocolPart::Icmp {
                    kind,
                    code,
                    identifier,
                } => {
                    w.be_u16(CTA_PROTO_ICMP_ID, identifier)
                        .u8(CTA_PROTO_ICMP_TYPE, kind)
                        .u8(CTA_PROTO_ICMP_CODE, code);
                }
            }
        });
        if let Some(zone) = zone {
            w.be_u16(CTA_TUPLE_ZONE, zone);
        }
    });
}

pub(super) fn read_tuple(attribute: &Attribute<'_>) -> Result<(Tuple, Option<u16>), Error> {
    let mut source = None;
    let mut destination = None;
    let mut protocol = None;
    let mut part = ProtocolPart::None;
    let mut zone = None;
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_TUPLE_IP => {
                for address in attribute.nested() {
                    let address = address?;
                    match address.kind() {
                        CTA_IP_V4_SRC => source = Some(IpAddr::from(address.array::<4>()?)),
                        CTA_IP_V4_DST => destination = Some(IpAddr::from(address.array::<4>()?)),
                        CTA_IP_V6_SRC => source = Some(IpAddr::from(address.array::<16>()?)),
                        CTA_IP_V6_DST => destination = Some(IpAddr::from(address.array::<16>()?)),
                        _ => {}
                    }
                }
            }
            CTA_TUPLE_PROTO => (protocol, part) = read_protocol(&attribute)?,
            CTA_TUPLE_ZONE => zone = Some(attribute.be_u16()?),
            _ => {}
        }
    }
    let (Some(source), Some(destination), Some(protocol)) = (source, destination, protocol) else {
        return Err(Error::Malformed {
            what: "tuple: missing source, destination or protocol",
        });
    };
    if source.is_ipv4() != destination.is_ipv4() {
        return Err(Error::Malformed {
            what: "tuple: addresses of different families",
        });
    }
    let tuple = Tuple {
        source,
        destination,
        protocol,
        part,
    };
    Ok((tuple, zone))
}

fn read_protocol(attribute: &Attribute<'_>) -> Result<(Option<Protocol>, ProtocolPart), Error> {
    let mut protocol = None;
    let mut ports = [None; 2];
    let mut icmp = (None, None, None);
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_PROTO_NUM => protocol = Some(Protocol(attribute.u8()?)),
            CTA_PROTO_SRC_PORT => ports[0] = Some(attribute.be_u16()?),
            CTA_PROTO_DST_PORT => ports[1] = Some(attribute.be_u16()?),
            CTA_PROTO_ICMP_ID | CTA_PROTO_ICMPV6_ID => icmp.2 = Some(attribute.be_u16()?),
            CTA_PROTO_ICMP_TYPE | CTA_PROTO_ICMPV6_TYPE => icmp.0 = Some(attribute.u8()?),
            CTA_PROTO_ICMP_CODE | CTA_PROTO_ICMPV6_CODE => icmp.1 = Some(attribute.u8()?),
            _ => {}
        }
    }
    let part = match (ports, icmp) {
        ([Some(source), Some(destination)], _) => ProtocolPart::Ports { source, destination },
        (_, (Some(kind), Some(code), Some(identifier))) => ProtocolPart::Icmp {
            kind,
            code,
            identifier,
        },
        _ => ProtocolPart::None,
    };
    Ok((protocol, part))
}
