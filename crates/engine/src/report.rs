//! The outcomes of a plan's steps.

use std::collections::BTreeMap;
use std::fmt;

use crate::plan::{Plan, StepId, Subject};

/// The outcome of each step of a plan, in the plan's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Report<E> {
    outcomes: Vec<Outcome<E>>,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome<E> {
    /// The step was done.
    Done,
    /// The step was tried and failed.
    Failed(E),
    /// The step was not tried, because a step that it needs failed or was skipped.
    Skipped {
        /// The first such step.
        dependency: StepId,
    },
}

impl<E> Report<E> {
    pub(crate) fn new(outcomes: Vec<Outcome<E>>) -> Self {
        Self { outcomes }
    }

    /// The outcomes, one for each step of the plan.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome<E>] {
        &self.outcomes
    }

    /// Whether every step was done.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Done))
    }

    /// The steps that were tried and failed.
    pub fn failures(&self) -> impl Iterator<Item = (StepId, &E)> {
        let outcomes = self.outcomes.iter().enumerate();
        outcomes.filter_map(|(index, outcome)| match outcome {
            Outcome::Failed(error) => Some((StepId::at(index), error)),
            Outcome::Done | Outcome::Skipped { .. } => None,
        })
    }

    /// The number of steps by outcome.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.outcomes.iter().fold(Counts::default(), Counts::with)
    }

    /// The number of steps by what they are for and by outcome.
    #[must_use]
    pub fn by_subject<K, O, P>(&self, plan: &Plan<K, O, P>) -> BTreeMap<Subject, Counts> {
        let mut subjects: BTreeMap<Subject, Counts> = BTreeMap::new();
        for ((_, step), outcome) in plan.steps().zip(&self.outcomes) {
            match subjects.get_mut(&step.subject) {
                Some(counts) => *counts = counts.with(outcome),
                None => _ = subjects.insert(step.subject.clone(), Counts::default().with(outcome)),
            }
        }
        subjects
    }

    /// The failed step because of which a step was skipped.
    pub(crate) fn root(&self, mut step: StepId) -> StepId {
        // A dependency always precedes what depends on it.
        while let Some(Outcome::Skipped { dependency }) = self.outcomes.get(step.index()) {
            step = *dependency;
        }
        step
    }
}

/// The number of steps by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Done.
    pub done: usize,
    /// Tried and failed.
    pub failed: usize,
    /// Not tried, because a step that they need was not done.
    pub skipped: usize,
}

impl Counts {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            done: self.done + other.done,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }

    fn with<E>(mut self, outcome: &Outcome<E>) -> Self {
        match outcome {
            Outcome::Done => self.done += 1,
            Outcome::Failed(_) => self.failed += 1,
            Outcome::Skipped { .. } => self.skipped += 1,
        }
        self
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} done, {} failed, {} skipped",
            self.done, self.failed, self.skipped
        )
    }
}
