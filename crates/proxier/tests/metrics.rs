//! The pages of metrics, compared with that of kube-proxy.
//!
//! `KERNLINK_BLESS=1 cargo test --all-features --test metrics` writes the actual page into `metrics.txt`; review the difference.
#![cfg(all(feature = "fake", feature = "metrics"))]
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

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kernlink_proxier::ipvs_mode::counters::{
    CounterDetail, IpvsCounters, VirtualServerOwners, write_ipvs_counters,
};
use kernlink_proxier::metrics::prometheus::IntGauge;
use kernlink_proxier::metrics::{CONTENT_TYPE, Metrics};

use crate::faulty::Faults;
use crate::node::{config, endpoints, ipv4_config, kernel, service};
use crate::recorded::{Recorded, local_load_balancer};

/// Each call is 100 ms after the one before.
fn clock() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    *START + Duration::from_millis(100) * u32::try_from(CALLS.fetch_add(1, Ordering::Relaxed)).unwrap()
}

/// The metrics of a page: type, help, and the sets of label names of its samples.
fn described(page: &str) -> BTreeMap<String, (String, String, BTreeSet<String>)> {
    let mut metrics: BTreeMap<String, (String, String, BTreeSet<String>)> = BTreeMap::new();
    let mut current = String::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            current = name.to_owned();
            metrics.entry(current.clone()).or_default().1 = help.to_owned();
        } else if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, metric_type) = described.split_once(' ').unwrap();
            assert_eq!(name, current);
            metrics.get_mut(name).unwrap().0 = metric_type.to_owned();
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            assert!(name.starts_with(&current), "{line} is not of {current}");
            let labels = labels
                .strip_suffix('}')
                .unwrap()
                .split(',')
                .filter(|label| !label.is_empty());
            let names: Vec<&str> = labels
                .map(|label| label.split_once('=').unwrap().0)
                .filter(|name| *name != "le")
                .collect();
            metrics.get_mut(&current).unwrap().2.insert(names.join(","));
        }
    }
    metrics
}

fn page(recorded: &Recorded, metrics: &Metrics) -> String {
    metrics.encode(recorded.status()).unwrap()
}

fn metrics() -> Metrics {
    let metrics = Metrics::new().unwrap();
    metrics.on_healthz(200);
    metrics.on_livez(200);
    metrics
}

#[test]
fn every_metric_that_kube_proxy_publishes_has_its_type_text_and_labels() {
    let recorded_page = include_str!("oracle/load_balancers/http.txt");
    let (_, theirs) = recorded_page.split_once("== metrics\n").unwrap();
    let mut recorded = Recorded::new(config(), kernel());
    recorded.upsert(service("web", "10.96.0.1"));
    recorded.sync();
    let ours = described(&page(&recorded, &metrics()));
    let theirs = described(theirs);
    assert_eq!(theirs.len(), 10);
    for (name, described) in &theirs {
        assert_eq!(ours.get(name), Some(described), "{name}");
    }
    // In kube-proxy's page only after the first change of endpoints, and the first failure.
    let later = [
        "kubeproxy_network_programming_duration_seconds",
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    ];
    let names = ours.keys().filter(|name| name.starts_with("kubeproxy_"));
    let more: Vec<&String> = names.filter(|name| !theirs.contains_key(*name)).collect();
    assert_eq!(more, later);
    assert!(
        ours.keys()
            .all(|name| name.starts_with("kubeproxy_") || name.starts_with("kernlink_"))
    );
}

#[test]
fn the_page_of_a_few_services() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("-A -t 10.96.0.9:80");
    let mut config = ipv4_config();
    // On an empty kernel, what they need is read apart, so there would be more calls of the clock.
    config.first_services = Vec::new();
    let mut recorded = Recorded::new(config, kernel);
    recorded.proxier.set_clock(clock);
    recorded.pass(1_700_000_000);
    recorded.upsert(local_load_balancer());
    recorded.upsert(service("web", "10.96.0.2"));
    recorded.upsert(service("refused", "10.96.0.9"));
    endpoints(&mut recorded.proxier, "web", &[1, 2, 200]);
    endpoints(&mut recorded.proxier, "balanced", &[3, 4]);
    recorded.pass(1);
    recorded.sync();
    recorded.upsert(service("late", "10.96.0.3"));
    let metrics = metrics();
    metrics.on_healthz(503);
    metrics.on_healthz(200);
    let page = page(&recorded, &metrics);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/metrics.txt");
    if std::env::var_os("KERNLINK_BLESS").is_some() {
        fs::write(&golden, &page).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap();
    let expected: Vec<&str> = expected.lines().collect();
    let actual: Vec<&str> = page.lines().collect();
    for (expected, actual) in expected.iter().zip(&actual) {
        assert_eq!(expected, actual);
    }
    assert_eq!(expected.len(), actual.len());
}

#[test]
fn a_family_that_is_not_served_is_not_in_the_page() {
    let mut recorded = Recorded::new(ipv4_config(), kernel());
    recorded.sync();
    let page = page(&recorded, &metrics());
    assert!(
        page.contains(r#"ip_family="IPv4""#) && !page.contains("IPv6"),
        "{page}"
    );
}

#[test]
fn failed_restores_are_counted_for_their_family() {
    let mut kernel = kernel();
    let faults = Faults::default();
    kernel.rules = faults.tables(kernel.rules);
    faults.refuse("ip6tables-restore");
    let mut recorded = Recorded::new(config(), kernel);
    recorded.sync();
    let page = page(&recorded, &metrics());
    let name = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total";
    assert!(
        page.contains(&format!("{name}{{ip_family=\"IPv4\"}} 0\n")),
        "{page}"
    );
    assert!(
        !page.contains(&format!("{name}{{ip_family=\"IPv6\"}} 0\n")),
        "{page}"
    );
    assert!(page.contains(&format!("{name}{{ip_family=\"IPv6\"}} ")), "{page}");
}

#[test]
fn metrics_of_the_embedder_are_part_of_the_page() {
    let metrics = Metrics::new().unwrap();
    let gauge = IntGauge::new("agent_sources", "Sources").unwrap();
    gauge.set(2);
    metrics.registry().register(Box::new(gauge)).unwrap();
    let recorded = Recorded::new(config(), kernel());
    let page = page(&recorded, &metrics);
    assert!(
        page.starts_with("# HELP agent_sources Sources\n# TYPE agent_sources gauge\nagent_sources 2\n"),
        "{page}"
    );
    assert!(CONTENT_TYPE.starts_with("text/plain; version=0.0.4"));
}

#[test]
fn the_counters_of_the_kernel_have_the_services_as_labels() {
    let mut recorded = Recorded::new(config(), kernel());
    recorded.upsert(service("web", "10.96.0.2"));
    recorded.upsert(service("empty", "10.96.0.3"));
    endpoints(&mut recorded.proxier, "web", &[1, 200]);
    recorded.sync();
    let owners = VirtualServerOwners::of(recorded.proxier.state());
    let mut written = |detail: CounterDetail| {
        let ipvs = &mut *recorded.proxier.kernel_mut().ipvs;
        let counters = IpvsCounters::read(ipvs, detail).unwrap();
        let mut page = String::new();
        write_ipvs_counters(&mut page, &counters, &owners).unwrap();
        described(&page);
        page.lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    // As documented: 5 samples for each virtual server, 8 for each real server.
    let servers = written(CounterDetail::VirtualServers);
    assert_eq!(servers.len(), 2 * 5);
    let labels = r#"service="ns/web",protocol="TCP",address="10.96.0.2",port="80""#;
    assert!(
        servers.contains(&format!("kernlink_ipvs_connections_total{{{labels}}} 0")),
        "{servers:?}"
    );
    let all = written(CounterDetail::RealServers);
    assert_eq!(all.len(), 2 * 5 + 2 * 8);
    let weight = format!("kernlink_ipvs_real_server_weight{{{labels},endpoint=\"10.244.0.200:8080\"}} 1");
    assert!(all.contains(&weight), "{all:?}");
}
