//! Traces a packet through sets, chains and virtual servers as the kernel does, and returns where it ends. So tests can check the effect on
//! traffic independently of the rules that cause it. The objects are the desired ones, or those of the fake kernel.
//!
//! The order of the hooks is the kernel's. A packet from an interface passes nat PREROUTING, filter INPUT and IPVS, which forwards it
//! through nat POSTROUTING. A packet of a local process passes nat OUTPUT, IPVS, filter OUTPUT and nat POSTROUTING. If no virtual server
//! accepts it and the address is local, it comes back in at filter INPUT. A packet whose destination table nat translates goes to filter
//! FORWARD or OUTPUT and nat POSTROUTING.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use kernlink_dummylink::{HostAddress, Selection};
use kernlink_ipset::{Element, Entry, Network as SetNetwork, Protocol as SetProtocol, ProtocolPort};
use kernlink_iptables_restore::matches::{
    AddressType, AddressTypes, ConntrackState, IpvsMatch, RecentAction, SetDirection,
};
use kernlink_iptables_restore::targets::MarkTarget;
use kernlink_iptables_restore::{
    Chain, ChainName, Condition, Mask, Match, Network, PortRange, Protocol as IpProtocol, Ruleset, Save,
    Table, Target,
};
use kernlink_ipvs::{ForwardingMethod, Protocol as IpvsProtocol, RealServer, VirtualServerKey};
use kernlink_proxier::ipvs_mode::{Kernel, SetId, State, rules};
use kernlink_services::{Family, Protocol};

/// The first packet of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// The input interface; `None` for a packet of a local process.
    pub(crate) input: Option<&'static str>,
    pub(crate) source: IpAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) protocol: Protocol,
    mark: u32,
    /// Whether table `nat` translated the destination.
    is_translated: bool,
    /// Whether it belongs to an established connection.
    is_established: bool,
    /// The virtual server that accepted the packet.
    virtual_server: Option<VirtualServerKey>,
}

impl Packet {
    pub(crate) fn new(
        input: Option<&'static str>,
        source: IpAddr,
        destination: SocketAddr,
        protocol: Protocol,
    ) -> Self {
        Self {
            input,
            source,
            destination,
            protocol,
            mark: 0,
            is_translated: false,
            is_established: false,
            virtual_server: None,
        }
    }
}

/// Where a packet ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At one of these endpoints.
    Served(Vec<Served>),
    /// A virtual server without real servers: the kernel answers that the port is unreachable.
    NoServer,
    /// A rule rejects it with an ICMP error.
    Rejected,
    /// A rule drops it.
    Dropped,
    /// At a local process, if one listens.
    Node,
    /// On its way to another host.
    Forwarded,
}

/// How a packet gets to one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    by: SocketAddr,
    forwarding: ForwardingMethod,
    /// Whether the source address is rewritten.
    masqueraded: bool,
}

impl Served {
    /// Whether it is masqueraded, and gets to the same endpoint in the same way.
    pub(crate) fn is_masqueraded_to(&self, other: &Self) -> bool {
        self.masqueraded && (self.by, self.forwarding) == (other.by, other.forwarding)
    }

    /// The endpoint.
    pub(crate) fn endpoint(&self) -> SocketAddr {
        self.by
    }

    /// Whether connections work this way if they work the other way. If the packet is masqueraded, the reply always returns through this
    /// node, but only packets of the forwarding method masquerading may be.
    pub(crate) fn works_if(&self, other: &Self) -> bool {
        let is_masquerading = self.forwarding == ForwardingMethod::Masquerade;
        (self.by, self.forwarding) == (other.by, other.forwarding)
            && (self.masqueraded == other.masqueraded || (self.masqueraded && is_masquerading))
    }
}

impl std::fmt::Display for Served {
    /// `10.244.1.21:8080 kept`, followed by the forwarding method unless it is masquerading.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let source = if self.masqueraded { "masqueraded" } else { "kept" };
        write!(f, "{} {source}", self.by)?;
        match self.forwarding {
            ForwardingMethod::Masquerade => Ok(()),
            ForwardingMethod::DirectRoute => f.write_str(" direct"),
            ForwardingMethod::Tunnel => f.write_str(" tunnel"),
            other => panic!("{other:?}"),
        }
    }
}

impl std::fmt::Display for End {
    /// `10.244.1.21:8080 kept, 10.244.2.21:8080 masqueraded`, or a word.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            End::Served(servers) => {
                servers
                    .iter()
                    .enumerate()
                    .fold(String::new(), |mut text, (n, server)| {
                        let _ = write!(text, "{}{server}", if n == 0 { "" } else { ", " });
                        text
                    })
            }
            End::NoServer => "unreachable".to_owned(),
            End::Rejected => "rejected".to_owned(),
            End::Dropped => "dropped".to_owned(),
            End::Node => "node".to_owned(),
            End::Forwarded => "forwarded".to_owned(),
        };
        f.write_str(&text)
    }
}

/// The netfilter verdict of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Accept,
    Drop,
    Reject,
    Masquerade,
    /// The destination is translated.
    Translate(SocketAddr),
    /// The end of the chain, or RETURN.
    Continue,
}

/// Whether a rule matches a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matches {
    No,
    Yes,
    /// At random.
    Sometimes,
}

/// A node.
pub(crate) struct Tracer {
    /// The addresses of its links.
    addresses: HashSet<IpAddr>,
    /// Those that only the dummy link has.
    virtual_ips: HashSet<IpAddr>,
    servers: HashMap<VirtualServerKey, Vec<RealServer>>,
    sets: HashMap<String, HashSet<Entry>>,
    rules: [Ruleset; 2],
}

impl Tracer {
    /// A node in the desired state, with these addresses in addition to those of the dummy link.
    pub(crate) fn new(desired: &State, node: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut tracer = Self {
            addresses: node.into_iter().collect(),
            virtual_ips: HashSet::new(),
            servers: HashMap::new(),
            sets: HashMap::new(),
            rules: Family::ALL.map(|family| with_jumps(desired.rules(family))),
        };
        for family in Family::ALL {
            let bound = desired.addresses(family);
            tracer
                .virtual_ips
                .extend(bound.filter(|address| !tracer.addresses.contains(address)));
            tracer.addresses.extend(desired.addresses(family));
            for server in desired.virtual_servers(family) {
                let real_servers = server.real_servers.to_vec();
                tracer.servers.insert(server.virtual_server.key, real_servers);
            }
            for &id in SetId::ALL {
                let entries = desired.entries(id, family).cloned().collect();
                tracer.sets.insert(id.text(family).to_owned(), entries);
            }
        }
        tracer
    }

    /// A node with the objects of a kernel.
    pub(crate) fn of_kernel(kernel: &mut Kernel) -> Self {
        let (bound, addresses): (Vec<_>, Vec<_>) = kernel
            .links
            .list(Selection::All)
            .unwrap()
            .into_iter()
            .partition(|address| address.link.to_string() == "kube-ipvs0");
        let address_of = |listed: &HostAddress| listed.address.key.address();
        let mut addresses: HashSet<IpAddr> = addresses.iter().map(address_of).collect();
        let bound = bound.iter().map(address_of);
        let virtual_ips: HashSet<IpAddr> = bound.filter(|address| !addresses.contains(address)).collect();
        addresses.extend(&virtual_ips);
        let servers = kernel.ipvs.list_all().unwrap().into_iter();
        let sets = kernel.sets.list().unwrap().into_iter();
        let mut rules = |family| kernel.rules.save(&Save::all(family)).unwrap();
        Self {
            addresses,
            virtual_ips,
            servers: servers
                .map(|(server, real_servers)| (server.key, real_servers))
                .collect(),
            sets: sets
                .map(|set| (set.header.set.name.to_string(), set.entries.into_iter().collect()))
                .collect(),
            rules: Family::ALL.map(&mut rules),
        }
    }

    /// The virtual servers.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &VirtualServerKey> {
        self.servers.keys()
    }

    pub(crate) fn trace(&self, packet: Packet) -> End {
        let hook = if packet.input.is_some() {
            "PREROUTING"
        } else {
            "OUTPUT"
        };
        let mut served = Vec::new();
        for (packet, verdict) in self.walk_builtin(Table::Nat, hook, packet) {
            let end = match verdict {
                Verdict::Translate(to) => self.translated(packet, to),
                _ => self.untranslated(packet),
            };
            match end {
                End::Served(servers) => served.extend(servers),
                other => return other,
            }
        }
        End::Served(served)
    }

    /// Whether the packets of an established connection to a virtual server reach a real server.
    pub(crate) fn continues(&self, packet: &Packet, real_server: &RealServer) -> bool {
        let mut packet = packet.clone();
        packet.is_established = true;
        let key = key_of(&packet);
        let exists = self
            .servers
            .get(&key)
            .is_some_and(|real_servers| real_servers.iter().any(|known| known.key == real_server.key));
        if packet.input.is_none() {
            // The socket has its own address, which may be the virtual IP.
            return exists && self.is_local(packet.source);
        }
        let input = self.builtin(Table::Filter, "INPUT", &mut packet);
        exists && self.is_local(packet.destination.ip()) && ![Verdict::Drop, Verdict::Reject].contains(&input)
    }

    /// Where a packet ends whose destination table `nat` translated.
    fn translated(&self, mut packet: Packet, to: SocketAddr) -> End {
        packet.destination = to;
        packet.is_translated = true;
        let hook = match packet.input {
            None => "OUTPUT",
            Some(_) if self.is_local(to.ip()) => "INPUT",
            Some(_) => "FORWARD",
        };
        match self.builtin(Table::Filter, hook, &mut packet) {
            Verdict::Drop => return End::Dropped,
            Verdict::Reject => return End::Rejected,
            _ => {}
        }
        let verdict = self.builtin(Table::Nat, "POSTROUTING", &mut packet);
        End::Served(vec![Served {
            by: to,
            forwarding: ForwardingMethod::Masquerade,
            masqueraded: verdict == Verdict::Masquerade,
        }])
    }

    fn untranslated(&self, mut packet: Packet) -> End {
        if packet.input.is_some() {
            if !self.is_local(packet.destination.ip()) {
                return match self.builtin(Table::Filter, "FORWARD", &mut packet) {
                    Verdict::Drop => End::Dropped,
                    Verdict::Reject => End::Rejected,
                    _ => End::Forwarded,
                };
            }
            match self.builtin(Table::Filter, "INPUT", &mut packet) {
                Verdict::Drop => return End::Dropped,
                Verdict::Reject => return End::Rejected,
                _ => {}
            }
        }
        let key = key_of(&packet);
        let Some(real_servers) = self.servers.get(&key) else {
            return self.without_server(packet);
        };
        packet.virtual_server = Some(key);
        let mut served = Vec::new();
        for real_server in real_servers.iter().filter(|server| !server.weight.is_draining()) {
            let mut packet = packet.clone();
            let by = SocketAddr::new(real_server.key.address, real_server.key.port);
            // Other methods do not change the packet. The outer packet of a tunnel has the same mark.
            if real_server.forwarding == ForwardingMethod::Masquerade {
                packet.destination = by;
            }
            if packet.input.is_none() {
                match self.builtin(Table::Filter, "OUTPUT", &mut packet) {
                    Verdict::Drop => return End::Dropped,
                    Verdict::Reject => return End::Rejected,
                    _ => {}
                }
            }
            let verdict = self.builtin(Table::Nat, "POSTROUTING", &mut packet);
            served.push(Served {
                by,
                forwarding: real_server.forwarding,
                masqueraded: verdict == Verdict::Masquerade,
            });
        }
        if served.is_empty() {
            End::NoServer
        } else {
            End::Served(served)
        }
    }

    /// Where a packet ends that no virtual server accepts. A packet of the node to itself comes in on the loopback interface.
    fn without_server(&self, mut packet: Packet) -> End {
        let is_local = self.is_local(packet.destination.ip());
        if packet.input.is_none() {
            let hooks: &[&str] = if is_local {
                &["OUTPUT", "INPUT"]
            } else {
                &["OUTPUT"]
            };
            for hook in hooks {
                match self.builtin(Table::Filter, hook, &mut packet) {
                    Verdict::Drop => return End::Dropped,
                    Verdict::Reject => return End::Rejected,
                    _ => {}
                }
            }
        }
        if is_local { End::Node } else { End::Forwarded }
    }

    /// Whether a packet to a port of a virtual IP reaches a process of the node that listens on all addresses. Those that answer health checks
    /// may.
    pub(crate) fn reaches_the_node(&self, packet: &Packet) -> bool {
        let destination = packet.destination;
        let family = Family::of(destination.ip());
        let checks = self.sets.get(SetId::HealthCheckNodePort.text(family));
        let is_check = checks.is_some_and(|ports| ports.contains(&Entry::port(destination.port())));
        self.virtual_ips.contains(&destination.ip()) && !is_check && self.trace(packet.clone()) == End::Node
    }

    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }

    /// Follows a built-in chain without rules that match at random.
    fn builtin(&self, table: Table, chain: &str, packet: &mut Packet) -> Verdict {
        let mut ends = self.walk_builtin(table, chain, packet.clone());
        assert_eq!(ends.len(), 1, "{table} {chain}");
        let (end, verdict) = ends.remove(0);
        *packet = end;
        verdict
    }

    /// Follows a built-in chain, whose policy is to accept. Returns everything that can happen.
    fn walk_builtin(&self, table: Table, chain: &str, packet: Packet) -> Vec<(Packet, Verdict)> {
        let name = ChainName::new(chain).unwrap();
        let rules = &self.rules[Family::of(packet.destination.ip()).index()];
        if rules.chain(table, &name).is_none() {
            return vec![(packet, Verdict::Continue)];
        }
        self.walk(table, &name, packet)
    }

    fn walk(&self, table: Table, name: &ChainName, packet: Packet) -> Vec<(Packet, Verdict)> {
        let family = Family::of(packet.destination.ip());
        let chain = self.rules[family.index()]
            .chain(table, name)
            .unwrap_or_else(|| panic!("no chain {name}"));
        let mut ended = Vec::new();
        let mut open = vec![packet];
        for rule in chain.rules() {
            let mut next = Vec::new();
            for mut packet in open {
                match self.rule_matches(&rule.matches, &packet) {
                    Matches::No => {
                        next.push(packet);
                        continue;
                    }
                    Matches::Yes => {}
                    Matches::Sometimes => next.push(packet.clone()),
                }
                let verdict = match &rule.target {
                    None => Verdict::Continue,
                    Some(Target::Accept) => Verdict::Accept,
                    Some(Target::Drop) => Verdict::Drop,
                    Some(Target::Reject(_)) => Verdict::Reject,
                    Some(Target::Masquerade(_)) => Verdict::Masquerade,
                    Some(Target::Dnat(nat)) => {
                        let address = nat.addresses.unwrap().first;
                        Verdict::Translate(SocketAddr::new(address, nat.ports.unwrap().range.first))
                    }
                    // To the address of the node.
                    Some(Target::Redirect(redirect)) => {
                        let own = self.addresses.difference(&self.virtual_ips);
                        let own = own.filter(|address| !address.is_loopback());
                        let own = own.copied().find(|address| Family::of(*address) == family);
                        Verdict::Translate(SocketAddr::new(own.unwrap(), redirect.ports.unwrap().first))
                    }
                    Some(Target::Return) => {
                        ended.push((packet, Verdict::Continue));
                        continue;
                    }
                    Some(Target::Jump(to)) => {
                        for (packet, verdict) in self.walk(table, to, packet) {
                            match verdict {
                                Verdict::Continue => next.push(packet),
                                _ => ended.push((packet, verdict)),
                            }
                        }
                        continue;
                    }
                    Some(Target::Mark(change)) => {
                        match *change {
                            MarkTarget::Or(bits) => packet.mark |= bits,
                            MarkTarget::Xor(bits) => packet.mark ^= bits,
                            // The kernel's form of both.
                            MarkTarget::SetXmark(bits, mask) => {
                                packet.mark = (packet.mark & !mask.unwrap_or(u32::MAX)) ^ bits;
                            }
                            other => panic!("{other:?}"),
                        }
                        Verdict::Continue
                    }
                    other => panic!("{other:?}"),
                };
                match verdict {
                    Verdict::Continue => next.push(packet),
                    _ => ended.push((packet, verdict)),
                }
            }
            open = next;
        }
        ended.extend(open.into_iter().map(|packet| (packet, Verdict::Continue)));
        ended
    }

    fn rule_matches(&self, tests: &[Match], packet: &Packet) -> Matches {
        let is_random = |test: &&Match| matches!(test, Match::Statistic(_));
        if !tests
            .iter()
            .filter(|test| !is_random(test))
            .all(|test| self.matches(test, packet))
        {
            return Matches::No;
        }
        if tests.iter().any(|test| is_random(&test)) {
            Matches::Sometimes
        } else {
            Matches::Yes
        }
    }

    fn matches(&self, test: &Match, packet: &Packet) -> bool {
        match test {
            Match::Comment(_) => true,
            Match::Destination(condition) => {
                holds(condition, |network| contains(network, packet.destination.ip()))
            }
            Match::Tcp(tcp) => port_matches(tcp.destination_ports.as_ref(), packet),
            Match::Udp(udp) => port_matches(udp.destination_ports.as_ref(), packet),
            Match::Sctp(sctp) => port_matches(sctp.destination_ports.as_ref(), packet),
            // No client was seen before.
            Match::Recent(recent) => holds(&recent.action, |action| *action == RecentAction::Set),
            Match::Source(condition) => holds(condition, |network| contains(network, packet.source)),
            Match::Protocol(condition) => {
                holds(condition, |protocol| *protocol == ip_protocol(packet.protocol))
            }
            Match::InInterface(condition) => holds(condition, |pattern| {
                let Some(input) = packet.input else { return false };
                pattern
                    .as_str()
                    .strip_suffix('+')
                    .map_or(pattern.as_str() == input, |prefix| input.starts_with(prefix))
            }),
            Match::Mark(condition) => holds(condition, |mark| {
                packet.mark & mark.mask.unwrap_or(u32::MAX) == mark.value
            }),
            Match::Set(set) => holds(&set.set, |reference| {
                self.in_set(reference.name.as_str(), &reference.directions, packet)
            }),
            Match::Addrtype(types) => {
                let of = |condition: &Option<Condition<AddressTypes>>, address| {
                    condition.as_ref().is_none_or(|condition| {
                        holds(condition, |types| {
                            types.contains(AddressType::Local) && self.is_local(address)
                        })
                    })
                };
                of(&types.source, packet.source) && of(&types.destination, packet.destination.ip())
            }
            // No packet here is a bridged packet.
            Match::Physdev(physdev) => physdev
                .is_in
                .is_none_or(|condition| holds(&condition, |()| false)),
            Match::Conntrack(conntrack) => conntrack.state.as_ref().is_none_or(|condition| {
                let now = if packet.is_established {
                    ConntrackState::Established
                } else {
                    ConntrackState::New
                };
                holds(condition, |states| {
                    states.contains(now) || (packet.is_translated && states.contains(ConntrackState::Dnat))
                })
            }),
            Match::State(condition) => holds(condition, |test| {
                let now = if packet.is_established {
                    ConntrackState::Established
                } else {
                    ConntrackState::New
                };
                test.states.contains(now)
            }),
            Match::Ipvs(ipvs) => by_virtual_server(ipvs, packet),
            other => panic!("{other:?}"),
        }
    }

    fn in_set(&self, name: &str, directions: &[SetDirection], packet: &Packet) -> bool {
        use SetDirection::{Destination as D, Source as S};
        let family = Family::of(packet.destination.ip());
        let id = SetId::ALL
            .iter()
            .copied()
            .find(|id| id.text(family) == name)
            .unwrap_or_else(|| panic!("unknown set {name}"));
        let entries = self.sets.get(name).unwrap_or_else(|| panic!("no set {name}"));
        let port = ProtocolPort::new(set_protocol(packet.protocol), packet.destination.port());
        let (source, destination) = (packet.source, packet.destination.ip());
        let entry = match (id.set_type().as_bytes(), directions) {
            (b"bitmap:port", [D]) => Entry::port(port.port),
            (b"hash:ip", [D]) => Entry::ip(destination),
            (b"hash:ip", [S]) => Entry::ip(source),
            (b"hash:ip,port", [D, D]) => Entry::ip_port(destination, port),
            (b"hash:ip,port", [S, D]) => Entry::ip_port(source, port),
            (b"hash:ip,port,ip", [D, D, S]) => Entry::ip_port_ip(destination, port, source),
            (b"hash:ip,port,net", [D, D, S]) => {
                return entries.iter().any(|entry| match entry.element() {
                    Element::IpPortNet { ip, port: open, net } => {
                        (*ip, *open) == (destination, port) && SetNetwork::contains(net, source)
                    }
                    other => panic!("{other:?}"),
                });
            }
            other => panic!("{other:?}"),
        };
        entries.contains(&entry)
    }
}

/// The rules with the jumps to them. The last one inserted into a chain is its first rule.
fn with_jumps(mut rules: Ruleset) -> Ruleset {
    let mut chains: HashMap<(Table, ChainName), Vec<_>> = HashMap::new();
    for jump in rules::jumps() {
        chains
            .entry((jump.table, jump.chain))
            .or_default()
            .insert(0, jump.rule);
    }
    for ((table, chain), of_chain) in chains {
        rules.table_mut(table).insert(chain, Chain::with_rules(of_chain));
    }
    rules
}

fn port_matches(ports: Option<&Condition<PortRange>>, packet: &Packet) -> bool {
    let port = packet.destination.port();
    ports.is_none_or(|ports| holds(ports, |range| (range.first..=range.last).contains(&port)))
}

/// The virtual server of a packet.
fn key_of(packet: &Packet) -> VirtualServerKey {
    VirtualServerKey::new(
        packet.destination.ip(),
        packet.destination.port(),
        ipvs_protocol(packet.protocol),
    )
}

fn by_virtual_server(ipvs: &IpvsMatch, packet: &Packet) -> bool {
    let Some(key) = packet.virtual_server else {
        return false;
    };
    let address = key.address().is_some_and(|address| {
        ipvs.address
            .is_none_or(|c| holds(&c, |net| contains(net, address)))
    });
    let protocol = ipvs
        .protocol
        .is_none_or(|c| holds(&c, |protocol| *protocol == ip_protocol(packet.protocol)));
    let port = ipvs
        .port
        .is_none_or(|c| holds(&c, |port| key.port() == Some(*port)));
    address && protocol && port
}

fn holds<T>(condition: &Condition<T>, test: impl FnOnce(&T) -> bool) -> bool {
    test(condition.value()) != condition.is_negated()
}

fn contains(network: &Network, address: IpAddr) -> bool {
    let prefix = match network.mask {
        None => Family::of(network.address).address_bits(),
        Some(Mask::Prefix(prefix)) => prefix,
        Some(other) => panic!("{other:?}"),
    };
    ipnet::IpNet::new(network.address, prefix).is_ok_and(|net| net.contains(&address))
}

fn ip_protocol(protocol: Protocol) -> IpProtocol {
    match protocol {
        Protocol::Tcp => IpProtocol::Tcp,
        Protocol::Udp => IpProtocol::Udp,
        Protocol::Sctp => IpProtocol::Sctp,
    }
}

fn ipvs_protocol(protocol: Protocol) -> IpvsProtocol {
    match protocol {
        Protocol::Tcp => IpvsProtocol::Tcp,
        Protocol::Udp => IpvsProtocol::Udp,
        Protocol::Sctp => IpvsProtocol::Sctp,
    }
}

fn set_protocol(protocol: Protocol) -> SetProtocol {
    match protocol {
        Protocol::Tcp => SetProtocol::TCP,
        Protocol::Udp => SetProtocol::UDP,
        Protocol::Sctp => SetProtocol::SCTP,
    }
}
