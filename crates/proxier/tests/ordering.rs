//! What the order of the phases avoids, where no other test fails without it: the state after each step of a plan on the fake kernel.
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

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use kernlink_dummylink::Selection;
use kernlink_ipset::{Entry, ProtocolPort};
use kernlink_iptables_restore::Save;
use kernlink_proxier::ipvs_mode::kernel::Sysctls;
use kernlink_proxier::ipvs_mode::{Kernel, Proxier, SetId};
use kernlink_services::{EndpointPort, Family, Port, Protocol, Service};

use crate::faulty::Faults;
use crate::node::{
    ONE, TWO, bound, delete, deliver, endpoints, entries, ipv4_config, kernel, key, load_balancer, position,
    proxier, real_servers, slice, sync_until_nothing_waits, upsert, virtual_servers, with_services,
};

fn sync(proxier: &mut Proxier) {
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
}

#[test]
fn replies_are_masqueraded_before_the_first_virtual_server_exists() {
    let mut proxier = with_services(kernel(), &[ONE, TWO]);
    let plan = proxier.plan(Instant::now()).unwrap();
    let mut kernel = proxier.into_kernel();
    let mut served = 0;
    for (_, step) in plan.steps() {
        kernel.execute(&step.operation).unwrap();
        if !virtual_servers(&mut kernel).is_empty() {
            let sysctls: &mut dyn Sysctls = &mut *kernel.sysctls;
            for name in ["net.ipv4.vs.conntrack", "net.ipv4.ip_forward"] {
                assert_eq!(
                    sysctls.read(name).unwrap().as_deref(),
                    Some("1"),
                    "{name}\n{plan}"
                );
            }
            served += 1;
        }
    }
    assert!(served > 0, "{plan}");
}

/// What kube-proxy leaves if it ends while it removes the Service `two`: its virtual server and its address, but no entry.
fn half_removed_by_kube_proxy() -> Kernel {
    let mut proxier = with_services(kernel(), &[ONE, TWO]);
    sync(&mut proxier);
    let mut kernel = proxier.into_kernel();
    kernel.sets.destroy(&SetId::Ledger.name(Family::Ipv4)).unwrap();
    let port = ProtocolPort::tcp(80);
    let entry = Entry::ip_port("10.96.0.2".parse().unwrap(), port);
    let set = SetId::ClusterIp.name(Family::Ipv4);
    kernel.sets.delete(&set, &entry).unwrap();
    kernel
}

#[test]
fn a_virtual_server_that_only_its_address_identifies_is_in_the_ledger_before_the_address_is_removed() {
    let successor = |kernel| {
        let mut next = with_services(kernel, &[ONE, TWO]);
        delete(&mut next, "two");
        next
    };
    let plan = successor(half_removed_by_kube_proxy())
        .plan(Instant::now())
        .unwrap();
    assert!(plan.to_string().contains("-D -t 10.96.0.2:80"), "{plan}");
    for done in 0..=plan.len() {
        let mut kernel = half_removed_by_kube_proxy();
        for (_, step) in plan.steps().take(done) {
            kernel.execute(&step.operation).unwrap();
        }
        let mut next = successor(kernel);
        sync_until_nothing_waits(&mut next, Instant::now());
        let servers = virtual_servers(next.kernel_mut());
        assert_eq!(servers, ["-t 10.96.0.1:80"], "after {done} steps of\n{plan}");
        assert_eq!(bound(next.kernel_mut()), ["10.96.0.1/32"]);
    }
}

#[test]
fn addresses_are_on_the_former_link_until_they_are_on_a_renamed_one() {
    let mut proxier = with_services(kernel(), &[ONE, TWO]);
    sync(&mut proxier);
    let mut config = ipv4_config();
    config.dummy_link = "vips0".to_owned();
    proxier.set_config(&config).unwrap();
    let plan = proxier.plan(Instant::now()).unwrap();
    let mut kernel = proxier.into_kernel();
    for (_, step) in plan.steps() {
        kernel.execute(&step.operation).unwrap();
        let listed = kernel.links.list(Selection::All).unwrap().into_iter();
        let addresses: BTreeSet<String> = listed.map(|address| address.address.key.to_string()).collect();
        for address in ["10.96.0.1/32", "10.96.0.2/32"] {
            assert!(
                addresses.contains(address),
                "{address} after {}\n{plan}",
                step.operation
            );
        }
    }
    let names: Vec<String> = kernel
        .links
        .list(Selection::All)
        .unwrap()
        .iter()
        .map(|address| address.link.to_string())
        .filter(|name| ["kube-ipvs0", "vips0"].contains(&name.as_str()))
        .collect();
    assert_eq!(names, ["vips0", "vips0"]);
}

#[test]
fn the_former_link_is_kept_while_an_address_cannot_be_bound_to_a_renamed_one() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = with_services(kernel, &[ONE, TWO]);
    sync(&mut proxier);
    let mut config = ipv4_config();
    config.dummy_link = "vips0".to_owned();
    proxier.set_config(&config).unwrap();
    faults.refuse("address replace 10.96.0.2/32");
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 1),
        "{synced}"
    );
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
}

#[test]
fn addresses_of_a_link_that_cannot_be_added_are_not_tried() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("link replace");
    let mut proxier = with_services(kernel, &[ONE, TWO]);
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 2),
        "{synced}"
    );
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
}

#[test]
fn the_node_itself_is_allowed_before_a_frontend_is_restricted() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, load_balancer(&[]));
    endpoints(&mut proxier, "balanced", &[1]);
    sync(&mut proxier);
    faults.refuse("add KUBE-LOAD-BALANCER-SOURCE-IP");
    upsert(&mut proxier, load_balancer(&["192.0.2.0/24"]));
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert!(
        position(&synced.plan, "add KUBE-LOAD-BALANCER-SOURCE-IP")
            < position(&synced.plan, "add KUBE-LOAD-BALANCER-FW"),
        "{}",
        synced.plan
    );
    // Other clients are dropped in any case.
    let restricted = SetId::LoadBalancerFirewall;
    assert_eq!(entries(proxier.kernel_mut(), restricted), ["203.0.113.1,tcp:80"]);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerSourceIp).len(),
        1
    );
}

#[test]
fn an_address_is_bound_after_the_real_servers_of_its_virtual_server() {
    let mut proxier = with_services(kernel(), &[ONE, TWO]);
    let plan = proxier.plan(Instant::now()).unwrap();
    let mut kernel = proxier.into_kernel();
    for (_, step) in plan.steps() {
        kernel.execute(&step.operation).unwrap();
        for address in bound(&mut kernel) {
            let address = address.trim_end_matches("/32");
            let servers = real_servers(&mut kernel, &key(address, 80));
            assert_eq!(servers.len(), 2, "{address} after {}\n{plan}", step.operation);
        }
    }
    assert_eq!(bound(&mut kernel).len(), 2);
}

/// A load balancer with source ranges, with a second port or without it. Its cluster IP and its load-balancer IP are bound.
fn restricted(has_second: bool) -> Service {
    let service = load_balancer(&["192.0.2.0/24"]);
    if has_second {
        service.with_port(Port::new("second", 81))
    } else {
        service
    }
}

fn with_endpoints(proxier: &mut Proxier, service: Service) {
    let ports: Vec<_> = service.ports.iter().map(|port| Arc::clone(&port.name)).collect();
    upsert(proxier, service);
    let slice = slice("balanced", &[1, 2]);
    let slice = ports.into_iter().skip(1).fold(slice, |slice, port| {
        slice.with_port(EndpointPort::new(port, 8081))
    });
    deliver(proxier, slice, Protocol::Tcp);
}

/// The addresses of `restricted`, each with the set whose entries `KUBE-IPVS-FILTER` does not reject.
const BOUND: [(&str, SetId); 2] = [
    ("10.96.0.1", SetId::ClusterIp),
    ("203.0.113.1", SetId::LoadBalancer),
];

fn has_entry(kernel: &mut Kernel, set: SetId, address: &str, port: u16) -> bool {
    let entry = format!("{address},tcp:{port}");
    entries(kernel, set).iter().any(|known| known.starts_with(&entry))
}

#[test]
fn a_port_of_an_address_that_stays_bound_is_admitted_only_while_it_has_a_virtual_server() {
    for (before, after) in [(false, true), (true, false)] {
        let mut proxier = proxier(ipv4_config(), kernel());
        with_endpoints(&mut proxier, restricted(before));
        sync(&mut proxier);
        with_endpoints(&mut proxier, restricted(after));
        let plan = proxier.plan(Instant::now()).unwrap();
        let mut kernel = proxier.into_kernel();
        let mut seen: BTreeSet<_> = BOUND.map(|(address, _)| (address, before, before)).into();
        for (_, step) in plan.steps() {
            kernel.execute(&step.operation).unwrap();
            for (address, set) in BOUND {
                let is_served = virtual_servers(&mut kernel).contains(&format!("-t {address}:81"));
                let is_admitted = has_entry(&mut kernel, set, address, 81);
                let step = &step.operation;
                assert!(!is_admitted || is_served, "{address} after {step}\n{plan}");
                if is_admitted && set == SetId::LoadBalancer {
                    let is_restricted = has_entry(&mut kernel, SetId::LoadBalancerFirewall, address, 81);
                    assert!(is_restricted, "{address} after {step}\n{plan}");
                }
                if after && is_served && !is_admitted {
                    let servers = real_servers(&mut kernel, &key(address, 81));
                    assert_eq!(servers, [""; 0], "not masqueraded after {step}\n{plan}");
                }
                seen.insert((address, is_served, is_admitted));
            }
        }
        // Each address was in all three states.
        assert_eq!(seen.len(), 6, "{seen:?}\n{plan}");
        for (address, _) in BOUND {
            let servers = virtual_servers(&mut kernel);
            assert_eq!(servers.contains(&format!("-t {address}:81")), after, "{plan}");
        }
    }
}

#[test]
fn an_address_is_not_bound_without_the_entry_that_protects_the_node() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("add KUBE-IPVS-IPS 10.96.0.1");
    let mut proxier = with_services(kernel, &[ONE, TWO]);
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 4),
        "{synced}"
    );
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.2/32"]);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
}

#[test]
fn a_service_whose_address_cannot_be_removed_is_served_until_it_can() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = with_services(kernel, &[ONE, TWO]);
    sync(&mut proxier);
    faults.refuse("address delete 10.96.0.2");
    delete(&mut proxier, "two");
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    let kernel = proxier.kernel_mut();
    assert_eq!(real_servers(kernel, &key("10.96.0.2", 80)).len(), 2);
    assert_eq!(entries(kernel, SetId::IpvsIps).len(), 2);
    assert_eq!(entries(kernel, SetId::ClusterIp).len(), 2);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    let kernel = proxier.kernel_mut();
    assert_eq!(virtual_servers(kernel), ["-t 10.96.0.1:80"]);
    assert_eq!(entries(kernel, SetId::IpvsIps), ["10.96.0.1"]);
}

#[test]
fn the_rules_of_a_set_stay_while_its_last_entry_cannot_be_removed() {
    let rules = |proxier: &mut Proxier| {
        let kernel = proxier.kernel_mut();
        let saved = kernel.rules.save(&Save::all(Family::Ipv4)).unwrap();
        saved.to_string().matches("KUBE-LOAD-BALANCER dst,dst").count()
    };
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(ipv4_config(), kernel);
    sync(&mut proxier);
    let without = rules(&mut proxier);
    upsert(&mut proxier, load_balancer(&[]));
    endpoints(&mut proxier, "balanced", &[1]);
    sync(&mut proxier);
    let before = rules(&mut proxier);
    assert!(before > without);
    faults.refuse("del KUBE-LOAD-BALANCER 203.0.113.1");
    delete(&mut proxier, "balanced");
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(rules(&mut proxier), before);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(rules(&mut proxier), without);
}
