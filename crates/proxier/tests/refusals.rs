//! Refusals, restarts and foreign objects on the fake kernel: what restricts access is in place before what opens it, what works is
//! not lost, and foreign objects stay.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_ipset::{Entry, Operation as SetOperation, ProtocolPort};
use kernlink_iptables_restore::{Error as RulesError, Iptables, Operation as RulesOperation, Ruleset, Save};
use kernlink_ipvs::{
    Operation as IpvsOperation, RealServer, RealServerKey, Scheduler, VirtualServer, VirtualServerKey,
};
use kernlink_netlink::Errno;
use kernlink_proxier::ipvs_mode::error::{SysctlError, SysctlErrorCause};
use kernlink_proxier::ipvs_mode::kernel::Sysctls;
use kernlink_proxier::ipvs_mode::{Config, Kernel, Operation, Phase, Plan, Proxier, SetId, Sysctl};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Ingress, Node, NodePortAddresses, ObjectChange,
    ObjectName, Port, Service, ServiceType, SourceId, TrafficPolicy,
};

const SOURCE: SourceId = SourceId(0);

fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config.services.node_ips = vec![[192, 0, 2, 1].into()];
    config
}

fn kernel() -> Kernel {
    let mut kernel = Kernel::fake();
    let eth0 = LinkName::new("eth0").unwrap();
    let address = LinkAddress::host([192, 0, 2, 1].into()).unwrap();
    kernel.links = Box::new(kernlink_dummylink::Fake::new().with_link(eth0, None, &[address]));
    kernel
}

fn proxier(config: Config, kernel: Kernel) -> Proxier {
    let mut proxier = Proxier::new(config, kernel).unwrap();
    proxier.change(SOURCE, Change::Services(ObjectChange::Synced));
    proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Synced));
    proxier
}

fn upsert(proxier: &mut Proxier, service: Service) {
    proxier.change(SOURCE, Change::Services(ObjectChange::Upsert(service)));
}

fn service(name: &str, cluster_ip: &str) -> Service {
    Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(cluster_ip)
        .with_port(Port::new("http", 80))
}

fn load_balancer(ranges: &[&str]) -> Service {
    let mut service = service("balanced", "10.96.0.1");
    service.service_type = ServiceType::LoadBalancer;
    service.ingress = vec![Ingress {
        ip: "203.0.113.1".to_owned(),
        ..Ingress::default()
    }];
    service.load_balancer_source_ranges = ranges.iter().map(|&range| range.to_owned()).collect();
    service
}

/// Endpoints by last octet; those from 200 on are on this node.
fn endpoints(proxier: &mut Proxier, service: &str, endpoints: &[u8]) {
    let slice = EndpointSlice::new(
        ObjectName::new("ns", format!("{service}-1")),
        service,
        Family::Ipv4,
    )
    .with_port(EndpointPort::new("http", 8080));
    let slice = endpoints.iter().fold(slice, |slice, &last| {
        let node = if last >= 200 { "node-a" } else { "node-b" };
        slice.with_endpoint(Endpoint::new([10, 244, 0, last].into()).with_node(node))
    });
    proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Upsert(slice)));
}

fn key(address: &str, port: u16) -> VirtualServerKey {
    VirtualServerKey::tcp(address.parse::<IpAddr>().unwrap(), port)
}

fn virtual_servers(kernel: &mut Kernel) -> Vec<String> {
    let listed = kernel.ipvs.list_virtual_servers().unwrap();
    listed
        .iter()
        .map(|server| server.server.key.to_string())
        .collect()
}

fn real_servers(kernel: &mut Kernel, server: &VirtualServerKey) -> Vec<String> {
    let listed = kernel.ipvs.list_real_servers(server).unwrap();
    listed
        .iter()
        .map(|server| server.server.key.to_string())
        .collect()
}

fn bound(kernel: &mut Kernel) -> Vec<String> {
    let selection = kernlink_dummylink::Selection::All;
    let listed = kernel.links.list(selection).unwrap().into_iter();
    let ours = listed.filter(|address| address.link.to_string() == "kube-ipvs0");
    ours.map(|address| address.address.key.to_string()).collect()
}

fn entries(kernel: &mut Kernel, set: SetId) -> Vec<String> {
    let contents = kernel.sets.list_set(&set.name(Family::Ipv4)).unwrap();
    contents.entries.iter().map(ToString::to_string).collect()
}

/// The position of the first operation that prints like this.
fn position(plan: &Plan, text: &str) -> usize {
    let mut steps = plan.steps();
    let found = steps.find(|(_, step)| step.operation.to_string().contains(text));
    found
        .unwrap_or_else(|| panic!("{text} is not in\n{plan}"))
        .0
        .index()
}

/// Tables that cannot be written, and perhaps not read.
struct BrokenTables {
    inner: kernlink_iptables_restore::Fake,
    is_readable: bool,
    is_writable: bool,
}

impl BrokenTables {
    fn error() -> RulesError {
        RulesError::Unexpected {
            tool: "iptables".into(),
            text: "exit status 3".into(),
        }
    }
}

impl Iptables for BrokenTables {
    fn execute(&mut self, operations: &[RulesOperation]) -> Vec<Result<(), RulesError>> {
        if self.is_writable {
            self.inner.execute(operations)
        } else {
            vec![Err(Self::error()); operations.len()]
        }
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, RulesError> {
        if self.is_readable {
            self.inner.save(request)
        } else {
            Err(Self::error())
        }
    }
}

#[test]
fn tables_that_cannot_be_read_are_written_and_keep_nothing_from_working() {
    let mut kernel = kernel();
    kernel.rules = Box::new(BrokenTables {
        inner: kernlink_iptables_restore::Fake::new(),
        is_readable: false,
        is_writable: true,
    });
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert!(
        events
            .iter()
            .any(|event| event.contains("IPv4 tables cannot be read")),
        "{events:?}"
    );
    assert!(position(&synced.plan, "-C INPUT") < position(&synced.plan, "ipvsadm -A -t 203.0.113.1:80"));
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
    // They are not written again at each sync, and not reported again.
    let idle = proxier.sync(Instant::now()).unwrap();
    assert!(idle.plan.is_empty(), "{}", idle.plan);
    proxier.resync();
    assert_eq!(proxier.sync(Instant::now()).unwrap().events, []);
}

#[test]
fn without_rules_no_address_is_bound_and_no_restricted_virtual_server_added() {
    for is_readable in [true, false] {
        let mut kernel = kernel();
        kernel.rules = Box::new(BrokenTables {
            inner: kernlink_iptables_restore::Fake::new(),
            is_readable,
            is_writable: false,
        });
        let mut proxier = proxier(config(), kernel);
        upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(!synced.is_success() && synced.counts().skipped > 0, "{synced}");
        assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
        // The cluster IP has its virtual server; without the address nobody reaches it.
        assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
        // Later Services wait as well, and everything is done when the tables can be written.
        upsert(&mut proxier, service("later", "10.96.0.2"));
        let synced = proxier.sync(Instant::now()).unwrap();
        assert_eq!(bound(proxier.kernel_mut()), [""; 0], "{synced}");
        proxier.kernel_mut().rules = Box::new(kernlink_iptables_restore::Fake::new());
        let mut at = synced.next.unwrap();
        for _ in 0..8 {
            let synced = proxier.sync(at).unwrap();
            match synced.next {
                Some(next) => at = next,
                None => break,
            }
        }
        assert_eq!(bound(proxier.kernel_mut()).len(), 3);
        assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 3);
        proxier.resync();
        let synced = proxier.sync(at).unwrap();
        assert!(
            synced.is_success() && synced.plan.is_empty(),
            "{synced}\n{}",
            synced.plan
        );
    }
}

#[test]
fn node_ports_on_the_primary_address_wait_for_the_node_and_stay_when_it_is_deleted() {
    let mut config = config();
    config.services.node_ips = Vec::new();
    config.services.node_port_addresses = NodePortAddresses::Primary;
    let mut kernel = kernel();
    let eth1 = LinkName::new("eth1").unwrap();
    let public = LinkAddress::host([198, 51, 100, 7].into()).unwrap();
    kernel.links = Box::new(
        kernlink_dummylink::Fake::new()
            .with_link(
                LinkName::new("eth0").unwrap(),
                None,
                &[LinkAddress::host([192, 0, 2, 1].into()).unwrap()],
            )
            .with_link(eth1, None, &[public]),
    );
    let mut proxier = proxier(config, kernel);
    let mut node_port = service("web", "10.96.0.1");
    node_port.service_type = ServiceType::NodePort;
    node_port.ports[0].node_port = 30_080;
    upsert(&mut proxier, node_port);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(
        synced
            .events
            .iter()
            .any(|event| event.to_string().contains("no address of this node is known yet"))
    );
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
    let node = Node::new("node-a").with_internal_address([192, 0, 2, 1].into());
    proxier.change(SOURCE, Change::Nodes(ObjectChange::Upsert(node)));
    proxier.change(SOURCE, Change::Nodes(ObjectChange::Synced));
    proxier.sync(Instant::now()).unwrap();
    let with_node = ["-t 10.96.0.1:80", "-t 192.0.2.1:30080"];
    assert_eq!(virtual_servers(proxier.kernel_mut()), with_node);
    proxier.change(
        SOURCE,
        Change::Nodes(ObjectChange::Delete(ObjectName::new("", "node-a"))),
    );
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(virtual_servers(proxier.kernel_mut()), with_node);
}

#[test]
fn the_first_sync_knows_the_addresses_of_the_node() {
    let mut proxier = proxier(config(), kernel());
    let mut node_port = service("web", "10.96.0.1");
    node_port.service_type = ServiceType::NodePort;
    node_port.ports[0].node_port = 30_080;
    upsert(&mut proxier, node_port);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.events, []);
    assert_eq!(proxier.cost().resolved, 1);
}

#[test]
fn the_allow_list_stays_while_its_restriction_cannot_be_lifted() {
    let mut proxier = proxier(config(), kernel());
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    // The kernel refuses to take the frontend out of the restricted ones.
    let frontend = Entry::ip_port(
        "203.0.113.1".parse().unwrap(),
        ProtocolPort::new(kernlink_ipset::Protocol::TCP, 80),
    );
    let sets = std::mem::replace(
        &mut proxier.kernel_mut().sets,
        Box::new(kernlink_ipset::Fake::new()),
    );
    proxier.kernel_mut().sets = Box::new(Refusing {
        inner: sets,
        refused: format!("del KUBE-LOAD-BALANCER-FW {frontend}"),
    });
    upsert(&mut proxier, load_balancer(&[]));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerSourceCidr).len(),
        1,
        "{synced}"
    );
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerFirewall).len(),
        1
    );
}

#[test]
fn a_service_that_was_open_is_not_restricted_by_an_incomplete_allow_list() {
    let mut kernel = kernel();
    kernel.sets = Box::new(Refusing {
        inner: kernel.sets,
        refused: "add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,198.18.0.0/15".to_owned(),
    });
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&[]));
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15", "192.0.2.0/24"]));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerFirewall),
        [""; 0]
    );
    // A new one does not open either.
    let mut other = load_balancer(&["198.18.0.0/15"]);
    other.name = ObjectName::new("ns", "other");
    other.cluster_ip = "10.96.0.7".to_owned();
    other.ports[0].port = 80;
    proxier.change(
        SOURCE,
        Change::Services(ObjectChange::Delete(ObjectName::new("ns", "balanced"))),
    );
    proxier.sync(Instant::now() + Duration::from_secs(600)).unwrap();
    upsert(&mut proxier, other);
    let synced = proxier.sync(Instant::now() + Duration::from_secs(1200)).unwrap();
    assert!(
        synced.counts().failed == 1 && synced.counts().skipped > 0,
        "{synced}"
    );
    assert!(!virtual_servers(proxier.kernel_mut()).contains(&"-t 203.0.113.1:80".to_owned()));
    assert!(!bound(proxier.kernel_mut()).contains(&"203.0.113.1/32".to_owned()));
}

/// Sets of which one command is refused.
struct Refusing {
    inner: Box<dyn kernlink_ipset::IpSets>,
    refused: String,
}

impl kernlink_ipset::IpSets for Refusing {
    fn execute(&mut self, operations: &[SetOperation]) -> Vec<Result<(), kernlink_ipset::Error>> {
        let each = |operation: &SetOperation| {
            if operation.to_string().contains(&self.refused) {
                return Err(kernlink_ipset::Error::custom(
                    operation.clone(),
                    "refused by the test",
                ));
            }
            self.inner.execute_one(operation.clone())
        };
        operations.iter().map(each).collect()
    }

    fn list_set(
        &mut self,
        name: &kernlink_ipset::SetName,
    ) -> Result<kernlink_ipset::SetContents, kernlink_ipset::Error> {
        self.inner.list_set(name)
    }

    fn headers(&mut self) -> Result<Vec<kernlink_ipset::SetHeader>, kernlink_ipset::Error> {
        self.inner.headers()
    }
}

#[test]
fn traffic_to_remote_endpoints_is_masqueraded_as_long_as_there_are_any() {
    let mut proxier = proxier(config(), kernel());
    endpoints(&mut proxier, "balanced", &[1, 200]);
    let with_policy = |policy| {
        let mut service = load_balancer(&[]);
        service.ports[0].node_port = 30_080;
        service.external_traffic_policy = policy;
        service.health_check_node_port = if policy == TrafficPolicy::Local { 32_000 } else { 0 };
        service
    };
    upsert(&mut proxier, with_policy(TrafficPolicy::Cluster));
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    upsert(&mut proxier, with_policy(TrafficPolicy::Local));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    for (remote, local) in [
        (
            "-d -t 203.0.113.1:80 -r 10.244.0.1:8080",
            "add KUBE-LOAD-BALANCER-LOCAL",
        ),
        (
            "-d -t 192.0.2.1:30080 -r 10.244.0.1:8080",
            "add KUBE-NODE-PORT-LOCAL-TCP",
        ),
    ] {
        assert!(
            position(&synced.plan, remote) < position(&synced.plan, local),
            "{}",
            synced.plan
        );
    }
    // If a removal fails, traffic stays masqueraded.
    upsert(&mut proxier, with_policy(TrafficPolicy::Cluster));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    for (local, remote) in [
        (
            "del KUBE-LOAD-BALANCER-LOCAL",
            "-a -t 203.0.113.1:80 -r 10.244.0.1:8080",
        ),
        (
            "del KUBE-NODE-PORT-LOCAL-TCP",
            "-a -t 192.0.2.1:30080 -r 10.244.0.1:8080",
        ),
    ] {
        assert!(
            position(&synced.plan, local) < position(&synced.plan, remote),
            "{}",
            synced.plan
        );
    }
}

#[test]
fn a_node_port_entry_waits_for_the_virtual_servers_of_its_node_port_only() {
    let mut kernel = kernel();
    // The virtual server of a cluster IP with the same port number cannot be deleted.
    let mut ipvs = kernlink_ipvs::Fake::new();
    ipvs.refuse(
        IpvsOperation::DeleteVirtualServer(key("10.96.0.2", 30_080)),
        Errno::ENOMEM,
    );
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = proxier(config(), kernel);
    let mut node_port = service("web", "10.96.0.1");
    node_port.service_type = ServiceType::NodePort;
    node_port.ports[0].node_port = 30_080;
    upsert(&mut proxier, node_port);
    let mut other = service("other", "10.96.0.2");
    other.ports[0].port = 30_080;
    upsert(&mut proxier, other);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    proxier.change(SOURCE, Change::Services(ObjectChange::ReplaceAll(Vec::new())));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::NodePortTcp),
        [""; 0],
        "{synced}"
    );
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.2:30080"]);
}

#[test]
fn a_foreign_virtual_server_at_an_address_that_is_bound_later_stays() {
    let mut kernel = kernel();
    let foreign = key("10.96.0.1", 9_999);
    let add = IpvsOperation::AddVirtualServer(VirtualServer::new(foreign, Scheduler::WLC));
    kernel.execute(&Operation::Ipvs(add)).unwrap();
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let synced = proxier.sync(Instant::now()).unwrap();
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert_eq!(
        events,
        ["host: virtual server -t 10.96.0.1:9999 is foreign and stays, although 10.96.0.1 is a virtual IP"]
    );
    for _ in 0..2 {
        proxier.resync();
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(
            synced.plan.is_empty() && synced.events.is_empty(),
            "{}",
            synced.plan
        );
    }
    let both = ["-t 10.96.0.1:80", "-t 10.96.0.1:9999"];
    assert_eq!(virtual_servers(proxier.kernel_mut()), both);
    // A new process decides the same, and removes its own only.
    let mut restarted = self::proxier(config(), proxier.into_kernel());
    upsert(&mut restarted, service("web", "10.96.0.1"));
    assert!(restarted.sync(Instant::now()).unwrap().plan.is_empty());
    let mut emptied = self::proxier(config(), restarted.into_kernel());
    assert!(emptied.sync(Instant::now()).unwrap().is_success());
    assert_eq!(virtual_servers(emptied.kernel_mut()), ["-t 10.96.0.1:9999"]);
}

#[test]
fn an_owned_virtual_server_in_an_excluded_network_is_removed_and_a_foreign_one_stays() {
    let mut config = config();
    config.exclude_cidrs = vec!["10.96.0.0/16".parse().unwrap()];
    let mut kernel = kernel();
    let foreign = key("10.96.0.2", 80);
    let add = IpvsOperation::AddVirtualServer(VirtualServer::new(foreign, Scheduler::WLC));
    kernel.execute(&Operation::Ipvs(add)).unwrap();
    let mut first = proxier(config.clone(), kernel);
    upsert(&mut first, service("web", "10.96.0.1"));
    assert!(first.sync(Instant::now()).unwrap().is_success());
    // Also after a restart.
    let mut second = proxier(config, first.into_kernel());
    let synced = second.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(virtual_servers(second.kernel_mut()), ["-t 10.96.0.2:80"]);
    assert_eq!(bound(second.kernel_mut()), [""; 0]);
}

#[test]
fn a_family_that_is_taken_out_and_a_renamed_link_leave_nothing() {
    let mut proxier = proxier(config(), kernel());
    let mut dual = service("web", "10.96.0.1");
    dual.cluster_ips = vec!["10.96.0.1".into(), "fd00::1".into()];
    dual.ip_families = vec![Family::Ipv4, Family::Ipv6];
    upsert(&mut proxier, dual);
    let mut node_port = service("port", "10.96.0.2");
    node_port.service_type = ServiceType::NodePort;
    node_port.ports[0].node_port = 30_080;
    upsert(&mut proxier, node_port);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let mut without = config();
    without.services.families = [Family::Ipv4].into();
    proxier.set_config(&without).unwrap();
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let of_v4 = ["-t 10.96.0.1:80", "-t 10.96.0.2:80", "-t 192.0.2.1:30080"];
    assert_eq!(virtual_servers(proxier.kernel_mut()), of_v4);
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
    let sets = proxier
        .kernel_mut()
        .sets
        .list_set(&SetId::ClusterIp.name(Family::Ipv6))
        .unwrap();
    assert!(sets.entries.is_empty());
    without.dummy_link = "virtual0".to_owned();
    proxier.set_config(&without).unwrap();
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    // No node port at a cluster IP, and the former link is gone.
    assert_eq!(virtual_servers(proxier.kernel_mut()), of_v4);
    assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
    let link = LinkName::new("kube-ipvs0").unwrap();
    assert!(!proxier.kernel_mut().links.exists(&link).unwrap());
    let last = synced.plan.phases().last().unwrap();
    assert_eq!(last.kind, Phase::RemoveLink);
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
}

#[test]
fn an_address_whose_virtual_servers_are_all_refused_is_not_bound() {
    let mut kernel = kernel();
    let mut ipvs = kernlink_ipvs::Fake::new();
    for port in [80, 81] {
        let server = VirtualServer::new(key("10.96.0.1", port), Scheduler::RR);
        ipvs.refuse(IpvsOperation::AddVirtualServer(server), Errno::ENOMEM);
    }
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = proxier(config(), kernel);
    upsert(
        &mut proxier,
        service("web", "10.96.0.1").with_port(Port::new("other", 81)),
    );
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 2, "{synced}");
    assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
    // One that the kernel takes is reason enough.
    upsert(
        &mut proxier,
        service("third", "10.96.0.1").with_port(Port::new("x", 82)),
    );
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32"], "{synced}");
}

#[test]
fn real_servers_stay_until_one_of_their_replacements_is_in_place() {
    let mut kernel = kernel();
    let server = key("10.96.0.1", 80);
    let mut ipvs = kernlink_ipvs::Fake::new();
    for last in [3, 4] {
        let real = RealServerKey::new(IpAddr::from([10, 244, 0, last]), 8080);
        let operation = IpvsOperation::AddRealServer {
            virtual_server: server,
            real_server: RealServer::new(real),
        };
        ipvs.refuse(operation, Errno::ENOMEM);
    }
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[1, 2]);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    endpoints(&mut proxier, "web", &[3, 4]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (2, 2),
        "{synced}"
    );
    assert_eq!(
        real_servers(proxier.kernel_mut(), &server),
        ["10.244.0.1:8080", "10.244.0.2:8080"]
    );
    // One that the kernel takes is enough.
    endpoints(&mut proxier, "web", &[3, 4, 5]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        real_servers(proxier.kernel_mut(), &server),
        ["10.244.0.5:8080"],
        "{synced}"
    );
    // A Service without endpoints loses all at once.
    endpoints(&mut proxier, "web", &[]);
    proxier.sync(Instant::now()).unwrap();
    assert_eq!(real_servers(proxier.kernel_mut(), &server), [""; 0]);
}

#[test]
fn a_plan_consumes_no_event_and_a_reviewed_one_is_applied_only_while_it_holds() {
    let mut proxier = proxier(config(), kernel());
    let mut invalid = service("web", "10.96.0.1");
    invalid
        .annotations
        .insert("kernlink.io/scheduler".into(), "zz".into());
    upsert(&mut proxier, invalid);
    let now = Instant::now();
    let plan = proxier.plan(now).unwrap();
    assert_eq!(proxier.plan(now).unwrap(), plan);
    // Somebody else changes what the plan is about.
    let add = IpvsOperation::AddVirtualServer(VirtualServer::new(key("10.96.0.1", 80), Scheduler::RR));
    proxier.kernel_mut().execute(&Operation::Ipvs(add)).unwrap();
    let error = proxier.apply(&plan, now).unwrap_err();
    assert!(
        error.to_string().starts_with("the plan is out of date"),
        "{error}"
    );
    assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
    let plan = proxier.plan(now).unwrap();
    let synced = proxier.apply(&plan, now).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(synced.events.len(), 1);
}

#[test]
fn an_invalid_configuration_is_refused_with_every_field() {
    let mut config = config();
    config.dummy_link = "a/b".to_owned();
    config.services.families.clear();
    config.ipvs_timeouts.tcp = Duration::from_secs(u64::MAX);
    let error = Proxier::new(config, kernel()).unwrap_err().to_string();
    for field in ["dummy_link: ", "services.families: ", "ipvs_timeouts.tcp: "] {
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn timeouts_are_cut_to_whole_seconds() {
    let mut config = config();
    config.ipvs_timeouts.tcp = Duration::from_millis(1_500);
    config.ipvs_timeouts.udp = Duration::from_millis(500);
    let mut proxier = proxier(config, kernel());
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    position(&synced.plan, "ipvsadm --set 1 0 0");
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
}

/// Sysctls of a process with CAP_NET_ADMIN that is not root.
struct NotRoot {
    inner: Box<dyn Sysctls>,
    read: Arc<Mutex<Vec<String>>>,
}

impl Sysctls for NotRoot {
    fn execute(&mut self, operations: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        self.inner.execute(operations)
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        self.read.lock().unwrap().push(name.to_owned());
        if name.starts_with("/sys/module") {
            return Err(SysctlError {
                verb: "read",
                name: name.into(),
                cause: SysctlErrorCause::File(Errno::EACCES),
            });
        }
        self.inner.read(name)
    }
}

#[test]
fn the_hash_size_that_only_root_may_read_keeps_nothing_from_working() {
    for max_per_core in [0, 32_768] {
        let mut config = config();
        config.conntrack.max_per_core = max_per_core;
        let read = Arc::new(Mutex::new(Vec::new()));
        let mut kernel = kernel();
        kernel.sysctls = Box::new(NotRoot {
            inner: kernel.sysctls,
            read: Arc::clone(&read),
        });
        let mut proxier = proxier(config, kernel);
        upsert(&mut proxier, service("web", "10.96.0.1"));
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
        assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 1);
        let is_read = read
            .lock()
            .unwrap()
            .iter()
            .any(|name| name.ends_with("/hashsize"));
        assert_eq!(
            (is_read, synced.events.len()),
            (max_per_core > 0, usize::from(max_per_core > 0))
        );
    }
}
