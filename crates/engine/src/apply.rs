//! Executing a plan.

use crate::data_path::DataPath;
use crate::plan::{Plan, Step, StepId};
use crate::report::{Outcome, Report};

/// Executes a plan and records each step that was done in the state.
///
/// A step is tried if the steps that it needs were done; otherwise it is skipped. The steps of a phase are executed in one batch, in
/// order. A step that needs another step of the batch begins a new batch.
pub(crate) fn apply<M: DataPath>(plan: &Plan<M>, kernel: &mut M::Kernel, state: &mut M::State) -> Report<M> {
    let mut outcomes: Vec<Outcome<M>> = Vec::with_capacity(plan.len());
    let mut batch: Vec<(usize, &Step<M>)> = Vec::new();
    let mut index = 0;
    for phase in plan.phases() {
        for step in &phase.steps {
            let needs_batch = batch.first().is_some_and(|(first, _)| {
                let mut needs = step.needs.iter().chain(&step.needs_any);
                needs.any(|need| need.index() >= *first)
            });
            if needs_batch {
                execute(&mut batch, kernel, state, &mut outcomes);
            }
            match missing(step, &outcomes) {
                Some(dependency) => outcomes.push(Outcome::Skipped { dependency }),
                None => {
                    // Replaced by the outcome when the batch is executed.
                    outcomes.push(Outcome::Done);
                    batch.push((index, step));
                }
            }
            index += 1;
        }
        execute(&mut batch, kernel, state, &mut outcomes);
    }
    Report::new(outcomes)
}

/// The first step that this one needs and that was not done.
fn missing<M: DataPath>(step: &Step<M>, outcomes: &[Outcome<M>]) -> Option<StepId> {
    let is_done = |id: &StepId| matches!(outcomes.get(id.index()), Some(Outcome::Done));
    let missing = step.needs.iter().find(|id| !is_done(id));
    let missing_any = || {
        let any = &step.needs_any;
        any.first().filter(|_| !any.iter().any(is_done))
    };
    missing.or_else(missing_any).copied()
}

fn execute<M: DataPath>(
    batch: &mut Vec<(usize, &Step<M>)>,
    kernel: &mut M::Kernel,
    state: &mut M::State,
    outcomes: &mut [Outcome<M>],
) {
    if batch.is_empty() {
        return;
    }
    let operations: Vec<&M::Operation> = batch.iter().map(|(_, step)| &step.operation).collect();
    let mut results = M::execute(kernel, &operations).into_iter();
    for (index, step) in batch.drain(..) {
        let outcome = match results.next() {
            Some(Ok(())) => {
                M::record(state, &step.operation);
                Outcome::Done
            }
            Some(Err(error)) => {
                M::record_failure(state, &step.operation, &error);
                Outcome::Failed(error)
            }
            None => Outcome::Failed(M::outcome_missing()),
        };
        if let Some(place) = outcomes.get_mut(index) {
            *place = outcome;
        }
    }
}
