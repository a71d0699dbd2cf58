//! Lines of the log about syncs.

use kernlink_base::ErrorChain;
use kernlink_proxier::report::Outcome;
use kernlink_services::Event;

use crate::all_modes::{SyncError, Synced};

/// The largest number of failed steps of one sync that have a line each.
const MAX_FAILURES: usize = 20;

/// Logs events, one line for each.
pub(crate) fn events(events: &[Event]) {
    for event in events {
        tracing::warn!(subject = %event.subject, "{}", event.reason);
    }
}

/// Logs a sync: nothing if it had nothing to do, otherwise the counts, and a line for each step that failed.
pub(crate) fn synced(synced: &Synced) {
    events(&synced.events);
    if synced.plan.is_empty() {
        return;
    }
    let counts = synced.counts();
    let failures = synced.plan.steps().zip(synced.report.outcomes());
    let failures = failures.filter_map(|((_, step), outcome)| match outcome {
        Outcome::Failed(error) => Some((step, error)),
        _ => None,
    });
    for (step, error) in failures.take(MAX_FAILURES) {
        let operation = step.operation.to_string();
        let operation = operation.lines().next().unwrap_or_default();
        tracing::error!(subject = %step.subject, operation, "failed: {}", ErrorChain(error));
    }
    let (done, failed, skipped, waiting) = (counts.done, counts.failed, counts.skipped, synced.waiting);
    if synced.is_success() {
        tracing::info!(done, "synced");
    } else {
        tracing::warn!(
            done,
            failed,
            skipped,
            waiting,
            "synced in part; what failed is retried"
        );
    }
}

/// Logs that a sync did nothing.
pub(crate) fn failed(error: &SyncError) {
    tracing::error!("nothing was synced: {}; tried again", ErrorChain(error));
}
