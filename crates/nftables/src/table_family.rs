//! Families of tables.

use std::fmt;

use kernlink_base::Family;

use crate::uapi::{NFPROTO_ARP, NFPROTO_BRIDGE, NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_NETDEV};

/// The family of a table, which decides which packets its chains see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TableFamily {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// IPv4 and IPv6.
    Inet,
    /// ARP.
    Arp,
    /// Frames that cross a bridge.
    Bridge,
    /// Packets of a device before or after everything else.
    Netdev,
    /// Another number (`NFPROTO_*`).
    Unknown(u8),
}

impl TableFamily {
    /// The number in the kernel (`NFPROTO_*`).
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            TableFamily::Ip => NFPROTO_IPV4,
            TableFamily::Ip6 => NFPROTO_IPV6,
            TableFamily::Inet => NFPROTO_INET,
            TableFamily::Arp => NFPROTO_ARP,
            TableFamily::Bridge => NFPROTO_BRIDGE,
            TableFamily::Netdev => NFPROTO_NETDEV,
            TableFamily::Unknown(number) => number,
        }
    }

    /// The family of a number in the kernel.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        match number {
            NFPROTO_IPV4 => TableFamily::Ip,
            NFPROTO_IPV6 => TableFamily::Ip6,
            NFPROTO_INET => TableFamily::Inet,
            NFPROTO_ARP => TableFamily::Arp,
            NFPROTO_BRIDGE => TableFamily::Bridge,
            NFPROTO_NETDEV => TableFamily::Netdev,
            number => TableFamily::Unknown(number),
        }
    }
}

impl From<Family> for TableFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::Ipv4 => TableFamily::Ip,
            Family::Ipv6 => TableFamily::Ip6,
        }
    }
}

/// As `nft` prints it: `ip`, `ip6`, `inet`, ...
impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableFamily::Ip => f.pad("ip"),
            TableFamily::Ip6 => f.pad("ip6"),
            TableFamily::Inet => f.pad("inet"),
            TableFamily::Arp => f.pad("arp"),
            TableFamily::Bridge => f.pad("bridge"),
            TableFamily::Netdev => f.pad("netdev"),
            TableFamily::Unknown(number) => write!(f, "{number}"),
        }
    }
}
