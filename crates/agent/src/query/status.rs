//! What a status of any mode has, and what a sync leaves for the next answers.

use std::time::{Instant, SystemTime};

use kernlink_proxier::status::Status;
use kernlink_proxier::{DataPath, FailingOperation, Synced};
use kernlink_services::escape::excerpt_of;

use super::documents::{self, Failing, FamilyStatus, HandOver, LastSync, RecentEvent, Waiting};
use super::time;

/// The number of events in an answer.
const EVENTS: usize = 20;
/// The number of failed operations in an answer.
pub(crate) const FAILING: usize = 20;
/// The longest text of an operation or error in an answer, in bytes.
const MAX_TEXT: usize = 1_000;

/// What a sync left, for the next answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct AfterSync {
    pub(super) hand_over: Option<HandOver>,
    /// The first of the operations that failed.
    pub(super) failing: Vec<FailedOperation>,
}

impl AfterSync {
    /// What is shown of a sync, and of the operations that failed. Its cost has a bound.
    pub(crate) fn new<'a, M: DataPath, K, O, P, E>(
        synced: &Synced<K, O, P, E>,
        failing: impl Iterator<Item = FailingOperation<'a, M>>,
    ) -> Self {
        let handed = &synced.handover;
        let hand_over = HandOver {
            modes: handed.modes.iter().map(|mode| mode.mode.to_owned()).collect(),
            draining: handed.draining,
            waiting: handed.waiting,
        };
        Self {
            hand_over: (hand_over != HandOver::default()).then_some(hand_over),
            failing: failing
                .take(FAILING)
                .map(|operation| FailedOperation::new(&operation))
                .collect(),
        }
    }
}

/// An operation that failed and is tried again.
#[derive(Clone, Debug)]
pub(crate) struct FailedOperation {
    /// Without its times.
    document: Failing,
    since: Instant,
    due: Instant,
}

impl FailedOperation {
    pub(crate) fn new<M: DataPath>(failing: &FailingOperation<'_, M>) -> Self {
        let operation = failing.operation.to_string();
        let command = operation.lines().next().unwrap_or_default();
        let command = command.strip_suffix(" <<'EOF'").unwrap_or(command);
        let document = Failing {
            object: failing.key.to_string(),
            service: failing.service.map(ToString::to_string),
            operation: excerpt_of(command, MAX_TEXT).into_owned(),
            reason: failing
                .reason
                .map(|reason| excerpt_of(reason, MAX_TEXT).into_owned()),
            attempts: failing.attempts,
            ..Failing::default()
        };
        Self {
            document,
            since: failing.since,
            due: failing.due,
        }
    }

    /// The document, with the times as they are now.
    pub(crate) fn at(&self, now: Instant) -> Failing {
        Failing {
            failing_seconds: now.saturating_duration_since(self.since).as_secs(),
            next_attempt_seconds: self.due.saturating_duration_since(now).as_secs(),
            ..self.document.clone()
        }
    }
}

/// The events of a status, the oldest first.
pub(crate) fn recent<T>(status: &Status<T>) -> Vec<(kernlink_services::Subject, RecentEvent)> {
    let events = status.events.iter().map(|event| {
        let document = RecentEvent {
            time: time::text(event.time),
            subject: event.event.subject.to_string(),
            text: event.event.reason.to_string(),
        };
        (event.event.subject.clone(), document)
    });
    events.collect()
}

/// Sets what a status of any mode has.
pub(crate) fn fill<T>(status: &Status<T>, document: &mut documents::Status, now: Instant, wall: SystemTime) {
    let waits = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
    document.families = status
        .served()
        .map(|(family, status)| FamilyStatus {
            name: family.to_string(),
            last_success: status.updated.map(time::text),
            pending_seconds: status.pending.map(waits),
        })
        .collect();
    document.services = status.services;
    document.conflicts = status.conflicts;
    document.failing_services = status.failing_services;
    document.node_eligible = status.is_node_eligible;
    document.syncs = status.syncs;
    document.failed_syncs = status.failed_syncs;
    document.error.clone_from(&status.error);
    document.last_sync = status.last_sync.map(|last| LastSync {
        ended: time::text(last.ended),
        age_seconds: wall.duration_since(last.ended).unwrap_or_default().as_secs_f64(),
        duration_seconds: last.durations.total().as_secs_f64(),
        done: last.counts.done,
        failed: last.counts.failed,
        skipped: last.counts.skipped,
    });
    document.pending_seconds = status.pending_since().map(waits);
    document.waiting = status
        .waiting
        .iter()
        .filter(|(_, objects)| **objects > 0)
        .map(|(class, objects)| Waiting {
            kind: class.kind.to_owned(),
            family: class.family.map(|family| family.to_string()),
            objects: *objects,
        })
        .collect();
    let events = recent(status);
    let skipped = events.len().saturating_sub(EVENTS);
    document.events = events.into_iter().skip(skipped).map(|(_, event)| event).collect();
}
