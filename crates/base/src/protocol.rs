//! IP protocols.

use std::fmt;
use std::str::FromStr;

/// An IP protocol number ([IANA's registry](https://www.iana.org/assignments/protocol-numbers)). Any number is possible; 0 is IPv6
/// hop-by-hop options, which many tools take for "any protocol".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// Internet control messages of IPv4.
    pub const ICMP: Protocol = Protocol(1);
    /// Transmission control protocol.
    pub const TCP: Protocol = Protocol(6);
    /// User datagram protocol.
    pub const UDP: Protocol = Protocol(17);
    /// Datagram congestion control protocol.
    pub const DCCP: Protocol = Protocol(33);
    /// Generic routing encapsulation.
    pub const GRE: Protocol = Protocol(47);
    /// Internet control messages of IPv6.
    pub const ICMPV6: Protocol = Protocol(58);
    /// Stream control transmission protocol.
    pub const SCTP: Protocol = Protocol(132);
    /// Lightweight user datagram protocol.
    pub const UDPLITE: Protocol = Protocol(136);

    /// The name in `/etc/protocols` of Debian 12, such as `tcp` or `ipv6-icmp`. The host's file is not read.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES
            .iter()
            .find(|(number, _)| *number == self.0)
            .map(|(_, name)| *name)
    }

    /// Whether this is [`ICMP`](Self::ICMP) or [`ICMPV6`](Self::ICMPV6).
    #[must_use]
    pub fn is_icmp(self) -> bool {
        matches!(self, Protocol::ICMP | Protocol::ICMPV6)
    }
}

impl fmt::Display for Protocol {
    /// The [name](Self::name), otherwise the number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Protocol({})", self.0),
        }
    }
}

/// A text that is neither the name of a protocol nor a number from 1 to 255.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseProtocolError(String);

impl fmt::Display for ParseProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid protocol {:?}; expected a name such as tcp, or a number from 1 to 255",
            self.0
        )
    }
}

impl std::error::Error for ParseProtocolError {}

impl FromStr for Protocol {
    type Err = ParseProtocolError;

    /// Parses a [name](Self::name) in any case, `icmpv6` as another name for `ipv6-icmp`, or a number from 1 to 255.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.to_ascii_lowercase();
        let name = if lower == "icmpv6" { "ipv6-icmp" } else { &lower };
        if let Some((number, _)) = NAMES.iter().find(|(_, known)| *known == name) {
            return Ok(Protocol(*number));
        }
        match text.parse() {
            Ok(number) if number > 0 => Ok(Protocol(number)),
            _ => Err(ParseProtocolError(text.to_owned())),
        }
    }
}

/// Registered names, the common ones first.
const NAMES: &[(u8, &str)] = &[
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
    fn names_and_numbers_read_back() {
        for number in 1..=255 {
            let protocol = Protocol(number);
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
            assert_eq!(number.to_string().parse(), Ok(protocol));
        }
        assert_eq!("ICMPv6".parse(), Ok(Protocol::ICMPV6));
    }

    #[test]
    fn what_is_no_protocol_is_an_error() {
        for text in ["", "0", "256", "-1", "no-such"] {
            let error = text.parse::<Protocol>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("invalid protocol {text:?}")),
                "{error}"
            );
        }
    }
}
