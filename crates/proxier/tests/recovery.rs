//! Failures in combination: what waits is tried again, what restricts access is never left out, and nothing owned is left behind.
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
use kernlink_ipset::Operation as SetOperation;
use kernlink_iptables_restore::{
    Error as RulesError, Iptables, Operation as RulesOperation, Restore, Ruleset, Save,
};
use kernlink_ipvs::{Operation as IpvsOperation, Scheduler, VirtualServer, VirtualServerKey};
use kernlink_netlink::Errno;
use kernlink_proxier::ipvs_mode::{Config, Kernel, Operation, Proxier, Synced};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Ingress, ObjectChange, ObjectName, Port, Service,
    ServiceType, SourceId, TrafficPolicy,
};

const SOURCE: SourceId = SourceId(0);
/// Longer than the longest delay between two attempts.
const LATER: Duration = Duration::from_secs(400);

/// What the kernel does with commands that contain a text.
#[derive(Clone, Debug, Default)]
struct Faults(Arc<Mutex<Vec<(String, Fault)>>>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It refuses them.
    Refused,
    /// It executes them, and the answer is lost.
    AnswerLost,
}

impl Faults {
    fn refuse(&self, command: &str) {
        self.0.lock().unwrap().push((command.to_owned(), Fault::Refused));
    }

    fn lose_answer(&self, command: &str) {
        self.0
            .lock()
            .unwrap()
            .push((command.to_owned(), Fault::AnswerLost));
    }

    fn end(&self) {
        self.0.lock().unwrap().clear();
    }

    fn of(&self, command: &str) -> Option<Fault> {
        let faults = self.0.lock().unwrap();
        let found = faults.iter().find(|(text, _)| command.contains(text));
        found.map(|(_, fault)| *fault)
    }
}

struct Faulty<T> {
    inner: T,
    faults: Faults,
}

impl kernlink_ipvs::Ipvs for Faulty<kernlink_ipvs::Fake> {
    fn execute(&mut self, operations: &[IpvsOperation]) -> Vec<Result<(), kernlink_ipvs::Error>> {
        let each = |operation: &IpvsOperation| {
            let fault = self.faults.of(&operation.to_string());
            if fault == Some(Fault::AnswerLost) {
                self.inner.execute(std::slice::from_ref(operation));
                return Err(kernlink_ipvs::Error::OutcomeMissing);
            }
            if fault.is_some() {
                self.inner.refuse(operation.clone(), Errno::ENOMEM);
            }
            let outcome = self.inner.execute(std::slice::from_ref(operation)).pop().unwrap();
            self.inner.refuse_nothing();
            outcome
        };
        operations.iter().map(each).collect()
    }
    fn list_virtual_servers(
        &mut self,
    ) -> Result<Vec<kernlink_ipvs::VirtualServerStatus>, kernlink_ipvs::Error> {
        self.inner.list_virtual_servers()
    }
    fn list_real_servers(
        &mut self,
        server: &VirtualServerKey,
    ) -> Result<Vec<kernlink_ipvs::RealServerStatus>, kernlink_ipvs::Error> {
        self.inner.list_real_servers(server)
    }
    fn timeouts(&mut self) -> Result<kernlink_ipvs::Timeouts, kernlink_ipvs::Error> {
        self.inner.timeouts()
    }
}

impl kernlink_dummylink::DummyLinks for Faulty<kernlink_dummylink::Fake> {
    fn execute(
        &mut self,
        operations: &[kernlink_dummylink::Operation],
    ) -> Vec<Result<(), kernlink_dummylink::Error>> {
        let each = |operation: &kernlink_dummylink::Operation| {
            if self.faults.of(&operation.to_string()).is_some() {
                // A link that is not there is as good a refusal as another.
                return self.inner.delete_link(&LinkName::new("missing").unwrap());
            }
            self.inner.execute(std::slice::from_ref(operation)).pop().unwrap()
        };
        operations.iter().map(each).collect()
    }
    fn links(&mut self) -> Result<Vec<kernlink_dummylink::Link>, kernlink_dummylink::Error> {
        self.inner.links()
    }
    fn link(
        &mut self,
        name: &LinkName,
    ) -> Result<Option<kernlink_dummylink::Link>, kernlink_dummylink::Error> {
        self.inner.link(name)
    }
    fn list(
        &mut self,
        selection: kernlink_dummylink::Selection,
    ) -> Result<Vec<kernlink_dummylink::HostAddress>, kernlink_dummylink::Error> {
        self.inner.list(selection)
    }
    fn routes(
        &mut self,
        link: &LinkName,
    ) -> Result<Vec<kernlink_dummylink::LocalRoute>, kernlink_dummylink::Error> {
        self.inner.routes(link)
    }
}

impl kernlink_ipset::IpSets for Faulty<kernlink_ipset::Fake> {
    fn execute(&mut self, operations: &[SetOperation]) -> Vec<Result<(), kernlink_ipset::Error>> {
        let each = |operation: &SetOperation| {
            if self.faults.of(&operation.to_string()).is_some() {
                // A set that is not there is as good a refusal as another.
                let missing = kernlink_ipset::SetName::new("missing").unwrap();
                return self.inner.destroy(&missing);
            }
            self.inner.execute(std::slice::from_ref(operation)).pop().unwrap()
        };
        operations.iter().map(each).collect()
    }
    fn execute_until_failure(
        &mut self,
        operations: &[SetOperation],
    ) -> Vec<Result<(), kernlink_ipset::Error>> {
        self.inner.execute_until_failure(operations)
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

/// Tables that can be written and not read.
struct WriteOnlyTables {
    inner: kernlink_iptables_restore::Fake,
    faults: Faults,
}

impl WriteOnlyTables {
    fn error() -> RulesError {
        RulesError::Unexpected {
            tool: "iptables".into(),
            text: "exit status 3".into(),
        }
    }
}

impl Iptables for WriteOnlyTables {
    fn execute(&mut self, operations: &[RulesOperation]) -> Vec<Result<(), RulesError>> {
        let each = |operation: &RulesOperation| {
            if self.faults.of(&operation.to_string()).is_some() {
                return Err(Self::error());
            }
            self.inner.execute(std::slice::from_ref(operation)).pop().unwrap()
        };
        operations.iter().map(each).collect()
    }

    fn save(&mut self, _: &Save) -> Result<Ruleset, RulesError> {
        Err(Self::error())
    }

    fn test(&mut self, restore: &Restore) -> Result<(), RulesError> {
        self.inner.test(restore)
    }
}

fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config.services.families = [Family::Ipv4].into();
    config.services.node_ips = vec![[192, 0, 2, 1].into()];
    config
}

fn kernel() -> (Kernel, Faults) {
    let faults = Faults::default();
    let mut kernel = Kernel::fake();
    let eth0 = LinkName::new("eth0").unwrap();
    let address = LinkAddress::host([192, 0, 2, 1].into()).unwrap();
    kernel.links = Box::new(Faulty {
        inner: kernlink_dummylink::Fake::new().with_link(eth0, None, &[address]),
        faults: faults.clone(),
    });
    kernel.ipvs = Box::new(Faulty {
        inner: kernlink_ipvs::Fake::new(),
        faults: faults.clone(),
    });
    kernel.sets = Box::new(Faulty {
        inner: kernlink_ipset::Fake::new(),
        faults: faults.clone(),
    });
    (kernel, faults)
}

fn proxier(kernel: Kernel) -> Proxier {
    let mut proxier = Proxier::new(config(), kernel).unwrap();
    proxier.change(SOURCE, Change::Services(ObjectChange::Synced));
    proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Synced));
    proxier
}

fn upsert(proxier: &mut Proxier, service: Service) {
    proxier.change(SOURCE, Change::Services(ObjectChange::Upsert(service)));
}

fn delete(proxier: &mut Proxier, name: &str) {
    let change = ObjectChange::Delete(ObjectName::new("ns", name));
    proxier.change(SOURCE, Change::Services(change));
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

fn bound(kernel: &mut Kernel) -> Vec<String> {
    let selection = kernlink_dummylink::Selection::All;
    let listed = kernel.links.list(selection).unwrap().into_iter();
    let ours = listed.filter(|address| address.link.to_string() == "kube-ipvs0");
    ours.map(|address| address.address.key.to_string()).collect()
}

/// Syncs whenever the last sync asked for it, until none does.
fn sync_until_nothing_waits(proxier: &mut Proxier, mut now: Instant) -> Synced {
    let mut last = String::new();
    // Each key has a time of its own.
    for _ in 0..500 {
        let synced = proxier.sync(now).unwrap();
        match synced.next {
            Some(next) => now = next,
            None => return synced,
        }
        last = synced.to_string();
    }
    panic!("operations still wait: {last}");
}

#[test]
fn a_jump_that_is_missing_keeps_addresses_unbound_whatever_else_changes() {
    let (mut kernel, faults) = kernel();
    kernel.rules = Box::new(WriteOnlyTables {
        inner: kernlink_iptables_restore::Fake::new(),
        faults: faults.clone(),
    });
    faults.refuse("-C INPUT");
    let mut proxier = proxier(kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("web", "10.96.0.2"));
    let synced = proxier.sync(now).unwrap();
    assert!(synced.counts().failed > 0, "{synced}");
    assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
    // Its first load balancer changes the chains, which can be written.
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    for _ in 0..2 {
        let synced = proxier.sync(now).unwrap();
        assert_eq!(bound(proxier.kernel_mut()), [""; 0], "{}", synced.plan);
        let servers = virtual_servers(proxier.kernel_mut());
        assert!(
            !servers.contains(&"-t 203.0.113.1:80".to_owned()),
            "{}",
            synced.plan
        );
        delete(&mut proxier, "balanced");
    }
    faults.end();
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(bound(proxier.kernel_mut()).len(), 3);
}

#[test]
fn an_address_is_bound_for_the_virtual_server_that_exists() {
    let (kernel, faults) = kernel();
    faults.refuse("-A -t 10.96.0.1:443");
    faults.refuse("address replace 10.96.0.1/32");
    let mut proxier = proxier(kernel);
    let now = Instant::now();
    upsert(
        &mut proxier,
        service("web", "10.96.0.1").with_port(Port::new("https", 443)),
    );
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 2, "{synced}\n{}", synced.plan);
    // The address can be bound now, and both are due.
    faults.end();
    faults.refuse("-A -t 10.96.0.1:443");
    let synced = proxier.sync(now + LATER).unwrap();
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32"], "{synced}");
}

#[test]
fn what_waits_for_a_step_that_waits_itself_is_not_forgotten() {
    let (kernel, faults) = kernel();
    faults.refuse("-A -t 203.0.113.1:80");
    let mut proxier = proxier(kernel);
    let now = Instant::now();
    upsert(&mut proxier, load_balancer(&[]));
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    // When it is due, it waits for something else.
    let due = synced.next.unwrap();
    faults.end();
    faults.refuse("add KUBE-LOAD-BALANCER-SOURCE-CIDR");
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    let synced = proxier.sync(due - Duration::from_nanos(1)).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    proxier.sync(due).unwrap();
    faults.end();
    sync_until_nothing_waits(&mut proxier, due);
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32", "203.0.113.1/32"]);
}

#[test]
fn real_servers_wait_for_a_local_policy_entry_that_could_not_be_removed() {
    let (kernel, faults) = kernel();
    let mut proxier = proxier(kernel);
    let now = Instant::now();
    let with_policy = |policy| {
        let mut service = load_balancer(&[]);
        service.external_traffic_policy = policy;
        service.health_check_node_port = if policy == TrafficPolicy::Local { 32_000 } else { 0 };
        service
    };
    endpoints(&mut proxier, "balanced", &[1, 200]);
    upsert(&mut proxier, with_policy(TrafficPolicy::Local));
    assert!(proxier.sync(now).unwrap().is_success());
    faults.refuse("del KUBE-LOAD-BALANCER-LOCAL");
    upsert(&mut proxier, with_policy(TrafficPolicy::Cluster));
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    let real_servers = |proxier: &mut Proxier| {
        let server = key("203.0.113.1", 80);
        let listed = proxier.kernel_mut().ipvs.list_real_servers(&server).unwrap();
        listed.len()
    };
    assert_eq!(real_servers(&mut proxier), 1);
    // Another endpoint on another node: both would be used without masquerading.
    endpoints(&mut proxier, "balanced", &[1, 2, 200]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(real_servers(&mut proxier), 1, "{}", synced.plan);
    faults.end();
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(real_servers(&mut proxier), 3);
}

#[test]
fn a_foreign_virtual_server_that_a_service_needs_becomes_owned() {
    let (mut kernel, _) = kernel();
    // With exactly the settings of the Service.
    let server = VirtualServer::new(key("10.96.0.1", 80), Scheduler::RR);
    kernel
        .execute(&Operation::Ipvs(IpvsOperation::AddVirtualServer(server)))
        .unwrap();
    for resync in [false, true] {
        let mut proxier = proxier(kernel);
        let now = Instant::now();
        upsert(&mut proxier, service("web", "10.96.0.1"));
        let synced = proxier.sync(now).unwrap();
        assert!(
            synced.is_success() && synced.events.is_empty(),
            "{synced} {:?}",
            synced.events
        );
        if resync {
            proxier.resync();
            proxier.sync(now).unwrap();
        }
        delete(&mut proxier, "web");
        assert!(proxier.sync(now).unwrap().is_success());
        assert_eq!(virtual_servers(proxier.kernel_mut()), [""; 0]);
        kernel = proxier.into_kernel();
        let server = VirtualServer::new(key("10.96.0.1", 80), Scheduler::RR);
        kernel
            .execute(&Operation::Ipvs(IpvsOperation::AddVirtualServer(server)))
            .unwrap();
    }
}

#[test]
fn a_virtual_server_whose_addition_was_not_confirmed_is_removed_with_its_service() {
    let (kernel, faults) = kernel();
    faults.lose_answer("-A -t 10.96.0.1:80");
    let mut proxier = proxier(kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("web", "10.96.0.1"));
    assert_eq!(proxier.sync(now).unwrap().counts().failed, 1);
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
    delete(&mut proxier, "web");
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(virtual_servers(proxier.kernel_mut()), [""; 0]);
}

#[test]
fn a_reviewed_plan_that_changes_chains_can_be_applied() {
    let (kernel, _) = kernel();
    let mut proxier = proxier(kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("web", "10.96.0.2"));
    assert!(proxier.sync(now).unwrap().is_success());
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    let plan = proxier.plan(now).unwrap();
    let synced = proxier.apply(&plan, now);
    assert!(synced.is_ok_and(|synced| synced.is_success()), "{plan}");
}

#[test]
fn an_address_that_is_gone_already_does_not_keep_its_virtual_server() {
    let (kernel, faults) = kernel();
    let mut proxier = proxier(kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("web", "10.96.0.1"));
    assert!(proxier.sync(now).unwrap().is_success());
    faults.refuse("address delete");
    delete(&mut proxier, "web");
    let synced = proxier.sync(now).unwrap();
    assert!(
        synced.counts().failed == 1 && synced.counts().skipped > 0,
        "{synced}"
    );
    faults.end();
    let link = LinkName::new("kube-ipvs0").unwrap();
    let address = LinkAddress::host([10, 96, 0, 1].into()).unwrap();
    let by_other = kernlink_dummylink::Operation::DeleteAddress(link, address.key);
    proxier.kernel_mut().execute(&Operation::Link(by_other)).unwrap();
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(virtual_servers(proxier.kernel_mut()), [""; 0]);
}

#[test]
fn all_endpoints_of_a_service_can_be_replaced_at_once() {
    let (kernel, _) = kernel();
    let mut proxier = proxier(kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let mut needs = Vec::new();
    for (generation, count) in [(1, 2_000), (2, 2_000), (1, 1_000), (2, 1_000)] {
        let slice = EndpointSlice::new(ObjectName::new("ns", "web-1"), "web", Family::Ipv4)
            .with_port(EndpointPort::new("http", 8080));
        let slice = (0..count).fold(slice, |slice, index: u16| {
            let [high, low] = index.to_be_bytes();
            slice.with_endpoint(Endpoint::new([10, generation, high, low].into()).with_node("node-b"))
        });
        proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Upsert(slice)));
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success());
        let of_all = synced
            .plan
            .steps()
            .map(|(_, step)| step.needs.len() + step.needs_any.len());
        needs.push((of_all.sum::<usize>(), synced.plan.len()));
    }
    let (needs, steps) = needs[1];
    assert!(needs < 100 * steps, "{needs} needs of {steps} steps");
}

#[test]
fn the_longest_delays_are_possible() {
    let (kernel, faults) = kernel();
    faults.refuse("-A -t 10.96.0.1:80");
    let mut proxier = proxier(kernel);
    proxier.set_backoff(kernlink_proxier::Backoff {
        initial: Duration::MAX,
        max: Duration::MAX,
    });
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.next.unwrap() > now + LATER);
}

#[test]
fn a_virtual_server_is_for_the_service_that_replaces_another() {
    let (kernel, _) = kernel();
    let mut proxier = proxier(kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("first", "10.96.0.1"));
    assert!(proxier.sync(now).unwrap().is_success());
    delete(&mut proxier, "first");
    upsert(&mut proxier, service("second", "10.96.0.1"));
    assert!(proxier.sync(now).unwrap().is_success());
    let server = key("10.96.0.1", 80);
    let server = proxier.state().virtual_server(&server).unwrap();
    assert_eq!(server.subject.to_string(), "Service ns/second");
}

/// A sequence of numbers that is the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn after_any_failures_the_kernel_ends_up_as_if_there_had_been_none() {
    const COMMANDS: [&str; 18] = [
        "ipvsadm -A",
        "ipvsadm -E",
        "ipvsadm -D",
        "-a -t",
        "-d -t",
        "-e -t",
        "-A -t 203.0.113",
        "-A -t 10.96.0.1:80",
        "-a -t 192.0.2.1",
        "add KUBE",
        "del KUBE",
        "add KUBE-LOAD-BALANCER",
        "del KUBE-NODE-PORT",
        "add KUBE-IPVS-IPS",
        "create KUBE",
        "address replace",
        "address delete",
        "-C INPUT",
    ];
    for seed in 0..40 {
        let mut numbers = Numbers(seed);
        let (mut kernel, faults) = kernel();
        let ipvs_faults = faults.clone();
        kernel.ipvs = Box::new(Faulty {
            inner: kernlink_ipvs::Fake::new(),
            faults: ipvs_faults,
        });
        if seed % 3 == 0 {
            kernel.rules = Box::new(WriteOnlyTables {
                inner: kernlink_iptables_restore::Fake::new(),
                faults: faults.clone(),
            });
        }
        let mut proxier = proxier(kernel);
        let mut now = Instant::now();
        let mut next = None;
        for _ in 0..40 {
            match numbers.below(10) {
                0..=3 => {
                    let number = numbers.below(4);
                    let mut service = load_balancer(if numbers.below(2) == 0 {
                        &[]
                    } else {
                        &["198.18.0.0/15"]
                    });
                    service.name = ObjectName::new("ns", format!("s{number}"));
                    service.cluster_ip = format!("10.96.0.{}", numbers.below(3) + 1);
                    service.ingress[0].ip = format!("203.0.113.{}", numbers.below(2) + 1);
                    if numbers.below(2) == 0 {
                        service = service.with_port(Port::new("https", 443));
                    }
                    if numbers.below(2) == 0 {
                        service.ports[0].node_port = 30_080 + u16::try_from(numbers.below(2)).unwrap();
                    }
                    if numbers.below(2) == 0 {
                        service.external_traffic_policy = TrafficPolicy::Local;
                        service.health_check_node_port = 32_000;
                    }
                    upsert(&mut proxier, service);
                }
                4 => delete(&mut proxier, &format!("s{}", numbers.below(4))),
                5 | 6 => {
                    let some: Vec<u8> = [1, 2, 3, 200, 201]
                        .into_iter()
                        .filter(|_| numbers.below(2) == 0)
                        .collect();
                    endpoints(&mut proxier, &format!("s{}", numbers.below(4)), &some);
                }
                7 => {
                    let command = COMMANDS[usize::try_from(numbers.below(18)).unwrap()];
                    if numbers.below(3) == 0 {
                        faults.lose_answer(command);
                    } else {
                        faults.refuse(command);
                    }
                }
                8 => faults.end(),
                _ => match numbers.below(4) {
                    0 => proxier.resync(),
                    1 => now += LATER,
                    2 => drop(proxier.plan(now)),
                    _ => now = next.unwrap_or(now),
                },
            }
            if numbers.below(2) == 0 {
                next = proxier.sync(now).unwrap().next;
            }
        }
        faults.end();
        sync_until_nothing_waits(&mut proxier, now);
        proxier.resync();
        let plan = proxier.plan(now).unwrap();
        let left: Vec<String> = plan
            .steps()
            .map(|(_, step)| step.operation.to_string())
            .filter(|command| !command.contains("iptables"))
            .collect();
        assert_eq!(left, [""; 0], "seed {seed}");
        let desired: Vec<String> = proxier
            .state()
            .virtual_servers(Family::Ipv4)
            .map(|server| server.virtual_server.key.to_string())
            .collect();
        assert_eq!(virtual_servers(proxier.kernel_mut()), desired, "seed {seed}");
    }
}
