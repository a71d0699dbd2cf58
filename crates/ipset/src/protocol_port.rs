//! A protocol with a port.

use std::fmt;
use std::str::FromStr;

use kernlink_base::Protocol;

use crate::parse::{self, ParseError};
use crate::service_names;

/// A protocol with its port, or with the type and code of an ICMP message: `tcp:80` in an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProtocolPort {
    /// The protocol; not 0.
    #[doc(alias = "IPSET_ATTR_PROTO")]
    pub protocol: Protocol,
    /// The port, 0 to 65535. With ICMP: type << 8 | code. With a protocol without ports: 0.
    #[doc(alias = "IPSET_ATTR_PORT")]
    pub port: u16,
}

impl ProtocolPort {
    /// A port of a protocol.
    #[must_use]
    pub fn new(protocol: Protocol, port: u16) -> Self {
        ProtocolPort { protocol, port }
    }

    /// `tcp:port`.
    #[must_use]
    pub fn tcp(port: u16) -> Self {
        Self::new(Protocol::TCP, port)
    }

    /// `udp:port`.
    #[must_use]
    pub fn udp(port: u16) -> Self {
        Self::new(Protocol::UDP, port)
    }

    /// `sctp:port`.
    #[must_use]
    pub fn sctp(port: u16) -> Self {
        Self::new(Protocol::SCTP, port)
    }

    /// An ICMP message of IPv4 by type and code.
    #[must_use]
    pub fn icmp(message_type: u8, code: u8) -> Self {
        Self::new(Protocol::ICMP, u16::from_be_bytes([message_type, code]))
    }

    /// An ICMP message of IPv6 by type and code.
    #[must_use]
    pub fn icmpv6(message_type: u8, code: u8) -> Self {
        Self::new(Protocol::ICMPV6, u16::from_be_bytes([message_type, code]))
    }

    /// Whether the kernel stores a port with the protocol. With every other protocol except ICMP it stores port 0
    /// ([`ip_set_proto_with_ports`](https://elixir.bootlin.com/linux/v6.1/source/include/linux/netfilter/ipset/ip_set_getport.h)).
    pub(crate) fn has_port(self) -> bool {
        has_ports(self.protocol)
    }

    /// Parses `proto:port`, `port` (of TCP, as in ipset(8)) or `proto:first-last`; the second value is the last port. A port may
    /// be the name of a service.
    pub(crate) fn parse_range(text: &str) -> Result<(Self, Option<u16>), ParseError> {
        let (protocol, port) = match text.split_once(':') {
            Some((protocol, port)) => (parse_protocol(protocol)?, port),
            None => (Protocol::TCP, text),
        };
        if protocol.is_icmp() {
            return Ok((Self::new(protocol, icmp_message(protocol, port)?), None));
        }
        if !has_ports(protocol) {
            return match port {
                "0" => Ok((Self::new(protocol, 0), None)),
                _ => Err(ParseError::new(
                    "port",
                    text,
                    "must be 0, because the protocol has no ports",
                )),
            };
        }
        let (first, last) = parse_port_range(port, protocol)?;
        Ok((Self::new(protocol, first), last))
    }
}

impl fmt::Display for ProtocolPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.protocol.is_icmp() {
            return write!(f, "{}:{}", self.protocol, self.port);
        }
        let names = icmp_names(self.protocol);
        match names.iter().find(|(message, _)| *message == self.port) {
            Some((_, name)) => write!(f, "{}:{name}", self.protocol),
            None => {
                let [message_type, code] = self.port.to_be_bytes();
                write!(f, "{}:{message_type}/{code}", self.protocol)
            }
        }
    }
}

impl fmt::Debug for ProtocolPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ProtocolPort {
    type Err = ParseError;

    /// Parses `proto:port`, or `port` for TCP. A range of ports is an error. Names of services are looked up in `/etc/services`
    /// of this host.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        match Self::parse_range(text)? {
            (port, None) => Ok(port),
            (_, Some(_)) => Err(ParseError::new("port", text, "is a range; expected one port")),
        }
    }
}

fn has_ports(protocol: Protocol) -> bool {
    matches!(
        protocol,
        Protocol::TCP | Protocol::UDP | Protocol::SCTP | Protocol::UDPLITE
    )
}

/// Parses a name in any case, or a number from 1 to 255.
pub(crate) fn parse_protocol(text: &str) -> Result<Protocol, ParseError> {
    text.parse().map_err(|_| {
        ParseError::new(
            "protocol",
            text,
            "is neither a known protocol name nor a number from 1 to 255",
        )
    })
}

/// Parses `first` or `first-last`, each a number or the name of a service of the protocol. If `last` is the smaller one, the two
/// are exchanged, as in the kernel. A name with a dash is written in brackets, `[ftp-data]`, as for ipset(8).
pub(crate) fn parse_port_range(text: &str, protocol: Protocol) -> Result<(u16, Option<u16>), ParseError> {
    let (first, last) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, None),
        Some((name, rest)) => match rest.strip_prefix('-') {
            Some(last) => (name, Some(last)),
            None => {
                return Err(ParseError::new(
                    "port",
                    text,
                    "has text after its closing bracket",
                ));
            }
        },
        None => text
            .split_once('-')
            .map_or((text, None), |(first, last)| (first, Some(last))),
    };
    let Some(last) = last else {
        return Ok((parse_port(first, protocol)?, None));
    };
    let last = last
        .strip_prefix('[')
        .and_then(|last| last.strip_suffix(']'))
        .unwrap_or(last);
    let (first, last) = (parse_port(first, protocol)?, parse_port(last, protocol)?);
    let (first, last) = (first.min(last), first.max(last));
    Ok((first, (last > first).then_some(last)))
}

fn parse_port(text: &str, protocol: Protocol) -> Result<u16, ParseError> {
    if text.starts_with(|c: char| c.is_ascii_digit()) || text.is_empty() {
        let number = parse::number("port", text, u64::from(u16::MAX));
        // Bounded by the argument, so the conversion cannot fail.
        return match number {
            Ok(number) => Ok(u16::try_from(number).unwrap_or_default()),
            Err(error) => service_names::port(text, protocol).ok_or(error),
        };
    }
    service_names::port(text, protocol).ok_or_else(|| {
        let reason =
            format_args!("is neither a number from 0 to 65535 nor a service of {protocol} in /etc/services");
        ParseError::new("port", text, reason)
    })
}

fn icmp_message(protocol: Protocol, text: &str) -> Result<u16, ParseError> {
    let lower = text.to_ascii_lowercase();
    let name = match lower.as_str() {
        "ping" => "echo-request",
        "pong" => "echo-reply",
        "ttl-exceeded" if protocol == Protocol::ICMP => "ttl-zero-during-transit",
        other => other,
    };
    if let Some((message, _)) = icmp_names(protocol)
        .iter()
        .find(|(_, known)| known.eq_ignore_ascii_case(name))
    {
        return Ok(*message);
    }
    text.split_once('/')
        .and_then(|(message_type, code)| {
            Some(u16::from_be_bytes([
                message_type.parse().ok()?,
                code.parse().ok()?,
            ]))
        })
        .ok_or_else(|| {
            ParseError::new(
                "ICMP message",
                text,
                "is neither type/code (each 0 to 255) nor a known name",
            )
        })
}

fn icmp_names(protocol: Protocol) -> &'static [(u16, &'static str)] {
    if protocol == Protocol::ICMP { ICMP } else { ICMPV6 }
}

/// Messages that ipset(8) prints by name: type << 8 | code.
const ICMP: &[(u16, &str)] = &[
    (0x0000, "echo-reply"),
    (0x0300, "network-unreachable"),
    (0x0301, "host-unreachable"),
    (0x0302, "protocol-unreachable"),
    (0x0303, "port-unreachable"),
    (0x0304, "fragmentation-needed"),
    (0x0305, "source-route-failed"),
    (0x0306, "network-unknown"),
    (0x0307, "host-unknown"),
    (0x0309, "network-prohibited"),
    (0x030a, "host-prohibited"),
    (0x030b, "TOS-network-unreachable"),
    (0x030c, "TOS-host-unreachable"),
    (0x030d, "communication-prohibited"),
    (0x030e, "host-precedence-violation"),
    (0x030f, "precedence-cutoff"),
    (0x0400, "source-quench"),
    (0x0500, "network-redirect"),
    (0x0501, "host-redirect"),
    (0x0502, "TOS-network-redirect"),
    (0x0503, "TOS-host-redirect"),
    (0x0800, "echo-request"),
    (0x0900, "router-advertisement"),
    (0x0a00, "router-solicitation"),
    (0x0b00, "ttl-zero-during-transit"),
    (0x0b01, "ttl-zero-during-reassembly"),
    (0x0c00, "ip-header-bad"),
    (0x0c01, "required-option-missing"),
    (0x0d00, "timestamp-request"),
    (0x0e00, "timestamp-reply"),
    (0x1100, "address-mask-request"),
    (0x1200, "address-mask-reply"),
];

const ICMPV6: &[(u16, &str)] = &[
    (0x0100, "no-route"),
    (0x0101, "communication-prohibited"),
    (0x0103, "address-unreachable"),
    (0x0104, "port-unreachable"),
    (0x0200, "packet-too-big"),
    (0x0300, "ttl-zero-during-transit"),
    (0x0301, "ttl-zero-during-reassembly"),
    (0x0400, "bad-header"),
    (0x0401, "unknown-header-type"),
    (0x0402, "unknown-option"),
    (0x8000, "echo-request"),
    (0x8100, "echo-reply"),
    (0x8500, "router-solicitation"),
    (0x8600, "router-advertisement"),
    (0x8700, "neighbour-solicitation"),
    (0x8800, "neighbour-advertisement"),
    (0x8900, "redirect"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_print_as_ipset_prints_them_and_read_back() {
        for text in [
            "tcp:80",
            "udp:0",
            "sctp:65535",
            "udplite:7",
            "icmp:echo-request",
            "icmp:8/3",
            "icmp:TOS-network-unreachable",
            "ipv6-icmp:neighbour-solicitation",
            "ipv6-icmp:200/1",
            "ospf:0",
            "253:0",
        ] {
            let port: ProtocolPort = text.parse().unwrap();
            assert_eq!(port.to_string(), text);
        }
        assert_eq!("443".parse::<ProtocolPort>().unwrap(), ProtocolPort::tcp(443));
        assert_eq!(
            "ICMPv6:ping".parse::<ProtocolPort>().unwrap(),
            ProtocolPort::icmpv6(128, 0)
        );
    }

    #[test]
    fn an_invalid_port_is_named_in_the_error() {
        let error = |text: &str| text.parse::<ProtocolPort>().unwrap_err().to_string();
        assert_eq!(
            error("tcp:65536"),
            "port \"65536\" is not a number from 0 to 65535"
        );
        assert_eq!(
            error("ospf:7"),
            "port \"ospf:7\" must be 0, because the protocol has no ports"
        );
        assert_eq!(
            error("icmp:9"),
            "ICMP message \"9\" is neither type/code (each 0 to 255) nor a known name"
        );
        assert_eq!(
            error("0:0"),
            "protocol \"0\" is neither a known protocol name nor a number from 1 to 255"
        );
        assert_eq!(error("tcp:1-2"), "port \"tcp:1-2\" is a range; expected one port");
        for bad in ["+1", "no-such", "[no-such", "[no-such]x", "[80]80", "80-", "-80"] {
            let error = error(&format!("tcp:{bad}"));
            assert!(error.starts_with("port "), "{error}");
        }
        assert_eq!(
            error("tcp:no_such"),
            "port \"no_such\" is neither a number from 0 to 65535 nor a service of tcp in /etc/services"
        );
    }
}
