//! Lines of the log about syncs.

use kernlink_base::ErrorChain;
use kernlink_proxier::report::Outcome;
use kernlink_services::Event;

use crate::all_modes::{SyncError, Synced};

/// The largest number of failed steps of one sync that have a line each, at level `debug`: events report each cause once.
const MAX_FAILURES: usize = 20;

/// Logs events, one line for each.
pub(crate) fn events(events: &[Event]) {
    for event in events {
        tracing::warn!(subject = %event.subject, "{}", event.reason);
    }
}

/// Logs a sync: nothing if it had nothing to do and is not the first, otherwise the counts, and a line for each step that failed.
pub(crate) fn synced(synced: &Synced, is_first: bool) {
    events(&synced.events);
    if synced.plan.is_empty() && !is_first {
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
        tracing::debug!(subject = %step.subject, operation, "failed: {}", ErrorChain(error));
    }
    let (done, failed, skipped, waiting) = (counts.done, counts.failed, counts.skipped, synced.waiting);
    if synced.is_success() {
        tracing::info!(done, "synced");
    } else if done > 0 || !synced.events.is_empty() {
        tracing::warn!(
            done,
            failed,
            skipped,
            waiting,
            "synced in part; what failed is retried"
        );
    } else {
        tracing::debug!(failed, skipped, waiting, "retries failed again");
    }
}

/// Logs that a sync did nothing: `error`, or `None` if one was done. The same error is logged once, also if it persists, and once more when
/// it is solved. `last` is the text that was logged.
pub(crate) fn failed(last: &mut Option<String>, error: Option<&SyncError>) {
    let text = error.map(|error| ErrorChain(error).to_string());
    if text == *last {
        return;
    }
    match &text {
        Some(text) => tracing::error!("nothing was synced: {text}; tried again"),
        None => tracing::info!("solved: {}", last.as_deref().unwrap_or_default()),
    }
    *last = text;
}
