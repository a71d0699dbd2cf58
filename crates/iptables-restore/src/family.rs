//! The address family, and with it the tools.

use std::fmt;
use std::net::IpAddr;

/// Address family: which of the two tools and which of the kernel's two rule sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4: `iptables-restore`, `iptables-save`.
    Ipv4,
    /// IPv6: `ip6tables-restore`, `ip6tables-save`.
    Ipv6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const ALL: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    /// How the tools of this family begin: `iptables` or `ip6tables`.
    pub fn tool(self) -> &'static str {
        match self {
            Family::Ipv4 => "iptables",
            Family::Ipv6 => "ip6tables",
        }
    }

    /// The family an address belongs to. An IPv4 address mapped into IPv6 is an IPv6 address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Family::Ipv4,
            IpAddr::V6(_) => Family::Ipv6,
        }
    }

    /// Bits in an address of this family: 32 or 128.
    pub fn address_bits(self) -> u8 {
        match self {
            Family::Ipv4 => 32,
            Family::Ipv6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        })
    }
}
