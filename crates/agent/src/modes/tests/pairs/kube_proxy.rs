//! A node that kube-proxy served, in each of its modes: what each mode begins with is its record.

mod tables;

use std::collections::BTreeMap;
use std::path::Path;

use kernlink_kubernetes::manifest;
use kernlink_userspace::proxy::Transport;

use super::*;

/// The addresses of the node of the records.
const NODE: [&str; 3] = ["192.0.2.1", "2001:db8::1", "198.51.100.7"];

/// The mode in which kube-proxy served.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KubeProxy {
    Iptables,
    Ipvs,
    Nftables,
}

/// What kube-proxy wrote for a cluster.
#[derive(Clone, Copy, Debug)]
struct Record(KubeProxy, &'static str);

impl Record {
    /// A file of the cluster, or of what kube-proxy wrote for it. The folders of `crates/proxier/tests` have one name for both.
    fn read(self, folder: &str, file: &str) -> String {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proxier/tests");
        let path = tests.join(folder).join(self.1).join(file);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn objects(self) -> Vec<Change> {
        let objects = manifest::read("objects.yaml", &self.read("oracle", "objects.yaml"));
        assert_eq!(objects.errors, []);
        objects.into_changes().unwrap()
    }

    /// A process in a mode with the objects of the cluster, before its first sync.
    fn start(self, node: &Node, mode: &str) -> Process {
        let synced = [Kind::Service, Kind::EndpointSlice].map(Change::synced);
        node.start_with(mode, self.objects().into_iter().chain(synced))
    }

    /// The node with everything that kube-proxy wrote.
    fn node(self) -> Node {
        let node = new_node();
        match self.0 {
            KubeProxy::Iptables => self.load_rules(&node, "oracle_iptables"),
            KubeProxy::Ipvs => {
                self.load_ipvs(&node);
                self.load_rules(&node, "oracle");
            }
            KubeProxy::Nftables => {
                let operations = tables::operations(&self.read("oracle_nftables", "nftables.txt"));
                let outcomes = node.tables.clone().execute(&operations);
                assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            }
        }
        node
    }

    fn load_rules(self, node: &Node, folder: &str) {
        for (family, file, tool) in [
            (Family::Ipv4, "iptables.txt", "iptables"),
            (Family::Ipv6, "ip6tables.txt", "ip6tables"),
        ] {
            let mut restore = Restore::new(family);
            add_chains(&mut restore, &self.read(folder, file));
            for line in self.read(folder, "jumps.txt").lines() {
                if let Some(jump) = line.strip_prefix(&format!("{tool} -I ")) {
                    add_jump(&mut restore, jump);
                }
            }
            let outcomes = node.rules.clone().execute(&[RulesOperation::from(restore)]);
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        }
    }

    /// Virtual servers, sets and addresses.
    fn load_ipvs(self, node: &Node) {
        let link = LinkName::new("kube-ipvs0").unwrap();
        let addresses = self.read("oracle", "addresses.txt");
        let addresses: Vec<LinkAddress> = addresses
            .lines()
            .map(|line| LinkAddress::host(line.split_once('/').unwrap().0.parse().unwrap()).unwrap())
            .collect();
        let mut links = node.links.fake.lock().unwrap();
        links.set_link(link, Some("dummy"), &addresses);
        drop(links);
        let sets = self.read("oracle", "ipset.txt");
        let (created, added): (Vec<&str>, Vec<&str>) =
            sets.lines().partition(|line| line.starts_with("create "));
        let sets = [created, added].concat().join("\n");
        let sets = ipvs_mode::ipset::notation::parse(&sets).unwrap();
        let servers = ipvs_mode::ipvs::notation::parse(&self.read("oracle", "ipvs.txt")).unwrap();
        let outcomes = node.sets.clone().execute(&sets);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        let outcomes = node.ipvs.clone().execute(&servers);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    }

    /// The first packets of connections to every frontend of the cluster: of a pod of this node, another host, and this node.
    fn packets(self) -> Vec<Packet> {
        let mut packets = Vec::new();
        for change in self.objects() {
            let services = match change {
                Change::Services(ObjectChange::Upsert(service)) => vec![service],
                Change::Services(ObjectChange::ReplaceAll(services)) => services,
                _ => continue,
            };
            for service in services {
                let of_service = [&service.cluster_ip].into_iter().chain(&service.cluster_ips);
                let of_service = of_service.chain(&service.external_ips);
                let of_service = of_service.chain(service.ingress.iter().map(|ingress| &ingress.ip));
                let addresses: BTreeSet<IpAddr> = of_service.filter_map(|text| text.parse().ok()).collect();
                for port in &service.ports {
                    let of_node = NODE
                        .iter()
                        .map(|address| (address.parse().unwrap(), port.node_port));
                    let frontends = addresses.iter().map(|address| (*address, port.port));
                    for (address, number) in frontends.chain(of_node).filter(|(_, number)| *number != 0) {
                        let to = SocketAddr::new(address, number);
                        packets.extend(first_packets(to, port.protocol));
                    }
                }
            }
        }
        packets
    }
}

fn first_packets(to: SocketAddr, protocol: Protocol) -> [Packet; 3] {
    let senders = match to {
        SocketAddr::V4(_) => ["10.244.1.99", "198.51.100.66", NODE[0]],
        SocketAddr::V6(_) => ["fd00:1::99", "2001:db8:9::66", NODE[1]],
    };
    let inputs = [Some("veth0"), Some("eth0"), None];
    let mut senders = inputs.into_iter().zip(senders);
    std::array::from_fn(|_| {
        let (input, source) = senders.next().unwrap();
        Packet::new(input, source.parse().unwrap(), to, protocol)
    })
}

/// A node of both families, as that of the records.
fn new_node() -> Node {
    let mut node = Node::new();
    node.families = Family::ALL.into();
    node.addresses = NODE.map(|address| address.parse().unwrap()).into();
    node.set_addresses();
    node
}

/// Chains as `iptables-restore` reads them.
fn add_chains(restore: &mut Restore, text: &str) {
    let mut table = Table::Filter;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.parse().unwrap();
        } else if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next().unwrap();
            restore
                .table_mut(table)
                .push(Edit::declare(name.parse().unwrap()));
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|line| line.split_once(' ')) {
            let rule = rule.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            restore
                .table_mut(table)
                .push(Edit::append(chain.parse().unwrap(), rule));
        }
    }
}

/// A jump as an `iptables -I` command has it: its arguments without quotes.
fn add_jump(restore: &mut Restore, jump: &str) {
    let (chain, jump) = jump.split_once(" -t ").unwrap();
    let (table, jump) = jump.split_once(' ').unwrap();
    let rule = match jump.split_once("--comment ") {
        Some((before, comment)) => {
            let (comment, after) = comment.split_once(" -j ").unwrap();
            format!("{before}--comment \"{comment}\" -j {after}")
        }
        None => jump.to_owned(),
    };
    let edits = restore.table_mut(table.parse().unwrap());
    // kube-proxy makes the chain of the kubelet where there is none.
    let declare = Edit::declare(rule.rsplit(' ').next().unwrap().parse().unwrap());
    if !edits.contains(&declare) {
        edits.push(declare);
    }
    edits.push(Edit::insert(chain.parse().unwrap(), rule.parse().unwrap()));
}

/// The endpoints at which each packet may end. Not those of which none does.
type Ends = BTreeMap<String, BTreeSet<SocketAddr>>;

impl Node {
    fn ends(&self, packets: &[Packet]) -> Ends {
        let (tracer, tables) = (self.tracer(), self.node_tables());
        let sockets = self.sockets.lock();
        // Of a port of the process, those that it connects to.
        let endpoints = |at: SocketAddr, packet: &Packet| -> Vec<SocketAddr> {
            if !self.addresses.contains(&at.ip()) {
                return vec![at];
            }
            let listeners = sockets.listeners.iter().filter(|(key, serving)| {
                let mut ranges = serving.source_ranges.iter();
                let is_admitted =
                    serving.source_ranges.is_empty() || ranges.any(|range| range.contains(&packet.source));
                let is_udp = packet.protocol == Protocol::Udp;
                (key.transport == Transport::Udp) == is_udp
                    && key.address.is_ipv4() == at.is_ipv4()
                    && key.address.port() == at.port()
                    && is_admitted
            });
            listeners
                .flat_map(|(_, serving)| serving.backends.iter().map(|backend| backend.address))
                .collect()
        };
        let mut ends = Ends::new();
        for packet in packets {
            let found = match tables.end(packet) {
                TablesEnd::Translated(at) => vec![at],
                TablesEnd::Dropped => Vec::new(),
                TablesEnd::Accepted => match tracer.trace(packet.clone()) {
                    End::Served(by) => by.iter().map(tracer::Served::endpoint).collect(),
                    _ => Vec::new(),
                },
            };
            let found: BTreeSet<SocketAddr> =
                found.into_iter().flat_map(|at| endpoints(at, packet)).collect();
            if !found.is_empty() {
                let from = packet.input.unwrap_or("node");
                ends.insert(
                    format!("{} {} from {from}", packet.destination, packet.protocol),
                    found,
                );
            }
        }
        ends
    }
}

/// Each mode takes over from kube-proxy, and its process ends after a number of operations: any, of which at most `moments` are chosen, or all. `active`: the
/// number of connections to each real server until then.
fn assert_served_and_removed(record: Record, active: u32, moments: usize) {
    let packets = record.packets();
    let before = record.node().ends(&packets);
    for mode in MODES.iter().map(|mode| mode.name) {
        let node = new_node();
        record.start(&node, mode).settle();
        let alone = node.ends(&packets);
        let expected = node.written();
        assert!(
            before.keys().any(|packet| alone.contains_key(packet)),
            "{record:?} to {mode}"
        );
        let assert_served = |node: &Node, when: &str| {
            let found = node.ends(&packets);
            for (packet, ends) in &found {
                // Which of its endpoints a sender reaches, if any, differs with the configuration of kube-proxy.
                let frontend = |packet: &str| packet.split(" from ").next().map(str::to_owned);
                let known = before.iter().chain(&alone);
                let known = known.filter(|(of, _)| frontend(of) == frontend(packet));
                let known: BTreeSet<SocketAddr> = known.flat_map(|(_, ends)| ends).copied().collect();
                assert!(
                    ends.is_subset(&known) || known.is_empty(),
                    "{when}: {packet} ends at {ends:?}, not {known:?}"
                );
            }
            for packet in before.keys().filter(|packet| alone.contains_key(*packet)) {
                assert!(found.contains_key(packet), "{when}: {packet} is not served");
            }
        };
        let all = operations_of(record, mode, active);
        assert!(all > 1, "{record:?} to {mode}: {all} operations");
        let step = all.div_ceil(moments);
        for operations in (0..all).step_by(step).chain([all]) {
            let node = record.node();
            let connections = node.real_servers();
            node.connect(&connections, active);
            let when = format!("{record:?} to {mode}, after {operations} operations of {all}");
            run_interrupted(&node, operations, || record.start(&node, mode));
            assert_served(&node, &when);
            if active > 0 {
                node.assert_connections_continue(&connections, &when);
            }
            node.end_process();
            node.connect(&connections, 0);
            record.start(&node, mode).settle();
            assert_same(&node.written(), &expected, &when);
            assert_eq!(node.ends(&packets), alone, "{when}");
        }
    }
}

/// How many operations a process in this mode executes that is not interrupted.
fn operations_of(record: Record, mode: &str, active: u32) -> usize {
    let node = record.node();
    node.connect(&node.real_servers(), active);
    let most = usize::MAX;
    run_interrupted(&node, most, || record.start(&node, mode));
    most - node.process.0.lock().unwrap().unwrap()
}

#[test]
fn what_kube_proxy_served_in_iptables_mode_is_served_after_every_operation_of_each_mode_and_then_removed() {
    assert_served_and_removed(Record(KubeProxy::Iptables, "ordinary"), 0, usize::MAX);
}

#[test]
fn what_kube_proxy_served_in_ipvs_mode_is_served_after_every_operation_of_each_mode_and_then_removed() {
    assert_served_and_removed(Record(KubeProxy::Ipvs, "ordinary"), 0, usize::MAX);
}

#[test]
fn what_kube_proxy_served_in_nftables_mode_is_served_after_every_operation_of_each_mode_and_then_removed() {
    assert_served_and_removed(Record(KubeProxy::Nftables, "ordinary"), 0, usize::MAX);
}

#[test]
fn connections_through_kube_proxy_in_ipvs_mode_continue_after_every_operation_of_each_mode() {
    assert_served_and_removed(Record(KubeProxy::Ipvs, "ordinary"), 1, usize::MAX);
}

/// Other clusters of the records.
const FIXTURES: [&str; 7] = [
    "dual_stack",
    "external_ips",
    "load_balancers",
    "mixed_ipv4_first",
    "mixed_odd_objects",
    "mixed_shared_addresses",
    "node_ports",
];

#[test]
fn services_of_every_kind_that_kube_proxy_served_in_iptables_mode_are_served_while_the_mode_changes() {
    for fixture in FIXTURES {
        assert_served_and_removed(Record(KubeProxy::Iptables, fixture), 0, 2);
    }
}

#[test]
fn services_of_every_kind_that_kube_proxy_served_in_ipvs_mode_are_served_while_the_mode_changes() {
    for fixture in FIXTURES {
        assert_served_and_removed(Record(KubeProxy::Ipvs, fixture), 0, 2);
    }
}

#[test]
fn what_kube_proxy_left_is_removed_where_no_mode_serves() {
    let nothing = new_node().written();
    for kube_proxy in [KubeProxy::Iptables, KubeProxy::Ipvs, KubeProxy::Nftables] {
        let node = Record(kube_proxy, "ordinary").node();
        let removed = remove_all(&mut node.removed(), Instant::now());
        assert_same(&node.written(), &nothing, &format!("{kube_proxy:?}"));
        assert_eq!((removed.failures, removed.kept), (Vec::new(), Vec::new()));
    }
}
