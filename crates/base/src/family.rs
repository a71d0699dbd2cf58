//! Address families.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    #[doc(alias = "AF_INET")]
    Ipv4,
    /// IPv6.
    #[doc(alias = "AF_INET6")]
    Ipv6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const ALL: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    /// The family of an address. An IPv4-mapped IPv6 address is IPv6, as it is for the kernel.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Family::Ipv4,
            IpAddr::V6(_) => Family::Ipv6,
        }
    }

    /// Bits in an address: 32 or 128.
    #[must_use]
    pub fn address_bits(self) -> u8 {
        match self {
            Family::Ipv4 => 32,
            Family::Ipv6 => 128,
        }
    }

    /// The address with all bits zero: `0.0.0.0` or `::`.
    #[must_use]
    pub fn unspecified(self) -> IpAddr {
        match self {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    /// The position in [`Family::ALL`]: 0 or 1.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Family::Ipv4 => 0,
            Family::Ipv6 => 1,
        }
    }
}

impl fmt::Display for Family {
    /// `IPv4` or `IPv6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        })
    }
}

/// A text that is not an address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseFamilyError(String);

impl fmt::Display for ParseFamilyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid address family {:?}; valid: IPv4, IPv6", self.0)
    }
}

impl std::error::Error for ParseFamilyError {}

impl FromStr for Family {
    type Err = ParseFamilyError;

    /// Parses `IPv4` or `IPv6` in any case.
    fn from_str(text: &str) -> Result<Self, ParseFamilyError> {
        let mut all = Self::ALL.into_iter();
        all.find(|family| family.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| ParseFamilyError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_read_back_as_they_print() {
        for family in Family::ALL {
            assert_eq!(family.to_string().parse(), Ok(family));
        }
        assert_eq!("ipv6".parse(), Ok(Family::Ipv6));
        assert_eq!(
            "v4".parse::<Family>().unwrap_err().to_string(),
            "invalid address family \"v4\"; valid: IPv4, IPv6"
        );
    }

    #[test]
    fn a_mapped_address_is_ipv6() {
        assert_eq!(Family::of("::ffff:192.0.2.1".parse().unwrap()), Family::Ipv6);
    }

    #[test]
    fn positions_and_addresses_match_the_family() {
        for (index, family) in Family::ALL.into_iter().enumerate() {
            assert_eq!(family.index(), index);
            assert_eq!(Family::of(family.unspecified()), family);
        }
    }
}
