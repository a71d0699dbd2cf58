//! What a sync did.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_services::{Event, Family};

use crate::durations::Durations;
use crate::handover::Handed;
use crate::plan::Plan;
use crate::report::{Counts, Outcome, Report};
use crate::retire::RetiredOutcome;

/// What a sync did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Synced<K, O, P, E> {
    /// The plan that was executed.
    pub plan: Plan<K, O, P>,
    /// The outcome of each step.
    pub report: Report<E>,
    /// New events since the last sync.
    pub events: Vec<Event>,
    /// The latest time to call [`Proxier::sync`](crate::Proxier::sync) again: when the first retry of a failed operation is due, when an object with
    /// removed endpoints is to be read again, or now if a [`recheck`](crate::Proxier::recheck) found a difference or the sync [was
    /// partial](Self::is_partial). `None`: no time.
    pub next: Option<Instant>,
    /// Whether only the [first Services](crate::DataPath::first_services) were programmed. The next sync, which is due now, programs all others;
    /// it is never partial itself. Until it ended, the node is not ready.
    pub is_partial: bool,
    /// Whether the next sync, which is due now, writes chains without rules that a retiring mode needed until now, or serves node ports at
    /// other addresses of the node.
    pub is_continued: bool,
    /// What was removed of what retiring modes left. See [`handover`](crate::handover).
    pub handover: Handed,
    /// The number of removed endpoints that are still in the kernel until their connections end. They are no failure.
    pub draining: usize,
    /// Another program changed back what was written, three times in a row at least, see [`events`](Self::events): the whole kernel should
    /// not be read for such changes before this time. [`Schedule::delay_listing`](crate::Schedule::delay_listing) takes it. `None`: no such
    /// time.
    pub no_listing_before: Option<Instant>,
    /// The number of kernel objects whose operations failed, in this sync or before, and are retried.
    pub waiting: usize,
    /// The number of kinds of kernel objects that could not be read. Their last known values are used, and they are read again at
    /// [`next`](Self::next); [`events`](Self::events) named them once.
    pub unread: usize,
    /// Health-check node ports that were added or removed, or whose Service or number of endpoints changed:
    /// [`Services::health_check`](kernlink_services::Services::health_check) returns the present value. The first sync that is not
    /// [partial](Self::is_partial) names all of them.
    pub health_checks: BTreeSet<(Family, u16)>,
    /// How long the stages took. All 0 without [`Proxier::set_clock`](crate::Proxier::set_clock).
    pub durations: Durations,
}

impl<K, O, P, E> Synced<K, O, P, E> {
    /// Whether the kernel is in the desired state: everything was read, all Services were compared, no step failed, and no object waits for a
    /// retry.
    #[must_use]
    pub fn is_success(&self) -> bool {
        let is_complete = self.unread == 0 && !self.is_partial;
        self.report.is_success() && self.handover.is_success() && self.waiting == 0 && is_complete
    }

    /// The number of steps by outcome, of the hand-over too.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.report.counts().plus(self.handover.counts())
    }

    /// Whether nothing was to be done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.plan.is_empty() && self.handover.modes.is_empty()
    }
}

impl<K, O: fmt::Display, P, E: Error + 'static> fmt::Display for Synced<K, O, P, E> {
    /// The counts, then a line for each step that was not done: its number in the plan, what it is for, and why.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.counts())?;
        for ((id, step), outcome) in self.plan.steps().zip(self.report.outcomes()) {
            if matches!(outcome, Outcome::Done) {
                continue;
            }
            let operation = step.operation.to_string();
            let operation = operation.lines().next().unwrap_or_default();
            match outcome {
                Outcome::Done => {}
                Outcome::Failed(error) => {
                    let error = ErrorChain(error);
                    write!(f, "\n[{id}] failed: {operation} ({}): {error}", step.subject)?;
                }
                Outcome::Skipped { dependency } => write!(
                    f,
                    "\n[{id}] skipped: {operation} ({}): step {dependency} was not done",
                    step.subject
                )?,
            }
        }
        for mode in &self.handover.modes {
            let name = mode.mode;
            for step in &mode.steps {
                let command = step.summary();
                match &step.outcome {
                    RetiredOutcome::Done | RetiredOutcome::Planned => {}
                    RetiredOutcome::Failed(error) => {
                        write!(f, "\nfailed: {command} (leftovers of {name}): {error}")?;
                    }
                    RetiredOutcome::Skipped => write!(f, "\nskipped: {command} (leftovers of {name})")?,
                }
            }
        }
        Ok(())
    }
}
