//! Sets of kube-proxy that another program made with other parameters.
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

use std::time::Instant;

use kernlink_ipset::{
    Comment, Entry, Operation as SetOperation, ProtocolPort, Set, SetFamily, SetRange, SetType, Timeout,
};
use kernlink_proxier::ipvs_mode::{Kernel, Operation, Proxier, SetId, Synced};
use kernlink_services::Family;

use crate::faulty::Faults;
use crate::node::{
    ONE, TWO, bound, endpoints, entries, ipv4_config, kernel, key, load_balancer, proxier, real_servers,
    sync_until_nothing_waits, upsert, virtual_servers, with_services,
};

fn definition(id: SetId) -> Set {
    id.definition(Family::Ipv4)
}

fn cluster_ip(last: u8) -> Entry {
    Entry::ip_port([10, 96, 0, last].into(), ProtocolPort::tcp(80))
}

/// The sets that another program made in place of that of the cluster IPs, each with an entry of the Service `one` and another one.
fn others() -> Vec<(Set, [Entry; 2])> {
    let timeout = Timeout::from_secs(600).unwrap();
    let comment = Comment::new("made elsewhere").unwrap();
    vec![
        (
            definition(SetId::ClusterIp).with_timeout(timeout),
            [1, 9].map(|last| cluster_ip(last).with_timeout(timeout)),
        ),
        (
            definition(SetId::ClusterIp).with_comment(),
            [1, 9].map(|last| cluster_ip(last).with_comment(comment.clone())),
        ),
        (
            definition(SetId::ClusterIp).with_counters(),
            [1, 9].map(cluster_ip),
        ),
        (
            definition(SetId::ClusterIp).with_counters().with_maxelem(2),
            [1, 9].map(cluster_ip),
        ),
    ]
}

/// A node that serves the Services `one` and `two`, whose set of cluster IPs another program replaced.
fn replaced(set: Set, of_set: [Entry; 2]) -> Kernel {
    let mut first = with_services(kernel(), &[ONE, TWO]);
    assert!(first.sync(Instant::now()).unwrap().is_success());
    let mut kernel = first.into_kernel();
    let name = set.name;
    let operations = [SetOperation::destroy(name), SetOperation::create(set)];
    let additions = of_set.map(|entry| SetOperation::add(name, entry));
    for operation in operations.into_iter().chain(additions) {
        kernel.execute(&Operation::Set(operation)).unwrap();
    }
    kernel
}

fn is_as_defined(kernel: &mut Kernel, id: SetId) -> bool {
    let set = kernel.sets.header(&id.name(Family::Ipv4)).unwrap().set;
    let definition = definition(id);
    (
        set.options.timeout,
        set.options.counters,
        set.options.comment,
        set.options.range,
    ) == (
        definition.options.timeout,
        definition.options.counters,
        definition.options.comment,
        definition.options.range,
    )
}

fn sorted(kernel: &mut Kernel, id: SetId) -> Vec<String> {
    let mut entries = entries(kernel, id);
    entries.sort_unstable();
    entries
}

/// The events that contain a text.
fn events(synced: &Synced, text: &str) -> Vec<String> {
    let events = synced.events.iter().map(ToString::to_string);
    events.filter(|event| event.contains(text)).collect()
}

#[test]
fn a_set_of_the_same_type_is_replaced_and_its_entries_match_all_the_time() {
    for (set, of_set) in others() {
        let text = set.to_string();
        let mut next = with_services(replaced(set, of_set), &[ONE, TWO]);
        let plan = next.plan(Instant::now()).unwrap();
        let mut kernel = next.into_kernel();
        for (_, step) in plan.steps() {
            kernel.execute(&step.operation).unwrap();
            let entries = entries(&mut kernel, SetId::ClusterIp);
            let is_there = entries.iter().any(|entry| entry.starts_with("10.96.0.1,tcp:80"));
            assert!(is_there, "{text}: {entries:?} after {}\n{plan}", step.operation);
        }
        assert!(is_as_defined(&mut kernel, SetId::ClusterIp), "{text}\n{plan}");
        assert_eq!(
            sorted(&mut kernel, SetId::ClusterIp),
            ["10.96.0.1,tcp:80", "10.96.0.2,tcp:80"],
            "{text}\n{plan}"
        );
        let mut next = with_services(kernel, &[ONE, TWO]);
        let synced = next.sync(Instant::now()).unwrap();
        assert!(synced.plan.is_empty(), "{text}: {}", synced.plan);
    }
}

#[test]
fn each_set_is_replaced_while_the_proxier_runs() {
    let mut next = with_services(kernel(), &[ONE, TWO]);
    let now = Instant::now();
    assert!(next.sync(now).unwrap().is_success());
    for &id in SetId::ALL {
        let name = id.name(Family::Ipv4);
        let before = sorted(next.kernel_mut(), id);
        let set = definition(id).with_counters();
        for operation in [SetOperation::destroy(name), SetOperation::create(set)] {
            next.kernel_mut().execute(&Operation::Set(operation)).unwrap();
        }
        next.resync();
        let synced = next.sync(now).unwrap();
        assert!(synced.is_success(), "{id}: {synced}");
        assert!(is_as_defined(next.kernel_mut(), id), "{id}");
        assert_eq!(sorted(next.kernel_mut(), id), before, "{id}: {}", synced.plan);
        next.resync();
        let synced = next.sync(now).unwrap();
        assert!(synced.plan.is_empty(), "{id}: {}", synced.plan);
    }
    assert_eq!(real_servers(next.kernel_mut(), &key("10.96.0.1", 80)).len(), 2);
    assert_eq!(bound(next.kernel_mut()).len(), 2);
}

/// A node with a load balancer and a Service with a cluster IP.
fn with_load_balancer(kernel: Kernel) -> Proxier {
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, load_balancer(&[]));
    endpoints(&mut proxier, "balanced", &[1]);
    proxier
}

/// Checks that the load balancer alone waits for its set, is reported once, and is served when `solve` was called.
fn only_the_load_balancer_waits(mut proxier: Proxier, reason: &str, solve: impl FnOnce(&mut Proxier)) {
    let mut now = Instant::now();
    let mut reported = Vec::new();
    for _ in 0..4 {
        let synced = proxier.sync(now).unwrap();
        reported.extend(events(&synced, "KUBE-LOAD-BALANCER"));
        now = synced.next.unwrap().max(now);
        proxier.resync();
    }
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains(reason), "{reported:?}");
    // The cluster IP of the same Service is served, with its rules.
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32"]);
    solve(&mut proxier);
    let mut solved = Vec::new();
    for _ in 0..20 {
        let synced = proxier.sync(now).unwrap();
        solved.extend(events(&synced, "solved"));
        match synced.next {
            Some(next) => now = next.max(now),
            None => break,
        }
    }
    assert_eq!(solved.len(), 1, "{solved:?}");
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
}

#[test]
fn a_set_that_cannot_be_replaced_affects_only_what_needs_it() {
    let mut kernel = kernel();
    let set = definition(SetId::LoadBalancer).with_counters();
    kernel
        .execute(&Operation::Set(SetOperation::create(set)))
        .unwrap();
    let (kernel, faults) = Faults::of_kernel(kernel);
    faults.refuse("create KUBE-LOAD-BALANCER~");
    only_the_load_balancer_waits(with_load_balancer(kernel), "refused by the test", |_| {
        faults.end()
    });
}

#[test]
fn a_set_of_another_type_or_family_affects_only_what_needs_it() {
    let name = SetId::LoadBalancer.name(Family::Ipv4);
    for set in [
        Set::new(name, SetType::HashNet),
        Set::new(name, SetType::BitmapPort).with_range(SetRange::Ports(1, 9)),
        Set::new(name, SetType::HashIpPort).with_family(SetFamily::Inet6),
    ] {
        let mut kernel = kernel();
        kernel
            .execute(&Operation::Set(SetOperation::create(set)))
            .unwrap();
        only_the_load_balancer_waits(
            with_load_balancer(kernel),
            "create KUBE-LOAD-BALANCER",
            |proxier| {
                let destroy = Operation::Set(SetOperation::destroy(name));
                proxier.kernel_mut().execute(&destroy).unwrap();
            },
        );
    }
}
