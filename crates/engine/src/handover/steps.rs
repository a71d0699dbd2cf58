//! The steps of a retiring mode that removes its objects by plans of its data path.

use std::time::Instant;

use kernlink_base::{Backoff, ErrorChain};

use crate::apply;
use crate::attempts;
use crate::data_path::{DataPath, StepOf};
use crate::plan::PlanBuilder;
use crate::report::Outcome;
use crate::retire::{RetiredOutcome, RetiredStep};
use crate::retry::Retries;

/// Makes and executes plans of a data path in a state of which all desired objects are gone, and retries what failed.
#[derive(Debug)]
pub struct Steps<M: DataPath> {
    retries: Retries<M::Key, M::Operation>,
}

impl<M: DataPath> Default for Steps<M> {
    fn default() -> Self {
        Self {
            retries: Retries::new(Backoff::default()),
        }
    }
}

impl<M: DataPath> Steps<M> {
    /// When the first retry is due.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.retries.next()
    }

    /// Reads the objects again that are due, because their operations failed or [`DataPath::due`] names them, and makes them dirty.
    ///
    /// # Errors
    /// What could not be read.
    pub fn reread(&mut self, state: &mut M, kernel: &mut M::Kernel, now: Instant) -> Result<(), M::Error> {
        state.set_time(now);
        let (mut due, dependents) = self.retries.take_due(now);
        due.extend(state.due(now));
        for key in due.iter().chain(&dependents) {
            state.set_dirty(key);
        }
        if due.is_empty() {
            return Ok(());
        }
        state.observe_keys(kernel, &due)
    }

    /// Makes a plan and executes it if `executes`. Returns its steps. Nothing is recorded otherwise.
    pub fn run(
        &mut self,
        state: &mut M,
        kernel: &mut M::Kernel,
        now: Instant,
        executes: bool,
    ) -> Vec<RetiredStep> {
        let mut builder = PlanBuilder::new(&self.retries);
        state.plan(&mut builder);
        let built = builder.finish();
        if !executes {
            let steps = built.plan.steps();
            return steps
                .map(|(_, step)| retired::<M>(step, RetiredOutcome::Planned))
                .collect();
        }
        let needed = built.needed;
        self.retries
            .retain(|key| needed.contains(key) || !state.is_dirty(key));
        let report = apply::apply(&built.plan, kernel, state);
        attempts::record::<M>(&mut self.retries, &built.plan, &report, built.waiting, now);
        state.clear_dirty();
        let steps = built.plan.steps().zip(report.outcomes());
        let steps = steps.map(|((_, step), outcome)| {
            let outcome = match outcome {
                Outcome::Done => RetiredOutcome::Done,
                Outcome::Failed(error) => RetiredOutcome::Failed(ErrorChain(error).to_string()),
                Outcome::Skipped { .. } => RetiredOutcome::Skipped,
            };
            retired::<M>(step, outcome)
        });
        steps.collect()
    }

    /// The number of operations that failed and are tried again.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.retries.len()
    }
}

fn retired<M: DataPath>(step: &StepOf<M>, outcome: RetiredOutcome) -> RetiredStep {
    RetiredStep {
        class: M::class(&step.key),
        command: step.operation.to_string(),
        outcome,
    }
}
