//! A proxier on a thread of its own, on the in-memory kernel.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use kernlink_ipvs::Weight;
use kernlink_proxier::ipvs_mode::{Config, IpvsMode, Kernel, Proxier};
use kernlink_proxier::runner::{Notice, Runner};
use kernlink_proxier::schedule::{Intervals, Schedule};
use kernlink_proxier::services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName, Port, Service,
    SourceId,
};

const SOURCE: SourceId = SourceId(0);
/// Nothing in these tests takes long; a test that waits longer has failed.
const LIMIT: Duration = Duration::from_secs(300);

/// No sync without a reason, and none delayed.
const INTERVALS: Intervals = Intervals {
    min: Duration::ZERO,
    max: Duration::ZERO,
};

fn start() -> (Runner<IpvsMode>, Receiver<Notice<IpvsMode>>) {
    let proxier = Proxier::new(&Config::new("node-a"), Kernel::fake()).unwrap();
    let (sender, notices) = mpsc::channel();
    let runner = Runner::start(proxier, Schedule::new(INTERVALS), move |notice| {
        let _ = sender.send(notice);
    });
    (runner.unwrap(), notices)
}

fn service() -> Change {
    let service = Service::new(ObjectName::new("shop", "web"));
    let service = service
        .with_cluster_ip("10.96.12.80")
        .with_port(Port::new("http", 80));
    Change::Services(ObjectChange::Upsert(service))
}

fn slice(endpoints: u8) -> Change {
    let slice = EndpointSlice::new(ObjectName::new("shop", "web-4n8dz"), "web", Family::Ipv4);
    let slice = slice.with_port(EndpointPort::new("http", 8080));
    let endpoints = (1..=endpoints).map(|last| Endpoint::new([10, 244, 1, last].into()));
    Change::EndpointSlices(ObjectChange::Upsert(
        endpoints.fold(slice, EndpointSlice::with_endpoint),
    ))
}

fn deliver(runner: &Runner<IpvsMode>) {
    for change in [
        service(),
        Change::Services(ObjectChange::Synced),
        slice(1),
        Change::EndpointSlices(ObjectChange::Synced),
    ] {
        runner.change(SOURCE, change);
    }
}

/// Waits for a sync with steps; syncs without any may come between.
fn synced(notices: &Receiver<Notice<IpvsMode>>) -> usize {
    loop {
        match notices.recv_timeout(LIMIT).unwrap() {
            Notice::Synced(synced) if !synced.plan.is_empty() => {
                assert!(synced.is_success(), "{synced}");
                return synced.plan.len();
            }
            Notice::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

#[test]
fn a_new_configuration_changes_the_intervals() {
    let (runner, notices) = start();
    deliver(&runner);
    synced(&notices);
    let mut config = Config::new("node-a");
    config.sync_period = Duration::from_millis(10);
    config.min_sync_period = Duration::ZERO;
    runner.set_config(config);
    // The first one is for the configuration, all others are due at the new interval.
    for _ in 0..4 {
        notices.recv_timeout(LIMIT).unwrap();
    }
}

#[test]
fn the_first_sync_waits_for_all_sources_and_changes_follow() {
    let (runner, notices) = start();
    deliver(&runner);
    assert!(synced(&notices) > 20);
    runner.change(SOURCE, slice(2));
    // The real server, and its entry for hairpin traffic if it is on this node, which it is not.
    assert_eq!(synced(&notices), 1);
    let mut proxier = runner.stop().unwrap();
    let servers = proxier.kernel_mut().ipvs.list_all().unwrap();
    assert_eq!(
        servers
            .iter()
            .map(|(_, real_servers)| real_servers.len())
            .sum::<usize>(),
        2
    );
}

#[test]
fn the_status_counts_changes_when_they_are_delivered_and_syncs_when_they_end() {
    let (runner, notices) = start();
    runner.change(SOURCE, service());
    let status = runner.status();
    assert_eq!((status.changes[&Kind::Service].total, status.syncs), (1, 0));
    assert!(status.pending_since().is_some() && status.last_success().is_none());
    deliver(&runner);
    synced(&notices);
    let status = runner.status();
    assert_eq!(status.changes[&Kind::Service].total, 2);
    assert_eq!(status.changes[&Kind::EndpointSlice].total, 1);
    assert!(status.last_success().is_some() && status.pending_since().is_none());
    assert_eq!((status.syncs, status.services), (1, 1));
    assert_eq!(status.totals.family(Family::Ipv4).real_servers, 1);
    assert!(status.last_sync.unwrap().counts.done > 20);
    assert_eq!(runner.health_check(Family::Ipv4, 32_001), None);
}

#[test]
fn the_rest_follows_the_first_services_at_once_and_the_node_is_ready_after_it() {
    let proxier = Proxier::new(&Config::new("node-a"), Kernel::fake()).unwrap();
    let (sender, notices) = mpsc::channel();
    let (proceed, may_proceed) = mpsc::channel();
    // The next sync of this schedule would be too late for the test.
    let schedule = Schedule::new(Intervals {
        min: LIMIT * 10,
        max: Duration::ZERO,
    });
    let runner = Runner::start(proxier, schedule, move |notice| {
        let _ = sender.send(notice);
        let _ = may_proceed.recv();
    });
    let runner = runner.unwrap();
    let first = Service::new(ObjectName::new("kube-system", "kube-dns"))
        .with_cluster_ip("10.96.0.10")
        .with_port(Port::new("http", 53));
    let mut check = Service::new(ObjectName::new("shop", "checked"))
        .with_cluster_ip("10.96.12.81")
        .with_port(Port::new("http", 80));
    check.service_type = kernlink_proxier::services::ServiceType::LoadBalancer;
    check.external_traffic_policy = kernlink_services::TrafficPolicy::Local;
    check.health_check_node_port = 32_001;
    let services = [first, check].map(|service| Change::Services(ObjectChange::Upsert(service)));
    let lists = [
        service(),
        slice(1),
        Change::Services(ObjectChange::Synced),
        Change::EndpointSlices(ObjectChange::Synced),
    ];
    runner.change_all(SOURCE, services.into_iter().chain(lists).collect());
    let next = || match notices.recv_timeout(LIMIT).unwrap() {
        Notice::Synced(synced) => synced,
        other => panic!("{other:?}"),
    };
    let partial = next();
    assert!(partial.is_partial && partial.report.is_success(), "{partial}");
    let status = runner.status();
    assert!(status.last_success().is_none() && status.pending_since().is_some());
    assert_eq!(status.syncs, 0);
    proceed.send(()).unwrap();
    let rest = next();
    assert!(rest.is_success() && !rest.is_partial, "{rest}");
    let ready = runner.status();
    assert!(ready.last_success().is_some() && ready.pending_since().is_none());
    assert_eq!(ready.syncs, 1);
    let done = partial.counts().done + rest.counts().done;
    assert_eq!(ready.last_sync.unwrap().counts.done, done);
    let done = ready.operations.values().map(|counts| counts.done).sum::<u64>();
    assert_eq!(done, ready.last_sync.unwrap().counts.done as u64);
    // No load balancer sends traffic to a Service that is not programmed yet.
    assert!(partial.health_checks.is_empty());
    assert_eq!(rest.health_checks.len(), 1, "{:?}", rest.health_checks);
    drop(proceed);
}

#[test]
fn the_proxier_can_be_read_between_syncs() {
    let (runner, notices) = start();
    deliver(&runner);
    synced(&notices);
    let services = runner.read(|proxier| proxier.services().services().count());
    assert_eq!(services, Some(1));
}

#[test]
fn what_another_program_removed_is_restored_after_resync() {
    let (runner, notices) = start();
    deliver(&runner);
    synced(&notices);
    let mut proxier = runner.stop().unwrap();
    proxier.kernel_mut().ipvs.flush().unwrap();
    let (sender, notices) = mpsc::channel();
    let notify = move |notice| _ = sender.send(notice);
    proxier.resync();
    // The proxier has synced sources, so the first sync needs no command.
    let runner = Runner::start(proxier, Schedule::new(INTERVALS), notify).unwrap();
    assert_eq!(synced(&notices), 2, "a virtual server and a real server");
    drop(runner);
}

#[test]
fn calls_before_stop_are_applied_to_the_objects() {
    let (runner, _notices) = start();
    runner.change(SOURCE, service());
    let proxier = runner.stop().unwrap();
    assert_eq!(proxier.services().services().count(), 1);
    assert!(!proxier.services().has_synced());
}

#[test]
fn an_invalid_configuration_is_refused() {
    let (runner, notices) = start();
    let mut config = Config::new("node-a");
    config.dummy_link = "kube/ipvs0".to_owned();
    runner.set_config(config);
    let notice = notices.recv_timeout(LIMIT).unwrap();
    assert!(matches!(notice, Notice::InvalidConfig(_)), "{notice:?}");
}

#[test]
fn dropping_the_runner_ends_its_thread() {
    let (runner, notices) = start();
    deliver(&runner);
    synced(&notices);
    drop(runner);
    // The closure of the thread, which holds the sender, is gone.
    while notices.recv_timeout(LIMIT).is_ok() {}
    assert_eq!(notices.try_recv().unwrap_err(), mpsc::TryRecvError::Disconnected);
}

#[test]
fn changes_that_wait_for_a_long_sync_are_merged() {
    let proxier = Proxier::new(&Config::new("node-a"), Kernel::fake()).unwrap();
    let (sender, notices) = mpsc::sync_channel(0);
    let (waits, waiting) = mpsc::channel();
    let runner = Runner::start(proxier, Schedule::new(INTERVALS), move |notice| {
        let _ = waits.send(());
        // The thread waits here, as it does in a long sync, until the test receives.
        let _ = sender.send(notice);
    });
    let runner = runner.unwrap();
    // Dropped before the runner, so that its thread ends if the test fails.
    let notices = notices;
    deliver(&runner);
    waiting.recv_timeout(LIMIT).unwrap();
    let node: Arc<str> = Arc::from("a node");
    for _ in 0..1_000 {
        let slice = EndpointSlice::new(ObjectName::new("shop", "web-4n8dz"), "web", Family::Ipv4);
        let slice = slice.with_port(EndpointPort::new("http", 8080));
        let mut endpoint = Endpoint::new([10, 244, 1, 9].into());
        endpoint.node = Some(Arc::clone(&node));
        let change = Change::EndpointSlices(ObjectChange::Upsert(slice.with_endpoint(endpoint)));
        runner.change(SOURCE, change);
        // The kernel changes too, which does not separate the changes.
        runner.resync();
        runner.recheck(Vec::new());
    }
    // The one that waits, and this one.
    assert_eq!(Arc::strong_count(&node), 2);
    while !matches!(notices.recv_timeout(LIMIT).unwrap(), Notice::Synced(_)) {}
    drop(notices);
    let mut proxier = runner.stop().unwrap();
    proxier.sync(Instant::now()).unwrap();
    let servers = proxier.kernel_mut().ipvs.list_all().unwrap();
    // The one of the first slice may be drained.
    let addresses: Vec<_> = servers
        .iter()
        .flat_map(|(_, real_servers)| real_servers)
        .filter(|server| server.weight != Weight::DRAINING)
        .map(|server| server.key.to_string())
        .collect();
    assert_eq!(addresses, ["10.244.1.9:8080"]);
}

#[test]
fn no_sync_begins_between_changes_that_belong_together() {
    let (runner, notices) = start();
    deliver(&runner);
    synced(&notices);
    // If a sync came between the changes, it would have steps of its own.
    for endpoints in 2..50 {
        let other = Service::new(ObjectName::new("shop", "other"));
        let other = other
            .with_cluster_ip("10.96.12.81")
            .with_port(Port::new("http", 80));
        let together = vec![
            Change::Services(ObjectChange::Upsert(other)),
            slice(endpoints),
            Change::Services(ObjectChange::Delete(ObjectName::new("shop", "other"))),
        ];
        runner.change_all(SOURCE, together);
        // The real server of the new endpoint.
        assert_eq!(synced(&notices), 1, "{endpoints} endpoints");
    }
}
