//! Address families.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::parse::ParseError;
use crate::uapi::{NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_UNSPEC};

/// The address family of a set.
#[doc(alias = "IPSET_ATTR_FAMILY")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Family {
    /// None: sets of ports (`bitmap:port`), of Ethernet addresses (`hash:mac`) and of sets (`list:set`).
    #[doc(alias = "NFPROTO_UNSPEC")]
    Unspecified,
    /// IPv4, printed `inet`.
    #[doc(alias = "NFPROTO_IPV4")]
    Inet,
    /// IPv6, printed `inet6`.
    #[doc(alias = "NFPROTO_IPV6")]
    Inet6,
    /// A number that this crate does not know.
    Unknown(u8),
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Family::Inet
        } else {
            Family::Inet6
        }
    }

    /// The length of an address; 0 without addresses.
    pub(crate) fn address_bits(self) -> u8 {
        match self {
            Family::Inet => 32,
            Family::Inet6 => 128,
            Family::Unspecified | Family::Unknown(_) => 0,
        }
    }

    /// The number on the wire.
    pub fn number(self) -> u8 {
        match self {
            Family::Unspecified => NFPROTO_UNSPEC,
            Family::Inet => NFPROTO_IPV4,
            Family::Inet6 => NFPROTO_IPV6,
            Family::Unknown(number) => number,
        }
    }
}

impl From<u8> for Family {
    fn from(number: u8) -> Self {
        match number {
            NFPROTO_UNSPEC => Family::Unspecified,
            NFPROTO_IPV4 => Family::Inet,
            NFPROTO_IPV6 => Family::Inet6,
            other => Family::Unknown(other),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Family::Unspecified => f.pad("unspec"),
            Family::Inet => f.pad("inet"),
            Family::Inet6 => f.pad("inet6"),
            Family::Unknown(number) => write!(f, "{number}"),
        }
    }
}

impl FromStr for Family {
    type Err = ParseError;

    /// `inet` or `inet6`, and what ipset(8) takes for them.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "inet" | "ipv4" | "-4" => Ok(Family::Inet),
            "inet6" | "ipv6" | "-6" => Ok(Family::Inet6),
            "unspec" => Ok(Family::Unspecified),
            _ => Err(ParseError::new("family", text, "is neither inet nor inet6")),
        }
    }
}
