//! Which entries a set holds, and which addresses are in it.

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

/// A listed set, to test entries against.
pub(crate) struct Members {
    contents: SetContents,
    /// Place of each entry by identity.
    places: HashMap<Element, usize>,
}

impl Members {
    pub(crate) fn new(contents: SetContents) -> Self {
        let set_type = contents.header.set.set_type;
        let entries = contents.entries.iter().enumerate();
        let places = entries.map(|(place, entry)| (identity(set_type, entry.element()), place));
        Members {
            places: places.collect(),
            contents,
        }
    }

    /// Whether an entry is in the set. An entry that the set refuses for its options or its range is not in it, as in the
    /// kernel's answer.
    pub(crate) fn test(&self, entry: &Entry, action: &dyn Fn() -> Action) -> Result<bool, Error> {
        let SetContents { header, entries } = &self.contents;
        let set_type = header.set.set_type;
        let checked = entry.element().check(set_type, header.set.family);
        checked.map_err(|mismatch| Error::invalid_entry(action(), mismatch))?;
        check_options(entry, set_type, action)?;
        let Ok(kept) = kept(&header.set, entry) else {
            return Ok(false);
        };
        let place = self.places.get(&identity(set_type, kept.element())).copied();
        let place = place.or_else(|| by_interface_prefix(entries, kept.element()));
        Ok(matches(
            place.and_then(|place| entries.get(place)),
            entries,
            &kept,
        ))
    }
}

/// As the kernel tests: the smallest networks that cover the entry decide, and an exception is not in the set. `same` is
/// the member that is equal to the entry, if there is one.
pub(crate) fn matches(same: Option<&Entry>, entries: &[Entry], entry: &Entry) -> bool {
    let covering = || {
        entries
            .iter()
            .filter_map(|kept| covers(kept.element(), entry.element()).map(|rank| (rank, kept)))
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, kept)| kept)
    };
    let Some(found) = same.or_else(covering) else {
        return false;
    };
    let is_same_mac = match (found.element(), entry.element()) {
        (Element::IpMac { mac: Some(kept), .. }, Element::IpMac { mac: Some(given), .. }) => kept == given,
        _ => true,
    };
    found.options().nomatch == entry.options().nomatch && is_same_mac
}

/// The member of a `hash:net,iface` whose first part of a name matches the name of an element.
pub(crate) fn by_interface_prefix(entries: &[Entry], element: &Element) -> Option<usize> {
    let Element::NetIface { net, interface } = element else {
        return None;
    };
    entries.iter().position(|entry| match entry.element() {
        Element::NetIface {
            net: there,
            interface: kept,
        } => {
            there == net
                && kept.side == interface.side
                && kept.matching == InterfaceMatching::Prefix
                && interface.name.as_bytes().starts_with(kept.name.as_bytes())
        }
        _ => false,
    })
}

/// The entry as the set keeps it, or why it cannot.
pub(crate) fn kept(set: &Set, entry: &Entry) -> Result<Entry, i32> {
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
            let kept = |net: Network| Network::new(mask(net.address()), net.prefix_len()).unwrap_or(net);
            (*net, *second) = (kept(*net), kept(*second));
        }
        Element::IpMark { mark, .. } => *mark &= options.markmask.unwrap_or(u32::MAX),
        _ => {}
    }
    // The kernel looks at ports before the options, at everything else behind them.
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

/// What tells members apart.
pub(crate) fn identity(set_type: SetType, element: &Element) -> Element {
    match element {
        Element::IpMac { ip, .. } if set_type == SetType::BitmapIpMac => {
            Element::IpMac { ip: *ip, mac: None }
        }
        // A first part of a name is equal to every name that it matches.
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

/// Whether a member's networks cover those of an entry of single addresses, and how closely.
fn covers(kept: &Element, given: &Element) -> Option<(u8, u8)> {
    let cover = |kept: &Network, given: &Network| {
        (given.is_host() && kept.contains(given.address())).then_some(kept.prefix_len())
    };
    match (kept, given) {
        (Element::Net(kept), Element::Net(given)) => Some((cover(kept, given)?, 0)),
        (
            Element::NetPort { net: kept, port },
            Element::NetPort {
                net: given,
                port: given_port,
            },
        ) if port == given_port => Some((cover(kept, given)?, 0)),
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
