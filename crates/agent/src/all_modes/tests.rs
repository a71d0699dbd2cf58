//! A node changes its mode, on fakes that all modes share as they share the kernel.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernlink_proxier::iptables_mode;
use kernlink_proxier::ipvs_mode::dummylink::{
    DummyLinks, Error as LinkError, Fake as FakeLinks, HostAddress, Link, LinkAddress, LinkName,
    Operation as LinkOperation, Selection,
};
use kernlink_proxier::ipvs_mode::iptables_restore::{
    Error as RulesError, Fake as FakeRules, Iptables, Operation as RulesOperation, Ruleset, Save, Table,
};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, Port, Service, SourceId,
};
use kernlink_userspace::data_path::sockets::FakeSockets;

use super::*;

#[derive(Clone, Default)]
struct Shared<T>(Arc<Mutex<T>>);

impl Iptables for Shared<FakeRules> {
    fn execute(&mut self, operations: &[RulesOperation]) -> Vec<Result<(), RulesError>> {
        self.0.lock().unwrap().execute(operations)
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, RulesError> {
        self.0.lock().unwrap().save(request)
    }
}

impl DummyLinks for Shared<FakeLinks> {
    fn execute(&mut self, operations: &[LinkOperation]) -> Vec<Result<(), LinkError>> {
        self.0.lock().unwrap().execute(operations)
    }

    fn links(&mut self) -> Result<Vec<Link>, LinkError> {
        self.0.lock().unwrap().links()
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, LinkError> {
        self.0.lock().unwrap().list(selection)
    }
}

/// A node, whose kernel outlives the processes.
#[derive(Clone, Default)]
struct Node {
    rules: Shared<FakeRules>,
    links: Shared<FakeLinks>,
    sockets: FakeSockets,
}

impl Node {
    fn new() -> Self {
        let node = Self::default();
        let address = LinkAddress::host(IpAddr::from([192, 0, 2, 10])).unwrap();
        let mut links = node.links.0.lock().unwrap();
        links.set_link(LinkName::new("eth0").unwrap(), None, &[address]);
        drop(links);
        node
    }

    /// Gives APIs of all modes the rules and links of this node.
    fn share(&self, mut ipvs: ipvs_mode::Kernel) -> Kernel {
        ipvs.rules = Box::new(self.rules.clone());
        ipvs.links = Box::new(self.links.clone());
        let mut iptables = iptables_mode::Kernel::fake();
        iptables.rules = Box::new(self.rules.clone());
        iptables.links = Box::new(self.links.clone());
        let in_kernel = any_mode::Kernel::new().with_ipvs(ipvs).with_iptables(iptables);
        let mut userspace = kernlink_userspace::Kernel::fake();
        userspace.rules = Box::new(self.rules.clone());
        userspace.links = Box::new(self.links.clone());
        userspace.sockets = Box::new(self.sockets.clone());
        Kernel::with_in_kernel(in_kernel).with_userspace(userspace)
    }

    fn process(&self, mode: &str, kernel: Kernel) -> Process {
        let mut proxier = Proxier::with_data_path(&config(mode), kernel).unwrap();
        for change in objects() {
            proxier.change(SourceId(0), change);
        }
        Process {
            proxier,
            now: Instant::now(),
        }
    }

    /// A process that starts in a mode.
    fn start(&self, mode: &str) -> Process {
        self.process(mode, self.share(ipvs_mode::Kernel::fake()))
    }

    /// The names of the chains of both tables that Kubernetes' programs have, except that of the kubelet.
    fn chains(&self) -> Vec<String> {
        let ruleset = self.rules.0.lock().unwrap().ruleset(Family::Ipv4);
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

fn config(mode: &str) -> Config {
    let mut config = match mode.parse().unwrap() {
        Mode::InKernel(mode) => any_mode::Config::new(mode, "node-a").into(),
        Mode::Userspace => Config::Userspace(Box::new(UserspaceConfig {
            config: kernlink_userspace::Config::new("node-a"),
            limits: kernlink_userspace::Limits::default(),
            former: any_mode::Config::new(any_mode::Mode::Iptables, ""),
        })),
    };
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
    proxier: Proxier,
    now: Instant,
}

impl Process {
    fn sync(&mut self) -> Synced {
        self.proxier.sync(self.now).unwrap()
    }

    /// Syncs at each time that a sync asks for, until none is left.
    fn settle(&mut self) {
        for _ in 0..40 {
            let synced = self.sync();
            assert!(synced.is_success(), "{synced}\n{}", synced.plan);
            match synced.next {
                Some(next) => self.now = next.max(self.now),
                None => return,
            }
        }
        panic!("the syncs do not end");
    }
}

#[test]
fn userspace_mode_removes_the_chains_of_iptables_mode_after_it_serves() {
    let node = Node::new();
    node.start("iptables").settle();
    assert!(node.has_chain("KUBE-SVC-") && node.has_chain("KUBE-SERVICES"));
    let mut process = node.start("userspace");
    let first = process.sync();
    assert!(first.is_success(), "{first}");
    let events: Vec<String> = first
        .events
        .iter()
        .map(|event| event.reason.to_string())
        .collect();
    assert!(
        events
            .iter()
            .any(|text| text.contains("iptables or IPVS mode served this node before")),
        "{events:?}"
    );
    // Everything serves at this time.
    assert!(node.has_chain("KUBE-SVC-") && node.has_chain("KUBE-PORTALS-CONTAINER"));
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
    assert_eq!(AllModes::next(process.proxier.state()), None);
    let mut next = node.start("userspace");
    next.sync();
    assert_eq!(node.chains(), chains);
    assert_eq!(AllModes::next(next.proxier.state()), None);
}

#[test]
fn iptables_and_ipvs_mode_remove_portal_chains_after_they_serve() {
    for mode in ["iptables", "ipvs"] {
        let node = Node::new();
        node.start("userspace").settle();
        assert!(node.has_chain("KUBE-PORTALS-HOST"));
        let mut process = node.start(mode);
        let first = process.sync();
        assert!(first.is_success(), "{first}");
        assert!(node.has_chain("KUBE-SERVICES"), "{mode}");
        // At once: until then the portals lead to closed ports. IPVS mode does it in its first sync, which has two parts.
        let is_soon = first.next.is_some_and(|next| next <= process.now);
        assert!(is_soon || !node.has_chain("KUBE-PORTALS-HOST"), "{mode}");
        process.settle();
        assert!(
            !node.has_chain("KUBE-PORTALS") && !node.has_chain("KUBE-NODEPORT-"),
            "{mode}"
        );
        assert!(node.has_chain("KUBE-SERVICES"), "{mode}");
    }
}

#[test]
fn as_long_as_an_operation_waits_for_its_retry_the_former_mode_serves() {
    let node = Node::new();
    node.start("iptables").settle();
    let mut process = node.start("userspace");
    // Another program has the node port, as a claim finds.
    let mut service = Service::new(kernlink_services::ObjectName::new("default", "web"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80).with_node_port(31_080));
    service.service_type = kernlink_services::ServiceType::NodePort;
    process
        .proxier
        .change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
    let foreign = kernlink_userspace::ListenerKey {
        transport: kernlink_userspace::Transport::Tcp,
        address: "0.0.0.0:31080".parse().unwrap(),
    };
    node.sockets.lock().foreign.insert(foreign);
    let first = process.sync();
    assert!(!first.is_success());
    for _ in 0..3 {
        process.now += Duration::from_secs(2);
        process.sync();
        assert!(node.has_chain("KUBE-SVC-"));
    }
    node.sockets.lock().foreign.clear();
    process.now += Duration::from_secs(600);
    process.settle();
    assert!(!node.has_chain("KUBE-SVC-") && node.has_chain("KUBE-PORTALS"));
}

#[test]
fn userspace_mode_removes_what_ipvs_mode_left() {
    let node = Node::new();
    let mut former = node.start("ipvs");
    former.settle();
    // The same virtual servers and sets are in the kernel of the next process.
    let Process { proxier, now } = former;
    let mut kernel = proxier.into_kernel();
    let in_kernel = std::mem::take(&mut kernel.in_kernel);
    let mut next = node.start("userspace");
    let rest = next.proxier.kernel_mut();
    rest.in_kernel = in_kernel;
    next.now = now;
    let first = next.sync();
    assert!(first.is_success(), "{first}");
    let ipvs = next.proxier.kernel_mut().in_kernel.ipvs().unwrap();
    assert_eq!(
        ipvs.ipvs.list_virtual_servers().unwrap().len(),
        1,
        "it has connections"
    );
    // No port of a virtual IP is claimed although the node has its address.
    assert!(node.sockets.lock().claims.is_empty());
    next.settle();
    let ipvs = next.proxier.kernel_mut().in_kernel.ipvs().unwrap();
    assert_eq!(ipvs.ipvs.list_virtual_servers().unwrap().len(), 0);
    assert!(ipvs.sets.headers().unwrap().is_empty());
    assert!(!ipvs.links.exists(&LinkName::new("kube-ipvs0").unwrap()).unwrap());
    let chains = node.chains();
    assert!(
        chains
            .iter()
            .all(|name| name.starts_with("KUBE-PORTALS") || name.starts_with("KUBE-NODEPORT-")),
        "{chains:?}"
    );
    assert!(node.has_chain("KUBE-PORTALS-CONTAINER"));
}

#[test]
fn the_mode_may_change_while_the_process_runs() {
    let node = Node::new();
    let mut process = node.start("iptables");
    process.settle();
    for (mode, serving, gone) in [
        ("userspace", "KUBE-PORTALS-CONTAINER", "KUBE-SVC-"),
        ("iptables", "KUBE-SVC-", "KUBE-PORTALS-CONTAINER"),
    ] {
        process.proxier.set_config(&config(mode)).unwrap();
        process.sync();
        assert!(node.has_chain(serving) && node.has_chain(gone), "{mode}");
        process.settle();
        assert!(node.has_chain(serving) && !node.has_chain(gone), "{mode}");
    }
}

#[test]
fn a_table_that_cannot_be_read_is_no_failed_removal() {
    let node = Node::new();
    node.rules
        .0
        .lock()
        .unwrap()
        .set_unreadable(Family::Ipv4, Table::Nat);
    let mut process = node.start("iptables");
    for _ in 0..5 {
        let synced = process.proxier.sync(process.now).unwrap();
        assert!(synced.is_success(), "{synced}\n{}", synced.plan);
        process.now += Duration::from_secs(30);
    }
    // It is read again, to remove what userspace mode may have left.
    assert!(process.proxier.sync(process.now).unwrap().next.is_some());
}

#[test]
fn modes_have_the_names_of_kube_proxy() {
    for name in ["iptables", "ipvs", "userspace"] {
        assert_eq!(name.parse::<Mode>().unwrap().to_string(), name);
    }
    assert_eq!("".parse::<Mode>(), "iptables".parse());
    let error = "nftables".parse::<Mode>().unwrap_err().to_string();
    assert_eq!(
        error,
        "\"nftables\" is not supported; supported: iptables, ipvs, userspace, or empty, which means iptables"
    );
}
