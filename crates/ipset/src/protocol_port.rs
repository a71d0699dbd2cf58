//! Transport protocols, and a protocol with a port.

use std::fmt;
use std::str::FromStr;

use crate::parse::{self, ParseError};
use crate::service_names;

/// An IP protocol number. Printed by name where ipset(8) on an ordinary host knows one, else as number.
#[doc(alias = "IPSET_ATTR_PROTO")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// Internet control messages of IPv4; its "port" is type and code.
    pub const ICMP: Protocol = Protocol(1);
    /// Transmission control protocol.
    pub const TCP: Protocol = Protocol(6);
    /// User datagram protocol.
    pub const UDP: Protocol = Protocol(17);
    /// Internet control messages of IPv6; its "port" is type and code.
    pub const ICMPV6: Protocol = Protocol(58);
    /// Stream control transmission protocol.
    pub const SCTP: Protocol = Protocol(132);
    /// Lightweight user datagram protocol.
    pub const UDPLITE: Protocol = Protocol(136);

    /// Whether the kernel keeps a port with it; with every other protocol but ICMP it stores port 0
    /// ([`ip_set_proto_with_ports`](https://elixir.bootlin.com/linux/v6.1/source/include/linux/netfilter/ipset/ip_set_getport.h)).
    pub fn has_ports(self) -> bool {
        matches!(
            self,
            Protocol::TCP | Protocol::UDP | Protocol::SCTP | Protocol::UDPLITE
        )
    }

    fn is_icmp(self) -> bool {
        matches!(self, Protocol::ICMP | Protocol::ICMPV6)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOLS.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.pad(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Protocol {
    type Err = ParseError;

    /// A name, in any case, or a number from 1 to 255.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let lower = text.to_ascii_lowercase();
        let name = if lower == "icmpv6" { "ipv6-icmp" } else { &lower };
        if let Some((number, _)) = PROTOCOLS.iter().find(|(_, known)| *known == name) {
            return Ok(Protocol(*number));
        }
        match text.parse() {
            Ok(number) if number > 0 => Ok(Protocol(number)),
            _ => Err(ParseError::new(
                "protocol",
                text,
                "is neither a known protocol name nor a number from 1 to 255",
            )),
        }
    }
}

/// A protocol with its port, or with the type and code of an ICMP message: the `tcp:80` of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProtocolPort {
    /// The protocol; not 0.
    pub protocol: Protocol,
    /// The port, 0 to 65535; of ICMP type << 8 | code; of a protocol without ports 0.
    #[doc(alias = "IPSET_ATTR_PORT")]
    pub port: u16,
}

impl ProtocolPort {
    /// A port of a protocol.
    pub fn new(protocol: Protocol, port: u16) -> Self {
        ProtocolPort { protocol, port }
    }

    /// `tcp:port`.
    pub fn tcp(port: u16) -> Self {
        Self::new(Protocol::TCP, port)
    }

    /// `udp:port`.
    pub fn udp(port: u16) -> Self {
        Self::new(Protocol::UDP, port)
    }

    /// `sctp:port`.
    pub fn sctp(port: u16) -> Self {
        Self::new(Protocol::SCTP, port)
    }

    /// An ICMP message of IPv4 by type and code.
    pub fn icmp(message_type: u8, code: u8) -> Self {
        Self::new(Protocol::ICMP, u16::from_be_bytes([message_type, code]))
    }

    /// An ICMP message of IPv6 by type and code.
    pub fn icmpv6(message_type: u8, code: u8) -> Self {
        Self::new(Protocol::ICMPV6, u16::from_be_bytes([message_type, code]))
    }

    /// `proto:port`, `port` (TCP then, as ipset(8) reads it), or `proto:from-to`; the second value is the last port. A port may
    /// be the name of a service.
    pub(crate) fn parse_range(text: &str) -> Result<(Self, Option<u16>), ParseError> {
        let (protocol, port) = match text.split_once(':') {
            Some((protocol, port)) => (protocol.parse()?, port),
            None => (Protocol::TCP, text),
        };
        if protocol.is_icmp() {
            return Ok((Self::new(protocol, icmp_message(protocol, port)?), None));
        }
        if !protocol.has_ports() {
            return match port {
                "0" => Ok((Self::new(protocol, 0), None)),
                _ => Err(ParseError::new(
                    "port",
                    text,
                    "must be 0, the protocol has no ports",
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

    /// `proto:port`, or a port alone, which is TCP's. A range is not one port. For the name of a service, this host's
    /// `/etc/services` is read.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        match Self::parse_range(text)? {
            (port, None) => Ok(port),
            (_, Some(_)) => Err(ParseError::new(
                "port",
                text,
                "is a range where one port is wanted",
            )),
        }
    }
}

/// `first` or `first-last`, numbers or names of services of the protocol; a reversed range is turned round, as in the kernel.
/// A name with a dash in it stands in brackets, `[ftp-data]`, as for ipset(8).
pub(crate) fn parse_port_range(text: &str, protocol: Protocol) -> Result<(u16, Option<u16>), ParseError> {
    let (first, last) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, None),
        Some((name, rest)) => match rest.strip_prefix('-') {
            Some(last) => (name, Some(last)),
            None => return Err(ParseError::new("port", text, "has something behind its brackets")),
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

/// Type << 8 | code of the messages that ipset(8) prints by name.
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

/// The registered names (`/etc/protocols`), of which ipset(8) prints the ones that its host knows.
const PROTOCOLS: &[(u8, &str)] = &[
    (6, "tcp"),
    (17, "udp"),
    (132, "sctp"),
    (1, "icmp"),
    (58, "ipv6-icmp"),
    (136, "udplite"),
    (2, "igmp"),
    (3, "ggp"),
    (4, "ipencap"),
    (5, "st"),
    (8, "egp"),
    (9, "igp"),
    (12, "pup"),
    (20, "hmp"),
    (22, "xns-idp"),
    (27, "rdp"),
    (29, "iso-tp4"),
    (33, "dccp"),
    (36, "xtp"),
    (37, "ddp"),
    (38, "idpr-cmtp"),
    (41, "ipv6"),
    (43, "ipv6-route"),
    (44, "ipv6-frag"),
    (45, "idrp"),
    (46, "rsvp"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (57, "skip"),
    (59, "ipv6-nonxt"),
    (60, "ipv6-opts"),
    (73, "rspf"),
    (81, "vmtp"),
    (88, "eigrp"),
    (89, "ospf"),
    (93, "ax.25"),
    (94, "ipip"),
    (97, "etherip"),
    (98, "encap"),
    (103, "pim"),
    (108, "ipcomp"),
    (112, "vrrp"),
    (115, "l2tp"),
    (124, "isis"),
    (133, "fc"),
    (135, "mobility-header"),
    (137, "mpls-in-ip"),
    (138, "manet"),
    (139, "hip"),
    (140, "shim6"),
    (141, "wesp"),
    (142, "rohc"),
    (143, "ethernet"),
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
    fn what_is_no_port_is_named() {
        let error = |text: &str| text.parse::<ProtocolPort>().unwrap_err().to_string();
        assert_eq!(
            error("tcp:65536"),
            "port \"65536\" is not a number from 0 to 65535"
        );
        assert_eq!(
            error("ospf:7"),
            "port \"ospf:7\" must be 0, the protocol has no ports"
        );
        assert_eq!(
            error("icmp:9"),
            "ICMP message \"9\" is neither type/code (each 0 to 255) nor a known name"
        );
        assert_eq!(
            error("0:0"),
            "protocol \"0\" is neither a known protocol name nor a number from 1 to 255"
        );
        assert_eq!(
            error("tcp:1-2"),
            "port \"tcp:1-2\" is a range where one port is wanted"
        );
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
