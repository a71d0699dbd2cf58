//! Address blocks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use kernlink_base::Family;

use crate::parse::{self, ParseError};

/// A block of addresses. The bits after the prefix are zero, so two networks are equal if they contain the same addresses:
/// `10.1.2.3/8` becomes `10.0.0.0/8`, as in the kernel. A block of one address is printed without prefix length.
#[doc(alias = "CIDR")]
#[doc(alias = "IPSET_ATTR_CIDR")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    prefix_len: u8,
}

impl Network {
    /// The block that contains `address`, with a prefix of 0 to 32 bits, or 0 to 128 bits for IPv6.
    ///
    /// # Errors
    ///
    /// If the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix_len: u8) -> Result<Self, ParseError> {
        let bits = Family::of(address).address_bits();
        if prefix_len > bits {
            return Err(ParseError::new(
                "prefix length",
                format_args!("{address}/{prefix_len}"),
                format_args!("is more than {bits}"),
            ));
        }
        Ok(Network {
            address: masked(address, prefix_len),
            prefix_len,
        })
    }

    /// The first address of the block.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The number of leading bits that all addresses of the block share; 0 is all addresses.
    #[must_use]
    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// The last address of the block.
    #[must_use]
    pub fn last_address(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let host = u32::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() | host))
            }
            IpAddr::V6(address) => {
                let host = u128::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() | host))
            }
        }
    }

    /// Whether the block is one address.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.prefix_len == self.family().address_bits()
    }

    /// Whether the block contains `address`.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Family::of(address) == self.family() && masked(address, self.prefix_len) == self.address
    }

    /// The family of the addresses.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// The two halves of a block, which together contain the same addresses; `None` for a single address.
    ///
    /// Most set types do not support `0.0.0.0/0`; `0.0.0.0/1` and `128.0.0.0/1` replace it.
    #[must_use]
    pub fn halves(&self) -> Option<[Network; 2]> {
        if self.is_host() {
            return None;
        }
        let prefix_len = self.prefix_len + 1;
        let upper = masked(self.last_address(), prefix_len);
        Some([
            Network {
                address: self.address,
                prefix_len,
            },
            Network {
                address: upper,
                prefix_len,
            },
        ])
    }

    /// The fewest blocks that contain exactly the addresses from `first` to `last`, in order; empty if `last` is before `first`
    /// or the families differ.
    #[must_use]
    pub fn cover(first: IpAddr, last: IpAddr) -> Vec<Network> {
        match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                // Extended by 96 leading ones, so that one loop works for both families.
                let high = u128::MAX << 32;
                cover(
                    high | u128::from(first.to_bits()),
                    high | u128::from(last.to_bits()),
                    32,
                )
                .map(|(bits, prefix_len)| Network {
                    address: IpAddr::V4(Ipv4Addr::from_bits((bits & u128::from(u32::MAX)) as u32)),
                    prefix_len,
                })
                .collect()
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => cover(first.to_bits(), last.to_bits(), 128)
                .map(|(bits, prefix_len)| Network {
                    address: IpAddr::V6(Ipv6Addr::from_bits(bits)),
                    prefix_len,
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

impl From<IpAddr> for Network {
    /// The block of one address.
    fn from(address: IpAddr) -> Self {
        Network {
            address,
            prefix_len: Family::of(address).address_bits(),
        }
    }
}

impl From<IpNet> for Network {
    /// The block, without the host bits that an [`IpNet`] may have.
    fn from(net: IpNet) -> Self {
        Network {
            address: net.network(),
            prefix_len: net.prefix_len(),
        }
    }
}

impl From<Network> for IpNet {
    fn from(network: Network) -> Self {
        // A prefix length never exceeds that of its address.
        IpNet::new(network.address, network.prefix_len).unwrap_or_else(|_| network.address.into())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Address(self.address))?;
        if self.is_host() {
            Ok(())
        } else {
            write!(f, "/{}", self.prefix_len)
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Network {
    type Err = ParseError;

    /// Parses `address` or `address/prefix length`. An IPv4 address may have fewer than four numbers, each decimal, or octal with
    /// a leading `0`: `0/0` is `0.0.0.0/0`, `10.1` is `10.0.0.1`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.split_once('/') {
            None => Ok(Network::from(parse_address(text)?)),
            Some((address, prefix_len)) => {
                let number = prefix_len
                    .parse()
                    .map_err(|_| ParseError::new("prefix length", text, "is not a number from 0 to 128"))?;
                Network::new(parse_address(address)?, number)
            }
        }
    }
}

/// Prints an address as `inet_ntop(3)` and ipset(8) do. The standard library prints `::1.2.3.4` without dots.
pub(crate) struct Address(pub(crate) IpAddr);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let IpAddr::V6(address) = self.0
            && let bits = address.to_bits()
            && bits >> 32 == 0
            && bits >> 16 != 0
        {
            return write!(
                f,
                "::{}",
                Ipv4Addr::from_bits((bits & u128::from(u32::MAX)) as u32)
            );
        }
        fmt::Display::fmt(&self.0, f)
    }
}

/// Parses an address as ipset(8) does, except names of hosts.
pub(crate) fn parse_address(text: &str) -> Result<IpAddr, ParseError> {
    let parsed = text.parse().ok();
    parsed
        .or_else(|| inet_aton(text).map(IpAddr::V4))
        .ok_or_else(|| ParseError::new("address", text, "is neither an IPv4 nor an IPv6 address"))
}

/// Parses one to four numbers, each decimal, or octal with a leading `0`; the last one fills the remaining bytes. ipset 7.17
/// refuses hexadecimal numbers.
fn inet_aton(text: &str) -> Option<Ipv4Addr> {
    let numbers: Vec<&str> = text.split('.').collect();
    let (last, bytes) = numbers.split_last()?;
    let bits_left = 32 - 8 * u32::try_from(bytes.len()).ok().filter(|length| *length < 4)?;
    let number = |text: &str, max| {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| parse::number("address", text, max).ok()).flatten()
    };
    let mut bits = number(last, u64::MAX >> (64 - bits_left))?;
    for (index, byte) in bytes.iter().enumerate() {
        bits |= number(byte, 255)? << (24 - 8 * index);
    }
    Some(Ipv4Addr::from_bits(u32::try_from(bits).ok()?))
}

/// The address with the bits after the prefix set to zero.
pub(crate) fn masked(address: IpAddr, prefix_len: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(u32::from(prefix_len)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & !host))
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(u32::from(prefix_len)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !host))
        }
    }
}

/// Repeatedly takes the largest aligned block at the start that does not exceed the end.
fn cover(first: u128, last: u128, address_bits: u8) -> impl Iterator<Item = (u128, u8)> {
    let mut next = (first <= last).then_some(first);
    std::iter::from_fn(move || {
        let start = next?;
        let mut size_bits = start.trailing_zeros().min(u32::from(address_bits));
        let end = loop {
            let end = start | 1_u128.checked_shl(size_bits).map_or(u128::MAX, |size| size - 1);
            if end <= last {
                break end;
            }
            size_bits -= 1;
        };
        next = end.checked_add(1).filter(|&next| next <= last);
        Some((start, address_bits - size_bits as u8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn different_forms_of_a_block_are_equal() {
        assert_eq!(network("10.0.0.1/32"), network("10.0.0.1"));
        assert_eq!(network("10.1.2.3/8"), network("10.0.0.0/8"));
        assert_eq!(network("fe80::1/10").to_string(), "fe80::/10");
        assert_eq!(network("::1/128").to_string(), "::1");
        assert_eq!(network("1.2.3.4/0").to_string(), "0.0.0.0/0");
        assert_eq!(
            network("::/0").last_address(),
            IpAddr::V6(Ipv6Addr::from_bits(u128::MAX))
        );
    }

    /// `ipset add test ADDRESS` of ipset 7.17 accepts and refuses the same.
    #[test]
    fn ipv4_addresses_with_fewer_numbers_are_parsed_as_by_inet_aton() {
        for (text, parsed) in [
            ("0", "0.0.0.0"),
            ("0/0", "0.0.0.0/0"),
            ("10/8", "0.0.0.0/8"),
            ("10.1", "10.0.0.1"),
            ("10.1.2/24", "10.1.0.0/24"),
            ("10.010.258", "10.8.1.2"),
            ("010.0.0.1", "8.0.0.1"),
            ("167772161", "10.0.0.1"),
            ("4294967295", "255.255.255.255"),
            ("1.16777215", "1.255.255.255"),
        ] {
            assert_eq!(network(text).to_string(), parsed);
        }
        for bad in [
            "",
            ".",
            "1.",
            "1..2",
            "256.1",
            "1.16777216",
            "4294967296",
            "1.2.3.4.5",
            "1.2.3.256",
            "08",
            "0x0a.1",
            "-1",
            "a",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_network_of_the_crate_ipnet_is_the_same_block() {
        for text in [
            "10.1.2.3/8",
            "0.0.0.0/0",
            "10.0.0.1/32",
            "fe80::1/10",
            "::/0",
            "::1/128",
        ] {
            assert_eq!(Network::from(text.parse::<IpNet>().unwrap()), network(text));
        }
    }

    #[test]
    fn a_prefix_longer_than_the_address_is_refused() {
        assert_eq!(
            "10.0.0.0/33".parse::<Network>().unwrap_err().to_string(),
            "prefix length \"10.0.0.0/33\" is more than 32"
        );
    }

    #[test]
    fn addresses_print_as_by_inet_ntop() {
        let print = |text: &str| Address(text.parse().unwrap()).to_string();
        for text in [
            "::1.2.3.4",
            "::ffff:1.2.3.4",
            "::1",
            "::",
            "1:0:0:2::3",
            "::0.1.0.2",
            "fe80::1",
        ] {
            assert_eq!(print(text), text);
        }
    }

    #[test]
    fn a_range_is_covered_by_the_fewest_blocks() {
        let cover = |first: &str, last: &str| -> Vec<String> {
            Network::cover(first.parse().unwrap(), last.parse().unwrap())
                .iter()
                .map(Network::to_string)
                .collect()
        };
        assert_eq!(
            cover("10.0.0.1", "10.0.0.6"),
            ["10.0.0.1", "10.0.0.2/31", "10.0.0.4/31", "10.0.0.6"]
        );
        assert_eq!(cover("0.0.0.0", "255.255.255.255"), ["0.0.0.0/0"]);
        assert_eq!(cover("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), ["::/0"]);
        assert_eq!(cover("255.255.255.255", "255.255.255.255"), ["255.255.255.255"]);
        assert_eq!(cover("10.0.0.2", "10.0.0.1"), [""; 0]);
    }
}
