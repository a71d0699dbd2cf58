//! Draining on the fake kernel: a removed endpoint keeps its connections, and is deleted when they have ended or a limit has passed.
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

use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernlink_ipset::{Entry, Operation as SetOperation, SetName, Timeout};
use kernlink_ipvs::{
    ForwardingMethod, Ipvs, Operation as IpvsOperation, RealServer, RealServerKey, VirtualServerKey, Weight,
};
use kernlink_netlink::Errno;
use kernlink_proxier::ipvs_mode::{Config, Kernel, Operation, Proxier, Synced};
use kernlink_services::{Port, Protocol, Service};

use crate::faulty::Faults;
use crate::node::{
    delete, endpoints, ipv4_config, kernel, key, position, proxier, real_servers, service, upsert,
};
use crate::shared_ipvs::SharedIpvs;

/// How often virtual servers with draining real servers are read.
const INTERVAL: Duration = Duration::from_secs(5);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The virtual server of the Service `web`.
fn web() -> VirtualServerKey {
    key("10.96.0.1", 80)
}

fn pod(last: u8) -> RealServerKey {
    RealServerKey::new(IpAddr::from([10, 244, 0, last]), 8080)
}

fn with_limit(timeout: &str) -> Service {
    let mut service = service("web", "10.96.0.1");
    let annotation = "kernlink.io/drain-timeout".to_owned();
    service.annotations.insert(annotation, timeout.to_owned());
    service
}

/// The kernel with a fake of IPVS that the test shares.
fn shared_kernel() -> (Kernel, SharedIpvs) {
    let (mut kernel, ipvs) = (kernel(), SharedIpvs::default());
    kernel.ipvs = Box::new(ipvs.clone());
    (kernel, ipvs)
}

/// A synced proxier with this Service and the endpoints 1 and 2, each with a connection.
fn serving(service: Service, now: Instant) -> (Proxier, SharedIpvs) {
    let (kernel, ipvs) = shared_kernel();
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, service);
    endpoints(&mut proxier, "web", &[1, 2]);
    assert!(proxier.sync(now).unwrap().is_success());
    ipvs.connect(&web(), &pod(1), 1);
    ipvs.connect(&web(), &pod(2), 1);
    ipvs.executed();
    (proxier, ipvs)
}

/// The same kernel with a new process that has this Service and these endpoints.
fn restarted(proxier: Proxier, service: Service, last: &[u8]) -> Proxier {
    let mut restarted = node::proxier(ipv4_config(), proxier.into_kernel());
    upsert(&mut restarted, service);
    endpoints(&mut restarted, "web", last);
    restarted
}

fn commands(synced: &Synced) -> Vec<String> {
    let steps = synced.plan.steps();
    steps.map(|(_, step)| step.operation.to_string()).collect()
}

/// The deadlines in the kernel, with their timeouts; `None` without the set.
fn deadlines(proxier: &mut Proxier) -> Option<Vec<String>> {
    let name = SetName::new("KERNLINK-DRAIN").unwrap();
    let listed = proxier.kernel_mut().sets.list_set(&name).ok()?;
    Some(listed.entries.iter().map(ToString::to_string).collect())
}

const NO_DEADLINE: Option<Vec<String>> = Some(Vec::new());

#[test]
fn an_endpoint_that_leaves_keeps_its_connections_until_they_end() {
    let now = Instant::now();
    let (mut proxier, ipvs) = serving(service("web", "10.96.0.1"), now);
    let before = proxier.cost();
    endpoints(&mut proxier, "web", &[2, 3]);
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    let expected = [
        "ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.3:8080 -m -w 1",
        "ipvsadm -e -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 0",
    ];
    assert_eq!(commands(&synced), expected);
    assert_eq!((synced.draining, synced.next), (1, Some(now + INTERVAL)));
    let cost = proxier.cost();
    assert_eq!((cost.listings, cost.rereads), (before.listings, before.rereads));
    // Only its virtual server is read, every five seconds.
    for round in 1..4 {
        let at = now + INTERVAL * round;
        let early = proxier.sync(at - Duration::from_millis(1)).unwrap();
        assert_eq!(early.next, Some(at), "{early}");
        let synced = proxier.sync(at).unwrap();
        assert!(synced.plan.is_empty(), "{}", synced.plan);
        assert_eq!((synced.draining, synced.next), (1, Some(at + INTERVAL)));
        let cost = proxier.cost();
        let expected = (before.listings, before.rereads + round as usize);
        assert_eq!((cost.listings, cost.rereads), expected);
    }
    ipvs.connect(&web(), &pod(1), 0);
    let synced = proxier.sync(now + INTERVAL * 4).unwrap();
    assert_eq!(
        commands(&synced),
        ["ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.1:8080"]
    );
    assert_eq!((synced.draining, synced.next), (0, None));
    assert_eq!(deadlines(&mut proxier), None, "no set without a limit");
}

#[test]
fn an_endpoint_that_returns_gets_its_weight_back_and_keeps_its_connections() {
    let now = Instant::now();
    for is_restarted in [false, true] {
        let (mut proxier, ipvs) = serving(with_limit("60s"), now);
        endpoints(&mut proxier, "web", &[2]);
        proxier.sync(now).unwrap();
        ipvs.executed();
        if is_restarted {
            proxier = restarted(proxier, with_limit("60s"), &[]);
        }
        endpoints(&mut proxier, "web", &[1, 2]);
        let synced = proxier.sync(now + seconds(1)).unwrap();
        assert!(synced.is_success(), "{synced}");
        assert_eq!(ipvs.executed(), ["-e -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1"]);
        assert_eq!((synced.draining, synced.next), (0, None));
        assert_eq!(deadlines(&mut proxier), NO_DEADLINE);
        let (weight, deadline) = ("-e -t 10.96.0.1:80", "del KERNLINK-DRAIN");
        assert!(position(&synced.plan, weight) < position(&synced.plan, deadline));
    }
}

#[test]
fn udp_and_sctp_endpoints_are_deleted_at_once() {
    for (protocol, flag) in [(Protocol::Udp, "-u"), (Protocol::Sctp, "--sctp-service")] {
        let now = Instant::now();
        let (kernel, ipvs) = shared_kernel();
        let mut proxier = proxier(ipv4_config(), kernel);
        let mut service = service("web", "10.96.0.1");
        service.ports[0].protocol = protocol;
        upsert(&mut proxier, service);
        let set = |proxier: &mut Proxier, last: &[u8]| {
            let slice = node::slice("web", last);
            node::deliver(proxier, slice, protocol);
        };
        set(&mut proxier, &[1, 2]);
        assert!(proxier.sync(now).unwrap().is_success());
        ipvs.executed();
        set(&mut proxier, &[2]);
        let synced = proxier.sync(now).unwrap();
        assert_eq!(
            ipvs.executed(),
            [format!("-d {flag} 10.96.0.1:80 -r 10.244.0.1:8080")]
        );
        assert_eq!((synced.draining, synced.next), (0, None));
    }
}

#[test]
fn with_a_limit_of_0_or_a_scheduler_that_refuses_at_weight_0_real_servers_are_deleted_at_once() {
    let now = Instant::now();
    let scheduled = |scheduler: &str, flags: &str| {
        let mut service = service("web", "10.96.0.1");
        for (name, value) in [("scheduler", scheduler), ("scheduler-flags", flags)] {
            let annotation = format!("kernlink.io/{name}");
            service.annotations.insert(annotation, value.to_owned());
        }
        service
    };
    for (service, command) in [
        (with_limit("0"), "-d"),
        (scheduled("sh", ""), "-d"),
        (scheduled("mh", "mh-port"), "-d"),
        (scheduled("dh", ""), "-d"),
        (scheduled("sh", "sh-fallback"), "-e"),
        (scheduled("mh", "mh-fallback,mh-port"), "-e"),
        (scheduled("wrr", ""), "-e"),
    ] {
        let (mut proxier, ipvs) = serving(service, now);
        endpoints(&mut proxier, "web", &[2]);
        assert!(proxier.sync(now).unwrap().is_success());
        let executed = ipvs.executed();
        assert!(
            executed.len() == 1 && executed[0].starts_with(command),
            "{executed:?}"
        );
    }
}

#[test]
fn a_limit_that_passes_deletes_the_real_server_and_its_deadline() {
    let now = Instant::now();
    let (mut proxier, _ipvs) = serving(with_limit("12s"), now);
    assert_eq!(deadlines(&mut proxier), None);
    endpoints(&mut proxier, "web", &[2]);
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    let entry = "10.96.0.1,tcp:80,10.244.0.1 timeout 12";
    assert_eq!(deadlines(&mut proxier), Some(vec![entry.to_owned()]));
    let (deadline, weight) = ("add KERNLINK-DRAIN", "-r 10.244.0.1:8080 -m -w 0");
    assert!(position(&synced.plan, "create KERNLINK-DRAIN") < position(&synced.plan, deadline));
    assert!(position(&synced.plan, deadline) < position(&synced.plan, weight));
    // Read at 5 and 10 seconds, deleted at 12.
    let mut at = now;
    for expected in [5, 10, 12] {
        let synced = proxier.sync(at).unwrap();
        assert_eq!(synced.next, Some(now + seconds(expected)), "{synced}");
        at = now + seconds(expected);
    }
    let synced = proxier.sync(at).unwrap();
    assert_eq!(
        commands(&synced),
        [
            "ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.1:8080",
            "ipset del KERNLINK-DRAIN 10.96.0.1,tcp:80,10.244.0.1 -exist",
        ]
    );
    assert_eq!((synced.draining, synced.next), (0, None));
    assert_eq!(deadlines(&mut proxier), NO_DEADLINE);
    // The set exists, so the next deadline is one entry.
    endpoints(&mut proxier, "web", &[]);
    assert_eq!(proxier.sync(at).unwrap().plan.len(), 2);
}

#[test]
fn a_new_process_continues_with_the_remaining_time() {
    let now = Instant::now();
    let (mut proxier, _ipvs) = serving(with_limit("60s"), now);
    endpoints(&mut proxier, "web", &[2]);
    assert!(proxier.sync(now).unwrap().is_success());
    // The time in the fake does not pass: an entry with less time left replaces the first one.
    let left = drain_entry("10.96.0.1,tcp:80,10.244.0.1", Some(3));
    proxier.kernel_mut().execute(&left).unwrap();
    let mut restarted = restarted(proxier, with_limit("60s"), &[2]);
    let synced = restarted.sync(now).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!((synced.draining, synced.next), (1, Some(now + seconds(3))));
    let synced = restarted.sync(now + seconds(3)).unwrap();
    assert_eq!(
        commands(&synced)[0],
        "ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.1:8080"
    );
    assert_eq!(deadlines(&mut restarted), NO_DEADLINE);
}

/// The addition of a deadline by another program, or its removal.
fn drain_entry(entry: &str, timeout: Option<u32>) -> Operation {
    let name = SetName::new("KERNLINK-DRAIN").unwrap();
    let set_type = kernlink_ipset::SetType::HashIpPortIp;
    let entry = Entry::parse(entry, set_type, kernlink_ipset::Family::Ipv4).unwrap();
    Operation::Set(match timeout {
        Some(left) => SetOperation::ensure(name, entry.with_timeout(Timeout::from_secs(left).unwrap())),
        None => SetOperation::delete(name, entry),
    })
}

#[test]
fn a_draining_real_server_without_a_deadline_gets_one_if_its_service_has_a_limit() {
    let now = Instant::now();
    let (mut proxier, _ipvs) = serving(service("web", "10.96.0.1"), now);
    endpoints(&mut proxier, "web", &[2]);
    assert!(proxier.sync(now).unwrap().is_success());
    assert_eq!(deadlines(&mut proxier), None);
    // A process with a limit follows.
    let mut proxier = restarted(proxier, with_limit("30s"), &[2]);
    assert!(proxier.sync(now).unwrap().is_success());
    let entry = |left: u32| Some(vec![format!("10.96.0.1,tcp:80,10.244.0.1 timeout {left}")]);
    assert_eq!(deadlines(&mut proxier), entry(30));
    // Another program removes the entry: the remaining time is stored again.
    let gone = drain_entry("10.96.0.1,tcp:80,10.244.0.1", None);
    proxier.kernel_mut().execute(&gone).unwrap();
    proxier.resync();
    assert!(proxier.sync(now + seconds(10)).unwrap().is_success());
    assert_eq!(deadlines(&mut proxier), entry(20));
    // A shorter limit applies from now on, a longer one does not change the deadline.
    upsert(&mut proxier, with_limit("7s"));
    assert!(proxier.sync(now + seconds(10)).unwrap().is_success());
    assert_eq!(deadlines(&mut proxier), entry(7));
    upsert(&mut proxier, with_limit("90s"));
    assert!(proxier.sync(now + seconds(11)).unwrap().plan.is_empty());
    // Without a limit it drains until its connections end.
    upsert(&mut proxier, with_limit("none"));
    let synced = proxier.sync(now + seconds(11)).unwrap();
    assert_eq!(deadlines(&mut proxier), NO_DEADLINE, "{}", synced.plan);
    assert_eq!(proxier.sync(now + seconds(600)).unwrap().draining, 1);
    upsert(&mut proxier, with_limit("0"));
    let synced = proxier.sync(now + seconds(600)).unwrap();
    assert_eq!(
        commands(&synced),
        ["ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.1:8080"]
    );
}

#[test]
fn a_deadline_does_not_outlive_its_virtual_server() {
    let now = Instant::now();
    for is_restarted in [false, true] {
        let (mut proxier, _ipvs) = serving(with_limit("60s"), now);
        endpoints(&mut proxier, "web", &[2]);
        assert!(proxier.sync(now).unwrap().is_success());
        delete(&mut proxier, "web");
        if is_restarted {
            // The Service is deleted while no process runs; its virtual server is gone too.
            let delete = IpvsOperation::DeleteVirtualServer(web());
            proxier.kernel_mut().execute(&Operation::Ipvs(delete)).unwrap();
            proxier = node::proxier(ipv4_config(), proxier.into_kernel());
        }
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success(), "{synced}");
        assert_eq!(deadlines(&mut proxier), NO_DEADLINE, "{}", synced.plan);
        assert_eq!((synced.draining, synced.next), (0, None));
        // The Service returns with the endpoint: nothing deletes it later.
        upsert(&mut proxier, with_limit("60s"));
        endpoints(&mut proxier, "web", &[1, 2]);
        assert!(proxier.sync(now).unwrap().is_success());
        let synced = proxier.sync(now + seconds(120)).unwrap();
        assert!(synced.plan.is_empty() && synced.next.is_none(), "{}", synced.plan);
    }
}

#[test]
fn real_servers_at_one_address_share_the_later_deadline() {
    let now = Instant::now();
    let (mut proxier, ipvs) = serving(with_limit("60s"), now);
    let extra = |port| node::slice_at("web-2", "web", &[1], port);
    node::deliver(&mut proxier, extra(9090), Protocol::Tcp);
    assert!(proxier.sync(now).unwrap().is_success());
    let second = RealServerKey::new(IpAddr::from([10, 244, 0, 1]), 9090);
    ipvs.connect(&web(), &second, 1);
    endpoints(&mut proxier, "web", &[2]);
    assert!(proxier.sync(now).unwrap().is_success());
    node::deliver(
        &mut proxier,
        node::slice_at("web-2", "web", &[], 9090),
        Protocol::Tcp,
    );
    let synced = proxier.sync(now + seconds(59)).unwrap();
    assert_eq!(synced.draining, 2);
    let synced = proxier.sync(now + seconds(60)).unwrap();
    assert_eq!(synced.draining, 2, "{}", synced.plan);
    let synced = proxier.sync(now + seconds(119)).unwrap();
    assert_eq!((synced.draining, synced.counts().done), (0, 3), "{}", synced.plan);
    // One of the two ends before: the deadline stays for the other.
    let (mut proxier, ipvs) = serving(with_limit("60s"), now);
    node::deliver(&mut proxier, extra(9090), Protocol::Tcp);
    assert!(proxier.sync(now).unwrap().is_success());
    ipvs.connect(&web(), &second, 1);
    node::deliver(
        &mut proxier,
        node::slice_at("web-2", "web", &[], 9090),
        Protocol::Tcp,
    );
    endpoints(&mut proxier, "web", &[2]);
    assert!(proxier.sync(now).unwrap().is_success());
    ipvs.connect(&web(), &second, 0);
    let synced = proxier.sync(now + INTERVAL).unwrap();
    assert_eq!(
        commands(&synced),
        ["ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.1:9090"]
    );
    assert_eq!(deadlines(&mut proxier).unwrap().len(), 1);
}

#[test]
fn without_the_set_type_real_servers_drain_without_a_limit_and_the_failure_is_reported() {
    for refused in ["create KERNLINK-DRAIN", "add KERNLINK-DRAIN"] {
        let now = Instant::now();
        let (kernel, ipvs) = shared_kernel();
        let (kernel, faults) = Faults::of_kernel(kernel);
        let mut proxier = proxier(ipv4_config(), kernel);
        upsert(&mut proxier, with_limit("30s"));
        endpoints(&mut proxier, "web", &[1, 2]);
        assert!(proxier.sync(now).unwrap().is_success());
        ipvs.connect(&web(), &pod(1), 1);
        faults.refuse(refused);
        endpoints(&mut proxier, "web", &[2]);
        let synced = proxier.sync(now).unwrap();
        assert_eq!(synced.counts().failed, 1, "{synced}");
        assert!(synced.to_string().contains(refused), "{synced}");
        assert_eq!(synced.draining, 1);
        assert!(!synced.is_success());
        // It is retried at its own times, with growing delays, and not whenever the virtual server is read.
        let mut at = now;
        let mut failed = 0;
        while at < now + seconds(120) {
            let synced = proxier.sync(at).unwrap();
            failed += synced.counts().failed;
            assert_eq!(synced.draining, 1, "{synced}");
            at = synced.next.unwrap();
        }
        assert!((3..12).contains(&failed), "{failed} attempts");
        faults.end();
        for _ in 0..200 {
            let synced = proxier.sync(at).unwrap();
            if synced.draining == 0 {
                break;
            }
            at = synced.next.unwrap();
        }
        assert_eq!(real_servers(proxier.kernel_mut(), &web()), ["10.244.0.2:8080"]);
        assert!(proxier.sync(at).unwrap().is_success());
        assert_eq!(deadlines(&mut proxier), NO_DEADLINE);
    }
}

#[test]
fn what_a_predecessor_left_at_weight_0_gets_its_weight_back_or_drains() {
    let now = Instant::now();
    let (mut proxier, ipvs) = serving(service("web", "10.96.0.1"), now);
    let set_weight = |proxier: &mut Proxier, last: u8| {
        let real = RealServer::new(pod(last)).with_weight(Weight::DRAINING);
        let update = IpvsOperation::UpdateRealServer {
            virtual_server: web(),
            real_server: real,
        };
        proxier.kernel_mut().execute(&Operation::Ipvs(update)).unwrap();
    };
    // In the first pass, and in every other one that reads the kernel.
    for _ in 0..2 {
        set_weight(&mut proxier, 1);
        proxier.resync();
        let synced = proxier.sync(now).unwrap();
        let expected = ["ipvsadm -e -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1"];
        assert_eq!(commands(&synced), expected);
    }
    set_weight(&mut proxier, 1);
    let mut proxier = restarted(proxier, service("web", "10.96.0.1"), &[2]);
    let synced = proxier.sync(now).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!((synced.draining, synced.next), (1, Some(now + INTERVAL)));
    // Without connections it is deleted in the pass that finds this.
    ipvs.connect(&web(), &pod(1), 0);
    proxier.resync();
    let plan = proxier.plan(now + seconds(1)).unwrap();
    let synced = proxier.apply(&plan, now + seconds(2)).unwrap();
    let expected = ["ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.1:8080"];
    assert_eq!(commands(&synced), expected);
    assert_eq!((synced.draining, synced.next), (0, None));
}

#[test]
fn a_desired_real_server_with_weight_0_does_not_drain() {
    let now = Instant::now();
    let (kernel, ipvs) = shared_kernel();
    let mut proxier = proxier(ipv4_config(), kernel);
    let mut weighted = with_limit("30s");
    let annotation = "kernlink.io/weights".to_owned();
    weighted
        .annotations
        .insert(annotation, "node=node-b:0".to_owned());
    upsert(&mut proxier, weighted);
    endpoints(&mut proxier, "web", &[1, 200]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!((synced.draining, synced.next), (0, None));
    ipvs.connect(&web(), &pod(1), 1);
    // When it leaves, its weight is 0 already.
    ipvs.executed();
    endpoints(&mut proxier, "web", &[200]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.draining, 1);
    assert_eq!(ipvs.executed(), [""; 0]);
    assert_eq!(deadlines(&mut proxier).unwrap().len(), 1);
}

#[test]
fn an_endpoint_serves_until_one_that_accepts_connections_is_added_whatever_the_weights_of_others() {
    let weighted = || {
        let mut service = with_limit("30s");
        let annotation = "kernlink.io/weights".to_owned();
        service.annotations.insert(annotation, "node=node-a:0".to_owned());
        service
    };
    // Endpoint 200 is on node-a. The one that serves leaves, or gets weight 0.
    for (first, before) in [(weighted(), [1, 200]), (with_limit("30s"), [200, 200])] {
        let now = Instant::now();
        let (kernel, ipvs) = shared_kernel();
        let mut proxier = proxier(ipv4_config(), kernel);
        upsert(&mut proxier, first);
        endpoints(&mut proxier, "web", &before);
        assert!(proxier.sync(now).unwrap().is_success());
        let accepting = || {
            let servers = ipvs.fake().list_virtual_servers().unwrap();
            let keys: Vec<_> = servers.iter().map(|server| server.server.key).collect();
            let real = keys
                .iter()
                .flat_map(|key| ipvs.fake().list_real_servers(key).unwrap());
            real.filter(|real| !real.server.weight.is_draining()).count()
        };
        assert_eq!(accepting(), 1);
        let refused = IpvsOperation::AddRealServer {
            virtual_server: web(),
            real_server: RealServer::new(pod(2)),
        };
        ipvs.fake().refuse(refused, Errno::ENOMEM);
        upsert(&mut proxier, weighted());
        endpoints(&mut proxier, "web", &[2, 200]);
        for _ in 0..2 {
            let synced = proxier.sync(now).unwrap();
            assert!(synced.waiting > 0, "{synced}");
            assert_eq!(accepting(), 1, "{}", synced.plan);
            proxier.resync();
        }
        ipvs.fake().refuse_nothing();
        for round in 1..4 {
            proxier.sync(now + seconds(600 * round)).unwrap();
        }
        assert_eq!(accepting(), 1);
        proxier.resync();
        let synced = proxier.sync(now + seconds(2400)).unwrap();
        assert!(synced.plan.is_empty(), "{}", synced.plan);
    }
}

#[test]
fn the_last_endpoint_of_a_service_drains_too() {
    let now = Instant::now();
    let (mut proxier, ipvs) = serving(service("web", "10.96.0.1"), now);
    endpoints(&mut proxier, "web", &[]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.draining, 2);
    assert_eq!(
        ipvs.executed(),
        [
            "-e -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 0",
            "-e -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 0"
        ]
    );
    // With the Service they are deleted by one message.
    delete(&mut proxier, "web");
    let synced = proxier.sync(now).unwrap();
    assert_eq!(ipvs.executed(), ["-D -t 10.96.0.1:80"]);
    assert_eq!((synced.draining, synced.next), (0, None));
}

#[test]
fn a_draining_real_server_is_no_replacement_for_one_that_leaves() {
    let now = Instant::now();
    let (mut proxier, ipvs) = serving(service("web", "10.96.0.1"), now);
    endpoints(&mut proxier, "web", &[2]);
    assert!(proxier.sync(now).unwrap().is_success());
    ipvs.executed();
    let refused = IpvsOperation::AddRealServer {
        virtual_server: web(),
        real_server: RealServer::new(pod(3)),
    };
    ipvs.fake().refuse(refused, Errno::ENOMEM);
    endpoints(&mut proxier, "web", &[3]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 1),
        "{synced}"
    );
    assert_eq!(
        ipvs.executed(),
        [""; 0],
        "the second endpoint still accepts connections"
    );
    assert_eq!(synced.draining, 1);
    // The first endpoint returns, which replaces the second one.
    endpoints(&mut proxier, "web", &[1, 3]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        ipvs.executed(),
        [
            "-e -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1",
            "-e -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 0"
        ],
        "{synced}"
    );
}

#[test]
fn one_that_leaves_is_kept_until_the_weight_of_one_that_returns_is_set() {
    let now = Instant::now();
    let (mut proxier, ipvs) = serving(service("web", "10.96.0.1"), now);
    endpoints(&mut proxier, "web", &[2]);
    assert!(proxier.sync(now).unwrap().is_success());
    ipvs.executed();
    let refused = IpvsOperation::UpdateRealServer {
        virtual_server: web(),
        real_server: RealServer::new(pod(1)),
    };
    ipvs.fake().refuse(refused, Errno::ENOMEM);
    endpoints(&mut proxier, "web", &[1]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 1),
        "{synced}"
    );
    assert_eq!(ipvs.executed(), [""; 0]);
    ipvs.fake().refuse_nothing();
    let synced = proxier.sync(now + seconds(600)).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(ipvs.executed().len(), 2);
}

#[test]
fn real_servers_keep_their_forwarding_method_while_they_drain() {
    for method in ["direct", "tunnel"] {
        let now = Instant::now();
        let (kernel, ipvs) = shared_kernel();
        let mut proxier = proxier(ipv4_config(), kernel);
        let mut service = service("web", "10.96.0.1");
        service.external_ips = vec!["203.0.113.9".to_owned()];
        service.ports[0] = Port::new("http", 8080);
        let annotation = "kernlink.io/forwarding-method".to_owned();
        service.annotations.insert(annotation, method.to_owned());
        upsert(&mut proxier, service);
        endpoints(&mut proxier, "web", &[1, 2]);
        assert!(proxier.sync(now).unwrap().is_success());
        let external = key("203.0.113.9", 8080);
        let forwarding = || {
            let listed = ipvs.fake().list_real_servers(&external).unwrap();
            let first = listed.iter().find(|known| known.server.key == pod(1));
            first.unwrap().server.forwarding
        };
        let expected = forwarding();
        assert_ne!(expected, ForwardingMethod::Masquerade);
        endpoints(&mut proxier, "web", &[2]);
        let synced = proxier.sync(now).unwrap();
        assert_eq!(synced.draining, 2);
        assert_eq!(forwarding(), expected);
    }
}

#[test]
fn virtual_servers_that_drain_are_read_together() {
    let now = Instant::now();
    let (kernel, ipvs) = shared_kernel();
    let mut proxier = proxier(ipv4_config(), kernel);
    for number in 1..=4 {
        upsert(
            &mut proxier,
            service(&format!("s{number}"), &format!("10.96.0.{number}")),
        );
        endpoints(&mut proxier, &format!("s{number}"), &[1, 2]);
    }
    assert!(proxier.sync(now).unwrap().is_success());
    let mut at = now;
    for number in 1..=4 {
        ipvs.connect(&key(&format!("10.96.0.{number}"), 80), &pod(1), 1);
        endpoints(&mut proxier, &format!("s{number}"), &[2]);
        at += Duration::from_millis(300);
        let synced = proxier.sync(at).unwrap();
        assert_eq!(synced.draining, number);
    }
    let first = now + Duration::from_millis(300) + INTERVAL;
    let synced = proxier.sync(first).unwrap();
    assert_eq!(proxier.cost().rereads, 4);
    assert_eq!(synced.next, Some(first + INTERVAL));
}

#[test]
fn a_deadline_that_cannot_be_kept_is_retried_and_does_not_lead_to_a_busy_loop() {
    let now = Instant::now();
    let (mut proxier, ipvs) = serving(with_limit("10s"), now);
    endpoints(&mut proxier, "web", &[2]);
    assert!(proxier.sync(now).unwrap().is_success());
    let refused = IpvsOperation::DeleteRealServer {
        virtual_server: web(),
        real_server: pod(1),
    };
    ipvs.fake().refuse(refused, Errno::ENOMEM);
    let mut at = now;
    let mut syncs = 0;
    while at < now + seconds(600) {
        let synced = proxier.sync(at).unwrap();
        let next = synced.next.unwrap();
        assert!(next > at, "{synced}");
        at = next;
        syncs += 1;
    }
    assert!(syncs < 150, "{syncs} syncs");
    ipvs.fake().refuse_nothing();
    node::sync_until_nothing_waits(&mut proxier, at);
    assert_eq!(real_servers(proxier.kernel_mut(), &web()), ["10.244.0.2:8080"]);
    assert_eq!(deadlines(&mut proxier), NO_DEADLINE);
}

#[test]
fn an_invalid_default_limit_is_refused() {
    for (timeout, is_valid) in [
        (Duration::ZERO, true),
        (seconds(2_147_483), true),
        (seconds(2_147_484), false),
        (Duration::from_millis(1_500), false),
    ] {
        let mut config: Config = ipv4_config();
        config.services.defaults.drain_timeout = Some(timeout);
        let proxier = Proxier::new(&config, kernel());
        assert_eq!(proxier.is_ok(), is_valid, "{timeout:?}");
    }
}

#[test]
fn a_default_limit_applies_to_services_without_the_annotation() {
    let now = Instant::now();
    let (kernel, ipvs) = shared_kernel();
    let mut config = ipv4_config();
    config.services.defaults.drain_timeout = Some(seconds(30));
    let mut proxier = proxier(config, kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[1, 2]);
    assert!(proxier.sync(now).unwrap().is_success());
    ipvs.connect(&web(), &pod(1), 1);
    endpoints(&mut proxier, "web", &[2]);
    assert!(proxier.sync(now).unwrap().is_success());
    assert_eq!(deadlines(&mut proxier).unwrap().len(), 1);
    // A change of the default applies to what drains already.
    let mut config = ipv4_config();
    config.services.defaults.drain_timeout = None;
    proxier.set_config(&config).unwrap();
    assert!(proxier.sync(now).unwrap().is_success());
    assert_eq!(deadlines(&mut proxier), NO_DEADLINE);
}
