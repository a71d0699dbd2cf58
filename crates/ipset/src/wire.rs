//! How sets and entries become bytes and back. For each message the encoder stands beside the decoder.

use std::net::IpAddr;

use kernlink_base::Protocol;
use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error, netfilter};

use crate::element::{Element, Interface, InterfaceMatching, InterfaceSide};
use crate::entry::Entry;
use crate::entry_options::{Comment, EntryOptions, Position, SkbMark, SkbPriority, Timeout};
use crate::entry_range::EntryRange;
use crate::mac::MacAddress;
use crate::name::{InterfaceName, SetName, TypeName};
use crate::network::Network;
use crate::protocol_port::ProtocolPort;
use crate::revisions::Revisions;
use crate::set::{Set, SetHeader, SetOptions, SetRange, SetStats};
use crate::set_family::SetFamily;
use crate::set_type::SetType;
use crate::uapi::*;

/// The type of a message with this command.
pub(crate) fn message_type(command: u8) -> u16 {
    netfilter::message_type(NFNL_SUBSYS_IPSET, command)
}

/// What every request begins with. Version 6 of the protocol is enough for all but the look-ups by name and index,
/// and is what kernels before 4.20 demand.
pub(crate) fn preamble(w: &mut AttributeWriter<'_>, protocol: u8) {
    w.header(&netfilter::Header::new(NFPROTO_UNSPEC).to_bytes());
    w.u8(IPSET_ATTR_PROTOCOL, protocol);
}

/// A request about one set.
pub(crate) fn named(w: &mut AttributeWriter<'_>, name: &SetName) {
    preamble(w, IPSET_PROTOCOL_MIN);
    text(w, IPSET_ATTR_SETNAME, name.as_bytes());
}

/// The name of a set.
pub(crate) fn name(w: &mut AttributeWriter<'_>, name: &SetName) {
    text(w, IPSET_ATTR_SETNAME, name.as_bytes());
}

/// A request about two sets.
pub(crate) fn named_twice(w: &mut AttributeWriter<'_>, first: &SetName, second: &SetName) {
    named(w, first);
    text(w, IPSET_ATTR_SETNAME2, second.as_bytes());
}

fn text(w: &mut AttributeWriter<'_>, kind: u16, bytes: &[u8]) {
    // Comments are the longest text there is.
    let mut terminated = [0; IPSET_MAX_COMMENT_SIZE + 1];
    if let Some(start) = terminated.get_mut(..bytes.len()) {
        start.copy_from_slice(bytes);
    }
    w.bytes(kind, terminated.get(..=bytes.len()).unwrap_or(&terminated));
}

/// Bytes up to the first NUL.
fn until_nul<'b>(attribute: &Attribute<'b>) -> &'b [u8] {
    attribute
        .bytes()
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default()
}

fn read_name(attribute: &Attribute<'_>) -> Result<SetName, Error> {
    SetName::from_bytes(until_nul(attribute)).map_err(|_| Error::Malformed { what: "set name" })
}

fn write_ip(w: &mut AttributeWriter<'_>, kind: u16, address: IpAddr) {
    let inner = if address.is_ipv4() {
        IPSET_ATTR_IPADDR_IPV4
    } else {
        IPSET_ATTR_IPADDR_IPV6
    };
    w.nested(kind, |w| {
        w.net().address(inner, address);
    });
}

fn read_ip(attribute: &Attribute<'_>) -> Result<IpAddr, Error> {
    for inner in attribute.nested() {
        let inner = inner?;
        if matches!(inner.kind(), IPSET_ATTR_IPADDR_IPV4 | IPSET_ATTR_IPADDR_IPV6) {
            return inner.address();
        }
    }
    Err(Error::Malformed {
        what: "address without IPv4 or IPv6 inside",
    })
}

// --- sets -----------------------------------------------------------------------------------------------------------

/// `IPSET_CMD_CREATE`.
pub(crate) fn write_create(w: &mut AttributeWriter<'_>, set: &Set, revision: u8) {
    named(w, &set.name);
    text(w, IPSET_ATTR_TYPENAME, set.set_type.as_bytes());
    w.u8(IPSET_ATTR_REVISION, revision);
    w.u8(IPSET_ATTR_FAMILY, set.family.number());
    w.nested(IPSET_ATTR_DATA, |w| write_set_options(w, &set.options));
}

fn write_set_options(w: &mut AttributeWriter<'_>, options: &SetOptions) {
    match options.range {
        Some(SetRange::Addresses(first, last)) => {
            write_ip(w, IPSET_ATTR_IP, first.into());
            write_ip(w, IPSET_ATTR_IP_TO, last.into());
        }
        Some(SetRange::Ports(first, last)) => {
            w.net().be_u16(IPSET_ATTR_PORT, first);
            w.net().be_u16(IPSET_ATTR_PORT_TO, last);
        }
        None => {}
    }
    let flags = [
        (options.counters, IPSET_FLAG_WITH_COUNTERS),
        (options.comment, IPSET_FLAG_WITH_COMMENT),
        (options.skbinfo, IPSET_FLAG_WITH_SKBINFO),
        (options.forceadd, IPSET_FLAG_WITH_FORCEADD),
    ];
    let flags = flags
        .iter()
        .filter(|(given, _)| *given)
        .fold(0, |flags, (_, flag)| flags | flag);
    if flags != 0 {
        w.net().be_u32(IPSET_ATTR_CADT_FLAGS, flags);
    }
    for (kind, value) in [
        (IPSET_ATTR_HASHSIZE, options.hashsize),
        (IPSET_ATTR_MAXELEM, options.maxelem),
        (IPSET_ATTR_MARKMASK, options.markmask),
        (IPSET_ATTR_SIZE, options.size),
        (IPSET_ATTR_INITVAL, options.initval),
        (IPSET_ATTR_TIMEOUT, options.timeout.map(Timeout::as_secs)),
    ] {
        if let Some(value) = value {
            w.net().be_u32(kind, value);
        }
    }
    for (kind, value) in [
        (IPSET_ATTR_NETMASK, options.netmask),
        (IPSET_ATTR_BUCKETSIZE, options.bucketsize),
    ] {
        if let Some(value) = value {
            w.u8(kind, value);
        }
    }
    if let Some(bitmask) = options.bitmask {
        write_ip(w, IPSET_ATTR_BITMASK, bitmask);
    }
}

fn read_set_options(data: AttributeReader<'_>) -> Result<(SetOptions, SetStats), Error> {
    let mut options = SetOptions::default();
    let mut stats = SetStats::default();
    let (mut first_ip, mut last_ip, mut first_port, mut last_port) = (None, None, None, None);
    for attribute in data {
        let attribute = attribute?;
        match attribute.kind() {
            IPSET_ATTR_IP => first_ip = Some(read_ip(&attribute)?),
            IPSET_ATTR_IP_TO => last_ip = Some(read_ip(&attribute)?),
            IPSET_ATTR_PORT => first_port = Some(attribute.be_u16()?),
            IPSET_ATTR_PORT_TO => last_port = Some(attribute.be_u16()?),
            IPSET_ATTR_CADT_FLAGS => {
                let flags = attribute.be_u32()?;
                options.counters = flags & IPSET_FLAG_WITH_COUNTERS != 0;
                options.comment = flags & IPSET_FLAG_WITH_COMMENT != 0;
                options.skbinfo = flags & IPSET_FLAG_WITH_SKBINFO != 0;
                options.forceadd = flags & IPSET_FLAG_WITH_FORCEADD != 0;
            }
            IPSET_ATTR_HASHSIZE => options.hashsize = Some(attribute.be_u32()?),
            IPSET_ATTR_MAXELEM => options.maxelem = Some(attribute.be_u32()?),
            // Taken in network byte order, listed in the host's.
            IPSET_ATTR_MARKMASK if attribute.is_net_byte_order() => {
                options.markmask = Some(attribute.be_u32()?)
            }
            IPSET_ATTR_MARKMASK => options.markmask = Some(attribute.ne_u32()?),
            IPSET_ATTR_SIZE => options.size = Some(attribute.be_u32()?),
            IPSET_ATTR_INITVAL => options.initval = Some(attribute.be_u32()?),
            IPSET_ATTR_TIMEOUT => options.timeout = Some(Timeout::listed(attribute.be_u32()?)),
            IPSET_ATTR_NETMASK => options.netmask = Some(attribute.u8()?),
            IPSET_ATTR_BUCKETSIZE => options.bucketsize = Some(attribute.u8()?),
            IPSET_ATTR_BITMASK => options.bitmask = Some(read_ip(&attribute)?),
            IPSET_ATTR_REFERENCES => stats.references = attribute.be_u32()?,
            IPSET_ATTR_MEMSIZE => stats.memory = attribute.be_u32()?,
            IPSET_ATTR_ELEMENTS => stats.elements = attribute.be_u32()?,
            _ => {}
        }
    }
    options.range = match (first_ip, last_ip, first_port, last_port) {
        (Some(IpAddr::V4(first)), Some(IpAddr::V4(last)), ..) => Some(SetRange::Addresses(first, last)),
        (_, _, Some(first), Some(last)) => Some(SetRange::Ports(first, last)),
        _ => None,
    };
    Ok((options, stats))
}

/// One message of a listing: the start of a set or more of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListPart<'b> {
    pub(crate) name: SetName,
    /// Only in the first message of a set.
    pub(crate) header: Option<SetHeader>,
    /// The nest of entries.
    pub(crate) entries: Option<&'b [u8]>,
}

/// A message of `IPSET_CMD_LIST`.
pub(crate) fn read_list_part(payload: &[u8]) -> Result<ListPart<'_>, Error> {
    let (mut set_name, mut set_type, mut family, mut revision) = (None, None, SetFamily::Unspecified, 0);
    let (mut data, mut entries) = (None, None);
    for attribute in AttributeReader::behind(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            IPSET_ATTR_SETNAME => set_name = Some(read_name(&attribute)?),
            IPSET_ATTR_TYPENAME => set_type = Some(read_type(&attribute)?),
            IPSET_ATTR_FAMILY => family = SetFamily::from(attribute.u8()?),
            IPSET_ATTR_REVISION => revision = attribute.u8()?,
            IPSET_ATTR_DATA => data = Some(attribute.nested()),
            IPSET_ATTR_ADT => entries = Some(attribute.bytes()),
            _ => {}
        }
    }
    let name = set_name.ok_or(Error::Malformed {
        what: "list of a set without its name",
    })?;
    let header = match (set_type, data) {
        (Some(set_type), Some(data)) => {
            let (options, stats) = read_set_options(data)?;
            Some(SetHeader {
                set: Set {
                    name,
                    set_type,
                    family,
                    options,
                },
                revision,
                stats,
            })
        }
        _ => None,
    };
    Ok(ListPart {
        name,
        header,
        entries,
    })
}

fn read_type(attribute: &Attribute<'_>) -> Result<SetType, Error> {
    let name = TypeName::from_bytes(until_nul(attribute)).map_err(|_| Error::Malformed {
        what: "set type name",
    })?;
    Ok(SetType::from(name))
}

/// The answer to `IPSET_CMD_HEADER`: type and family.
pub(crate) fn read_type_and_family(payload: &[u8]) -> Result<(SetType, SetFamily), Error> {
    let (mut set_type, mut family) = (None, SetFamily::Unspecified);
    for attribute in AttributeReader::behind(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            IPSET_ATTR_TYPENAME => set_type = Some(read_type(&attribute)?),
            IPSET_ATTR_FAMILY => family = SetFamily::from(attribute.u8()?),
            _ => {}
        }
    }
    Ok((
        set_type.ok_or(Error::Malformed {
            what: "header of a set without its type",
        })?,
        family,
    ))
}

/// `IPSET_CMD_TYPE`.
pub(crate) fn write_type_query(w: &mut AttributeWriter<'_>, set_type: SetType, family: SetFamily) {
    preamble(w, IPSET_PROTOCOL_MIN);
    text(w, IPSET_ATTR_TYPENAME, set_type.as_bytes());
    w.u8(IPSET_ATTR_FAMILY, family.number());
}

/// The answer to `IPSET_CMD_TYPE`.
pub(crate) fn read_revisions(payload: &[u8]) -> Result<Revisions, Error> {
    let (mut min, mut max) = (None, None);
    for attribute in AttributeReader::behind(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            IPSET_ATTR_REVISION => max = Some(attribute.u8()?),
            IPSET_ATTR_REVISION_MIN => min = Some(attribute.u8()?),
            _ => {}
        }
    }
    let max = max.ok_or(Error::Malformed {
        what: "revisions of a set type without the newest",
    })?;
    Ok(Revisions {
        min: min.unwrap_or(max),
        max,
    })
}

/// `IPSET_CMD_GET_BYINDEX`.
pub(crate) fn write_index_query(w: &mut AttributeWriter<'_>, index: u16) {
    preamble(w, IPSET_PROTOCOL);
    w.net().be_u16(IPSET_ATTR_INDEX, index);
}

/// The answer to `IPSET_CMD_GET_BYNAME` (index) and `IPSET_CMD_GET_BYINDEX` (name), each as far as it is there.
pub(crate) fn read_name_and_index(payload: &[u8]) -> Result<(Option<SetName>, Option<u16>), Error> {
    let (mut set_name, mut index) = (None, None);
    for attribute in AttributeReader::behind(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            IPSET_ATTR_SETNAME => set_name = Some(read_name(&attribute)?),
            IPSET_ATTR_INDEX => index = Some(attribute.be_u16()?),
            _ => {}
        }
    }
    Ok((set_name, index))
}

// --- entries --------------------------------------------------------------------------------------------------------

/// Bytes that an entry takes at most, with nest and line number, so that a full message is noticed before it overflows.
pub(crate) fn entry_room(entry: &Entry) -> usize {
    // Nest 4; two networks 2 * (28 + 8); port 8, protocol 8; interface 20 and flags 8, or two set names 72; line 8.
    const ELEMENT: usize = 200;
    // Five numbers of at most 16 bytes, a comment of 260, flags 8, a reference 36.
    const OPTIONS: usize = 400;
    if entry.is_plain() {
        ELEMENT
    } else {
        ELEMENT + OPTIONS
    }
}

/// One entry of a nest `IPSET_ATTR_ADT`, or the one of a message. A line number other than 0 comes back when the entry
/// is refused.
pub(crate) fn write_entry(w: &mut AttributeWriter<'_>, entry: &Entry, line: u32) {
    w.nested(IPSET_ATTR_DATA, |w| {
        write_element(w, entry.element());
        let flags = element_flags(entry.element());
        if entry.is_plain() {
            if flags != 0 {
                w.net().be_u32(IPSET_ATTR_CADT_FLAGS, flags);
            }
        } else {
            write_entry_options(w, entry.options(), flags);
        }
        if line != 0 {
            w.net().be_u32(IPSET_ATTR_LINENO, line);
        }
    });
}

/// The entries of a range, which the kernel spreads.
pub(crate) fn write_range(w: &mut AttributeWriter<'_>, range: &EntryRange) {
    w.nested(IPSET_ATTR_DATA, |w| {
        write_element(w, range.first.element());
        if let Some(last) = range.address_to {
            write_ip(w, IPSET_ATTR_IP_TO, last);
        }
        if let Some(last) = range.port_to {
            w.net().be_u16(IPSET_ATTR_PORT_TO, last);
        }
        if let Some(last) = range.second_to {
            write_ip(w, IPSET_ATTR_IP2_TO, last);
        }
        write_entry_options(w, range.first.options(), element_flags(range.first.element()));
    });
}

fn element_flags(element: &Element) -> u32 {
    match element {
        Element::NetIface { interface, .. } => {
            let side = if interface.side == InterfaceSide::BridgePort {
                IPSET_FLAG_PHYSDEV
            } else {
                0
            };
            let matching = if interface.matching == InterfaceMatching::Prefix {
                IPSET_FLAG_IFACE_WILDCARD
            } else {
                0
            };
            side | matching
        }
        _ => 0,
    }
}

fn write_element(w: &mut AttributeWriter<'_>, element: &Element) {
    match element {
        Element::Ip(ip) => write_ip(w, IPSET_ATTR_IP, *ip),
        Element::IpMac { ip, mac } => {
            write_ip(w, IPSET_ATTR_IP, *ip);
            if let Some(mac) = mac {
                w.bytes(IPSET_ATTR_ETHER, &mac.0);
            }
        }
        Element::IpMark { ip, mark } => {
            write_ip(w, IPSET_ATTR_IP, *ip);
            w.net().be_u32(IPSET_ATTR_MARK, *mark);
        }
        Element::IpPort { ip, port } => {
            write_ip(w, IPSET_ATTR_IP, *ip);
            write_port(w, *port);
        }
        Element::IpPortIp { ip, port, second } => {
            write_ip(w, IPSET_ATTR_IP, *ip);
            write_port(w, *port);
            write_ip(w, IPSET_ATTR_IP2, *second);
        }
        Element::IpPortNet { ip, port, net } => {
            write_ip(w, IPSET_ATTR_IP, *ip);
            write_port(w, *port);
            write_net(w, IPSET_ATTR_IP2, IPSET_ATTR_CIDR2, *net);
        }
        Element::Mac(mac) => {
            w.bytes(IPSET_ATTR_ETHER, &mac.0);
        }
        Element::Net(net) => write_net(w, IPSET_ATTR_IP, IPSET_ATTR_CIDR, *net),
        Element::NetNet { net, second } => {
            write_net(w, IPSET_ATTR_IP, IPSET_ATTR_CIDR, *net);
            write_net(w, IPSET_ATTR_IP2, IPSET_ATTR_CIDR2, *second);
        }
        Element::NetPort { net, port } => {
            write_net(w, IPSET_ATTR_IP, IPSET_ATTR_CIDR, *net);
            write_port(w, *port);
        }
        Element::NetPortNet { net, port, second } => {
            write_net(w, IPSET_ATTR_IP, IPSET_ATTR_CIDR, *net);
            write_port(w, *port);
            write_net(w, IPSET_ATTR_IP2, IPSET_ATTR_CIDR2, *second);
        }
        Element::NetIface { net, interface } => {
            write_net(w, IPSET_ATTR_IP, IPSET_ATTR_CIDR, *net);
            text(w, IPSET_ATTR_IFACE, interface.name.as_bytes());
        }
        Element::Port(port) => {
            w.net().be_u16(IPSET_ATTR_PORT, *port);
        }
        Element::Set(name) => text(w, IPSET_ATTR_NAME, name.as_bytes()),
    }
}

fn write_port(w: &mut AttributeWriter<'_>, port: ProtocolPort) {
    w.net().be_u16(IPSET_ATTR_PORT, port.port);
    w.u8(IPSET_ATTR_PROTO, port.protocol.0);
}

fn write_net(w: &mut AttributeWriter<'_>, address: u16, prefix_len: u16, network: Network) {
    write_ip(w, address, network.address());
    if !network.is_host() {
        w.u8(prefix_len, network.prefix_len());
    }
}

fn write_entry_options(w: &mut AttributeWriter<'_>, options: &EntryOptions, mut flags: u32) {
    if options.nomatch {
        flags |= IPSET_FLAG_NOMATCH;
    }
    match &options.position {
        Some(Position::Before(name)) => {
            flags |= IPSET_FLAG_BEFORE;
            text(w, IPSET_ATTR_NAMEREF, name.as_bytes());
        }
        Some(Position::After(name)) => text(w, IPSET_ATTR_NAMEREF, name.as_bytes()),
        None => {}
    }
    if flags != 0 {
        w.net().be_u32(IPSET_ATTR_CADT_FLAGS, flags);
    }
    if let Some(timeout) = options.timeout {
        w.net().be_u32(IPSET_ATTR_TIMEOUT, timeout.as_secs());
    }
    if let Some(packets) = options.packets {
        w.net().be_u64(IPSET_ATTR_PACKETS, packets);
    }
    if let Some(bytes) = options.bytes {
        w.net().be_u64(IPSET_ATTR_BYTES, bytes);
    }
    if let Some(comment) = &options.comment {
        text(w, IPSET_ATTR_COMMENT, comment.as_bytes());
    }
    if let Some(SkbMark { mark, mask }) = options.skb_mark {
        w.net()
            .be_u64(IPSET_ATTR_SKBMARK, u64::from(mark) << 32 | u64::from(mask));
    }
    if let Some(SkbPriority { major, minor }) = options.skb_priority {
        w.net()
            .be_u32(IPSET_ATTR_SKBPRIO, u32::from(major) << 16 | u32::from(minor));
    }
    if let Some(queue) = options.skb_queue {
        w.net().be_u16(IPSET_ATTR_SKBQUEUE, queue);
    }
}

/// The entries of a nest `IPSET_ATTR_ADT`, of a set of this type.
pub(crate) fn read_entries(nest: &[u8], set_type: SetType, into: &mut Vec<Entry>) -> Result<(), Error> {
    for data in AttributeReader::new(nest) {
        let data = data?;
        if data.kind() == IPSET_ATTR_DATA {
            into.push(read_entry(data.nested(), set_type)?);
        }
    }
    Ok(())
}

/// The attributes of one entry before they are put together.
#[derive(Default)]
struct Parts {
    ip: Option<IpAddr>,
    cidr: Option<u8>,
    second: Option<IpAddr>,
    second_cidr: Option<u8>,
    port: Option<u16>,
    protocol: Option<u8>,
    mark: Option<u32>,
    mac: Option<[u8; 6]>,
    name: Option<SetName>,
    interface: Option<InterfaceName>,
    flags: u32,
}

fn read_entry(data: AttributeReader<'_>, set_type: SetType) -> Result<Entry, Error> {
    let mut parts = Parts::default();
    let mut options: Option<EntryOptions> = None;
    for attribute in data {
        let attribute = attribute?;
        match attribute.kind() {
            IPSET_ATTR_IP => parts.ip = Some(read_ip(&attribute)?),
            IPSET_ATTR_CIDR => parts.cidr = Some(attribute.u8()?),
            IPSET_ATTR_IP2 => parts.second = Some(read_ip(&attribute)?),
            IPSET_ATTR_CIDR2 => parts.second_cidr = Some(attribute.u8()?),
            IPSET_ATTR_PORT => parts.port = Some(attribute.be_u16()?),
            IPSET_ATTR_PROTO => parts.protocol = Some(attribute.u8()?),
            IPSET_ATTR_MARK => parts.mark = Some(attribute.be_u32()?),
            IPSET_ATTR_ETHER => parts.mac = Some(attribute.array()?),
            IPSET_ATTR_NAME => parts.name = Some(read_name(&attribute)?),
            IPSET_ATTR_IFACE => {
                let name = InterfaceName::from_bytes(until_nul(&attribute));
                parts.interface = Some(name.map_err(|_| Error::Malformed {
                    what: "interface name",
                })?);
            }
            IPSET_ATTR_CADT_FLAGS => {
                parts.flags = attribute.be_u32()?;
                if parts.flags & IPSET_FLAG_NOMATCH != 0 {
                    options.get_or_insert_default().nomatch = true;
                }
            }
            _ => read_entry_option(&attribute, &mut options)?,
        }
    }
    let entry = Entry::new(parts.element(set_type)?);
    Ok(match options {
        Some(options) => entry.with_options(options),
        None => entry,
    })
}

fn read_entry_option(attribute: &Attribute<'_>, options: &mut Option<EntryOptions>) -> Result<(), Error> {
    match attribute.kind() {
        IPSET_ATTR_TIMEOUT => {
            options.get_or_insert_default().timeout = Some(Timeout::listed(attribute.be_u32()?));
        }
        IPSET_ATTR_PACKETS => options.get_or_insert_default().packets = Some(attribute.be_u64()?),
        IPSET_ATTR_BYTES => options.get_or_insert_default().bytes = Some(attribute.be_u64()?),
        IPSET_ATTR_COMMENT => {
            let comment = Comment::from_bytes(until_nul(attribute));
            let comment = comment.map_err(|_| Error::Malformed { what: "comment" })?;
            options.get_or_insert_default().comment = Some(comment);
        }
        IPSET_ATTR_SKBMARK => {
            let both = attribute.be_u64()?;
            let mark = SkbMark {
                mark: (both >> 32) as u32,
                mask: (both & u64::from(u32::MAX)) as u32,
            };
            options.get_or_insert_default().skb_mark = Some(mark);
        }
        IPSET_ATTR_SKBPRIO => {
            let both = attribute.be_u32()?;
            let priority = SkbPriority {
                major: (both >> 16) as u16,
                minor: (both & 0xffff) as u16,
            };
            options.get_or_insert_default().skb_priority = Some(priority);
        }
        IPSET_ATTR_SKBQUEUE => options.get_or_insert_default().skb_queue = Some(attribute.be_u16()?),
        _ => {}
    }
    Ok(())
}

impl Parts {
    fn element(&self, set_type: SetType) -> Result<Element, Error> {
        Ok(match set_type {
            SetType::BitmapIp | SetType::HashIp => Element::Ip(self.ip()?),
            SetType::BitmapIpMac => Element::IpMac {
                ip: self.ip()?,
                mac: self.mac.map(MacAddress),
            },
            SetType::HashIpMac => Element::IpMac {
                ip: self.ip()?,
                mac: Some(self.mac()?),
            },
            SetType::BitmapPort => Element::Port(self.port.ok_or(Error::Malformed {
                what: "entry without its port",
            })?),
            SetType::HashMac => Element::Mac(self.mac()?),
            SetType::HashIpMark => {
                let mark = self.mark.ok_or(Error::Malformed {
                    what: "entry without its mark",
                })?;
                Element::IpMark { ip: self.ip()?, mark }
            }
            SetType::HashIpPort => Element::IpPort {
                ip: self.ip()?,
                port: self.port()?,
            },
            SetType::HashIpPortIp => Element::IpPortIp {
                ip: self.ip()?,
                port: self.port()?,
                second: self.second()?,
            },
            SetType::HashIpPortNet => Element::IpPortNet {
                ip: self.ip()?,
                port: self.port()?,
                net: network(self.second()?, self.second_cidr)?,
            },
            SetType::HashNet => Element::Net(self.net()?),
            SetType::HashNetNet => Element::NetNet {
                net: self.net()?,
                second: network(self.second()?, self.second_cidr)?,
            },
            SetType::HashNetPort => Element::NetPort {
                net: self.net()?,
                port: self.port()?,
            },
            SetType::HashNetPortNet => Element::NetPortNet {
                net: self.net()?,
                port: self.port()?,
                second: network(self.second()?, self.second_cidr)?,
            },
            SetType::HashNetIface => Element::NetIface {
                net: self.net()?,
                interface: self.interface()?,
            },
            SetType::ListSet => Element::Set(self.name.ok_or(Error::Malformed {
                what: "entry without its set",
            })?),
            SetType::Unknown(_) => {
                return Err(Error::Malformed {
                    what: "entry of a set type that is not known",
                });
            }
        })
    }

    fn ip(&self) -> Result<IpAddr, Error> {
        self.ip.ok_or(Error::Malformed {
            what: "entry without its address",
        })
    }

    fn second(&self) -> Result<IpAddr, Error> {
        self.second.ok_or(Error::Malformed {
            what: "entry without its second address",
        })
    }

    fn net(&self) -> Result<Network, Error> {
        network(self.ip()?, self.cidr)
    }

    fn port(&self) -> Result<ProtocolPort, Error> {
        match (self.port, self.protocol) {
            (Some(port), Some(protocol)) => Ok(ProtocolPort::new(Protocol(protocol), port)),
            _ => Err(Error::Malformed {
                what: "entry without its port and protocol",
            }),
        }
    }

    fn mac(&self) -> Result<MacAddress, Error> {
        self.mac.map(MacAddress).ok_or(Error::Malformed {
            what: "entry without its Ethernet address",
        })
    }

    fn interface(&self) -> Result<Interface, Error> {
        let name = self.interface.ok_or(Error::Malformed {
            what: "entry without its interface",
        })?;
        let mut interface = Interface::new(name);
        if self.flags & IPSET_FLAG_PHYSDEV != 0 {
            interface.side = InterfaceSide::BridgePort;
        }
        if self.flags & IPSET_FLAG_IFACE_WILDCARD != 0 {
            interface.matching = InterfaceMatching::Prefix;
        }
        Ok(interface)
    }
}

fn network(address: IpAddr, prefix_len: Option<u8>) -> Result<Network, Error> {
    match prefix_len {
        None => Ok(Network::from(address)),
        Some(prefix_len) => Network::new(address, prefix_len).map_err(|_| Error::Malformed {
            what: "prefix length",
        }),
    }
}

/// The line number in the kernel's copy of a refused request: which entry of a nest it was.
pub(crate) fn refused_line(echo: &[u8]) -> Option<u32> {
    AttributeReader::behind(echo, netfilter::HEADER_LENGTH)
        .ok()?
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == IPSET_ATTR_LINENO)
        .and_then(|attribute| attribute.be_u32().ok())
        .filter(|line| *line != 0)
}

#[cfg(all(test, feature = "fake"))]
mod tests {
    use super::*;
    use crate::contract::examples::examples;

    fn nest(write: impl FnOnce(&mut AttributeWriter<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut AttributeWriter::new(&mut bytes));
        bytes
    }

    #[test]
    fn entries_are_read_as_they_are_written() {
        for (set, entries) in examples() {
            let bytes = nest(|w| entries.iter().for_each(|entry| write_entry(w, entry, 7)));
            let mut read = Vec::new();
            read_entries(&bytes, set.set_type, &mut read).unwrap();
            assert_eq!(read, entries);
        }
    }

    #[test]
    fn an_entry_takes_no_more_room_than_is_reserved() {
        for (_, entries) in examples() {
            for entry in entries {
                let entry = entry.with_comment(Comment::from_bytes(&[b'x'; 255]).unwrap());
                assert!(
                    nest(|w| write_entry(w, &entry, 7)).len() <= entry_room(&entry),
                    "{entry}"
                );
                let plain = Entry::new(*entry.element());
                assert!(
                    nest(|w| write_entry(w, &plain, 7)).len() <= entry_room(&plain),
                    "{plain}"
                );
            }
        }
    }

    #[test]
    fn options_are_read_as_they_are_written() {
        for (set, _) in examples() {
            let bytes = nest(|w| write_set_options(w, &set.options));
            assert_eq!(
                read_set_options(AttributeReader::new(&bytes)).unwrap().0,
                set.options
            );
        }
    }

    #[test]
    fn what_is_cut_short_is_an_error_or_shorter() {
        for (set, entries) in examples() {
            let bytes = nest(|w| entries.iter().for_each(|entry| write_entry(w, entry, 7)));
            for length in 0..bytes.len() {
                let mut read = Vec::new();
                let outcome = read_entries(&bytes[..length], set.set_type, &mut read);
                assert!(outcome.is_err() || read.len() < entries.len());
            }
        }
    }

    #[test]
    fn the_line_of_a_refusal_is_the_one_of_the_command() {
        let echo = nest(|w| {
            preamble(w, 6);
            w.net().be_u32(IPSET_ATTR_LINENO, 0x1234);
            w.nested(IPSET_ATTR_ADT, |w| {
                w.net().be_u32(IPSET_ATTR_LINENO, 7);
            });
        });
        assert_eq!(refused_line(&echo), Some(0x1234));
        assert_eq!(refused_line(&[]), None);
        assert_eq!(refused_line(&[0; 4]), None);
    }
}
