//! Executing a plan.

use crate::data_path::DataPath;
use crate::plan::{Plan, Step, StepId};
use crate::report::{Outcome, Report};

/// Executes a plan and records in the state what was really done.
///
/// Every step is tried whose needs were done: a failure skips what depends on it, and nothing else. The steps of a phase are executed
/// together, in order; a step that needs one of its own phase waits for its outcome.
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

/// A step that had to be done before this one and was not.
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
            Some(Err(error)) => Outcome::Failed(error),
            None => Outcome::Failed(M::no_outcome()),
        };
        if let Some(place) = outcomes.get_mut(index) {
            *place = outcome;
        }
    }
}
