//! Which entry of a set an entry matches, as the kernel decides it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::element::{Element, Interface, InterfaceMatching};
use crate::entry::Entry;
use crate::error::Error;
use crate::network::{Network, masked};
use crate::operation::Action;
use crate::set::{Set, SetContents, SetRange};
use crate::set_type::SetType;
use crate::uapi::*;
use crate::validation::check_options;

/// The entries of a listed set, to test other entries against.
pub(crate) struct Members {
    contents: SetContents,
    /// Index of each entry by its key.
    indexes: HashMap<Element, usize>,
}

impl Members {
    pub(crate) fn new(contents: SetContents) -> Self {
        let set_type = contents.header.set.set_type;
        let entries = contents.entries.iter().enumerate();
        let indexes = entries.map(|(index, entry)| (key(set_type, entry.element()), index));
        Members {
            indexes: indexes.collect(),
            contents,
        }
    }

    /// Whether an entry is in the set. An entry whose options or address the set refuses is not in the set, as for the kernel.
    pub(crate) fn test(&self, entry: &Entry, action: &dyn Fn() -> Action) -> Result<bool, Error> {
        let SetContents { header, entries } = &self.contents;
        let set_type = header.set.set_type;
        let checked = entry.element().check(set_type, header.set.family);
        checked.map_err(|mismatch| Error::invalid_entry(action(), mismatch))?;
        check_options(entry, set_type, action)?;
        let Ok(stored) = stored_entry(&header.set, entry) else {
            return Ok(false);
        };
        let index = self.indexes.get(&key(set_type, stored.element())).copied();
        let index = index.or_else(|| find_by_interface_prefix(entries, stored.element()));
        let equal = index.and_then(|index| entries.get(index));
        Ok(matches(equal, entries, &stored))
    }
}

/// Whether an entry is in the set `entries`. The smallest networks that contain the entry decide; an entry that they match with
/// `nomatch` is not in the set. `equal` is the entry of the set with the same key, if there is one.
pub(crate) fn matches(equal: Option<&Entry>, entries: &[Entry], entry: &Entry) -> bool {
    let covering = || {
        entries
            .iter()
            .filter_map(|member| covers(member.element(), entry.element()).map(|rank| (rank, member)))
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, member)| member)
    };
    let Some(found) = equal.or_else(covering) else {
        return false;
    };
    let is_same_mac = match (found.element(), entry.element()) {
        (
            Element::IpMac {
                mac: Some(member), ..
            },
            Element::IpMac { mac: Some(given), .. },
        ) => member == given,
        _ => true,
    };
    found.options().nomatch == entry.options().nomatch && is_same_mac
}

/// The index of the entry of a `hash:net,iface` whose prefix of interface names matches the interface of an element.
pub(crate) fn find_by_interface_prefix(entries: &[Entry], element: &Element) -> Option<usize> {
    let Element::NetIface { net, interface } = element else {
        return None;
    };
    entries.iter().position(|entry| match entry.element() {
        Element::NetIface {
            net: member_net,
            interface: member,
        } => {
            member_net == net
                && member.side == interface.side
                && member.matching == InterfaceMatching::Prefix
                && interface.name.as_bytes().starts_with(member.name.as_bytes())
        }
        _ => false,
    })
}

/// The entry as the set stores it, or the error number with which the kernel refuses it.
pub(crate) fn stored_entry(set: &Set, entry: &Entry) -> Result<Entry, i32> {
    let options = &set.options;
    let given = entry.options();
    let set_type = set.set_type;
    let mask = |ip: IpAddr| match (options.netmask, options.bitmask) {
        (Some(prefix_len), _) => masked(ip, prefix_len),
        (_, Some(bitmask)) => and(ip, bitmask),
        _ => ip,
    };
    let mut element = *entry.element();
    match &mut element {
        Element::Ip(ip) => *ip = mask(*ip),
        Element::IpPort { ip, .. } => *ip = mask(*ip),
        Element::NetNet { net, second } if options.netmask.is_some() || options.bitmask.is_some() => {
            let mask_net = |net: Network| Network::new(mask(net.address()), net.prefix_len()).unwrap_or(net);
            (*net, *second) = (mask_net(*net), mask_net(*second));
        }
        Element::IpMark { mark, .. } => *mark &= options.markmask.unwrap_or(u32::MAX),
        _ => {}
    }
    // The kernel checks ports before the options, and everything else after them.
    if let (Element::Port(port), Some(SetRange::Ports(first, last))) = (&element, options.range)
        && (*port < first || *port > last)
    {
        return Err(IPSET_ERR_BITMAP_RANGE);
    }
    if given.timeout.is_some() && options.timeout.is_none() {
        return Err(IPSET_ERR_TIMEOUT);
    }
    if (given.packets.is_some() || given.bytes.is_some()) && !options.counters {
        return Err(IPSET_ERR_COUNTER);
    }
    if given.comment.is_some() && !options.comment {
        return Err(IPSET_ERR_COMMENT);
    }
    let skbinfo = given.skb_mark.is_some() || given.skb_priority.is_some() || given.skb_queue.is_some();
    if skbinfo && !options.skbinfo {
        return Err(IPSET_ERR_SKBINFO);
    }
    match (&element, options.range) {
        (
            Element::Ip(IpAddr::V4(ip))
            | Element::IpMac {
                ip: IpAddr::V4(ip), ..
            },
            Some(SetRange::Addresses(first, last)),
        ) if *ip < first || *ip > last => {
            return Err(IPSET_ERR_BITMAP_RANGE);
        }
        _ => {}
    }
    if set_type.is_hash() {
        match &element {
            Element::Ip(ip) if ip.is_unspecified() => return Err(IPSET_ERR_HASH_ELEM),
            Element::Mac(mac) if mac.0 == [0; 6] => return Err(IPSET_ERR_HASH_ELEM),
            Element::IpMac { mac: Some(mac), .. } if mac.0 == [0; 6] => return Err(IPSET_ERR_HASH_ELEM),
            _ => {}
        }
    }
    Ok(Entry::new(element).with_options(given.clone()))
}

/// The part of an element by which the entries of a set are distinguished.
pub(crate) fn key(set_type: SetType, element: &Element) -> Element {
    match element {
        Element::IpMac { ip, .. } if set_type == SetType::BitmapIpMac => {
            Element::IpMac { ip: *ip, mac: None }
        }
        // A prefix equals every name that it matches.
        Element::NetIface { net, interface } => {
            let interface = Interface {
                matching: InterfaceMatching::Exact,
                ..*interface
            };
            Element::NetIface { net: *net, interface }
        }
        other => *other,
    }
}

/// The prefix lengths of a member whose networks contain the addresses of an entry; `None` if they do not, or if the entry has a
/// network of more than one address.
fn covers(member: &Element, given: &Element) -> Option<(u8, u8)> {
    let cover = |member: &Network, given: &Network| {
        (given.is_host() && member.contains(given.address())).then_some(member.prefix_len())
    };
    match (member, given) {
        (Element::Net(member), Element::Net(given)) => Some((cover(member, given)?, 0)),
        (
            Element::NetPort { net: member, port },
            Element::NetPort {
                net: given,
                port: given_port,
            },
        ) if port == given_port => Some((cover(member, given)?, 0)),
        (
            Element::NetNet { net, second },
            Element::NetNet {
                net: given,
                second: given_second,
            },
        ) => Some((cover(net, given)?, cover(second, given_second)?)),
        (
            Element::NetPortNet { net, port, second },
            Element::NetPortNet {
                net: given,
                port: given_port,
                second: given_second,
            },
        ) if port == given_port => Some((cover(net, given)?, cover(second, given_second)?)),
        (
            Element::IpPortNet { ip, port, net },
            Element::IpPortNet {
                ip: given_ip,
                port: given_port,
                net: given,
            },
        ) if ip == given_ip && port == given_port => Some((cover(net, given)?, 0)),
        (
            Element::NetIface { net, interface },
            Element::NetIface {
                net: given,
                interface: given_interface,
            },
        ) if interface.side == given_interface.side => {
            let is_same = match interface.matching {
                InterfaceMatching::Exact => interface.name == given_interface.name,
                InterfaceMatching::Prefix => given_interface
                    .name
                    .as_bytes()
                    .starts_with(interface.name.as_bytes()),
            };
            is_same.then_some(())?;
            Some((cover(net, given)?, 0))
        }
        _ => None,
    }
}

fn and(ip: IpAddr, mask: IpAddr) -> IpAddr {
    match (ip, mask) {
        (IpAddr::V4(ip), IpAddr::V4(mask)) => IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask.to_bits())),
        (IpAddr::V6(ip), IpAddr::V6(mask)) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask.to_bits())),
        _ => ip,
    }
}
