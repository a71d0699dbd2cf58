//! Lines of the log about syncs.

use std::collections::BTreeSet;
use std::time::Duration;

use kernlink_base::ErrorChain;
use kernlink_proxier::report::Outcome;
use kernlink_services::Event;

use crate::all_modes::{SyncError, Synced};
use crate::folder::{Problem, ProblemDifference};

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

/// Logs that the kernel cannot be used: each cause when it appears, further attempts at level `debug`; and that it can be used, if it could not
/// before. `reported` is the cause that was logged. Returns whether there is a new cause.
pub(crate) fn kernel(reported: &mut Option<String>, error: Option<&str>, delay: Duration) -> bool {
    if error == reported.as_deref() {
        if let Some(text) = error {
            tracing::debug!("the kernel cannot be used: {text}; the next attempt is in {delay:?}");
        }
        return false;
    }
    match (error, &reported) {
        (Some(text), _) => tracing::error!("the kernel cannot be used: {text}; tried again until it can"),
        (None, _) => tracing::info!("the kernel can be used"),
    }
    *reported = error.map(str::to_owned);
    error.is_some()
}

/// Logs the problems of the folder that are new, and those that are solved.
pub(crate) fn problems(before: &BTreeSet<Problem>, now: &BTreeSet<Problem>) {
    let difference = ProblemDifference::between(before, now);
    for problem in difference.new {
        tracing::error!("{problem}");
    }
    for problem in difference.solved {
        tracing::info!("solved: {problem}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_cannot_be_used_is_reported_once_for_each_cause() {
        let mut reported = None;
        let mut attempts = ["no module", "no module", "no rights", "no rights"].into_iter();
        let new: Vec<bool> = attempts
            .by_ref()
            .map(|cause| kernel(&mut reported, Some(cause), Duration::from_secs(1)))
            .collect();
        assert_eq!(new, [true, false, true, false]);
        assert!(!kernel(&mut reported, None, Duration::ZERO));
        assert_eq!(reported, None);
    }
}
