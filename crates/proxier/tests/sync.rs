//! Syncs on the fake kernel: when they plan, and what a reviewed plan does.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/node.rs"]
mod node;

use std::time::Instant;

use kernlink_ipvs::{Operation as IpvsOperation, Scheduler, VirtualServer};
use kernlink_proxier::ipvs_mode::{Operation, Proxier, SyncError};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName,
};

use crate::node::{SOURCE, bound, config, ipv4_config, kernel, key, load_balancer, proxier, service, upsert};

#[test]
fn nothing_is_planned_before_the_first_full_lists() {
    let mut proxier = Proxier::new(&config(), kernel()).unwrap();
    assert!(matches!(
        proxier.plan(Instant::now()),
        Err(SyncError::NotSynced(_))
    ));
    upsert(&mut proxier, service("a", "10.96.0.1"));
    proxier.change(SOURCE, Change::synced(Kind::Service));
    assert!(matches!(
        proxier.sync(Instant::now()),
        Err(SyncError::NotSynced(_))
    ));
    proxier.change(SOURCE, Change::synced(Kind::EndpointSlice));
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
}

#[test]
fn a_plan_consumes_no_event_and_an_outdated_plan_is_not_applied() {
    let mut proxier = proxier(config(), kernel());
    let mut invalid = service("web", "10.96.0.1");
    invalid
        .annotations
        .insert("kernlink.io/scheduler".into(), "zz".into());
    upsert(&mut proxier, invalid);
    let now = Instant::now();
    let plan = proxier.plan(now).unwrap();
    assert_eq!(proxier.plan(now).unwrap(), plan);
    // Another program changes an object of the plan.
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
fn a_reviewed_plan_that_changes_chains_can_be_applied() {
    let kernel = kernel();
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("web", "10.96.0.2"));
    assert!(proxier.sync(now).unwrap().is_success());
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    let plan = proxier.plan(now).unwrap();
    let synced = proxier.apply(&plan, now);
    assert!(synced.is_ok_and(|synced| synced.is_success()), "{plan}");
}

#[test]
fn all_endpoints_of_a_service_can_be_replaced_at_once() {
    let kernel = kernel();
    let mut proxier = proxier(ipv4_config(), kernel);
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
