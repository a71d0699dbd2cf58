//! `-j TPROXY`: to a local socket without changing the packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::family::Family;
use crate::network::PrintedAddress;
use crate::wire::options::{Options, decimal, once};
use crate::wire::render::Printer;

/// The local socket a packet is given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tproxy {
    /// `--on-port`: port of the socket; 0 keeps that of the packet.
    pub port: u16,
    /// `--on-ip`: address of the socket; none means that of the incoming interface.
    pub address: Option<IpAddr>,
    /// `--tproxy-mark value/mask`: change of the packet's mark; no mask means all bits.
    pub mark: Option<(u32, Option<u32>)>,
}

impl Tproxy {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let (mut port, mut address, mut mark) = (None, None, None);
        while let Some(flag) = options.flag() {
            flag.plain()?;
            match flag.name {
                "--on-port" => once(&mut port, decimal(options.next()?)?)?,
                "--on-ip" => once(&mut address, options.value()?)?,
                "--tproxy-mark" => once(&mut mark, options.mark()?)?,
                _ => return None,
            }
        }
        Some(Tproxy {
            port: port?,
            address,
            mark,
        })
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-j TPROXY");
        out.option("--on-port", &Some(self.port));
        out.option("--on-ip", &self.address.map(PrintedAddress));
        if let Some((value, mask)) = self.mark {
            out.word("--tproxy-mark");
            out.mark(value, mask);
        }
    }

    /// Everything written out, as the tools print it.
    pub(super) fn normal_form(self, family: Family) -> Self {
        let any = match family {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let (value, mask) = match self.mark {
            Some((value, mask)) => (value, mask.unwrap_or(u32::MAX)),
            None => (0, 0),
        };
        Tproxy {
            port: self.port,
            address: Some(self.address.unwrap_or(any)),
            mark: Some((value, Some(mask))),
        }
    }
}
