//! What a step needs, where no other test fails without it: while an operation fails, no later one that depends on it is executed, neither in
//! the same plan nor in those before its retry.
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

use kernlink_ipset::{Entry, ProtocolPort, SetName};
use kernlink_iptables_restore::{ChainName, Edit, Restore, Save, Table};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier, SetId};
use kernlink_services::{Family, Service, TrafficPolicy};

use crate::faulty::Faults;
use crate::node::{
    bound, delete, endpoints, entries, ipv4_config, kernel, key, load_balancer, proxier, real_servers,
    service, sync_until_nothing_waits, upsert, virtual_servers,
};

/// A proxier with these Services, each with the endpoints 1 and 2, not synced.
fn with_services(kernel: Kernel, services: &[(&str, &str)]) -> Proxier {
    let mut proxier = proxier(ipv4_config(), kernel);
    for (name, address) in services {
        upsert(&mut proxier, service(name, address));
        endpoints(&mut proxier, name, &[1, 2]);
    }
    proxier
}

const ONE: (&str, &str) = ("one", "10.96.0.1");
const TWO: (&str, &str) = ("two", "10.96.0.2");

fn sync(proxier: &mut Proxier, now: Instant) {
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
}

/// Syncs while operations are refused. Then, before their retry, as after a full listing. Each time one operation fails at most, so that
/// everything that depends on it waits, and `check` passes.
fn sync_and_list(proxier: &mut Proxier, now: Instant, check: impl Fn(&mut Proxier, &str)) {
    for when in ["in the plan", "after a listing"] {
        let synced = proxier.sync(now).unwrap();
        let failed = usize::from(when == "in the plan");
        assert_eq!(synced.counts().failed, failed, "{when}: {synced}\n{}", synced.plan);
        check(proxier, when);
        proxier.resync();
    }
}

/// A load balancer with endpoints on another node, 1, and on this one, 200.
fn load_balancer_with(policy: TrafficPolicy) -> Service {
    let mut service = load_balancer(&[]);
    service.external_traffic_policy = policy;
    service
}

/// A proxier that serves this load balancer, with faults.
fn balanced(policy: TrafficPolicy, now: Instant) -> (Proxier, Faults) {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, load_balancer_with(policy));
    endpoints(&mut proxier, "balanced", &[1, 200]);
    sync(&mut proxier, now);
    (proxier, faults)
}

fn balancer_servers(proxier: &mut Proxier) -> Vec<String> {
    real_servers(proxier.kernel_mut(), &key("203.0.113.1", 80))
}

fn balancer_entry() -> Entry {
    Entry::ip_port("203.0.113.1".parse().unwrap(), ProtocolPort::tcp(80))
}

const ON_THIS_NODE: [&str; 1] = ["10.244.0.200:8080"];

#[test]
fn nothing_else_fails_if_the_ledger_cannot_be_created() {
    let mut first = with_services(kernel(), &[ONE, TWO]);
    let now = Instant::now();
    sync(&mut first, now);
    let mut kernel = first.into_kernel();
    kernel.sets.destroy(&SetId::Ledger.name(Family::Ipv4)).unwrap();
    let (kernel, faults) = Faults::of_kernel(kernel);
    faults.refuse("create KERNLINK-VS ");
    let mut next = with_services(kernel, &[ONE, TWO]);
    delete(&mut next, "two");
    sync_and_list(&mut next, now, |next, when| {
        assert_eq!(virtual_servers(next.kernel_mut()), ["-t 10.96.0.1:80"], "{when}");
    });
    faults.end();
    assert!(sync_until_nothing_waits(&mut next, now).is_success());
    let ledger = entries(next.kernel_mut(), SetId::Ledger);
    assert_eq!(ledger, ["10.96.0.1,tcp:80"]);
}

#[test]
fn a_virtual_server_is_not_added_before_its_entry_in_the_ledger() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = with_services(kernel, &[ONE]);
    let now = Instant::now();
    sync(&mut proxier, now);
    faults.refuse("add KERNLINK-VS 10.96.0.2");
    upsert(&mut proxier, service(TWO.0, TWO.1));
    endpoints(&mut proxier, "two", &[1, 2]);
    sync_and_list(&mut proxier, now, |proxier, when| {
        let kernel = proxier.kernel_mut();
        assert_eq!(virtual_servers(kernel), ["-t 10.96.0.1:80"], "{when}");
        assert_eq!(bound(kernel), ["10.96.0.1/32"], "{when}");
    });
    // Without a listing only the virtual server is compared.
    endpoints(&mut proxier, "two", &[1, 3]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"], "{synced}");
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
}

#[test]
fn endpoints_on_other_nodes_are_not_added_before_the_entry_by_which_their_connections_are_masqueraded() {
    let now = Instant::now();
    let (mut proxier, faults) = balanced(TrafficPolicy::Local, now);
    assert_eq!(balancer_servers(&mut proxier), ON_THIS_NODE);
    // Another program removed it.
    let set = SetId::LoadBalancer.name(Family::Ipv4);
    proxier.kernel_mut().sets.delete(&set, &balancer_entry()).unwrap();
    proxier.resync();
    faults.refuse("add KUBE-LOAD-BALANCER 203.0.113.1");
    upsert(&mut proxier, load_balancer_with(TrafficPolicy::Cluster));
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert_eq!(balancer_servers(proxier), ON_THIS_NODE, "{when}");
    });
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(balancer_servers(&mut proxier).len(), 2);
}

#[test]
fn endpoints_on_other_nodes_are_not_added_while_the_local_policy_entry_cannot_be_removed() {
    let now = Instant::now();
    let (mut proxier, faults) = balanced(TrafficPolicy::Local, now);
    faults.refuse("del KUBE-LOAD-BALANCER-LOCAL 203.0.113.1");
    upsert(&mut proxier, load_balancer_with(TrafficPolicy::Cluster));
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert_eq!(balancer_servers(proxier), ON_THIS_NODE, "{when}");
    });
    // Without a listing only the virtual server is compared, not the entry.
    endpoints(&mut proxier, "balanced", &[1, 2, 200]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(balancer_servers(&mut proxier), ON_THIS_NODE, "{synced}");
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(balancer_servers(&mut proxier).len(), 3);
}

#[test]
fn a_frontend_does_not_become_local_while_an_endpoint_on_another_node_gets_connections() {
    let now = Instant::now();
    let (mut proxier, faults) = balanced(TrafficPolicy::Cluster, now);
    faults.refuse("-t 203.0.113.1:80 -r 10.244.0.1:8080 -m -w 0");
    upsert(&mut proxier, load_balancer_with(TrafficPolicy::Local));
    sync_and_list(&mut proxier, now, |proxier, when| {
        let local = entries(proxier.kernel_mut(), SetId::LoadBalancerLocal);
        assert_eq!(local, [""; 0], "{when}");
    });
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    let local = entries(proxier.kernel_mut(), SetId::LoadBalancerLocal);
    assert_eq!(local, ["203.0.113.1,tcp:80"]);
}

#[test]
fn a_deadline_stays_while_its_virtual_server_cannot_be_deleted() {
    let limited = || {
        let mut service = service("one", "10.96.0.1");
        let annotation = "kernlink.io/drain-timeout".to_owned();
        service.annotations.insert(annotation, "60s".to_owned());
        service
    };
    let deadlines = |proxier: &mut Proxier| {
        let name = SetName::new("KERNLINK-DRAIN").unwrap();
        proxier.kernel_mut().sets.list_set(&name).unwrap().entries.len()
    };
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, limited());
    endpoints(&mut proxier, "one", &[1, 2]);
    let now = Instant::now();
    sync(&mut proxier, now);
    endpoints(&mut proxier, "one", &[1]);
    sync(&mut proxier, now);
    assert_eq!(deadlines(&mut proxier), 1);
    faults.refuse("-D -t 10.96.0.1:80");
    delete(&mut proxier, "one");
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert_eq!(deadlines(proxier), 1, "{when}");
    });
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(deadlines(&mut proxier), 0);
}

/// The number of rules that read a set.
fn rules_of(proxier: &mut Proxier, set: &str) -> usize {
    let saved = proxier.kernel_mut().rules.save(&Save::all(Family::Ipv4)).unwrap();
    saved.to_string().matches(&format!("{set} dst,dst")).count()
}

#[test]
fn the_rules_of_a_local_policy_set_stay_while_its_last_entry_cannot_be_removed() {
    let now = Instant::now();
    let (mut proxier, faults) = balanced(TrafficPolicy::Local, now);
    let before = rules_of(&mut proxier, "KUBE-LOAD-BALANCER-LOCAL");
    assert!(before > 0);
    faults.refuse("del KUBE-LOAD-BALANCER-LOCAL 203.0.113.1");
    upsert(&mut proxier, load_balancer_with(TrafficPolicy::Cluster));
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert_eq!(rules_of(proxier, "KUBE-LOAD-BALANCER-LOCAL"), before, "{when}");
    });
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(rules_of(&mut proxier, "KUBE-LOAD-BALANCER-LOCAL"), 0);
}

#[test]
fn the_rules_of_iptables_mode_stay_while_those_of_ipvs_mode_cannot_be_written() {
    let mut first = with_services(kernel(), &[ONE]);
    let now = Instant::now();
    sync(&mut first, now);
    let mut kernel = first.into_kernel();
    // What iptables mode left, and a chain that another program flushed.
    let mut restore = Restore::new(Family::Ipv4);
    let chains = ["KUBE-SVC-AAAAAAAAAAAAAAAA", "KUBE-MARK-MASQ"].map(|name| ChainName::new(name).unwrap());
    restore
        .table_mut(Table::Nat)
        .extend(chains.map(Edit::declare));
    kernel.rules.restore(restore).unwrap();
    let (mut kernel, faults) = Faults::of_kernel(kernel);
    kernel.rules = faults.tables(kernel.rules);
    faults.refuse("-A KUBE-MARK-MASQ");
    let mut next = with_services(kernel, &[ONE]);
    let is_left = |proxier: &mut Proxier| {
        let saved = proxier.kernel_mut().rules.save(&Save::all(Family::Ipv4)).unwrap();
        saved.to_string().contains("KUBE-SVC-AAAAAAAAAAAAAAAA")
    };
    sync_and_list(&mut next, now, |next, when| assert!(is_left(next), "{when}"));
    faults.end();
    assert!(sync_until_nothing_waits(&mut next, now).is_success());
    assert!(!is_left(&mut next));
}
