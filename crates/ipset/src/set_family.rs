//! Address families of sets.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use kernlink_base::Family;

use crate::parse::ParseError;
use crate::uapi::{NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_UNSPEC};

/// The address family of a set, which has one value more than [`Family`]: sets without addresses have none.
#[doc(alias = "IPSET_ATTR_FAMILY")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SetFamily {
    /// None: sets of ports (`bitmap:port`), of Ethernet addresses (`hash:mac`) and of sets (`list:set`). Printed `unspec`.
    #[doc(alias = "NFPROTO_UNSPEC")]
    Unspecified,
    /// IPv4, printed `inet`.
    #[doc(alias = "NFPROTO_IPV4")]
    Inet,
    /// IPv6, printed `inet6`.
    #[doc(alias = "NFPROTO_IPV6")]
    Inet6,
    /// A number that this crate does not support.
    Unknown(u8),
}

impl SetFamily {
    /// The family of an address. An IPv4-mapped IPv6 address is [`Inet6`](Self::Inet6).
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Family::of(address).into()
    }

    /// Bits in an address; 0 for a family without addresses.
    pub(crate) fn address_bits(self) -> u8 {
        match self {
            SetFamily::Inet => Family::Ipv4.address_bits(),
            SetFamily::Inet6 => Family::Ipv6.address_bits(),
            SetFamily::Unspecified | SetFamily::Unknown(_) => 0,
        }
    }

    /// The number in a message: one of the kernel's `NFPROTO_*`.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            SetFamily::Unspecified => NFPROTO_UNSPEC,
            SetFamily::Inet => NFPROTO_IPV4,
            SetFamily::Inet6 => NFPROTO_IPV6,
            SetFamily::Unknown(number) => number,
        }
    }
}

impl From<Family> for SetFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::Ipv4 => SetFamily::Inet,
            Family::Ipv6 => SetFamily::Inet6,
        }
    }
}

impl From<u8> for SetFamily {
    /// The family with this [`number`](Self::number).
    fn from(number: u8) -> Self {
        match number {
            NFPROTO_UNSPEC => SetFamily::Unspecified,
            NFPROTO_IPV4 => SetFamily::Inet,
            NFPROTO_IPV6 => SetFamily::Inet6,
            other => SetFamily::Unknown(other),
        }
    }
}

impl fmt::Display for SetFamily {
    /// The word of ipset(8), such as `inet`; the number of an unknown family.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetFamily::Unspecified => f.pad("unspec"),
            SetFamily::Inet => f.pad("inet"),
            SetFamily::Inet6 => f.pad("inet6"),
            SetFamily::Unknown(number) => write!(f, "{number}"),
        }
    }
}

impl FromStr for SetFamily {
    type Err = ParseError;

    /// Parses `inet`, `ipv4` or `-4`; `inet6`, `ipv6` or `-6`; `unspec`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "inet" | "ipv4" | "-4" => Ok(SetFamily::Inet),
            "inet6" | "ipv6" | "-6" => Ok(SetFamily::Inet6),
            "unspec" => Ok(SetFamily::Unspecified),
            _ => Err(ParseError::new("family", text, "is neither inet nor inet6")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_of_addresses_is_a_family_of_sets() {
        for family in Family::ALL {
            assert_eq!(SetFamily::of(family.unspecified()), family.into());
            assert_eq!(SetFamily::from(family).address_bits(), family.address_bits());
        }
    }

    #[test]
    fn numbers_and_words_read_back() {
        for family in [SetFamily::Unspecified, SetFamily::Inet, SetFamily::Inet6] {
            assert_eq!(SetFamily::from(family.number()), family);
            assert_eq!(family.to_string().parse(), Ok(family));
        }
        assert_eq!(SetFamily::from(77).number(), 77);
        assert!("inet4".parse::<SetFamily>().is_err());
    }
}
