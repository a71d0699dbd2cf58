//! What a hand-over did in a sync.

use std::fmt;
use std::time::Instant;

use kernlink_services::Event;

use crate::report::Counts;
use crate::retire::{RetiredOutcome, RetiredStep};

/// What the hand-over did in a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handed {
    /// What each retiring mode did; those that did nothing are missing.
    pub modes: Vec<RetiredMode>,
    /// The number of endpoints of retiring modes that stay until their connections end.
    pub draining: usize,
    /// The number of operations of retiring modes that failed and are tried again.
    pub waiting: usize,
    /// When the next round is due.
    pub(crate) next: Option<Instant>,
    pub(crate) events: Vec<Event>,
}

/// What a retiring mode did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetiredMode {
    /// The name of the mode.
    pub mode: &'static str,
    /// The steps, in order.
    pub steps: Vec<RetiredStep>,
}

impl Handed {
    /// All steps.
    pub fn steps(&self) -> impl Iterator<Item = &RetiredStep> {
        self.modes.iter().flat_map(|mode| &mode.steps)
    }

    /// Whether no step failed or was skipped, and none is tried again later.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.waiting == 0 && self.steps().all(|step| step.outcome == RetiredOutcome::Done)
    }

    /// The number of steps by outcome.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for step in self.steps() {
            match step.outcome {
                RetiredOutcome::Done => counts.done += 1,
                RetiredOutcome::Failed(_) => counts.failed += 1,
                RetiredOutcome::Skipped => counts.skipped += 1,
                RetiredOutcome::Planned => {}
            }
        }
        counts
    }
}

impl fmt::Display for RetiredMode {
    /// A heading, and the command of each step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# leftovers of {}", self.mode)?;
        for step in &self.steps {
            writeln!(f, "{}", step.command)?;
        }
        Ok(())
    }
}
