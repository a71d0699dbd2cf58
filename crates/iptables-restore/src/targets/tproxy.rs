//! `-j TPROXY`: redirection to a local socket without changing the packet.

use std::net::IpAddr;

use kernlink_base::Family;

use crate::network::PrintedAddress;
use crate::wire::options::{Options, decimal, set_once};
use crate::wire::render::Printer;

/// The local socket that receives the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tproxy {
    /// `--on-port`: port of the socket; 0 means the port of the packet.
    pub port: u16,
    /// `--on-ip`: address of the socket; `None` means the address of the incoming interface.
    pub address: Option<IpAddr>,
    /// `--tproxy-mark value/mask`: change of the packet's mark; without a mask, of all bits.
    pub mark: Option<(u32, Option<u32>)>,
}

impl Tproxy {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let (mut port, mut address, mut mark) = (None, None, None);
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            match flag.name {
                "--on-port" => set_once(&mut port, decimal(options.next()?)?)?,
                "--on-ip" => set_once(&mut address, options.value()?)?,
                "--tproxy-mark" => set_once(&mut mark, options.mark()?)?,
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
        out.literal("-j TPROXY");
        out.option("--on-port", &Some(self.port));
        out.option("--on-ip", &self.address.map(PrintedAddress));
        if let Some((value, mask)) = self.mark {
            out.literal("--tproxy-mark");
            out.mark(value, mask);
        }
    }

    /// With all defaults, as the tools print it.
    pub(super) fn normal_form(self, family: Family) -> Self {
        let (value, mask) = match self.mark {
            Some((value, mask)) => (value, mask.unwrap_or(u32::MAX)),
            None => (0, 0),
        };
        Tproxy {
            port: self.port,
            address: Some(self.address.unwrap_or(family.unspecified())),
            mark: Some((value, Some(mask))),
        }
    }
}
