//! Sets that are too small for their entries are replaced without losing an entry.
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

use kernlink_ipset::{Entry, IpSets as _, Operation as SetOperation, Set, SetName, SetType};
use kernlink_proxier::ipvs_mode::{Kernel, Operation, Proxier, SetId};
use kernlink_proxier::{Family, Outcome};

use crate::faulty::Faults;
use crate::node::{
    entries, ipv4_config, kernel, load_balancer, proxier, service, sync_until_nothing_waits, upsert,
    virtual_servers,
};

const SOURCES: SetId = SetId::LoadBalancerSourceCidr;

/// Replaces all Services by one with so many source ranges.
fn restrict(proxier: &mut Proxier, ranges: u32) {
    let ranges: Vec<String> = (0..ranges)
        .map(|n| format!("11.{}.{}.{}/32", n >> 16, (n >> 8) & 0xff, n & 0xff))
        .collect();
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    upsert(proxier, load_balancer(&ranges));
}

fn maxelem(kernel: &mut Kernel, set: SetId) -> u32 {
    let header = kernel.sets.header(&set.name(Family::Ipv4)).unwrap();
    header.set.options.maxelem.unwrap()
}

fn has_set(kernel: &mut Kernel, name: &str) -> bool {
    let names = kernel.sets.names().unwrap();
    names.contains(&SetName::new(name).unwrap())
}

/// The replacements in a plan, as the first lines of their commands.
fn replacements(synced: &kernlink_proxier::ipvs_mode::Synced) -> Vec<String> {
    let steps = synced.plan.steps();
    let replacements = steps.filter_map(|(_, step)| match &step.operation {
        Operation::ReplaceSet(replacement) => {
            Some(format!("{} {}", replacement.set, replacement.entries.len()))
        }
        _ => None,
    });
    replacements.collect()
}

#[test]
fn a_full_set_is_replaced_by_a_larger_one_and_no_entry_is_lost() {
    let mut proxier = proxier(ipv4_config(), kernel());
    restrict(&mut proxier, 65_536);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(maxelem(proxier.kernel_mut(), SOURCES), 65_536);
    assert_eq!(replacements(&synced), [""; 0]);

    restrict(&mut proxier, 65_537);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(
        replacements(&synced),
        ["KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net family inet hashsize 20480 maxelem 131072 65536"]
    );
    // The replacement has the entries that exist; the new one is added in its phase.
    let replacement = node::position(&synced.plan, "create KUBE-LOAD-BALANCER-SOURCE-CIDR~");
    let addition = "ipset add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,11.1.0.0";
    assert!(replacement < node::position(&synced.plan, addition));
    assert_eq!(maxelem(proxier.kernel_mut(), SOURCES), 131_072);
    assert_eq!(entries(proxier.kernel_mut(), SOURCES).len(), 65_537);
    assert!(!has_set(proxier.kernel_mut(), "KUBE-LOAD-BALANCER-SOURCE-CIDR~"));

    // It stays as it is, with fewer entries and for the next process.
    restrict(&mut proxier, 3);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let mut restarted = node::proxier(ipv4_config(), proxier.into_kernel());
    restrict(&mut restarted, 3);
    let synced = restarted.sync(Instant::now()).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(maxelem(restarted.kernel_mut(), SOURCES), 131_072);
}

#[test]
fn a_set_that_has_too_many_desired_entries_from_the_beginning_is_created_larger() {
    let mut proxier = proxier(ipv4_config(), kernel());
    restrict(&mut proxier, 70_000);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(replacements(&synced), [""; 0]);
    assert_eq!(maxelem(proxier.kernel_mut(), SOURCES), 131_072);
    assert_eq!(maxelem(proxier.kernel_mut(), SetId::ClusterIp), 65_536);
}

#[test]
fn entries_that_replace_all_others_count_together_with_them() {
    // Additions precede removals, so for a moment the set has both.
    let mut proxier = proxier(ipv4_config(), kernel());
    restrict(&mut proxier, 40_000);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let ranges: Vec<String> = (0..40_000)
        .map(|n| format!("12.0.{}.{}/32", n >> 8, n & 0xff))
        .collect();
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    upsert(&mut proxier, load_balancer(&ranges));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(replacements(&synced).len(), 1);
    assert_eq!(entries(proxier.kernel_mut(), SOURCES).len(), 40_000);
}

/// A kernel whose set of cluster IPs has these parameters and an entry that no Service needs.
fn kernel_with(set: Set) -> Kernel {
    let mut kernel = kernel();
    let entry: Entry = Entry::ip_port(
        "10.96.0.99".parse().unwrap(),
        kernlink_ipset::ProtocolPort::new(kernlink_ipset::Protocol::TCP, 9),
    );
    let name = set.name;
    for operation in [SetOperation::create(set), SetOperation::add(name, entry)] {
        kernel.execute(&Operation::Set(operation)).unwrap();
    }
    kernel
}

fn cluster_ips() -> Set {
    SetId::ClusterIp.definition(Family::Ipv4)
}

#[test]
fn a_larger_set_and_another_hash_size_are_accepted() {
    for set in [
        cluster_ips().with_hashsize(64),
        cluster_ips().with_hashsize(4_096),
        cluster_ips().with_maxelem(65_537),
        cluster_ips().with_maxelem(1_000_000).with_hashsize(65_536),
    ] {
        let mut proxier = proxier(ipv4_config(), kernel_with(set.clone()));
        let plan = proxier.plan(Instant::now()).unwrap().to_string();
        assert!(!plan.contains("create KUBE-CLUSTER-IP "), "{set}: {plan}");
        assert!(!plan.contains("KUBE-CLUSTER-IP~"), "{set}: {plan}");
    }
}

#[test]
fn a_set_that_is_smaller_than_that_of_kube_proxy_is_replaced() {
    let mut proxier = proxier(ipv4_config(), kernel_with(cluster_ips().with_maxelem(4)));
    for last in 1..=9 {
        upsert(
            &mut proxier,
            service(&format!("s{last}"), &format!("10.96.0.{last}")),
        );
    }
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(
        replacements(&synced),
        ["KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536 1"]
    );
    assert_eq!(entries(proxier.kernel_mut(), SetId::ClusterIp).len(), 9);
}

#[test]
fn entries_that_fit_are_added_while_the_set_cannot_be_replaced() {
    let (kernel, faults) = Faults::of_kernel(kernel_with(cluster_ips().with_maxelem(4)));
    faults.refuse("create KUBE-CLUSTER-IP~");
    let mut proxier = proxier(ipv4_config(), kernel);
    for last in 1..=9 {
        upsert(
            &mut proxier,
            service(&format!("s{last}"), &format!("10.96.0.{last}")),
        );
    }
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    let failed: Vec<String> = synced
        .plan
        .steps()
        .zip(synced.report.outcomes())
        .filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
        .map(|((_, step), _)| step.key.to_string())
        .collect();
    // The replacement, and the six entries for which there is no room.
    assert_eq!(
        (failed.len(), failed[0].as_str()),
        (7, "set KUBE-CLUSTER-IP"),
        "{failed:?}"
    );
    assert!(
        failed[1..].iter().all(|key| key.starts_with("entry 10.96.0.")),
        "{failed:?}"
    );
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 3);
    // It waits for its retry, although the entries changed, and nothing is left behind.
    upsert(&mut proxier, service("s10", "10.96.0.10"));
    let synced = proxier.sync(now).unwrap();
    assert_eq!(replacements(&synced), [""; 0]);
    assert!(!has_set(proxier.kernel_mut(), "KUBE-CLUSTER-IP~"));
    faults.end();
    let last = sync_until_nothing_waits(&mut proxier, synced.next.unwrap());
    assert!(last.is_success(), "{last}");
    assert_eq!(entries(proxier.kernel_mut(), SetId::ClusterIp).len(), 10);
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 10);
    assert_eq!(maxelem(proxier.kernel_mut(), SetId::ClusterIp), 65_536);
}

#[test]
fn a_failure_while_the_temporary_set_is_filled_leaves_the_set_unchanged() {
    let (kernel, faults) = Faults::of_kernel(kernel_with(cluster_ips().with_maxelem(4)));
    faults.refuse("add KUBE-CLUSTER-IP~ 10.96.0.99");
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, service("s1", "10.96.0.1"));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert!(
        synced
            .to_string()
            .contains("cannot add KUBE-CLUSTER-IP~ 10.96.0.99,tcp:9"),
        "{synced}"
    );
    assert_eq!(maxelem(proxier.kernel_mut(), SetId::ClusterIp), 4);
    assert!(!has_set(proxier.kernel_mut(), "KUBE-CLUSTER-IP~"));
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
}

#[test]
fn a_replacement_whose_reply_was_lost_is_not_repeated() {
    let (kernel, faults) = Faults::of_kernel(kernel_with(cluster_ips().with_maxelem(4)));
    faults.lose_reply("swap KUBE-CLUSTER-IP~ KUBE-CLUSTER-IP");
    let mut proxier = proxier(ipv4_config(), kernel);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(maxelem(proxier.kernel_mut(), SetId::ClusterIp), 65_536);
    faults.end();
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(
        synced.is_success() && synced.plan.is_empty(),
        "{synced}\n{}",
        synced.plan
    );
}

#[test]
fn a_temporary_set_of_a_process_that_ended_is_destroyed_and_a_foreign_set_of_a_similar_name_is_not() {
    let mut kernel = kernel_with(cluster_ips().with_maxelem(4));
    for name in [
        "KUBE-CLUSTER-IP~",
        "KUBE-6-LOAD-BALANCER-SOURCE-CI~",
        "KUBE-CLUSTER-IP~0",
        "blocked~",
    ] {
        let set = Set::new(SetName::new(name).unwrap(), SetType::HashIp);
        kernel
            .execute(&Operation::Set(SetOperation::create(set)))
            .unwrap();
    }
    let mut proxier = proxier(ipv4_config(), kernel);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let names: Vec<String> = proxier
        .kernel_mut()
        .sets
        .names()
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    let left: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| name.contains('~'))
        .collect();
    assert_eq!(left, ["KUBE-CLUSTER-IP~0", "blocked~"]);
    assert_eq!(maxelem(proxier.kernel_mut(), SetId::ClusterIp), 65_536);
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
}

#[test]
fn rules_that_use_the_set_do_not_prevent_its_replacement() {
    let mut sets = kernlink_ipset::Fake::new();
    sets.create(&cluster_ips().with_maxelem(4)).unwrap();
    sets.set_rules(cluster_ips().name, 2);
    let mut kernel = kernel();
    kernel.sets = Box::new(sets);
    let mut proxier = proxier(ipv4_config(), kernel);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(replacements(&synced).len(), 1);
}
