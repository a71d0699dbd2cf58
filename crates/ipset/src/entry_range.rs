//! Entries that one command names together: a range or block of addresses, a range of ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernlink_base::Protocol;

use crate::element::{Element, Interface, InterfaceMatching, InterfaceSide, takes_prefix_0};
use crate::entry::Entry;
use crate::entry_options::{EntryOptions, Position};
use crate::name::{InterfaceName, SetName};
use crate::network::{Address, Network, parse_address};
use crate::notation::{Word, words};
use crate::parse::{self, ParseError};
use crate::protocol_port::{ProtocolPort, parse_port_range, parse_protocol};
use crate::set_family::SetFamily;
use crate::set_type::SetType;

/// Entries that one command names together, such as `10.0.0.1-10.0.0.9,tcp:80-90` or the `10.0.0.0/24` of a set of
/// addresses. A range of networks means the fewest networks that cover it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryRange {
    /// The first entry. Of a range of networks its network is the first address.
    pub first: Entry,
    /// The last address of the first dimension; `None` where that is no range.
    #[doc(alias = "IPSET_ATTR_IP_TO")]
    pub address_to: Option<IpAddr>,
    /// The last port; `None` where the port is no range.
    #[doc(alias = "IPSET_ATTR_PORT_TO")]
    pub port_to: Option<u16>,
    /// The last address of the second network; `None` where that is no range.
    #[doc(alias = "IPSET_ATTR_IP2_TO")]
    pub second_to: Option<IpAddr>,
}

impl EntryRange {
    /// One entry, as a range of one. A network of prefix length 0 in a set type that cannot hold it counts as a range,
    /// which [`Self::entries`] splits in two.
    pub fn new(first: Entry) -> Self {
        EntryRange {
            first,
            address_to: None,
            port_to: None,
            second_to: None,
        }
    }

    /// Up to this last address of the first dimension.
    pub fn with_address_to(mut self, last: IpAddr) -> Self {
        self.address_to = Some(last);
        self
    }

    /// Up to this last port.
    pub fn with_port_to(mut self, last: u16) -> Self {
        self.port_to = Some(last);
        self
    }

    /// Up to this last address of the second network.
    pub fn with_second_to(mut self, last: IpAddr) -> Self {
        self.second_to = Some(last);
        self
    }

    /// Reads what `ipset add` takes for a set of this type and family.
    ///
    /// # Errors
    ///
    /// The word that is wrong, or a range in a dimension that has none.
    pub fn parse(text: &str, set_type: SetType, family: impl Into<SetFamily>) -> Result<Self, ParseError> {
        Self::parse_words(&mut words(text)?.into_iter(), set_type, family.into())
    }

    pub(crate) fn parse_words<'a>(
        words: &mut dyn Iterator<Item = Word<'a>>,
        set_type: SetType,
        family: SetFamily,
    ) -> Result<Self, ParseError> {
        let element = words.next().map(|word| word.text).unwrap_or_default();
        let (element, position) = match set_type {
            SetType::ListSet => split_position(element)?,
            _ => (element, None),
        };
        let mut range = parse_element(element, set_type)?;
        let mut options = EntryOptions {
            position,
            ..EntryOptions::default()
        };
        while let Some(Word { text: word, .. }) = words.next() {
            if position.is_some() && matches!(word, "before" | "after") {
                return Err(ParseError::new(
                    "entry option",
                    word,
                    "gives the position a second time",
                ));
            }
            if word == "wildcard"
                && let Element::NetIface { net, interface } = *range.first.element()
            {
                range.first = Entry::net_iface(net, interface.with_matching(InterfaceMatching::Prefix));
            } else if !options.set_word(word, &mut || words.next().map(|word| word.text))? {
                return Err(ParseError::new(
                    "entry option",
                    word,
                    format_args!("is unknown or not valid for set type {set_type}"),
                ));
            }
        }
        range.first = range.first.with_options(options);
        range
            .check(set_type, family)
            .map_err(|reason| ParseError::new("entry", element, format_args!("is invalid: {reason}")))?;
        Ok(range)
    }

    /// Whether a set of this type and family can hold the entries.
    ///
    /// # Errors
    ///
    /// What is wrong, as text.
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
        // One of them stands for all: they differ in what lies between two checked addresses.
        let example = self.entries().next();
        let example = example
            .as_ref()
            .ok_or("the end of the range is before its start")?;
        example
            .element()
            .check(set_type, family)
            .map_err(|mismatch| mismatch.without_type())
    }

    /// The entry, where it is only one.
    ///
    /// # Errors
    ///
    /// The range back, where it is many.
    pub fn into_single(self) -> Result<Entry, EntryRange> {
        if self.address_to.is_none() && self.port_to.is_none() && self.second_to.is_none() {
            Ok(self.first)
        } else {
            Err(self)
        }
    }

    /// How many entries it stands for; 0 where it ends before it begins, `u128::MAX` for that many or more.
    pub fn count(&self) -> u128 {
        let addresses = match (self.first_address(), self.address_to) {
            (Some(First::Ip(first)), Some(last)) => distance(first, last),
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

    /// The entries one by one, addresses first, then ports, then second networks. A network of prefix length 0 comes
    /// as its two halves where the set type cannot hold it.
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

    /// Whether the kernel spreads the range itself: it does for ports, and for addresses of IPv4 except the whole
    /// space as networks.
    pub fn is_expanded_by_kernel(&self) -> bool {
        let spread = |first: Option<IpAddr>, last: Option<IpAddr>, networks: bool| match (first, last) {
            (Some(IpAddr::V4(first)), Some(IpAddr::V4(last))) => {
                !(networks && first == Ipv4Addr::UNSPECIFIED && last == Ipv4Addr::BROADCAST)
            }
            (_, Some(_)) => false,
            (_, None) => true,
        };
        let whole = |net: Option<Network>| net.is_some_and(|net| self.splits(net));
        let (first, networks) = match self.first_address() {
            Some(First::Ip(ip)) => (Some(ip), false),
            Some(First::Net(net)) => (Some(net.address()), true),
            None => (None, false),
        };
        let first_net = match self.first_address() {
            Some(First::Net(net)) => Some(net),
            _ => None,
        };
        spread(first, self.address_to, networks)
            && spread(self.second_net().map(|net| net.address()), self.second_to, true)
            && !whole(first_net)
            && !whole(self.second_net())
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

    /// The networks from `net` up to `last`, without one that the set type cannot hold.
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

    fn splits(&self, net: Network) -> bool {
        let set_type = match self.first.element() {
            Element::NetPortNet { .. } => SetType::HashNetPortNet,
            Element::NetIface { .. } => SetType::HashNetIface,
            _ => SetType::HashNet,
        };
        net.prefix_len() == 0 && !takes_prefix_0(set_type)
    }
}

/// As `ipset add` takes it.
impl fmt::Display for EntryRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = ElementParts(self.first.element().to_string());
        // The dimensions are printed in order with commas between, and none of them holds a comma.
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

#[derive(Clone, Copy)]
enum First {
    Ip(IpAddr),
    Net(Network),
}

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

fn distance(first: IpAddr, last: IpAddr) -> u128 {
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

/// The dimensions of one entry or range, as text with commas between them.
/// The member of a list and its place in the old form, `MEMBER,before,OTHER` or `MEMBER,after,OTHER`.
fn split_position(text: &str) -> Result<(&str, Option<Position>), ParseError> {
    let Some((member, place)) = text.split_once(',') else {
        return Ok((text, None));
    };
    let other =
        |other| SetName::new(other).map_err(|error| ParseError::new("set name", other, error.reason()));
    match place.split_once(',') {
        Some(("before", reference)) => Ok((member, Some(Position::Before(other(reference)?)))),
        Some(("after", reference)) => Ok((member, Some(Position::After(other(reference)?)))),
        _ => Err(ParseError::new(
            "entry",
            text,
            "is neither MEMBER, MEMBER,before,OTHER nor MEMBER,after,OTHER",
        )),
    }
}

fn parse_element(text: &str, set_type: SetType) -> Result<EntryRange, ParseError> {
    let expected = set_type.dimensions();
    let parts: Vec<&str> = text.split(',').collect();
    let without_mac = set_type == SetType::BitmapIpMac && parts.len() == 1;
    if expected.is_empty() || (parts.len() != expected.len() && !without_mac) {
        let reason = if expected.is_empty() {
            format!("cannot be parsed: set type {set_type} is not supported")
        } else {
            format!(
                "has {} dimensions; set type {set_type} has {}",
                parts.len(),
                expected.len()
            )
        };
        return Err(ParseError::new("entry", text, reason));
    }
    let part = |index: usize| parts.get(index).copied().unwrap_or_default();
    let mut range = Ranges::default();
    let element = match set_type {
        SetType::BitmapIp | SetType::HashIp => Element::Ip(range.ip(part(0))?),
        SetType::BitmapIpMac | SetType::HashIpMac => {
            let mac = if without_mac { None } else { Some(part(1).parse()?) };
            Element::IpMac {
                ip: range.ip(part(0))?,
                mac,
            }
        }
        SetType::HashIpMark => {
            let mark = parse::number("mark", part(1), u64::from(u32::MAX))?;
            Element::IpMark {
                ip: range.ip(part(0))?,
                mark: u32::try_from(mark).unwrap_or_default(),
            }
        }
        SetType::HashIpPort => Element::IpPort {
            ip: range.ip(part(0))?,
            port: range.port(part(1))?,
        },
        SetType::HashIpPortIp => Element::IpPortIp {
            ip: range.ip(part(0))?,
            port: range.port(part(1))?,
            second: parse_host(part(2))?,
        },
        SetType::HashIpPortNet => Element::IpPortNet {
            ip: range.ip(part(0))?,
            port: range.port(part(1))?,
            net: range.second(part(2))?,
        },
        SetType::HashMac => Element::Mac(part(0).parse()?),
        SetType::HashNet => Element::Net(range.net(part(0))?),
        SetType::HashNetNet => Element::NetNet {
            net: range.net(part(0))?,
            second: range.second(part(1))?,
        },
        SetType::HashNetPort => Element::NetPort {
            net: range.net(part(0))?,
            port: range.port(part(1))?,
        },
        SetType::HashNetPortNet => Element::NetPortNet {
            net: range.net(part(0))?,
            port: range.port(part(1))?,
            second: range.second(part(2))?,
        },
        SetType::HashNetIface => Element::NetIface {
            net: range.net(part(0))?,
            interface: parse_interface(part(1))?,
        },
        SetType::BitmapPort => Element::Port(range.plain_port(part(0))?),
        SetType::ListSet | SetType::Unknown(_) => Element::Set(
            SetName::new(text).map_err(|error| ParseError::new("set name", text, error.reason()))?,
        ),
    };
    Ok(EntryRange {
        first: element.into(),
        address_to: range.address_to,
        port_to: range.port_to,
        second_to: range.second_to,
    })
}

#[derive(Default)]
struct Ranges {
    address_to: Option<IpAddr>,
    port_to: Option<u16>,
    second_to: Option<IpAddr>,
}

impl Ranges {
    fn ip(&mut self, text: &str) -> Result<IpAddr, ParseError> {
        let (first, last) = match (text.split_once('-'), text.contains('/')) {
            (Some((first, last)), _) => ordered(text, parse_address(first)?, parse_address(last)?)?,
            (None, true) => {
                let network: Network = text.parse()?;
                (network.address(), network.last_address())
            }
            (None, false) => {
                let address = parse_address(text)?;
                (address, address)
            }
        };
        self.address_to = (first != last).then_some(last);
        Ok(first)
    }

    fn net(&mut self, text: &str) -> Result<Network, ParseError> {
        let (network, last) = parse_networks(text)?;
        self.address_to = last;
        Ok(network)
    }

    fn second(&mut self, text: &str) -> Result<Network, ParseError> {
        let (network, last) = parse_networks(text)?;
        self.second_to = last;
        Ok(network)
    }

    fn port(&mut self, text: &str) -> Result<ProtocolPort, ParseError> {
        let (port, last) = ProtocolPort::parse_range(text)?;
        self.port_to = last;
        Ok(port)
    }

    fn plain_port(&mut self, text: &str) -> Result<u16, ParseError> {
        let (protocol, port) = match text.split_once(':') {
            Some((protocol, port)) => (parse_protocol(protocol)?, port),
            None => (Protocol::TCP, text),
        };
        if !matches!(protocol, Protocol::TCP | Protocol::UDP) {
            return Err(ParseError::new("port", text, "must be a port of tcp or udp"));
        }
        let (port, last) = parse_port_range(port, protocol)?;
        self.port_to = last;
        Ok(port)
    }
}

fn parse_networks(text: &str) -> Result<(Network, Option<IpAddr>), ParseError> {
    let Some((first, last)) = text.split_once('-') else {
        return Ok((text.parse()?, None));
    };
    let (first, last) = ordered(text, parse_address(first)?, parse_address(last)?)?;
    // A range that is one block is that block, so that equality is equality of values.
    match Network::cover(first, last).as_slice() {
        [network] => Ok((*network, None)),
        _ => Ok((Network::from(first), Some(last))),
    }
}

fn ordered(text: &str, first: IpAddr, last: IpAddr) -> Result<(IpAddr, IpAddr), ParseError> {
    if SetFamily::of(first) != SetFamily::of(last) {
        return Err(ParseError::new("address range", text, "mixes IPv4 and IPv6"));
    }
    Ok((first.min(last), first.max(last)))
}

fn parse_host(text: &str) -> Result<IpAddr, ParseError> {
    let network: Network = text.parse()?;
    if network.is_host() {
        Ok(network.address())
    } else {
        Err(ParseError::new(
            "address",
            text,
            "is a network; expected one address",
        ))
    }
}

fn parse_interface(text: &str) -> Result<Interface, ParseError> {
    let (name, side) = match text.strip_prefix("physdev:") {
        Some(name) => (name, InterfaceSide::BridgePort),
        None => (text, InterfaceSide::Device),
    };
    let name =
        InterfaceName::new(name).map_err(|error| ParseError::new("interface", text, error.reason()))?;
    Ok(Interface::new(name).with_side(side))
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
    fn a_range_spreads_over_addresses_ports_and_networks() {
        let spread = |set_type, text: &str| -> Vec<String> {
            let range = range(set_type, text);
            let entries: Vec<String> = range.entries().map(|entry| entry.to_string()).collect();
            assert_eq!(range.count(), entries.len() as u128, "{text}");
            entries
        };
        assert_eq!(
            spread(SetType::HashIpPort, "10.0.0.1-10.0.0.2,tcp:80-81"),
            [
                "10.0.0.1,tcp:80",
                "10.0.0.1,tcp:81",
                "10.0.0.2,tcp:80",
                "10.0.0.2,tcp:81"
            ]
        );
        assert_eq!(
            spread(SetType::HashIp, "10.0.0.0/30"),
            ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"]
        );
        assert_eq!(spread(SetType::BitmapPort, "82-80"), ["80", "81", "82"]);
        assert_eq!(
            spread(SetType::HashNet, "10.0.0.1-10.0.0.3 nomatch"),
            ["10.0.0.1 nomatch", "10.0.0.2/31 nomatch"]
        );
        assert_eq!(
            spread(SetType::HashNet, "0.0.0.0/0"),
            ["0.0.0.0/1", "128.0.0.0/1"]
        );
        assert_eq!(
            spread(SetType::HashNetIface, "0.0.0.0/0,eth0"),
            ["0.0.0.0/0,eth0"]
        );
        assert_eq!(
            spread(
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
    fn ranges_print_as_ipset_takes_them() {
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
    fn what_the_kernel_does_not_spread_is_known() {
        let spread = |set_type, text: &str| range(set_type, text).is_expanded_by_kernel();
        assert!(spread(SetType::HashIp, "0.0.0.0-255.255.255.255"));
        assert!(spread(SetType::HashIpPort, "fe80::1,tcp:1-9"));
        assert!(spread(SetType::HashNet, "10.0.0.1-10.0.0.3"));
        assert!(!spread(SetType::HashNet, "0.0.0.0/0"));
        assert!(!spread(SetType::HashIp, "fe80::/120"));
        assert!(!spread(SetType::HashNet, "fe80::1-fe80::9"));
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
