//! `-m ipvs`: properties of an IPVS connection.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::matches::Direction;
use crate::network::Network;
use crate::protocol::Protocol;
use crate::style::Style;
use crate::wire::options::{Options, decimal, set_once};
use crate::wire::render::Printer;

/// Properties of the IPVS connection that a packet belongs to. At least one test is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IpvsMatch {
    /// `--ipvs`: the packet belongs to an IPVS connection. The other tests imply it.
    pub is_ipvs: Option<Condition<()>>,
    /// `--vproto`: protocol of the virtual server.
    pub protocol: Option<Condition<Protocol>>,
    /// `--vaddr`: address of the virtual server.
    pub address: Option<Condition<Network>>,
    /// `--vport`: port of the virtual server.
    pub port: Option<Condition<u16>>,
    /// `--vdir`: direction of the packet in the flow.
    pub direction: Option<Direction>,
    /// `--vmethod`: forwarding method.
    pub method: Option<Condition<IpvsMethod>>,
    /// `--vportctl`: port of the control connection (21 for FTP).
    pub control_port: Option<Condition<u16>>,
}

/// Forwarding method, under its name in this match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpvsMethod {
    /// `GATE`: direct routing.
    Gate,
    /// `IPIP`: tunnel.
    Ipip,
    /// `MASQ`: masquerading.
    Masq,
}

impl fmt::Display for IpvsMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpvsMethod::Gate => "GATE",
            IpvsMethod::Ipip => "IPIP",
            IpvsMethod::Masq => "MASQ",
        })
    }
}

impl FromStr for IpvsMethod {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "GATE" => Ok(IpvsMethod::Gate),
            "IPIP" => Ok(IpvsMethod::Ipip),
            "MASQ" => Ok(IpvsMethod::Masq),
            _ => Err(Error::invalid("ipvs method", text, "expected GATE, IPIP or MASQ")),
        }
    }
}

impl IpvsMatch {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut ipvs = IpvsMatch::default();
        while let Some(flag) = options.flag() {
            match flag.name {
                "--ipvs" => set_once(&mut ipvs.is_ipvs, flag.condition(()))?,
                "--vproto" => set_once(&mut ipvs.protocol, flag.condition(options.value()?))?,
                "--vaddr" => set_once(&mut ipvs.address, flag.condition(options.value()?))?,
                "--vport" => set_once(&mut ipvs.port, flag.condition(decimal(options.next()?)?))?,
                "--vdir" => {
                    flag.not_negated()?;
                    set_once(&mut ipvs.direction, options.value()?)?;
                }
                "--vmethod" => set_once(&mut ipvs.method, flag.condition(options.value()?))?,
                "--vportctl" => set_once(&mut ipvs.control_port, flag.condition(decimal(options.next()?)?))?,
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        Some(ipvs)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m ipvs");
        out.bare("--ipvs", &self.is_ipvs);
        // kube-proxy writes the address first; the tools print it second.
        if out.style == Style::KUBE_PROXY {
            out.test("--vaddr", &self.address);
            out.test("--vproto", &self.protocol);
        } else {
            out.test("--vproto", &self.protocol);
            out.test("--vaddr", &self.address);
        }
        out.test("--vport", &self.port);
        out.option("--vdir", &self.direction);
        out.test("--vmethod", &self.method);
        out.test("--vportctl", &self.control_port);
    }

    /// The tools print the protocol as a number, an address without the mask of a single host, and `--ipvs` only
    /// if there is no other test.
    ///
    /// Source: `ipvs_mt_dump` in `extensions/libxt_ipvs.c`, iptables 1.8.9.
    pub(super) fn normal_form(&self) -> Self {
        let address = self.address.map(|test| test.map(Network::with_short_mask));
        let protocol = self
            .protocol
            .map(|test| test.map(|protocol| Protocol::Number(protocol.number())));
        let normal = IpvsMatch {
            address,
            protocol,
            ..self.clone()
        };
        let ipvs_only = IpvsMatch {
            is_ipvs: self.is_ipvs,
            ..IpvsMatch::default()
        };
        if normal.is_ipvs == Some(Condition::Is(())) && normal != ipvs_only {
            return IpvsMatch {
                is_ipvs: None,
                ..normal
            };
        }
        normal
    }
}

#[cfg(test)]
mod tests {
    use crate::{Family, Rule};

    /// Pairs captured from the listing of iptables 1.8.9, which prints this match as save does.
    #[test]
    fn the_normal_form_is_what_the_tool_prints() {
        for (written, printed) in [
            (
                "--vaddr 192.0.2.1 --vproto tcp --vport 1234",
                "--vproto 6 --vaddr 192.0.2.1 --vport 1234",
            ),
            ("--ipvs", "--ipvs"),
            ("! --ipvs", "! --ipvs"),
            (
                "! --vaddr 192.0.2.1 --vdir REPLY ! --vmethod MASQ --vportctl 21",
                "! --vaddr 192.0.2.1 --vdir REPLY ! --vmethod MASQ --vportctl 21",
            ),
            ("--ipvs --vaddr 192.0.2.1/20", "--vaddr 192.0.2.1/20"),
        ] {
            let rule: Rule = format!("-m ipvs {written}").parse().unwrap();
            assert_eq!(
                rule.normal_form(Family::Ipv4).to_string(),
                format!("-m ipvs {printed}")
            );
        }
    }
}
