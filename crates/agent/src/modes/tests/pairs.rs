//! The change of the mode for every ordered pair of modes, on a node with the Services that every cluster has: what both modes serve is served
//! after every operation, a Service that the next mode cannot program included, connections stay, and at the end nothing is left.

mod kube_proxy;
#[path = "../../../../proxier/tests/support/tracer.rs"]
mod tracer;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use kernlink_proxier::ipvs_mode::dummylink::Selection as Links;
use kernlink_proxier::ipvs_mode::ipvs::{ConnectionCounts, RealServer};
use kernlink_proxier::retire::{Removed, leftovers, remove_all};
use kernlink_services::{Ingress, ObjectName, Protocol, ServiceType};

use self::tracer::{End, Packet, Tracer};
use super::*;

/// Every ordered pair of modes.
fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let names = || MODES.iter().map(|mode| mode.name);
    let pairs = names().flat_map(move |first| names().map(move |next| (first, next)));
    pairs.filter(|(first, next)| first != next)
}

/// A Service with the number of its address and endpoints.
#[derive(Clone, Copy)]
struct Named(
    &'static str,
    &'static str,
    u8,
    &'static [(&'static str, u16, Protocol)],
    Reached,
);

/// How a Service is reached from other hosts.
#[derive(Clone, Copy, PartialEq)]
enum Reached {
    /// Not at all.
    Inside,
    /// At [`NODE_PORT`] and at an external IP.
    Outside,
    /// At an ingress IP, by the clients of one network.
    Restricted,
}

const HTTP: &[(&str, u16, Protocol)] = &[("http", 80, Protocol::Tcp)];

/// The first Services, and others that are programmed after them.
const SERVICES: [Named; 5] = [
    Named(
        "default",
        "kubernetes",
        1,
        &[("https", 443, Protocol::Tcp)],
        Reached::Inside,
    ),
    Named(
        "kube-system",
        "kube-dns",
        10,
        &[("dns", 53, Protocol::Udp), ("dns-tcp", 53, Protocol::Tcp)],
        Reached::Inside,
    ),
    Named("shop", "web", 80, HTTP, Reached::Inside),
    Named("shop", "open", 81, HTTP, Reached::Outside),
    Named("shop", "restricted", 82, HTTP, Reached::Restricted),
];

const NODE: [u8; 4] = [192, 0, 2, 10];
const NODE_PORT: u16 = 30_080;
const EXTERNAL_IP: [u8; 4] = [203, 0, 113, 9];
const INGRESS_IP: [u8; 4] = [203, 0, 113, 1];
const CLIENT: [u8; 4] = [192, 0, 2, 66];
const ADMITTED_CLIENT: [u8; 4] = [198, 51, 100, 7];

impl Named {
    fn address(&self) -> IpAddr {
        [10, 96, 0, self.2].into()
    }

    fn endpoints(&self) -> [IpAddr; 2] {
        [1, 2].map(|node| IpAddr::from([10, 244, node, self.2]))
    }

    fn changes(&self) -> [Change; 2] {
        self.changes_with(self.endpoints())
    }

    fn changes_with(&self, endpoints: [IpAddr; 2]) -> [Change; 2] {
        self.changes_of(endpoints, "198.51.100.0/24")
    }

    /// With these endpoints and source ranges.
    fn changes_of(&self, endpoints: [IpAddr; 2], ranges: &str) -> [Change; 2] {
        let Self(namespace, name, _, ports, reached) = *self;
        let mut service =
            Service::new(ObjectName::new(namespace, name)).with_cluster_ip(self.address().to_string());
        let mut slice = EndpointSlice::new(ObjectName::new(namespace, name), name, Family::Ipv4);
        for (name, number, protocol) in ports {
            service = service.with_port(Port::new(*name, *number).with_protocol(*protocol));
            slice = slice.with_port(EndpointPort::new(*name, 8_080).with_protocol(*protocol));
        }
        match reached {
            Reached::Inside => {}
            Reached::Outside => {
                service.service_type = ServiceType::NodePort;
                service.ports[0] = service.ports[0].clone().with_node_port(NODE_PORT);
                service.external_ips = vec![IpAddr::from(EXTERNAL_IP).to_string()];
            }
            Reached::Restricted => {
                service.service_type = ServiceType::LoadBalancer;
                service.ingress = vec![Ingress {
                    ip: IpAddr::from(INGRESS_IP).to_string(),
                    ..Ingress::default()
                }];
                service.load_balancer_source_ranges = vec![ranges.to_owned()];
            }
        }
        let [here, elsewhere] = endpoints;
        let slice = slice
            .with_endpoint(Endpoint::new(here).with_node("node-a"))
            .with_endpoint(Endpoint::new(elsewhere).with_node("node-b"));
        [
            Change::Services(ObjectChange::Upsert(service)),
            Change::EndpointSlices(ObjectChange::Upsert(slice)),
        ]
    }

    /// The first packets of connections that are served: of a pod of this node, another host, and this node to each port, and those of clients
    /// from outside.
    fn packets(&self) -> Vec<Packet> {
        let senders = [
            (Some("veth0"), [10, 244, 1, 99]),
            (Some("eth0"), CLIENT),
            (None, NODE),
        ];
        let ports = self.3.iter();
        let of_port = |(_, port, protocol): &(_, u16, Protocol)| {
            let to = SocketAddr::new(self.address(), *port);
            senders.map(|(input, source)| Packet::new(input, source.into(), to, *protocol))
        };
        let mut packets: Vec<Packet> = ports.flat_map(of_port).collect();
        match self.4 {
            Reached::Inside => {}
            Reached::Outside => {
                packets.extend([(NODE, NODE_PORT), (EXTERNAL_IP, 80)].map(|to| from_outside(CLIENT, to)));
            }
            Reached::Restricted => packets.push(from_outside(ADMITTED_CLIENT, (INGRESS_IP, 80))),
        }
        packets
    }
}

fn from_outside(client: [u8; 4], (to, port): ([u8; 4], u16)) -> Packet {
    let to = SocketAddr::new(to.into(), port);
    Packet::new(Some("eth0"), client.into(), to, Protocol::Tcp)
}

/// A process in a mode with these Services, before its first sync.
fn start(node: &Node, mode: &str) -> Process {
    let changes = SERVICES.iter().flat_map(Named::changes);
    let synced = [Kind::Service, Kind::EndpointSlice].map(Change::synced);
    node.start_with(mode, changes.chain(synced))
}

impl Process {
    /// Syncs at each time that a sync asks for, at most so often.
    fn run(&mut self, most: usize) {
        for _ in 0..most {
            match self.sync().next {
                Some(next) => self.now = next.max(self.now),
                None => return,
            }
        }
    }
}

impl Node {
    /// The node as packets meet it.
    fn tracer(&self) -> Tracer {
        Tracer::of_kernel(&mut self.ipvs_kernel())
    }

    /// The packets to Services that do not reach one of these endpoints, or a port of this process that has endpoints, and those that do
    /// although source ranges do not admit the client.
    fn unserved(&self, services: &[(Named, [IpAddr; 2])]) -> Vec<String> {
        let tracer = self.tracer();
        let node_tables = self.node_tables();
        let sockets = self.sockets.lock();
        let mut unserved = Vec::new();
        for (service, endpoints) in services {
            let is_served = |packet: &Packet, end: &End| {
                let accepts = |at: SocketAddr| {
                    let of_service = at.port() == 8_080 && endpoints.contains(&at.ip());
                    let mut listeners = sockets.listeners.iter();
                    of_service
                        || listeners.any(|(key, serving)| {
                            let mut ranges = serving.source_ranges.iter();
                            let is_admitted = serving.source_ranges.is_empty()
                                || ranges.any(|range| range.contains(&packet.source));
                            key.address.port() == at.port() && !serving.backends.is_empty() && is_admitted
                        })
                };
                match node_tables.end(packet) {
                    TablesEnd::Translated(at) => return accepts(at),
                    TablesEnd::Dropped => return false,
                    TablesEnd::Accepted => {}
                }
                match end {
                    End::Served(by) => !by.is_empty() && by.iter().all(|served| accepts(served.endpoint())),
                    _ => false,
                }
            };
            let mut compare = |packet: Packet, expected: bool| {
                let end = tracer.trace(packet.clone());
                if is_served(&packet, &end) != expected {
                    let to = format!("{} {}", packet.destination, packet.protocol);
                    unserved.push(format!("{to} from {:?} {}: {end}", packet.input, packet.source));
                }
            };
            for packet in service.packets() {
                compare(packet, true);
            }
            if service.4 == Reached::Restricted {
                compare(from_outside(CLIENT, (INGRESS_IP, 80)), false);
            }
        }
        unserved
    }

    fn node_tables(&self) -> NodeTables {
        let bound = self.links.clone().list(Links::All).unwrap().into_iter();
        let bound = bound.map(|found| found.address.key.address());
        NodeTables {
            tables: self.tables.fake.lock().unwrap().clone(),
            addresses: bound.chain(self.addresses.iter().copied()).collect(),
        }
    }

    /// The cluster IPs that tables of nftables mode translate.
    pub(super) fn served_by_tables(&self) -> Vec<String> {
        let node_tables = self.node_tables();
        let is_served = |service: &&Named| {
            let packet = service.packets().remove(0);
            matches!(node_tables.end(&packet), TablesEnd::Translated(_))
        };
        let served = SERVICES.iter().filter(is_served);
        served.map(|service| service.address().to_string()).collect()
    }

    /// Where the first packet of a client to the ingress IP ends; `None`: at a port of this process that does not admit it.
    fn end_at_ingress(&self, client: [u8; 4]) -> Option<End> {
        let end = self.tracer().trace(from_outside(client, (INGRESS_IP, 80)));
        let node_tables = self.node_tables();
        match node_tables.end(&from_outside(client, (INGRESS_IP, 80))) {
            TablesEnd::Translated(at) => panic!("nftables translates it to {at}"),
            TablesEnd::Dropped => return None,
            TablesEnd::Accepted => {}
        }
        let sockets = self.sockets.lock();
        let refuses = |at: SocketAddr| {
            at.ip() == IpAddr::from(NODE)
                && sockets.listeners.iter().all(|(key, serving)| {
                    let ranges = &serving.source_ranges;
                    key.address.port() != at.port()
                        || !(ranges.is_empty()
                            || ranges.iter().any(|range| range.contains(&IpAddr::from(client))))
                })
        };
        let is_refused =
            matches!(&end, End::Served(by) if by.iter().all(|served| refuses(served.endpoint())));
        (!is_refused).then_some(end)
    }

    /// All modes, to be removed.
    fn removed(&self) -> Vec<Box<dyn Retire>> {
        self.retire_all().into_iter().map(|(_, mode)| mode).collect()
    }

    fn assert_served(&self, when: &str) {
        let unserved = self.unserved(&SERVICES.map(|service| (service, service.endpoints())));
        assert!(unserved.is_empty(), "{when}: {unserved:#?}");
    }

    /// The real servers of virtual servers of TCP.
    pub(super) fn real_servers(&self) -> Vec<(VirtualServerKey, RealServer)> {
        let mut ipvs = self.ipvs.clone();
        let servers = ipvs.list_all().unwrap().into_iter();
        let is_tcp =
            |key: &VirtualServerKey| key.protocol() == Some(kernlink_proxier::ipvs_mode::ipvs::Protocol::Tcp);
        servers
            .flat_map(|(server, real)| real.into_iter().map(move |real| (server.key, real)))
            .filter(|(key, _)| is_tcp(key))
            .collect()
    }

    /// Sets the number of connections of each of these that exists.
    pub(super) fn connect(&self, to: &[(VirtualServerKey, RealServer)], active: u32) {
        let mut counts = ConnectionCounts::default();
        counts.active = active;
        let mut ipvs = self.ipvs.fake.lock().unwrap();
        for (server, real) in to {
            ipvs.set_connections(server, &real.key, counts);
        }
    }

    fn assert_connections_continue(&self, connections: &[(VirtualServerKey, RealServer)], when: &str) {
        let tracer = self.tracer();
        for (server, real) in connections {
            let to = SocketAddr::new(server.address().unwrap(), server.port().unwrap());
            let packet = Packet::new(Some("eth0"), ADMITTED_CLIENT.into(), to, Protocol::Tcp);
            assert!(tracer.continues(&packet, real), "{when}: {server} {real}");
        }
    }

    /// Everything that the modes write, except the chain of the kubelet.
    fn written(&self) -> BTreeSet<String> {
        let mut lines: BTreeSet<String> = self.ipvs_objects().into_iter().collect();
        for family in Family::ALL {
            let ruleset = self.rules.fake.lock().unwrap().ruleset(family);
            for (table, rules) in ruleset.tables() {
                for (name, chain) in rules.chains() {
                    if name.as_str() == "KUBE-FIREWALL" {
                        continue;
                    }
                    // Tables have their built-in chains once any program uses them.
                    if chain.policy.is_none() {
                        lines.insert(format!("{family} {table} {name}"));
                    }
                    let rules = chain.rules().map(ToString::to_string);
                    let rules = rules.filter(|rule| !rule.ends_with("-j KUBE-FIREWALL"));
                    lines.extend(rules.map(|rule| format!("{family} {table} {name} {rule}")));
                }
            }
        }
        let tables = self.tables.clone().tables(None).unwrap().into_iter();
        lines.extend(tables.map(|table| format!("table {}", table.key)));
        let addresses = self.links.clone().list(Links::All).unwrap().into_iter();
        lines.extend(addresses.map(|found| format!("{} {}", found.link, found.address.key.address())));
        if self.has_ipvs_link() {
            lines.insert("kube-ipvs0".to_owned());
        }
        lines
    }

    /// Ends the process, whose sockets are closed with it.
    fn end_process(&self) {
        *self.process.0.lock().unwrap() = None;
        let mut sockets = self.sockets.lock();
        sockets.listeners.clear();
        sockets.claims.clear();
    }
}

/// The tables of nftables mode as packets meet them.
struct NodeTables {
    tables: FakeNftables,
    /// The addresses of the node, those that IPVS mode binds included.
    addresses: Vec<IpAddr>,
}

/// What the tables do with the first packet of a connection.
enum TablesEnd {
    Translated(SocketAddr),
    Dropped,
    Accepted,
}

impl NodeTables {
    fn end(&self, first: &Packet) -> TablesEnd {
        /// The bit of a connection whose destination was translated.
        const DNAT: u32 = 0x20;
        let mut fake = self.tables.clone();
        fake.set_random(Some(0));
        let protocol = nftables::Protocol::from(first.protocol);
        let to = first.destination;
        let mut packet = nftables::Packet::new(first.source, to.ip(), protocol.0, to.port());
        packet.local_addresses.clone_from(&self.addresses);
        let mut next = Some(match first.input {
            None => nftables::Hook::Output,
            Some(_) => nftables::Hook::Prerouting,
        });
        while let Some(hook) = next {
            let outcome = fake.evaluate(hook, packet);
            if outcome.fate != nftables::PacketFate::Accepted {
                return TablesEnd::Dropped;
            }
            packet = outcome.packet;
            next = match hook {
                nftables::Hook::Output => Some(nftables::Hook::Postrouting),
                // IPVS accepts a packet as input of the node.
                nftables::Hook::Prerouting if self.addresses.contains(&packet.destination) => {
                    Some(nftables::Hook::Input)
                }
                nftables::Hook::Prerouting => Some(nftables::Hook::Forward),
                _ => None,
            };
        }
        if packet.status & DNAT == 0 {
            return TablesEnd::Accepted;
        }
        TablesEnd::Translated(SocketAddr::new(packet.destination, packet.destination_port))
    }
}

/// What one mode alone writes.
fn written_by(mode: &str) -> BTreeSet<String> {
    let node = Node::new();
    start(&node, mode).settle();
    node.assert_served(mode);
    node.written()
}

fn assert_same(found: &BTreeSet<String>, expected: &BTreeSet<String>, when: &str) {
    let left: Vec<_> = found.difference(expected).collect();
    let missing: Vec<_> = expected.difference(found).collect();
    assert!(
        left.is_empty() && missing.is_empty(),
        "{when}: left {left:#?}, missing {missing:#?}"
    );
}

/// A node that a process in a mode serves, which ends, with a connection to each real server.
fn served_by(mode: &str) -> (Node, Vec<(VirtualServerKey, RealServer)>) {
    let node = Node::new();
    start(&node, mode).settle();
    let connections = node.real_servers();
    node.connect(&connections, 1);
    if mode != "userspace" {
        node.end_process();
    }
    (node, connections)
}

#[test]
fn what_two_modes_serve_is_served_after_every_operation_of_the_change_and_after_an_interruption() {
    for (first, next) in pairs() {
        let expected = written_by(next);
        for operations in 0.. {
            let when = format!("{first} to {next}, after {operations} operations");
            let (node, connections) = served_by(first);
            if first == "userspace" {
                // Its ports were closed when it ended: nothing is served until the next mode is in place.
                node.end_process();
            }
            let has_ended = interrupt(&node, next, operations);
            if first != "userspace" {
                node.assert_served(&when);
            }
            node.assert_connections_continue(&connections, &when);
            node.end_process();
            let mut process = start(&node, next);
            process.run(2);
            node.assert_served(&format!("{when}, and two syncs"));
            node.assert_connections_continue(&connections, &when);
            node.connect(&connections, 0);
            process.settle();
            node.assert_served(&format!("{when}, at the end"));
            assert_same(&node.written(), &expected, &when);
            if !has_ended {
                assert!(operations > 1, "{when}");
                break;
            }
        }
    }
}

/// What a mode writes for `shop/web`, or for addresses of `shop/open`, each of which may be refused.
fn written_for(mode: &str) -> &'static [&'static str] {
    Registered::of(mode).written_for
}

/// Starts a process in the mode `next`, which ends after this number of operations. Returns whether it ended.
fn interrupt(node: &Node, next: &str, operations: usize) -> bool {
    run_interrupted(node, operations, || start(node, next))
}

/// Runs a process, which ends after this number of operations. Returns whether it ended.
fn run_interrupted(node: &Node, operations: usize, start: impl FnOnce() -> Process) -> bool {
    *node.process.0.lock().unwrap() = Some(operations);
    let mut process = start();
    for _ in 0..12 {
        let following = process.sync().next;
        if *node.process.0.lock().unwrap() == Some(0) {
            return true;
        }
        match following {
            Some(following) => process.now = following.max(process.now),
            None => return false,
        }
    }
    false
}

#[test]
fn after_an_interrupted_change_the_cleanup_leaves_nothing_of_any_mode() {
    let nothing = Node::new().written();
    for (first, next) in pairs() {
        for operations in 0.. {
            let when = format!("{first} to {next}, after {operations} operations");
            let (node, _) = served_by(first);
            let has_ended = interrupt(&node, next, operations);
            node.end_process();
            let before = node.written();
            let planned = leftovers(&mut node.removed(), Instant::now());
            assert_eq!(node.written(), before, "{when}");
            assert!(!planned.commands.is_empty(), "{when}");
            let removed = remove_all(&mut node.removed(), Instant::now());
            assert_same(&node.written(), &nothing, &when);
            assert_eq!(
                (removed.failures, removed.kept),
                (Vec::new(), Vec::new()),
                "{when}"
            );
            let again = remove_all(&mut node.removed(), Instant::now());
            assert_eq!(again, Removed::default(), "{when}");
            if !has_ended {
                break;
            }
        }
    }
}

#[test]
fn where_sysctls_cannot_be_written_all_other_objects_of_the_mode_before_are_removed() {
    for (first, next) in serving_pairs() {
        let expected = written_by(next);
        let (node, connections) = served_by(first);
        node.connect(&connections, 0);
        let mut node = node;
        node.sysctls.are_read_only = true;
        let mut process = start(&node, next);
        for sync in 0..60 {
            let synced = process.sync();
            assert_eq!(
                next == "userspace",
                synced.is_success,
                "{first} to {next}: {}",
                synced.text
            );
            node.assert_served(&format!("{first} to {next}, after {sync} syncs"));
            let Some(following) = synced.next else { break };
            process.now = following.max(process.now);
        }
        assert_same(&node.written(), &expected, &format!("{first} to {next}"));
    }
}

#[test]
fn after_an_interrupted_change_a_third_mode_removes_what_both_left() {
    for third in MODES.iter().map(|mode| mode.name) {
        let expected = written_by(third);
        let pairs = pairs().filter(|(_, next)| *next != third);
        // One operation in three of each change, but every one of some change.
        for ((first, next), from) in pairs.zip((0..3).cycle()) {
            for operations in (from..).step_by(3) {
                let when = format!("{first} to {next}, after {operations} operations, then {third}");
                let (node, connections) = served_by(first);
                let has_ended = interrupt(&node, next, operations);
                node.end_process();
                let serves = node.unserved(&SERVICES.map(|service| (service, service.endpoints())));
                let mut process = start(&node, third);
                for sync in 0..3 {
                    let synced = process.sync();
                    process.now = synced.next.unwrap_or(process.now).max(process.now);
                    if serves.is_empty() {
                        node.assert_served(&format!("{when}, after {sync} syncs"));
                    }
                }
                node.connect(&connections, 0);
                process.settle();
                node.assert_served(&when);
                assert_same(&node.written(), &expected, &when);
                if !has_ended {
                    break;
                }
            }
        }
    }
}

/// A process in the mode `next` on a node that `first` served, after some syncs. The kernel refuses what has a text.
fn with_a_refused_service(first: &str, next: &str, refused: &str) -> (Node, Process) {
    let (node, connections) = served_by(first);
    node.connect(&connections, 0);
    *node.process.1.lock().unwrap() = Some(refused.to_owned());
    let mut process = start(&node, next);
    for sync in 0..12 {
        let synced = process.sync();
        assert!(!synced.is_success, "{first} to {next}, {refused} is not written");
        node.assert_served(&format!(
            "{first} to {next}, {refused}, after {sync} syncs\n{}",
            synced.plan
        ));
        process.now = synced.next.unwrap().max(process.now);
    }
    (node, process)
}

/// The pairs of a mode that serves after its process ended and another one.
fn serving_pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    pairs().filter(|(first, _)| Registered::of(first).outlives_its_process)
}

/// These pairs with what the kernel may refuse to the other one.
fn refusals() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    serving_pairs().flat_map(|(first, next)| {
        let refused = written_for(next).iter();
        refused.map(move |refused| (first, next, *refused))
    })
}

impl Node {
    /// The numbers of the addresses of Services that objects of a mode serve.
    fn served_in(&self, mode: &str) -> BTreeSet<u8> {
        let written = (Registered::of(mode).serving)(self);
        let numbers = SERVICES.map(|service| service.2).into_iter();
        let is_served = |number: &u8| {
            let address = format!("10.96.0.{number}");
            let is_end = |text: &str| !text.starts_with(|next: char| next.is_ascii_digit());
            let has_it = |text: &String| text.split_once(&address).is_some_and(|(_, rest)| is_end(rest));
            written.iter().any(has_it)
        };
        numbers.filter(is_served).collect()
    }
}

#[test]
fn only_a_service_that_the_next_mode_cannot_program_is_served_by_the_mode_before_it() {
    for (first, next, refused) in refusals() {
        let when = format!("{first} to {next}, {refused}");
        let (node, mut process) = with_a_refused_service(first, next, refused);
        let served = node.served_in(first);
        if refused.contains("10.96.0.80") {
            assert_eq!(served, BTreeSet::from([80]), "{when}");
        } else {
            // Of one of its addresses, perhaps.
            assert!(served.is_subset(&BTreeSet::from([81])), "{when}: {served:?}");
        }
        // Changes of all others apply.
        let dns = SERVICES[1];
        let replaced = [[10, 244, 1, 200], [10, 244, 2, 200]].map(IpAddr::from);
        for change in dns.changes_with(replaced) {
            process.proxier.change(change);
        }
        process.now += Duration::from_secs(2);
        process.run(3);
        let unserved = node.unserved(&[(dns, replaced)]);
        assert!(unserved.is_empty(), "{when}: {unserved:#?}");
        for change in dns.changes() {
            process.proxier.change(change);
        }
        // The kernel accepts it at last.
        *node.process.1.lock().unwrap() = None;
        process.now += Duration::from_secs(600);
        process.run(60);
        node.assert_served(&when);
        assert_same(&node.written(), &written_by(next), &when);
    }
}

/// What a mode writes for the ingress IP.
fn written_for_ingress(mode: &str) -> &'static [&'static str] {
    Registered::of(mode).written_for_ingress
}

#[test]
fn a_client_that_source_ranges_do_not_admit_is_not_served_while_operations_fail() {
    for (first, next) in pairs() {
        for refused in written_for_ingress(next) {
            let (node, connections) = served_by(first);
            node.connect(&connections, 0);
            *node.process.1.lock().unwrap() = Some((*refused).to_owned());
            let mut process = start(&node, next);
            let assert_excluded = |process: &mut Process, clients: &[[u8; 4]]| {
                for _ in 0..6 {
                    let synced = process.sync();
                    process.now += Duration::from_secs(2);
                    for client in clients {
                        let end = node.end_at_ingress(*client);
                        assert!(
                            !matches!(end, Some(End::Served(_))),
                            "{first} to {next}, {refused}: {client:?} ends at {end:?}\n{}",
                            synced.plan
                        );
                    }
                }
            };
            assert_excluded(&mut process, &[CLIENT]);
            // The ranges change: the client that they admitted is excluded too.
            let restricted = SERVICES[4];
            for change in restricted.changes_of(restricted.endpoints(), "198.51.100.128/25") {
                process.proxier.change(change);
            }
            process.sync();
            process.now += Duration::from_secs(2);
            assert_excluded(&mut process, &[CLIENT, ADMITTED_CLIENT]);
        }
    }
}

#[test]
fn a_service_that_the_next_mode_cannot_program_stays_also_if_ipvs_mode_could_not_be_read_at_first() {
    // The link is found, and its sets cannot be read; or it is not even known whether there is a link.
    for (next, is_found) in [
        ("iptables", true),
        ("iptables", false),
        ("userspace", true),
        ("userspace", false),
    ] {
        let (node, connections) = served_by("ipvs");
        node.connect(&connections, 0);
        *node.process.1.lock().unwrap() = Some(written_for(next)[0].to_owned());
        let unreadable = match is_found {
            true => &node.process.2,
            false => &node.process.3,
        };
        unreadable.store(true, Ordering::Relaxed);
        let mut process = start(&node, next);
        process.sync();
        unreadable.store(false, Ordering::Relaxed);
        for sync in 0..8 {
            node.assert_served(&format!("ipvs to {next}, after {sync} syncs"));
            process.now += Duration::from_secs(61);
            process.sync();
        }
        assert_eq!(node.served_in("ipvs"), BTreeSet::from([80]), "{next}");
        *node.process.1.lock().unwrap() = None;
        process.now += Duration::from_secs(600);
        process.run(60);
        node.assert_served(next);
        assert_same(&node.written(), &written_by(next), next);
    }
}

#[test]
fn no_node_port_is_served_at_virtual_ips_while_sets_of_ipvs_mode_cannot_be_read() {
    // A port at which `shop/web` has nothing, and which is the node port of `shop/open`.
    let packet = from_outside(CLIENT, ([10, 96, 0, 80], NODE_PORT));
    for next in ["iptables", "nftables", "userspace"] {
        let expected = written_by(next);
        let (node, connections) = served_by("ipvs");
        node.connect(&connections, 0);
        let mut process = start(&node, next);
        for sync in 0..3 {
            node.process.2.store(true, Ordering::Relaxed);
            let synced = process.sync();
            node.process.2.store(false, Ordering::Relaxed);
            let when = format!("ipvs to {next}, after {sync} syncs");
            assert!(node.has_ipvs_link(), "{when}");
            node.assert_served(&when);
            let end = node.tracer().trace(packet.clone());
            let is_translated = matches!(node.node_tables().end(&packet), TablesEnd::Translated(_));
            assert!(
                !is_translated && !matches!(end, End::Served(_)),
                "{when}: {packet:?} ends at {end}\n{}",
                synced.plan
            );
            process.now += Duration::from_secs(61);
        }
        process.settle();
        assert_same(&node.written(), &expected, next);
    }
}

#[test]
fn a_deleted_service_that_the_next_mode_could_not_program_is_not_served_by_the_mode_before_it() {
    for (first, next, refused) in refusals() {
        let when = format!("{first} to {next}, {refused}");
        let (node, mut process) = with_a_refused_service(first, next, refused);
        for name in ["web", "open"] {
            let deleted = ObjectChange::Delete(ObjectName::new("shop", name));
            process.proxier.change(Change::Services(deleted));
        }
        for _ in 0..20 {
            process.now += Duration::from_secs(6);
            process.sync();
        }
        assert_eq!(node.served_in(first), BTreeSet::new(), "{when}");
        let others = SERVICES.map(|service| (service, service.endpoints()));
        let unserved = node.unserved(&[others[0], others[1], others[4]]);
        assert!(unserved.is_empty(), "{when}: {unserved:#?}");
    }
}
