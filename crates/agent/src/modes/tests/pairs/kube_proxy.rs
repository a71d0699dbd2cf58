//! A node that kube-proxy served in iptables mode: its recorded rules are what each mode begins with.

use std::path::Path;

use kernlink_kubernetes::manifest;

use super::*;

/// The recorded cluster. The folders of `crates/proxier/tests` have one name for the objects and for the rules.
const FIXTURE: &str = "ordinary";

/// The ports of its Services that have endpoints.
const PORTS: [([u8; 4], u16, Protocol); 6] = [
    ([10, 96, 0, 1], 443, Protocol::Tcp),
    ([10, 96, 0, 10], 53, Protocol::Udp),
    ([10, 96, 0, 10], 53, Protocol::Tcp),
    ([10, 96, 0, 10], 9153, Protocol::Tcp),
    ([10, 96, 11, 12], 80, Protocol::Tcp),
    ([10, 96, 11, 12], 443, Protocol::Tcp),
];

/// The addresses of the endpoints.
const ENDPOINTS: [[u8; 4]; 6] = [
    [192, 0, 2, 50],
    [10, 244, 1, 3],
    [10, 244, 2, 3],
    [10, 244, 1, 21],
    [10, 244, 1, 22],
    [10, 244, 2, 21],
];

fn read(folder: &str, file: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proxier/tests");
    let path = tests.join(folder).join(FIXTURE).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A process in a mode with the objects of the cluster, before its first sync.
fn start(node: &Node, mode: &str) -> Process {
    let objects = manifest::read("objects.yaml", &read("oracle", "objects.yaml"));
    assert_eq!(objects.errors, []);
    let changes = objects.into_changes().unwrap().into_iter();
    let synced = [Kind::Service, Kind::EndpointSlice].map(Change::synced);
    node.start_with(mode, changes.chain(synced))
}

/// A node of both families, as that of the record.
fn new_node() -> Node {
    let mut node = Node::new();
    node.families = Family::ALL.into();
    node
}

/// The mode in which kube-proxy served, by the folder of its record.
#[derive(Clone, Copy)]
enum KubeProxy {
    Iptables,
    Ipvs,
}

impl KubeProxy {
    fn folder(self) -> &'static str {
        match self {
            KubeProxy::Iptables => "oracle_iptables",
            KubeProxy::Ipvs => "oracle",
        }
    }

    /// A node with everything that it wrote.
    fn node(self) -> Node {
        let node = new_node();
        if let KubeProxy::Ipvs = self {
            load_ipvs(&node);
        }
        for (family, file, tool) in [
            (Family::Ipv4, "iptables.txt", "iptables"),
            (Family::Ipv6, "ip6tables.txt", "ip6tables"),
        ] {
            let mut restore = Restore::new(family);
            add_chains(&mut restore, &read(self.folder(), file));
            for line in read(self.folder(), "jumps.txt").lines() {
                if let Some(jump) = line.strip_prefix(&format!("{tool} -I ")) {
                    add_jump(&mut restore, jump);
                }
            }
            let outcomes = node.rules.clone().execute(&[RulesOperation::from(restore)]);
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        }
        node
    }
}

/// Virtual servers, sets and addresses.
fn load_ipvs(node: &Node) {
    let folder = KubeProxy::Ipvs.folder();
    let link = LinkName::new("kube-ipvs0").unwrap();
    let addresses = read(folder, "addresses.txt");
    let addresses: Vec<LinkAddress> = addresses
        .lines()
        .map(|line| LinkAddress::host(line.split_once('/').unwrap().0.parse().unwrap()).unwrap())
        .collect();
    let mut links = node.links.fake.lock().unwrap();
    links.set_link(link, Some("dummy"), &addresses);
    drop(links);
    let sets = read(folder, "ipset.txt");
    let (created, added): (Vec<&str>, Vec<&str>) = sets.lines().partition(|line| line.starts_with("create "));
    let sets = [created, added].concat().join("\n");
    let sets = ipvs_mode::ipset::notation::parse(&sets).unwrap();
    let servers = ipvs_mode::ipvs::notation::parse(&read(folder, "ipvs.txt")).unwrap();
    let outcomes = node.sets.clone().execute(&sets);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let outcomes = node.ipvs.clone().execute(&servers);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
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

/// The packets to ports of the cluster that do not reach an endpoint, or a port of this process that has endpoints.
fn unserved(node: &Node) -> Vec<String> {
    let (tracer, tables) = (node.tracer(), node.node_tables());
    let sockets = node.sockets.lock();
    let accepts = |at: SocketAddr| {
        let mut listeners = sockets.listeners.iter();
        ENDPOINTS
            .iter()
            .any(|endpoint| IpAddr::from(*endpoint) == at.ip())
            || listeners.any(|(key, serving)| key.address.port() == at.port() && !serving.backends.is_empty())
    };
    let senders = [
        (Some("veth0"), [10, 244, 1, 99]),
        (Some("eth0"), CLIENT),
        (None, NODE),
    ];
    let mut unserved = Vec::new();
    for (address, port, protocol) in PORTS {
        for (input, source) in senders {
            let to = SocketAddr::new(address.into(), port);
            let packet = Packet::new(input, source.into(), to, protocol);
            let end = tracer.trace(packet.clone());
            let is_served = match tables.end(&packet) {
                TablesEnd::Translated(at) => accepts(at),
                TablesEnd::Dropped => false,
                TablesEnd::Accepted => {
                    matches!(&end, End::Served(by) if !by.is_empty() && by.iter().all(|served| accepts(served.endpoint())))
                }
            };
            if !is_served {
                unserved.push(format!("{to} {protocol} from {input:?}: {end}"));
            }
        }
    }
    unserved
}

/// Runs a process that ends after this number of operations. Returns whether it ended. With connections that do not end the syncs do not
/// either.
fn interrupt(node: &Node, mode: &str, operations: usize) -> bool {
    *node.process.0.lock().unwrap() = Some(operations);
    let mut process = start(node, mode);
    for _ in 0..12 {
        let synced = process.sync();
        if *node.process.0.lock().unwrap() == Some(0) {
            return true;
        }
        match synced.next {
            Some(next) => process.now = next.max(process.now),
            None => return false,
        }
    }
    false
}

/// Each mode takes over from kube-proxy, and its process ends after any number of operations. `active`: the number of connections to each real
/// server until then.
fn assert_served_and_removed(before: KubeProxy, active: u32) {
    assert_eq!(unserved(&before.node()), [""; 0]);
    for mode in MODES.iter().map(|mode| mode.name) {
        let alone = new_node();
        start(&alone, mode).settle();
        assert_eq!(unserved(&alone), [""; 0], "{mode} alone");
        let expected = alone.written();
        for operations in 0.. {
            let node = before.node();
            let connections = node.real_servers();
            node.connect(&connections, active);
            let when = format!("{mode} after {operations} operations");
            let has_ended = interrupt(&node, mode, operations);
            let unserved = unserved(&node);
            assert!(unserved.is_empty(), "{when}: {unserved:#?}");
            if active > 0 {
                node.assert_connections_continue(&connections, &when);
            }
            node.end_process();
            node.connect(&connections, 0);
            start(&node, mode).settle();
            assert_same(&node.written(), &expected, &when);
            if !has_ended {
                assert!(operations > 3, "{when}");
                break;
            }
        }
    }
}

#[test]
fn what_kube_proxy_served_in_iptables_mode_is_served_after_every_operation_of_each_mode_and_then_removed() {
    assert_served_and_removed(KubeProxy::Iptables, 0);
}

#[test]
fn what_kube_proxy_served_in_ipvs_mode_is_served_after_every_operation_of_each_mode_and_then_removed() {
    assert_served_and_removed(KubeProxy::Ipvs, 0);
}

#[test]
fn connections_through_kube_proxy_in_ipvs_mode_continue_after_every_operation_of_each_mode() {
    assert_served_and_removed(KubeProxy::Ipvs, 1);
}

#[test]
fn what_kube_proxy_left_is_removed_where_no_mode_serves() {
    let nothing = new_node().written();
    for before in [KubeProxy::Iptables, KubeProxy::Ipvs] {
        let node = before.node();
        let removed = remove_all(&mut node.removed(), Instant::now());
        assert_same(&node.written(), &nothing, before.folder());
        assert_eq!((removed.failures, removed.kept), (Vec::new(), Vec::new()));
    }
}
