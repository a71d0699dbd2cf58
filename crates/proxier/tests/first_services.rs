//! The Services that are programmed before all others on an empty kernel.
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

use kernlink_proxier::ipvs_mode::{Config, Phase, Proxier};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName, Port, Service,
    SourceId,
};

use crate::faulty::Faults;
use crate::node::{
    SOURCE, bound, config, endpoints, kernel, proxier, service, sync_until_nothing_waits, upsert,
    virtual_servers,
};

/// A proxier with ten Services in namespace `ns`, `default/kubernetes` and `kube-system/kube-dns`, and the commands that its kernel
/// executes.
fn cluster(config: Config) -> (Proxier, Faults) {
    let (mut kernel, faults) = Faults::of_kernel(kernel());
    kernel.rules = faults.tables(kernel.rules);
    let mut proxier = proxier(config, kernel);
    for last in 20..30 {
        let name = format!("s{last}");
        upsert(&mut proxier, service(&name, &format!("10.96.0.{last}")));
        endpoints(&mut proxier, &name, &[last]);
    }
    for (namespace, name, address, endpoint) in [
        ("default", "kubernetes", "10.96.0.1", 1),
        ("kube-system", "kube-dns", "10.96.0.10", 2),
    ] {
        let service = Service::new(ObjectName::new(namespace, name))
            .with_cluster_ip(address)
            .with_port(Port::new("http", 443));
        upsert(&mut proxier, service);
        let slice = EndpointSlice::new(ObjectName::new(namespace, name), name, Family::Ipv4)
            .with_port(EndpointPort::new("http", 6443))
            .with_endpoint(Endpoint::new([192, 0, 2, endpoint].into()));
        proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Upsert(slice)));
    }
    (proxier, faults)
}

/// The position of the first or last command that contains a text.
fn first(commands: &[String], text: &str) -> usize {
    let found = commands.iter().position(|command| command.contains(text));
    found.unwrap_or_else(|| panic!("{text} is not in {commands:#?}"))
}

fn last(commands: &[String], text: &str) -> usize {
    let found = commands.iter().rposition(|command| command.contains(text));
    found.unwrap_or_else(|| panic!("{text} is not in {commands:#?}"))
}

#[test]
fn on_an_empty_kernel_the_api_server_and_cluster_dns_are_reachable_before_anything_else_is_programmed() {
    let (mut proxier, faults) = cluster(config());
    let now = Instant::now();
    let first_sync = proxier.sync(now).unwrap();
    // The node is not ready, and the rest is due at once.
    assert!(first_sync.is_partial && !first_sync.is_success(), "{first_sync}");
    assert_eq!(first_sync.counts().failed + first_sync.counts().skipped, 0);
    assert_eq!(first_sync.next, Some(now));
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 2);
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
    let commands = faults.take_executed();
    for text in [
        "add KUBE-CLUSTER-IP 10.96.0.1,tcp:443",
        "-a -t 10.96.0.1:443 -r 192.0.2.1:6443",
        "-a -t 10.96.0.10:443 -r 192.0.2.2:6443",
        "address replace 10.96.0.1/32",
        "address replace 10.96.0.10/32",
    ] {
        first(&commands, text);
    }
    assert!(
        !commands.iter().any(|command| command.contains("10.96.0.2")),
        "{commands:#?}"
    );
    // The rules are in place before the first address.
    assert!(first(&commands, "iptables-restore") < first(&commands, "address replace"));
    // They have IPv4 addresses only, so they do not wait for the IPv6 rules.
    assert!(
        !commands
            .iter()
            .any(|command| command.contains("ip6tables-restore")),
        "{commands:#?}"
    );
    let rest = proxier.sync(now).unwrap();
    assert!(rest.is_success() && !rest.is_partial, "{rest}");
    let commands = faults.take_executed();
    assert!(first(&commands, "ip6tables-restore") < first(&commands, "address replace 10.96.0.2"));
    for synced in [first_sync, rest] {
        let phases: Vec<Phase> = synced.plan.phases().iter().map(|phase| phase.kind).collect();
        assert!(phases.is_sorted_by(|a, b| a < b), "{phases:?}");
    }
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 12);
    assert!(proxier.sync(now).unwrap().plan.is_empty());
}

#[test]
fn what_changes_after_the_first_services_is_programmed_together_with_the_rest() {
    let (mut proxier, _) = cluster(config());
    assert!(proxier.sync(Instant::now()).unwrap().is_partial);
    // Of the rest, one Service changes and one is deleted. One of the first Services changes its endpoint.
    upsert(&mut proxier, service("s20", "10.96.0.40"));
    let deleted = ObjectName::new("ns", "s21");
    proxier.change(SOURCE, Change::Services(ObjectChange::Delete(deleted)));
    let slice = EndpointSlice::new(
        ObjectName::new("default", "kubernetes"),
        "kubernetes",
        Family::Ipv4,
    )
    .with_port(EndpointPort::new("http", 6443))
    .with_endpoint(Endpoint::new([192, 0, 2, 9].into()));
    proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Upsert(slice)));
    // A plan that is only printed consumes nothing.
    assert!(!proxier.plan(Instant::now()).unwrap().is_empty());
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success() && !synced.is_partial, "{synced}");
    // The earlier endpoint of the first Service drains.
    sync_until_nothing_waits(&mut proxier, synced.next.unwrap());
    let servers = virtual_servers(proxier.kernel_mut());
    assert_eq!(servers.len(), 11, "{servers:?}");
    assert_eq!(bound(proxier.kernel_mut()).len(), 11);
    proxier.resync();
    let plan = proxier.plan(Instant::now()).unwrap();
    assert!(plan.is_empty(), "{plan}");
}

#[test]
fn if_a_source_is_added_after_the_first_services_the_rest_is_programmed_when_it_has_synced() {
    let (mut proxier, _) = cluster(config());
    assert!(proxier.sync(Instant::now()).unwrap().is_partial);
    let (added, kind) = (SourceId(7), Kind::Service);
    proxier.register_source(added, kind);
    assert!(proxier.sync(Instant::now()).is_err());
    proxier.change(added, Change::synced(kind));
    proxier.resync();
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success() && !synced.is_partial, "{synced}");
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 12);
}

#[test]
fn the_first_services_are_configurable() {
    let mut config = config();
    config.first_services = vec![ObjectName::new("ns", "s27"), ObjectName::new("ns", "missing")];
    let (mut proxier, faults) = cluster(config);
    assert!(proxier.sync(Instant::now()).unwrap().is_partial);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let commands = faults.take_executed();
    assert!(last(&commands, "10.96.0.27") < first(&commands, "10.96.0.1"));

    let mut config = node::config();
    config.first_services = Vec::new();
    let (mut proxier, _) = cluster(config);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success() && !synced.is_partial, "{synced}");
}

#[test]
fn a_kernel_with_owned_objects_is_programmed_in_one_sync() {
    // After a first process: another one with other Services must not remove what only the others need.
    let (mut proxier, _) = cluster(config());
    sync_until_nothing_waits(&mut proxier, Instant::now());
    let mut kernel = proxier.into_kernel();
    kernel.ipvs.flush().unwrap();
    let mut restarted = node::proxier(config(), kernel);
    let (fresh, _) = cluster(config());
    for service in fresh.services().services() {
        upsert(&mut restarted, service.clone());
    }
    let synced = restarted.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let phases: Vec<Phase> = synced.plan.phases().iter().map(|phase| phase.kind).collect();
    assert!(!phases.contains(&Phase::UnbindAddresses), "{}", synced.plan);
}

#[test]
fn a_failure_among_the_first_services_does_not_stop_the_rest() {
    let (mut proxier, faults) = cluster(config());
    faults.refuse("-A -t 10.96.0.1:443");
    faults.refuse("-A -t 10.96.0.25:80");
    let now = Instant::now();
    // The virtual server, its real server and its address.
    for waiting in [1, 2] {
        let synced = proxier.sync(now).unwrap();
        let counts = synced.counts();
        assert_eq!((counts.failed, counts.skipped), (1, 2), "{synced}");
        assert_eq!(synced.waiting, waiting);
        assert_eq!(synced.is_partial, waiting == 1);
    }
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 10);
    faults.end();
    sync_until_nothing_waits(&mut proxier, now);
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 12);
    assert_eq!(bound(proxier.kernel_mut()).len(), 12);
}

#[test]
fn rules_with_an_unknown_outcome_among_the_first_services_are_read_before_the_rest_writes_them() {
    let (mut proxier, faults) = cluster(config());
    // Its entry changes the rules.
    let mut external = service("s20", "10.96.0.20");
    external.external_ips = vec!["203.0.113.1".to_owned()];
    upsert(&mut proxier, external);
    faults.lose_reply("iptables-restore");
    let now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_partial);
    let synced = proxier.sync(now).unwrap();
    assert!(!synced.is_success(), "{synced}");
    assert!(proxier.cost().rereads > 0);
    assert_eq!(proxier.cost().listings, 1);
    faults.end();
    let last = sync_until_nothing_waits(&mut proxier, synced.next.unwrap());
    assert!(last.is_success(), "{last}");
    assert_eq!(bound(proxier.kernel_mut()).len(), 13);
}
