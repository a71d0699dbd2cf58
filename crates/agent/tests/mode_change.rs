//! The mode changes while traffic flows, on the fake kernel: what both modes serve is served all the time, established connections continue,
//! and at the end nothing of the other mode is left.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/any_proxier.rs"]
mod any_proxier;
#[path = "../../proxier/tests/support/host.rs"]
mod host;
#[path = "../../proxier/tests/support/senders.rs"]
mod senders;
#[path = "../../proxier/tests/support/shared_ipvs.rs"]
mod shared_ipvs;
#[path = "support/shared_kernel.rs"]
mod shared_kernel;
#[path = "../../proxier/tests/support/mod.rs"]
mod support;
#[path = "../../proxier/tests/support/tracer.rs"]
mod tracer;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use kernlink_agent::modes::{Config, Mode};
use kernlink_conntrack::{Conntrack, Flow, Status, Tuple};
use kernlink_iptables_restore::{Family as TablesFamily, Iptables, Save, Table};
use kernlink_ipvs::{Ipvs, RealServer, RealServerKey, VirtualServerKey};
use kernlink_proxier::host::LocalDetection;
use kernlink_proxier::iptables_mode::{self, IptablesMode};
use kernlink_proxier::ipvs_mode;
use kernlink_services::{
    Change, Family, Ingress, Kind, ObjectChange, ObjectName, Port, Protocol, Service, ServiceType, SourceId,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::any_proxier::Did;
use crate::senders::{named, packets, slices};
use crate::shared_kernel::{Kernel, Proxier, SharedKernel, observed};
use crate::support::clusters::service;
use crate::tracer::{End, Packet, Served, Tracer};

fn config(mode: Mode, detection: &LocalDetection) -> Config {
    match mode {
        Mode::Ipvs => {
            let mut config = ipvs_mode::Config::new("node-a");
            config.conntrack.max_per_core = 0;
            config.local_detection = detection.clone();
            config.into()
        }
        Mode::Iptables => {
            let mut config = iptables_mode::Config::new("node-a");
            config.conntrack.max_per_core = 0;
            config.local_detection = detection.clone();
            config.into()
        }
        Mode::Nftables | Mode::Userspace => unreachable!("the tests of this file are about the other modes"),
    }
}

/// By the networks of the pods, or not at all.
fn detection(detects: bool) -> LocalDetection {
    let pods = ["10.244.0.0/16", "fd01::/16"].map(|net| net.parse().unwrap());
    LocalDetection::ClusterCidr(if detects { pods.into() } else { Vec::new() })
}

fn proxier(config: &Config, kernel: Kernel, changes: &[Change]) -> Proxier {
    let mut proxier = Proxier::new(config, kernel);
    for change in changes {
        proxier.change(SourceId(0), change.clone());
    }
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    proxier
}

fn sync(proxier: &mut Proxier, now: Instant) -> Did {
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    synced
}

/// Syncs at each time that a sync asks for, until none is left or at most so often. Returns the last time.
fn run(proxier: &mut Proxier, mut now: Instant, most: usize) -> Instant {
    for _ in 0..most {
        let Some(next) = sync(proxier, now).next else {
            return now;
        };
        now = next.max(now);
    }
    now
}

/// Syncs. `observe` is called after each operation, of which each table that one commits is one.
fn sync_observed(
    proxier: &mut Proxier,
    shared: &SharedKernel,
    now: Instant,
    observe: impl Fn(Tracer, &str) + 'static,
) -> Did {
    let kernel = shared.clone();
    let observe = move |operation: &str| observe(Tracer::of_kernel(&mut kernel.ipvs()), operation);
    observed(observe, || sync(proxier, now))
}

/// All rules, sets, virtual servers and addresses, without chains that stay: that of the kubelet, and built-in ones.
fn state(proxier: &mut Proxier) -> BTreeSet<String> {
    let kernel = &mut proxier.ipvs();
    let mut lines: BTreeSet<String> = host::listed(kernel).into_iter().collect();
    for family in TablesFamily::ALL {
        for table in [Table::Nat, Table::Filter] {
            let saved = kernel.rules.save(&Save::table(family, table)).unwrap();
            for (name, chain) in saved.tables().flat_map(|(_, rules)| rules.chains()) {
                if name.as_str() == "KUBE-FIREWALL" {
                    continue;
                }
                lines.insert(format!("{family:?} {table:?} {name}"));
                let rules = chain.rules().map(ToString::to_string);
                let rules = rules.filter(|rule| !rule.ends_with("-j KUBE-FIREWALL"));
                lines.extend(rules.map(|rule| format!("{family:?} {table:?} {name} {rule}")));
            }
        }
    }
    lines
}

/// The state of a node that was in one mode only.
fn state_of(mode: Mode, detection: &LocalDetection, changes: &[Change]) -> BTreeSet<String> {
    let mut proxier = proxier(&config(mode, detection), SharedKernel::new().apis(), changes);
    let now = Instant::now();
    sync(&mut proxier, now);
    state(&mut proxier)
}

/// Services with endpoints of which most are ready.
fn cluster() -> impl Strategy<Value = Vec<Change>> {
    let service = (service(), subsequence(vec![1_u8, 2, 3, 4], 0..=4), any::<bool>());
    vec(service, 1..3).prop_map(|services| {
        let mut changes = Vec::new();
        for (number, (service, endpoints, is_ready)) in (1..).zip(services) {
            let mut service = named(service, number);
            // Other forwarding methods and schedulers exist in IPVS mode only.
            service.annotations.clear();
            changes.extend(slices(&service, &endpoints, is_ready));
            changes.push(Change::Services(ObjectChange::Upsert(service)));
        }
        changes
    })
}

/// What packets to virtual servers are served before and after all changes, and the states in between.
struct Traffic {
    tracers: Vec<(Tracer, String)>,
}

impl Traffic {
    /// Asserts that what is served in the first and in the last state is served in all of them, by the same endpoints. As long as a virtual IP
    /// is an address of the node, connections with this source are masqueraded as in IPVS mode.
    fn assert_uninterrupted(&self, keys: &BTreeSet<VirtualServerKey>) {
        let (first, last) = (&self.tracers[0].0, &self.tracers[self.tracers.len() - 1].0);
        for packet in keys.iter().flat_map(packets) {
            let ends = (first.trace(packet.clone()), last.trace(packet.clone()));
            let (End::Served(before), End::Served(after)) = ends else {
                continue;
            };
            // The kernel drops a packet from another host with a source of this node.
            let is_martian =
                |(tracer, _): &(Tracer, String)| packet.input.is_some() && tracer.is_local(packet.source);
            if self.tracers.iter().any(is_martian) {
                continue;
            }
            let known = [(first, &before), (last, &after)];
            // Connections of the node from its own address, which rules may treat otherwise than those of other hosts.
            let own = if packet.destination.is_ipv4() {
                "192.0.2.1"
            } else {
                "2001:db8::1"
            };
            let own = Packet::new(None, own.parse().unwrap(), packet.destination, packet.protocol);
            let of_node: Vec<Served> = [first, last]
                .into_iter()
                .flat_map(|tracer| match tracer.trace(own.clone()) {
                    End::Served(served) => served,
                    _ => Vec::new(),
                })
                .collect();
            for (tracer, when) in &self.tracers {
                let end = tracer.trace(packet.clone());
                let is_virtual = has_virtual_source(tracer, &packet);
                let of_kind = |(tracer, _): &&(&Tracer, &Vec<Served>)| {
                    !is_virtual || has_virtual_source(tracer, &packet)
                };
                let of_kind = known.iter().filter(of_kind);
                let known: Vec<&Served> = of_kind.flat_map(|(_, served)| served.iter()).collect();
                let works = |served: &Served| {
                    known.iter().any(|known| served.works_if(known))
                        || (is_virtual && of_node.iter().any(|known| served.is_masqueraded_to(known)))
                };
                let works = match &end {
                    End::Served(between) => !between.is_empty() && between.iter().all(works),
                    _ => false,
                };
                let (before, after) = (End::Served(before.clone()), End::Served(after.clone()));
                assert!(
                    works,
                    "{when}: {packet:?} ends at {end}; first at {before}; last at {after}"
                );
            }
        }
    }
}

/// Whether a packet of this node has as its source the virtual IP that it is sent to: replies of other hosts do not return to this node.
fn has_virtual_source(tracer: &Tracer, packet: &Packet) -> bool {
    let is_virtual = packet.source == packet.destination.ip();
    packet.input.is_none() && is_virtual && tracer.is_local(packet.source)
}

/// All real servers of virtual servers of TCP, with a packet of each sender.
fn established(proxier: &mut Proxier) -> Vec<(VirtualServerKey, RealServer)> {
    let listed = proxier.ipvs().ipvs.list_all().unwrap();
    let servers = listed
        .into_iter()
        .flat_map(|(server, real_servers)| real_servers.into_iter().map(move |real| (server.key, real)));
    let is_tcp = |key: &VirtualServerKey| key.protocol() == Some(kernlink_ipvs::Protocol::Tcp);
    servers.filter(|(key, _)| is_tcp(key)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn from_ipvs_to_iptables_traffic_and_connections_continue_and_nothing_is_left(
        changes in cluster(),
        detects in any::<bool>(),
    ) {
        let detection = detection(detects);
        let shared = SharedKernel::new();
        let mut proxier = proxier(&config(Mode::Ipvs, &detection), shared.apis(), &changes);
        let mut now = Instant::now();
        sync(&mut proxier, now);
        let connections = established(&mut proxier);
        for (key, real) in &connections {
            shared.ipvs.connect(key, &real.key, 1);
        }
        let before = Rc::new(Tracer::of_kernel(&mut proxier.ipvs()));
        let first = Tracer::of_kernel(&mut proxier.ipvs());
        let keys: BTreeSet<VirtualServerKey> = first.servers().copied().collect();
        let mut traffic = Traffic { tracers: vec![(first, "IPVS mode".to_owned())] };
        let iptables = config(Mode::Iptables, &detection);
        proxier = self::proxier(&iptables, proxier.into_kernel(), &changes);
        let mut has_connections = true;
        for round in 0..20 {
            let between: Rc<RefCell<Vec<(Tracer, String)>>> = Rc::default();
            let of_observer = Rc::clone(&between);
            let established = if has_connections { connections.clone() } else { Vec::new() };
            let before = Rc::clone(&before);
            proxier.resync();
            sync_observed(&mut proxier, &shared, now, move |tracer, operation| {
                let is_served = |packet: &&Packet| matches!(before.trace((*packet).clone()), End::Served(_));
                let continues = |(key, real): &(VirtualServerKey, RealServer)| {
                    packets(key).iter().filter(is_served).all(|packet| tracer.continues(packet, real))
                };
                assert!(established.iter().all(continues), "round {round}: {operation}");
                of_observer.borrow_mut().push((tracer, format!("round {round}: after {operation}")));
            });
            traffic.tracers.append(&mut between.borrow_mut());
            now += Duration::from_secs(61);
            if round == 5 {
                has_connections = false;
                for (key, real) in &connections {
                    shared.ipvs.connect(key, &real.key, 0);
                }
            }
            if !shared.has_ipvs_link() {
                break;
            }
        }
        prop_assert!(!shared.has_ipvs_link());
        traffic.assert_uninterrupted(&keys);
        prop_assert_eq!(state(&mut proxier), state_of(Mode::Iptables, &detection, &changes));
        let synced = sync(&mut proxier, now);
        prop_assert!(synced.plan.is_empty() && synced.next.is_none(), "{:?} {}", synced.next, synced.plan);
    }

    #[test]
    fn from_iptables_to_ipvs_traffic_continues_and_nothing_is_left(
        changes in cluster(),
        detects in any::<bool>(),
    ) {
        let detection = detection(detects);
        let shared = SharedKernel::new();
        let mut proxier = proxier(&config(Mode::Iptables, &detection), shared.apis(), &changes);
        let now = Instant::now();
        sync(&mut proxier, now);
        let ipvs = config(Mode::Ipvs, &detection);
        let mut traffic = Traffic { tracers: vec![(Tracer::of_kernel(&mut proxier.ipvs()), "iptables mode".to_owned())] };
        proxier = self::proxier(&ipvs, proxier.into_kernel(), &changes);
        let between: Rc<RefCell<Vec<(Tracer, String)>>> = Rc::default();
        let of_observer = Rc::clone(&between);
        let first = sync_observed(&mut proxier, &shared, now, move |tracer, operation| {
            of_observer.borrow_mut().push((tracer, format!("after {operation}")));
        });
        // The next sync, which is due at once, completes it.
        prop_assert_eq!(first.next, Some(now));
        let of_observer = Rc::clone(&between);
        sync_observed(&mut proxier, &shared, now, move |tracer, operation| {
            of_observer.borrow_mut().push((tracer, format!("in the second sync, after {operation}")));
        });
        traffic.tracers.append(&mut between.borrow_mut());
        let keys: BTreeSet<VirtualServerKey> = traffic.tracers.last().unwrap().0.servers().copied().collect();
        traffic.assert_uninterrupted(&keys);
        let mut proxier = self::proxier(&ipvs, proxier.into_kernel(), &changes);
        let synced = sync(&mut proxier, now);
        prop_assert!(synced.plan.is_empty(), "{}", synced.plan);
        prop_assert_eq!(state(&mut proxier), state_of(Mode::Ipvs, &detection, &changes));
    }
}

fn web() -> Vec<Change> {
    let service = Service::new(ObjectName::new("ns", "web"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80))
        .with_port(Port::new("dns", 53).with_protocol(Protocol::Udp));
    let mut changes = slices(&service, &[1, 3], true);
    changes.push(Change::Services(ObjectChange::Upsert(service)));
    changes
}

fn key(port: u16) -> VirtualServerKey {
    let address: IpAddr = "10.96.0.1".parse().unwrap();
    match port {
        53 => VirtualServerKey::udp(address, port),
        _ => VirtualServerKey::tcp(address, port),
    }
}

fn real(number: u8) -> RealServerKey {
    RealServerKey::new(IpAddr::from([10, 244, 1, number]), 8_080)
}

/// A node whose mode changed from IPVS to iptables, after the first sync, with a connection to the first endpoint.
fn changed() -> (SharedKernel, Proxier, Instant) {
    let shared = SharedKernel::new();
    let detection = detection(true);
    let mut proxier = proxier(&config(Mode::Ipvs, &detection), shared.apis(), &web());
    let now = Instant::now();
    sync(&mut proxier, now);
    shared.ipvs.connect(&key(80), &real(1), 1);
    proxier.restart(&config(Mode::Iptables, &detection));
    let synced = sync(&mut proxier, now);
    assert!(synced.next.is_some());
    (shared, proxier, now)
}

/// A load balancer that admits clients from one network.
fn load_balancer() -> Vec<Change> {
    let mut service = Service::new(ObjectName::new("ns", "lb"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80));
    service.service_type = ServiceType::LoadBalancer;
    service.ingress = vec![Ingress {
        ip: "203.0.113.1".to_owned(),
        ..Ingress::default()
    }];
    service.load_balancer_source_ranges = vec!["198.51.100.0/24".to_owned()];
    let mut changes = slices(&service, &[1, 3], true);
    changes.push(Change::Services(ObjectChange::Upsert(service)));
    changes
}

#[test]
fn between_two_tables_source_ranges_admit_and_drop_the_same_clients() {
    let shared = SharedKernel::new();
    let detection = detection(true);
    let changes = load_balancer();
    let mut proxier = proxier(&config(Mode::Ipvs, &detection), shared.apis(), &changes);
    let now = Instant::now();
    sync(&mut proxier, now);
    proxier.restart(&config(Mode::Iptables, &detection));
    let to_load_balancer = |source: &str| {
        let destination = "203.0.113.1:80".parse().unwrap();
        Packet::new(Some("eth0"), source.parse().unwrap(), destination, Protocol::Tcp)
    };
    let states = Rc::new(Cell::new(0));
    let of_observer = Rc::clone(&states);
    let synced = sync_observed(&mut proxier, &shared, now, move |tracer, operation| {
        let admitted = tracer.trace(to_load_balancer("198.51.100.7"));
        assert!(
            matches!(admitted, End::Served(_)),
            "after {operation}: {admitted}"
        );
        let other = tracer.trace(to_load_balancer("192.0.2.66"));
        assert_eq!(other, End::Dropped, "after {operation}");
        let is_restore = operation.contains("tables-restore");
        of_observer.set(of_observer.get() + usize::from(is_restore));
    });
    // Some steps commit two tables.
    let restores = synced.plan.matches("tables-restore").count();
    assert!(states.get() > restores, "{}\n{}", states.get(), synced.plan);
}

fn servers(shared: &SharedKernel) -> BTreeSet<VirtualServerKey> {
    let listed = shared.ipvs.clone().list_virtual_servers().unwrap();
    listed.into_iter().map(|status| status.server.key).collect()
}

#[test]
fn a_virtual_server_stays_until_its_connections_have_ended() {
    let (shared, mut proxier, now) = changed();
    let now = run(&mut proxier, now, 6);
    assert_eq!(servers(&shared), BTreeSet::from([key(80)]));
    assert!(shared.has_ipvs_link());
    let saved = shared
        .rules
        .clone()
        .save(&Save::all(Family::Ipv4))
        .unwrap()
        .to_string();
    assert!(
        saved.contains("KUBE-IPVS-FILTER") && !saved.contains("KUBE-NODE-PORT -j KUBE-MARK-MASQ"),
        "{saved}"
    );
    assert!(saved.contains("KUBE-IPVS-IPS src -j KUBE-MARK-MASQ"), "{saved}");
    shared.ipvs.connect(&key(80), &real(1), 0);
    run(&mut proxier, now, 20);
    assert_eq!(servers(&shared), BTreeSet::new());
    assert!(!shared.has_ipvs_link());
    assert_eq!(
        state(&mut proxier),
        state_of(Mode::Iptables, &detection(true), &web())
    );
}

#[test]
fn a_process_that_finds_ipvs_mode_removes_it_although_nothing_changes() {
    let shared = SharedKernel::new();
    let mut earlier = proxier(&config(Mode::Ipvs, &detection(true)), shared.apis(), &web());
    let now = Instant::now();
    sync(&mut earlier, now);
    let kernel = earlier.into_kernel();
    let mut proxier = proxier(&config(Mode::Iptables, &detection(true)), kernel, &web());
    run(&mut proxier, now, 20);
    assert_eq!(servers(&shared), BTreeSet::new());
    assert!(!shared.has_ipvs_link());
}

#[test]
fn a_change_back_gives_the_real_servers_their_weights_again() {
    let (shared, mut proxier, now) = changed();
    let now = run(&mut proxier, now, 6);
    proxier.restart(&config(Mode::Ipvs, &detection(true)));
    run(&mut proxier, now, 3);
    assert_eq!(servers(&shared), BTreeSet::from([key(80), key(53)]));
    assert_eq!(
        state(&mut proxier),
        state_of(Mode::Ipvs, &detection(true), &web())
    );
}

#[test]
fn connections_end_when_the_limit_has_passed() {
    let shared = SharedKernel::new();
    let detection = detection(true);
    let with_limit = |mode: Mode| {
        let mut config = config(mode, &detection);
        config.services_mut().defaults.drain_timeout = Some(Duration::from_secs(30));
        config
    };
    let mut proxier = proxier(&with_limit(Mode::Ipvs), shared.apis(), &web());
    let now = Instant::now();
    sync(&mut proxier, now);
    shared.ipvs.connect(&key(80), &real(1), 1);
    proxier.restart(&with_limit(Mode::Iptables));
    let mut at = now;
    while at < now + Duration::from_secs(29) {
        assert!(servers(&shared).contains(&key(80)), "{:?}", at - now);
        at = sync(&mut proxier, at)
            .next
            .unwrap()
            .max(at + Duration::from_secs(1));
    }
    run(&mut proxier, at + Duration::from_secs(5), 20);
    assert!(!shared.has_ipvs_link());
}

fn flow(source: &str, destination: &str, reply: &str) -> Flow {
    let socket = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let (source, destination, reply) = (socket(source), socket(destination), socket(reply));
    Flow::new(Tuple::udp(source, destination), Tuple::udp(reply, source))
}

#[test]
fn flows_of_ipvs_are_deleted_before_their_virtual_servers_and_translated_flows_stay() {
    let shared = SharedKernel::new();
    let detection = detection(true);
    let mut proxier = proxier(&config(Mode::Ipvs, &detection), shared.apis(), &web());
    let now = Instant::now();
    sync(&mut proxier, now);
    let mut translated = flow("198.51.100.7:5001", "10.96.0.1:53", "10.244.1.3:8080");
    translated.status |= Status::DST_NAT;
    shared.conntrack.fake().insert(translated.clone()).unwrap();
    shared
        .conntrack
        .fake()
        .insert(flow("198.51.100.7:5000", "10.96.0.1:53", "10.244.1.1:8080"))
        .unwrap();
    proxier.restart(&config(Mode::Iptables, &detection));
    let synced = sync(&mut proxier, now);
    let text = synced.plan.to_string();
    let deleted = text
        .find("conntrack: delete the stale IPv4 UDP flows to 1 destination, except those")
        .unwrap();
    assert!(
        deleted < text.find("ipvsadm -D -u 10.96.0.1:53").unwrap(),
        "{text}"
    );
    let left = shared
        .conntrack
        .clone()
        .list(&kernlink_conntrack::Filter::new())
        .unwrap();
    assert_eq!(
        left.iter().map(|flow| flow.original).collect::<Vec<_>>(),
        [translated.original]
    );
}

#[test]
fn an_address_stays_while_connections_of_the_node_use_it_as_their_source() {
    let (shared, mut proxier, now) = changed();
    let of_node = flow("10.96.0.1:40000", "10.96.0.1:80", "10.244.1.3:8080");
    shared.conntrack.fake().insert(of_node).unwrap();
    shared.ipvs.connect(&key(80), &real(1), 0);
    let now = run(&mut proxier, now, 12);
    assert_eq!(servers(&shared), BTreeSet::new());
    assert!(shared.has_ipvs_link());
    shared.conntrack.fake().clear();
    run(&mut proxier, now, 12);
    assert!(!shared.has_ipvs_link());
}

#[test]
fn nothing_is_removed_while_iptables_mode_does_not_work() {
    let shared = SharedKernel::new();
    let detection = detection(true);
    let mut proxier = proxier(&config(Mode::Ipvs, &detection), shared.apis(), &web());
    let mut now = Instant::now();
    sync(&mut proxier, now);
    proxier.restart(&config(Mode::Iptables, &detection));
    for _ in 0..3 {
        shared
            .rules
            .fake()
            .fail_next(kernlink_iptables_restore::Error::custom("write", "refused"));
        proxier.resync();
        let synced = proxier.sync(now).unwrap();
        assert!(!synced.is_success());
        assert_eq!(servers(&shared).len(), 2);
        now += Duration::from_secs(3);
    }
    run(&mut proxier, now + Duration::from_secs(300), 20);
    assert!(!shared.has_ipvs_link());
}

#[test]
fn foreign_virtual_servers_and_a_set_that_a_foreign_rule_names_stay() {
    let (shared, mut proxier, now) = changed();
    let foreign = VirtualServerKey::tcp("198.51.100.1".parse::<IpAddr>().unwrap(), 80);
    let server = kernlink_ipvs::VirtualServer::new(foreign, kernlink_ipvs::Scheduler::RR);
    let added = shared
        .ipvs
        .clone()
        .execute(&[kernlink_ipvs::Operation::AddVirtualServer(server)]);
    assert_eq!(added, [Ok(())]);
    let rule = "-m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT";
    let edit = kernlink_iptables_restore::Edit::append("FOREIGN".parse().unwrap(), rule.parse().unwrap());
    let restore = kernlink_iptables_restore::Restore::new(Family::Ipv4).with(Table::Filter, edit);
    shared.rules.clone().restore(&restore).unwrap();
    shared.ipvs.connect(&key(80), &real(1), 0);
    run(&mut proxier, now, 20);
    assert!(!shared.has_ipvs_link());
    assert_eq!(servers(&shared), BTreeSet::from([foreign]));
    let sets = proxier.ipvs().sets.headers().unwrap();
    let sets: Vec<String> = sets.iter().map(|header| header.set.name.to_string()).collect();
    assert_eq!(sets, ["KUBE-CLUSTER-IP"]);
}

#[test]
fn without_the_link_of_ipvs_mode_iptables_mode_opens_no_ipvs() {
    let shared = SharedKernel::new();
    let Config::Iptables(config) = config(Mode::Iptables, &detection(true)) else {
        panic!("another mode");
    };
    // Without the kernel APIs of IPVS mode: to open them here would fail or read this host.
    let retiring =
        ipvs_mode::retire::Retiring::new(ipvs_mode::Config::new(""), Box::new(shared.links.clone()));
    let mut proxier = any_proxier::proxier::<IptablesMode>(
        &config.config,
        shared.iptables(),
        vec![Box::new(retiring.unwrap())],
    );
    for change in web() {
        proxier.change(change);
    }
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        proxier.change(Change::synced(kind));
    }
    let synced = proxier.sync(Instant::now());
    assert!(synced.is_success(), "{synced}");
    assert!(
        synced
            .events
            .iter()
            .all(|event| !event.to_string().contains("IPVS")),
        "{:?}",
        synced.events
    );
    assert_eq!(synced.next, None);
}
