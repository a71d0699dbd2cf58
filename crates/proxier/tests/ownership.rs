//! Ownership on the fake kernel: foreign objects are not changed, and owned objects are removed with their Services.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/host.rs"]
mod host;
#[path = "support/node.rs"]
mod node;

use std::net::IpAddr;
use std::time::Instant;

use kernlink_dummylink::{DummyLink, Fake, LinkAddress, LinkName};
use kernlink_ipvs::{Operation as IpvsOperation, Scheduler, VirtualServer, VirtualServerKey};
use kernlink_proxier::ipvs_mode::{Operation, Proxier};
use kernlink_services::{Change, ObjectChange, ObjectName, Port, Service, ServiceType};

use crate::faulty::Faults;
use crate::host::{foreign_servers, host};
use crate::node::{
    SOURCE, bound, config, delete, ipv4_config, kernel, key, proxier, service, sync_until_nothing_waits,
    upsert, virtual_servers,
};

#[test]
fn a_foreign_virtual_server_at_an_address_that_is_bound_later_is_not_changed() {
    let mut kernel = kernel();
    let foreign = key("10.96.0.1", 9_999);
    let add = IpvsOperation::AddVirtualServer(VirtualServer::new(foreign, Scheduler::WLC));
    kernel.execute(&Operation::Ipvs(add)).unwrap();
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let synced = proxier.sync(Instant::now()).unwrap();
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert_eq!(
        events,
        [
            "host: 10.96.0.1 is a virtual IP, but virtual server -t 10.96.0.1:9999 on it is foreign; it is not changed"
        ]
    );
    for _ in 0..2 {
        proxier.resync();
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(
            synced.plan.is_empty() && synced.events.is_empty(),
            "{}",
            synced.plan
        );
    }
    let both = ["-t 10.96.0.1:80", "-t 10.96.0.1:9999"];
    assert_eq!(virtual_servers(proxier.kernel_mut()), both);
    // A new process decides the same, and removes owned virtual servers only.
    let mut restarted = self::proxier(config(), proxier.into_kernel());
    upsert(&mut restarted, service("web", "10.96.0.1"));
    assert!(restarted.sync(Instant::now()).unwrap().plan.is_empty());
    let mut emptied = self::proxier(config(), restarted.into_kernel());
    assert!(emptied.sync(Instant::now()).unwrap().is_success());
    assert_eq!(virtual_servers(emptied.kernel_mut()), ["-t 10.96.0.1:9999"]);
}

#[test]
fn in_an_excluded_network_owned_virtual_servers_are_removed_and_foreign_ones_are_not() {
    let mut config = config();
    config.exclude_cidrs = vec!["10.96.0.0/16".parse().unwrap()];
    let mut kernel = kernel();
    let foreign = key("10.96.0.2", 80);
    let add = IpvsOperation::AddVirtualServer(VirtualServer::new(foreign, Scheduler::WLC));
    kernel.execute(&Operation::Ipvs(add)).unwrap();
    let mut first = proxier(config.clone(), kernel);
    upsert(&mut first, service("web", "10.96.0.1"));
    assert!(first.sync(Instant::now()).unwrap().is_success());
    // Also after a restart.
    let mut second = proxier(config, first.into_kernel());
    let synced = second.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(virtual_servers(second.kernel_mut()), ["-t 10.96.0.2:80"]);
    assert_eq!(bound(second.kernel_mut()), [""; 0]);
}

#[test]
fn a_foreign_virtual_server_that_a_service_takes_over_becomes_owned() {
    let mut kernel = kernel();
    // With the attributes that the Service needs.
    let server = VirtualServer::new(key("10.96.0.1", 80), Scheduler::RR);
    kernel
        .execute(&Operation::Ipvs(IpvsOperation::AddVirtualServer(server)))
        .unwrap();
    for resync in [false, true] {
        let mut proxier = proxier(ipv4_config(), kernel);
        let now = Instant::now();
        upsert(&mut proxier, service("web", "10.96.0.1"));
        let synced = proxier.sync(now).unwrap();
        assert!(
            synced.is_success() && synced.events.is_empty(),
            "{synced} {:?}",
            synced.events
        );
        if resync {
            proxier.resync();
            proxier.sync(now).unwrap();
        }
        delete(&mut proxier, "web");
        assert!(proxier.sync(now).unwrap().is_success());
        assert_eq!(virtual_servers(proxier.kernel_mut()), [""; 0]);
        kernel = proxier.into_kernel();
        let server = VirtualServer::new(key("10.96.0.1", 80), Scheduler::RR);
        kernel
            .execute(&Operation::Ipvs(IpvsOperation::AddVirtualServer(server)))
            .unwrap();
    }
}

#[test]
fn a_virtual_server_whose_addition_was_not_confirmed_is_removed_with_its_service() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.lose_reply("-A -t 10.96.0.1:80");
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("web", "10.96.0.1"));
    assert_eq!(proxier.sync(now).unwrap().counts().failed, 1);
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
    delete(&mut proxier, "web");
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(virtual_servers(proxier.kernel_mut()), [""; 0]);
}

#[test]
fn the_subject_of_a_virtual_server_is_the_service_that_took_it_over() {
    let kernel = kernel();
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("first", "10.96.0.1"));
    assert!(proxier.sync(now).unwrap().is_success());
    delete(&mut proxier, "first");
    upsert(&mut proxier, service("second", "10.96.0.1"));
    assert!(proxier.sync(now).unwrap().is_success());
    let server = key("10.96.0.1", 80);
    let server = proxier.state().virtual_server(&server).unwrap();
    assert_eq!(server.subject.to_string(), "Service ns/second");
}

#[test]
fn no_step_is_for_a_service_that_no_longer_needs_the_object() {
    let shared = |name: &str, number: u16| {
        let mut service = Service::new(ObjectName::new("ns", name))
            .with_cluster_ip(format!("10.96.0.{number}"))
            .with_port(Port::new("http", number));
        service.external_ips = vec!["203.0.113.9".into()];
        service
    };
    for (gone, stays) in [("a", "Service ns/b"), ("b", "Service ns/a")] {
        let mut proxier = proxier(ipv4_config(), kernel());
        upsert(&mut proxier, shared("a", 1));
        proxier.plan(Instant::now()).unwrap();
        upsert(&mut proxier, shared("b", 2));
        proxier.plan(Instant::now()).unwrap();
        delete(&mut proxier, gone);
        let plan = proxier.plan(Instant::now()).unwrap();
        let subjects: Vec<String> = plan.steps().map(|(_, step)| step.subject.to_string()).collect();
        assert!(subjects.iter().any(|subject| subject == stays), "{plan}");
        assert!(!subjects.contains(&format!("Service ns/{gone}")), "{plan}");
    }
}

/// The ledger names the virtual server; its address no longer identifies it. Also for a process that started after the address was lost.
#[test]
fn node_ports_are_removed_from_an_address_that_the_node_loses() {
    for restarts in [false, true] {
        lose_node_address(restarts);
    }
}

fn lose_node_address(restarts: bool) {
    let mut node_port = Service::new(ObjectName::new("ns", "web"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("web", 80).with_node_port(30_080));
    node_port.service_type = ServiceType::NodePort;
    let mut proxier = proxier(config(), host());
    let address: IpAddr = "203.0.113.50".parse().unwrap();
    let link = LinkName::new("other").unwrap();
    let links = &mut proxier.kernel_mut().links;
    links.add_link(&DummyLink::new(link)).unwrap();
    links.add(&link, &LinkAddress::host(address).unwrap()).unwrap();
    let change = Change::Services(ObjectChange::Upsert(node_port));
    proxier.change(SOURCE, change.clone());
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let served = |proxier: &mut Proxier| -> Vec<VirtualServerKey> {
        let listed = proxier.kernel_mut().ipvs.list_all().unwrap();
        listed.into_iter().map(|(server, _)| server.key).collect()
    };
    let of_node = VirtualServerKey::tcp(address, 30_080);
    // A foreign one at an address and port where a node port could be, but is not.
    let foreign = VirtualServerKey::tcp("198.51.100.1".parse::<IpAddr>().unwrap(), 30_080);
    let add = IpvsOperation::AddVirtualServer(VirtualServer::new(foreign, Scheduler::WLC));
    proxier.kernel_mut().execute(&Operation::Ipvs(add)).unwrap();
    assert!(served(&mut proxier).contains(&of_node));

    proxier.kernel_mut().links.delete_link(&link).unwrap();
    if restarts {
        proxier = self::proxier(config(), proxier.into_kernel());
        proxier.change(SOURCE, change);
    }
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let left = served(&mut proxier);
    assert!(!left.contains(&of_node), "{left:?}");
    for foreign in foreign_servers().into_iter().chain([foreign]) {
        assert!(left.contains(&foreign), "{left:?}");
    }
    // A virtual server that is added there later is foreign.
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
    let add = IpvsOperation::AddVirtualServer(VirtualServer::new(of_node, Scheduler::WLC));
    proxier.kernel_mut().execute(&Operation::Ipvs(add)).unwrap();
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
}

#[test]
fn a_link_of_another_kind_with_the_configured_name_is_reported_and_not_changed() {
    let mut kernel = kernel();
    let name = LinkName::new("kube-ipvs0").unwrap();
    kernel.links = Box::new(Fake::new().with_link(name, Some("veth"), &[]));
    let mut proxier = proxier(config(), kernel);
    let synced = proxier.sync(Instant::now()).unwrap();
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert!(
        events
            .iter()
            .any(|event| event.contains("is of kind veth, not dummy")),
        "{events:?}"
    );
    assert!(
        !synced.is_success() && !synced.plan.to_string().contains("kube-ipvs0"),
        "{}",
        synced.plan
    );
    let link = proxier.kernel_mut().links.link(&name).unwrap().unwrap();
    assert_eq!(link.kind.as_deref(), Some("veth"));
}
