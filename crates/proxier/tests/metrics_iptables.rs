//! The page of metrics of iptables mode: kube-proxy's metrics of this mode, by name, help, type and labels, and their values.
#![cfg(all(feature = "fake", feature = "metrics"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;

use std::time::{Instant, SystemTime};

use kernlink_proxier::iptables_mode::accounting::{AccountingCollector, FakeAccounting};
use kernlink_proxier::iptables_mode::{Proxier, Totals};
use kernlink_proxier::metrics::Metrics;
use kernlink_proxier::status::Recorder;
use kernlink_services::{Family, TrafficPolicy};

use crate::iptables_node::{change_endpoints, deliver, kernel, proxier_on, service, slice, sync};

/// A proxier with three Services of two endpoints, one of which has the policy `Local` and endpoints on other nodes only.
fn unsynced() -> Proxier {
    let mut proxier = proxier_on(kernel());
    let mut services: Vec<_> = (0..3).map(service).collect();
    services[2].internal_traffic_policy = TrafficPolicy::Local;
    let slices = (0..3).map(|number| slice(number, &[1, 2])).collect();
    deliver(&mut proxier, services, slices);
    proxier
}

/// Syncs and records it.
fn record(recorder: &mut Recorder<Totals>, proxier: &mut Proxier) {
    recorder.on_started();
    let synced = sync(proxier);
    recorder.on_synced(proxier, &synced, SystemTime::now());
}

/// The lines of a page about metrics of kube-proxy that IPVS mode does not have, and of those with other values in this mode.
fn of_this_mode(page: &str) -> Vec<&str> {
    let names = [
        "kubeproxy_iptables_",
        "kubeproxy_sync_proxy_rules_iptables_",
        "kubeproxy_sync_full_",
        "kubeproxy_sync_partial_",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    ];
    let is_one = |line: &&str| {
        let text = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ");
        names.iter().any(|name| text.starts_with(name))
    };
    let is_number = |line: &&str| !line.contains("_bucket{") && !line.contains("_sum{");
    page.lines().filter(is_one).filter(is_number).collect()
}

#[test]
fn the_page_has_the_metrics_of_this_mode() {
    let mut proxier = unsynced();
    let mut recorder: Recorder<Totals> = Recorder::new(Family::ALL, SystemTime::now());
    let metrics = Metrics::new().unwrap();
    let mut accounting = FakeAccounting::default();
    accounting
        .objects
        .insert("ct_state_invalid_dropped_pkts".into(), 7);
    let collector = AccountingCollector::new(Box::new(accounting)).unwrap();
    metrics.registry().register(Box::new(collector)).unwrap();
    record(&mut recorder, &mut proxier);
    // The rules that the last sync wrote are all rules.
    let page = metrics.encode(recorder.status()).unwrap();
    let number = |page: &str, sample: &str| -> usize {
        let line = page.lines().find(|line| line.starts_with(sample));
        line.unwrap_or_else(|| panic!("{sample}\n{page}"))
            .rsplit_once(' ')
            .unwrap()
            .1
            .parse()
            .unwrap()
    };
    let listings = proxier.state().listings(1);
    for (family, text) in [("IPv4", &listings.iptables), ("IPv6", &listings.ip6tables)] {
        let (filter, nat) = text.split_once("*nat").unwrap();
        for (table, text) in [("filter", filter), ("nat", nat)] {
            let rules = text.lines().filter(|line| line.starts_with("-A")).count();
            let sample = |name: &str| {
                format!(
                    "kubeproxy_sync_proxy_rules_iptables_{name}{{ip_family=\"{family}\",table=\"{table}\"}}"
                )
            };
            assert_eq!(number(&page, &sample("total")), rules, "{family} {table}\n{text}");
            // The jumps in built-in chains are counted as written.
            assert!(number(&page, &sample("last")) >= rules, "{family} {table}");
        }
    }
    // An endpoint is replaced: two rules of the selection, and two of the new endpoint.
    change_endpoints(&mut proxier, 1, &[1, 3]);
    record(&mut recorder, &mut proxier);
    let page = metrics.encode(recorder.status()).unwrap();
    let lines = of_this_mode(&page);
    let expected = include_str!("metrics_iptables.txt");
    if std::env::var_os("KERNLINK_BLESS").is_some() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/metrics_iptables.txt");
        std::fs::write(path, lines.join("\n") + "\n").unwrap();
        return;
    }
    assert_eq!(lines, expected.lines().collect::<Vec<_>>());
}

#[test]
fn the_numbers_of_rules_follow_changes() {
    let mut changed = unsynced();
    sync(&mut changed);
    change_endpoints(&mut changed, 0, &[1, 2, 3, 4]);
    change_endpoints(&mut changed, 1, &[]);
    sync(&mut changed);
    let kernel = changed.into_kernel();
    let mut rebuilt = unsynced();
    *rebuilt.kernel_mut() = kernel;
    change_endpoints(&mut rebuilt, 0, &[1, 2, 3, 4]);
    change_endpoints(&mut rebuilt, 1, &[]);
    let plan = rebuilt.plan(Instant::now()).unwrap();
    assert!(plan.is_empty(), "{plan}");
}
