//! Encoding and decoding of messages: the encoder of each message is next to its decoder.

mod entry;

use std::net::IpAddr;

use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error, netfilter};

pub(crate) use self::entry::{entry_room, read_entries, write_entry, write_range};
use crate::entry_options::Timeout;
use crate::name::{SetName, TypeName};
use crate::revisions::Revisions;
use crate::set::{Set, SetHeader, SetOptions, SetRange, SetStats};
use crate::set_family::SetFamily;
use crate::set_type::SetType;
use crate::uapi::*;

/// The type of a message with this command.
pub(crate) fn message_type(command: u8) -> u16 {
    netfilter::message_type(NFNL_SUBSYS_IPSET, command)
}

/// The beginning of every request. The look-ups by name and index require version 7 of the protocol; all other requests use
/// version 6, because kernels before 4.20 support no other.
pub(crate) fn preamble(w: &mut AttributeWriter<'_>, protocol: u8) {
    w.header(&netfilter::Header::new(NFPROTO_UNSPEC).to_bytes());
    w.u8(IPSET_ATTR_PROTOCOL, protocol);
}

/// The beginning of a request about one set.
pub(crate) fn named(w: &mut AttributeWriter<'_>, name: &SetName) {
    preamble(w, IPSET_PROTOCOL_MIN);
    text(w, IPSET_ATTR_SETNAME, name.as_bytes());
}

/// The name of a set.
pub(crate) fn name(w: &mut AttributeWriter<'_>, name: &SetName) {
    text(w, IPSET_ATTR_SETNAME, name.as_bytes());
}

/// The beginning of a request about two sets.
pub(crate) fn named_twice(w: &mut AttributeWriter<'_>, first: &SetName, second: &SetName) {
    named(w, first);
    text(w, IPSET_ATTR_SETNAME2, second.as_bytes());
}

fn text(w: &mut AttributeWriter<'_>, kind: u16, bytes: &[u8]) {
    // Comments are the longest texts.
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
            // The kernel lists the mask in host byte order without the flag for network byte order.
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

/// One message of a list: the first message of a set or a continuation.
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
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
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
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
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
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
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

/// The answer to `IPSET_CMD_GET_BYNAME`, which has the index, or `IPSET_CMD_GET_BYINDEX`, which has the name.
pub(crate) fn read_name_and_index(payload: &[u8]) -> Result<(Option<SetName>, Option<u16>), Error> {
    let (mut set_name, mut index) = (None, None);
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            IPSET_ATTR_SETNAME => set_name = Some(read_name(&attribute)?),
            IPSET_ATTR_INDEX => index = Some(attribute.be_u16()?),
            _ => {}
        }
    }
    Ok((set_name, index))
}

/// The line number of the refused entry, from the copy of the request in the kernel's answer; `None` without line number.
pub(crate) fn refused_line(echo: &[u8]) -> Option<u32> {
    AttributeReader::after_header(echo, netfilter::HEADER_LENGTH)
        .ok()?
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == IPSET_ATTR_LINENO)
        .and_then(|attribute| attribute.be_u32().ok())
        .filter(|line| *line != 0)
}

/// The bytes that `write` writes.
#[cfg(all(test, feature = "fake"))]
fn nest(write: impl FnOnce(&mut AttributeWriter<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut AttributeWriter::new(&mut bytes));
    bytes
}

#[cfg(all(test, feature = "fake"))]
mod tests {
    use super::*;
    use crate::contract::examples::examples;

    #[test]
    fn decoding_encoded_options_returns_the_options() {
        for (set, _) in examples() {
            let bytes = nest(|w| write_set_options(w, &set.options));
            assert_eq!(
                read_set_options(AttributeReader::new(&bytes)).unwrap().0,
                set.options
            );
        }
    }

    #[test]
    fn the_line_of_a_refusal_is_that_of_the_whole_message() {
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
