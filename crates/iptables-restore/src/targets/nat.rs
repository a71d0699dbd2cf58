//! `-j DNAT`, `-j SNAT`, `-j MASQUERADE`, `-j REDIRECT`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::error::Error;
use crate::network::{PortRange, PrintedAddress};
use crate::wire::options::{Options, decimal, once, once_flag};
use crate::wire::render::Printer;

/// To what the address and port are changed, and how a port is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nat {
    /// The address, or the range one is taken from; none leaves the address.
    pub addresses: Option<NatAddresses>,
    /// The port, or the range one is taken from; none leaves the port where that can be.
    pub ports: Option<NatPorts>,
    /// `--random`: choose the port at random.
    pub random: bool,
    /// `--random-fully`: choose the port at random without remembering the last (SNAT only).
    pub random_fully: bool,
    /// `--persistent`: give a client the same address each time.
    pub persistent: bool,
}

/// One address or a range of addresses, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatAddresses {
    /// First address.
    pub first: IpAddr,
    /// Last address; the same as the first for a single one.
    pub last: IpAddr,
}

/// Ports a new one is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatPorts {
    /// The range.
    pub range: PortRange,
    /// DNAT: the port of the packet that maps to the first of the range, the next to the second and so on.
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
        let refused = || {
            Error::invalid(
                "nat address",
                text,
                "is not ADDRESS or ADDRESS-ADDRESS of one family",
            )
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first: IpAddr = first.parse().map_err(|_| refused())?;
        let last: IpAddr = last.parse().map_err(|_| refused())?;
        if first.is_ipv4() != last.is_ipv4() {
            return Err(refused());
        }
        Ok(NatAddresses { first, last })
    }
}

impl Nat {
    /// To one address.
    pub fn to(address: IpAddr) -> Self {
        Nat {
            addresses: Some(address.into()),
            ..Nat::default()
        }
    }

    /// To one address and port.
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
            flag.plain()?;
            match flag.name {
                name if name == option => once(&mut to, options.next()?)?,
                "--random" => once_flag(&mut nat.random)?,
                "--random-fully" => once_flag(&mut nat.random_fully)?,
                "--persistent" => once_flag(&mut nat.persistent)?,
                _ => return None,
            }
        }
        (nat.addresses, nat.ports) = read_to(to?)?;
        Some(nat)
    }

    pub(super) fn print(&self, option: &str, out: &mut Printer<'_>) {
        out.word(option);
        out.word("");
        if let Some(addresses) = &self.addresses {
            // Brackets part the colons of the address from the colon before the port.
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

/// Reads `ADDRESSES`, `[ADDRESSES]`, `ADDRESSES:PORTS`, `[ADDRESSES]:PORTS` or `:PORTS`.
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

/// Reads `PORT` or `PORT-PORT`; an open end is not taken, other than in a match.
fn read_range(text: &str) -> Option<PortRange> {
    PortRange::read(text, '-').filter(|_| !text.starts_with('-') && !text.ends_with('-'))
}

/// How the port is chosen when the source becomes the address of the outgoing interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Masquerade {
    /// `--to-ports`: the range the source port is taken from; needs a protocol with ports.
    pub ports: Option<PortRange>,
    /// `--random`: choose the port at random.
    pub random: bool,
    /// `--random-fully`: choose the port at random without remembering the last. Kernel 3.14, tool 1.6.2.
    pub random_fully: bool,
}

impl Masquerade {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut masquerade = Masquerade::default();
        while let Some(flag) = options.flag() {
            flag.plain()?;
            match flag.name {
                "--to-ports" => once(&mut masquerade.ports, read_range(options.next()?)?)?,
                "--random" => once_flag(&mut masquerade.random)?,
                "--random-fully" => once_flag(&mut masquerade.random_fully)?,
                _ => return None,
            }
        }
        Some(masquerade)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-j MASQUERADE");
        out.option("--to-ports", &self.ports.map(PortRange::dashed));
        out.flag("--random", self.random);
        out.flag("--random-fully", self.random_fully);
    }
}

/// The port when the destination becomes this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Redirect {
    /// `--to-ports`: the port, or the range it is taken from; none leaves it.
    pub ports: Option<PortRange>,
    /// `--random`: choose the port at random.
    pub random: bool,
}

impl Redirect {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut redirect = Redirect::default();
        while let Some(flag) = options.flag() {
            flag.plain()?;
            match flag.name {
                "--to-ports" => once(&mut redirect.ports, read_range(options.next()?)?)?,
                "--random" => once_flag(&mut redirect.random)?,
                _ => return None,
            }
        }
        Some(redirect)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-j REDIRECT");
        out.option("--to-ports", &self.ports.map(PortRange::dashed));
        out.flag("--random", self.random);
    }
}
