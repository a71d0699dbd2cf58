//! The metrics that kube-proxy does not have and that do not depend on the data path.

use super::families::{Families, Labels};
use super::{label, number};
use crate::data_path::Class;
use crate::status::Status;

pub(super) fn collect<T>(status: &Status<T>, page: &mut Families) {
    let of_class = |class: &Class| {
        let family = class.family.map_or("all", label);
        [("ip_family", family), ("kind", class.kind)]
    };
    let mut operations = Vec::new();
    for (class, counts) in &status.operations {
        let [family, kind] = of_class(class);
        for (outcome, number) in [
            ("done", counts.done),
            ("failed", counts.failed),
            ("skipped", counts.skipped),
        ] {
            operations.push(([family, kind, ("outcome", outcome)], number));
        }
    }
    page.counter(
        "kernlink_operations_total",
        "Operations on kernel objects, by kind of object and outcome",
        operations.iter().map(|(labels, number)| (&labels[..], *number)),
    );
    let waiting: Vec<_> = status
        .operations
        .keys()
        .map(|class| (of_class(class), status.waiting.get(class).copied().unwrap_or(0)))
        .collect();
    page.gauge(
        "kernlink_waiting_operations",
        "Operations that failed and wait for their retry, by kind of object",
        waiting
            .iter()
            .map(|(labels, number)| (&labels[..], as_float(*number))),
    );
    let stages: Vec<_> = status
        .stages
        .iter()
        .map(|(stage, durations)| ([("stage", *stage)], durations))
        .collect();
    page.histogram(
        "kernlink_stage_duration_seconds",
        "Durations of the stages of a sync",
        stages.iter().map(|(labels, durations)| (&labels[..], *durations)),
    );
    let none: Labels<'_> = &[];
    for (name, help, number) in [
        (
            "kernlink_syncs_total",
            "Syncs that ended with a report",
            status.syncs,
        ),
        (
            "kernlink_failed_syncs_total",
            "Syncs that did nothing because of an error",
            status.failed_syncs,
        ),
        (
            "kernlink_listings_total",
            "Readings of the whole kernel",
            status.cost.listings as u64,
        ),
        (
            "kernlink_rereads_total",
            "Kernel objects that were read again, each by itself",
            status.cost.rereads as u64,
        ),
        (
            "kernlink_resolved_service_ports_total",
            "Service ports that were resolved again",
            status.cost.resolved as u64,
        ),
    ] {
        page.counter(name, help, [(none, number)]);
    }
    page.gauge(
        "kernlink_services",
        "Services as delivered by their sources",
        [(none, as_float(status.services))],
    );
    page.gauge(
        "kernlink_conflicts",
        "Addresses with protocol and port that several Services have, of which one is served",
        [(none, as_float(status.conflicts))],
    );
    page.gauge(
        "kernlink_failing_services",
        "Services of which an operation failed and is retried",
        [(none, as_float(status.failing_services))],
    );
}

fn as_float(value: usize) -> f64 {
    number(value as u64)
}
