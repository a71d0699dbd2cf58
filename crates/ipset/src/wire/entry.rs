//! Encoding and decoding of entries.

use std::net::IpAddr;

use kernlink_base::Protocol;
use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error};

use super::{read_ip, read_name, text, until_nul, write_ip};
use crate::element::{Element, Interface, InterfaceMatching, InterfaceSide};
use crate::entry::Entry;
use crate::entry_options::{Comment, EntryOptions, Position, SkbMark, SkbPriority, Timeout};
use crate::entry_range::EntryRange;
use crate::mac::MacAddress;
use crate::name::{InterfaceName, SetName};
use crate::network::Network;
use crate::protocol_port::ProtocolPort;
use crate::set_type::SetType;
use crate::uapi::*;

/// Upper bound of the bytes that an entry takes in a message, with nest and line number.
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

/// One entry, in a nest `IPSET_ATTR_ADT` or in a message of its own. The kernel returns a line number other than 0 if it refuses
/// the entry.
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

/// A range of entries, which the kernel expands.
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

/// Reads the entries in a nest `IPSET_ATTR_ADT` of a set of this type.
pub(crate) fn read_entries(nest: &[u8], set_type: SetType, into: &mut Vec<Entry>) -> Result<(), Error> {
    for data in AttributeReader::new(nest) {
        let data = data?;
        if data.kind() == IPSET_ATTR_DATA {
            into.push(read_entry(data.nested(), set_type)?);
        }
    }
    Ok(())
}

/// The decoded attributes of one entry.
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
                    what: "entry of an unknown set type",
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

#[cfg(all(test, feature = "fake"))]
mod tests {
    use super::*;
    use crate::contract::examples::examples;
    use crate::wire::nest;

    #[test]
    fn decoding_an_encoded_entry_returns_the_entry() {
        for (set, entries) in examples() {
            let bytes = nest(|w| entries.iter().for_each(|entry| write_entry(w, entry, 7)));
            let mut read = Vec::new();
            read_entries(&bytes, set.set_type, &mut read).unwrap();
            assert_eq!(read, entries);
        }
    }

    #[test]
    fn an_entry_takes_no_more_than_its_upper_bound() {
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
    fn truncated_entries_are_an_error_or_missing() {
        for (set, entries) in examples() {
            let bytes = nest(|w| entries.iter().for_each(|entry| write_entry(w, entry, 7)));
            for length in 0..bytes.len() {
                let mut read = Vec::new();
                let outcome = read_entries(&bytes[..length], set.set_type, &mut read);
                assert!(outcome.is_err() || read.len() < entries.len());
            }
        }
    }
}
