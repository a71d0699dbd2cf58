//! Traffic between the steps of plans for random clusters on the fake kernel: what works before and after a plan works all the time.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/host.rs"]
mod host;
#[path = "support/senders.rs"]
mod senders;
mod support;
#[path = "support/tracer.rs"]
mod tracer;

use std::collections::BTreeSet;

use kernlink_ipvs::VirtualServerKey;
use kernlink_proxier::ipvs_mode::config::LocalDetection;
use kernlink_proxier::ipvs_mode::{Config, Kernel, Plan, Proxier};
use kernlink_services::{Change, Kind, ObjectChange, Service, SourceId};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::host::{host, now};
use crate::senders::{named, packets, slices};
use crate::support::clusters::service;
use crate::tracer::{End, Tracer};

fn config() -> Config {
    let mut config = host::config();
    let pods = ["10.244.0.0/16", "fd01::/16"].map(|net| net.parse().unwrap());
    config.local_detection = LocalDetection::ClusterCidr(pods.into());
    config
}

/// A cluster before and after changes.
#[derive(Clone, Debug)]
struct Clusters {
    before: Vec<Change>,
    after: Vec<Change>,
}

/// Services of which most stay, with some fields changed. Most have endpoints before and after.
fn clusters() -> impl Strategy<Value = Clusters> {
    let endpoints = || subsequence(vec![1_u8, 2, 3, 4], 0..=4);
    let service = (
        service(),
        service(),
        any::<[bool; 8]>(),
        [endpoints(), endpoints()],
        select(vec![
            (true, true),
            (true, true),
            (true, true),
            (true, true),
            (true, false),
            (false, true),
        ]),
        weighted(0.1, Just(())),
    );
    vec(service, 1..5).prop_map(|services| {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (number, service) in (1..).zip(services) {
            let (first, second, is_changed, endpoints, (exists, stays), not_ready) = service;
            let first = named(first, number);
            let second = changed(&first, named(second, number), is_changed);
            for (changes, service, endpoints, exists) in [
                (&mut before, first, &endpoints[0], exists),
                (&mut after, second, &endpoints[1], stays),
            ] {
                if exists {
                    changes.extend(slices(&service, endpoints, not_ready.is_none()));
                    changes.push(Change::Services(ObjectChange::Upsert(service)));
                }
            }
        }
        Clusters { before, after }
    })
}

/// A Service with some fields of another one.
fn changed(service: &Service, other: Service, is_changed: [bool; 8]) -> Service {
    let mut changed = service.clone();
    let [
        addresses,
        ingress,
        ranges,
        ports,
        internal,
        external,
        affinity,
        annotations,
    ] = is_changed;
    if addresses {
        changed.external_ips = other.external_ips;
    }
    if ingress {
        changed.ingress = other.ingress;
    }
    if ranges {
        changed.load_balancer_source_ranges = other.load_balancer_source_ranges;
    }
    if ports {
        (changed.service_type, changed.ports) = (other.service_type, other.ports);
    }
    if internal {
        changed.internal_traffic_policy = other.internal_traffic_policy;
    }
    if external {
        changed.external_traffic_policy = other.external_traffic_policy;
    }
    if affinity {
        changed.session_affinity = other.session_affinity;
    }
    if annotations {
        changed.annotations = other.annotations;
    }
    changed
}

/// A proxier with these objects, before its first sync.
fn proxier(kernel: Kernel, changes: &[Change]) -> Proxier {
    let mut proxier = Proxier::new(&config(), kernel).unwrap();
    for change in changes {
        proxier.change(SourceId(0), change.clone());
    }
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    proxier
}

/// The kernel after a sync with these objects.
fn synced(changes: &[Change]) -> Kernel {
    let mut proxier = proxier(host(), changes);
    let synced = proxier.sync(now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    proxier.into_kernel()
}

/// The plan from one cluster to the other, and the node before it and after each of its steps.
fn planned(clusters: &Clusters) -> (Plan, Vec<Tracer>) {
    let kernel = synced(&clusters.before);
    let mut proxier = proxier(kernel, &clusters.after);
    let plan = proxier.plan(now()).unwrap();
    let mut kernel = proxier.into_kernel();
    let mut tracers = vec![Tracer::of_kernel(&mut kernel)];
    for (_, step) in plan.steps() {
        kernel.execute(&step.operation).unwrap();
        tracers.push(Tracer::of_kernel(&mut kernel));
    }
    (plan, tracers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_packet_that_is_served_before_and_after_a_plan_is_served_between_any_two_steps(
        clusters in clusters(),
    ) {
        let (plan, tracers) = planned(&clusters);
        let (first, last) = (&tracers[0], &tracers[tracers.len() - 1]);
        let keys: BTreeSet<&VirtualServerKey> = first.servers().collect();
        for packet in keys.into_iter().flat_map(packets) {
            let (End::Served(before), End::Served(after)) = (first.trace(packet.clone()), last.trace(packet.clone()))
            else {
                continue;
            };
            for (done, tracer) in tracers.iter().enumerate() {
                let works = match tracer.trace(packet.clone()) {
                    End::Served(between) => between.iter().all(|served| {
                        before.iter().chain(&after).any(|known| served.works_if(known))
                    }),
                    _ => false,
                };
                prop_assert!(
                    works,
                    "after {} steps {:?} ends at {}; before the plan at {}; after it at {}\n{}",
                    done, packet, tracer.trace(packet.clone()), End::Served(before), End::Served(after), plan
                );
            }
        }
    }

    #[test]
    fn no_packet_to_a_port_of_a_virtual_ip_reaches_a_process_of_the_node(clusters in clusters()) {
        let (plan, tracers) = planned(&clusters);
        let keys: BTreeSet<&VirtualServerKey> = tracers.iter().flat_map(Tracer::servers).collect();
        for packet in keys.into_iter().flat_map(packets) {
            for (done, tracer) in tracers.iter().enumerate() {
                prop_assert!(!tracer.reaches_the_node(&packet), "after {} steps: {:?}\n{}", done, packet, plan);
            }
        }
    }
}
