//! Addresses with masks, interfaces, protocols and ports: what a rule tests of the packet itself.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::error::Error;
use crate::family::Family;
use crate::wire::options::decimal;
use crate::wire::token::check_text;

/// An address, with or without a mask, as `-s` and `-d` take it.
///
/// The value keeps what was written: `10.0.0.1` and `10.0.0.1/32` differ as values and are
/// equal in the normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    /// The address; bits outside the mask are kept as written and have no meaning.
    pub address: IpAddr,
    /// The mask; none means a single host.
    pub mask: Option<Mask>,
}

/// Which bits of an address count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mask {
    /// So many leading bits: 0 to 32, or 0 to 128.
    Prefix(u8),
    /// These bits, which need not be the leading ones; of the address's family.
    Bits(IpAddr),
}

impl Network {
    /// A single host, printed without a mask.
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
                "has a prefix longer than the address",
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

    /// With its mask in the shortest form, none for a single host, and the address as it is: as
    /// `iptables-save` prints the addresses of matches.
    pub(crate) fn with_bare_mask(self) -> Self {
        let single = Mask::Prefix(Family::of(self.address).address_bits());
        let mask = Some(self.short_mask()).filter(|mask| *mask != single);
        Network { mask, ..self }
    }

    /// With its mask in the shortest form and the bits outside it cleared, as `iptables-save` prints it
    /// after `-s` and `-d`.
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

    /// Whether every address of the family is in it, so that testing for it tests nothing.
    pub(crate) fn is_everything(self) -> bool {
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
    fn from(address: IpAddr) -> Self {
        Network::host(address)
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
        let refused = |reason| Error::invalid("network", text, reason);
        let (address, mask) = match text.split_once('/') {
            Some((address, mask)) => (address, Some(mask)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| refused("does not start with an IP address"))?;
        let Some(mask) = mask else {
            return Ok(Network::host(address));
        };
        if let Some(prefix) = decimal(mask) {
            return Network::new(address, prefix);
        }
        let bits: IpAddr = mask
            .parse()
            .map_err(|_| refused("has neither a prefix length nor a mask"))?;
        if Family::of(bits) != Family::of(address) {
            return Err(refused("has a mask of the other family"));
        }
        Ok(Network {
            address,
            mask: Some(Mask::Bits(bits)),
        })
    }
}

/// An address as the tools print it.
///
/// They leave it to `inet_ntop`, which in glibc writes the last 32 bits of `::/96` with dots (`::192.0.2.1`), where
/// the standard library of Rust does not. `::1` and all others below `::1:0` are not written so.
#[derive(Clone, Copy)]
pub(crate) struct PrintedAddress(pub(crate) IpAddr);

impl fmt::Display for PrintedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(address) if (0x1_0000..=u128::from(u32::MAX)).contains(&address.to_bits()) => {
                // Just seen to fit.
                write!(f, "::{}", Ipv4Addr::from_bits(address.to_bits() as u32))
            }
            address => address.fmt(f),
        }
    }
}

/// An interface name, or the beginning of one followed by `+`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfacePattern(Box<str>);

impl InterfacePattern {
    /// Longest pattern in bytes: `IFNAMSIZ` (16) less the closing NUL.
    pub const LIMIT: usize = 15;

    /// Takes a name, or a prefix and `+`.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] above [`InterfacePattern::LIMIT`] bytes; [`Error::Invalid`] if it is empty, is
    /// `!`, starts with `-`, or holds a blank, a control character, a `/` or a double quote.
    pub fn new(pattern: &str) -> Result<Self, Error> {
        check_text("interface", pattern, Self::LIMIT, "IFNAMSIZ - 1")?;
        let bad = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == '"';
        let reason = if pattern.is_empty() {
            "is empty"
        } else if pattern == "!" || pattern.starts_with('-') {
            "is '!' or starts with '-', which the tools read as something else"
        } else if pattern.contains(bad) {
            "holds a blank, a control character, a '/' or a double quote"
        } else {
            return Ok(InterfacePattern(pattern.into()));
        };
        Err(Error::invalid("interface", pattern, reason))
    }

    /// The pattern, with its `+`.
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

macro_rules! protocols {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal,)*) => {
        /// A protocol above IP, as `-p` takes it.
        ///
        /// Protocols that `/etc/protocols` of Debian 12 names are printed by that name; on a host with other names, or
        /// without that file, the tools print another name or the number, which means the same.
        /// [`Protocol::Number`] keeps a number that was written as one; in the normal form it becomes a name where
        /// there is one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Protocol {
            $($(#[$doc])* $variant,)*
            /// Any other, or one of the above written as a number.
            Number(u8),
        }

        impl Protocol {
            const NAMED: &[(Protocol, u8, &'static str)] = &[$((Protocol::$variant, $number, $name),)*];
        }
    };
}

protocols! {
    /// Any protocol (0): testing for it tests nothing.
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

impl Protocol {
    /// The number in the IP header; 0 for any.
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

    /// A name known here in any case (`icmpv6`, `mh` and `ip` too), or a number.
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
                "is neither a number up to 255 nor a name known here",
            )
        })
    }
}

/// One port or a range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port; the same as the first for a single one.
    pub last: u16,
}

impl PortRange {
    /// Ports from `first` to `last`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if they are the wrong way round.
    pub fn new(first: u16, last: u16) -> Result<Self, Error> {
        if first > last {
            return Err(Error::invalid(
                "port range",
                &format!("{first}:{last}"),
                "ends before it starts",
            ));
        }
        Ok(PortRange { first, last })
    }

    /// Reads `first SEPARATOR last`; an end left out is the first or last port there is.
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

    /// With `-` between the ends, as targets write it.
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

    /// `80`, `80:90`, `80:` or `:90`; no leading zeros, which the tools would take for octal.
    fn from_str(text: &str) -> Result<Self, Error> {
        PortRange::read(text, ':').ok_or_else(|| {
            Error::invalid(
                "port range",
                text,
                "is not PORT or FIRST:LAST in decimal without leading zeros",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_print_as_written_and_normalise_as_saved() {
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
        for bad in [
            "",
            "x",
            "10.0.0.1/33",
            "::/129",
            "10.0.0.1/ffff::",
            "10.0.0.1/08",
            "host.example",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_port_with_a_leading_zero_is_not_taken() {
        assert!("0443".parse::<PortRange>().is_err());
        assert_eq!("5:".parse::<PortRange>().unwrap().to_string(), "5:65535");
        assert_eq!(":5".parse::<PortRange>().unwrap().to_string(), "0:5");
        assert!("6:5".parse::<PortRange>().is_err());
    }

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
