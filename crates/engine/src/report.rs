//! The outcomes of a plan's steps.

use std::collections::BTreeMap;
use std::fmt;

use crate::plan::{Plan, StepId, Subject};

/// The outcome of each step of a plan, in the plan's order. Its memory depends on the number of steps that were not done.
#[derive(Clone, Debug, PartialEq)]
pub struct Report<E> {
    /// The number of steps.
    steps: usize,
    /// The outcomes of those that were not done.
    others: BTreeMap<StepId, Outcome<E>>,
    counts: Counts,
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

impl<E> Default for Report<E> {
    fn default() -> Self {
        Self {
            steps: 0,
            others: BTreeMap::new(),
            counts: Counts::default(),
        }
    }
}

impl<E> Report<E> {
    /// Adds the outcome of the next step.
    pub(crate) fn push(&mut self, outcome: Outcome<E>) {
        self.counts = self.counts.with(&outcome);
        if !matches!(outcome, Outcome::Done) {
            self.others.insert(StepId::at(self.steps), outcome);
        }
        self.steps += 1;
    }

    /// Replaces the outcome of a step that counted as done.
    pub(crate) fn replace(&mut self, step: StepId, outcome: Outcome<E>) {
        if !matches!(outcome, Outcome::Done) {
            self.counts.done = self.counts.done.saturating_sub(1);
            self.counts = self.counts.with(&outcome);
            self.others.insert(step, outcome);
        }
    }

    /// The outcomes, one for each step of the plan.
    #[must_use]
    pub fn outcomes(&self) -> impl ExactSizeIterator<Item = &Outcome<E>> {
        let mut others = self.others.iter().peekable();
        (0..self.steps).map(move |index| {
            let other = others.next_if(|(step, _)| step.index() == index);
            other.map_or(&Outcome::Done, |(_, outcome)| outcome)
        })
    }

    /// The outcome of a step; `None` if the plan has no such step.
    #[must_use]
    pub fn outcome(&self, step: StepId) -> Option<&Outcome<E>> {
        let outcome = self.others.get(&step);
        (step.index() < self.steps).then(|| outcome.unwrap_or(&Outcome::Done))
    }

    /// Whether every step was done.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.others.is_empty()
    }

    /// The steps that were tried and failed.
    pub fn failures(&self) -> impl Iterator<Item = (StepId, &E)> {
        self.others.iter().filter_map(|(step, outcome)| match outcome {
            Outcome::Failed(error) => Some((*step, error)),
            Outcome::Done | Outcome::Skipped { .. } => None,
        })
    }

    /// The number of steps by outcome.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The number of steps by what they are for and by outcome.
    #[must_use]
    pub fn by_subject<K, O, P>(&self, plan: &Plan<K, O, P>) -> BTreeMap<Subject, Counts> {
        let mut subjects: BTreeMap<Subject, Counts> = BTreeMap::new();
        for ((_, step), outcome) in plan.steps().zip(self.outcomes()) {
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
        while let Some(Outcome::Skipped { dependency }) = self.outcome(step) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_an_outcome_for_each_step_and_keeps_those_that_were_not_done() {
        let mut report: Report<&str> = Report::default();
        let skipped = || Outcome::Skipped {
            dependency: StepId::at(1),
        };
        report.push(Outcome::Done);
        report.push(Outcome::Done);
        report.push(skipped());
        report.push(Outcome::Done);
        assert!(!report.is_success());
        report.replace(StepId::at(0), Outcome::Done);
        report.replace(StepId::at(1), Outcome::Failed("refused"));
        let outcomes: Vec<Outcome<&str>> = report.outcomes().cloned().collect();
        let expected = [
            Outcome::Done,
            Outcome::Failed("refused"),
            skipped(),
            Outcome::Done,
        ];
        assert_eq!(outcomes, expected);
        for (index, outcome) in expected.iter().enumerate() {
            assert_eq!(report.outcome(StepId::at(index)), Some(outcome));
        }
        assert_eq!(report.outcome(StepId::at(4)), None);
        assert_eq!(
            report.failures().collect::<Vec<_>>(),
            [(StepId::at(1), &"refused")]
        );
        assert_eq!(report.root(StepId::at(2)), StepId::at(1));
        let counts = Counts {
            done: 2,
            failed: 1,
            skipped: 1,
        };
        assert_eq!((report.counts(), report.others.len()), (counts, 2));
    }
}
