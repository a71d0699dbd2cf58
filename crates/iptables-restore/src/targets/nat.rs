//! `-j DNAT`, `-j SNAT`, `-j MASQUERADE`, `-j REDIRECT`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::error::Error;
use crate::network::{PortRange, PrintedAddress};
use crate::wire::options::{Options, decimal, set_flag_once, set_once};
use crate::wire::render::Printer;

/// The new address and port, and how the port is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nat {
    /// The address, or the range from which it is chosen; `None` keeps the address.
    pub addresses: Option<NatAddresses>,
    /// The port, or the range from which it is chosen; `None` keeps the port if possible.
    pub ports: Option<NatPorts>,
    /// `--random`: choose the port at random.
    pub random: bool,
    /// `--random-fully`: choose every port independently at random (SNAT only).
    pub random_fully: bool,
    /// `--persistent`: use the same address for all connections of a client.
    pub persistent: bool,
}

/// One address or a range of addresses, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatAddresses {
    /// First address.
    pub first: IpAddr,
    /// Last address; equal to `first` for a single one.
    pub last: IpAddr,
}

/// The ports from which the new one is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatPorts {
    /// The range.
    pub range: PortRange,
    /// DNAT: the original port that is mapped to the first port of the range; following ports are mapped to following ports.
    pub base: Option<u16>,
}

impl From<IpAddr> for NatAddresses {
    fn from(address: IpAddr) -> Self {
        NatAddresses {
            first: address,
            last: address,
        }
    }
}

impl From<PortRange> for NatPorts {
    fn from(range: PortRange) -> Self {
        NatPorts { range, base: None }
    }
}

impl fmt::Display for NatAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            PrintedAddress(self.first).fmt(f)
        } else {
            write!(f, "{}-{}", PrintedAddress(self.first), PrintedAddress(self.last))
        }
    }
}

impl FromStr for NatAddresses {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            Error::invalid(
                "nat address",
                text,
                "expected ADDRESS or ADDRESS-ADDRESS of one address family",
            )
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first: IpAddr = first.parse().map_err(|_| invalid())?;
        let last: IpAddr = last.parse().map_err(|_| invalid())?;
        if first.is_ipv4() != last.is_ipv4() {
            return Err(invalid());
        }
        Ok(NatAddresses { first, last })
    }
}

impl Nat {
    /// A single address.
    #[must_use]
    pub fn to(address: IpAddr) -> Self {
        Nat {
            addresses: Some(address.into()),
            ..Nat::default()
        }
    }

    /// A single address and port.
    #[must_use]
    pub fn to_port(address: IpAddr, port: u16) -> Self {
        Nat {
            ports: Some(PortRange::from(port).into()),
            ..Nat::to(address)
        }
    }

    pub(super) fn read(option: &str, options: &mut Options<'_, '_>) -> Option<Self> {
        let mut nat = Nat::default();
        let mut to = None;
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            match flag.name {
                name if name == option => set_once(&mut to, options.next()?)?,
                "--random" => set_flag_once(&mut nat.random)?,
                "--random-fully" => set_flag_once(&mut nat.random_fully)?,
                "--persistent" => set_flag_once(&mut nat.persistent)?,
                _ => return None,
            }
        }
        (nat.addresses, nat.ports) = read_to(to?)?;
        Some(nat)
    }

    pub(super) fn print(&self, option: &str, out: &mut Printer<'_>) {
        out.literal(option);
        out.literal("");
        if let Some(addresses) = &self.addresses {
            // Brackets separate the colons of the address from the colon before the port.
            if self.ports.is_some() && addresses.first.is_ipv6() {
                out.joined(format_args!("[{addresses}]"));
            } else {
                out.joined(addresses);
            }
        }
        if let Some(ports) = &self.ports {
            out.joined(format_args!(":{}", ports.range.dashed()));
            if let Some(base) = ports.base {
                out.joined(format_args!("/{base}"));
            }
        }
        out.flag("--random", self.random);
        out.flag("--random-fully", self.random_fully);
        out.flag("--persistent", self.persistent);
    }
}

/// Parses `ADDRESSES`, `[ADDRESSES]`, `ADDRESSES:PORTS`, `[ADDRESSES]:PORTS` or `:PORTS`.
fn read_to(text: &str) -> Option<(Option<NatAddresses>, Option<NatPorts>)> {
    let (addresses, ports) = if let Some(rest) = text.strip_prefix('[') {
        let (addresses, rest) = rest.split_once(']')?;
        match rest {
            "" => (addresses, None),
            _ => (addresses, Some(rest.strip_prefix(':')?)),
        }
    } else if text.bytes().filter(|byte| *byte == b':').count() > 1 {
        (text, None)
    } else {
        text.split_once(':')
            .map_or((text, None), |(addresses, ports)| (addresses, Some(ports)))
    };
    let addresses = if addresses.is_empty() {
        None
    } else {
        Some(addresses.parse().ok()?)
    };
    let ports = match ports {
        None => None,
        Some(ports) => {
            let (range, base) = match ports.split_once('/') {
                Some((range, base)) => (range, Some(decimal(base)?)),
                None => (ports, None),
            };
            Some(NatPorts {
                range: read_range(range)?,
                base,
            })
        }
    };
    Some((addresses, ports)).filter(|(addresses, ports)| addresses.is_some() || ports.is_some())
}

/// Parses `PORT` or `PORT-PORT`. Unlike in a match, both ports are required.
fn read_range(text: &str) -> Option<PortRange> {
    PortRange::read(text, '-').filter(|_| !text.starts_with('-') && !text.ends_with('-'))
}

/// How the source port is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Masquerade {
    /// `--to-ports`: the range from which the source port is chosen; requires a protocol with ports.
    pub ports: Option<PortRange>,
    /// `--random`: choose the port at random.
    pub random: bool,
    /// `--random-fully`: choose every port independently at random. Kernel 3.14, tool 1.6.2.
    pub random_fully: bool,
}

impl Masquerade {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut masquerade = Masquerade::default();
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            match flag.name {
                "--to-ports" => set_once(&mut masquerade.ports, read_range(options.next()?)?)?,
                "--random" => set_flag_once(&mut masquerade.random)?,
                "--random-fully" => set_flag_once(&mut masquerade.random_fully)?,
                _ => return None,
            }
        }
        Some(masquerade)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-j MASQUERADE");
        out.option("--to-ports", &self.ports.map(PortRange::dashed));
        out.flag("--random", self.random);
        out.flag("--random-fully", self.random_fully);
    }
}

/// The new destination port on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Redirect {
    /// `--to-ports`: the port, or the range from which it is chosen; `None` keeps it.
    pub ports: Option<PortRange>,
    /// `--random`: choose the port at random.
    pub random: bool,
}

impl Redirect {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut redirect = Redirect::default();
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            match flag.name {
                "--to-ports" => set_once(&mut redirect.ports, read_range(options.next()?)?)?,
                "--random" => set_flag_once(&mut redirect.random)?,
                _ => return None,
            }
        }
        Some(redirect)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-j REDIRECT");
        out.option("--to-ports", &self.ports.map(PortRange::dashed));
        out.flag("--random", self.random);
    }
}
