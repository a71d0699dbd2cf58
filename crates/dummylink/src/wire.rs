//! Encoding and decoding of route netlink messages.
//!
//! Requests are encoded with netlink-packet-route. Answers are decoded here, attribute by attribute:
//! that crate's decoder fails for a whole message if one attribute, even an unused one,
//! has an unknown form, and newer kernels add forms.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use kernlink_netlink::{Attribute, AttributeReader, Error, Message};
use netlink_packet_core::{DefaultNla, Emitable};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{self, AddressAttribute, AddressMessage, CacheInfo};
use netlink_packet_route::link::{self, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteMessage};

use crate::{
    AddressFlags, AddressKey, AddressProtocol, DummyLink, Label, Lifetime, Link, LinkAddress, LinkFlags,
    LinkName, LinkState, LocalRoute, Scope, uapi,
};

// Lengths of the fixed headers in bytes: `ifinfomsg`, `ifaddrmsg`, `rtmsg`.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;

fn emit(message: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

/// Request for the link of a name (`RTM_GETLINK`).
pub(crate) fn link_query(name: &LinkName) -> Vec<u8> {
    let mut message = LinkMessage::default();
    message.attributes.push(name_attribute(name));
    emit(&message)
}

/// Request for all links (`RTM_GETLINK` as a dump).
pub(crate) fn links_query() -> Vec<u8> {
    emit(&LinkMessage::default())
}

fn name_attribute(name: &LinkName) -> LinkAttribute {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    LinkAttribute::Other(DefaultNla::new(uapi::IFLA_IFNAME, bytes))
}

/// Adds a dummy link (`RTM_NEWLINK`). The kernel sets `IFF_NOARP` on it, and ignores an alias in
/// this message.
pub(crate) fn new_link(link: &DummyLink) -> Vec<u8> {
    let mut message = configured(link);
    message.attributes.push(name_attribute(&link.name));
    let kind = DefaultNla::new(uapi::IFLA_INFO_KIND, Link::DUMMY.as_bytes().to_vec());
    message
        .attributes
        .push(LinkAttribute::LinkInfo(vec![LinkInfo::Other(kind)]));
    emit(&message)
}

/// Changes a link (`RTM_NEWLINK`). Without the name, which would rename a link that was found by an alternative
/// name.
pub(crate) fn change_link(existing: &Link, link: &DummyLink) -> Vec<u8> {
    let mut message = configured(link);
    message.header.index = existing.index;
    if !existing.flags.contains(LinkFlags::NO_ARP) {
        message.header.flags |= link::LinkFlags::Noarp;
        message.header.change_mask |= link::LinkFlags::Noarp;
    }
    if let Some(alias) = &link.alias {
        // Without a terminating NUL, which the kernel would make part of the text.
        let bytes = alias.as_bytes().to_vec();
        message
            .attributes
            .push(LinkAttribute::Other(DefaultNla::new(uapi::IFLA_IFALIAS, bytes)));
    }
    emit(&message)
}

fn configured(link: &DummyLink) -> LinkMessage {
    let mut message = LinkMessage::default();
    if let Some(state) = link.state {
        message.header.change_mask = link::LinkFlags::Up;
        if state == LinkState::Up {
            message.header.flags = link::LinkFlags::Up;
        }
    }
    if let Some(mtu) = link.mtu {
        message.attributes.push(LinkAttribute::Mtu(mtu));
    }
    message
}

/// Deletes a link (`RTM_DELLINK`).
pub(crate) fn delete_link(index: u32) -> Vec<u8> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    emit(&message)
}

/// Decodes the link of `RTM_NEWLINK` and `RTM_DELLINK`. `None` for messages of `AF_BRIDGE` about bridge ports.
pub(crate) fn decode_link(message: &Message<'_>) -> Result<Option<Link>, Error> {
    let header: [u8; LINK_HEADER] = fixed(message.payload)?;
    let [family, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = header;
    if family != uapi::AF_UNSPEC {
        return Ok(None);
    }
    let index = u32::from_ne_bytes([i0, i1, i2, i3]);
    let flags = LinkFlags::from_bits_retain(u32::from_ne_bytes([f0, f1, f2, f3]));
    let (mut name, mut mtu, mut kind, mut alias) = (None, 0, None, None);
    for attribute in message.attributes(LINK_HEADER)? {
        let attribute = attribute?;
        match attribute.kind() {
            uapi::IFLA_IFNAME => name = LinkName::from_kernel(text(&attribute)),
            uapi::IFLA_MTU => mtu = attribute.ne_u32()?,
            uapi::IFLA_IFALIAS => alias = Some(String::from_utf8_lossy(text(&attribute)).into()),
            uapi::IFLA_LINKINFO => kind = link_kind(attribute.nested())?.or(kind),
            _ => {}
        }
    }
    let name = name.ok_or(Error::Malformed {
        what: "link: no name, or a name longer than 15 bytes",
    })?;
    Ok(Some(Link {
        index,
        name,
        kind,
        flags,
        mtu,
        alias,
    }))
}

fn link_kind(attributes: AttributeReader<'_>) -> Result<Option<Box<str>>, Error> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind() == uapi::IFLA_INFO_KIND {
            return Ok(Some(String::from_utf8_lossy(text(&attribute)).into()));
        }
    }
    Ok(None)
}

/// Adds or changes an address (`RTM_NEWADDR`). Attributes are in the order in which `ip` sends them.
pub(crate) fn new_address(link_index: u32, address: &LinkAddress) -> Vec<u8> {
    let mut message = address_header(link_index, &address.key);
    message.header.scope = address.scope.number().into();
    let attributes = &mut message.attributes;
    attributes.push(AddressAttribute::Local(address.key.address()));
    attributes.extend(address.broadcast.map(AddressAttribute::Broadcast));
    if let Some(label) = address.label {
        let mut bytes = label.as_bytes().to_vec();
        bytes.push(0);
        attributes.push(AddressAttribute::Other(DefaultNla::new(uapi::IFA_LABEL, bytes)));
    }
    if address.metric != 0 {
        attributes.push(AddressAttribute::RoutePriority(address.metric));
    }
    // Flags up to 8 bits are in the header; others need an attribute, which replaces the header's field.
    match u8::try_from(address.flags.bits()) {
        Ok(flags) => message.header.flags = address::AddressHeaderFlags::from_bits_retain(flags),
        Err(_) => {
            let flags = address::AddressFlags::from_bits_retain(address.flags.bits());
            attributes.push(AddressAttribute::Flags(flags));
        }
    }
    attributes.push(AddressAttribute::Address(address.key.remote()));
    if address.lifetime != Lifetime::FOREVER {
        let mut times = CacheInfo::default();
        times.ifa_valid = address.lifetime.valid;
        times.ifa_preferred = address.lifetime.preferred;
        attributes.push(AddressAttribute::CacheInfo(times));
    }
    if address.protocol != AddressProtocol::UNSPECIFIED {
        attributes.push(AddressAttribute::Protocol(address.protocol.0.into()));
    }
    emit(&message)
}

/// Deletes an address (`RTM_DELADDR`).
pub(crate) fn delete_address(link_index: u32, key: &AddressKey) -> Vec<u8> {
    let mut message = address_header(link_index, key);
    message.attributes.push(AddressAttribute::Local(key.address()));
    message.attributes.push(AddressAttribute::Address(key.remote()));
    emit(&message)
}

fn address_header(link_index: u32, key: &AddressKey) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(key.address());
    message.header.prefix_len = key.prefix_length();
    message.header.index = link_index;
    message
}

/// Request for the addresses of both families on all links (`RTM_GETADDR`).
pub(crate) fn addresses_query() -> Vec<u8> {
    emit(&AddressMessage::default())
}

/// Decodes the address of `RTM_NEWADDR` and `RTM_DELADDR`, with the index of its link. `None` for
/// other families and for IPv6 anycast and multicast addresses.
pub(crate) fn decode_address(message: &Message<'_>) -> Result<Option<(u32, LinkAddress)>, Error> {
    let [family, prefix_length, flags, scope, i0, i1, i2, i3] = fixed::<ADDRESS_HEADER>(message.payload)?;
    let (mut local, mut remote) = (None, None);
    let mut address = LinkAddress::new(AddressKey::from_kernel(Ipv4Addr::UNSPECIFIED.into(), 0, None))
        .with_scope(Scope::from(scope))
        .with_flags(AddressFlags::from_bits_retain(flags.into()));
    for attribute in message.attributes(ADDRESS_HEADER)? {
        let attribute = attribute?;
        match attribute.kind() {
            uapi::IFA_LOCAL => local = ip(family, &attribute)?,
            uapi::IFA_ADDRESS => remote = ip(family, &attribute)?,
            uapi::IFA_LABEL => address.label = Label::from_kernel(text(&attribute)),
            uapi::IFA_BROADCAST => address.broadcast = Some(attribute.array().map(Ipv4Addr::from)?),
            uapi::IFA_FLAGS => address.flags = AddressFlags::from_bits_retain(attribute.ne_u32()?),
            uapi::IFA_CACHEINFO => address.lifetime = lifetime(&attribute)?,
            uapi::IFA_RT_PRIORITY => address.metric = attribute.ne_u32()?,
            uapi::IFA_PROTO => address.protocol = AddressProtocol(attribute.u8()?),
            _ => {}
        }
    }
    // IFA_LOCAL is the address if present; IFA_ADDRESS is then the peer, or the same address.
    let Some(local) = local.or(remote) else {
        return Ok(None);
    };
    address.key = AddressKey::from_kernel(local, prefix_length, remote);
    Ok(Some((u32::from_ne_bytes([i0, i1, i2, i3]), address)))
}

/// The payload of an address attribute; `None` for families other than IPv4 and IPv6.
fn ip(family: u8, attribute: &Attribute<'_>) -> Result<Option<IpAddr>, Error> {
    Ok(match family {
        uapi::AF_INET => Some(attribute.array().map(Ipv4Addr::from)?.into()),
        uapi::AF_INET6 => Some(attribute.array().map(Ipv6Addr::from)?.into()),
        _ => None,
    })
}

fn lifetime(attribute: &Attribute<'_>) -> Result<Lifetime, Error> {
    let [p0, p1, p2, p3, v0, v1, v2, v3, ..] = fixed::<16>(attribute.bytes())?;
    Ok(Lifetime {
        preferred: u32::from_ne_bytes([p0, p1, p2, p3]),
        valid: u32::from_ne_bytes([v0, v1, v2, v3]),
    })
}

/// Adds or deletes a local route over a link (`RTM_NEWROUTE`, `RTM_DELROUTE`).
pub(crate) fn route(link_index: u32, route: &LocalRoute) -> Vec<u8> {
    let mut message = RouteMessage::default();
    message.header.address_family = family(route.prefix().addr());
    message.header.destination_prefix_length = route.prefix().prefix_len();
    message.header.table = uapi::RT_TABLE_LOCAL;
    message.header.protocol = uapi::RTPROT_STATIC.into();
    message.header.scope = uapi::RT_SCOPE_HOST.into();
    message.header.kind = uapi::RTN_LOCAL.into();
    message
        .attributes
        .push(RouteAttribute::Destination(route.prefix().addr().into()));
    message.attributes.push(RouteAttribute::Oif(link_index));
    emit(&message)
}

/// Request for the local routes of one family over a link (`RTM_GETROUTE`). Kernels before 4.20 ignore the filter.
pub(crate) fn routes_query(link_index: u32, address_family: u8) -> Vec<u8> {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family.into();
    message.header.table = uapi::RT_TABLE_LOCAL;
    message.header.protocol = uapi::RTPROT_STATIC.into();
    message.header.kind = uapi::RTN_LOCAL.into();
    message.attributes.push(RouteAttribute::Oif(link_index));
    emit(&message)
}

/// Decodes a local route with `proto static`, with the index of its link. `None` for all other
/// routes, such as those that the kernel adds for each address.
pub(crate) fn decode_route(message: &Message<'_>) -> Result<Option<(u32, LocalRoute)>, Error> {
    let [family, length, _, _, table, protocol, _, kind, ..] = fixed::<ROUTE_HEADER>(message.payload)?;
    let mut table = u32::from(table);
    let mut link_index = None;
    let mut destination = match family {
        uapi::AF_INET => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        uapi::AF_INET6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        _ => return Ok(None),
    };
    for attribute in message.attributes(ROUTE_HEADER)? {
        let attribute = attribute?;
        match attribute.kind() {
            uapi::RTA_DST => destination = ip(family, &attribute)?.unwrap_or(destination),
            uapi::RTA_OIF => link_index = Some(attribute.ne_u32()?),
            uapi::RTA_TABLE => table = attribute.ne_u32()?,
            _ => {}
        }
    }
    let is_static_local = kind == uapi::RTN_LOCAL
        && protocol == uapi::RTPROT_STATIC
        && table == u32::from(uapi::RT_TABLE_LOCAL);
    let Some(link_index) = link_index.filter(|_| is_static_local) else {
        return Ok(None);
    };
    let prefix = IpNet::new(destination, length).map_err(|_| Error::Malformed {
        what: "route: the prefix length exceeds the address length",
    })?;
    Ok(Some((link_index, LocalRoute::new(prefix))))
}

/// The first `N` bytes.
fn fixed<const N: usize>(payload: &[u8]) -> Result<[u8; N], Error> {
    payload.first_chunk().copied().ok_or(Error::Malformed {
        what: "route netlink message: shorter than its header",
    })
}

/// The payload up to the first NUL.
fn text<'b>(attribute: &Attribute<'b>) -> &'b [u8] {
    attribute
        .bytes()
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default()
}
