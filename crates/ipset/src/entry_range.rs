//! Ranges of entries: a range or block of addresses, a range of ports.

mod parse;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::element::{Element, takes_prefix_0};
use crate::entry::Entry;
use crate::network::{Address, Network};
use crate::notation::words;
use crate::parse::ParseError;
use crate::set_family::SetFamily;
use crate::set_type::SetType;

/// Several entries in one argument of `ipset add`, such as `10.0.0.1-10.0.0.9,tcp:80-90`, or `10.0.0.0/24` for a set of
/// addresses. A range of networks consists of the fewest networks that cover it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryRange {
    /// The first entry. For a range of networks its network is the first address.
    pub first: Entry,
    /// The last address of the first dimension; `None` if the dimension is not a range.
    #[doc(alias = "IPSET_ATTR_IP_TO")]
    pub address_to: Option<IpAddr>,
    /// The last port; `None` if the port is not a range.
    #[doc(alias = "IPSET_ATTR_PORT_TO")]
    pub port_to: Option<u16>,
    /// The last address of the second network; `None` if the network is not a range.
    #[doc(alias = "IPSET_ATTR_IP2_TO")]
    pub second_to: Option<IpAddr>,
}

impl EntryRange {
    /// A range of one entry. If its set type does not support a network of prefix length 0, [`Self::entries`] splits the network
    /// in two.
    #[must_use]
    pub fn new(first: Entry) -> Self {
        EntryRange {
            first,
            address_to: None,
            port_to: None,
            second_to: None,
        }
    }

    /// With this last address of the first dimension.
    #[must_use]
    pub fn with_address_to(mut self, last: IpAddr) -> Self {
        self.address_to = Some(last);
        self
    }

    /// With this last port.
    #[must_use]
    pub fn with_port_to(mut self, last: u16) -> Self {
        self.port_to = Some(last);
        self
    }

    /// With this last address of the second network.
    #[must_use]
    pub fn with_second_to(mut self, last: IpAddr) -> Self {
        self.second_to = Some(last);
        self
    }

    /// Parses the arguments of `ipset add` after the set name, for a set of this type and family.
    ///
    /// # Errors
    ///
    /// The first invalid word, or a range in a dimension without ranges.
    pub fn parse(text: &str, set_type: SetType, family: impl Into<SetFamily>) -> Result<Self, ParseError> {
        Self::parse_words(&mut words(text)?.into_iter(), set_type, family.into())
    }

    /// Whether a set of this type and family can hold the entries.
    ///
    /// # Errors
    ///
    /// The reason, as text.
    pub(crate) fn check(&self, set_type: SetType, family: SetFamily) -> Result<(), String> {
        let of_family =
            |address: Option<IpAddr>| address.is_none_or(|address| SetFamily::of(address) == family);
        if !of_family(self.address_to) || !of_family(self.second_to) {
            return Err(format!("the last address of the range is not of family {family}"));
        }
        if self.address_to.is_some()
            && (self.first_address().is_none() || matches!(self.first.element(), Element::IpMac { .. }))
        {
            return Err(format!(
                "set type {set_type} does not support ranges of addresses"
            ));
        }
        if self.port_to.is_some() && self.first_port().is_none() {
            return Err(format!("set type {set_type} does not support ranges of ports"));
        }
        if self.second_to.is_some() && self.second_net().is_none() {
            return Err(format!(
                "set type {set_type} does not support ranges of second networks"
            ));
        }
        // Checking one entry is enough: the others differ only in addresses between two checked ones, and in ports.
        let first = self.entries().next();
        let first = first.as_ref().ok_or("the end of the range is before its start")?;
        first
            .element()
            .check(set_type, family)
            .map_err(|mismatch| mismatch.without_type())
    }

    /// The entry, if the range is one entry.
    ///
    /// # Errors
    ///
    /// The range, if a dimension of it is a range.
    pub fn into_single(self) -> Result<Entry, EntryRange> {
        if self.address_to.is_none() && self.port_to.is_none() && self.second_to.is_none() {
            Ok(self.first)
        } else {
            Err(self)
        }
    }

    /// The number of entries; 0 if the end is before the start, `u128::MAX` for that many or more.
    #[must_use]
    pub fn count(&self) -> u128 {
        let addresses = match (self.first_address(), self.address_to) {
            (Some(First::Ip(first)), Some(last)) => count_addresses(first, last),
            (Some(First::Net(net)), last) => self.networks(net, last).len() as u128,
            _ => 1,
        };
        let ports = match (self.first_port(), self.port_to) {
            (Some(first), Some(last)) => (u128::from(last) + 1).saturating_sub(u128::from(first)),
            _ => 1,
        };
        let seconds = self
            .second_net()
            .map_or(1, |net| self.networks(net, self.second_to).len() as u128);
        addresses.saturating_mul(ports).saturating_mul(seconds)
    }

    /// The entries, ordered by address, then port, then second network. A network of prefix length 0 is replaced by its two
    /// halves if the set type does not support it.
    #[must_use]
    pub fn entries(&self) -> Box<dyn Iterator<Item = Entry> + '_> {
        let firsts: Box<dyn Iterator<Item = Option<First>>> = match (self.first_address(), self.address_to) {
            (Some(First::Ip(first)), Some(last)) => {
                Box::new(addresses(first, last).map(|ip| Some(First::Ip(ip))))
            }
            (Some(First::Net(net)), last) => Box::new(
                self.networks(net, last)
                    .into_iter()
                    .map(|net| Some(First::Net(net))),
            ),
            (first, _) => Box::new(std::iter::once(first)),
        };
        Box::new(firsts.flat_map(move |first| {
            let ports: Box<dyn Iterator<Item = Option<u16>>> = match (self.first_port(), self.port_to) {
                (Some(first), Some(last)) => Box::new((first..=last).map(Some)),
                (first, _) => Box::new(std::iter::once(first)),
            };
            ports.flat_map(move |port| {
                let seconds: Vec<Option<Network>> = match self.second_net() {
                    Some(net) => self.networks(net, self.second_to).into_iter().map(Some).collect(),
                    None => vec![None],
                };
                seconds.into_iter().map(move |second| {
                    let element = with_parts(*self.first.element(), first, port, second);
                    Entry::new(element).with_options(self.first.options().clone())
                })
            })
        }))
    }

    /// Whether the kernel expands the range: it expands ranges of ports, and ranges of IPv4 addresses except networks over the
    /// whole address space.
    #[must_use]
    pub fn is_expanded_by_kernel(&self) -> bool {
        let is_expanded = |first: Option<IpAddr>, last: Option<IpAddr>, networks: bool| match (first, last) {
            (Some(IpAddr::V4(first)), Some(IpAddr::V4(last))) => {
                !(networks && first == Ipv4Addr::UNSPECIFIED && last == Ipv4Addr::BROADCAST)
            }
            (_, Some(_)) => false,
            (_, None) => true,
        };
        let is_split = |net: Option<Network>| net.is_some_and(|net| self.splits(net));
        let (first, networks) = match self.first_address() {
            Some(First::Ip(ip)) => (Some(ip), false),
            Some(First::Net(net)) => (Some(net.address()), true),
            None => (None, false),
        };
        let first_net = match self.first_address() {
            Some(First::Net(net)) => Some(net),
            _ => None,
        };
        is_expanded(first, self.address_to, networks)
            && is_expanded(self.second_net().map(|net| net.address()), self.second_to, true)
            && !is_split(first_net)
            && !is_split(self.second_net())
    }

    fn first_address(&self) -> Option<First> {
        match self.first.element() {
            Element::Ip(ip)
            | Element::IpMac { ip, .. }
            | Element::IpMark { ip, .. }
            | Element::IpPort { ip, .. }
            | Element::IpPortIp { ip, .. }
            | Element::IpPortNet { ip, .. } => Some(First::Ip(*ip)),
            Element::Net(net)
            | Element::NetNet { net, .. }
            | Element::NetPort { net, .. }
            | Element::NetPortNet { net, .. }
            | Element::NetIface { net, .. } => Some(First::Net(*net)),
            Element::Mac(_) | Element::Port(_) | Element::Set(_) => None,
        }
    }

    fn first_port(&self) -> Option<u16> {
        match self.first.element() {
            Element::Port(port) => Some(*port),
            element => element.port().map(|port| port.port),
        }
    }

    fn second_net(&self) -> Option<Network> {
        match self.first.element() {
            Element::IpPortNet { net, .. } => Some(*net),
            Element::NetNet { second, .. } | Element::NetPortNet { second, .. } => Some(*second),
            _ => None,
        }
    }

    /// The networks from `net` up to `last`, split if the set type does not support them.
    fn networks(&self, net: Network, last: Option<IpAddr>) -> Vec<Network> {
        let networks = match last {
            Some(last) => Network::cover(net.address(), last),
            None => vec![net],
        };
        networks
            .into_iter()
            .flat_map(|net| match net.halves() {
                Some(halves) if self.splits(net) => halves.to_vec(),
                _ => vec![net],
            })
            .collect()
    }

    /// Whether the set type requires that a network is split in two.
    fn splits(&self, net: Network) -> bool {
        let set_type = match self.first.element() {
            Element::NetPortNet { .. } => SetType::HashNetPortNet,
            Element::NetIface { .. } => SetType::HashNetIface,
            _ => SetType::HashNet,
        };
        net.prefix_len() == 0 && !takes_prefix_0(set_type)
    }
}

/// The argument of `ipset add`.
impl fmt::Display for EntryRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = ElementParts(self.first.element().to_string());
        // The dimensions are printed in order, separated by commas, and none of them contains a comma.
        if let Some(last) = self.address_to {
            parts.append(0, format_args!("-{}", Address(last)));
        }
        if let Some(last) = self.port_to {
            let index = usize::from(!matches!(self.first.element(), Element::Port(_)));
            parts.append(index, format_args!("-{last}"));
        }
        if let Some(last) = self.second_to {
            let index = if matches!(self.first.element(), Element::NetNet { .. }) {
                1
            } else {
                2
            };
            parts.append(index, format_args!("-{}", Address(last)));
        }
        f.write_str(&parts.0)?;
        self.first.options().write(f, self.first.element().wildcard())
    }
}

impl From<Entry> for EntryRange {
    fn from(entry: Entry) -> Self {
        EntryRange::new(entry)
    }
}

/// The first dimension of an entry with addresses.
#[derive(Clone, Copy)]
enum First {
    Ip(IpAddr),
    Net(Network),
}

/// The text of an element, for insertions after a dimension.
struct ElementParts(String);

impl ElementParts {
    fn append(&mut self, index: usize, text: fmt::Arguments<'_>) {
        let end = self
            .0
            .match_indices(',')
            .nth(index)
            .map_or(self.0.len(), |(at, _)| at);
        self.0.insert_str(end, &text.to_string());
    }
}

/// The element with other values in its dimensions.
fn with_parts(element: Element, first: Option<First>, port: Option<u16>, second: Option<Network>) -> Element {
    let mut element = element;
    match (&mut element, first) {
        (
            Element::Ip(ip)
            | Element::IpMac { ip, .. }
            | Element::IpMark { ip, .. }
            | Element::IpPort { ip, .. }
            | Element::IpPortIp { ip, .. }
            | Element::IpPortNet { ip, .. },
            Some(First::Ip(value)),
        ) => *ip = value,
        (
            Element::Net(net)
            | Element::NetNet { net, .. }
            | Element::NetPort { net, .. }
            | Element::NetPortNet { net, .. }
            | Element::NetIface { net, .. },
            Some(First::Net(value)),
        ) => *net = value,
        _ => {}
    }
    match (&mut element, port) {
        (Element::Port(port), Some(value)) => *port = value,
        (
            Element::IpPort { port, .. }
            | Element::IpPortIp { port, .. }
            | Element::IpPortNet { port, .. }
            | Element::NetPort { port, .. }
            | Element::NetPortNet { port, .. },
            Some(value),
        ) => port.port = value,
        _ => {}
    }
    match (&mut element, second) {
        (Element::IpPortNet { net, .. }, Some(value)) => *net = value,
        (Element::NetNet { second, .. } | Element::NetPortNet { second, .. }, Some(value)) => *second = value,
        _ => {}
    }
    element
}

/// The number of addresses from `first` to `last`.
fn count_addresses(first: IpAddr, last: IpAddr) -> u128 {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            (u128::from(last.to_bits()) + 1).saturating_sub(u128::from(first.to_bits()))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
            (last.to_bits() - first.to_bits()).saturating_add(1)
        }
        _ => 0,
    }
}

fn addresses(first: IpAddr, last: IpAddr) -> Box<dyn Iterator<Item = IpAddr>> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Box::new((first.to_bits()..=last.to_bits()).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Box::new((first.to_bits()..=last.to_bits()).map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))))
        }
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(set_type: SetType, text: &str) -> EntryRange {
        let family = if text.contains("::") {
            SetFamily::Inet6
        } else {
            SetFamily::Inet
        };
        EntryRange::parse(text, set_type, family).unwrap_or_else(|error| panic!("{set_type} {text}: {error}"))
    }

    #[test]
    fn a_range_expands_to_addresses_ports_and_networks() {
        let expand = |set_type, text: &str| -> Vec<String> {
            let range = range(set_type, text);
            let entries: Vec<String> = range.entries().map(|entry| entry.to_string()).collect();
            assert_eq!(range.count(), entries.len() as u128, "{text}");
            entries
        };
        assert_eq!(
            expand(SetType::HashIpPort, "10.0.0.1-10.0.0.2,tcp:80-81"),
            [
                "10.0.0.1,tcp:80",
                "10.0.0.1,tcp:81",
                "10.0.0.2,tcp:80",
                "10.0.0.2,tcp:81"
            ]
        );
        assert_eq!(
            expand(SetType::HashIp, "10.0.0.0/30"),
            ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"]
        );
        assert_eq!(expand(SetType::BitmapPort, "82-80"), ["80", "81", "82"]);
        assert_eq!(
            expand(SetType::HashNet, "10.0.0.1-10.0.0.3 nomatch"),
            ["10.0.0.1 nomatch", "10.0.0.2/31 nomatch"]
        );
        assert_eq!(
            expand(SetType::HashNet, "0.0.0.0/0"),
            ["0.0.0.0/1", "128.0.0.0/1"]
        );
        assert_eq!(
            expand(SetType::HashNetIface, "0.0.0.0/0,eth0"),
            ["0.0.0.0/0,eth0"]
        );
        assert_eq!(
            expand(
                SetType::HashIpPortNet,
                "10.0.0.1,tcp:1,::/0".replace("::", "0.0.0.0").as_str()
            ),
            ["10.0.0.1,tcp:1,0.0.0.0/1", "10.0.0.1,tcp:1,128.0.0.0/1"]
        );
        assert_eq!(
            range(SetType::HashIp, "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff").count(),
            u128::MAX
        );
        assert_eq!(range(SetType::HashIpMark, "0.0.0.0/0,0x1").count(), 1 << 32);
    }

    #[test]
    fn ranges_print_as_arguments_of_ipset() {
        for (set_type, text) in [
            (SetType::HashIpPort, "10.0.0.1-10.0.0.2,tcp:80-81 timeout 5"),
            (SetType::HashIp, "10.0.0.0-10.0.0.3"),
            (SetType::BitmapPort, "80-82"),
            (SetType::HashNetNet, "10.0.0.1-10.0.0.3,10.0.0.1-10.0.0.6"),
            (SetType::HashIpPortNet, "10.0.0.1,tcp:7,10.0.0.1-10.0.0.3"),
            (
                SetType::HashNetPortNet,
                "10.0.0.1-10.0.0.3,tcp:7-9,10.0.0.1-10.0.0.3",
            ),
        ] {
            assert_eq!(range(set_type, text).to_string(), text);
        }
    }

    #[test]
    fn ranges_that_the_kernel_does_not_expand_are_recognised() {
        let is_expanded = |set_type, text: &str| range(set_type, text).is_expanded_by_kernel();
        assert!(is_expanded(SetType::HashIp, "0.0.0.0-255.255.255.255"));
        assert!(is_expanded(SetType::HashIpPort, "fe80::1,tcp:1-9"));
        assert!(is_expanded(SetType::HashNet, "10.0.0.1-10.0.0.3"));
        assert!(!is_expanded(SetType::HashNet, "0.0.0.0/0"));
        assert!(!is_expanded(SetType::HashIp, "fe80::/120"));
        assert!(!is_expanded(SetType::HashNet, "fe80::1-fe80::9"));
    }

    #[test]
    fn a_range_in_a_dimension_without_ranges_is_refused() {
        let error = |set_type, text: &str| {
            EntryRange::parse(text, set_type, SetFamily::Inet)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(SetType::HashIpPortIp, "10.0.0.1,tcp:1,10.0.0.0/24"),
            "address \"10.0.0.0/24\" is a network; expected one address"
        );
        assert_eq!(
            error(SetType::HashIpMac, "10.0.0.0/24,0a:0b:cc:01:02:03"),
            "entry \"10.0.0.0/24,0a:0b:cc:01:02:03\" is invalid: set type hash:ip,mac does not support ranges of addresses"
        );
        assert_eq!(
            error(SetType::HashIp, "10.0.0.1-::1"),
            "address range \"10.0.0.1-::1\" mixes IPv4 and IPv6"
        );
    }
}
