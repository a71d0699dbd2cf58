//! Operations that the kernel refuses: only what depends on them is skipped, and no frontend opens without its restrictions.
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

use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernlink_ipset::{Entry, Operation as SetOperation, ProtocolPort, Set, SetName, SetType};
use kernlink_iptables_restore::Save;
use kernlink_ipvs::{Operation as IpvsOperation, RealServer, RealServerKey, Scheduler, VirtualServer};
use kernlink_netlink::Errno;
use kernlink_proxier::ipvs_mode::{Kernel, Operation, Proxier, SetId};
use kernlink_services::{Change, Event, Family, ObjectChange, Port, ServiceType, TrafficPolicy};

use crate::faulty::Faults;
use crate::node::{
    SOURCE, bound, config, endpoints, entries, kernel, key, load_balancer, position, proxier, real_servers,
    service, sync_until_nothing_waits, upsert, virtual_servers,
};

#[test]
fn tables_that_cannot_be_read_are_written_as_a_whole() {
    let mut kernel = kernel();
    kernel.rules = Faults::default().unreadable_tables();
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert!(
        events
            .iter()
            .any(|event| event.contains("IPv4 tables cannot be read")),
        "{events:?}"
    );
    assert!(position(&synced.plan, "-C INPUT") < position(&synced.plan, "ipvsadm -A -t 203.0.113.1:80"));
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
    // They are neither written nor reported again.
    let idle = proxier.sync(Instant::now()).unwrap();
    assert!(idle.plan.is_empty(), "{}", idle.plan);
    proxier.resync();
    assert_eq!(proxier.sync(Instant::now()).unwrap().events, []);
}

#[test]
fn without_rules_no_address_is_bound_and_no_restricted_virtual_server_is_added() {
    for is_readable in [true, false] {
        let mut kernel = kernel();
        let faults = Faults::default();
        faults.refuse("");
        kernel.rules = if is_readable {
            faults.tables(kernel.rules)
        } else {
            faults.unreadable_tables()
        };
        let mut proxier = proxier(config(), kernel);
        upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(!synced.is_success() && synced.counts().skipped > 0, "{synced}");
        assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
        // The virtual server of the cluster IP exists; without the address no client reaches it.
        assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
        // Later Services wait too. All steps are done after the tables can be written.
        upsert(&mut proxier, service("later", "10.96.0.2"));
        let synced = proxier.sync(Instant::now()).unwrap();
        assert_eq!(bound(proxier.kernel_mut()), [""; 0], "{synced}");
        proxier.kernel_mut().rules = Box::new(kernlink_iptables_restore::Fake::new());
        let mut at = synced.next.unwrap();
        for _ in 0..8 {
            let synced = proxier.sync(at).unwrap();
            match synced.next {
                Some(next) => at = next,
                None => break,
            }
        }
        assert_eq!(bound(proxier.kernel_mut()).len(), 3);
        assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 3);
        proxier.resync();
        let synced = proxier.sync(at).unwrap();
        assert!(
            synced.is_success() && synced.plan.is_empty(),
            "{synced}\n{}",
            synced.plan
        );
    }
}

#[test]
fn an_allow_list_is_kept_while_its_restriction_cannot_be_removed() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    // The kernel refuses to remove the frontend from the restricted ones.
    let frontend = Entry::ip_port(
        "203.0.113.1".parse().unwrap(),
        ProtocolPort::new(kernlink_ipset::Protocol::TCP, 80),
    );
    faults.refuse(&format!("del KUBE-LOAD-BALANCER-FW {frontend}"));
    upsert(&mut proxier, load_balancer(&[]));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerSourceCidr).len(),
        1,
        "{synced}"
    );
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerFirewall).len(),
        1
    );
}

#[test]
fn source_ranges_apply_although_one_of_them_cannot_be_added() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,198.18.0.0/15");
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&[]));
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15", "192.0.2.0/24"]));
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 0),
        "{synced}"
    );
    let restricted = |kernel: &mut Kernel| entries(kernel, SetId::LoadBalancerFirewall);
    assert_eq!(restricted(proxier.kernel_mut()), ["203.0.113.1,tcp:80"]);
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerSourceCidr),
        ["203.0.113.1,tcp:80,192.0.2.0/24"]
    );
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    let is_named = |text: &String| text.contains("the load balancer drops the packets of these clients");
    assert!(events.iter().any(is_named), "{events:?}");
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerSourceCidr).len(),
        2
    );
}

#[test]
fn a_new_load_balancer_is_served_to_the_source_ranges_that_could_be_added() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,198.18.0.0/15");
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15", "192.0.2.0/24"]));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 0),
        "{synced}"
    );
    assert!(is_served(&mut proxier));
    let kernel = proxier.kernel_mut();
    assert_eq!(
        entries(kernel, SetId::LoadBalancerFirewall),
        ["203.0.113.1,tcp:80"]
    );
    assert_eq!(
        entries(kernel, SetId::LoadBalancerSourceCidr),
        ["203.0.113.1,tcp:80,192.0.2.0/24"]
    );
}

/// Whether the load balancer has a virtual server, and clients reach it.
fn is_served(proxier: &mut Proxier) -> bool {
    let has_server = virtual_servers(proxier.kernel_mut()).contains(&"-t 203.0.113.1:80".to_owned());
    let is_bound = bound(proxier.kernel_mut()).contains(&"203.0.113.1/32".to_owned());
    assert_eq!(has_server, is_bound);
    has_server
}

#[test]
fn a_served_load_balancer_is_closed_while_source_ranges_that_are_added_to_it_cannot_be_applied() {
    let restrictions = [
        // Its entry, the set, and the rules that look it up.
        "add KUBE-LOAD-BALANCER-FW 203.0.113.1,tcp:80",
        "create KUBE-LOAD-BALANCER-FW",
        "KUBE-SOURCE-RANGES-FIREWALL",
    ];
    for restriction in restrictions {
        let (mut kernel, faults) = Faults::of_kernel(kernel());
        kernel.rules = faults.tables(kernel.rules);
        let is_set = restriction.starts_with("create");
        if is_set {
            faults.refuse(restriction);
        }
        let mut proxier = proxier(config(), kernel);
        upsert(&mut proxier, load_balancer(&[]));
        let mut now = Instant::now();
        assert_eq!(proxier.sync(now).unwrap().is_success(), !is_set);
        assert!(is_served(&mut proxier), "{restriction}");
        faults.refuse(restriction);
        upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
        let synced = proxier.sync(now).unwrap();
        assert!(!synced.is_success(), "{restriction}: {synced}");
        assert_eq!(synced.next, Some(now), "{restriction}: {synced}");
        let synced = proxier.sync(now).unwrap();
        assert!(!is_served(&mut proxier), "{restriction}: {synced}");
        assert!(virtual_servers(proxier.kernel_mut()).contains(&"-t 10.96.0.1:80".to_owned()));
        let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
        let is_named = |text: &String| {
            text.contains("load balancer -t 203.0.113.1:80 is not served, because its source ranges cannot")
        };
        assert!(events.iter().any(is_named), "{restriction}: {events:?}");
        // It stays closed.
        for _ in 0..5 {
            now = proxier.sync(now).unwrap().next.unwrap();
            assert!(!is_served(&mut proxier), "{restriction}");
        }
        faults.end();
        assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
        assert!(is_served(&mut proxier), "{restriction}");
        assert_eq!(
            entries(proxier.kernel_mut(), SetId::LoadBalancerFirewall),
            ["203.0.113.1,tcp:80"]
        );
        assert_eq!(
            real_servers(proxier.kernel_mut(), &key("203.0.113.1", 80)),
            [""; 0]
        );
    }
}

#[test]
fn a_served_load_balancer_is_closed_while_an_unreadable_set_prevents_the_rules_of_its_source_ranges() {
    let mut before = proxier(config(), kernel());
    upsert(&mut before, load_balancer(&[]));
    let now = Instant::now();
    assert!(before.sync(now).unwrap().is_success());
    let (kernel, faults) = Faults::of_kernel(before.into_kernel());
    faults.refuse("read set KUBE-IPVS-IPS");
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    assert_eq!(proxier.sync(now).unwrap().next, Some(now));
    let synced = proxier.sync(now).unwrap();
    assert!(!is_served(&mut proxier), "{synced}");
    assert!(virtual_servers(proxier.kernel_mut()).contains(&"-t 10.96.0.1:80".to_owned()));
    let is_named = |event: &Event| {
        event
            .to_string()
            .contains("load balancer -t 203.0.113.1:80 is not served, because its source ranges cannot")
    };
    assert!(synced.events.iter().any(is_named), "{:?}", synced.events);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert!(is_served(&mut proxier));
    let rules = proxier.kernel_mut().rules.save(&Save::all(Family::Ipv4)).unwrap();
    assert!(
        rules
            .to_string()
            .contains("--match-set KUBE-LOAD-BALANCER-FW dst,dst")
    );
}

#[test]
fn a_served_load_balancer_is_closed_while_tables_that_cannot_be_read_cannot_get_the_rules_of_its_source_ranges()
 {
    let (mut kernel, faults) = Faults::of_kernel(kernel());
    kernel.rules = faults.tables(kernel.rules);
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&[]));
    let mut now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    // The tools fail from now on.
    for fault in ["read tables", "iptables", "KUBE-SERVICES"] {
        faults.refuse(fault);
    }
    proxier.resync();
    assert!(!proxier.sync(now).unwrap().is_success());
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    assert_eq!(proxier.sync(now).unwrap().next, Some(now));
    let synced = proxier.sync(now).unwrap();
    assert!(!is_served(&mut proxier), "{synced}");
    // It stays closed.
    for _ in 0..5 {
        proxier.resync();
        now = proxier.sync(now).unwrap().next.unwrap();
        assert!(!is_served(&mut proxier));
    }
    faults.end();
    proxier.resync();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert!(is_served(&mut proxier));
}

#[test]
fn a_closed_load_balancer_is_served_when_its_source_ranges_are_removed() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&[]));
    let now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    faults.refuse("add KUBE-LOAD-BALANCER-FW 203.0.113.1,tcp:80");
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    proxier.sync(now).unwrap();
    proxier.sync(now).unwrap();
    assert!(!is_served(&mut proxier));
    upsert(&mut proxier, load_balancer(&[]));
    assert!(proxier.sync(now).unwrap().is_success());
    assert!(is_served(&mut proxier));
}

#[test]
fn traffic_is_masqueraded_while_a_virtual_server_has_remote_endpoints() {
    let mut proxier = proxier(config(), kernel());
    endpoints(&mut proxier, "balanced", &[1, 200]);
    let with_policy = |policy| {
        let mut service = load_balancer(&[]);
        service.ports[0].node_port = 30_080;
        service.external_traffic_policy = policy;
        service.health_check_node_port = if policy == TrafficPolicy::Local { 32_000 } else { 0 };
        service
    };
    upsert(&mut proxier, with_policy(TrafficPolicy::Cluster));
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    upsert(&mut proxier, with_policy(TrafficPolicy::Local));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    for (remote, local) in [
        (
            "-e -t 203.0.113.1:80 -r 10.244.0.1:8080 -m -w 0",
            "add KUBE-LOAD-BALANCER-LOCAL",
        ),
        (
            "-e -t 192.0.2.1:30080 -r 10.244.0.1:8080 -m -w 0",
            "add KUBE-NODE-PORT-LOCAL-TCP",
        ),
    ] {
        assert!(
            position(&synced.plan, remote) < position(&synced.plan, local),
            "{}",
            synced.plan
        );
    }
    // The removal of the entry precedes the addition of remote endpoints.
    upsert(&mut proxier, with_policy(TrafficPolicy::Cluster));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    for (local, remote) in [
        (
            "del KUBE-LOAD-BALANCER-LOCAL",
            "-e -t 203.0.113.1:80 -r 10.244.0.1:8080 -m -w 1",
        ),
        (
            "del KUBE-NODE-PORT-LOCAL-TCP",
            "-e -t 192.0.2.1:30080 -r 10.244.0.1:8080 -m -w 1",
        ),
    ] {
        assert!(
            position(&synced.plan, local) < position(&synced.plan, remote),
            "{}",
            synced.plan
        );
    }
}

#[test]
fn an_address_that_becomes_a_node_port_of_another_service_is_masqueraded_before_it_gets_remote_endpoints() {
    let mut proxier = proxier(config(), kernel());
    let mut external = service("external", "10.96.0.1");
    external.ports[0].port = 30_080;
    external.external_ips = vec!["192.0.2.1".to_owned()];
    external.external_traffic_policy = TrafficPolicy::Local;
    endpoints(&mut proxier, "external", &[200]);
    upsert(&mut proxier, external);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::ExternalIpLocal),
        ["192.0.2.1,tcp:30080"]
    );
    node::delete(&mut proxier, "external");
    let mut open = service("open", "10.96.0.2");
    open.service_type = ServiceType::NodePort;
    open.ports[0].node_port = 30_080;
    upsert(&mut proxier, open);
    endpoints(&mut proxier, "open", &[1]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert!(
        position(&synced.plan, "del KUBE-EXTERNAL-IP-LOCAL 192.0.2.1,tcp:30080")
            < position(&synced.plan, "-a -t 192.0.2.1:30080 -r 10.244.0.1:8080"),
        "{}",
        synced.plan
    );
}

#[test]
fn the_removal_of_a_node_port_entry_needs_the_virtual_servers_of_its_node_port_only() {
    let mut kernel = kernel();
    // The virtual server of a cluster IP with the same port number cannot be deleted.
    let mut ipvs = kernlink_ipvs::Fake::new();
    ipvs.refuse(
        IpvsOperation::DeleteVirtualServer(key("10.96.0.2", 30_080)),
        Errno::ENOMEM,
    );
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = proxier(config(), kernel);
    let mut node_port = service("web", "10.96.0.1");
    node_port.service_type = ServiceType::NodePort;
    node_port.ports[0].node_port = 30_080;
    upsert(&mut proxier, node_port);
    let mut other = service("other", "10.96.0.2");
    other.ports[0].port = 30_080;
    upsert(&mut proxier, other);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    proxier.change(SOURCE, Change::Services(ObjectChange::ReplaceAll(Vec::new())));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::NodePortTcp),
        [""; 0],
        "{synced}"
    );
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.2:30080"]);
}

#[test]
fn an_address_whose_virtual_servers_are_all_refused_is_not_bound() {
    let mut kernel = kernel();
    let mut ipvs = kernlink_ipvs::Fake::new();
    for port in [80, 81] {
        let server = VirtualServer::new(key("10.96.0.1", port), Scheduler::RR);
        ipvs.refuse(IpvsOperation::AddVirtualServer(server), Errno::ENOMEM);
    }
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = proxier(config(), kernel);
    upsert(
        &mut proxier,
        service("web", "10.96.0.1").with_port(Port::new("other", 81)),
    );
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 2, "{synced}");
    assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
    // One virtual server that the kernel accepts is enough.
    upsert(
        &mut proxier,
        service("third", "10.96.0.1").with_port(Port::new("x", 82)),
    );
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32"], "{synced}");
}

#[test]
fn real_servers_are_kept_until_one_of_their_replacements_is_in_place() {
    let mut kernel = kernel();
    let server = key("10.96.0.1", 80);
    let mut ipvs = kernlink_ipvs::Fake::new();
    for last in [3, 4] {
        let real = RealServerKey::new(IpAddr::from([10, 244, 0, last]), 8080);
        let operation = IpvsOperation::AddRealServer {
            virtual_server: server,
            real_server: RealServer::new(real),
        };
        ipvs.refuse(operation, Errno::ENOMEM);
    }
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[1, 2]);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    endpoints(&mut proxier, "web", &[3, 4]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (2, 2),
        "{synced}"
    );
    assert_eq!(
        real_servers(proxier.kernel_mut(), &server),
        ["10.244.0.1:8080", "10.244.0.2:8080"]
    );
    assert_eq!(synced.draining, 0);
    // One replacement that the kernel accepts is enough.
    endpoints(&mut proxier, "web", &[3, 4, 5]);
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.draining, 2, "{synced}");
    // The real servers without connections are deleted at the next reading.
    proxier.sync(now + Duration::from_secs(5)).unwrap();
    assert_eq!(real_servers(proxier.kernel_mut(), &server), ["10.244.0.5:8080"]);
    // All real servers of a Service without endpoints drain.
    endpoints(&mut proxier, "web", &[]);
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(real_servers(proxier.kernel_mut(), &server), [""; 0]);
}

#[test]
fn a_set_of_another_type_affects_its_family_only() {
    let mut kernel = kernel();
    let set = Set::new(SetName::new("KUBE-6-CLUSTER-IP").unwrap(), SetType::HashIp)
        .with_family(kernlink_ipset::SetFamily::Inet6);
    kernel
        .execute(&Operation::Set(SetOperation::create(set)))
        .unwrap();
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, service("four", "10.96.0.1"));
    upsert(&mut proxier, service("six", "fd00::1"));
    let synced = proxier.sync(Instant::now()).unwrap();
    let counts = synced.counts();
    assert_eq!(counts.failed, 1, "{synced}");
    // The entry, the rules of the family, the virtual server and the address.
    assert_eq!(counts.skipped, 4, "{synced}");
    assert!(
        synced
            .to_string()
            .contains("failed: ipset create KUBE-6-CLUSTER-IP"),
        "{synced}"
    );
    let servers = proxier.kernel_mut().ipvs.list_all().unwrap();
    assert!(
        servers
            .iter()
            .any(|(server, _)| server.to_string() == "-A -t 10.96.0.1:80 -s rr")
    );
    // The rules are planned again without the set; the frontend of the cluster IP still waits.
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert_eq!((synced.counts().done, synced.counts().failed), (1, 0), "{synced}");
    // After the set was destroyed, what remains is done.
    let set = SetName::new("KUBE-6-CLUSTER-IP").unwrap();
    proxier
        .kernel_mut()
        .execute(&Operation::Set(SetOperation::destroy(set)))
        .unwrap();
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert_eq!((synced.counts().done, synced.counts().failed), (1, 0), "{synced}");
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    // The entry, the rules, the virtual server and the address.
    assert_eq!(synced.plan.len(), 4, "{}", synced.plan);
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
}

#[test]
fn a_service_that_the_kernel_refuses_affects_no_other() {
    let mut kernel = kernel();
    let mut ipvs = kernlink_ipvs::Fake::new();
    let operation = IpvsOperation::AddVirtualServer(VirtualServer::new(key("10.96.0.2", 80), Scheduler::RR));
    ipvs.refuse(operation, Errno::ENOMEM);
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = proxier(config(), kernel);
    for (name, address) in [("a", "10.96.0.1"), ("b", "10.96.0.2"), ("c", "10.96.0.3")] {
        upsert(&mut proxier, service(name, address));
    }
    let synced = proxier.sync(Instant::now()).unwrap();
    let counts = synced.counts();
    assert_eq!((counts.failed, counts.skipped), (1, 1), "{synced}");
    let text = synced.to_string();
    assert!(
        text.contains("failed: ipvsadm -A -t 10.96.0.2:80 -s rr (Service ns/b)"),
        "{text}"
    );
    // Reports and printed plans number the steps alike.
    let number = text.split_once(": step ").unwrap().1.split(' ').next().unwrap();
    let plan = synced.plan.to_string();
    assert!(
        plan.contains(&format!("[{number}] ipvsadm -A -t 10.96.0.2:80 -s rr\n")),
        "{plan}\n{text}"
    );
    assert_eq!(proxier.kernel_mut().ipvs.list_virtual_servers().unwrap().len(), 2);
}

#[test]
fn a_scheduler_that_the_running_kernel_lacks_affects_its_service_only() {
    let with_scheduler = |scheduler: &str| {
        let mut service = service("b", "10.96.0.2");
        let annotation = "kernlink.io/scheduler".to_owned();
        service.annotations.insert(annotation, scheduler.to_owned());
        service
    };
    let mut kernel = kernel();
    kernel.ipvs = Box::new(kernlink_ipvs::Fake::new().with_schedulers([Scheduler::RR]));
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, service("a", "10.96.0.1"));
    upsert(&mut proxier, service("c", "10.96.0.3"));
    endpoints(&mut proxier, "b", &[1]);
    upsert(&mut proxier, with_scheduler("twos"));
    let mut at = Instant::now();
    for _ in 0..2 {
        let synced = proxier.sync(at).unwrap();
        // The virtual server failed; its real server and its address are skipped.
        let counts = synced.counts();
        assert_eq!((counts.failed, counts.skipped), (1, 2), "{synced}");
        let text = synced.to_string();
        assert!(
            text.contains("failed: ipvsadm -A -t 10.96.0.2:80 -s twos"),
            "{text}"
        );
        assert!(text.contains("scheduler twos"), "{text}");
        assert_eq!(
            virtual_servers(proxier.kernel_mut()),
            ["-t 10.96.0.1:80", "-t 10.96.0.3:80"]
        );
        // Before the retry is due, nothing is tried.
        at = synced.next.unwrap();
        let idle = proxier.sync(at - Duration::from_millis(1)).unwrap();
        assert!(
            idle.plan.is_empty() && !idle.is_success() && idle.next == Some(at),
            "{idle}"
        );
    }
    // An unknown scheduler is reported, and the default is used.
    upsert(&mut proxier, with_scheduler("zz"));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let text = synced
        .events
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ");
    assert!(
        text.starts_with(
            "Service ns/b: metadata.annotations[kernlink.io/scheduler]: invalid value \"zz\": unknown scheduler"
        ),
        "{text}"
    );
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 3);
    // An existing virtual server keeps its scheduler and its connections.
    upsert(&mut proxier, with_scheduler("sed"));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 0),
        "{synced}"
    );
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 3);
}
