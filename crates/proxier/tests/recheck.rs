//! Objects that are read again at request: what another program removed or changed is repaired, at the cost of these objects.
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
#[path = "support/shared_ipvs.rs"]
mod shared_ipvs;

use std::time::{Duration, Instant};

use kernlink_dummylink::{AddressKey, DummyLink, LinkAddress, LinkName};
use kernlink_ipset::{Entry, ProtocolPort};
use kernlink_iptables_restore::{ChainName, Edit, Restore, Table};
use kernlink_ipvs::{RealServer, RealServerKey, Scheduler, Timeouts, VirtualServer, Weight};
use kernlink_proxier::ipvs_mode::{Kernel, Key, Proxier, SetId, Sysctl};
use kernlink_services::{Family, NodePortAddresses, ServiceType};

use crate::faulty::Faults;
use crate::node::{
    bound, config, endpoints, ipv4_config, kernel, key, proxier, service, upsert, virtual_servers,
};

/// A node with a Service and an endpoint, in sync.
fn synced() -> Proxier {
    let mut proxier = proxier(ipv4_config(), kernel());
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[7]);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    assert_in_sync(&mut proxier);
    proxier
}

/// Panics unless a full listing finds nothing to do.
fn assert_in_sync(proxier: &mut Proxier) {
    proxier.resync();
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
}

fn address() -> AddressKey {
    AddressKey::host([10, 96, 0, 1].into()).unwrap()
}

fn link(name: &str) -> LinkName {
    LinkName::new(name).unwrap()
}

fn real_server() -> RealServerKey {
    RealServerKey::new([10, 244, 0, 7], 8080)
}

/// Flushes a chain of table nat, as `iptables -t nat -F CHAIN`.
fn flush(kernel: &mut Kernel, chain: &str) {
    let mut restore = Restore::new(Family::Ipv4);
    let name = ChainName::new(chain).unwrap();
    restore.table_mut(Table::Nat).push(Edit::Flush { chain: name });
    kernel.rules.restore(&restore).unwrap();
}

/// What another program does, and the object that it concerns.
type Damage = (&'static str, Key, fn(&mut Kernel));

fn damages() -> Vec<Damage> {
    let entry = Entry::ip_port([10, 96, 0, 1].into(), ProtocolPort::tcp(80));
    vec![
        ("address", Key::Address(address()), |kernel| {
            kernel.links.delete(&link("kube-ipvs0"), &address()).unwrap();
        }),
        ("link", Key::Link(link("kube-ipvs0")), |kernel| {
            kernel.links.delete_link(&link("kube-ipvs0")).unwrap();
        }),
        ("chain", Key::Rules(Family::Ipv4), |kernel| {
            flush(kernel, "KUBE-SERVICES");
        }),
        ("jump", Key::Rules(Family::Ipv4), |kernel| {
            flush(kernel, "PREROUTING");
        }),
        (
            "virtual server",
            Key::VirtualServer(key("10.96.0.1", 80)),
            |kernel| {
                kernel.ipvs.flush().unwrap();
            },
        ),
        ("scheduler", Key::VirtualServer(key("10.96.0.1", 80)), |kernel| {
            let server = VirtualServer::new(key("10.96.0.1", 80), Scheduler::SH);
            kernel.ipvs.update_virtual_server(&server).unwrap();
        }),
        (
            "real server",
            Key::RealServer(key("10.96.0.1", 80), real_server()),
            |kernel| {
                let server = RealServer::new(real_server()).with_weight(Weight::new(0).unwrap());
                kernel
                    .ipvs
                    .update_real_server(&key("10.96.0.1", 80), &server)
                    .unwrap();
            },
        ),
        (
            "entry",
            Key::Entry(Family::Ipv4, SetId::ClusterIp, entry.clone()),
            |kernel| kernel.sets.flush(&SetId::ClusterIp.name(Family::Ipv4)).unwrap(),
        ),
        ("set", Key::Set(Family::Ipv4, SetId::ClusterIp), |kernel| {
            kernel.sets.flush(&SetId::ClusterIp.name(Family::Ipv4)).unwrap();
        }),
        (
            "destroyed set",
            Key::Set(Family::Ipv4, SetId::LoopBack),
            |kernel| {
                kernel.sets.destroy(&SetId::LoopBack.name(Family::Ipv4)).unwrap();
            },
        ),
        ("sysctl", Key::Sysctl("net.ipv4.vs.conntrack".into()), |kernel| {
            let sysctl = Sysctl {
                name: "net.ipv4.vs.conntrack".into(),
                value: "0".into(),
            };
            kernel.sysctls.execute(&[sysctl]).remove(0).unwrap();
        }),
    ]
}

#[test]
fn what_another_program_removed_or_changed_is_repaired_without_a_listing() {
    for (what, key, damage) in damages() {
        let mut proxier = synced();
        damage(proxier.kernel_mut());
        let before = proxier.cost();
        let now = Instant::now();
        assert!(proxier.recheck([key]), "{what}");
        let synced = proxier.sync(now).unwrap();
        assert!(!synced.plan.is_empty(), "{what}");
        assert_eq!(proxier.cost().listings, before.listings, "{what}");
        assert_eq!(proxier.cost().rereads, before.rereads + 1, "{what}");
        // Other objects may have been changed too: everything is read, at once.
        assert_eq!(synced.next, Some(now), "{what}");
        proxier.sync(now).unwrap();
        assert_eq!(proxier.cost().listings, before.listings + 1, "{what}");
        assert_in_sync(&mut proxier);
    }
}

#[test]
fn an_object_that_did_not_change_needs_no_step_and_no_listing() {
    for (what, key, _) in damages() {
        let mut proxier = synced();
        let before = proxier.cost();
        assert!(proxier.recheck([key]), "{what}");
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.plan.is_empty(), "{what}: {}", synced.plan);
        assert_eq!(synced.next, None, "{what}");
        assert_eq!(proxier.cost().listings, before.listings, "{what}");
        assert_eq!(proxier.cost().rereads, before.rereads + 1, "{what}");
        // It was read once.
        proxier.sync(Instant::now()).unwrap();
        assert_eq!(proxier.cost().rereads, before.rereads + 1, "{what}");
    }
}

#[test]
fn an_object_of_another_program_is_not_taken_over() {
    let mut proxier = synced();
    let foreign = VirtualServer::new(key("192.0.2.7", 53), Scheduler::RR);
    proxier.kernel_mut().ipvs.add_virtual_server(&foreign).unwrap();
    let before = proxier.cost();
    assert!(!proxier.recheck([Key::VirtualServer(foreign.key)]));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(proxier.cost(), before);
    assert!(virtual_servers(proxier.kernel_mut()).contains(&foreign.key.to_string()));
}

#[test]
fn all_addresses_that_were_flushed_are_bound_again() {
    let mut proxier = proxier(ipv4_config(), kernel());
    for number in 1..=3 {
        upsert(
            &mut proxier,
            service(&format!("web{number}"), &format!("10.96.0.{number}")),
        );
    }
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let keys: Vec<AddressKey> = (1..=3)
        .map(|number| AddressKey::host([10, 96, 0, number].into()).unwrap())
        .collect();
    for address in &keys[..2] {
        let link = link("kube-ipvs0");
        proxier.kernel_mut().links.delete(&link, address).unwrap();
    }
    proxier.recheck(keys.into_iter().map(Key::Address));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.plan.len(), 2, "{}", synced.plan);
    assert_eq!(bound(proxier.kernel_mut()).len(), 3);
}

#[test]
fn a_new_address_of_the_node_serves_node_ports_without_a_listing() {
    let mut config = ipv4_config();
    config.services.node_port_addresses = NodePortAddresses::All;
    let mut proxier = proxier(config, kernel());
    let mut service = service("web", "10.96.0.1");
    service.service_type = ServiceType::NodePort;
    service.ports[0].node_port = 30080;
    upsert(&mut proxier, service);
    endpoints(&mut proxier, "web", &[7]);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let kernel = proxier.kernel_mut();
    let links = &mut kernel.links;
    links.add_link(&DummyLink::new(link("eth1"))).unwrap();
    links
        .add(
            &link("eth1"),
            &LinkAddress::host([198, 51, 100, 9].into()).unwrap(),
        )
        .unwrap();
    let before = proxier.cost();
    proxier.recheck_addresses();
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(synced.next, None);
    assert!(virtual_servers(proxier.kernel_mut()).contains(&"-t 198.51.100.9:30080".to_owned()));
    assert_eq!(proxier.cost().listings, before.listings);
    // And one that is removed no longer does.
    proxier.kernel_mut().links.delete_link(&link("eth1")).unwrap();
    proxier.recheck_addresses();
    proxier.sync(Instant::now()).unwrap();
    assert!(!virtual_servers(proxier.kernel_mut()).contains(&"-t 198.51.100.9:30080".to_owned()));
    assert_eq!(proxier.cost().listings, before.listings);
    assert_in_sync(&mut proxier);
}

#[test]
fn tables_that_cannot_be_read_again_are_left_to_the_next_listing() {
    let (mut kernel, faults) = Faults::of_kernel(kernel());
    kernel.rules = faults.unreadable_tables();
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    let before = proxier.cost().listings;
    proxier.recheck([Key::Rules(Family::Ipv4)]);
    let synced = proxier.sync(now).unwrap();
    // Otherwise each attempt would write the chains, which is an event that leads to the next attempt.
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(synced.next, None);
    assert_eq!(proxier.cost().listings, before);
}

#[test]
fn ipvs_timeouts_are_repaired() {
    let mut config = ipv4_config();
    config.ipvs_timeouts.tcp = std::time::Duration::from_secs(700);
    let mut proxier = proxier(config, kernel());
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let seconds = std::time::Duration::from_secs;
    let other = Timeouts::new(seconds(60), seconds(0), seconds(0));
    proxier.kernel_mut().ipvs.set_timeouts(other).unwrap();
    proxier.recheck([Key::Timeouts]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.plan.len(), 1, "{}", synced.plan);
    assert_eq!(proxier.kernel_mut().ipvs.timeouts().unwrap().tcp, seconds(700));
}

#[test]
fn a_recheck_of_a_virtual_server_with_draining_endpoints_does_not_postpone_their_deletion() {
    let ipvs = shared_ipvs::SharedIpvs::default();
    let mut kernel = kernel();
    kernel.ipvs = Box::new(ipvs.clone());
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[7, 8]);
    let now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    let web = key("10.96.0.1", 80);
    ipvs.connect(&web, &real_server(), 1);
    endpoints(&mut proxier, "web", &[8]);
    let due = proxier.sync(now).unwrap().next.unwrap();
    ipvs.connect(&web, &real_server(), 0);
    for second in 1..5 {
        proxier.recheck([Key::VirtualServer(web)]);
        let synced = proxier.sync(now + Duration::from_secs(second)).unwrap();
        assert_eq!(
            (synced.next, synced.draining),
            (Some(due), 1),
            "after {second} seconds"
        );
    }
    let synced = proxier.sync(due).unwrap();
    assert_eq!((synced.plan.len(), synced.draining), (1, 0), "{}", synced.plan);
}
