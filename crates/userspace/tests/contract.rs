//! Userspace mode passes the contract of data paths.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_engine::contract::{Calls, Client, Fixture, Host, Random, Request, RetireFixture};
use kernlink_engine::data_path::Class;
use kernlink_engine::retire::Retire;
use kernlink_host::Shared;
use kernlink_iptables_restore::{
    Chain, ChainName, Condition, Family, Match, PortRange, Protocol as IpProtocol, Rule, Ruleset, Table,
    Target,
};
use kernlink_netfilter::SharedRules;
use kernlink_services::Protocol;
use kernlink_userspace::data_path::chains::PortalChain;
use kernlink_userspace::data_path::retire::Retiring;
use kernlink_userspace::data_path::sockets::{FakeSockets, Sockets};
use kernlink_userspace::data_path::{Config, Kernel, UserspaceMode};
use kernlink_userspace::proxy::{ListenerKey, Serving, Transport};

const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Rules of another program.
const FOREIGN: &str = "*filter
:INPUT ACCEPT [0:0]
:FOREIGN - [0:0]
-A INPUT -j FOREIGN
-A FOREIGN -s 192.0.2.66/32 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT - [0:0]
-A PREROUTING -j CNI-HOSTPORT
-A CNI-HOSTPORT -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.244.0.9:80
COMMIT
";

/// Sockets of a process, with the calls of the contract.
#[derive(Clone, Debug)]
struct CountedSockets {
    sockets: FakeSockets,
    calls: Calls,
}

impl Sockets for CountedSockets {
    fn listen(&mut self, key: ListenerKey, serving: &Serving) -> io::Result<()> {
        let listen = || self.sockets.clone().listen(key, serving);
        let refused = || io::ErrorKind::OutOfMemory.into();
        self.calls
            .change_at_once(&format!("listen at {key}"), listen, refused)
    }

    fn close(&mut self, key: &ListenerKey) {
        let close = || self.sockets.clone().close(key);
        self.calls.change_surely(&format!("close {key}"), close);
    }

    fn claim(&mut self, key: ListenerKey) -> io::Result<()> {
        let claim = || self.sockets.clone().claim(key);
        let refused = || io::ErrorKind::OutOfMemory.into();
        self.calls.change_at_once(&format!("claim {key}"), claim, refused)
    }

    fn release(&mut self, key: &ListenerKey) {
        let release = || self.sockets.clone().release(key);
        self.calls.change_surely(&format!("release {key}"), release);
    }
}

#[derive(Clone)]
struct Node {
    rules: SharedRules<kernlink_iptables_restore::Fake>,
    links: Shared<kernlink_dummylink::Fake>,
    conntrack: Shared<kernlink_conntrack::Fake>,
    sockets: CountedSockets,
}

impl Node {
    fn new(calls: &Calls) -> Self {
        let eth0 = LinkName::new("eth0").unwrap();
        let addresses = NODE.map(|address| LinkAddress::host(address.parse().unwrap()).unwrap());
        let links = kernlink_dummylink::Fake::new().with_link(eth0, None, &addresses);
        let mut rules = kernlink_iptables_restore::Fake::new();
        rules.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
        let sockets = FakeSockets::default();
        let foreign = ListenerKey {
            transport: Transport::Tcp,
            address: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 30_500),
        };
        sockets.lock().foreign.insert(foreign);
        Self {
            rules: SharedRules::new(rules, calls),
            links: Shared::new(links, calls),
            conntrack: Shared::new(kernlink_conntrack::Fake::new(), calls),
            sockets: CountedSockets {
                sockets,
                calls: calls.clone(),
            },
        }
    }

    fn ruleset(&self, family: Family) -> Ruleset {
        self.rules.lock().ruleset(family)
    }

    /// What the port to which rules lead serves.
    fn serving(&self, family: Family, transport: Transport, port: u16) -> Option<Serving> {
        let all: IpAddr = match family {
            Family::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::Ipv6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let address = SocketAddr::new(all, port);
        let key = ListenerKey { transport, address };
        self.sockets.sockets.lock().listeners.get(&key).cloned()
    }

    /// The endpoints that serve a request.
    fn serve(&self, request: &Request) -> Option<BTreeSet<SocketAddr>> {
        let frontend = request.frontend;
        let family = Family::of(frontend.address);
        let transport = match frontend.protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp => return None,
        };
        let (hook, source): (_, IpAddr) = match request.client {
            Client::Node => ("OUTPUT", NODE[family.index()].parse().unwrap()),
            Client::Host(address) => ("PREROUTING", address),
        };
        let ruleset = self.ruleset(family);
        let port = portal_port(&ruleset, hook, request)?;
        // The first rule of the filter chain that is about the listening port.
        let input = ChainName::new("INPUT").unwrap();
        let admission = PortalChain::NodeportNonLocal.name();
        let has_admission =
            request.client != Client::Node && jumps(&ruleset, Table::Filter, &input, &admission);
        let chain = ruleset.chain(Table::Filter, &admission).filter(|_| has_admission);
        let admitted = chain.into_iter().flat_map(Chain::rules);
        let mut admitted = admitted.filter(|rule| matches_request(rule, request, Some(port)));
        if admitted
            .next()
            .is_some_and(|rule| rule.target == Some(Target::Drop))
        {
            return None;
        }
        let serving = self.serving(family, transport, port)?;
        let is_admitted =
            serving.source_ranges.is_empty() || serving.source_ranges.iter().any(|net| net.contains(&source));
        let backends = serving.backends.iter().map(|backend| backend.address);
        is_admitted.then(|| backends.collect())
    }
}

/// Whether a chain has a jump to another one.
fn jumps(ruleset: &Ruleset, table: Table, from: &ChainName, to: &ChainName) -> bool {
    let chain = ruleset.chain(table, from);
    let mut rules = chain.into_iter().flat_map(Chain::rules);
    rules.any(|rule| matches!(&rule.target, Some(Target::Jump(target)) if target == to))
}

/// The listening port to which the portal rules lead a request.
fn portal_port(ruleset: &Ruleset, hook: &str, request: &Request) -> Option<u16> {
    let hook = ChainName::new(hook).unwrap();
    let is_local = NODE.contains(&request.frontend.address.to_string().as_str());
    let chains = ruleset.chain(Table::Nat, &hook)?.rules().filter_map(|rule| {
        let Some(Target::Jump(chain)) = &rule.target else {
            return None;
        };
        let is_node_port = chain.as_str().starts_with("KUBE-NODEPORT-");
        let is_portal = chain.as_str().starts_with("KUBE-PORTALS-");
        (is_portal || is_node_port && is_local).then_some(*chain)
    });
    let mut found = chains.flat_map(|chain| {
        let chain = ruleset.chain(Table::Nat, &chain).unwrap();
        let rules = chain.rules().filter(|rule| matches_request(rule, request, None));
        rules.filter_map(port_of).collect::<Vec<u16>>()
    });
    found.next()
}

/// The port to which a rule leads.
fn port_of(rule: &Rule) -> Option<u16> {
    match &rule.target {
        Some(Target::Redirect(redirect)) => Some(redirect.ports?.first),
        Some(Target::Dnat(nat)) => Some(nat.ports?.range.first),
        _ => None,
    }
}

/// Whether a rule matches a request, which was translated to a listening port, or was not yet.
fn matches_request(rule: &Rule, request: &Request, translated: Option<u16>) -> bool {
    let frontend = request.frontend;
    let is_local = NODE.contains(&frontend.address.to_string().as_str());
    let port = translated.unwrap_or(frontend.port);
    let is_port = |ports: Option<Condition<PortRange>>| {
        ports.is_none_or(|ports| matches!(ports, Condition::Is(range) if range.first == port))
    };
    rule.matches.iter().all(|test| match test {
        Match::Destination(Condition::Is(network)) => network.address == frontend.address,
        Match::Protocol(Condition::Is(protocol)) => {
            *protocol
                == match frontend.protocol {
                    Protocol::Tcp => IpProtocol::Tcp,
                    Protocol::Udp => IpProtocol::Udp,
                    Protocol::Sctp => IpProtocol::Sctp,
                }
        }
        Match::Tcp(tcp) => is_port(tcp.destination_ports),
        Match::Udp(udp) => is_port(udp.destination_ports),
        Match::Addrtype(_) => is_local,
        // No packet here is bridged, and all are new.
        _ => true,
    })
}

/// Each rule of the portal chains, with its place.
fn owned_rules(ruleset: &Ruleset) -> Vec<(Table, ChainName, usize, Rule)> {
    let mut found = Vec::new();
    for (table, rules) in ruleset.tables() {
        for (name, chain) in rules.chains() {
            for (index, rule) in chain.rules().enumerate() {
                let is_owned = |name: &ChainName| name.as_str().starts_with("KUBE-");
                let is_jump = matches!(&rule.target, Some(Target::Jump(chain)) if is_owned(chain));
                if is_owned(name) || is_jump {
                    found.push((table, *name, index, rule.clone()));
                }
            }
        }
    }
    found
}

impl Host for Node {
    type DataPath = UserspaceMode;

    fn kernel(&self) -> Kernel {
        Kernel {
            rules: Box::new(self.rules.clone()),
            links: Box::new(self.links.clone()),
            conntrack: Box::new(self.conntrack.clone()),
            sockets: Box::new(self.sockets.clone()),
        }
    }

    fn end_process(&self) {
        let mut sockets = self.sockets.sockets.lock();
        sockets.listeners.clear();
        sockets.claims.clear();
    }

    /// Instead of the listening ports, which depend on history, rules have what is served there.
    fn owned(&self) -> String {
        let mut lines = Vec::new();
        let mut used = BTreeSet::new();
        for family in Family::ALL {
            for (table, chain, _, rule) in owned_rules(&self.ruleset(family)) {
                let is_admission = chain == PortalChain::NodeportNonLocal.name();
                let transports = [("-p tcp", Transport::Tcp), ("-p udp", Transport::Udp)];
                let text = rule.to_string();
                let transport = transports.into_iter().find(|(word, _)| text.contains(word));
                let port_of_admission = rule.matches.iter().find_map(|test| match test {
                    Match::Tcp(tcp) => tcp.destination_ports.map(|ports| ports.value().first),
                    Match::Udp(udp) => udp.destination_ports.map(|ports| ports.value().first),
                    _ => None,
                });
                let port = if is_admission {
                    port_of_admission
                } else {
                    port_of(&rule)
                };
                let line = match (transport, port) {
                    (Some((_, transport)), Some(port)) => {
                        used.insert((family, transport, port));
                        let serving = self.serving(family, transport, port);
                        format!("{} -> {serving:?}", text.replace(&port.to_string(), "PORT"))
                    }
                    _ => text,
                };
                lines.push(format!("{family:?} {table:?} {chain} {line}"));
            }
        }
        let sockets = self.sockets.sockets.lock();
        for (key, serving) in &sockets.listeners {
            if !used.contains(&(Family::of(key.address.ip()), key.transport, key.address.port())) {
                lines.push(format!("without a rule: {serving:?}"));
            }
        }
        lines.extend(sockets.claims.iter().map(|key| format!("claim {key}")));
        lines.sort();
        lines.join("\n")
    }

    fn foreign(&self) -> String {
        let ruleset = self.ruleset(Family::Ipv4);
        let mut lines = Vec::new();
        for (table, rules) in ruleset.tables() {
            for (name, chain) in rules.chains() {
                let rules = chain.rules().map(ToString::to_string);
                let foreign = rules.filter(|rule| !rule.contains("KUBE-"));
                let is_owned = name.as_str().starts_with("KUBE-");
                lines.extend(
                    foreign
                        .filter(|_| !is_owned)
                        .map(|rule| format!("{table:?} {name} {rule}")),
                );
            }
        }
        lines.sort();
        lines.extend(
            self.sockets
                .sockets
                .lock()
                .foreign
                .iter()
                .map(ToString::to_string),
        );
        lines.join("\n")
    }

    fn served(&self, requests: &[Request]) -> Vec<BTreeSet<SocketAddr>> {
        let serve = |request| self.serve(request).unwrap_or_default();
        requests.iter().map(serve).collect()
    }

    fn damage(&self, random: &mut Random) -> String {
        let family = random.choose(Family::ALL.into()).unwrap();
        let mut ruleset = self.ruleset(family);
        let Some((table, name, index, rule)) = random.choose(owned_rules(&ruleset)) else {
            return String::new();
        };
        let place = format!("{family:?} {table:?} {name}");
        let chain = ruleset.table_mut(table).chain_mut(name);
        let mut rules: Vec<Rule> = chain.rules().cloned().collect();
        let damage = match random.below(4) {
            0 | 1 => {
                rules.remove(index);
                format!("{place}: without {rule}")
            }
            2 if name.as_str().starts_with("KUBE-") => {
                rules.push(rule.clone());
                format!("{place}: twice {rule}")
            }
            _ => {
                rules.retain(|rule| {
                    !matches!(&rule.target, Some(Target::Jump(chain)) if chain.as_str().starts_with("KUBE-"))
                        && !name.as_str().starts_with("KUBE-")
                });
                format!("{place}: no owned rule")
            }
        };
        *chain = Chain::with_rules(rules);
        self.rules.lock().set_ruleset(family, ruleset);
        damage
    }
}

/// Userspace mode.
#[derive(Clone, Copy, Debug)]
struct UserspaceFixture;

impl Fixture for UserspaceFixture {
    type DataPath = UserspaceMode;
    type Host = Node;

    fn config(&self) -> Config {
        let mut config = Config::new("node-a");
        config.services.node_ips = NODE.map(|address| address.parse().unwrap()).into();
        config.port_range = "40001-40999".parse().unwrap();
        config
    }

    fn host(&self, calls: &Calls) -> Node {
        Node::new(calls)
    }

    fn ends_with_process(&self, class: &Class) -> bool {
        ["listener", "claim"].contains(&class.kind)
    }

    fn serves_without_process(&self) -> bool {
        false
    }

    /// `iptables-save` reads a table at once.
    fn has_torn_listings(&self) -> bool {
        false
    }
}

kernlink_engine::contract_tests!(UserspaceFixture);
kernlink_engine::retire_tests!(UserspaceFixture);

impl RetireFixture for UserspaceFixture {
    fn retiring(&self, host: &Node) -> Box<dyn Retire> {
        Box::new(Retiring::new(Box::new(host.rules.clone())))
    }
}

#[test]
fn it_retires_under_the_name_of_its_mode() {
    let retiring = UserspaceFixture.retiring(&Node::new(&Calls::default()));
    assert_eq!(retiring.mode(), "userspace mode");
}
