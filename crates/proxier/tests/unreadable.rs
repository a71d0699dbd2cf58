//! Parts of the kernel that cannot be read or are missing: it is reported once, what does not depend on them goes on, and nothing is
//! deleted because of them.
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
#[path = "support/recorded.rs"]
mod recorded;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_ipset::{
    Action, Error as SetError, IpSets, Operation as SetOperation, SetContents, SetHeader, SetName,
};
use kernlink_proxier::ipvs_mode::{Key, Proxier, Synced};
use kernlink_services::{Family, Service, ServiceType};

use crate::faulty::Faults;
use crate::node::{
    bound, delete, endpoints, ipv4_config, kernel, key, load_balancer, proxier, real_servers, service,
    upsert, virtual_servers,
};
use crate::recorded::Recorded;

fn events(synced: &Synced, text: &str) -> Vec<String> {
    let events = synced.events.iter().map(ToString::to_string);
    events.filter(|event| event.contains(text)).collect()
}

fn node_port(name: &str, cluster_ip: &str, port: u16) -> Service {
    let mut service = service(name, cluster_ip);
    service.service_type = ServiceType::NodePort;
    service.ports[0].node_port = port;
    service
}

/// The commands of a plan that remove something.
fn removals(synced: &Synced) -> Vec<String> {
    let commands = synced.plan.steps().map(|(_, step)| step.operation.to_string());
    // Endpoints are removed as desired.
    let words = [" -D ", " del ", "address delete", "destroy"];
    commands
        .filter(|command| words.iter().any(|word| command.contains(word)))
        .collect()
}

/// A node with two Services, one of them with a node port, in sync, and its faults.
fn in_sync() -> (Proxier, Faults) {
    let (mut kernel, faults) = Faults::of_kernel(kernel());
    kernel.rules = faults.tables(kernel.rules);
    let mut proxier = proxier(ipv4_config(), kernel);
    services(&mut proxier);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    (proxier, faults)
}

fn services(proxier: &mut Proxier) {
    upsert(proxier, service("web", "10.96.0.1"));
    upsert(proxier, node_port("open", "10.96.0.2", 30_080));
    endpoints(proxier, "web", &[1, 2]);
    endpoints(proxier, "open", &[1]);
}

fn sync(recorded: &mut Recorded) -> Synced {
    recorded.recorder.on_started();
    let synced = recorded.proxier.sync(recorded.now).unwrap();
    recorded
        .recorder
        .on_synced(&recorded.proxier, &synced, recorded.time);
    synced
}

#[test]
fn endpoints_of_services_change_while_one_part_of_the_kernel_cannot_be_read() {
    for (unreadable, report) in [
        ("read sets", "sets cannot be read"),
        ("read set KUBE-CLUSTER-IP", "sets cannot be read"),
        ("read set KERNLINK-VS", "sets cannot be read"),
        ("read addresses", "links and addresses"),
    ] {
        let (mut proxier, faults) = in_sync();
        faults.refuse(unreadable);
        let now = Instant::now();
        proxier.resync();
        endpoints(&mut proxier, "web", &[2, 3]);
        let synced = proxier.sync(now).unwrap();
        assert_eq!(
            events(&synced, report).len(),
            1,
            "{unreadable}: {:?}",
            synced.events
        );
        assert!(synced.report.is_success() && synced.unread == 1, "{synced}");
        assert!(!synced.is_success());
        assert_eq!(
            synced.next,
            Some(now + Duration::from_secs(1)),
            "the kernel is read again"
        );
        assert_eq!(removals(&synced), [""; 0], "{unreadable}");
        let web = key("10.96.0.1", 80);
        assert_eq!(
            real_servers(proxier.kernel_mut(), &web),
            ["10.244.0.1:8080", "10.244.0.2:8080", "10.244.0.3:8080"],
            "one of them drains"
        );
        // New Services and removed ones are handled from what was read before.
        upsert(&mut proxier, service("new", "10.96.0.3"));
        delete(&mut proxier, "open");
        let synced = proxier.sync(now).unwrap();
        assert!(synced.report.is_success(), "{synced}");
        faults.end();
        assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32", "10.96.0.3/32"]);
        faults.refuse(unreadable);
        // The listing is tried again after growing delays, and not reported again.
        let mut at = now;
        for delay in [1, 2, 4] {
            at += Duration::from_secs(delay);
            let listings = proxier.cost().listings;
            let synced = proxier.sync(at).unwrap();
            assert_eq!(proxier.cost().listings, listings + 1, "{unreadable}");
            assert_eq!((synced.events.len(), removals(&synced).len()), (0, 0), "{synced}");
            at = at.max(synced.next.unwrap() - Duration::from_secs(delay * 2));
        }
        faults.end();
        let next = proxier.sync(at).unwrap().next.unwrap();
        let synced = proxier.sync(next).unwrap();
        assert_eq!(events(&synced, "solved").len(), 1, "{:?}", synced.events);
        assert_eq!(synced.unread, 0);
    }
}

#[test]
fn after_a_start_nothing_is_changed_before_ownership_and_node_addresses_are_known() {
    for unreadable in ["read sets", "read set KERNLINK-VS", "read addresses"] {
        let (before, faults) = in_sync();
        faults.refuse(unreadable);
        let mut recorded = Recorded::new(ipv4_config(), before.into_kernel());
        // One Service is gone, another one is new.
        upsert(&mut recorded.proxier, node_port("open", "10.96.0.2", 30_080));
        upsert(&mut recorded.proxier, service("new", "10.96.0.3"));
        endpoints(&mut recorded.proxier, "open", &[1]);
        let synced = sync(&mut recorded);
        assert!(
            synced.plan.is_empty() && synced.unread > 0,
            "{unreadable}\n{}",
            synced.plan
        );
        assert_eq!(
            recorded.status().family(Family::Ipv4).updated,
            None,
            "{unreadable}"
        );
        assert_eq!(virtual_servers(recorded.proxier.kernel_mut()).len(), 3);
        faults.end();
        recorded.pass(1);
        let synced = sync(&mut recorded);
        assert!(synced.report.is_success() && synced.unread == 0, "{synced}");
        assert!(recorded.status().family(Family::Ipv4).updated.is_some());
        assert_eq!(
            virtual_servers(recorded.proxier.kernel_mut()),
            ["-t 10.96.0.2:80", "-t 10.96.0.3:80", "-t 192.0.2.1:30080"]
        );
    }
}

#[test]
fn a_set_that_decides_nothing_and_cannot_be_read_at_the_start_delays_only_its_entries() {
    let (synced, faults) = in_sync();
    faults.refuse("read set KUBE-LOOP-BACK");
    let mut proxier = proxier(ipv4_config(), synced.into_kernel());
    services(&mut proxier);
    endpoints(&mut proxier, "web", &[2, 3]);
    endpoints(&mut proxier, "open", &[200]);
    delete(&mut proxier, "web");
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        virtual_servers(proxier.kernel_mut()),
        ["-t 10.96.0.2:80", "-t 192.0.2.1:30080"],
        "{synced}"
    );
    assert!(
        !synced.plan.to_string().contains("KUBE-LOOP-BACK"),
        "{}",
        synced.plan
    );
    faults.end();
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(
        synced
            .plan
            .to_string()
            .contains("add KUBE-LOOP-BACK 10.244.0.200"),
        "{}",
        synced.plan
    );
}

#[test]
fn tables_that_can_be_neither_read_nor_written_do_not_delay_endpoints() {
    let (mut proxier, faults) = in_sync();
    faults.refuse("read tables");
    faults.refuse("iptables");
    let now = Instant::now();
    proxier.resync();
    endpoints(&mut proxier, "web", &[2, 3]);
    upsert(&mut proxier, service("new", "10.96.0.3"));
    upsert(&mut proxier, node_port("later", "10.96.0.4", 30_081));
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        events(&synced, "IPv4 tables cannot be read").len(),
        1,
        "{:?}",
        synced.events
    );
    let failed = events(&synced, "until the rules are in place, no address is bound");
    assert_eq!(failed.len(), 1, "{:?}", synced.events);
    assert_eq!(real_servers(proxier.kernel_mut(), &key("10.96.0.1", 80)).len(), 3);
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32", "10.96.0.2/32"]);
    // A node port restricts no sources, and its address is bound already.
    let servers = virtual_servers(proxier.kernel_mut());
    for server in ["-t 192.0.2.1:30080", "-t 192.0.2.1:30081"] {
        assert!(servers.contains(&server.to_owned()), "{servers:?}");
    }
    // Neither the listing nor the restore is reported again.
    let mut next = synced.next.unwrap();
    for _ in 0..3 {
        proxier.resync();
        let synced = proxier.sync(next).unwrap();
        assert_eq!(synced.events, []);
        next = synced.next.unwrap();
    }
    faults.end();
    let mut solved = Vec::new();
    for _ in 0..20 {
        proxier.resync();
        let synced = proxier.sync(next).unwrap();
        solved.extend(events(&synced, "solved"));
        match synced.next {
            Some(at) => next = at,
            None => break,
        }
    }
    assert_eq!(solved.len(), 2, "{solved:?}");
    assert_eq!(bound(proxier.kernel_mut()).len(), 4);
}

/// Sets of a kernel without the module `ip_set`, until it is loaded.
struct WithoutIpset {
    inner: kernlink_ipset::Fake,
    is_loaded: Arc<Mutex<bool>>,
}

impl WithoutIpset {
    fn check(&self) -> Result<(), SetError> {
        let action = Box::new(Action::ListAll);
        let is_loaded = *self.is_loaded.lock().unwrap();
        is_loaded.then_some(()).ok_or(SetError::NotImplemented { action })
    }
}

impl IpSets for WithoutIpset {
    fn execute(&mut self, operations: &[SetOperation]) -> Vec<Result<(), SetError>> {
        match self.check() {
            Ok(()) => self.inner.execute(operations),
            Err(error) => vec![Err(error); operations.len()],
        }
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, SetError> {
        self.check()?;
        self.inner.list_set(name)
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, SetError> {
        self.check()?;
        self.inner.headers()
    }
}

#[test]
fn without_ipset_existing_virtual_servers_are_kept_in_step_and_no_new_ones_are_served() {
    // What an earlier process left, without its sets.
    let (synced, faults) = in_sync();
    let mut kernel = synced.into_kernel();
    let is_loaded = Arc::new(Mutex::new(false));
    kernel.sets = Box::new(WithoutIpset {
        inner: kernlink_ipset::Fake::new(),
        is_loaded: Arc::clone(&is_loaded),
    });
    kernel.rules = Box::new(kernlink_iptables_restore::Fake::new());
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[2, 3]);
    upsert(&mut proxier, service("new", "10.96.0.3"));
    upsert(&mut proxier, node_port("open", "10.96.0.2", 30_080));
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        events(&synced, "without sets no new Service is served").len(),
        1,
        "{:?}",
        synced.events
    );
    assert_eq!(synced.counts().failed, 0, "{synced}");
    let web = key("10.96.0.1", 80);
    assert_eq!(
        real_servers(proxier.kernel_mut(), &web).len(),
        3,
        "{}",
        synced.plan
    );
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32", "10.96.0.2/32"]);
    let servers = virtual_servers(proxier.kernel_mut());
    assert!(!servers.contains(&"-t 10.96.0.3:80".to_owned()), "{servers:?}");
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert_eq!((synced.events.len(), synced.counts().failed), (0, 0), "{synced}");
    *is_loaded.lock().unwrap() = true;
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert_eq!(events(&synced, "solved").len(), 1, "{:?}", synced.events);
    assert!(synced.report.is_success(), "{synced}");
    assert_eq!(bound(proxier.kernel_mut()).len(), 3);
    drop(faults);
}

#[test]
fn a_missing_set_type_affects_only_what_needs_it() {
    let restricted = "203.0.113.1/32";
    for (set, unbound, is_restricted_served) in [
        // The load balancer with source ranges.
        ("KUBE-LOAD-BALANCER-SOURCE-CIDR", vec![restricted], false),
        // Connections of pods to themselves.
        ("KUBE-LOOP-BACK", vec![], true),
        // Node ports.
        ("KUBE-NODE-PORT-TCP", vec![], true),
        // Health checks at virtual IPs.
        ("KUBE-HEALTH-CHECK-NODE-PORT", vec![], true),
        // Everything else on virtual IPs would be reachable.
        (
            "KUBE-IPVS-IPS",
            vec!["10.96.0.1/32", "10.96.0.2/32", "10.96.0.5/32", restricted],
            false,
        ),
    ] {
        let (kernel, faults) = Faults::of_kernel(kernel());
        faults.refuse(&format!("create {set} "));
        let mut proxier = proxier(ipv4_config(), kernel);
        services(&mut proxier);
        endpoints(&mut proxier, "open", &[200]);
        let mut balanced = load_balancer(&["198.18.0.0/15"]);
        balanced.cluster_ip = "10.96.0.5".to_owned();
        upsert(&mut proxier, balanced);
        let now = Instant::now();
        let first = proxier.sync(now).unwrap();
        assert_eq!(
            events(&first, &format!("create {set}")).len(),
            1,
            "{:?}",
            first.events
        );
        assert_eq!(
            first.next,
            Some(now),
            "the rules are planned again without the set"
        );
        let second = proxier.sync(now).unwrap();
        assert_eq!(
            (second.events.len(), second.counts().failed),
            (0, 0),
            "{set}: {second}"
        );
        let all = ["10.96.0.1/32", "10.96.0.2/32", "10.96.0.5/32", restricted];
        let expected: Vec<&str> = all
            .into_iter()
            .filter(|address| !unbound.contains(address))
            .collect();
        assert_eq!(
            bound(proxier.kernel_mut()),
            expected,
            "{set}: {second}\n{}",
            second.plan
        );
        let servers = virtual_servers(proxier.kernel_mut());
        assert_eq!(
            servers.contains(&"-t 203.0.113.1:80".to_owned()),
            is_restricted_served,
            "{set}: {servers:?}"
        );
        assert_eq!(
            servers.contains(&"-t 192.0.2.1:30080".to_owned()),
            set != "KUBE-NODE-PORT-TCP",
            "{set}: {servers:?}"
        );
        let rules = proxier
            .kernel_mut()
            .rules
            .save(&kernlink_iptables_restore::Save::all(Family::Ipv4))
            .unwrap();
        assert!(!rules.to_string().contains(set), "{rules}");
        // A full listing does not change that.
        proxier.resync();
        let third = proxier.sync(now).unwrap();
        assert_eq!((third.events.len(), third.plan.len()), (0, 0), "{}", third.plan);
        // With the type everything is served.
        faults.end();
        let mut at = third.next.unwrap();
        let mut solved = 0;
        for _ in 0..20 {
            let synced = proxier.sync(at).unwrap();
            solved += events(&synced, "solved").len();
            match synced.next {
                Some(next) => at = next,
                None => break,
            }
        }
        assert_eq!(solved, 1, "{set}");
        assert_eq!(bound(proxier.kernel_mut()), all, "{set}");
        proxier.resync();
        let plan = proxier.plan(at).unwrap();
        assert!(plan.is_empty(), "{set}: {plan}");
    }
}

#[test]
fn an_entry_whose_outcome_is_unknown_and_that_cannot_be_read_again_stops_nothing() {
    let (mut proxier, faults) = in_sync();
    let now = Instant::now();
    faults.lose_reply("add KUBE-CLUSTER-IP 10.96.0.3");
    upsert(&mut proxier, service("new", "10.96.0.3"));
    assert_eq!(proxier.sync(now).unwrap().counts().failed, 1);
    faults.end();
    faults.refuse("read set KUBE-CLUSTER-IP");
    // Before the retry is due, its object is to be read again.
    delete(&mut proxier, "new");
    endpoints(&mut proxier, "web", &[1, 2, 3]);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(
        real_servers(proxier.kernel_mut(), &key("10.96.0.1", 80)).len(),
        3,
        "{synced}"
    );
    faults.end();
    let synced = node::sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(synced.unread, 0);
    assert_eq!(
        node::entries(
            proxier.kernel_mut(),
            kernlink_proxier::ipvs_mode::SetId::ClusterIp
        ),
        ["10.96.0.1,tcp:80", "10.96.0.2,tcp:80"]
    );
}

#[test]
fn a_recheck_that_cannot_read_sets_does_not_stop_the_sync() {
    let (mut proxier, faults) = in_sync();
    faults.refuse("read set");
    proxier.recheck([Key::Set(
        Family::Ipv4,
        kernlink_proxier::ipvs_mode::SetId::ClusterIp,
    )]);
    endpoints(&mut proxier, "web", &[1, 2, 3]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(real_servers(proxier.kernel_mut(), &key("10.96.0.1", 80)).len(), 3);
    assert_eq!((removals(&synced).len(), synced.unread), (0, 1));
}

#[test]
fn a_listing_that_fails_after_ownership_is_known_again_is_repeated() {
    let (before, faults) = in_sync();
    faults.refuse("read sets");
    let mut proxier = proxier(ipv4_config(), before.into_kernel());
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    faults.end();
    faults.refuse("read virtual servers");
    let at = synced.next.unwrap();
    assert!(proxier.sync(at).is_err());
    faults.end();
    // The sets were read by the listing that failed.
    assert!(proxier.sync(at).unwrap().report.is_success());
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
}

#[test]
fn virtual_servers_that_cannot_be_read_stop_the_sync_and_change_nothing() {
    let (mut proxier, faults) = in_sync();
    faults.refuse("read virtual servers");
    proxier.resync();
    delete(&mut proxier, "open");
    assert!(proxier.sync(Instant::now()).is_err());
    faults.end();
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 3);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 1);
}
