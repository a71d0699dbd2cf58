//! Lines of the log about syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Display;
use std::time::{Duration, Instant};

use kernlink_base::ErrorChain;
use kernlink_proxier::Synced;
use kernlink_proxier::report::Outcome;
use kernlink_proxier::retire::RetiredOutcome;
use kernlink_services::{Event, Subject};

use crate::folder::{Problem, ProblemDifference};

/// The largest number of failed steps of one sync that have a line each, at level `debug`: events report each cause once.
const MAX_FAILURES: usize = 20;

/// The number of lines about one object that are logged at once.
const BURST: u32 = 30;
/// The time after which another line about the object is logged.
const INTERVAL: Duration = Duration::from_secs(60);
/// The number of objects whose lines are counted separately.
const MAX_OBJECTS: usize = 10_000;
/// The number of lines about all objects that are logged at once.
const BURST_OF_ALL: u32 = 1000;
/// The time after which another line about any object is logged.
const INTERVAL_OF_ALL: Duration = Duration::from_secs(1);

/// Limits the lines of the log about each object: who may write it could otherwise fill the logs of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    /// By object; `None` for those that are too many.
    lines: BTreeMap<Option<Subject>, Lines>,
    /// When the objects whose lines have all become available again were last removed.
    cleaned: Option<Instant>,
    /// The lines about all objects together.
    all: Option<Lines>,
}

/// Whether a line is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permission {
    Permitted,
    /// It is the last one about its object for now.
    LastOfObject,
    /// It is the last one about any object for now.
    LastOfAll,
    Refused,
}

/// The lines about an object.
#[derive(Debug)]
struct Lines {
    used: u32,
    /// The time up to which what was used has become available again.
    since: Instant,
}

impl Lines {
    /// Whether all lines have become available again, of which one does after each interval.
    fn refill(&mut self, interval: Duration, now: Instant) -> bool {
        let intervals = now.saturating_duration_since(self.since).as_secs() / interval.as_secs();
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX);
        self.used = self.used.saturating_sub(intervals);
        self.since += interval * intervals;
        self.used == 0
    }

    /// Uses a line if one of `burst` is available. Returns the number of those that are left after it; `None` if there was none.
    fn take(&mut self, burst: u32, interval: Duration, now: Instant) -> Option<u32> {
        if self.refill(interval, now) {
            self.since = now;
        }
        let left = burst.checked_sub(self.used + 1)?;
        self.used += 1;
        Some(left)
    }
}

impl Limit {
    /// Whether a line about this object is logged.
    fn permits(&mut self, subject: &Subject, now: Instant) -> Permission {
        if !matches!(subject, Subject::Object(..)) {
            return Permission::Permitted;
        }
        let mut key = Some(subject.clone());
        if !self.lines.contains_key(&key) && self.lines.len() >= MAX_OBJECTS {
            // All of them are visited, so not for each line.
            if self
                .cleaned
                .is_none_or(|cleaned| now.saturating_duration_since(cleaned) >= INTERVAL)
            {
                self.lines.retain(|_, lines| !lines.refill(INTERVAL, now));
                self.cleaned = Some(now);
            }
            key = key.filter(|_| self.lines.len() < MAX_OBJECTS);
        }
        let none = || Lines { used: 0, since: now };
        let lines = self.lines.entry(key).or_insert_with(none);
        let Some(of_object) = lines.take(BURST, INTERVAL, now) else {
            return Permission::Refused;
        };
        let all = self.all.get_or_insert_with(none);
        match all.take(BURST_OF_ALL, INTERVAL_OF_ALL, now) {
            None => Permission::Refused,
            Some(0) => Permission::LastOfAll,
            Some(_) if of_object == 0 => Permission::LastOfObject,
            Some(_) => Permission::Permitted,
        }
    }
}

/// Logs events, one line for each; those about one object, or about all objects, that are too many at level `debug`.
pub(crate) fn events(events: &[Event], limit: &mut Limit) {
    for event in events {
        let subject = event.subject.to_string();
        let permission = limit.permits(&event.subject, Instant::now());
        if permission == Permission::Refused {
            tracing::debug!(subject, "{}", event.reason);
            continue;
        }
        tracing::warn!(subject, "{}", event.reason);
        match permission {
            Permission::LastOfObject => tracing::warn!(
                subject,
                "of further events about this object one a minute is logged; all of them at level debug"
            ),
            Permission::LastOfAll => tracing::warn!(
                "of further events about any objects one a second is logged; all of them at level debug"
            ),
            Permission::Permitted | Permission::Refused => {}
        }
    }
}

/// The lines about syncs.
#[derive(Debug)]
pub(crate) struct Syncs {
    /// Whether each sync that did something has a line.
    has_all: bool,
    /// Whether the next one that succeeds has a line in any case: the first one, and the first one after one that failed in part.
    is_due: bool,
    /// Whether the last one failed in part.
    is_failing: bool,
}

impl Syncs {
    pub(crate) fn new(has_all: bool) -> Self {
        Self {
            has_all,
            is_due: true,
            is_failing: false,
        }
    }

    /// Whether a sync that succeeded has a line at level `info`.
    fn has_success(&mut self) -> bool {
        self.is_failing = false;
        std::mem::take(&mut self.is_due) || self.has_all
    }

    /// Whether one that did something and failed in part has a line at level `warn`: an object may fail for hours while others change.
    fn has_failure(&mut self, has_events: bool) -> bool {
        let was_failing = std::mem::replace(&mut self.is_failing, true);
        self.is_due = true;
        has_events || !was_failing || self.has_all
    }

    /// Logs a sync: nothing if it had nothing to do, unless its line is due; otherwise the counts, and a line for each step that failed.
    pub(crate) fn log<K, O: Display, P, E: Error + 'static>(
        &mut self,
        synced: &Synced<K, O, P, E>,
        limit: &mut Limit,
    ) {
        events(&synced.events, limit);
        if synced.is_idle() && !(self.is_due && synced.is_success()) {
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
            tracing::debug!(
                subject = step.subject.to_string(),
                operation,
                "failed: {}",
                ErrorChain(error)
            );
        }
        for mode in &synced.handover.modes {
            for step in mode.steps.iter().take(MAX_FAILURES) {
                if let RetiredOutcome::Failed(error) = &step.outcome {
                    tracing::debug!(
                        leftovers_of = mode.mode,
                        operation = step.summary(),
                        "failed: {error}"
                    );
                }
            }
        }
        let (done, failed, skipped, waiting) = (counts.done, counts.failed, counts.skipped, synced.waiting);
        if synced.is_partial && synced.report.is_success() {
            tracing::info!(done, "the first Services are programmed; all others follow");
        } else if synced.is_success() {
            if self.has_success() {
                tracing::info!(done, "synced");
            } else {
                tracing::debug!(done, "synced");
            }
        } else if (done > 0 || !synced.events.is_empty()) && self.has_failure(!synced.events.is_empty()) {
            tracing::warn!(
                done,
                failed,
                skipped,
                waiting,
                "synced in part; what failed is retried"
            );
        } else {
            tracing::debug!(done, failed, skipped, waiting, "synced in part again");
        }
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
pub(crate) fn failed(last: &mut Option<String>, error: Option<&(dyn Error + 'static)>) {
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
    use kernlink_services::{Kind, ObjectName};

    use super::*;

    fn object(number: usize) -> Subject {
        Subject::Object(Kind::Service, ObjectName::new("shop", number.to_string()))
    }

    #[test]
    fn an_object_that_changes_all_the_time_does_not_fill_the_log() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        let mut logged = |subject: &Subject, now| {
            let lines = (0..1_000).map(|_| limit.permits(subject, now));
            lines
                .filter(|permission| *permission != Permission::Refused)
                .count()
        };
        assert_eq!(logged(&object(1), start), BURST as usize);
        assert_eq!(logged(&object(2), start), BURST as usize, "another object");
        assert_eq!(logged(&Subject::Host, start), 1_000);
        assert_eq!(logged(&object(1), start + INTERVAL * 3), 3);
        assert_eq!(logged(&object(1), start + INTERVAL * 1_000), BURST as usize);
    }

    #[test]
    fn many_objects_that_change_all_the_time_do_not_fill_memory() {
        let (mut limit, now) = (Limit::default(), Instant::now());
        let lines: Vec<Permission> = (0..3 * MAX_OBJECTS)
            .map(|number| limit.permits(&object(number), now))
            .collect();
        let logged = lines.iter().filter(|line| **line != Permission::Refused).count();
        assert_eq!(logged, BURST_OF_ALL as usize, "nor the log");
        let last = lines
            .iter()
            .filter(|line| **line == Permission::LastOfAll)
            .count();
        assert_eq!(last, 1);
        assert_eq!(limit.lines.len(), MAX_OBJECTS + 1);
        limit.permits(&object(0), now + INTERVAL);
        limit.permits(&object(4 * MAX_OBJECTS), now + INTERVAL);
        assert_eq!(
            limit.lines.len(),
            3,
            "the first one, the new one and those that are too many"
        );
    }

    #[test]
    fn syncs_that_succeed_have_no_line_each_unless_asked_for() {
        let mut syncs = Syncs::new(false);
        let lines = [syncs.has_success(), syncs.has_success(), syncs.has_success()];
        assert_eq!(lines, [true, false, false]);
        let failures = [false, false, true].map(|has_events| syncs.has_failure(has_events));
        assert_eq!(
            failures,
            [true, false, true],
            "the first one, and one with a new cause"
        );
        assert_eq!([syncs.has_success(), syncs.has_success()], [true, false]);
        let mut all = Syncs::new(true);
        assert_eq!([all.has_success(), all.has_success()], [true, true]);
        assert_eq!([all.has_failure(false), all.has_failure(false)], [true, true]);
    }

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
