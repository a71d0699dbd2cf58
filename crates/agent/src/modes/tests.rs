//! A node changes its mode, on fakes that all modes share as they share the kernel.

mod pairs;
mod shared;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernlink_proxier::iptables_mode::IptablesMode;
use kernlink_proxier::ipvs_mode::IpvsMode;
use kernlink_proxier::ipvs_mode::dummylink::{DummyLinks, Fake as FakeLinks, LinkAddress, LinkName};
use kernlink_proxier::ipvs_mode::ipset::{Fake as FakeSets, IpSets};
use kernlink_proxier::ipvs_mode::iptables_restore::{
    Edit, Fake as FakeRules, Iptables, Operation as RulesOperation, Restore, Table,
};
use kernlink_proxier::ipvs_mode::ipvs::{Fake as FakeIpvs, Ipvs, VirtualServerKey};
use kernlink_proxier::nftables_mode::nftables::{self, Fake as FakeNftables, Nftables};
use kernlink_proxier::nftables_mode::{self, NftablesMode};
use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, Port, Service,
};
use kernlink_userspace::UserspaceMode;
use kernlink_userspace::data_path::sockets::FakeSockets;

use self::any_proxier::{AnyProxier, Did};
use self::shared::{NodeSysctls, RunningProcess, Shared};
use super::*;
use crate::modes::served::Served;

#[path = "../../tests/support/any_proxier.rs"]
mod any_proxier;

/// Modes on a node that they do not serve.
type Modes = Vec<Box<dyn Retire>>;

/// A mode of these tests. A new mode is one more entry: every test of pairs of modes includes it.
struct Registered {
    name: &'static str,
    /// Whether it serves after its process ended.
    outlives_its_process: bool,
    /// What serves Services in the kernel, with their addresses.
    serving: fn(&Node) -> Vec<String>,
    /// What it writes for `shop/web`, or for addresses of `shop/open`, each of which may be refused.
    written_for: &'static [&'static str],
    /// What it writes for the ingress IP, each of which may be refused.
    written_for_ingress: &'static [&'static str],
    /// A proxier on a node, with these retiring modes.
    start: fn(&Node, Modes) -> Box<dyn AnyProxier>,
    /// The mode on a node that it does not serve.
    retire: fn(&Node) -> Box<dyn Retire>,
}

/// In the order in which they retire.
static MODES: [Registered; 4] = [
    Registered {
        name: "ipvs",
        outlives_its_process: true,
        serving: Node::ipvs_objects,
        written_for: &[
            "KERNLINK-VS 10.96.0.80",
            "KUBE-CLUSTER-IP 10.96.0.80",
            "-A -t 10.96.0.80",
            "-a -t 10.96.0.80",
            "address replace 10.96.0.80",
            "-A -t 203.0.113.9:80",
            "KUBE-EXTERNAL-IP 203.0.113.9",
            "-A -t 192.0.2.10:30080",
            "KUBE-NODE-PORT-TCP 30080",
        ],
        written_for_ingress: &[
            "-A -t 203.0.113.1:80",
            "KERNLINK-VS 203.0.113.1",
            "KUBE-LOAD-BALANCER 203.0.113.1",
            "KUBE-LOAD-BALANCER-FW 203.0.113.1",
            "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1",
        ],
        start: |node, retiring| {
            let config = settings::<IpvsMode>(node, "ipvs");
            any_proxier::proxier::<IpvsMode>(&config, node.ipvs_kernel(), retiring)
        },
        retire: |node| {
            let config = config("iptables").retiring_ipvs();
            let retiring = ipvs_mode::retire::Retiring::new(config, Box::new(node.links.clone()));
            Box::new(retiring.unwrap().with_kernel(node.ipvs_kernel()))
        },
    },
    Registered {
        name: "iptables",
        outlives_its_process: true,
        serving: Node::rules_of_services,
        written_for: &[
            "KUBE-SERVICES -d 10.96.0.80",
            "KUBE-SERVICES -d 203.0.113.9",
            "--dport 30080",
        ],
        written_for_ingress: &["KUBE-SERVICES -d 203.0.113.1", "KUBE-FW-"],
        start: |node, retiring| {
            let config = settings::<IptablesMode>(node, "iptables");
            any_proxier::proxier::<IptablesMode>(&config, node.iptables_kernel(), retiring)
        },
        retire: |node| Box::new(iptables_mode::retire::Retiring::new(Box::new(node.rules.clone()))),
    },
    Registered {
        name: "nftables",
        outlives_its_process: true,
        serving: Node::served_by_tables,
        // A refused element costs no other one, which the tests of nftables mode show.
        written_for: &[],
        written_for_ingress: &[],
        start: |node, retiring| {
            let config = settings::<NftablesMode>(node, "nftables");
            any_proxier::proxier::<NftablesMode>(&config, node.nftables_kernel(), retiring)
        },
        retire: |node| {
            Box::new(nftables_mode::retire::Retiring::new(Box::new(
                node.tables.clone(),
            )))
        },
    },
    Registered {
        name: "userspace",
        outlives_its_process: false,
        serving: |_| Vec::new(),
        written_for: &[
            "KUBE-PORTALS-CONTAINER -d 10.96.0.80",
            "KUBE-PORTALS-HOST -d 10.96.0.80",
            "KUBE-PORTALS-CONTAINER -d 203.0.113.9",
            "-A KUBE-NODEPORT-CONTAINER",
        ],
        written_for_ingress: &["KUBE-PORTALS-CONTAINER -d 203.0.113.1"],
        start: |node, retiring| {
            let config = settings::<UserspaceMode>(node, "userspace");
            any_proxier::proxier::<UserspaceMode>(&config, node.userspace_kernel(), retiring)
        },
        retire: |node| Box::new(userspace::retire::Retiring::new(Box::new(node.rules.clone()))),
    },
];

impl Registered {
    fn of(mode: &str) -> &'static Self {
        MODES.iter().find(|registered| registered.name == mode).unwrap()
    }
}

/// A node, whose kernel outlives the processes.
#[derive(Clone)]
struct Node {
    rules: Shared<FakeRules>,
    links: Shared<FakeLinks>,
    sets: Shared<FakeSets>,
    ipvs: Shared<FakeIpvs>,
    tables: Shared<FakeNftables>,
    sockets: FakeSockets,
    sysctls: NodeSysctls,
    /// Those of which Services are served.
    families: BTreeSet<Family>,
    addresses: Vec<IpAddr>,
    process: RunningProcess,
}

impl Node {
    fn new() -> Self {
        let process = RunningProcess::default();
        let node = Self {
            rules: Shared::of(&process),
            links: Shared::of(&process),
            sets: Shared::of(&process),
            ipvs: Shared::of(&process),
            tables: Shared::of(&process),
            sockets: FakeSockets::default(),
            sysctls: NodeSysctls::default(),
            families: [Family::Ipv4].into(),
            addresses: vec![[192, 0, 2, 10].into()],
            process,
        };
        node.set_addresses();
        node
    }

    fn set_addresses(&self) {
        let addresses = self.addresses.iter();
        let addresses: Vec<_> = addresses
            .map(|address| LinkAddress::host(*address).unwrap())
            .collect();
        let mut links = self.links.fake.lock().unwrap();
        links.set_link(LinkName::new("eth0").unwrap(), None, &addresses);
    }

    fn ipvs_kernel(&self) -> ipvs_mode::Kernel {
        let mut kernel = ipvs_mode::Kernel::fake();
        kernel.rules = Box::new(self.rules.clone());
        kernel.links = Box::new(self.links.clone());
        kernel.sets = Box::new(self.sets.clone());
        kernel.ipvs = Box::new(self.ipvs.clone());
        kernel.sysctls = self.sysctls.make();
        kernel
    }

    fn iptables_kernel(&self) -> iptables_mode::Kernel {
        let mut kernel = iptables_mode::Kernel::fake();
        kernel.rules = Box::new(self.rules.clone());
        kernel.links = Box::new(self.links.clone());
        kernel.sysctls = self.sysctls.make();
        kernel
    }

    fn nftables_kernel(&self) -> nftables_mode::Kernel {
        let mut kernel = nftables_mode::Kernel::fake();
        kernel.tables = Box::new(self.tables.clone());
        kernel.links = Box::new(self.links.clone());
        kernel.sysctls = self.sysctls.make();
        kernel
    }

    fn userspace_kernel(&self) -> kernlink_userspace::Kernel {
        let mut kernel = kernlink_userspace::Kernel::fake();
        kernel.rules = Box::new(self.rules.clone());
        kernel.links = Box::new(self.links.clone());
        kernel.sockets = Box::new(self.sockets.clone());
        kernel
    }

    /// All modes, to be removed, with their names.
    fn retire_all(&self) -> Vec<(&'static str, Box<dyn Retire>)> {
        MODES
            .iter()
            .map(|mode| (mode.name, (mode.retire)(self)))
            .collect()
    }

    /// All modes except one, to be removed.
    fn retiring(&self, serving: &str) -> Vec<Box<dyn Retire>> {
        let all = self.retire_all().into_iter();
        let others = all.filter(|(mode, _)| *mode != serving);
        others.map(|(_, mode)| mode).collect()
    }

    /// Runs a process in a mode until nothing is left to do, or until it ends after this number of operations. Returns whether it ended.
    fn run_and_end(&self, mode: &str, operations: usize) -> bool {
        let set = |left| *self.process.0.lock().unwrap() = left;
        set(Some(operations));
        let mut process = self.start(mode);
        for _ in 0..40 {
            let synced = process.sync();
            let has_ended = *self.process.0.lock().unwrap() == Some(0);
            match synced.next.filter(|_| !has_ended) {
                Some(next) => process.now = next.max(process.now),
                None => {
                    set(None);
                    // Its sockets are closed with it.
                    let mut sockets = self.sockets.lock();
                    sockets.listeners.clear();
                    sockets.claims.clear();
                    return has_ended;
                }
            }
        }
        panic!("the syncs do not end");
    }

    /// The rules of `KUBE-SERVICES` that lead to a Service.
    fn rules_of_services(&self) -> Vec<String> {
        let ruleset = self.rules.fake.lock().unwrap().ruleset(Family::Ipv4);
        let services = ruleset.chain(Table::Nat, &"KUBE-SERVICES".parse().unwrap());
        let rules = services.into_iter().flat_map(|chain| chain.rules());
        let texts = rules.map(ToString::to_string);
        texts.filter(|text| text.contains("-j KUBE-SVC-")).collect()
    }

    fn has_ipvs_link(&self) -> bool {
        self.links
            .clone()
            .exists(&LinkName::new("kube-ipvs0").unwrap())
            .unwrap()
    }

    /// The sets, and the virtual servers.
    fn ipvs_objects(&self) -> Vec<String> {
        let sets = self.sets.clone().headers().unwrap().into_iter();
        let servers = self.ipvs.clone().list_virtual_servers().unwrap().into_iter();
        let sets = sets.map(|header| header.set.name.to_string());
        sets.chain(servers.map(|status| status.server.key.to_string()))
            .collect()
    }

    /// Asserts that a rule names no set that does not exist.
    fn assert_sets_exist(&self) {
        let sets = self.ipvs_objects();
        for family in Family::ALL {
            let ruleset = self.rules.fake.lock().unwrap().ruleset(family).to_string();
            let words: Vec<&str> = ruleset.split_ascii_whitespace().collect();
            for pair in words.windows(2).filter(|pair| pair[0] == "--match-set") {
                assert!(
                    sets.iter().any(|set| set == pair[1]),
                    "{}: {sets:?}\n{ruleset}",
                    pair[1]
                );
            }
        }
    }

    /// A process that starts in a mode, with these objects, on a node that other modes may have served.
    fn start_with(&self, mode: &str, changes: impl IntoIterator<Item = Change>) -> Process {
        let mut proxier = (Registered::of(mode).start)(self, self.retiring(mode));
        for change in changes {
            proxier.change(change);
        }
        Process {
            proxier,
            now: Instant::now(),
        }
    }

    /// A process that starts in a mode.
    fn start(&self, mode: &str) -> Process {
        self.start_with(mode, objects())
    }

    /// The names of the chains of both tables that Kubernetes' programs have, except that of the kubelet.
    fn chains(&self) -> Vec<String> {
        let ruleset = self.rules.fake.lock().unwrap().ruleset(Family::Ipv4);
        let names = [Table::Nat, Table::Filter].into_iter().flat_map(|table| {
            let rules = ruleset.table(table).into_iter();
            rules.flat_map(|rules| rules.chains().map(|(name, _)| name.to_string()))
        });
        let of_kubernetes = |name: &String| name.starts_with("KUBE-") && name != "KUBE-FIREWALL";
        names.filter(of_kubernetes).collect()
    }

    fn has_chain(&self, prefix: &str) -> bool {
        self.chains().iter().any(|name| name.starts_with(prefix))
    }
}

/// The configuration of a data path, with the families and addresses of the node.
fn settings<M: Served>(node: &Node, mode: &str) -> M::Config {
    struct Get;
    impl Task for Get {
        type Output = Box<dyn std::any::Any>;

        fn run<M: Served>(self, settings: &M::Settings) -> Box<dyn std::any::Any> {
            Box::new(M::of_settings(settings).clone())
        }
    }
    let mut config = config(mode);
    config.services_mut().families.clone_from(&node.families);
    config.services_mut().node_ips.clone_from(&node.addresses);
    *run(&config, Get).downcast::<M::Config>().unwrap()
}

fn config(mode: &str) -> Config {
    let mut config = Config::new(mode.parse().unwrap(), "node-a");
    config.services_mut().node_ips = vec![[192, 0, 2, 10].into()];
    config.services_mut().families = [Family::Ipv4].into();
    config
}

/// A Service with a node port.
fn objects() -> Vec<Change> {
    let name = kernlink_services::ObjectName::new("default", "web");
    let service = Service::new(name.clone())
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80));
    let slice = EndpointSlice::new(name, "web", Family::Ipv4)
        .with_port(EndpointPort::new("http", 8080))
        .with_endpoint(Endpoint::new(IpAddr::from([10, 244, 0, 1])));
    vec![
        Change::Services(ObjectChange::ReplaceAll(vec![service])),
        Change::EndpointSlices(ObjectChange::ReplaceAll(vec![slice])),
        Change::synced(Kind::Service),
        Change::synced(Kind::EndpointSlice),
    ]
}

struct Process {
    proxier: Box<dyn AnyProxier>,
    now: Instant,
}

impl Process {
    fn sync(&mut self) -> Did {
        self.proxier.sync(self.now)
    }

    /// Syncs at each time that a sync asks for, until none is left.
    fn settle(&mut self) {
        let mut last = String::new();
        for _ in 0..40 {
            let synced = self.sync();
            last = format!("{}\n{}", synced.text, synced.plan);
            let is_success = synced.is_success || (synced.is_partial && synced.counts.failed == 0);
            assert!(is_success, "{}\n{}", synced.text, synced.plan);
            match synced.next {
                Some(next) => self.now = next.max(self.now),
                None => return,
            }
        }
        panic!("the syncs do not end: {last}");
    }
}

#[test]
fn userspace_mode_removes_the_chains_of_iptables_mode_after_it_serves() {
    let node = Node::new();
    node.start("iptables").settle();
    assert!(node.has_chain("KUBE-SVC-") && node.has_chain("KUBE-SERVICES"));
    let mut process = node.start("userspace");
    let first = process.sync();
    assert!(first.is_success, "{}", first.text);
    let events = first.texts();
    assert!(
        events
            .iter()
            .any(|text| text.contains("iptables mode served this node before")),
        "{events:?}"
    );
    assert!(node.has_chain("KUBE-PORTALS-CONTAINER"));
    assert_eq!(node.sockets.lock().listeners.len(), 1);
    process.settle();
    let chains = node.chains();
    assert!(
        chains
            .iter()
            .all(|name| name.starts_with("KUBE-PORTALS") || name.starts_with("KUBE-NODEPORT-")),
        "{chains:?}"
    );
    // The removal is complete: nothing of it is read again, and a new process has nothing to do.
    assert_eq!(process.sync().next, None);
    let mut next = node.start("userspace");
    assert_eq!(next.sync().next, None);
    assert_eq!(node.chains(), chains);
}

#[test]
fn iptables_and_ipvs_mode_remove_portal_chains_in_their_first_sync() {
    for mode in ["iptables", "ipvs"] {
        let node = Node::new();
        node.start("userspace").settle();
        assert!(node.has_chain("KUBE-PORTALS-HOST"));
        let mut process = node.start(mode);
        let first = process.sync();
        assert!(first.is_success, "{}", first.text);
        assert!(node.has_chain("KUBE-SERVICES"), "{mode}");
        // Until then the portals lead to closed ports.
        assert!(
            !node.has_chain("KUBE-PORTALS") && !node.has_chain("KUBE-NODEPORT-"),
            "{mode}"
        );
        process.settle();
        assert!(
            !node.has_chain("KUBE-PORTALS") && !node.has_chain("KUBE-NODEPORT-"),
            "{mode}"
        );
        assert!(node.has_chain("KUBE-SERVICES"), "{mode}");
    }
}

/// A Service with a cluster IP and a node port.
fn node_port_service() -> Change {
    let mut service = Service::new(kernlink_services::ObjectName::new("default", "web"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80).with_node_port(31_080));
    service.service_type = kernlink_services::ServiceType::NodePort;
    Change::Services(ObjectChange::Upsert(service))
}

const NODE_PORT: kernlink_userspace::ListenerKey = kernlink_userspace::ListenerKey {
    transport: kernlink_userspace::Transport::Tcp,
    address: std::net::SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 31_080),
};

#[test]
fn a_port_that_userspace_mode_cannot_serve_yet_keeps_its_rules_of_iptables_mode_and_no_others() {
    let node = Node::new();
    let mut before = node.start("iptables");
    before.proxier.change(node_port_service());
    before.settle();
    let rules = |chain: &str| -> Vec<String> {
        let ruleset = node.rules.fake.lock().unwrap().ruleset(Family::Ipv4);
        let rules = ruleset.chain(Table::Nat, &chain.parse().unwrap()).map(|chain| {
            let rules = chain.rules().filter(|rule| rule.target.is_some());
            rules.map(ToString::to_string).collect()
        });
        rules.unwrap_or_default()
    };
    let node_ports = rules("KUBE-NODEPORTS");
    assert!(!node_ports.is_empty());
    let mut process = node.start("userspace");
    process.proxier.change(node_port_service());
    // Another program has the node port, as a claim finds.
    node.sockets.lock().foreign.insert(NODE_PORT);
    assert!(!process.sync().is_success);
    for _ in 0..3 {
        process.now += Duration::from_secs(6);
        process.proxier.resync();
        process.sync();
    }
    assert_eq!(rules("KUBE-NODEPORTS"), node_ports);
    // The cluster IP is served by userspace mode; what is left is the jump to the node ports.
    let left = rules("KUBE-SERVICES");
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].contains("KUBE-NODEPORTS"), "{left:?}");
    assert!(node.has_chain("KUBE-EXT-"));
    // The Service is deleted: its rules are of no use any more, although the port is still taken.
    let name = kernlink_services::ObjectName::new("default", "web");
    process
        .proxier
        .change(Change::Services(ObjectChange::Delete(name)));
    process.now += Duration::from_secs(600);
    for _ in 0..3 {
        process.now += Duration::from_secs(6);
        process.sync();
    }
    assert!(!node.has_chain("KUBE-SERVICES") && !node.has_chain("KUBE-EXT-"));
}

#[test]
fn an_operation_that_keeps_failing_does_not_keep_the_rules_of_iptables_mode() {
    let node = Node::new();
    node.start("iptables").settle();
    let mut process = node.start("userspace");
    // A node port that iptables mode did not have.
    process.proxier.change(node_port_service());
    node.sockets.lock().foreign.insert(NODE_PORT);
    assert!(!process.sync().is_success);
    for _ in 0..3 {
        process.now += Duration::from_secs(6);
        assert!(!process.sync().is_success);
    }
    assert!(!node.has_chain("KUBE-SVC-") && node.has_chain("KUBE-PORTALS"));
}

#[test]
fn userspace_mode_removes_what_ipvs_mode_left() {
    let node = Node::new();
    let mut earlier = node.start("ipvs");
    earlier.settle();
    node.connect(&node.real_servers(), 1);
    let mut next = node.start("userspace");
    let first = next.sync();
    assert!(first.is_success, "{}", first.text);
    let servers = |node: &Node| node.ipvs.clone().list_virtual_servers().unwrap().len();
    assert_eq!(servers(&node), 1, "it has connections");
    // No port of a virtual IP is claimed although the node has its address.
    assert!(node.sockets.lock().claims.is_empty());
    node.connect(&node.real_servers(), 0);
    next.settle();
    assert_eq!(node.ipvs_objects(), [""; 0]);
    assert!(!node.has_ipvs_link());
    let chains = node.chains();
    assert!(
        chains
            .iter()
            .all(|name| name.starts_with("KUBE-PORTALS") || name.starts_with("KUBE-NODEPORT-")),
        "{chains:?}"
    );
    assert!(node.has_chain("KUBE-PORTALS-CONTAINER"));
}

/// Asserts that nothing of iptables and IPVS mode is left.
fn assert_only_userspace_mode(node: &Node, when: &str) {
    assert!(!node.has_ipvs_link(), "{when}");
    assert_eq!(node.ipvs_objects(), [""; 0], "{when}");
    let chains = node.chains();
    let is_of_userspace =
        |name: &String| name.starts_with("KUBE-PORTALS") || name.starts_with("KUBE-NODEPORT-");
    assert!(chains.iter().all(is_of_userspace), "{when}: {chains:?}");
    assert!(node.has_chain("KUBE-PORTALS-CONTAINER"), "{when}");
}

#[test]
fn after_a_process_ended_at_any_operation_the_next_one_removes_the_rest_of_ipvs_mode() {
    let mut ended_without_link = 0;
    for operations in 0.. {
        let node = Node::new();
        node.start("ipvs").settle();
        let has_ended = node.run_and_end("userspace", operations);
        let when = format!("after {operations} operations");
        node.assert_sets_exist();
        if !node.has_ipvs_link() {
            // It is the notice for the next process.
            assert_eq!(node.ipvs_objects(), [""; 0], "{when}");
            ended_without_link += 1;
        }
        node.start("userspace").settle();
        assert_only_userspace_mode(&node, &when);
        if !has_ended {
            assert!(operations > 20 && ended_without_link > 0, "{when}");
            return;
        }
    }
}

/// Ends a process in the mode `next` after any number of its first operations, on a node that `first` serves. Userspace mode then removes
/// what is left of both.
fn assert_removed_if_a_change_is_interrupted(first: &str, next: &str) {
    for operations in 0.. {
        let node = Node::new();
        node.start(first).settle();
        let has_ended = node.run_and_end(next, operations);
        node.start("userspace").settle();
        assert_only_userspace_mode(&node, &format!("after {operations} operations"));
        if !has_ended {
            assert!(operations > 20, "{operations}");
            return;
        }
    }
}

#[test]
fn after_ipvs_mode_ended_while_it_replaced_iptables_mode_userspace_mode_removes_both() {
    assert_removed_if_a_change_is_interrupted("iptables", "ipvs");
}

#[test]
fn after_iptables_mode_ended_while_it_replaced_ipvs_mode_userspace_mode_removes_both() {
    assert_removed_if_a_change_is_interrupted("ipvs", "iptables");
}

#[test]
fn a_plan_tells_if_what_another_mode_left_cannot_be_read() {
    let unknown = |process: &mut Process| {
        let events = process.proxier.planned_events(process.now).into_iter();
        let events = events.filter(kernlink_proxier::unreadable::is_unreadable);
        events.map(|event| event.reason.to_string()).collect::<Vec<_>>()
    };
    let node = Node::new();
    for mode in ["iptables", "ipvs", "userspace"] {
        assert_eq!(unknown(&mut node.start(mode)), Vec::<String>::new(), "{mode}");
    }
    // Of a family that the configuration does not have: no mode reads it for itself.
    let mut rules = node.rules.fake.lock().unwrap();
    rules.set_unreadable(Family::Ipv6, Table::Nat);
    drop(rules);
    for (mode, others) in [
        ("iptables", &["userspace mode"][..]),
        ("ipvs", &["iptables mode", "userspace mode"]),
        ("userspace", &["iptables mode"]),
    ] {
        let unknown = unknown(&mut node.start(mode));
        let expected = others
            .iter()
            .map(|other| format!("what {other} may have left cannot be read: "));
        assert_eq!(unknown.len(), others.len(), "{mode}: {unknown:?}");
        for (unknown, expected) in unknown.iter().zip(expected) {
            assert!(unknown.starts_with(&expected), "{mode}: {unknown:?}");
        }
    }
    // IPVS mode, which the link shows.
    let node = Node::new();
    let mut links = node.links.fake.lock().unwrap();
    links.set_link(LinkName::new("kube-ipvs0").unwrap(), Some("dummy"), &[]);
    drop(links);
    *node.ipvs.fake.lock().unwrap() = ipvs_mode::ipvs::Fake::new().without_permission();
    for mode in ["iptables", "userspace"] {
        let unknown = unknown(&mut node.start(mode));
        let expected = "what IPVS mode may have left cannot be read: ";
        assert_eq!(unknown.len(), 1, "{mode}: {unknown:?}");
        assert!(unknown[0].starts_with(expected), "{mode}: {unknown:?}");
    }
}

#[test]
fn a_table_that_cannot_be_read_is_no_failed_removal() {
    let node = Node::new();
    node.rules
        .fake
        .lock()
        .unwrap()
        .set_unreadable(Family::Ipv4, Table::Nat);
    let mut process = node.start("iptables");
    for _ in 0..5 {
        let synced = process.sync();
        assert!(synced.is_success, "{}\n{}", synced.text, synced.plan);
        process.now += Duration::from_secs(30);
    }
    // It is read again, to remove what userspace mode may have left.
    assert!(process.sync().next.is_some());
}

#[test]
fn modes_have_the_names_of_kube_proxy() {
    for name in ["iptables", "ipvs", "userspace"] {
        assert_eq!(name.parse::<Mode>().unwrap().to_string(), name);
    }
    assert_eq!("".parse::<Mode>(), "iptables".parse());
    let error = "kernelspace".parse::<Mode>().unwrap_err().to_string();
    assert_eq!(
        error,
        "\"kernelspace\" is not supported; supported: iptables, ipvs, nftables, userspace, or empty, which means iptables"
    );
}
