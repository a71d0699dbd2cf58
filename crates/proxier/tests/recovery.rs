//! Recovery: failed operations and their dependents are retried, and after any failures the kernel reaches the desired state.
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

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_ipvs::{Operation as IpvsOperation, RealServer, RealServerKey, Scheduler, VirtualServer};
use kernlink_netlink::Errno;
use kernlink_proxier::ipvs_mode::{Operation, Proxier, SetId};
use kernlink_services::{Family, ObjectName, Port, Service, SessionAffinity, TrafficPolicy};

use crate::faulty::Faults;
use crate::node::{
    bound, config, delete, endpoints, entries, ipv4_config, kernel, key, load_balancer, proxier, service,
    sync_until_nothing_waits, upsert, virtual_servers,
};

/// Longer than the longest delay between two attempts.
const LATER: Duration = Duration::from_secs(400);

#[test]
fn addresses_are_not_bound_while_a_jump_is_missing() {
    let (mut kernel, faults) = Faults::of_kernel(kernel());
    kernel.rules = faults.unreadable_tables();
    faults.refuse("-C INPUT");
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("web", "10.96.0.2"));
    let synced = proxier.sync(now).unwrap();
    assert!(synced.counts().failed > 0, "{synced}");
    assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
    // The first load balancer changes the chains, which can be written.
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    for _ in 0..2 {
        let synced = proxier.sync(now).unwrap();
        assert_eq!(bound(proxier.kernel_mut()), [""; 0], "{}", synced.plan);
        let servers = virtual_servers(proxier.kernel_mut());
        assert!(
            !servers.contains(&"-t 203.0.113.1:80".to_owned()),
            "{}",
            synced.plan
        );
        delete(&mut proxier, "balanced");
    }
    faults.end();
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(bound(proxier.kernel_mut()).len(), 3);
}

#[test]
fn an_address_is_bound_for_any_of_its_virtual_servers_that_exists() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("-A -t 10.96.0.1:443");
    faults.refuse("address replace 10.96.0.1/32");
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    upsert(
        &mut proxier,
        service("web", "10.96.0.1").with_port(Port::new("https", 443)),
    );
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 2, "{synced}\n{}", synced.plan);
    // Both retries are due, and the address can be bound now.
    faults.end();
    faults.refuse("-A -t 10.96.0.1:443");
    let synced = proxier.sync(now + LATER).unwrap();
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32"], "{synced}");
}

#[test]
fn an_address_that_waits_for_several_virtual_servers_is_bound_with_the_first_one_that_is_added() {
    let at_external_ip = |(name, cluster_ip, port): (&str, &str, u16)| {
        let mut service = Service::new(ObjectName::new("ns", name))
            .with_cluster_ip(cluster_ip)
            .with_port(Port::new("port", port));
        service.external_ips = vec!["203.0.113.1".to_owned()];
        service
    };
    let services = [("web", "10.96.0.2", 80), ("dns", "10.96.0.3", 81)];
    for added in services {
        let (kernel, faults) = Faults::of_kernel(kernel());
        faults.refuse("-A -t 203.0.113.1");
        let mut proxier = proxier(ipv4_config(), kernel);
        let now = Instant::now();
        for service in services {
            upsert(&mut proxier, at_external_ip(service));
        }
        assert_eq!(proxier.sync(now).unwrap().counts().failed, 2);
        // The step was skipped; now it is left out of the plan. No retry is due.
        proxier.resync();
        assert!(proxier.sync(now).unwrap().plan.is_empty());
        faults.end();
        let mut changed = at_external_ip(added);
        changed.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(60));
        upsert(&mut proxier, changed);
        let synced = proxier.sync(now).unwrap();
        let bound = bound(proxier.kernel_mut());
        assert!(
            bound.contains(&"203.0.113.1/32".to_owned()),
            "{added:?}: {}",
            synced.plan
        );
    }
}

#[test]
fn an_entry_and_an_address_whose_deletion_had_no_reply_are_added_again_when_the_service_returns() {
    for lost in [
        "del KUBE-CLUSTER-IP",
        "del KUBE-IPVS-IPS",
        "address delete 10.96.0.1",
    ] {
        let (kernel, faults) = Faults::of_kernel(kernel());
        let mut proxier = proxier(ipv4_config(), kernel);
        let now = Instant::now();
        upsert(&mut proxier, service("web", "10.96.0.1"));
        assert!(proxier.sync(now).unwrap().is_success());
        faults.lose_reply(lost);
        delete(&mut proxier, "web");
        let synced = proxier.sync(now).unwrap();
        assert_eq!(synced.counts().failed, 1, "{synced}");
        faults.end();
        // Before the retry is due.
        upsert(&mut proxier, service("web", "10.96.0.1"));
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success(), "{lost}: {synced}");
        let kernel = proxier.kernel_mut();
        assert_eq!(bound(kernel), ["10.96.0.1/32"], "{lost}");
        assert_eq!(entries(kernel, SetId::ClusterIp), ["10.96.0.1,tcp:80"], "{lost}");
        assert_eq!(entries(kernel, SetId::IpvsIps), ["10.96.0.1"], "{lost}");
    }
}

#[test]
fn a_step_that_needs_a_waiting_step_is_done_later() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("-A -t 203.0.113.1:80");
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    upsert(&mut proxier, load_balancer(&[]));
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    // When the retry is due, its step needs another one that failed.
    let due = synced.next.unwrap();
    faults.end();
    faults.refuse("add KUBE-LOAD-BALANCER-SOURCE-CIDR");
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    let synced = proxier.sync(due - Duration::from_nanos(1)).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    proxier.sync(due).unwrap();
    faults.end();
    sync_until_nothing_waits(&mut proxier, due);
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32", "203.0.113.1/32"]);
}

#[test]
fn real_servers_are_not_added_while_a_local_policy_entry_cannot_be_removed() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    let with_policy = |policy| {
        let mut service = load_balancer(&[]);
        service.external_traffic_policy = policy;
        service.health_check_node_port = if policy == TrafficPolicy::Local { 32_000 } else { 0 };
        service
    };
    endpoints(&mut proxier, "balanced", &[1, 200]);
    upsert(&mut proxier, with_policy(TrafficPolicy::Local));
    assert!(proxier.sync(now).unwrap().is_success());
    faults.refuse("del KUBE-LOAD-BALANCER-LOCAL");
    upsert(&mut proxier, with_policy(TrafficPolicy::Cluster));
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    let real_servers = |proxier: &mut Proxier| {
        let server = key("203.0.113.1", 80);
        let listed = proxier.kernel_mut().ipvs.list_real_servers(&server).unwrap();
        listed.len()
    };
    assert_eq!(real_servers(&mut proxier), 1);
    // A further remote endpoint: both would be used without masquerading.
    endpoints(&mut proxier, "balanced", &[1, 2, 200]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(real_servers(&mut proxier), 1, "{}", synced.plan);
    faults.end();
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(real_servers(&mut proxier), 3);
}

#[test]
fn a_virtual_server_is_removed_after_its_address_was_deleted_by_another_program() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    upsert(&mut proxier, service("web", "10.96.0.1"));
    assert!(proxier.sync(now).unwrap().is_success());
    faults.refuse("address delete");
    delete(&mut proxier, "web");
    let synced = proxier.sync(now).unwrap();
    assert!(
        synced.counts().failed == 1 && synced.counts().skipped > 0,
        "{synced}"
    );
    faults.end();
    let link = LinkName::new("kube-ipvs0").unwrap();
    let address = LinkAddress::host([10, 96, 0, 1].into()).unwrap();
    let delete_address = kernlink_dummylink::Operation::DeleteAddress(link, address.key);
    proxier
        .kernel_mut()
        .execute(&Operation::Link(delete_address))
        .unwrap();
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(virtual_servers(proxier.kernel_mut()), [""; 0]);
}

#[test]
fn the_maximum_delay_is_accepted() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("-A -t 10.96.0.1:80");
    let mut proxier = proxier(ipv4_config(), kernel);
    proxier.set_backoff(kernlink_proxier::Backoff {
        initial: Duration::MAX,
        max: Duration::MAX,
    });
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.next.unwrap() > now + LATER);
}

#[test]
fn a_failed_operation_that_is_no_longer_desired_is_not_retried() {
    let mut kernel = kernel();
    let operation = IpvsOperation::AddRealServer {
        virtual_server: key("10.96.0.1", 80),
        real_server: RealServer::new(RealServerKey::new(IpAddr::from([10, 244, 0, 255]), 8080)),
    };
    let mut ipvs = kernlink_ipvs::Fake::new();
    ipvs.refuse(operation, Errno::EINVAL);
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, service("a", "10.96.0.1"));
    endpoints(&mut proxier, "a", &[255]);
    let at = Instant::now();
    let synced = proxier.sync(at).unwrap();
    assert_eq!((synced.counts().failed, synced.waiting), (1, 1), "{synced}");
    // Another endpoint replaces it before the retry is due.
    endpoints(&mut proxier, "a", &[1]);
    let synced = proxier.sync(at).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!((synced.waiting, synced.next), (0, None));
}

#[test]
fn a_retry_that_fell_due_stays_due_if_a_later_call_passes_an_earlier_time() {
    let at = Instant::now();
    for is_planned in [true, false] {
        let key = key("10.96.0.1", 80);
        let operation = IpvsOperation::AddVirtualServer(VirtualServer::new(key, Scheduler::RR));
        let mut kernel = kernel();
        let mut ipvs = kernlink_ipvs::Fake::new();
        ipvs.refuse(operation, Errno::EINVAL);
        kernel.ipvs = Box::new(ipvs);
        let mut proxier = proxier(config(), kernel);
        upsert(&mut proxier, service("a", "10.96.0.1"));
        let synced = proxier.sync(at).unwrap();
        assert_eq!((synced.counts().failed, synced.waiting), (1, 1), "{synced}");
        let late = at + Duration::from_secs(3600);
        if is_planned {
            assert!(!proxier.plan(late).unwrap().is_empty());
        } else {
            assert_eq!(proxier.sync(late).unwrap().counts().failed, 1);
        }
        let synced = proxier.sync(at).unwrap();
        assert_eq!(synced.counts().failed, usize::from(is_planned), "{synced}");
        assert_eq!(synced.waiting, 1);
        assert!(synced.next.is_some(), "it is tried again");
    }
}

/// A sequence of numbers that is the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn after_any_failures_the_kernel_reaches_the_desired_state() {
    const COMMANDS: [&str; 18] = [
        "ipvsadm -A",
        "ipvsadm -E",
        "ipvsadm -D",
        "-a -t",
        "-d -t",
        "-e -t",
        "-A -t 203.0.113",
        "-A -t 10.96.0.1:80",
        "-a -t 192.0.2.1",
        "add KUBE",
        "del KUBE",
        "add KUBE-LOAD-BALANCER",
        "del KUBE-NODE-PORT",
        "add KUBE-IPVS-IPS",
        "create KUBE",
        "address replace",
        "address delete",
        "-C INPUT",
    ];
    for seed in 0..40 {
        let mut numbers = Numbers(seed);
        let (mut kernel, faults) = Faults::of_kernel(kernel());
        if seed % 3 == 0 {
            kernel.rules = faults.unreadable_tables();
        }
        let mut proxier = proxier(ipv4_config(), kernel);
        let mut now = Instant::now();
        let mut next = None;
        for _ in 0..40 {
            match numbers.below(10) {
                0..=3 => {
                    let number = numbers.below(4);
                    let mut service = load_balancer(if numbers.below(2) == 0 {
                        &[]
                    } else {
                        &["198.18.0.0/15"]
                    });
                    service.name = ObjectName::new("ns", format!("s{number}"));
                    service.cluster_ip = format!("10.96.0.{}", numbers.below(3) + 1);
                    service.ingress[0].ip = format!("203.0.113.{}", numbers.below(2) + 1);
                    if numbers.below(2) == 0 {
                        service = service.with_port(Port::new("https", 443));
                    }
                    if numbers.below(2) == 0 {
                        service.ports[0].node_port = 30_080 + u16::try_from(numbers.below(2)).unwrap();
                    }
                    if numbers.below(2) == 0 {
                        service.external_traffic_policy = TrafficPolicy::Local;
                        service.health_check_node_port = 32_000;
                    }
                    upsert(&mut proxier, service);
                }
                4 => delete(&mut proxier, &format!("s{}", numbers.below(4))),
                5 | 6 => {
                    let some: Vec<u8> = [1, 2, 3, 200, 201]
                        .into_iter()
                        .filter(|_| numbers.below(2) == 0)
                        .collect();
                    endpoints(&mut proxier, &format!("s{}", numbers.below(4)), &some);
                }
                7 => {
                    let command = COMMANDS[usize::try_from(numbers.below(18)).unwrap()];
                    if numbers.below(3) == 0 {
                        faults.lose_reply(command);
                    } else {
                        faults.refuse(command);
                    }
                }
                8 => faults.end(),
                _ => match numbers.below(4) {
                    0 => proxier.resync(),
                    1 => now += LATER,
                    2 => drop(proxier.plan(now)),
                    _ => now = next.unwrap_or(now),
                },
            }
            if numbers.below(2) == 0 {
                next = proxier.sync(now).unwrap().next;
            }
        }
        faults.end();
        sync_until_nothing_waits(&mut proxier, now);
        proxier.resync();
        let plan = proxier.plan(now).unwrap();
        let left: Vec<String> = plan
            .steps()
            .map(|(_, step)| step.operation.to_string())
            .filter(|command| !command.contains("iptables"))
            .collect();
        assert_eq!(left, [""; 0], "seed {seed}");
        let desired: Vec<String> = proxier
            .state()
            .virtual_servers(Family::Ipv4)
            .map(|server| server.virtual_server.key.to_string())
            .collect();
        assert_eq!(virtual_servers(proxier.kernel_mut()), desired, "seed {seed}");
    }
}
