//! The rules of a portal. Pure functions.

use std::net::{IpAddr, SocketAddr};

use kernlink_iptables_restore::matches::{TcpMatch, UdpMatch};
use kernlink_iptables_restore::targets::{Nat, Redirect};
use kernlink_iptables_restore::{Condition, Error, Match, PortRange, Protocol, Rule, Style, Target};
use kernlink_services::{Family, FrontendKind};

use super::chains::PortalChain;
use super::key::{Part, RulesKey};
use super::portal::{Entrance, Portal};
use crate::proxy::Transport;

/// Where rules lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// The address of the listening ports; `None`: all.
    pub(super) listen: Option<IpAddr>,
    /// The address of this node to which traffic of its own programs is led if the ports listen at all addresses.
    pub(super) host: IpAddr,
    /// The listening port.
    pub(super) port: u16,
}

/// Rules of a portal that are written together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) key: RulesKey,
    /// The entrance that they lead to the listening port. `None`: they admit or drop what arrives there.
    pub(super) entrance: Option<Entrance>,
    pub(super) rules: Vec<(PortalChain, Rule)>,
}

/// The rules of a portal, in the order of kube-proxy.
pub(super) fn rules(portal: &Portal, to: Destination) -> Result<Vec<Group>, Error> {
    const BRIDGED: &str = "-m physdev ! --physdev-is-in";
    const LOCAL: &str = "-m addrtype --dst-type LOCAL";
    let mut groups = Vec::new();
    for entrance in &portal.entrances {
        let (part, captures): (Part, &[(PortalChain, &str)]) = match entrance.kind {
            FrontendKind::ClusterIp | FrontendKind::LoadBalancer => (
                Part::Portals,
                &[
                    (PortalChain::PortalsContainer, ""),
                    (PortalChain::PortalsHost, ""),
                ],
            ),
            FrontendKind::ExternalIp => (
                Part::Portals,
                &[
                    (PortalChain::PortalsContainer, BRIDGED),
                    (PortalChain::PortalsContainer, LOCAL),
                    (PortalChain::PortalsHost, LOCAL),
                ],
            ),
            FrontendKind::NodePort => (
                Part::NodePorts,
                &[
                    (PortalChain::NodeportContainer, ""),
                    (PortalChain::NodeportHost, ""),
                ],
            ),
        };
        let mut rules = Vec::with_capacity(captures.len());
        for (chain, extra) in captures {
            let target = match chain {
                PortalChain::PortalsContainer | PortalChain::NodeportContainer => to.inbound(),
                _ => to.outbound(),
            };
            let name = portal.key.port.name.to_string();
            let rule = matches(portal, entrance.address, entrance.port, &name, extra)?;
            rules.push((*chain, rule.with_target(target)));
        }
        groups.push(Group {
            key: key(portal, part, entrance.address, entrance.port),
            entrance: Some(*entrance),
            rules,
        });
    }
    if let Some(rule) = admission(portal, to.port)? {
        groups.push(Group {
            key: key(portal, Part::Admission, None, to.port),
            entrance: None,
            rules: vec![(PortalChain::NodeportNonLocal, rule)],
        });
    }
    Ok(groups)
}

/// The rule that drops new connections after their translation, or that admits those of node ports. Nothing else is filtered.
fn admission(portal: &Portal, port: u16) -> Result<Option<Rule>, Error> {
    let name = &portal.key.port.name;
    let (comment, target) = if portal.is_dropped {
        (format!("{name} has no local endpoints"), Target::Drop)
    } else if portal.entrances.iter().any(is_node_port) {
        (name.to_string(), Target::Accept)
    } else {
        return Ok(None);
    };
    let rule = matches(portal, None, port, &comment, "-m state --state NEW")?;
    Ok(Some(rule.with_target(target)))
}

fn key(portal: &Portal, part: Part, address: Option<IpAddr>, port: u16) -> RulesKey {
    RulesKey {
        family: portal.key.family(),
        part,
        transport: portal.key.transport,
        address,
        port,
    }
}

pub(super) fn is_node_port(entrance: &Entrance) -> bool {
    entrance.kind == FrontendKind::NodePort
}

/// The matches of a rule. `extra` is in the notation of the tools.
fn matches(
    portal: &Portal,
    address: Option<IpAddr>,
    port: u16,
    comment: &str,
    extra: &str,
) -> Result<Rule, Error> {
    let transport = portal.key.transport;
    let mut rule = Rule::new();
    if let Some(address) = address {
        rule = rule.with(Match::destination(address));
    }
    rule = rule
        .with(Match::protocol(match transport {
            Transport::Tcp => Protocol::Tcp,
            Transport::Udp => Protocol::Udp,
        }))
        .with_comment(comment)?;
    let ports = Some(Condition::Is(PortRange::from(port)));
    rule = rule.with(match transport {
        Transport::Tcp => Match::Tcp(TcpMatch {
            destination_ports: ports,
            ..TcpMatch::default()
        }),
        Transport::Udp => Match::Udp(UdpMatch {
            destination_ports: ports,
            ..UdpMatch::default()
        }),
    });
    if !extra.is_empty() {
        rule.matches.extend(extra.parse::<Rule>()?.matches);
    }
    Ok(rule)
}

impl Destination {
    /// The target for traffic that arrives at an interface. REDIRECT leads to the first address of that interface, which replies of a UDP
    /// socket come from too.
    fn inbound(&self) -> Target {
        match self.listen {
            Some(address) => Target::Dnat(Box::new(Nat::to_port(address, self.port))),
            None => Target::Redirect(Redirect {
                ports: Some(PortRange::from(self.port)),
                ..Redirect::default()
            }),
        }
    }

    /// The target for traffic of programs of this node. REDIRECT would lead to a loopback address.
    fn outbound(&self) -> Target {
        Target::Dnat(Box::new(Nat::to_port(
            self.listen.unwrap_or(self.host),
            self.port,
        )))
    }
}

/// A rule as `iptables-save` prints it.
pub(super) fn rule_text(rule: &Rule, family: Family) -> Box<str> {
    rule.normal_form(family).render(Style::SAVE).into()
}

/// What a rule of a portal chain in the kernel contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parsed {
    transport: Transport,
    /// The address that it matches; `None`: all.
    address: Option<IpAddr>,
    /// The port that it matches.
    port: u16,
    /// The listening port.
    listening: u16,
}

/// Reads a rule of a portal chain. `None` if it is not one that this data path writes.
fn parse(chain: PortalChain, rule: &Rule) -> Option<Parsed> {
    let mut address = None;
    let mut found = None;
    for test in &rule.matches {
        match test {
            Match::Destination(Condition::Is(network)) => {
                let text = network.to_string();
                let (text, _) = text.split_once('/').unwrap_or((&text, ""));
                address = Some(text.parse().ok()?);
            }
            Match::Tcp(tcp) => found = Some((Transport::Tcp, tcp.destination_ports)),
            Match::Udp(udp) => found = Some((Transport::Udp, udp.destination_ports)),
            _ => {}
        }
    }
    let (transport, ports) = found?;
    let Some(Condition::Is(ports)) = ports else {
        return None;
    };
    let listening = match rule.target.as_ref()? {
        Target::Redirect(redirect) => redirect.ports?.first,
        Target::Dnat(nat) => nat.ports?.range.first,
        Target::Accept | Target::Drop if chain == PortalChain::NodeportNonLocal => ports.first,
        _ => return None,
    };
    let port = ports.first;
    Some(Parsed {
        transport,
        address,
        port,
        listening,
    })
}

/// The key with which a rule that the kernel has is written, and the listening port that it leads to or is about.
pub(super) fn key_of(family: Family, chain: PortalChain, rule: &Rule) -> (RulesKey, Option<u16>) {
    let parsed = parse(chain, rule);
    let key = RulesKey {
        family,
        part: Part::of(chain),
        transport: parsed.map_or(Transport::Tcp, |parsed| parsed.transport),
        address: parsed.and_then(|parsed| parsed.address),
        port: parsed.map_or(0, |parsed| parsed.port),
    };
    (key, parsed.map(|parsed| parsed.listening))
}

impl Destination {
    /// The address and port at which the listening port is bound.
    pub(super) fn socket(&self, family: Family) -> SocketAddr {
        let all = match family {
            Family::Ipv4 => IpAddr::from([0u8; 4]),
            Family::Ipv6 => IpAddr::from([0u16; 8]),
        };
        SocketAddr::new(self.listen.unwrap_or(all), self.port)
    }
}
