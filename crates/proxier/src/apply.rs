//! Executing a plan.

use std::fmt;

use crate::backends::Backends;
use crate::error::OperationError;
use crate::observed::ObservedState;
use crate::plan::{Operation, Plan, StepId};

/// Executes a plan and moves the observed state along by what was really done.
///
/// Every step is tried whose needs have succeeded: a failure holds back what depends on it, and nothing else. The steps of a
/// phase go to each backend in one call, in order.
pub fn apply(plan: &Plan, backends: &mut Backends, observed: &mut ObservedState) -> Report {
    let mut report = Report {
        outcomes: Vec::with_capacity(plan.len()),
    };
    for phase in plan.phases() {
        let first = report.outcomes.len();
        let mut work = Work::default();
        for (index, step) in phase.steps.iter().enumerate() {
            let blocked = step.needs.iter().find(|need| !report.succeeded(**need));
            match blocked {
                Some(need) => report.outcomes.push(Outcome::HeldBack { by: *need }),
                None => {
                    report.outcomes.push(Outcome::Done);
                    work.add(first + index, &step.operation);
                }
            }
        }
        work.execute(backends, &mut report);
        let outcomes = report.outcomes.get(first..).unwrap_or_default();
        for (step, outcome) in phase.steps.iter().zip(outcomes) {
            match outcome {
                Outcome::Done => observed.record(&step.operation),
                // Either the kernel does not hold what was observed, or nobody knows whether it was done.
                Outcome::Failed(_) => observed.is_stale = true,
                Outcome::HeldBack { .. } => {}
            }
        }
    }
    report
}

/// The operations of one phase by backend, with the positions of their steps.
#[derive(Default)]
struct Work {
    settings: Batch<crate::plan::SettingOperation>,
    link: Batch<kernlink_dummylink::Operation>,
    sets: Batch<kernlink_ipset::Operation>,
    rules: Batch<kernlink_iptables_restore::Operation>,
    ipvs: Batch<kernlink_ipvs::Operation>,
}

struct Batch<T> {
    operations: Vec<T>,
    steps: Vec<usize>,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Batch {
            operations: Vec::new(),
            steps: Vec::new(),
        }
    }
}

impl Work {
    fn add(&mut self, step: usize, operation: &Operation) {
        match operation {
            Operation::Setting(operation) => self.settings.add(step, operation),
            Operation::Link(operation) => self.link.add(step, operation),
            Operation::Set(operation) => self.sets.add(step, operation),
            Operation::Rules(operation) => self.rules.add(step, operation),
            Operation::Ipvs(operation) => self.ipvs.add(step, operation),
        }
    }

    fn execute(self, backends: &mut Backends, report: &mut Report) {
        self.settings
            .execute(report, |operations| backends.settings.execute(operations));
        self.link
            .execute(report, |operations| backends.links.execute(operations));
        self.sets
            .execute(report, |operations| backends.sets.execute(operations));
        self.rules
            .execute(report, |operations| backends.rules.execute(operations));
        self.ipvs
            .execute(report, |operations| backends.ipvs.execute(operations));
    }
}

impl<T: Clone> Batch<T> {
    fn add(&mut self, step: usize, operation: &T) {
        self.operations.push(operation.clone());
        self.steps.push(step);
    }

    fn execute<E: Into<OperationError>>(
        self,
        report: &mut Report,
        execute: impl FnOnce(&[T]) -> Vec<Result<(), E>>,
    ) {
        if self.operations.is_empty() {
            return;
        }
        let mut outcomes = execute(&self.operations).into_iter();
        for step in self.steps {
            let outcome = match outcomes.next() {
                Some(Ok(())) => Outcome::Done,
                Some(Err(error)) => Outcome::Failed(error.into()),
                None => Outcome::Failed(OperationError::NoOutcome),
            };
            if let Some(place) = report.outcomes.get_mut(step) {
                *place = outcome;
            }
        }
    }
}

/// What became of each step of a plan, in the plan's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    outcomes: Vec<Outcome>,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was tried and failed.
    Failed(OperationError),
    /// It was not tried, because a step that it needs failed or was itself held back.
    HeldBack {
        /// The first such step.
        by: StepId,
    },
}

impl Report {
    /// The outcomes, one for each step of the plan.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Whether every step was done.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.outcomes.iter().all(|outcome| *outcome == Outcome::Done)
    }

    /// The steps that were tried and failed.
    pub fn failures(&self) -> impl Iterator<Item = (StepId, &OperationError)> {
        self.outcomes
            .iter()
            .enumerate()
            .filter_map(|(index, outcome)| match outcome {
                Outcome::Failed(error) => Some((StepId::at(index), error)),
                Outcome::Done | Outcome::HeldBack { .. } => None,
            })
    }

    /// How many steps were done, failed and held back.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for outcome in &self.outcomes {
            match outcome {
                Outcome::Done => counts.done += 1,
                Outcome::Failed(_) => counts.failed += 1,
                Outcome::HeldBack { .. } => counts.held_back += 1,
            }
        }
        counts
    }

    fn succeeded(&self, step: StepId) -> bool {
        self.outcomes.get(step.index()) == Some(&Outcome::Done)
    }
}

/// How many steps came to what end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Done.
    pub done: usize,
    /// Tried and failed.
    pub failed: usize,
    /// Not tried because of a failure before.
    pub held_back: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} done, {} failed, {} held back",
            self.done, self.failed, self.held_back
        )
    }
}
