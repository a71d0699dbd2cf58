//! The ledger, and the adoption of virtual servers, on the fake kernel.
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

use kernlink_ipset::{Entry, Operation as SetOperation, ProtocolPort};
use kernlink_ipvs::{
    Operation as IpvsOperation, RealServer, Scheduler, VirtualServer, VirtualServerKey, Weight,
};
use kernlink_proxier::ipvs_mode::{Kernel, Key, Operation, Phase, Plan, Proxier, SetId, Synced};
use kernlink_services::Family;

use crate::faulty::Faults;
use crate::node::{
    ONE, TWO, bound, delete, endpoints, entries, ipv4_config, kernel, key, position, proxier, real_servers,
    service, sync_until_nothing_waits, upsert, virtual_servers, with_services,
};

fn sync(proxier: &mut Proxier) -> Synced {
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    synced
}

/// The kernel with two Services and without the ledger, as kube-proxy leaves it.
fn of_kube_proxy() -> Kernel {
    let mut proxier = with_services(kernel(), &[ONE, TWO]);
    sync(&mut proxier);
    let mut kernel = proxier.into_kernel();
    kernel.sets.destroy(&SetId::Ledger.name(Family::Ipv4)).unwrap();
    kernel
}

fn ledger(proxier: &mut Proxier) -> Vec<String> {
    entries(proxier.kernel_mut(), SetId::Ledger)
}

fn sets_entry(address: &str, port: u16) -> Entry {
    let port = ProtocolPort::new(kernlink_ipset::Protocol::TCP, port);
    Entry::ip_port(address.parse().unwrap(), port)
}

fn add_server(kernel: &mut Kernel, server: VirtualServer, real_servers: &[&str]) {
    let key = server.key;
    let add = IpvsOperation::AddVirtualServer(server);
    kernel.execute(&Operation::Ipvs(add)).unwrap();
    for address in real_servers {
        let add = IpvsOperation::AddRealServer {
            virtual_server: key,
            real_server: RealServer::new(address.parse::<std::net::SocketAddr>().unwrap()),
        };
        kernel.execute(&Operation::Ipvs(add)).unwrap();
    }
}

fn commands(plan: &Plan) -> Vec<String> {
    plan.steps().map(|(_, step)| step.operation.to_string()).collect()
}

/// The commands that change virtual servers or real servers.
fn ipvs_commands(plan: &Plan) -> Vec<String> {
    let commands = commands(plan).into_iter();
    commands
        .filter(|command| command.starts_with("ipvsadm"))
        .collect()
}

fn reports(synced: &Synced) -> Vec<String> {
    synced.events.iter().map(ToString::to_string).collect()
}

const DIFFERS: &str = "Service ns/web: virtual server -t 10.96.0.1:80 is foreign and differs from the desired one; it is not changed, and the \
                       frontend is not served. It is served when the foreign virtual server is deleted or equal, or with adopt_foreign";

#[test]
fn a_virtual_server_is_in_the_ledger_before_it_is_added_and_until_it_is_deleted() {
    let mut proxier = proxier(ipv4_config(), kernel());
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let plan = sync(&mut proxier).plan;
    let added = position(&plan, "add KERNLINK-VS 10.96.0.1,tcp:80");
    for later in ["add KUBE-CLUSTER-IP 10.96.0.1,tcp:80", "-A -t 10.96.0.1:80"] {
        assert!(added < position(&plan, later), "{plan}");
    }
    assert_eq!(ledger(&mut proxier), ["10.96.0.1,tcp:80"]);
    delete(&mut proxier, "web");
    let plan = sync(&mut proxier).plan;
    let removed = position(&plan, "del KERNLINK-VS 10.96.0.1,tcp:80");
    for earlier in ["-D -t 10.96.0.1:80", "del KUBE-CLUSTER-IP 10.96.0.1,tcp:80"] {
        assert!(removed > position(&plan, earlier), "{plan}");
    }
    assert_eq!(ledger(&mut proxier), [""; 0]);
}

#[test]
fn without_its_entry_in_the_ledger_a_virtual_server_is_not_added() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("add KERNLINK-VS 10.96.0.1,tcp:80");
    let mut proxier = with_services(kernel, &[ONE, TWO]);
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.2:80"]);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 2);
}

#[test]
fn a_virtual_server_that_cannot_be_deleted_stays_in_the_ledger() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = with_services(kernel, &[ONE, TWO]);
    let now = Instant::now();
    sync(&mut proxier);
    faults.refuse("-D -t 10.96.0.1:80");
    delete(&mut proxier, "one");
    assert_eq!(proxier.sync(now).unwrap().counts().failed, 1);
    assert_eq!(ledger(&mut proxier), ["10.96.0.1,tcp:80", "10.96.0.2,tcp:80"]);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(ledger(&mut proxier), ["10.96.0.2,tcp:80"]);
}

#[test]
fn the_first_sync_after_kube_proxy_writes_the_ledger_in_one_step_and_nothing_else() {
    let mut proxier = with_services(of_kube_proxy(), &[ONE, TWO]);
    let plan = sync(&mut proxier).plan;
    assert_eq!(
        plan.to_string(),
        "# sets
[1] ipset create KERNLINK-VS hash:ip,port family inet hashsize 1024 maxelem 1048576 -exist
# ledger
[2] ipset restore
destroy KERNLINK-VS~ -exist
create KERNLINK-VS~ hash:ip,port family inet hashsize 1024 maxelem 1048576
add KERNLINK-VS~ 10.96.0.1,tcp:80 -exist
add KERNLINK-VS~ 10.96.0.2,tcp:80 -exist
swap KERNLINK-VS~ KERNLINK-VS
destroy KERNLINK-VS~ -exist
"
    );
    assert_eq!(ledger(&mut proxier), ["10.96.0.1,tcp:80", "10.96.0.2,tcp:80"]);
    proxier.resync();
    assert!(sync(&mut proxier).plan.is_empty());
}

#[test]
fn a_process_that_ended_while_it_wrote_the_ledger_leaves_nothing_foreign() {
    let whole = match with_services(of_kube_proxy(), &[ONE, TWO])
        .plan(Instant::now())
        .unwrap()
        .phases()
        .iter()
        .find(|phase| phase.kind == Phase::Ledger)
        .map(|phase| phase.steps[0].operation.clone())
    {
        Some(Operation::ReplaceSet(replacement)) => replacement,
        other => panic!("{other:?}"),
    };
    for done in 0..=whole.operations().len() {
        let mut kernel = of_kube_proxy();
        let ledger = SetId::Ledger.definition(Family::Ipv4);
        kernel.sets.create(&ledger).unwrap();
        for operation in whole.operations().into_iter().take(done) {
            kernel.execute(&Operation::Set(operation)).unwrap();
        }
        // The next process has one of the Services with other endpoints, and removes the other Service.
        let mut next = proxier(ipv4_config(), kernel);
        upsert(&mut next, service("one", "10.96.0.1"));
        endpoints(&mut next, "one", &[3]);
        let synced = sync(&mut next);
        assert_eq!(reports(&synced), [""; 0]);
        assert_eq!(virtual_servers(next.kernel_mut()), ["-t 10.96.0.1:80"], "{done}");
        let served = key("10.96.0.1", 80);
        // The removed endpoints drained; they have no connections.
        sync_until_nothing_waits(&mut next, Instant::now());
        assert_eq!(real_servers(next.kernel_mut(), &served), ["10.244.0.3:8080"]);
        assert_eq!(self::ledger(&mut next), ["10.96.0.1,tcp:80"]);
        assert!(next.sync(Instant::now()).unwrap().plan.is_empty());
        next.resync();
        assert!(next.sync(Instant::now()).unwrap().plan.is_empty());
        let sets = next.kernel_mut().sets.names().unwrap();
        let temporary = sets.iter().filter(|name| name.to_string().contains('~'));
        assert_eq!(temporary.count(), 0);
    }
}

#[test]
fn additions_to_a_ledger_wait_until_the_owned_virtual_servers_are_in_it() {
    let (kernel, faults) = Faults::of_kernel(of_kube_proxy());
    faults.refuse("swap KERNLINK-VS~");
    let mut proxier = with_services(kernel, &[ONE, TWO]);
    upsert(&mut proxier, service("three", "10.96.0.3"));
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    // The others are served as before; without a full ledger, none is added.
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 2);
    assert_eq!(ledger(&mut proxier), [""; 0]);
    upsert(&mut proxier, service("four", "10.96.0.4"));
    proxier.sync(now).unwrap();
    assert_eq!(ledger(&mut proxier), [""; 0]);
    faults.end();
    assert!(sync_until_nothing_waits(&mut proxier, now).is_success());
    assert_eq!(ledger(&mut proxier).len(), 4);
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 4);
}

#[test]
fn a_flushed_ledger_is_written_again_in_one_step_and_nothing_becomes_foreign() {
    let mut proxier = with_services(kernel(), &[ONE, TWO]);
    sync(&mut proxier);
    for (destroys, rechecks) in [(false, false), (true, false), (false, true), (true, true)] {
        let name = SetId::Ledger.name(Family::Ipv4);
        proxier.kernel_mut().sets.flush(&name).unwrap();
        if destroys {
            proxier.kernel_mut().sets.destroy(&name).unwrap();
        }
        if rechecks {
            proxier.recheck([Key::Set(Family::Ipv4, SetId::Ledger)]);
        } else {
            proxier.resync();
        }
        let synced = sync(&mut proxier);
        assert_eq!(ipvs_commands(&synced.plan), [""; 0]);
        assert_eq!(synced.plan.len(), 1 + usize::from(destroys), "{}", synced.plan);
        assert_eq!(ledger(&mut proxier).len(), 2);
    }
    delete(&mut proxier, "one");
    sync(&mut proxier);
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.2:80"]);
    assert_eq!(ledger(&mut proxier), ["10.96.0.2,tcp:80"]);
}

#[test]
fn with_a_ledger_a_virtual_server_without_a_service_is_owned_only_if_the_ledger_names_it() {
    let mut first = with_services(kernel(), &[ONE, TWO]);
    sync(&mut first);
    let mut kernel = first.into_kernel();
    // On an address of the dummy link, and in a frontend set.
    add_server(
        &mut kernel,
        VirtualServer::new(key("10.96.0.1", 443), Scheduler::RR),
        &[],
    );
    let entry = sets_entry("10.96.0.1", 443);
    let add = SetOperation::add(SetId::ClusterIp.name(Family::Ipv4), entry);
    kernel.execute(&Operation::Set(add)).unwrap();
    let mut second = proxier(ipv4_config(), kernel);
    sync(&mut second);
    assert_eq!(virtual_servers(second.kernel_mut()), ["-t 10.96.0.1:443"]);
}

/// Another program changes a served virtual server, and its entry in the ledger is lost, before the process is started again.
#[test]
fn without_its_entry_in_the_ledger_a_changed_virtual_server_is_repaired_if_a_frontend_set_names_it() {
    let of_one = key("10.96.0.1", 80);
    let changes = [
        IpvsOperation::UpdateRealServer {
            virtual_server: of_one,
            real_server: RealServer::new("10.244.0.2:8080".parse::<std::net::SocketAddr>().unwrap())
                .with_weight(Weight::from(0)),
        },
        IpvsOperation::UpdateVirtualServer(VirtualServer::new(of_one, Scheduler::WLC)),
    ];
    for change in changes {
        let mut first = with_services(kernel(), &[ONE, TWO]);
        sync(&mut first);
        let mut kernel = first.into_kernel();
        let entry = sets_entry("10.96.0.1", 80);
        kernel
            .sets
            .delete(&SetId::Ledger.name(Family::Ipv4), &entry)
            .unwrap();
        kernel.execute(&Operation::Ipvs(change)).unwrap();
        let mut second = with_services(kernel, &[ONE, TWO]);
        let synced = sync(&mut second);
        assert_eq!(reports(&synced), [""; 0]);
        let in_ledger = position(&synced.plan, "add KERNLINK-VS 10.96.0.1,tcp:80");
        assert!(in_ledger < position(&synced.plan, "ipvsadm -"), "{}", synced.plan);
        assert_eq!(ipvs_commands(&synced.plan).len(), 1, "{}", synced.plan);
        second.resync();
        assert!(sync(&mut second).plan.is_empty());
        // It is owned.
        delete(&mut second, "one");
        sync(&mut second);
        assert_eq!(virtual_servers(second.kernel_mut()), ["-t 10.96.0.2:80"]);
    }
}

/// The entry of its frontend is in place before the process finds out that it exists.
#[test]
fn a_virtual_server_that_another_program_adds_at_the_same_time_stays_foreign() {
    let mut proxier = with_services(kernel(), &[ONE]);
    sync(&mut proxier);
    let of_two = key("10.96.0.2", 80);
    let foreign = VirtualServer::new(of_two, Scheduler::WLC);
    add_server(proxier.kernel_mut(), foreign, &["10.244.0.9:8080"]);
    upsert(&mut proxier, service("two", "10.96.0.2"));
    endpoints(&mut proxier, "two", &[1]);
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.counts().failed > 0, "{synced}");
    assert_eq!(
        entries(proxier.kernel_mut(), SetId::ClusterIp),
        ["10.96.0.1,tcp:80", "10.96.0.2,tcp:80"]
    );
    proxier.resync();
    for _ in 0..2 {
        sync_until_nothing_waits(&mut proxier, now);
        assert_eq!(real_servers(proxier.kernel_mut(), &of_two), ["10.244.0.9:8080"]);
        assert_eq!(
            entries(proxier.kernel_mut(), SetId::ClusterIp),
            ["10.96.0.1,tcp:80"]
        );
        assert_eq!(ledger(&mut proxier), ["10.96.0.1,tcp:80"]);
        proxier = with_services(proxier.into_kernel(), &[ONE]);
        upsert(&mut proxier, service("two", "10.96.0.2"));
        endpoints(&mut proxier, "two", &[1]);
    }
}

#[test]
fn without_a_ledger_a_virtual_server_in_an_excluded_network_is_foreign_although_a_set_names_it() {
    let mut config = ipv4_config();
    config.exclude_cidrs = vec!["10.96.0.1/32".parse().unwrap()];
    let mut proxier = proxier(config, of_kube_proxy());
    sync(&mut proxier);
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
}

#[test]
fn a_foreign_virtual_server_that_is_equal_to_the_desired_one_is_adopted() {
    for is_first in [true, false] {
        let mut kernel = if is_first {
            kernel()
        } else {
            let mut first = with_services(kernel(), &[ONE, TWO]);
            sync(&mut first);
            first.into_kernel()
        };
        let server = VirtualServer::new(key("10.96.0.3", 80), Scheduler::RR);
        add_server(&mut kernel, server, &["10.244.0.1:8080", "10.244.0.2:8080"]);
        let mut proxier = with_services(kernel, &[ONE, TWO]);
        upsert(&mut proxier, service("web", "10.96.0.3"));
        endpoints(&mut proxier, "web", &[1, 2]);
        let synced = sync(&mut proxier);
        assert_eq!(reports(&synced), [""; 0]);
        let ipvs = ipvs_commands(&synced.plan);
        assert!(
            !ipvs.iter().any(|command| command.contains("10.96.0.3")),
            "{ipvs:?}"
        );
        assert!(ledger(&mut proxier).contains(&"10.96.0.3,tcp:80".to_owned()));
        // It is owned: it is removed with its Service, also by another process.
        let mut next = with_services(proxier.into_kernel(), &[ONE, TWO]);
        sync(&mut next);
        assert_eq!(
            virtual_servers(next.kernel_mut()),
            ["-t 10.96.0.1:80", "-t 10.96.0.2:80"]
        );
    }
}

#[test]
fn a_plan_that_is_not_executed_adopts_nothing() {
    let mut kernel = kernel();
    add_server(
        &mut kernel,
        VirtualServer::new(key("10.96.0.1", 80), Scheduler::RR),
        &[],
    );
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let plan = proxier.plan(Instant::now()).unwrap();
    position(&plan, "add KERNLINK-VS 10.96.0.1,tcp:80");
    delete(&mut proxier, "web");
    sync(&mut proxier);
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
}

/// A Service with a cluster IP, whose virtual server is foreign, and an external IP.
fn with_foreign(foreign: VirtualServer, config: kernlink_proxier::ipvs_mode::Config) -> Proxier {
    let mut kernel = kernel();
    add_server(&mut kernel, foreign, &["10.244.0.9:8080"]);
    let mut proxier = proxier(config, kernel);
    let mut web = service("web", "10.96.0.1");
    web.external_ips = vec!["203.0.113.5".to_owned()];
    upsert(&mut proxier, web);
    endpoints(&mut proxier, "web", &[1]);
    proxier
}

fn foreign_listing(proxier: &mut Proxier) -> String {
    let listed = proxier.kernel_mut().ipvs.list_all().unwrap().into_iter();
    let foreign = listed.filter(|(server, _)| server.key == key("10.96.0.1", 80));
    foreign
        .map(|(server, real_servers)| format!("{server} {real_servers:?}"))
        .collect()
}

#[test]
fn a_foreign_virtual_server_that_differs_is_reported_once_and_left_alone() {
    for (foreign, what) in [
        (
            VirtualServer::new(key("10.96.0.1", 80), Scheduler::WLC),
            "attributes",
        ),
        (
            VirtualServer::new(key("10.96.0.1", 80), Scheduler::RR),
            "real servers",
        ),
    ] {
        let mut proxier = with_foreign(foreign, ipv4_config());
        let before = foreign_listing(&mut proxier);
        let synced = sync(&mut proxier);
        assert_eq!(reports(&synced), [DIFFERS], "{what}");
        assert_eq!(foreign_listing(&mut proxier), before);
        // Only the external IP is served.
        assert_eq!(ledger(&mut proxier), ["203.0.113.5,tcp:80"]);
        assert_eq!(entries(proxier.kernel_mut(), SetId::ClusterIp), [""; 0]);
        assert_eq!(bound(proxier.kernel_mut()), ["203.0.113.5/32"]);
        let events: Vec<String> = proxier.state().events().iter().map(ToString::to_string).collect();
        assert_eq!(events, [DIFFERS]);
        // Not reported again, also if the kernel is read again, or endpoints change.
        proxier.resync();
        let synced = sync(&mut proxier);
        assert!(
            synced.plan.is_empty() && synced.events.is_empty(),
            "{}",
            synced.plan
        );
        endpoints(&mut proxier, "web", &[1, 2]);
        let synced = sync(&mut proxier);
        assert_eq!(ipvs_commands(&synced.plan).len(), 1, "{}", synced.plan);
        assert_eq!(reports(&synced), [""; 0]);
        // A new process does the same.
        let mut next = proxier_of(proxier.into_kernel());
        let synced = sync(&mut next);
        assert!(synced.plan.is_empty(), "{}", synced.plan);
        assert_eq!(reports(&synced), [DIFFERS]);
        // It stays when the Service is deleted.
        delete(&mut next, "web");
        sync(&mut next);
        assert_eq!(foreign_listing(&mut next), before);
        assert_eq!(virtual_servers(next.kernel_mut()), ["-t 10.96.0.1:80"]);
    }
}

fn proxier_of(kernel: Kernel) -> Proxier {
    let mut proxier = proxier(ipv4_config(), kernel);
    let mut web = service("web", "10.96.0.1");
    web.external_ips = vec!["203.0.113.5".to_owned()];
    upsert(&mut proxier, web);
    endpoints(&mut proxier, "web", &[1, 2]);
    proxier
}

#[test]
fn a_frontend_is_served_when_the_foreign_virtual_server_is_gone_or_equal() {
    let of_web = key("10.96.0.1", 80);
    for becomes_equal in [false, true] {
        let mut proxier = with_foreign(VirtualServer::new(of_web, Scheduler::RR), ipv4_config());
        sync(&mut proxier);
        proxier.kernel_mut().ipvs.delete_virtual_server(&of_web).unwrap();
        if becomes_equal {
            let equal = VirtualServer::new(of_web, Scheduler::RR);
            add_server(proxier.kernel_mut(), equal, &["10.244.0.1:8080"]);
        }
        proxier.resync();
        let synced = sync(&mut proxier);
        let added = if becomes_equal { 0 } else { 2 };
        assert_eq!(ipvs_commands(&synced.plan).len(), added, "{}", synced.plan);
        assert_eq!(real_servers(proxier.kernel_mut(), &of_web), ["10.244.0.1:8080"]);
        assert_eq!(ledger(&mut proxier).len(), 2);
        assert_eq!(
            entries(proxier.kernel_mut(), SetId::ClusterIp),
            ["10.96.0.1,tcp:80"]
        );
        assert_eq!(proxier.state().events(), []);
        proxier.resync();
        assert!(sync(&mut proxier).plan.is_empty());
    }
}

#[test]
fn with_adopt_foreign_the_virtual_server_is_changed_after_it_is_in_the_ledger() {
    let mut config = ipv4_config();
    let server = VirtualServer::new(key("10.96.0.1", 80), Scheduler::WLC);
    let mut proxier = with_foreign(server, config.clone());
    sync(&mut proxier);
    config.adopt_foreign = true;
    proxier.set_config(&config).unwrap();
    let synced = sync(&mut proxier);
    let in_ledger = position(&synced.plan, "add KERNLINK-VS 10.96.0.1,tcp:80");
    assert_eq!(
        ipvs_commands(&synced.plan),
        [
            "ipvsadm -E -t 10.96.0.1:80 -s rr",
            "ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1",
            "ipvsadm -e -t 10.96.0.1:80 -r 10.244.0.9:8080 -m -w 0",
        ]
    );
    for (id, step) in synced
        .plan
        .steps()
        .filter(|(_, step)| step.operation.to_string().starts_with("ipvsadm"))
    {
        let needs: Vec<usize> = step.needs.iter().map(|need| need.index()).collect();
        assert!(needs.contains(&in_ledger), "{id}: {needs:?}\n{}", synced.plan);
    }
    assert_eq!(proxier.state().events(), []);
    delete(&mut proxier, "web");
    sync(&mut proxier);
    assert_eq!(virtual_servers(proxier.kernel_mut()), [""; 0]);
}

/// Also if the process that set the weight to 0 was another one, and in every sync that reads the kernel.
#[test]
fn a_desired_real_server_at_weight_0_gets_its_weight_back() {
    let of_one = key("10.96.0.1", 80);
    let drained = |kernel: &mut Kernel, virtual_server: VirtualServerKey| {
        let address: std::net::SocketAddr = "10.244.0.2:8080".parse().unwrap();
        let update = IpvsOperation::UpdateRealServer {
            virtual_server,
            real_server: RealServer::new(address).with_weight(Weight::from(0)),
        };
        kernel.execute(&Operation::Ipvs(update)).unwrap();
    };
    let mut kernel = of_kube_proxy();
    drained(&mut kernel, of_one);
    let mut proxier = with_services(kernel, &[ONE, TWO]);
    for _ in 0..3 {
        let synced = sync(&mut proxier);
        let expected = "ipvsadm -e -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 1";
        assert_eq!(ipvs_commands(&synced.plan), [expected]);
        drained(proxier.kernel_mut(), of_one);
        proxier.resync();
    }
}
