//! What IPVS mode left is removed round by round while another mode serves the node: connections end before, and what identifies it as owned goes
//! last.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/node.rs"]
mod node;
#[path = "support/shared_ipvs.rs"]
mod shared_ipvs;
#[path = "support/udp.rs"]
mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kernlink_conntrack::{Flow, Tuple};
use kernlink_dummylink::{DummyLinks, HostAddress, Link, LinkName, Selection};
use kernlink_ipset::{IpSets, SetContents, SetHeader, SetName};
use kernlink_ipvs::RealServerKey;
use kernlink_proxier::contract::Calls;
use kernlink_proxier::host::Shared;
use kernlink_proxier::ipvs_mode::retire::Retiring;
use kernlink_proxier::ipvs_mode::{Config, Kernel, Proxier};
use kernlink_proxier::netfilter::SharedRules;
use kernlink_proxier::retire::{Kept, Name, Retire, Retired, RetiredOutcome, Round, Unserved};
use kernlink_services::{Family, FrontendKey, ObjectName, Protocol, Service};

use crate::node::{endpoints, ipv4_config as config, key, load_balancer, proxier, service, upsert};
use crate::shared_ipvs::SharedIpvs;
use crate::udp::{udp_endpoints, udp_service};

/// How often connections are read.
const INTERVAL: Duration = Duration::from_secs(5);

/// A node that IPVS mode served, and the mode in a process of another one.
struct Node {
    ipvs: SharedIpvs,
    conntrack: Shared<kernlink_conntrack::Fake>,
    links: Shared<kernlink_dummylink::Fake>,
    config: Config,
    /// With the Services of the node.
    model: Proxier,
    retiring: Retiring,
    unserved: BTreeMap<FrontendKey, Unserved>,
    now: Instant,
}

impl Node {
    fn new(config: Config, services: &[Service]) -> Self {
        let calls = Calls::default();
        let ipvs = SharedIpvs::default();
        let conntrack = Shared::new(kernlink_conntrack::Fake::new(), &calls);
        let eth0 = LinkName::new("eth0").unwrap();
        let address = kernlink_dummylink::LinkAddress::host([192, 0, 2, 1].into()).unwrap();
        let links = kernlink_dummylink::Fake::new().with_link(eth0, None, &[address]);
        let links = Shared::new(links, &calls);
        let rules = SharedRules::new(kernlink_iptables_restore::Fake::new(), &calls);
        let mut kernel = Kernel::fake();
        kernel.links = Box::new(links.clone());
        kernel.ipvs = Box::new(ipvs.clone());
        kernel.conntrack = Box::new(conntrack.clone());
        kernel.rules = Box::new(rules);
        let now = Instant::now();
        let mut model = with_services(&config, node::kernel(), services);
        model.sync(now).unwrap();
        let mut served = with_services(&config, kernel, services);
        let synced = served.sync(now).unwrap();
        assert!(synced.is_success(), "{synced}");
        let kernel = served.into_kernel();
        let retiring = Retiring::new(config.clone(), Box::new(links.clone())).unwrap();
        Self {
            ipvs,
            conntrack,
            links,
            config,
            model,
            retiring: retiring.with_kernel(kernel),
            unserved: BTreeMap::new(),
            now,
        }
    }

    /// A Service with two endpoints, and one of UDP.
    fn web() -> Self {
        Self::with_config(config())
    }

    fn with_config(config: Config) -> Self {
        Self::new(
            config,
            &[service("web", "10.96.0.1"), udp_service("dns", "10.96.0.10")],
        )
    }

    fn connect(&self, real: u8, active: u32) {
        let real = RealServerKey::new(IpAddr::from([10, 244, 0, real]), 8_080);
        self.ipvs.connect(&key("10.96.0.1", 80), &real, active);
    }

    fn read(&mut self, kept: Kept<'_>) {
        assert_eq!(self.retiring.read(self.now, kept), Ok(true));
        let services = self.model.services();
        self.retiring.compile(services, &services.everything());
    }

    fn round_with(&mut self, kept: Kept<'_>, executes: bool) -> Retired {
        let retired = self.retiring.retire(&Round {
            now: self.now,
            has_serving_mode: true,
            unserved: &self.unserved,
            has_served: true,
            kept,
            executes,
        });
        let outcome = if executes {
            RetiredOutcome::Done
        } else {
            RetiredOutcome::Planned
        };
        for step in &retired.steps {
            assert_eq!(step.outcome, outcome, "{}", step.command);
        }
        assert_eq!(retired.problems, [""; 0]);
        retired
    }

    fn round(&mut self) -> Retired {
        self.round_with(NONE, true)
    }

    /// Rounds at the times that they ask for, at most so many. Returns the commands.
    fn rounds(&mut self, most: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..most {
            let retired = self.round();
            all.extend(commands(&retired));
            if retired.is_gone {
                break;
            }
            let Some(next) = retired.next else { break };
            self.now = next.max(self.now);
        }
        all
    }

    fn has_link(&self) -> bool {
        self.links
            .clone()
            .exists(&LinkName::new("kube-ipvs0").unwrap())
            .unwrap()
    }

    fn hold(&mut self, frontend: FrontendKey, ranges: &[&str]) {
        let ranges: Vec<ipnet::IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let unserved = Unserved {
            service: ObjectName::new("ns", "web"),
            source_ranges: ranges.into(),
        };
        self.unserved.insert(frontend, unserved);
    }
}

fn with_services(config: &Config, kernel: Kernel, services: &[Service]) -> Proxier {
    let mut proxier = proxier(config.clone(), kernel);
    for service in services {
        let name = service.name.name.to_string();
        upsert(&mut proxier, service.clone());
        if service.ports[0].protocol == Protocol::Udp {
            udp_endpoints(&mut proxier, &name, &[1]);
        } else {
            endpoints(&mut proxier, &name, &[1, 2]);
        }
    }
    proxier
}

/// No other mode has any of these names.
const NONE: Kept<'static> = &|_| false;

fn commands(retired: &Retired) -> Vec<String> {
    retired.steps.iter().map(|step| step.command.clone()).collect()
}

/// The position of the only command with a text.
fn place(commands: &[String], text: &str) -> usize {
    let mut found = commands
        .iter()
        .enumerate()
        .filter(|(_, command)| command.contains(text));
    let (place, _) = found
        .next()
        .unwrap_or_else(|| panic!("{text} is not in {commands:#?}"));
    assert_eq!(found.next(), None, "{text} is twice in {commands:#?}");
    place
}

fn has(commands: &[String], text: &str) -> bool {
    commands.iter().any(|command| command.contains(text))
}

fn frontend(address: [u8; 4], port: u16) -> FrontendKey {
    FrontendKey {
        address: address.into(),
        protocol: Protocol::Tcp,
        port,
    }
}

#[test]
fn connections_end_before_their_virtual_server_and_the_link_is_removed_last() {
    let mut node = Node::web();
    assert_eq!(node.retiring.mode(), "IPVS mode");
    assert!(node.retiring.is_read_again());
    node.connect(1, 1);
    node.read(NONE);
    // A plan changes nothing.
    node.ipvs.executed();
    let planned = node.round_with(NONE, false);
    assert!(!planned.steps.is_empty() && !planned.is_gone);
    assert_eq!(node.ipvs.executed(), [""; 0]);
    let first = node.round();
    let texts = commands(&first);
    assert_eq!(commands(&planned), texts);
    for real in ["10.244.0.1", "10.244.0.2"] {
        let text = &texts[place(&texts, &format!("-e -t 10.96.0.1:80 -r {real}:8080"))];
        assert!(text.contains("-w 0"), "{text}");
    }
    assert!(!has(&texts, "-D -t 10.96.0.1:80"), "{texts:#?}");
    // Flows to UDP virtual servers, these, then what admits packets to them.
    let flows = place(&texts, "delete the stale IPv4 UDP flows to 1 destination");
    let server = place(&texts, "-D -u 10.96.0.10:53");
    let entry = place(&texts, "del KUBE-CLUSTER-IP 10.96.0.10,udp:53");
    assert!(flows < server && server < entry, "{texts:#?}");
    assert!(!has(&texts, "KERNLINK-DRAIN"), "no limit: {texts:#?}");
    assert_eq!(
        (first.next, first.draining, first.waiting),
        (Some(node.now), 2, 0)
    );
    assert!(!first.is_gone);
    // The address without a virtual server.
    let second = commands(&node.round());
    let address = place(&second, "address delete 10.96.0.10/32 dev kube-ipvs0");
    assert!(
        address < place(&second, "del KUBE-IPVS-IPS 10.96.0.10"),
        "{second:#?}"
    );
    assert_eq!(second.len(), 2, "{second:#?}");
    // One real server has a connection.
    node.now += INTERVAL;
    assert_eq!(commands(&node.round()), [""; 0]);
    assert!(node.has_link());
    node.connect(1, 0);
    node.now += INTERVAL;
    let texts = commands(&node.round());
    assert!(place(&texts, "-D -t 10.96.0.1:80") < place(&texts, "del KUBE-CLUSTER-IP 10.96.0.1,tcp:80"));
    let texts = node.rounds(10);
    let chains = place(&texts, "-X KUBE-IPVS-FILTER");
    let sets = place(&texts, "destroy KUBE-CLUSTER-IP");
    let ledger = place(&texts, "destroy KERNLINK-VS");
    let link = place(&texts, "link delete kube-ipvs0");
    assert!(chains < sets && sets < ledger && ledger < link, "{texts:#?}");
    assert_eq!(link, texts.len() - 1);
    assert!(!node.has_link());
    assert!(node.round().is_gone);
    assert_eq!(node.retiring.read(node.now, NONE), Ok(false));
    assert_eq!(node.retiring.is_serving(), Ok(false));
}

#[test]
fn connections_end_at_the_deadline_also_in_another_process() {
    let mut config = config();
    config.services.defaults.drain_timeout = Some(Duration::from_secs(30));
    let mut node = Node::with_config(config);
    node.connect(1, 1);
    node.read(NONE);
    let start = node.now;
    let texts = commands(&node.round());
    let set = place(&texts, "create KERNLINK-DRAIN ");
    let entries = [1, 2].map(|real| {
        place(
            &texts,
            &format!("add KERNLINK-DRAIN 10.96.0.1,tcp:80,10.244.0.{real}"),
        )
    });
    let weights = [1, 2].map(|real| place(&texts, &format!("-e -t 10.96.0.1:80 -r 10.244.0.{real}:8080")));
    assert!(
        set < entries[0] && entries.iter().max() < weights.iter().min(),
        "{texts:#?}"
    );
    assert!(texts[entries[0]].contains("timeout 30"), "{texts:#?}");
    let retired = node.round();
    assert!(!has(&commands(&retired), "KERNLINK-DRAIN"));
    // Another process. Entries of the fake do not age: it reads all of the 30 seconds.
    let other = spare(&node);
    let kernel = std::mem::replace(&mut node.retiring, other)
        .into_kernel()
        .unwrap();
    node.retiring = spare(&node).with_kernel(kernel);
    node.now = start + Duration::from_secs(10);
    node.read(NONE);
    let texts = commands(&node.round());
    assert!(
        !has(&texts, "KERNLINK-DRAIN") && !has(&texts, "-e -t"),
        "{texts:#?}"
    );
    while node.now < start + Duration::from_secs(38) {
        node.now += Duration::from_secs(1);
        let texts = commands(&node.round());
        assert!(!has(&texts, "-D -t"), "after {:?}: {texts:#?}", node.now - start);
    }
    node.now = start + Duration::from_secs(42);
    let texts = commands(&node.round());
    assert!(has(&texts, "-D -t 10.96.0.1:80"), "{texts:#?}");
    node.rounds(10);
    assert!(!node.has_link());
}

#[test]
fn each_service_has_its_own_limit() {
    let with = |name: &str, ip: &str, annotation: &str, value: &str| {
        let mut service = service(name, ip);
        let annotation = format!("kernlink.io/{annotation}");
        service.annotations.insert(annotation, value.to_owned());
        service
    };
    let mut config = config();
    config.services.defaults.drain_timeout = Some(Duration::from_secs(30));
    let services = [
        with("longer", "10.96.0.1", "drain-timeout", "60s"),
        with("without", "10.96.0.2", "drain-timeout", "0"),
        // While it serves, this scheduler refuses the clients of a real server that drains. Now there are no new ones.
        with("hashed", "10.96.0.3", "scheduler", "sh"),
    ];
    let mut node = Node::new(config, &services);
    node.read(NONE);
    let texts = commands(&node.round());
    for (last, limit) in [(1, 60), (3, 30)] {
        let text = format!("add KERNLINK-DRAIN 10.96.0.{last},tcp:80,10.244.0.1");
        let text = &texts[place(&texts, &text)];
        assert!(text.contains(&format!("timeout {limit}")), "{text}");
        assert!(!has(&texts, &format!("-D -t 10.96.0.{last}:80")), "{texts:#?}");
    }
    place(&texts, "-D -t 10.96.0.2:80");
    assert!(!has(&texts, "10.96.0.2,tcp:80,10.244.0.1"), "{texts:#?}");
}

fn spare(node: &Node) -> Retiring {
    Retiring::new(node.config.clone(), Box::new(node.links.clone())).unwrap()
}

#[test]
fn an_unserved_frontend_stays_as_it_is_until_it_is_served_or_of_no_service() {
    let mut node = Node::web();
    node.hold(frontend([10, 96, 0, 1], 80), &[]);
    // Not of IPVS mode.
    node.hold(frontend([10, 96, 0, 9], 80), &[]);
    node.read(NONE);
    let retired = node.round();
    let held = BTreeSet::from([frontend([10, 96, 0, 1], 80)]);
    assert_eq!(retired.held, held);
    assert!(!has(&commands(&retired), "10.96.0.1:80"));
    node.round();
    let retired = node.round();
    assert_eq!((commands(&retired), &retired.held), (Vec::new(), &held));
    assert_eq!((retired.next, retired.draining), (Some(node.now + INTERVAL), 0));
    assert!(!retired.is_gone);
    // It is served.
    node.unserved.clear();
    node.now += INTERVAL;
    let retired = node.round();
    assert_eq!((retired.held.len(), retired.draining), (0, 2));
    assert!(has(&commands(&retired), "-e -t 10.96.0.1:80 -r 10.244.0.1:8080"));
    node.now += INTERVAL;
    node.rounds(10);
    assert!(!node.has_link());
}

#[test]
fn an_unserved_frontend_of_a_deleted_service_does_not_stay() {
    let mut node = Node::web();
    let frontend = frontend([10, 96, 0, 1], 80);
    node.hold(frontend, &[]);
    node::delete(&mut node.model, "web");
    node.model.sync(node.now).unwrap();
    node.read(NONE);
    assert_eq!(node.round().held, BTreeSet::new());
}

#[test]
fn a_restricted_frontend_stays_only_while_no_more_is_admitted_than_its_ranges_admit() {
    // What IPVS mode wrote, what the Service has now, and whether it stays.
    let cases: [(&[&str], &[&str], bool); 6] = [
        (&["198.51.100.0/24"], &["198.51.100.0/24"], true),
        (&["198.51.100.0/24"], &["198.51.100.0/24", "198.18.0.0/15"], true),
        (&["198.51.100.0/24", "198.18.0.0/15"], &["198.18.0.0/15"], false),
        (&["198.51.100.0/24"], &["198.51.100.0/25"], false),
        (&[], &["198.51.100.0/24"], false),
        (&["203.0.113.0/24"], &["203.0.113.0/24"], true),
    ];
    for (before, after, stays) in cases {
        let mut node = Node::new(config(), &[load_balancer(before)]);
        upsert(&mut node.model, load_balancer(after));
        node.model.sync(node.now).unwrap();
        let frontend = frontend([203, 0, 113, 1], 80);
        node.hold(frontend, after);
        node.read(NONE);
        let held = node.round().held;
        assert_eq!(held.contains(&frontend), stays, "{before:?} {after:?}: {held:?}");
    }
}

#[test]
fn a_restricted_frontend_stays_if_the_source_ranges_of_another_one_are_others_now() {
    let other = |ranges: &[&str]| {
        let mut other = load_balancer(ranges);
        other.name = ObjectName::new("ns", "other");
        other.cluster_ip = "10.96.0.2".to_owned();
        other.ingress[0].ip = "203.0.113.2".to_owned();
        other
    };
    let ranges = ["198.51.100.0/24"];
    let mut node = Node::new(config(), &[load_balancer(&ranges), other(&ranges)]);
    upsert(&mut node.model, other(&["198.51.100.0/25"]));
    node.model.sync(node.now).unwrap();
    let [first, second] = [1, 2].map(|last| frontend([203, 0, 113, last], 80));
    node.hold(first, &ranges);
    node.hold(second, &["198.51.100.0/25"]);
    node.read(NONE);
    assert_eq!(node.round().held, [first].into());
}

/// The chains that iptables mode has too.
fn of_iptables_mode(name: &Name<'_>) -> bool {
    match name.table {
        "nat" => ["KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"].contains(&name.name),
        "filter" => ["KUBE-FORWARD", "KUBE-PROXY-FIREWALL"].contains(&name.name),
        _ => false,
    }
}

#[test]
fn chains_of_the_serving_mode_stay_with_the_rules_that_virtual_ips_and_hairpins_need() {
    let mut node = Node::web();
    let interim = |node: &Node| -> Vec<String> {
        let all = node.retiring.interim().into_iter();
        let of_family = all.filter(|interim| interim.family == Family::Ipv4);
        let rules = of_family.flat_map(|interim| {
            assert_eq!((interim.table, interim.chain), ("nat", "KUBE-POSTROUTING"));
            interim.rules
        });
        rules.collect()
    };
    assert_eq!(interim(&node), [""; 0]);
    node.connect(1, 1);
    node.read(&of_iptables_mode);
    let rules = interim(&node);
    assert_eq!(rules.len(), 2, "{rules:#?}");
    assert!(
        rules[0].contains("KUBE-IPVS-IPS") && rules[1].contains("KUBE-LOOP-BACK"),
        "{rules:#?}"
    );
    assert!(node.retiring.has_virtual_ips(Family::Ipv4) && !node.retiring.has_virtual_ips(Family::Ipv6));
    for _ in 0..4 {
        let texts = commands(&node.round_with(&of_iptables_mode, true));
        assert!(!has(&texts, "-X KUBE-"), "{texts:#?}");
        node.now += INTERVAL;
    }
    assert_eq!(interim(&node), rules);
    node.connect(1, 0);
    let mut all = Vec::new();
    for _ in 0..10 {
        let retired = node.round_with(&of_iptables_mode, true);
        all.extend(commands(&retired));
        if retired.is_gone {
            break;
        }
        node.now = retired.next.unwrap().max(node.now);
        assert_eq!(
            node.retiring.has_virtual_ips(Family::Ipv4),
            !interim(&node).is_empty()
        );
    }
    let restore = &all[place(&all, "-X KUBE-IPVS-FILTER")];
    for kept in [
        "KUBE-SERVICES",
        "KUBE-POSTROUTING",
        "KUBE-MARK-MASQ",
        "KUBE-FORWARD",
        "KUBE-PROXY-FIREWALL",
    ] {
        assert!(!restore.contains(&format!("-X {kept}\n")), "{kept}: {restore}");
    }
    assert!(restore.contains("-X KUBE-NODE-PORT\n"), "{restore}");
    assert_eq!(interim(&node), [""; 0]);
    assert!(!node.has_link());
    // Without a serving mode that has this chain, it gets no rules.
    let mut node = Node::web();
    node.read(NONE);
    assert_eq!(interim(&node), [""; 0]);
}

/// Links and sets that cannot be listed while the flag is set.
struct Unreadable<T: ?Sized>(Box<T>, Arc<AtomicBool>);

impl<T: ?Sized> Unreadable<T> {
    fn is_unreadable(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }
}

impl DummyLinks for Unreadable<dyn DummyLinks> {
    fn execute(
        &mut self,
        operations: &[kernlink_dummylink::Operation],
    ) -> Vec<Result<(), kernlink_dummylink::Error>> {
        self.0.execute(operations)
    }

    fn links(&mut self) -> Result<Vec<Link>, kernlink_dummylink::Error> {
        self.0.links()
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, kernlink_dummylink::Error> {
        if self.is_unreadable() {
            return Err(kernlink_dummylink::Error::custom("list", "not now"));
        }
        self.0.list(selection)
    }
}

impl IpSets for Unreadable<dyn IpSets> {
    fn execute(
        &mut self,
        operations: &[kernlink_ipset::Operation],
    ) -> Vec<Result<(), kernlink_ipset::Error>> {
        self.0.execute(operations)
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, kernlink_ipset::Error> {
        if self.is_unreadable() {
            return Err(kernlink_ipset::Error::custom(format!("list {name}"), "not now"));
        }
        self.0.list_set(name)
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, kernlink_ipset::Error> {
        if self.is_unreadable() {
            return Err(kernlink_ipset::Error::custom("list sets".to_owned(), "not now"));
        }
        self.0.headers()
    }
}

#[test]
fn virtual_ips_are_those_that_were_read_last_if_a_later_reading_fails() {
    let mut node = Node::web();
    let spare_retiring = spare(&node);
    let mut kernel = std::mem::replace(&mut node.retiring, spare_retiring)
        .into_kernel()
        .unwrap();
    let [links, sets] = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
    kernel.links = Box::new(Unreadable(kernel.links, Arc::clone(&links)));
    kernel.sets = Box::new(Unreadable(kernel.sets, Arc::clone(&sets)));
    node.retiring = spare(&node).with_kernel(kernel);
    let families = |node: &Node| Family::ALL.map(|family| node.retiring.has_virtual_ips(family));
    assert!(node.retiring.read(node.now, NONE).is_err());
    assert_eq!(families(&node), [true, true], "the link is not read");
    links.store(false, Ordering::Relaxed);
    assert!(node.retiring.read(node.now, NONE).is_err());
    assert_eq!(families(&node), [true, false]);
    links.store(true, Ordering::Relaxed);
    assert!(node.retiring.read(node.now, NONE).is_err());
    assert_eq!(families(&node), [true, false]);
    links.store(false, Ordering::Relaxed);
    sets.store(false, Ordering::Relaxed);
    node.read(NONE);
    assert_eq!(families(&node), [true, false]);
}

#[test]
fn an_address_stays_while_connections_of_the_node_use_it_until_its_limit_has_passed() {
    for limit in [None, Some(Duration::from_secs(600))] {
        let mut config = config();
        config.services.defaults.drain_timeout = limit;
        let mut node = Node::with_config(config);
        let socket = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let (source, to) = (socket("10.96.0.1:40000"), socket("10.96.0.1:80"));
        let reply = socket("10.244.0.2:8080");
        let flow = Flow::new(Tuple::tcp(source, to), Tuple::tcp(reply, source));
        node.conntrack.lock().insert(flow).unwrap();
        node.read(NONE);
        let mut texts = Vec::new();
        let mut unserved_at = None;
        for _ in 0..40 {
            let retired = node.round();
            texts.extend(commands(&retired));
            if unserved_at.is_none() && has(&texts, "-D -t 10.96.0.1:80") {
                unserved_at = Some(node.now);
            }
            if retired
                .next
                .is_none_or(|next| next > node.now + Duration::from_secs(300))
            {
                break;
            }
            node.now = retired.next.unwrap().max(node.now);
        }
        assert!(has(&texts, "address delete 10.96.0.10/32"), "{texts:#?}");
        match limit {
            None => {
                assert!(!has(&texts, "address delete 10.96.0.1/32"), "{texts:#?}");
                assert!(node.now - unserved_at.unwrap() > Duration::from_secs(600));
                node.conntrack.lock().clear();
                node.now += Duration::from_secs(60);
                assert!(has(&node.rounds(10), "address delete 10.96.0.1/32"));
            }
            Some(limit) => {
                assert!(has(&texts, "address delete 10.96.0.1/32"), "{texts:#?}");
                assert!(node.now - unserved_at.unwrap() >= limit);
            }
        }
        assert!(!node.has_link());
    }
}

#[test]
fn a_process_that_finds_only_tables_and_sets_reads_the_tables_again_after_the_serving_mode_wrote_them() {
    let mut node = Node::web();
    node.read(NONE);
    let is_last = |_| {
        let texts = commands(&node.round());
        node.now += INTERVAL;
        has(&texts, "address delete 10.96.0.1/32")
    };
    assert!((0..10).any(is_last));
    let other = spare(&node);
    let kernel = std::mem::replace(&mut node.retiring, other)
        .into_kernel()
        .unwrap();
    node.retiring = spare(&node).with_kernel(kernel);
    node.read(NONE);
    let retired = node.round();
    assert_eq!(commands(&retired), [""; 0]);
    assert_eq!((retired.next, retired.is_gone), (Some(node.now), false));
    assert!(has(&commands(&node.round()), "-X KUBE-IPVS-FILTER"));
}

#[test]
fn without_the_link_nothing_is_left_and_nothing_is_opened() {
    let links = kernlink_dummylink::Fake::new();
    let mut retiring = Retiring::new(config(), Box::new(links)).unwrap();
    assert_eq!(retiring.read(Instant::now(), NONE), Ok(false));
    assert_eq!(retiring.interim(), []);
    let unserved = BTreeMap::new();
    let retired = retiring.retire(&Round {
        now: Instant::now(),
        has_serving_mode: true,
        unserved: &unserved,
        has_served: true,
        kept: NONE,
        executes: true,
    });
    assert!(retired.is_gone && retired.steps.is_empty());
    let has = |table, name| {
        let family = Family::Ipv4;
        retiring.has(&Name { family, table, name })
    };
    assert!(has("nat", "KUBE-LOAD-BALANCER") && has("filter", "KUBE-IPVS-FILTER"));
    assert!(!has("filter", "KUBE-LOAD-BALANCER") && !has("nat", "KUBE-SVC-A"));
    assert!(retiring.into_kernel().is_none());
}
