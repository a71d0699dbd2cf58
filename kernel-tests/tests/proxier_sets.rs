//! The proxier with the sets and rules of the running kernel, and other kernel objects in memory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_ipset::{Entry, IpSets, Protocol, ProtocolPort};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{requires, tools};
use kernlink_proxier::ipvs_mode::retire::Retiring;
use kernlink_proxier::ipvs_mode::{Config, Kernel, Operation, Proxier, SetId};
use kernlink_proxier::retire::remove_all;
use kernlink_proxier::{Change, Family, Kind, ObjectChange, ObjectName, Port, Service, SourceId};

/// The calling thread's sets and tables.
fn kernel() -> Kernel {
    let mut kernel = Kernel::fake();
    kernel.sets = Box::new(kernlink_ipset::Client::open().unwrap());
    kernel.rules = Box::new(kernlink_iptables_restore::Client::new().with_wait(Duration::from_secs(30)));
    kernel
}

fn proxier(kernel: Kernel) -> Proxier {
    let mut config = Config::new("node-a");
    config.services.families = [Family::Ipv4].into();
    let mut proxier = Proxier::new(&config, kernel).unwrap();
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    proxier
}

/// A Service with TCP ports from 1 to `last`.
fn service(name: &str, address: &str, last: u16) -> Service {
    let service = Service::new(ObjectName::new("ns", name)).with_cluster_ip(address);
    (1..=last).fold(service, |service, port| {
        service.with_port(Port::new(format!("p{port}"), port))
    })
}

fn upsert(proxier: &mut Proxier, service: Service) {
    proxier.change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
}

fn size_of(set: SetId) -> (usize, u32) {
    let mut sets = kernlink_ipset::Client::open().unwrap();
    let contents = sets.list_set(&set.name(Family::Ipv4)).unwrap();
    (
        contents.entries.len(),
        contents.header.set.options.maxelem.unwrap(),
    )
}

#[test]
fn a_full_set_grows_while_rules_use_it_and_packets_match_its_entries_all_the_time() {
    requires!(Feature::IpSet, Feature::Iptables);
    // An emulated machine takes many minutes for so many ports. It runs the other test, which replaces a small set.
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    if processors.contains("QEMU TCG CPU") {
        return;
    }
    let namespace = NetNs::new();
    let _on_node = namespace.enter();
    let mut proxier = self::proxier(kernel());
    upsert(&mut proxier, service("first", "10.96.0.1", 65_535));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(size_of(SetId::ClusterIp), (65_535, 65_536));
    let uses = tools::iptables_save("nat");
    assert!(uses.contains("--match-set KUBE-CLUSTER-IP"), "{uses}");

    // Reads entries that exist before and after, as fast as it can, until the sync has ended.
    let has_ended = AtomicBool::new(false);
    let reader = kernlink_ipset::Client::open().unwrap();
    let read = |mut sets: kernlink_ipset::Client| {
        let name = SetId::ClusterIp.name(Family::Ipv4);
        let port = |port| ProtocolPort::new(Protocol::TCP, port);
        let entries = [1, 30_000, 65_535].map(|n| Entry::ip_port("10.96.0.1".parse().unwrap(), port(n)));
        let mut readings = 0_u64;
        while !has_ended.load(Ordering::Relaxed) || readings == 0 {
            for entry in &entries {
                assert!(
                    sets.test(&name, entry).unwrap(),
                    "{entry} is missing after {readings} readings"
                );
            }
            readings += 1;
        }
    };
    thread::scope(|scope| {
        let reader = scope.spawn(|| read(reader));
        upsert(&mut proxier, service("second", "10.96.0.2", 4_500));
        let synced = proxier.sync(Instant::now()).unwrap();
        has_ended.store(true, Ordering::Relaxed);
        assert!(synced.is_success(), "{synced}");
        let replaced = synced
            .plan
            .steps()
            .filter(|(_, step)| matches!(step.operation, Operation::ReplaceSet(_)));
        assert_eq!(replaced.count(), 1);
        reader.join().unwrap();
    });
    assert_eq!(size_of(SetId::ClusterIp), (70_035, 131_072));
    // The rules still use it, and the temporary set is gone.
    assert_eq!(tools::iptables_save("nat"), uses);
    assert!(!tools::ipset_save().contains('~'));
    let refused = tools::run("ipset", &["destroy", "KUBE-CLUSTER-IP"]).unwrap_err();
    assert!(refused.contains("in use"), "{refused}");

    proxier.resync();
    let idle = proxier.sync(Instant::now()).unwrap();
    assert!(idle.plan.is_empty(), "{}", idle.plan);
}

#[test]
fn a_set_that_another_program_made_smaller_than_kube_proxys_is_replaced() {
    requires!(Feature::IpSet, Feature::Iptables);
    let namespace = NetNs::new();
    let _on_node = namespace.enter();
    tools::must(
        "ipset",
        &["create", "KUBE-CLUSTER-IP", "hash:ip,port", "maxelem", "64"],
    );
    // What a process left that ended during a replacement.
    tools::must("ipset", &["create", "KUBE-CLUSTER-IP~", "hash:ip,port"]);
    tools::must("ipset", &["create", "KUBE-6-LOAD-BALANCER-SOURCE-CI~", "hash:ip"]);
    let mut proxier = self::proxier(kernel());
    upsert(&mut proxier, service("first", "10.96.0.1", 100));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(size_of(SetId::ClusterIp), (100, 65_536));
    assert!(!tools::ipset_save().contains('~'));
}

#[test]
fn a_set_that_another_program_made_with_other_parameters_is_replaced_while_rules_use_it() {
    requires!(Feature::IpSet, Feature::Iptables);
    let namespace = NetNs::new();
    let _on_node = namespace.enter();
    for parameters in [
        &["timeout", "600"][..],
        &["comment", "counters"],
        &["counters", "maxelem", "64"],
    ] {
        let create = ["create", "KUBE-CLUSTER-IP", "hash:ip,port"];
        tools::must("ipset", &[&create, parameters].concat());
        for entry in ["10.96.0.1,tcp:1", "10.96.0.9,tcp:1"] {
            tools::must("ipset", &["add", "KUBE-CLUSTER-IP", entry]);
        }
        // A rule of kube-proxy, whose chain is that of the proxier.
        tools::must("iptables", &["-t", "nat", "-N", "KUBE-SERVICES"]);
        let rule = "-t nat -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT";
        tools::must("iptables", &rule.split(' ').collect::<Vec<_>>());
        let mut proxier = self::proxier(kernel());
        upsert(&mut proxier, service("first", "10.96.0.1", 3));
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{parameters:?}: {synced}");
        assert_eq!(size_of(SetId::ClusterIp), (3, 65_536), "{parameters:?}");
        let saved = tools::ipset_save();
        let saved: Vec<&str> = saved
            .lines()
            .filter(|line| line.contains("KUBE-CLUSTER-IP"))
            .collect();
        for option in ["timeout", "comment", "counters", "packets"] {
            assert!(saved.iter().all(|line| !line.contains(option)), "{saved:#?}");
        }
        proxier.resync();
        let idle = proxier.sync(Instant::now()).unwrap();
        assert!(idle.plan.is_empty(), "{parameters:?}: {}", idle.plan);
        let removed = remove_all(&mut [Box::new(retiring())], Instant::now());
        assert_eq!(removed.failures, [""; 0], "{parameters:?}");
        assert!(!tools::ipset_save().contains("KUBE-CLUSTER-IP"));
    }
}

fn retiring() -> Retiring {
    let kernel = kernel();
    let links = Box::new(kernlink_dummylink::Client::open().unwrap());
    Retiring::new(Config::new("node-a"), links)
        .unwrap()
        .with_kernel(kernel)
}

#[test]
fn a_set_of_another_type_is_left_and_only_its_services_wait() {
    requires!(Feature::IpSet, Feature::Iptables);
    let namespace = NetNs::new();
    let _on_node = namespace.enter();
    tools::must("ipset", &["create", "KUBE-EXTERNAL-IP", "hash:net"]);
    let mut proxier = self::proxier(kernel());
    let mut external = service("external", "10.96.0.2", 1);
    external.external_ips = vec!["198.51.100.7".to_owned()];
    upsert(&mut proxier, external);
    upsert(&mut proxier, service("first", "10.96.0.1", 1));
    let mut events = Vec::new();
    let mut now = Instant::now();
    for _ in 0..3 {
        let synced = proxier.sync(now).unwrap();
        events.extend(synced.events.iter().map(ToString::to_string));
        now = synced.next.unwrap().max(now);
        proxier.resync();
    }
    let reported = events.iter().filter(|event| event.contains("KUBE-EXTERNAL-IP"));
    assert_eq!(reported.count(), 1, "{events:#?}");
    // The rules do without the set, and both cluster IPs are served.
    let rules = tools::iptables_save("nat");
    assert!(
        rules.contains("--match-set KUBE-CLUSTER-IP") && !rules.contains("KUBE-EXTERNAL-IP"),
        "{rules}"
    );
    assert_eq!(size_of(SetId::ClusterIp).0, 2);
    tools::must("ipset", &["destroy", "KUBE-EXTERNAL-IP"]);
    for _ in 0..10 {
        let synced = proxier.sync(now).unwrap();
        let Some(next) = synced.next else { break };
        now = next.max(now);
    }
    assert_eq!(size_of(SetId::ExternalIp).0, 1);
    assert!(tools::iptables_save("nat").contains("--match-set KUBE-EXTERNAL-IP"));
}
