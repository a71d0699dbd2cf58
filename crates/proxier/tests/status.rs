//! The status of a proxier, on the in-memory kernel.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/node.rs"]
mod node;
#[path = "support/recorded.rs"]
mod recorded;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use kernlink_ipvs::VirtualServer;
use kernlink_services::{
    Change, EndpointSlice, Family, Ingress, Kind, Node, ObjectChange, ObjectName, ServiceType, TrafficPolicy,
};

use crate::faulty::Faults;
use crate::node::{SOURCE, config, endpoints, ipv4_config, kernel, key, service};
use crate::recorded::{Recorded, local_load_balancer};

fn at(seconds: u64) -> Option<SystemTime> {
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

#[test]
fn a_change_is_pending_until_a_sync_has_seen_it() {
    let mut recorded = Recorded::new(config(), kernel());
    recorded.sync();
    assert_eq!(recorded.status().last_success(), at(0));
    recorded.pass(5);
    let changed = recorded.now;
    recorded.upsert(service("web", "10.96.0.1"));
    recorded.pass(1);
    recorded.upsert(service("api", "10.96.0.2"));
    assert_eq!(recorded.status().pending_since(), Some(changed));
    assert_eq!(recorded.status().family(Family::Ipv6).queued, at(6));
    let changes = recorded.status().changes[&Kind::Service];
    assert_eq!((changes.total, changes.pending), (2, 2));
    recorded.recorder.on_started();
    // It arrives while the sync is in progress, so it is not part of it.
    recorded.pass(1);
    let (during, late) = (recorded.now, service("late", "10.96.0.3"));
    let late = Change::Services(ObjectChange::Upsert(late));
    recorded.recorder.on_change(&late, recorded.now, recorded.time);
    let synced = recorded.proxier.sync(recorded.now).unwrap();
    recorded
        .recorder
        .on_synced(&recorded.proxier, &synced, recorded.time);
    assert_eq!(recorded.status().pending_since(), Some(during));
    let changes = recorded.status().changes[&Kind::Service];
    assert_eq!((changes.total, changes.pending), (3, 1));
    recorded.proxier.change(SOURCE, late);
    recorded.sync();
    assert_eq!(recorded.status().pending_since(), None);
    assert_eq!(recorded.status().last_success(), at(7));
    assert_eq!(recorded.status().changes[&Kind::Service].pending, 0);
    assert_eq!((recorded.status().syncs, recorded.status().services), (3, 3));
}

#[test]
fn a_family_whose_sets_are_refused_is_not_synced_and_the_other_one_is() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("create KUBE-6-CLUSTER-IP");
    let mut recorded = Recorded::new(config(), kernel);
    recorded.upsert(service("web", "10.96.0.1"));
    recorded.sync();
    let status = recorded.status();
    assert_eq!(status.family(Family::Ipv4).updated, at(0));
    assert_eq!(status.family(Family::Ipv6).updated, None);
    assert!(status.family(Family::Ipv4).pending.is_none() && status.family(Family::Ipv6).pending.is_some());
    assert_eq!(status.last_success(), None);
    let class = status.waiting.keys().find(|class| class.kind == "set").unwrap();
    assert_eq!((class.family, class.is_shared), (Some(Family::Ipv6), true));
    assert_eq!(status.operations[class].failed, 1);
    // Nothing is tried before the retry is due; the family is still not synced.
    recorded.sync();
    assert_eq!(recorded.status().family(Family::Ipv6).updated, None);
    faults.end();
    recorded.pass(1000);
    recorded.sync();
    assert_eq!(recorded.status().last_success(), at(1000));
    assert!(recorded.status().waiting.is_empty());
}

#[test]
fn a_refused_virtual_server_does_not_make_its_family_unhealthy() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("-A -t 10.96.0.1:80");
    let mut recorded = Recorded::new(ipv4_config(), kernel);
    recorded.upsert(service("web", "10.96.0.1"));
    recorded.upsert(service("api", "10.96.0.2"));
    recorded.sync();
    let status = recorded.status();
    assert_eq!(status.last_success(), at(0));
    assert_eq!(status.family(Family::Ipv6).updated, None, "not served");
    let counts = |kind: &str| {
        let found = status.operations.iter().find(|(class, _)| class.kind == kind);
        found.map(|(_, counts)| (counts.done, counts.failed)).unwrap()
    };
    assert_eq!(counts("virtual_server"), (1, 1));
    assert_eq!(counts("address"), (1, 0));
    let waiting: Vec<_> = status
        .waiting
        .iter()
        .map(|(class, number)| (class.kind, *number))
        .collect();
    assert_eq!(waiting, [("virtual_server", 1)]);
    assert_eq!((status.failing_services, status.conflicts), (1, 0));
    // A third Service has an address of the second one, as an external IP.
    let mut other = service("other", "10.96.0.3");
    other.external_ips = vec!["10.96.0.2".to_owned()];
    recorded.upsert(other);
    faults.end();
    recorded.pass(1000);
    recorded.sync();
    let status = recorded.status();
    assert_eq!((status.failing_services, status.conflicts), (0, 1));
}

#[test]
fn the_numbers_are_those_of_the_kernel() {
    let mut kernel = kernel();
    let foreign = VirtualServer::new(key("198.51.100.7", 80), kernlink_ipvs::Scheduler::RR);
    kernel.ipvs.add_virtual_server(&foreign).unwrap();
    let mut recorded = Recorded::new(config(), kernel);
    recorded.upsert(local_load_balancer());
    recorded.upsert(service("web", "10.96.0.2"));
    endpoints(&mut recorded.proxier, "web", &[1, 2, 200]);
    endpoints(&mut recorded.proxier, "balanced", &[3, 4]);
    recorded.sync();
    let status = recorded.recorder.status().clone();
    let kernel = recorded.proxier.kernel_mut();
    let totals = status.totals.family(Family::Ipv4);
    assert_eq!(
        (status.services, totals.service_ports, totals.endpoints),
        (2, 2, 5)
    );
    assert_eq!(status.totals.foreign_virtual_servers, 1);
    let snapshot = kernel.ipvs.snapshot().unwrap();
    let owned: Vec<_> = snapshot
        .virtual_servers
        .iter()
        .filter(|listed| listed.virtual_server.server.key != foreign.key)
        .collect();
    assert_eq!(totals.virtual_servers, owned.len());
    let real_servers: usize = owned.iter().map(|listed| listed.real_servers.len()).sum();
    assert_eq!(totals.real_servers, real_servers);
    assert_eq!(totals.addresses, node::bound(kernel).len());
    for &set in kernlink_proxier::ipvs_mode::SetId::ALL {
        assert_eq!(
            totals.entries[set.index()],
            node::entries(kernel, set).len(),
            "{set}"
        );
    }
    assert_eq!(status.totals.family(Family::Ipv6), &Default::default());
}

#[test]
fn services_without_local_endpoints_are_counted_once_and_by_policy() {
    let mut recorded = Recorded::new(config(), kernel());
    let mut both = local_load_balancer();
    both.internal_traffic_policy = TrafficPolicy::Local;
    both.ports.push(kernlink_services::Port::new("https", 443));
    recorded.upsert(both);
    let mut internal = service("internal", "10.96.0.2");
    internal.internal_traffic_policy = TrafficPolicy::Local;
    recorded.upsert(internal);
    let numbers = |recorded: &Recorded| {
        let totals = recorded.status().totals.family(Family::Ipv4);
        (totals.no_local_internal, totals.no_local_external)
    };
    recorded.sync();
    // A Service without any endpoints is not counted.
    assert_eq!(numbers(&recorded), (0, 0));
    endpoints(&mut recorded.proxier, "balanced", &[1, 2]);
    endpoints(&mut recorded.proxier, "internal", &[1]);
    recorded.sync();
    assert_eq!(numbers(&recorded), (2, 1));
    endpoints(&mut recorded.proxier, "balanced", &[1, 200]);
    recorded.sync();
    assert_eq!(numbers(&recorded), (1, 0));
    recorded.change(Change::Services(ObjectChange::ReplaceAll(Vec::new())));
    recorded.sync();
    assert_eq!(numbers(&recorded), (0, 0));
}

#[test]
fn the_time_from_a_change_of_endpoints_to_the_kernel_is_measured() {
    let mut recorded = Recorded::new(config(), kernel());
    recorded.upsert(service("web", "10.96.0.1"));
    let slice = |name: &str, trigger: u64| {
        let mut slice = EndpointSlice::new(ObjectName::new("ns", name), "web", Family::Ipv4);
        slice.trigger_time = at(trigger);
        slice
    };
    let upsert = |slice| Change::EndpointSlices(ObjectChange::Upsert(slice));
    let measured = |recorded: &Recorded, family| {
        let programming = &recorded.status().family(family).programming;
        (programming.count(), programming.sum().as_secs())
    };
    recorded.pass(100);
    // Before the start, and two changes of one slice.
    recorded.change(upsert(slice("a", 0)));
    recorded.change(upsert(slice("a", 90)));
    recorded.change(upsert(slice("a", 95)));
    // A deleted slice does not count.
    recorded.change(upsert(slice("b", 99)));
    let delete = ObjectChange::Delete(ObjectName::new("ns", "b"));
    recorded.change(Change::EndpointSlices(delete));
    recorded.pass(1);
    recorded.sync();
    assert_eq!(measured(&recorded, Family::Ipv4), (2, 11 + 6));
    assert_eq!(measured(&recorded, Family::Ipv6), (0, 0));
    recorded.pass(10);
    recorded.sync();
    assert_eq!(measured(&recorded, Family::Ipv4), (2, 17));
}

#[test]
fn health_check_node_ports_follow_the_services() {
    let mut recorded = Recorded::new(config(), kernel());
    recorded.upsert(local_load_balancer());
    endpoints(&mut recorded.proxier, "balanced", &[1, 200, 201]);
    recorded.sync();
    let found = recorded.recorder.health_check(Family::Ipv4, 32_001).unwrap();
    assert_eq!(found.local_endpoints, 2);
    assert_eq!(recorded.recorder.health_checks(Family::Ipv4).count(), 1);
    assert_eq!(recorded.recorder.health_checks(Family::Ipv6).count(), 0);
    endpoints(&mut recorded.proxier, "balanced", &[1, 200]);
    recorded.sync();
    let found = recorded.recorder.health_check(Family::Ipv4, 32_001).unwrap();
    assert_eq!(found.local_endpoints, 1);
    recorded.change(Change::Services(ObjectChange::Delete(ObjectName::new(
        "ns", "balanced",
    ))));
    recorded.sync();
    assert_eq!(recorded.recorder.health_check(Family::Ipv4, 32_001), None);
}

#[test]
fn a_node_is_eligible_while_its_object_exists_and_is_not_leaving() {
    let mut recorded = Recorded::new(config(), kernel());
    recorded.sync();
    assert_eq!(recorded.status().is_node_eligible, None);
    let mut node = Node::new("node-a");
    recorded.change(Change::Nodes(ObjectChange::ReplaceAll(vec![node.clone()])));
    recorded.change(Change::synced(Kind::Node));
    recorded.sync();
    assert_eq!(recorded.status().is_node_eligible, Some(true));
    node.is_leaving = true;
    recorded.change(Change::Nodes(ObjectChange::Upsert(node)));
    recorded.sync();
    assert_eq!(recorded.status().is_node_eligible, Some(false));
    recorded.change(Change::Nodes(ObjectChange::Upsert(Node::new("node-a"))));
    recorded.sync();
    assert_eq!(recorded.status().is_node_eligible, Some(true));
    recorded.change(Change::Nodes(ObjectChange::Delete(ObjectName::new("", "node-a"))));
    recorded.sync();
    assert_eq!(recorded.status().is_node_eligible, Some(false));
}

#[cfg(feature = "health")]
#[test]
fn the_answers_of_the_health_endpoints_follow_the_status() {
    let mut recorded = Recorded::new(config(), kernel());
    recorded.sync();
    recorded.pass(10);
    recorded.upsert(service("web", "10.96.0.1"));
    let livez = |recorded: &Recorded, seconds: u64| {
        let health = recorded.status().health(Duration::from_secs(30));
        let after = Duration::from_secs(seconds);
        let response = health.livez(recorded.now + after, recorded.time + after);
        (
            response.status,
            response.body.contains(r#""lastUpdated":"1970-01-01T00:00:00Z""#),
        )
    };
    assert_eq!(livez(&recorded, 59), (200, true));
    assert_eq!(livez(&recorded, 60), (503, true));
    recorded.sync();
    assert_eq!(livez(&recorded, 60), (200, false));
}

#[test]
fn the_last_hundred_events_are_kept() {
    let mut recorded = Recorded::new(config(), kernel());
    for number in 0..150 {
        recorded.pass(1);
        let mut invalid = service(&format!("s{number}"), "10.96.0.1");
        let annotation = ("kernlink.io/scheduler".into(), "none".into());
        invalid.annotations = [annotation].into_iter().collect();
        invalid.ingress = vec![Ingress::default()];
        invalid.service_type = ServiceType::LoadBalancer;
        recorded.upsert(invalid);
        recorded.sync();
    }
    let events = &recorded.status().events;
    assert_eq!(events.len(), 100);
    assert_eq!(events.back().unwrap().time, at(150).unwrap());
    assert!(events.iter().is_sorted_by_key(|recent| recent.time));
}

#[test]
fn stages_are_measured_with_the_clock_of_the_caller() {
    // Each call is one second after the one before.
    fn clock() -> Instant {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        static CALLS: AtomicU64 = AtomicU64::new(0);
        *START + Duration::from_secs(CALLS.fetch_add(1, Ordering::Relaxed))
    }
    let mut config = config();
    // On an empty kernel, what they need is read apart.
    config.first_services = Vec::new();
    let mut proxier = node::proxier(config, kernel());
    assert!(proxier.sync(Instant::now()).unwrap().durations.total().is_zero());
    proxier.set_clock(clock);
    proxier.resync();
    let durations = proxier.sync(Instant::now()).unwrap().durations;
    let second = Duration::from_secs(1);
    let stages = durations.stages();
    assert_eq!(
        stages,
        ["read", "compile", "plan", "apply"].map(|name| (name, second))
    );
    assert_eq!(durations.total(), second * 4);
}
