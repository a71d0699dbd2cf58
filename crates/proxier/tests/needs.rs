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

use std::sync::{Arc, Mutex};
use std::time::Instant;

use kernlink_ipset::{Entry, ProtocolPort, SetName};
use kernlink_iptables_restore::{ChainName, Edit, Error, Iptables, Operation, Restore, Ruleset, Save, Table};
use kernlink_ipvs::{Scheduler, VirtualServer};
use kernlink_proxier::iptables_mode::retire::Retiring;
use kernlink_proxier::ipvs_mode::{Key, Proxier, SetId};
use kernlink_services::{EndpointPort, Family, Port, Protocol, Service, TrafficPolicy};

use crate::faulty::Faults;
use crate::node::{
    ONE, TWO, bound, delete, deliver, endpoints, entries, ipv4_config, kernel, key, load_balancer, proxier,
    real_servers, service, slice, sync_until_nothing_waits, upsert, virtual_servers, with_services,
};

fn sync(proxier: &mut Proxier, now: Instant) {
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
}

/// Syncs while one operation is refused, and again after a listing before its retry. Everything that depends on it waits, so nothing else fails,
/// and `check` passes.
fn sync_and_list(proxier: &mut Proxier, now: Instant, check: impl Fn(&mut Proxier, &str)) {
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}\n{}", synced.plan);
    check(proxier, "in the plan");
    proxier.resync();
    wait(proxier, now);
    check(proxier, "after a listing");
}

/// Syncs before the retry of what failed. Nothing fails, because everything that depends on it waits.
fn wait(proxier: &mut Proxier, now: Instant) {
    let synced = proxier.sync(now).unwrap();
    assert!(
        synced.report.is_success() && synced.waiting > 0,
        "{synced}\n{}",
        synced.plan
    );
}

/// Syncs at the times of the retries so often.
fn retry(proxier: &mut Proxier, mut now: Instant, times: usize) {
    for _ in 0..times {
        now = proxier.sync(now).unwrap().next.unwrap_or(now);
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
fn an_entry_of_the_ledger_stays_while_its_virtual_server_cannot_be_deleted() {
    let both = ["10.96.0.1,tcp:80", "10.96.0.2,tcp:80"];
    let ledger = |proxier: &mut Proxier| {
        let mut ledger = entries(proxier.kernel_mut(), SetId::Ledger);
        ledger.sort_unstable();
        ledger
    };
    for is_flushed in [false, true] {
        let (kernel, faults) = Faults::of_kernel(kernel());
        let mut proxier = with_services(kernel, &[ONE, TWO]);
        let now = Instant::now();
        sync(&mut proxier, now);
        faults.refuse("-D -t 10.96.0.2:80");
        delete(&mut proxier, "two");
        sync_and_list(&mut proxier, now, |proxier, when| {
            assert_eq!(ledger(proxier), both, "{when}")
        });
        // Another program changes the ledger: its entries are compared, not the virtual servers.
        let set = SetId::Ledger.name(Family::Ipv4);
        let kernel = proxier.kernel_mut();
        let change = if is_flushed {
            kernel.sets.flush(&set)
        } else {
            let entry = Entry::ip_port("10.96.0.1".parse().unwrap(), ProtocolPort::tcp(80));
            kernel.sets.delete(&set, &entry)
        };
        change.unwrap();
        assert!(proxier.recheck([Key::Set(Family::Ipv4, SetId::Ledger)]));
        wait(&mut proxier, now);
        assert_eq!(ledger(&mut proxier), both, "flushed: {is_flushed}");
        faults.end();
        assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
        assert_eq!(ledger(&mut proxier), both[..1]);
    }
}

#[test]
fn a_foreign_virtual_server_is_not_changed_before_it_is_in_the_ledger() {
    let mut kernel = kernel();
    let foreign = VirtualServer::new(key("10.96.0.1", 80), Scheduler::WRR);
    kernel.ipvs.add_virtual_server(&foreign).unwrap();
    let (kernel, faults) = Faults::of_kernel(kernel);
    let mut config = ipv4_config();
    config.adopt_foreign = true;
    let mut proxier = proxier(config, kernel);
    upsert(&mut proxier, service(ONE.0, ONE.1));
    endpoints(&mut proxier, "one", &[1]);
    faults.refuse("add KERNLINK-VS 10.96.0.1");
    let is_unchanged = |proxier: &mut Proxier| {
        let kernel = proxier.kernel_mut();
        let listed = kernel.ipvs.list_virtual_servers().unwrap();
        let schedulers: Vec<Scheduler> = listed.iter().map(|server| server.server.scheduler).collect();
        schedulers == [Scheduler::WRR] && real_servers(kernel, &key("10.96.0.1", 80)).is_empty()
    };
    let now = Instant::now();
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert!(is_unchanged(proxier), "{when}")
    });
    // Without a listing only the virtual server is compared.
    endpoints(&mut proxier, "one", &[1, 2]);
    wait(&mut proxier, now);
    assert!(is_unchanged(&mut proxier));
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(real_servers(proxier.kernel_mut(), &key("10.96.0.1", 80)).len(), 2);
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
    wait(&mut proxier, now);
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
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
    wait(&mut proxier, now);
    assert_eq!(balancer_servers(&mut proxier), ON_THIS_NODE);
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
    // Without a listing other rules are compared, not the entry.
    let mut external = service(TWO.0, TWO.1);
    external.external_ips = vec!["203.0.113.2".to_owned()];
    upsert(&mut proxier, external);
    endpoints(&mut proxier, "two", &[1]);
    wait(&mut proxier, now);
    assert_eq!(rules_of(&mut proxier, "KUBE-LOAD-BALANCER-LOCAL"), before);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(rules_of(&mut proxier, "KUBE-LOAD-BALANCER-LOCAL"), 0);
}

/// Chains of iptables mode.
const SVC: &str = "KUBE-SVC-AAAAAAAAAAAAAAAA";
const SEP: &str = "KUBE-SEP-AAAAAAAAAAAAAAAA";

/// The tables of one node: clones are the same tables.
#[derive(Clone)]
struct SharedTables(Arc<Mutex<Box<dyn Iptables>>>);

impl Iptables for SharedTables {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.0.lock().unwrap().execute(operations)
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        self.0.lock().unwrap().save(request)
    }
}

#[test]
fn the_rules_of_iptables_mode_stay_while_those_of_ipvs_mode_cannot_be_written() {
    let mut first = with_services(kernel(), &[ONE]);
    let now = Instant::now();
    sync(&mut first, now);
    let mut kernel = first.into_kernel();
    // What iptables mode left, which translates connections to the Service, and a chain that another program flushed.
    let left: Ruleset = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"ns/one:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA -m comment --comment \"ns/one:http -> 10.244.0.1:8080\" -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m comment --comment ns/one:http -m tcp -j DNAT --to-destination 10.244.0.1:8080
COMMIT
"
    .parse()
    .unwrap();
    let mut restore = Restore::new(Family::Ipv4);
    let chains = [SVC, SEP, "KUBE-MARK-MASQ"].map(|name| ChainName::new(name).unwrap());
    restore.table_mut(Table::Nat).extend(chains.map(Edit::declare));
    let names = ["KUBE-SERVICES", SVC, SEP].map(|name| ChainName::new(name).unwrap());
    for name in names {
        for rule in left.chain(Table::Nat, &name).unwrap().rules() {
            restore.push(Table::Nat, Edit::insert(name, rule.clone()));
        }
    }
    kernel.rules.restore(&restore).unwrap();
    let tables = SharedTables(Arc::new(Mutex::new(kernel.rules)));
    kernel.rules = Box::new(tables.clone());
    let (mut kernel, faults) = Faults::of_kernel(kernel);
    kernel.rules = faults.tables(kernel.rules);
    faults.refuse("-A KUBE-MARK-MASQ");
    let mut next = with_services(kernel, &[ONE]);
    let retiring = Retiring::new(faults.tables(Box::new(tables)));
    next.set_retiring(vec![Box::new(retiring)]);
    // The rules that lead from the Service to its endpoint.
    let left = |proxier: &mut Proxier| {
        let saved = proxier.kernel_mut().rules.save(&Save::all(Family::Ipv4)).unwrap();
        let saved = saved.to_string();
        saved
            .lines()
            .filter(|line| line.starts_with("-A") && (line.contains(SVC) || line.contains(SEP)))
            .count()
    };
    sync_and_list(&mut next, now, |next, when| assert_eq!(left(next), 3, "{when}"));
    // Nor does any later round of the hand-over remove them.
    retry(&mut next, now, 10);
    assert_eq!(left(&mut next), 3);
    faults.end();
    assert!(sync_until_nothing_waits(&mut next, now).is_success());
    let saved = next
        .kernel_mut()
        .rules
        .save(&Save::all(Family::Ipv4))
        .unwrap()
        .to_string();
    assert!(!saved.contains(SVC) && !saved.contains(SEP), "{saved}");
    assert!(saved.contains("-A KUBE-MARK-MASQ"), "{saved}");
}

#[test]
fn entries_wait_for_a_set_that_cannot_be_created() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("create KUBE-CLUSTER-IP ");
    let mut proxier = with_services(kernel, &[ONE]);
    let now = Instant::now();
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert_eq!(virtual_servers(proxier.kernel_mut()), [""; 0], "{when}");
    });
    // Without a listing the set is not compared.
    upsert(&mut proxier, service(TWO.0, TWO.1));
    endpoints(&mut proxier, "two", &[1]);
    wait(&mut proxier, now);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(entries(proxier.kernel_mut(), SetId::ClusterIp).len(), 2);
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
}

#[test]
fn addresses_wait_for_a_link_that_cannot_be_added() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("link replace");
    let mut proxier = with_services(kernel, &[ONE]);
    let now = Instant::now();
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert_eq!(
            virtual_servers(proxier.kernel_mut()),
            ["-t 10.96.0.1:80"],
            "{when}"
        );
    });
    // Without a listing the link is not compared.
    upsert(&mut proxier, service(TWO.0, TWO.1));
    endpoints(&mut proxier, "two", &[1]);
    wait(&mut proxier, now);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
}

#[test]
fn an_address_is_not_bound_while_none_of_its_virtual_servers_can_be_added() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = with_services(kernel, &[TWO]);
    let now = Instant::now();
    sync(&mut proxier, now);
    faults.refuse("-A -t 10.96.0.1:");
    let mut one = service(ONE.0, ONE.1);
    upsert(&mut proxier, one.clone());
    endpoints(&mut proxier, "one", &[1]);
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.2/32"], "{when}");
    });
    // Another port at the address, without a listing: the first virtual server is not compared.
    one = one.with_port(Port::new("other", 81));
    upsert(&mut proxier, one);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.2/32"]);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
}

/// The Service `one` with a second port, 81. Both have an endpoint.
fn with_second_port(proxier: &mut Proxier) {
    upsert(proxier, service(ONE.0, ONE.1).with_port(Port::new("second", 81)));
    let slice = slice("one", &[1]).with_port(EndpointPort::new("second", 8081));
    deliver(proxier, slice, Protocol::Tcp);
}

#[test]
fn a_port_of_a_bound_address_is_not_admitted_while_its_virtual_server_cannot_be_added() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = with_services(kernel, &[ONE]);
    let now = Instant::now();
    sync(&mut proxier, now);
    faults.refuse("-A -t 10.96.0.1:81");
    with_second_port(&mut proxier);
    sync_and_list(&mut proxier, now, |proxier, when| {
        let admitted = entries(proxier.kernel_mut(), SetId::ClusterIp);
        assert_eq!(admitted, ["10.96.0.1,tcp:80"], "{when}");
    });
    // Another program changes the set: its entries are compared, not the virtual servers.
    let set = SetId::ClusterIp.name(Family::Ipv4);
    proxier.kernel_mut().sets.flush(&set).unwrap();
    assert!(proxier.recheck([Key::Set(Family::Ipv4, SetId::ClusterIp)]));
    wait(&mut proxier, now);
    let admitted = entries(proxier.kernel_mut(), SetId::ClusterIp);
    assert_eq!(admitted, ["10.96.0.1,tcp:80"]);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(entries(proxier.kernel_mut(), SetId::ClusterIp).len(), 2);
}

#[test]
fn a_virtual_server_of_a_bound_address_gets_no_real_servers_before_the_entry_of_its_frontend() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = with_services(kernel, &[ONE]);
    let now = Instant::now();
    sync(&mut proxier, now);
    faults.refuse("add KUBE-CLUSTER-IP 10.96.0.1,tcp:81");
    with_second_port(&mut proxier);
    let second = key("10.96.0.1", 81);
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert_eq!(real_servers(proxier.kernel_mut(), &second), [""; 0], "{when}");
    });
    // Without a listing only the virtual server is compared.
    let slice = slice("one", &[1, 2]).with_port(EndpointPort::new("second", 8081));
    deliver(&mut proxier, slice, Protocol::Tcp);
    wait(&mut proxier, now);
    assert_eq!(real_servers(proxier.kernel_mut(), &second), [""; 0]);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(real_servers(proxier.kernel_mut(), &second).len(), 2);
}

#[test]
fn a_virtual_server_of_a_bound_address_stays_while_the_entry_of_its_frontend_cannot_be_removed() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = with_services(kernel, &[ONE]);
    let now = Instant::now();
    with_second_port(&mut proxier);
    sync(&mut proxier, now);
    faults.refuse("del KUBE-CLUSTER-IP 10.96.0.1,tcp:81");
    upsert(&mut proxier, service(ONE.0, ONE.1));
    let both = ["-t 10.96.0.1:80", "-t 10.96.0.1:81"];
    sync_and_list(&mut proxier, now, |proxier, when| {
        assert_eq!(virtual_servers(proxier.kernel_mut()), both, "{when}");
        assert_eq!(entries(proxier.kernel_mut(), SetId::Ledger).len(), 2, "{when}");
    });
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(virtual_servers(proxier.kernel_mut()), both[..1]);
    assert_eq!(entries(proxier.kernel_mut(), SetId::Ledger).len(), 1);
}

#[test]
fn an_address_waits_for_its_entry_also_when_its_link_can_be_added_again() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = with_services(kernel, &[ONE, TWO]);
    let now = Instant::now();
    sync(&mut proxier, now);
    // Another program removes the link and the entries. The virtual servers stay.
    let kernel = proxier.kernel_mut();
    kernel.links.delete_link(&"kube-ipvs0".parse().unwrap()).unwrap();
    kernel.sets.flush(&SetId::IpvsIps.name(Family::Ipv4)).unwrap();
    proxier.resync();
    let link = "link replace";
    faults.refuse(link);
    faults.refuse("add KUBE-IPVS-IPS 10.96.0.2");
    assert_eq!(proxier.sync(now).unwrap().counts().failed, 2);
    faults.allow(link);
    retry(&mut proxier, now, 5);
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32"]);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
}

#[test]
fn allowed_sources_stay_while_the_restriction_to_them_cannot_be_removed() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    let ranges = ["192.0.2.0/24", "198.51.100.0/24"];
    upsert(&mut proxier, load_balancer(&ranges));
    endpoints(&mut proxier, "balanced", &[1]);
    sync(&mut proxier, now);
    // A range is withdrawn, and its entry stays.
    let allowed = "del KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,192.0.2.0/24";
    faults.refuse(allowed);
    upsert(&mut proxier, load_balancer(&ranges[1..]));
    assert_eq!(proxier.sync(now).unwrap().counts().failed, 1);
    // Then all of them. The retry of the first one falls due before the restriction can be removed.
    faults.refuse("del KUBE-LOAD-BALANCER-FW 203.0.113.1");
    upsert(&mut proxier, load_balancer(&[]));
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    faults.allow(allowed);
    retry(&mut proxier, now, 5);
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerFirewall).len(),
        1
    );
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerSourceCidr).len(),
        2
    );
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::LoadBalancerSourceCidr),
        [""; 0]
    );
}
