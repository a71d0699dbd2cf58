//! The protocol of a packet.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::wire::options::decimal;

macro_rules! protocols {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal,)*) => {
        /// The value of `-p`: an IP protocol, or any.
        ///
        /// Unlike [`kernlink_base::Protocol`], it keeps whether a name or a number was written. Names are those of
        /// `/etc/protocols` of Debian 12; on a host with another file the tools print another name or the number, which
        /// has the same meaning. In the normal form a [`Protocol::Number`] with a name becomes the name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Protocol {
            $($(#[$doc])* $variant,)*
            /// A protocol written as a number.
            Number(u8),
        }

        impl Protocol {
            const NAMED: &[(Protocol, u8, &'static str)] = &[$((Protocol::$variant, $number, $name),)*];
        }
    };
}

protocols! {
    /// Any protocol (0).
    All = 0 "all",
    /// `icmp` (1).
    Icmp = 1 "icmp",
    /// `igmp` (2).
    Igmp = 2 "igmp",
    /// `ggp` (3).
    Ggp = 3 "ggp",
    /// `ipencap` (4): IPv4 in IP.
    Ipencap = 4 "ipencap",
    /// `st` (5).
    St = 5 "st",
    /// `tcp` (6).
    Tcp = 6 "tcp",
    /// `egp` (8).
    Egp = 8 "egp",
    /// `igp` (9).
    Igp = 9 "igp",
    /// `pup` (12).
    Pup = 12 "pup",
    /// `udp` (17).
    Udp = 17 "udp",
    /// `hmp` (20).
    Hmp = 20 "hmp",
    /// `xns-idp` (22).
    XnsIdp = 22 "xns-idp",
    /// `rdp` (27).
    Rdp = 27 "rdp",
    /// `iso-tp4` (29).
    IsoTp4 = 29 "iso-tp4",
    /// `dccp` (33).
    Dccp = 33 "dccp",
    /// `xtp` (36).
    Xtp = 36 "xtp",
    /// `ddp` (37).
    Ddp = 37 "ddp",
    /// `idpr-cmtp` (38).
    IdprCmtp = 38 "idpr-cmtp",
    /// `ipv6` (41): IPv6 in IP.
    Ipv6 = 41 "ipv6",
    /// `ipv6-route` (43).
    Ipv6Route = 43 "ipv6-route",
    /// `ipv6-frag` (44).
    Ipv6Frag = 44 "ipv6-frag",
    /// `idrp` (45).
    Idrp = 45 "idrp",
    /// `rsvp` (46).
    Rsvp = 46 "rsvp",
    /// `gre` (47).
    Gre = 47 "gre",
    /// `esp` (50).
    Esp = 50 "esp",
    /// `ah` (51).
    Ah = 51 "ah",
    /// `skip` (57).
    Skip = 57 "skip",
    /// `ipv6-icmp` (58).
    Icmpv6 = 58 "ipv6-icmp",
    /// `ipv6-nonxt` (59).
    Ipv6Nonxt = 59 "ipv6-nonxt",
    /// `ipv6-opts` (60).
    Ipv6Opts = 60 "ipv6-opts",
    /// `rspf` (73).
    Rspf = 73 "rspf",
    /// `vmtp` (81).
    Vmtp = 81 "vmtp",
    /// `eigrp` (88).
    Eigrp = 88 "eigrp",
    /// `ospf` (89).
    Ospf = 89 "ospf",
    /// `ax.25` (93).
    Ax25 = 93 "ax.25",
    /// `ipip` (94).
    Ipip = 94 "ipip",
    /// `etherip` (97).
    Etherip = 97 "etherip",
    /// `encap` (98).
    Encap = 98 "encap",
    /// `pim` (103).
    Pim = 103 "pim",
    /// `ipcomp` (108).
    Ipcomp = 108 "ipcomp",
    /// `vrrp` (112).
    Vrrp = 112 "vrrp",
    /// `l2tp` (115).
    L2tp = 115 "l2tp",
    /// `isis` (124).
    Isis = 124 "isis",
    /// `sctp` (132).
    Sctp = 132 "sctp",
    /// `fc` (133).
    Fc = 133 "fc",
    /// `mobility-header` (135).
    MobilityHeader = 135 "mobility-header",
    /// `udplite` (136).
    Udplite = 136 "udplite",
    /// `mpls-in-ip` (137).
    MplsInIp = 137 "mpls-in-ip",
    /// `manet` (138).
    Manet = 138 "manet",
    /// `hip` (139).
    Hip = 139 "hip",
    /// `shim6` (140).
    Shim6 = 140 "shim6",
    /// `wesp` (141).
    Wesp = 141 "wesp",
    /// `rohc` (142).
    Rohc = 142 "rohc",
}

impl From<kernlink_base::Protocol> for Protocol {
    /// By name if the protocol has one.
    fn from(protocol: kernlink_base::Protocol) -> Self {
        Protocol::Number(protocol.0).normal_form()
    }
}

impl From<Protocol> for kernlink_base::Protocol {
    fn from(protocol: Protocol) -> Self {
        kernlink_base::Protocol(protocol.number())
    }
}

impl Protocol {
    /// The number in the IP header; 0 for [`Protocol::All`].
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Protocol::Number(number) => number,
            named => Self::NAMED
                .iter()
                .find(|(known, ..)| *known == named)
                .map_or(0, |(_, number, _)| *number),
        }
    }

    pub(crate) fn normal_form(self) -> Self {
        let number = self.number();
        Self::NAMED
            .iter()
            .find(|(_, known, _)| *known == number)
            .map_or(Protocol::Number(number), |(known, ..)| *known)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Number(number) => write!(f, "{number}"),
            named => {
                let name = Self::NAMED
                    .iter()
                    .find(|(known, ..)| known == named)
                    .map_or("all", |(.., name)| name);
                f.write_str(name)
            }
        }
    }
}

impl FromStr for Protocol {
    type Err = Error;

    /// Parses a name in any case (also `icmpv6`, `mh` and `ip`), or a number up to 255.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "tcp" => return Ok(Protocol::Tcp),
            "udp" => return Ok(Protocol::Udp),
            "icmpv6" => return Ok(Protocol::Icmpv6),
            "mh" | "ipv6-mh" => return Ok(Protocol::MobilityHeader),
            "ip" | "hopopt" => return Ok(Protocol::All),
            _ => {}
        }
        if let Some((known, ..)) = Self::NAMED
            .iter()
            .find(|(.., name)| name.eq_ignore_ascii_case(text))
        {
            return Ok(*known);
        }
        decimal(text).map(Protocol::Number).ok_or_else(|| {
            Error::invalid(
                "protocol",
                text,
                "expected a name of /etc/protocols or a number up to 255",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_one_normal_form() {
        for (written, saved) in [
            ("6", "tcp"),
            ("TCP", "tcp"),
            ("icmpv6", "ipv6-icmp"),
            ("47", "gre"),
            ("43", "ipv6-route"),
            ("0", "all"),
            ("ip", "all"),
            ("250", "250"),
        ] {
            assert_eq!(
                written.parse::<Protocol>().unwrap().normal_form().to_string(),
                saved
            );
        }
    }
}
