//! The metrics of kube-proxy that do not depend on the data path.

use std::time::{SystemTime, UNIX_EPOCH};

use kernlink_services::{Family, Kind};

use super::families::{Families, Labels};
use super::label;
use crate::status::{FamilyStatus, Status};

/// The kinds of objects that iptables-restore writes, in any data path.
const RESTORED: [&str; 8] = [
    "rules",
    "chains",
    "jump",
    "fixed_chains",
    "firewall",
    "service",
    "leftovers",
    "withdrawn_chain",
];

/// The durations of syncs that read the whole kernel, and of all others.
pub(super) fn collect_full_syncs<T>(status: &Status<T>, page: &mut Families) {
    let families: Vec<_> = status
        .served()
        .map(|(family, status)| ([("ip_family", label(family))], status))
        .collect();
    page.histogram(
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        "[ALPHA] SyncProxyRules latency in seconds for full resyncs",
        families
            .iter()
            .map(|(labels, family)| (&labels[..], &family.full)),
    );
    page.histogram(
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        "[ALPHA] SyncProxyRules latency in seconds for partial resyncs",
        families
            .iter()
            .map(|(labels, family)| (&labels[..], &family.partial)),
    );
}

pub(super) fn collect<T>(status: &Status<T>, page: &mut Families) {
    let of_family = |(family, status)| (family, [("ip_family", label(family))], status);
    let families: Vec<(Family, _, &FamilyStatus)> = status.served().map(of_family).collect();
    page.histogram(
        "kubeproxy_sync_proxy_rules_duration_seconds",
        "[ALPHA] SyncProxyRules latency in seconds",
        families
            .iter()
            .map(|(_, labels, family)| (&labels[..], &family.durations)),
    );
    page.histogram(
        "kubeproxy_network_programming_duration_seconds",
        "[ALPHA] In Cluster Network Programming Latency in seconds",
        families
            .iter()
            .map(|(_, labels, family)| (&labels[..], &family.programming)),
    );
    let times = |time: fn(&FamilyStatus) -> Option<SystemTime>| {
        let families = families.iter();
        families.filter_map(move |(_, labels, family)| Some((&labels[..], seconds(time(family)?))))
    };
    page.gauge(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "[ALPHA] The last time proxy rules were successfully synced",
        times(|family| family.updated),
    );
    page.gauge(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "[ALPHA] The last time a sync of proxy rules was queued",
        times(|family| family.queued),
    );
    let kinds = [
        (Kind::Service, "service", "Service"),
        (Kind::EndpointSlice, "endpoint", "Endpoint"),
    ];
    for (kind, name, text) in kinds {
        let changes = status.changes.get(&kind).copied().unwrap_or_default();
        page.counter(
            &format!("kubeproxy_sync_proxy_rules_{name}_changes_total"),
            &format!("[ALPHA] Cumulative proxy rules {text} changes"),
            [(&[] as Labels<'_>, changes.total)],
        );
        page.gauge(
            &format!("kubeproxy_sync_proxy_rules_{name}_changes_pending"),
            &format!("[ALPHA] Pending proxy rules {text} changes"),
            [(&[] as Labels<'_>, super::number(changes.pending))],
        );
    }
}

/// The failed operations of the kinds that `iptables-restore` writes.
pub(super) fn collect_restore_failures<T>(status: &Status<T>, page: &mut Families) {
    let of_family = |(family, status)| (family, [("ip_family", label(family))], status);
    let families: Vec<(Family, _, &FamilyStatus)> = status.served().map(of_family).collect();
    let failures = families.iter().map(|(family, labels, _)| {
        let operations = status
            .operations
            .iter()
            .filter(|(class, _)| class.family == Some(*family) && RESTORED.contains(&class.kind));
        (&labels[..], operations.map(|(_, counts)| counts.failed).sum())
    });
    page.counter(
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        "[ALPHA] Cumulative proxy iptables restore failures",
        failures,
    );
}

/// Seconds since 1970. 0 for a time before.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}
