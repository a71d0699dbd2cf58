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
use kernlink_services::{Change, EndpointSlice, ObjectChange, ObjectName, Port, Service};

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
        let slice = EndpointSlice::new(
            ObjectName::new(namespace, name),
            name,
            kernlink_services::Family::Ipv4,
        )
        .with_port(kernlink_services::EndpointPort::new("http", 6443))
        .with_endpoint(kernlink_services::Endpoint::new([192, 0, 2, endpoint].into()));
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
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let commands = faults.take_executed();
    let others = first(&commands, "10.96.0.2");
    for text in [
        "add KUBE-CLUSTER-IP 10.96.0.1,tcp:443",
        "-a -t 10.96.0.1:443 -r 192.0.2.1:6443",
        "-a -t 10.96.0.10:443 -r 192.0.2.2:6443",
        "address replace 10.96.0.1/32",
        "address replace 10.96.0.10/32",
    ] {
        assert!(last(&commands, text) < others, "{text}: {commands:#?}");
    }
    // The rules are in place before the first address.
    assert!(first(&commands, "iptables-restore") < first(&commands, "address replace"));
    // They have IPv4 addresses only, so they do not wait for the IPv6 rules.
    let reachable = last(&commands, "address replace 10.96.0.10/32").max(last(&commands, "10.96.0.1:443 -r"));
    assert!(reachable < first(&commands, "ip6tables-restore"));
    assert!(first(&commands, "ip6tables-restore") < first(&commands, "address replace 10.96.0.2"));
    // The plan and the report contain both parts: numbers of steps are those of the whole plan.
    let plan = synced.plan.steps().map(|(_, step)| step.operation.to_string());
    let plan: Vec<String> = plan
        .map(|command| command.lines().next().unwrap_or_default().to_owned())
        .filter(|command| !command.starts_with("sysctl"))
        .collect();
    let executed: Vec<&str> = commands.iter().map(String::as_str).collect();
    assert_eq!(plan.len(), executed.len());
    assert!(
        plan.iter()
            .zip(&executed)
            .all(|(plan, executed)| plan.ends_with(executed))
    );
    assert_eq!(synced.report.outcomes().len(), synced.plan.len());
    let binds = synced
        .plan
        .phases()
        .iter()
        .filter(|phase| phase.kind == Phase::BindAddresses);
    assert_eq!(binds.count(), 2);
    for (id, step) in synced.plan.steps() {
        assert!(step.needs.iter().chain(&step.needs_any).all(|need| *need < id));
    }
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
}

#[test]
fn the_first_services_are_configurable() {
    let mut config = config();
    config.first_services = vec![ObjectName::new("ns", "s27"), ObjectName::new("ns", "missing")];
    let (mut proxier, faults) = cluster(config);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let commands = faults.take_executed();
    assert!(last(&commands, "10.96.0.27") < first(&commands, "10.96.0.1"));

    let mut config = node::config();
    config.first_services = Vec::new();
    let (mut proxier, _) = cluster(config);
    let synced = proxier.sync(Instant::now()).unwrap();
    let phases: Vec<Phase> = synced.plan.phases().iter().map(|phase| phase.kind).collect();
    assert!(phases.is_sorted_by(|a, b| a < b), "{phases:?}");
}

#[test]
fn a_kernel_with_owned_objects_is_programmed_in_one_part() {
    // After a first process: another one with other Services must not remove what only the others need.
    let (mut proxier, _) = cluster(config());
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
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
    assert!(phases.is_sorted_by(|a, b| a < b), "{phases:?}");
    assert!(!phases.contains(&Phase::UnbindAddresses), "{}", synced.plan);
}

#[test]
fn a_failure_in_the_first_part_is_reported_with_its_step_and_does_not_stop_the_second() {
    let (mut proxier, faults) = cluster(config());
    faults.refuse("-A -t 10.96.0.1:443");
    faults.refuse("-A -t 10.96.0.25:80");
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    // Each virtual server, its real server and its address.
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (2, 4),
        "{synced}"
    );
    assert_eq!(synced.waiting, 2);
    let plan = synced.plan.to_string();
    for (skipped, needed) in [
        ("address replace 10.96.0.1/32", "-A -t 10.96.0.1:443"),
        ("address replace 10.96.0.25/32", "-A -t 10.96.0.25:80"),
    ] {
        let text = synced.to_string();
        let line = text.lines().find(|line| line.contains(skipped)).unwrap();
        let number = line.split_once(": step ").unwrap().1.split(' ').next().unwrap();
        assert!(
            plan.lines()
                .any(|line| line.starts_with(&format!("[{number}] ")) && line.contains(needed)),
            "{line}\n{plan}"
        );
    }
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 10);
    faults.end();
    sync_until_nothing_waits(&mut proxier, synced.next.unwrap());
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 12);
    assert_eq!(bound(proxier.kernel_mut()).len(), 12);
}

#[test]
fn rules_with_an_unknown_outcome_in_the_first_part_are_read_before_the_second_writes_them() {
    let (mut proxier, faults) = cluster(config());
    // Its entry changes the rules.
    let mut external = service("s20", "10.96.0.20");
    external.external_ips = vec!["203.0.113.1".to_owned()];
    upsert(&mut proxier, external);
    faults.lose_reply("iptables-restore");
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(!synced.is_success(), "{synced}");
    assert!(proxier.cost().rereads > 0);
    assert_eq!(proxier.cost().listings, 1);
    faults.end();
    let last = sync_until_nothing_waits(&mut proxier, synced.next.unwrap());
    assert!(last.is_success(), "{last}");
    assert_eq!(bound(proxier.kernel_mut()).len(), 13);
}
