//! The rules of an earlier process, or of IPVS mode, serve and restrict a Service until its own rules are written, and what prevents their
//! removal prevents nothing else.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/any_proxier.rs"]
mod any_proxier;
#[path = "../../proxier/tests/support/faulty.rs"]
mod faulty;
#[path = "../../proxier/tests/support/iptables_node.rs"]
mod iptables_node;
#[path = "../../proxier/tests/support/refusing_tables.rs"]
mod refusing_tables;
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

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kernlink_agent::modes::{Config, Mode};
use kernlink_dummylink::{DummyLinks, HostAddress, Link, Selection};
use kernlink_iptables_restore::{Fake, Table};
use kernlink_ipvs::Ipvs;
use kernlink_proxier::host::{self, LocalDetection};
use kernlink_proxier::iptables_mode::{self, Proxier};
use kernlink_proxier::ipvs_mode;
use kernlink_services::{
    Change, Family, Ingress, Kind, ObjectChange, ObjectName, Port, Protocol, Service, ServiceType, SourceId,
};

use crate::any_proxier::Did;
use crate::faulty::Faults;
use crate::iptables_node::{SOURCE, filled, proxier_on, saved, service, slice};
use crate::refusing_tables::faulty_kernel;
use crate::senders::slices;
use crate::shared_kernel::{Kernel, Proxier as AnyModeProxier, SharedKernel, observed};
use crate::tracer::{End, Packet, Tracer};

fn config(mode: Mode) -> Config {
    let detection = LocalDetection::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    let mut config = Config::new(mode, "node-a");
    match &mut config {
        Config::Ipvs(config) => {
            config.conntrack.max_per_core = 0;
            config.local_detection = detection;
        }
        Config::Iptables(iptables) => {
            iptables.config.conntrack.max_per_core = 0;
            iptables.config.local_detection = detection;
        }
        Config::Nftables(_) | Config::Userspace(_) => {
            unreachable!("the tests of this file are about the other modes")
        }
    }
    config
}

/// A load balancer that admits one network.
fn restricted_service() -> Service {
    let mut service = Service::new(ObjectName::new("ns", "web"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80).with_node_port(30_080));
    service.service_type = ServiceType::LoadBalancer;
    service.load_balancer_source_ranges = vec!["203.0.113.0/24".into()];
    service.ingress = vec![Ingress {
        ip: "198.51.100.100".into(),
        mode: Default::default(),
    }];
    service
}

fn restricted() -> Vec<Change> {
    let service = restricted_service();
    let mut changes = slices(&service, &[1, 3], true);
    changes.push(Change::Services(ObjectChange::Upsert(service)));
    changes.extend([Kind::Service, Kind::EndpointSlice, Kind::Node].map(Change::synced));
    changes
}

/// Where packets of other hosts end: to the load balancer from an admitted host and from another one, to the cluster IP, and to the node
/// port.
fn ends(shared: &SharedKernel) -> [End; 4] {
    let tracer = Tracer::of_kernel(&mut shared.ipvs());
    [
        ("203.0.113.9", "198.51.100.100:80"),
        ("8.8.8.8", "198.51.100.100:80"),
        ("8.8.8.8", "10.96.0.1:80"),
        ("8.8.8.8", "192.0.2.1:30080"),
    ]
    .map(|(source, destination)| {
        let (source, destination): (IpAddr, SocketAddr) =
            (source.parse().unwrap(), destination.parse().unwrap());
        tracer.trace(Packet::new(Some("eth0"), source, destination, Protocol::Tcp))
    })
}

#[test]
fn rules_of_ipvs_mode_stay_until_every_service_is_written() {
    let shared = SharedKernel::new();
    let faults = Faults::default();
    let kernel = faulty_iptables(&shared, &faults);
    let mut proxier = AnyModeProxier::new(&config(Mode::Ipvs), kernel);
    for change in restricted() {
        proxier.change(SourceId(0), change);
    }
    let mut now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    let before = ends(&shared);
    assert_eq!(before[1], End::Dropped);
    // Chains of the Service are refused, everything else succeeds.
    faults.refuse(":KUBE-SVC-");
    proxier.restart(&config(Mode::Iptables));
    for round in 0..5 {
        let synced = proxier.sync(now).unwrap();
        assert!(!synced.is_success());
        assert_eq!(ends(&shared), before, "round {round}: {synced}\n{}", synced.plan);
        now += Duration::from_secs(3);
        proxier.resync();
    }
    faults.end();
    now += Duration::from_secs(300);
    for _ in 0..20 {
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success(), "{synced}");
        let ends = ends(&shared);
        assert!(matches!(ends[0], End::Served(_)), "{ends:?}");
        assert_eq!(ends[1], before[1], "{}", synced.plan);
        match synced.next {
            Some(next) => now = next.max(now),
            None => break,
        }
    }
    assert!(!shared.has_ipvs_link());
}

/// Links that cannot be read from time to time.
struct Links {
    inner: Box<dyn DummyLinks>,
    is_unreadable: Arc<AtomicBool>,
}

impl DummyLinks for Links {
    fn execute(
        &mut self,
        operations: &[kernlink_dummylink::Operation],
    ) -> Vec<Result<(), kernlink_dummylink::Error>> {
        self.inner.execute(operations)
    }

    fn links(&mut self) -> Result<Vec<Link>, kernlink_dummylink::Error> {
        self.inner.links()
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, kernlink_dummylink::Error> {
        if self.is_unreadable.load(Ordering::Relaxed) {
            return Err(kernlink_dummylink::Error::OutcomeMissing);
        }
        self.inner.list(selection)
    }
}

#[test]
fn iptables_mode_works_while_what_ipvs_mode_left_cannot_be_read() {
    let shared = SharedKernel::new();
    let is_unreadable = Arc::new(AtomicBool::new(false));
    let (of_mode, of_links) = (shared.clone(), Arc::clone(&is_unreadable));
    let kernel = shared.apis().with_ipvs(move || {
        let mut ipvs = of_mode.ipvs();
        ipvs.links = Box::new(Links {
            inner: ipvs.links,
            is_unreadable: Arc::clone(&of_links),
        });
        ipvs
    });
    let mut proxier = AnyModeProxier::new(&config(Mode::Ipvs), kernel);
    for change in restricted() {
        proxier.change(SourceId(0), change);
    }
    let mut now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    proxier.restart(&config(Mode::Iptables));
    let synced = proxier.sync(now).unwrap();
    is_unreadable.store(true, Ordering::Relaxed);
    // IPVS is read again before the removal begins.
    now = synced.next.unwrap();
    let mut service = restricted_service();
    service.external_ips = vec!["192.0.2.80".into()];
    proxier.change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success() && !synced.plan.is_empty(), "{synced}");
    assert!(shared.has_ipvs_link());
    // The next listing continues with the removal.
    is_unreadable.store(false, Ordering::Relaxed);
    proxier.resync();
    for _ in 0..20 {
        let Some(next) = proxier.sync(now).unwrap().next else {
            break;
        };
        now = next.max(now);
    }
    assert!(!shared.has_ipvs_link());
}

#[test]
fn a_table_that_cannot_be_printed_may_have_chains_of_services() {
    let mut tables = Fake::new();
    assert!(!iptables_mode::has_service_chains(&mut tables).unwrap());
    tables.set_unreadable(Family::Ipv6, Table::Nat);
    iptables_mode::has_service_chains(&mut tables).unwrap_err();
}

/// Services whose port has another name than those of [`filled`].
fn renamed(services: impl IntoIterator<Item = u16>) -> Vec<Change> {
    let mut changes = Vec::new();
    for number in services {
        let (mut service, mut slice) = (service(number), slice(number, &[1, 2]));
        service.ports[0].name = "http".into();
        slice.ports[0].name = Some("http".into());
        changes.push(Change::Services(ObjectChange::Upsert(service)));
        changes.push(Change::EndpointSlices(ObjectChange::Upsert(slice)));
    }
    changes.extend([Kind::Service, Kind::EndpointSlice, Kind::Node].map(Change::synced));
    changes
}

fn text(proxier: &mut Proxier) -> String {
    saved(proxier, Family::Ipv4).to_string()
}

/// The labels of the service ports in `KUBE-SERVICES`.
fn labels(text: &str) -> Vec<String> {
    let rules = text.lines().filter(|line| line.starts_with("-A KUBE-SERVICES"));
    let mut labels: Vec<String> = rules
        .filter_map(|line| line.split_once("--comment \"ns/")?.1.split(' ').next())
        .map(str::to_owned)
        .collect();
    labels.sort();
    labels
}

#[test]
fn the_rules_of_a_renamed_port_stay_while_their_replacement_is_refused() {
    let mut before = filled(4);
    let (kernel, behaviour) = faulty_kernel(&text(&mut before));
    behaviour.lock().unwrap().refused = vec!["10.244.1.1".to_owned()];
    let mut proxier = proxier_on(kernel);
    // The last one was deleted.
    for change in renamed(0..3) {
        proxier.change(SOURCE, change);
    }
    let synced = proxier.sync(Instant::now()).unwrap();
    let now = text(&mut proxier);
    assert_eq!(labels(&now), ["s0:http", "s1:web", "s2:http"], "{synced}\n{now}");
    assert!(now.contains("ns/s1:web -> 10.244.1.1:8080"), "{now}");
    behaviour.lock().unwrap().refused.clear();
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let now = text(&mut proxier);
    assert_eq!(labels(&now), ["s0:http", "s1:http", "s2:http"]);
    assert!(!now.contains("web") && !now.contains("10.244.3."), "{now}");
}

#[test]
fn chains_of_withdrawn_services_are_removed_after_the_last_refused_service_is_written() {
    let mut before = filled(3);
    let (kernel, behaviour) = faulty_kernel(&text(&mut before));
    let refused = ["10.244.1.1", "10.244.2.1"].map(str::to_owned);
    behaviour.lock().unwrap().refused = refused.to_vec();
    let mut proxier = proxier_on(kernel);
    for change in renamed(0..3) {
        proxier.change(SOURCE, change);
    }
    let mut synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 2, "{synced}");
    // One of them succeeds at its retry, the other one is refused again.
    while synced.waiting == 2 {
        behaviour.lock().unwrap().refused = vec![refused[1].clone()];
        synced = proxier.sync(synced.next.unwrap()).unwrap();
        let now = text(&mut proxier);
        assert!(now.contains("ns/s0:web -> 10.244.0.1:8080"), "{synced}\n{now}");
        assert!(now.contains("ns/s2:web -> 10.244.2.1:8080"), "{synced}\n{now}");
    }
    behaviour.lock().unwrap().refused.clear();
    synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert!(!text(&mut proxier).contains("web"), "{}", text(&mut proxier));
}

/// The kernel of both modes whose tables have faults in iptables mode.
fn faulty_iptables(shared: &SharedKernel, faults: &Faults) -> Kernel {
    let (of_mode, faults) = (shared.clone(), faults.clone());
    shared.apis().with_iptables(move || {
        let mut iptables = of_mode.iptables();
        iptables.rules = faults.tables(iptables.rules);
        iptables
    })
}

/// The kernel of both modes whose tables have faults in both modes.
fn faulty_tables(shared: &SharedKernel, faults: &Faults) -> Kernel {
    let (of_mode, of_faults) = (shared.clone(), faults.clone());
    faulty_iptables(shared, faults).with_ipvs(move || {
        let mut ipvs = of_mode.ipvs();
        ipvs.rules = of_faults.tables(ipvs.rules);
        ipvs
    })
}

const READ: &str = "read tables";

/// A proxier of iptables mode with the restricted Services, on a kernel with faults.
fn restricted_proxier() -> (SharedKernel, Faults, AnyModeProxier) {
    let shared = SharedKernel::new();
    let faults = Faults::default();
    let kernel = faulty_tables(&shared, &faults);
    let mut proxier = AnyModeProxier::new(&config(Mode::Iptables), kernel);
    for change in restricted() {
        proxier.change(SourceId(0), change);
    }
    (shared, faults, proxier)
}

/// Syncs. After each operation, what source ranges refuse is still refused; `check` looks at where packets end.
fn sync_refused_between_operations(
    shared: &SharedKernel,
    proxier: &mut AnyModeProxier,
    now: Instant,
    check: impl Fn(&[End; 4], &str) + 'static,
) -> Did {
    let kernel = shared.clone();
    let count = Rc::new(Cell::new(0));
    let of_observer = Rc::clone(&count);
    let observe = move |operation: &str| {
        let end = ends(&kernel);
        check(&end, operation);
        assert!(
            !matches!(end[1], End::Served(_) | End::Node),
            "{end:?} after {operation}"
        );
        of_observer.set(of_observer.get() + 1);
    };
    let synced = observed(observe, || proxier.sync(now).unwrap());
    assert!(count.get() > 0, "{synced}");
    synced
}

#[test]
fn rules_of_iptables_mode_in_tables_that_cannot_be_read_are_removed_when_these_can_be_read() {
    for is_listed in [false, true] {
        let (shared, faults, mut proxier) = restricted_proxier();
        let mut now = Instant::now();
        assert!(proxier.sync(now).unwrap().is_success());
        let is_left = || {
            let rules = shared.rules.fake().ruleset(Family::Ipv4).to_string();
            rules.contains("KUBE-SVC-")
        };
        assert!(is_left());
        let before = ends(&shared);
        assert!(matches!(before[0], End::Served(_)), "{before:?}");
        faults.refuse(READ);
        proxier.restart(&config(Mode::Ipvs));
        // Nothing that was refused is admitted between two operations.
        let first = sync_refused_between_operations(&shared, &mut proxier, now, |_, _| {});
        // The Services are served, and the event is reported once.
        let mut events: Vec<String> = first.events.iter().map(ToString::to_string).collect();
        for _ in 0..3 {
            now += Duration::from_secs(30);
            proxier.resync();
            let synced = proxier.sync(now).unwrap();
            assert!(synced.is_success(), "{synced}");
            events.extend(synced.events.iter().map(ToString::to_string));
        }
        let count =
            |events: &[String], text: &str| events.iter().filter(|event| event.contains(text)).count();
        assert_eq!(count(&events, "IPv4 tables cannot be read"), 1, "{events:?}");
        let end = ends(&shared);
        assert!(matches!(end[0], End::Served(_)), "{end:?}");
        assert!(is_left());
        faults.end();
        let events = if is_listed {
            proxier.resync();
            let synced = proxier.sync(now).unwrap();
            synced.events.iter().map(ToString::to_string).collect()
        } else {
            // It is read again after a minute, and removed by the sync that follows at once.
            now += Duration::from_secs(60);
            for _ in 0..2 {
                let synced = proxier.sync(now).unwrap();
                assert!(synced.is_success(), "{synced}");
                assert_eq!(synced.next, Some(now));
                let listed: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
                assert_eq!(count(&listed, "another program"), 0, "{listed:?}");
            }
            assert!(!is_left());
            proxier.resync();
            let synced = proxier.sync(now).unwrap();
            synced.events.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            count(&events, "solved, or no longer needed: IPv4 tables cannot be read"),
            1,
            "{events:?}"
        );
        assert!(!is_left());
        let end = ends(&shared);
        assert!(matches!(end[0], End::Served(_)), "{end:?}");
        assert!(!matches!(end[1], End::Served(_) | End::Node), "{end:?}");
    }
}

#[test]
fn rules_of_iptables_mode_that_were_found_stay_while_tables_cannot_be_read_and_nothing_else_serves() {
    let (shared, faults, mut proxier) = restricted_proxier();
    let now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    let before = ends(&shared);
    // The tables can be read and not written: iptables mode serves.
    faults.refuse("iptables-restore");
    proxier.restart(&config(Mode::Ipvs));
    assert!(!proxier.sync(now).unwrap().is_success());
    assert_eq!(ends(&shared), before);
    // Then they can be written and not read.
    faults.end();
    faults.refuse(READ);
    proxier.resync();
    let now = now + Duration::from_secs(300);
    sync_refused_between_operations(&shared, &mut proxier, now, |end, when| {
        assert!(matches!(end[0], End::Served(_)), "{end:?} {when}");
    });
}

/// `default/kubernetes`, and three Services in namespace `ns`, each with a cluster IP and two endpoints.
fn cluster() -> Vec<Change> {
    let names = [("default", "kubernetes"), ("ns", "a"), ("ns", "b"), ("ns", "c")];
    let mut changes = Vec::new();
    for ((namespace, name), last) in names.into_iter().zip(1..) {
        let service = Service::new(ObjectName::new(namespace, name))
            .with_cluster_ip(format!("10.96.0.{last}"))
            .with_port(Port::new("http", 80));
        changes.extend(slices(&service, &[1, 3], true));
        changes.push(Change::Services(ObjectChange::Upsert(service)));
    }
    changes.extend([Kind::Service, Kind::EndpointSlice, Kind::Node].map(Change::synced));
    changes
}

/// A client outside reaches an endpoint at each cluster IP of [`cluster`].
fn assert_cluster_is_served(proxier: &mut ipvs_mode::Proxier, when: &str) {
    let tracer = Tracer::of_kernel(proxier.kernel_mut());
    for last in 1..=4 {
        let address: IpAddr = [10, 96, 0, last].into();
        let source = "8.8.8.8".parse().unwrap();
        let to = SocketAddr::new(address, 80);
        let end = tracer.trace(Packet::new(Some("eth0"), source, to, Protocol::Tcp));
        assert!(matches!(end, End::Served(_)), "{address} {when}: {end}");
    }
}

/// Whether table `nat` has chains of service ports of iptables mode.
fn has_chains_of_iptables_mode(proxier: &mut ipvs_mode::Proxier) -> bool {
    let request = kernlink_iptables_restore::Save::table(Family::Ipv4, Table::Nat);
    let rules = proxier.kernel_mut().rules.save(&request).unwrap();
    rules.to_string().contains("KUBE-SVC-")
}

/// A process of IPVS mode, with the default first Services, on a node that iptables mode serves.
fn ipvs_after_iptables() -> (Faults, ipvs_mode::Proxier) {
    let shared = SharedKernel::new();
    let mut before = AnyModeProxier::new(&config(Mode::Iptables), shared.apis());
    for change in cluster() {
        before.change(SourceId(0), change);
    }
    assert!(before.sync(Instant::now()).unwrap().is_success());
    let mut kernel = ipvs_mode::Kernel::fake();
    kernel.ipvs = Box::new(shared.ipvs.clone());
    kernel.rules = Box::new(shared.rules.clone());
    kernel.links = Box::new(shared.links.clone());
    let (kernel, faults) = Faults::of_kernel(kernel);
    let Config::Ipvs(config) = config(Mode::Ipvs) else {
        panic!("another mode");
    };
    let mut proxier = ipvs_mode::Proxier::new(&config, kernel).unwrap();
    let retiring = iptables_mode::retire::Retiring::new(Box::new(shared.rules.clone()));
    proxier.set_retiring(vec![Box::new(retiring)]);
    for change in cluster() {
        proxier.change(SourceId(0), change);
    }
    (faults, proxier)
}

#[test]
fn a_new_process_in_ipvs_mode_keeps_all_rules_of_iptables_mode_although_some_services_are_first() {
    let (faults, mut proxier) = ipvs_after_iptables();
    // One of the other Services cannot be programmed.
    faults.refuse("-A -t 10.96.0.3:80");
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.counts().failed == 1, "{synced}");
    assert_cluster_is_served(&mut proxier, "after the first sync");
    faults.allow("-A -t 10.96.0.3:80");
    let mut next = synced.next;
    for _ in 0..5 {
        let Some(at) = next else { break };
        next = proxier.sync(at).unwrap().next;
        assert_cluster_is_served(&mut proxier, "before the retry");
    }
    assert_eq!(next, None);
    assert_cluster_is_served(&mut proxier, "after the retry");
    assert!(!has_chains_of_iptables_mode(&mut proxier));
}

#[test]
fn a_service_that_waits_for_its_retry_keeps_the_rules_of_iptables_mode_when_other_changes_write_rules() {
    for refused in [
        "-A -t 10.96.0.3:80",
        "-a -t 10.96.0.3:80",
        "address replace 10.96.0.3/32",
    ] {
        let (faults, mut proxier) = ipvs_after_iptables();
        faults.refuse(refused);
        let now = Instant::now();
        let synced = proxier.sync(now).unwrap();
        assert!(synced.counts().failed > 0, "{synced}");
        // A Service with other rules is added and removed before the retry is due.
        let restricted = restricted_service();
        for change in [
            ObjectChange::Upsert(restricted.clone().with_cluster_ip("10.96.0.9")),
            ObjectChange::Delete(restricted.name.clone()),
        ] {
            proxier.change(SourceId(0), Change::Services(change));
            let synced = proxier.sync(now).unwrap();
            assert!(!synced.plan.is_empty());
            assert_cluster_is_served(&mut proxier, &format!("{refused}: after\n{}", synced.plan));
        }
        faults.allow(refused);
        let mut next = synced.next;
        for _ in 0..20 {
            let Some(at) = next else { break };
            next = proxier.sync(at).unwrap().next;
        }
        assert_cluster_is_served(&mut proxier, "after the retry");
        assert!(!has_chains_of_iptables_mode(&mut proxier), "{refused}");
    }
}

/// The cluster IPs of [`cluster`] whose packets a rule of iptables mode translates.
fn translated_by_iptables_mode(proxier: &mut ipvs_mode::Proxier) -> Vec<u8> {
    let request = kernlink_iptables_restore::Save::table(Family::Ipv4, Table::Nat);
    let rules = proxier.kernel_mut().rules.save(&request).unwrap().to_string();
    let of = |last: &u8| {
        let begins = format!("-A KUBE-SERVICES -d 10.96.0.{last}/32 ");
        rules
            .lines()
            .any(|line| line.starts_with(&begins) && line.contains("-j KUBE-SVC-"))
    };
    (1..=4).filter(of).collect()
}

#[test]
fn a_service_that_cannot_be_programmed_in_ipvs_mode_keeps_only_its_own_rules_of_iptables_mode() {
    for refused in [
        "-A -t 10.96.0.3:80",
        "-a -t 10.96.0.3:80",
        "address replace 10.96.0.3/32",
    ] {
        let (faults, mut proxier) = ipvs_after_iptables();
        faults.refuse(refused);
        let now = Instant::now();
        let synced = proxier.sync(now).unwrap();
        assert_cluster_is_served(&mut proxier, "after the first sync");
        // The next sync is due at once.
        assert_eq!(synced.next, Some(now), "{refused}: {synced}");
        proxier.sync(now).unwrap();
        assert_eq!(translated_by_iptables_mode(&mut proxier), [3], "{refused}");
        assert_cluster_is_served(&mut proxier, "after the second sync");
        let saved = |proxier: &mut ipvs_mode::Proxier| {
            let request = kernlink_iptables_restore::Save::table(Family::Ipv4, Table::Filter);
            proxier.kernel_mut().rules.save(&request).unwrap().to_string()
        };
        let filter = saved(&mut proxier);
        assert!(!filter.contains("KUBE-EXTERNAL-SERVICES"), "{filter}");
        // Nothing more is due before the retry, a listing finds nothing to change, and so does another process.
        let synced = proxier.sync(now).unwrap();
        assert!(
            synced.plan.is_empty() && synced.next > Some(now),
            "{}",
            synced.plan
        );
        proxier.resync();
        let synced = proxier.sync(now).unwrap();
        assert!(synced.plan.is_empty(), "{refused}: {}", synced.plan);
        assert_eq!(translated_by_iptables_mode(&mut proxier), [3], "{refused}");
        // A deleted Service is not forwarded to its earlier endpoints.
        let name = ObjectName::new("ns", "b");
        proxier.change(SourceId(0), Change::Services(ObjectChange::Delete(name)));
        let mut next = Some(now);
        for _ in 0..5 {
            let Some(at) = next else { break };
            next = proxier.sync(at).unwrap().next;
        }
        assert!(!has_chains_of_iptables_mode(&mut proxier), "{refused}");
        let tracer = Tracer::of_kernel(proxier.kernel_mut());
        let packet = |last: u8| {
            let to = SocketAddr::new([10, 96, 0, last].into(), 80);
            Packet::new(Some("eth0"), "8.8.8.8".parse().unwrap(), to, Protocol::Tcp)
        };
        assert!(!matches!(tracer.trace(packet(3)), End::Served(_)));
        assert!(matches!(tracer.trace(packet(4)), End::Served(_)));
    }
}

/// A process of iptables mode, on a node that IPVS mode serves.
fn iptables_after_ipvs() -> (Faults, SharedKernel, AnyModeProxier) {
    let shared = SharedKernel::new();
    let faults = Faults::default();
    let kernel = faulty_iptables(&shared, &faults);
    let mut before = AnyModeProxier::new(&config(Mode::Ipvs), kernel);
    for change in cluster() {
        before.change(SourceId(0), change);
    }
    // The first Services, and then all others.
    assert!(before.sync(Instant::now()).unwrap().is_partial);
    assert!(before.sync(Instant::now()).unwrap().is_success());
    let mut proxier = AnyModeProxier::new(&config(Mode::Iptables), before.into_kernel());
    for change in cluster() {
        proxier.change(SourceId(0), change);
    }
    (faults, shared, proxier)
}

/// Syncs at each time that a sync asks for, at most so often. Returns the last time and all events.
fn sync_often(proxier: &mut AnyModeProxier, mut now: Instant, most: usize) -> (Instant, Vec<String>) {
    let mut events = Vec::new();
    for _ in 0..most {
        let synced = proxier.sync(now).unwrap();
        events.extend(synced.events.iter().map(ToString::to_string));
        let Some(next) = synced.next else { break };
        now = next.max(now);
    }
    (now, events)
}

/// The last bytes of the cluster IPs that have a virtual server.
fn virtual_servers(shared: &SharedKernel) -> Vec<u8> {
    let servers = shared.ipvs.clone().list_virtual_servers().unwrap();
    let last = |key: &kernlink_ipvs::VirtualServerKey| match key.address() {
        Some(IpAddr::V4(address)) => address.octets()[3],
        _ => 0,
    };
    let mut servers: Vec<u8> = servers.iter().map(|server| last(&server.server.key)).collect();
    servers.sort_unstable();
    servers
}

fn end_at(proxier: &mut AnyModeProxier, last: u8) -> End {
    let tracer = Tracer::of_kernel(&mut proxier.ipvs());
    let to = SocketAddr::new([10, 96, 0, last].into(), 80);
    tracer.trace(Packet::new(
        Some("eth0"),
        "8.8.8.8".parse().unwrap(),
        to,
        Protocol::Tcp,
    ))
}

#[test]
fn a_service_that_cannot_be_written_in_iptables_mode_keeps_only_its_own_virtual_server() {
    let (faults, shared, mut proxier) = iptables_after_ipvs();
    faults.refuse("ns/b:http");
    let (mut now, _) = sync_often(&mut proxier, Instant::now(), 12);
    assert_eq!(virtual_servers(&shared), [3]);
    for last in 1..=4 {
        let end = end_at(&mut proxier, last);
        assert!(matches!(end, End::Served(_)), "{last}: {end}");
    }
    // The event says what is still served by IPVS.
    proxier.resync();
    let (then, events) = sync_often(&mut proxier, now, 3);
    now = then;
    let is_named =
        |text: &String| text.contains("IPVS mode still serves ns/b, which cannot be programmed yet");
    assert!(events.iter().any(is_named), "{events:?}");
    // A deleted Service is not forwarded to its earlier endpoints.
    let name = ObjectName::new("ns", "b");
    proxier.change(SourceId(0), Change::Services(ObjectChange::Delete(name)));
    sync_often(&mut proxier, now, 12);
    assert!(!matches!(end_at(&mut proxier, 3), End::Served(_)));
    assert!(virtual_servers(&shared).is_empty());
    assert!(!shared.has_ipvs_link());
}

#[test]
fn a_service_that_is_written_at_last_leaves_nothing_of_ipvs_mode() {
    let (faults, shared, mut proxier) = iptables_after_ipvs();
    faults.refuse("ns/b:http");
    let (now, _) = sync_often(&mut proxier, Instant::now(), 12);
    faults.end();
    sync_often(&mut proxier, now + Duration::from_secs(300), 20);
    assert!(!shared.has_ipvs_link());
    let end = end_at(&mut proxier, 3);
    assert!(matches!(end, End::Served(_)), "{end}");
}

#[test]
fn source_ranges_of_a_service_that_cannot_be_written_end_its_virtual_server() {
    let (faults, shared, mut proxier) = iptables_after_ipvs();
    faults.refuse("ns/b:http");
    let mut service = Service::new(ObjectName::new("ns", "b"))
        .with_cluster_ip("10.96.0.3")
        .with_port(Port::new("http", 80));
    service.service_type = ServiceType::LoadBalancer;
    service.ingress = vec![Ingress {
        ip: "198.51.100.100".into(),
        mode: Default::default(),
    }];
    // IPVS serves the load balancer to everybody.
    let mut before = AnyModeProxier::new(&config(Mode::Ipvs), proxier.into_kernel());
    for change in cluster() {
        before.change(SourceId(0), change);
    }
    before.change(
        SourceId(0),
        Change::Services(ObjectChange::Upsert(service.clone())),
    );
    faults.end();
    assert!(before.sync(Instant::now()).unwrap().is_success());
    assert_eq!(virtual_servers(&shared), [1, 2, 3, 4, 100]);
    faults.refuse("ns/b:http");
    proxier = AnyModeProxier::new(&config(Mode::Iptables), before.into_kernel());
    for change in cluster() {
        proxier.change(SourceId(0), change);
    }
    proxier.change(
        SourceId(0),
        Change::Services(ObjectChange::Upsert(service.clone())),
    );
    let (now, _) = sync_often(&mut proxier, Instant::now(), 12);
    assert_eq!(virtual_servers(&shared), [3, 100]);
    // From now on it admits one network only.
    service.load_balancer_source_ranges = vec!["203.0.113.0/24".into()];
    proxier.change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
    sync_often(&mut proxier, now, 12);
    assert_eq!(virtual_servers(&shared), [3]);
}

/// Sysctls that can be read, and not written.
struct ReadOnly(host::FakeSysctls);

impl host::Sysctls for ReadOnly {
    fn execute(&mut self, sysctls: &[host::Sysctl]) -> Vec<Result<(), host::SysctlError>> {
        let refuse = |sysctl: &host::Sysctl| {
            Err(host::SysctlError {
                verb: "write",
                name: sysctl.name.clone(),
                cause: host::SysctlErrorCause::File(kernlink_netlink::Errno::EACCES),
            })
        };
        sysctls.iter().map(refuse).collect()
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, host::SysctlError> {
        self.0.read(name)
    }
}

#[test]
fn a_sysctl_that_cannot_be_written_does_not_keep_what_ipvs_mode_left() {
    let (_, shared, proxier) = iptables_after_ipvs();
    let of_mode = shared.clone();
    let kernel = proxier.into_kernel().with_iptables(move || {
        let mut iptables = of_mode.iptables();
        iptables.sysctls = Box::new(ReadOnly(host::FakeSysctls::default()));
        iptables
    });
    let mut proxier = AnyModeProxier::new(&config(Mode::Iptables), kernel);
    for change in cluster() {
        proxier.change(SourceId(0), change);
    }
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.counts().failed > 0, "{synced}");
    sync_often(&mut proxier, now, 20);
    assert!(!shared.has_ipvs_link());
    for last in 1..=4 {
        let end = end_at(&mut proxier, last);
        assert!(matches!(end, End::Served(_)), "{last}: {end}");
    }
}
