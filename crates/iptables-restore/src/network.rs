//! Networks, interfaces and ports of a packet.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use kernlink_base::Family;

use crate::error::Error;
use crate::text::check_text;
use crate::uapi::IFNAMSIZ;
use crate::wire::options::decimal;

/// An address with or without a mask, as the value of `-s` and `-d`.
///
/// The value keeps the spelling: `10.0.0.1` and `10.0.0.1/32` are different values with the same normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    /// The address. Bits outside the mask have no meaning.
    pub address: IpAddr,
    /// The mask; `None` means a single host.
    pub mask: Option<Mask>,
}

/// The bits of an address that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mask {
    /// Number of leading bits: 0 to 32, or 0 to 128.
    Prefix(u8),
    /// Any bits, as an address of the same family.
    Bits(IpAddr),
}

impl Network {
    /// A single host, printed without a mask.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Network { address, mask: None }
    }

    /// A network of `prefix` leading bits.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, Error> {
        if prefix > Family::of(address).address_bits() {
            let value = format!("{address}/{prefix}");
            return Err(Error::invalid(
                "network",
                &value,
                "the prefix is longer than the address",
            ));
        }
        Ok(Network {
            address,
            mask: Some(Mask::Prefix(prefix)),
        })
    }

    fn short_mask(self) -> Mask {
        let bits = Family::of(self.address).address_bits();
        match self.mask.unwrap_or(Mask::Prefix(bits)) {
            Mask::Prefix(prefix) => Mask::Prefix(prefix.min(bits)),
            Mask::Bits(mask) => prefix_of(mask).map_or(Mask::Bits(mask), Mask::Prefix),
        }
    }

    /// With the shortest mask, no mask for a single host, and the address unchanged, as `iptables-save` prints addresses of
    /// matches.
    pub(crate) fn with_short_mask(self) -> Self {
        let single = Mask::Prefix(Family::of(self.address).address_bits());
        let mask = Some(self.short_mask()).filter(|mask| *mask != single);
        Network { mask, ..self }
    }

    /// With the shortest mask and the bits outside it cleared, as `iptables-save` prints the value of `-s` and `-d`.
    pub(crate) fn normal_form(self) -> Self {
        let mask = self.short_mask();
        let address = match (self.address, mask) {
            (IpAddr::V4(address), Mask::Prefix(prefix)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            (IpAddr::V6(address), Mask::Prefix(prefix)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
            (IpAddr::V4(address), Mask::Bits(IpAddr::V4(mask))) => IpAddr::V4(address & mask),
            (IpAddr::V6(address), Mask::Bits(IpAddr::V6(mask))) => IpAddr::V6(address & mask),
            (address, Mask::Bits(_)) => address,
        };
        Network {
            address,
            mask: Some(mask),
        }
    }

    /// Whether it contains every address of the family.
    pub(crate) fn is_any(self) -> bool {
        matches!(self.normal_form().mask, Some(Mask::Prefix(0)))
    }
}

/// The length of a mask whose set bits are the leading ones.
fn prefix_of(mask: IpAddr) -> Option<u8> {
    let (bits, width) = match mask {
        IpAddr::V4(mask) => (u128::from(mask.to_bits()) << 96, 32),
        IpAddr::V6(mask) => (mask.to_bits(), 128),
    };
    let leading = bits.leading_ones();
    let contiguous = bits.count_ones() == leading;
    // At most 128.
    (contiguous && leading <= width).then_some(leading as u8)
}

impl From<IpAddr> for Network {
    /// A single host, printed without a mask.
    fn from(address: IpAddr) -> Self {
        Network::host(address)
    }
}

impl From<IpNet> for Network {
    /// Bits outside the prefix are kept; [`IpNet::trunc`] clears them.
    fn from(net: IpNet) -> Self {
        Network {
            address: net.addr(),
            mask: Some(Mask::Prefix(net.prefix_len())),
        }
    }
}

impl TryFrom<Network> for IpNet {
    type Error = Error;

    /// Bits outside the prefix are kept; [`IpNet::trunc`] clears them.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the mask is not a prefix, such as `255.0.255.0`.
    fn try_from(network: Network) -> Result<Self, Error> {
        let invalid = || Error::invalid("network", &network.to_string(), "the mask is not a prefix length");
        match network.short_mask() {
            Mask::Prefix(length) => IpNet::new(network.address, length).map_err(|_| invalid()),
            Mask::Bits(_) => Err(invalid()),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mask {
            None => PrintedAddress(self.address).fmt(f),
            Some(Mask::Prefix(prefix)) => write!(f, "{}/{prefix}", PrintedAddress(self.address)),
            Some(Mask::Bits(mask)) => write!(f, "{}/{}", PrintedAddress(self.address), PrintedAddress(mask)),
        }
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |reason| Error::invalid("network", text, reason);
        let (address, mask) = match text.split_once('/') {
            Some((address, mask)) => (address, Some(mask)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| invalid("expected an IP address before the mask"))?;
        let Some(mask) = mask else {
            return Ok(Network::host(address));
        };
        if let Some(prefix) = decimal(mask) {
            return Network::new(address, prefix);
        }
        let bits: IpAddr = mask
            .parse()
            .map_err(|_| invalid("expected a prefix length or a mask after '/'"))?;
        if Family::of(bits) != Family::of(address) {
            return Err(invalid("the mask belongs to the other address family"));
        }
        Ok(Network {
            address,
            mask: Some(Mask::Bits(bits)),
        })
    }
}

/// An address as the tools print it.
///
/// They use `inet_ntop` of glibc, which prints the last 32 bits of an address in `::/96` with dots (`::192.0.2.1`) unless it is below
/// `::1:0`. Rust's standard library does not.
#[derive(Clone, Copy)]
pub(crate) struct PrintedAddress(pub(crate) IpAddr);

impl fmt::Display for PrintedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(address) if (0x1_0000..=u128::from(u32::MAX)).contains(&address.to_bits()) => {
                // Below 2^32 by the condition above.
                write!(f, "::{}", Ipv4Addr::from_bits(address.to_bits() as u32))
            }
            address => address.fmt(f),
        }
    }
}

/// An interface name, or a prefix of one followed by `+`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfacePattern(Box<str>);

impl InterfacePattern {
    /// Longest pattern in bytes: [`IFNAMSIZ`] less the closing NUL.
    pub const LIMIT: usize = IFNAMSIZ - 1;

    /// Checks a name, or a prefix followed by `+`.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] above [`InterfacePattern::LIMIT`] bytes; [`Error::Invalid`] if it is empty, is
    /// `!`, starts with `-`, or contains whitespace, a control character, a `/` or a double quote.
    pub fn new(pattern: &str) -> Result<Self, Error> {
        check_text("interface", pattern, Self::LIMIT, "IFNAMSIZ - 1")?;
        let is_invalid = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == '"';
        let reason = if pattern.is_empty() {
            "must not be empty"
        } else if pattern == "!" || pattern.starts_with('-') {
            "must not be '!' or start with '-'"
        } else if pattern.contains(is_invalid) {
            "must not contain whitespace, control characters, '/' or double quotes"
        } else {
            return Ok(InterfacePattern(pattern.into()));
        };
        Err(Error::invalid("interface", pattern, reason))
    }

    /// The pattern, with its `+`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfacePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for InterfacePattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        InterfacePattern::new(text)
    }
}

/// One port or an inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port; equal to `first` for a single port.
    pub last: u16,
}

impl PortRange {
    /// Ports from `first` to `last`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `first` is greater than `last`.
    pub fn new(first: u16, last: u16) -> Result<Self, Error> {
        if first > last {
            return Err(Error::invalid(
                "port range",
                &format!("{first}:{last}"),
                "the first port is greater than the last",
            ));
        }
        Ok(PortRange { first, last })
    }

    /// Parses `first SEPARATOR last`. A missing first port is 0, a missing last port 65535.
    pub(crate) fn read(text: &str, separator: char) -> Option<Self> {
        match text.split_once(separator) {
            Some((first, last)) => {
                let first = if first.is_empty() { 0 } else { decimal(first)? };
                let last = if last.is_empty() { u16::MAX } else { decimal(last)? };
                PortRange::new(first, last).ok()
            }
            None => decimal::<u16>(text).map(PortRange::from),
        }
    }

    /// With `-` between the ports, as options of targets have it.
    pub(crate) fn dashed(self) -> Dashed {
        Dashed(self)
    }
}

/// A port range printed with `-`.
pub(crate) struct Dashed(PortRange);

impl fmt::Display for Dashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.first == self.0.last {
            write!(f, "{}", self.0.first)
        } else {
            write!(f, "{}-{}", self.0.first, self.0.last)
        }
    }
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        PortRange {
            first: port,
            last: port,
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}:{}", self.first, self.last)
        }
    }
}

impl FromStr for PortRange {
    type Err = Error;

    /// Parses `80`, `80:90`, `80:` or `:90`. Leading zeros, which mean octal to the tools, are refused.
    fn from_str(text: &str) -> Result<Self, Error> {
        PortRange::read(text, ':').ok_or_else(|| {
            Error::invalid(
                "port range",
                text,
                "expected PORT or FIRST:LAST in decimal without leading zeros",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_print_as_written_and_have_the_normal_form_of_the_tools() {
        for (written, saved) in [
            ("10.0.0.1", "10.0.0.1/32"),
            ("10.0.0.1/8", "10.0.0.0/8"),
            ("10.0.0.1/255.255.0.0", "10.0.0.0/16"),
            ("10.1.2.3/255.0.255.0", "10.0.2.0/255.0.255.0"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("2001:db8::/ffff:0:ffff::", "2001::/ffff:0:ffff::"),
            ("::192.0.2.1", "::192.0.2.1/128"),
            ("::0.1.0.0/112", "::0.1.0.0/112"),
            ("::ffff:192.0.2.1", "::ffff:192.0.2.1/128"),
            ("::ffff", "::ffff/128"),
            ("1.2.3.4/0", "0.0.0.0/0"),
            ("::1/0", "::/0"),
        ] {
            let network: Network = written.parse().unwrap();
            assert_eq!(network.to_string(), written);
            assert_eq!(network.normal_form().to_string(), saved);
        }
        for text in [
            "",
            "x",
            "10.0.0.1/33",
            "::/129",
            "10.0.0.1/ffff::",
            "10.0.0.1/08",
            "host.example",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_ip_network_is_a_network_with_a_prefix() {
        for text in ["10.1.2.3/8", "0.0.0.0/0", "2001:db8::1/128"] {
            let net: IpNet = text.parse().unwrap();
            assert_eq!(Network::from(net), text.parse().unwrap());
        }
    }

    #[test]
    fn a_port_with_a_leading_zero_is_refused() {
        assert!("0443".parse::<PortRange>().is_err());
        assert_eq!("5:".parse::<PortRange>().unwrap().to_string(), "5:65535");
        assert_eq!(":5".parse::<PortRange>().unwrap().to_string(), "0:5");
        assert!("6:5".parse::<PortRange>().is_err());
    }
}
