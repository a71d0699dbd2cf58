//! Parsing of entries and ranges.

use std::net::IpAddr;

use kernlink_base::Protocol;

use super::EntryRange;
use crate::element::{Element, Interface, InterfaceMatching, InterfaceSide};
use crate::entry::Entry;
use crate::entry_options::{EntryOptions, Position};
use crate::name::{InterfaceName, SetName};
use crate::network::{Network, parse_address};
use crate::notation::Word;
use crate::parse::{self, ParseError};
use crate::protocol_port::{ProtocolPort, parse_port_range, parse_protocol};
use crate::set_family::SetFamily;
use crate::set_type::SetType;

impl EntryRange {
    /// Parses the element and the options after it.
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
}

/// Splits the old form of a member with its position, `MEMBER,before,OTHER` or `MEMBER,after,OTHER`.
fn split_position(text: &str) -> Result<(&str, Option<Position>), ParseError> {
    let Some((member, position)) = text.split_once(',') else {
        return Ok((text, None));
    };
    let other =
        |other| SetName::new(other).map_err(|error| ParseError::new("set name", other, error.reason()));
    match position.split_once(',') {
        Some(("before", reference)) => Ok((member, Some(Position::Before(other(reference)?)))),
        Some(("after", reference)) => Ok((member, Some(Position::After(other(reference)?)))),
        _ => Err(ParseError::new(
            "entry",
            text,
            "is neither MEMBER, MEMBER,before,OTHER nor MEMBER,after,OTHER",
        )),
    }
}

/// Parses the dimensions, separated by commas.
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

/// The ends of the ranges in an element.
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
    // A range that is one block becomes that block, so that equal ranges are equal values.
    match Network::cover(first, last).as_slice() {
        [network] => Ok((*network, None)),
        _ => Ok((Network::from(first), Some(last))),
    }
}

/// The two addresses, the lower one first.
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
