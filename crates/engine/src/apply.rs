//! Executing a plan.

use crate::data_path::{DataPath, PlanOf, ReportOf, StepOf};
use crate::plan::{Step, StepId};
use crate::report::{Outcome, Report};

/// Executes a plan and records each step that was done in the data path.
///
/// A step is tried if the steps that it needs were done; otherwise it is skipped. The steps of a phase are executed in one batch, in
/// order. A step that needs another step of the batch begins a new batch.
pub(crate) fn apply<M: DataPath>(plan: &PlanOf<M>, kernel: &mut M::Kernel, data_path: &mut M) -> ReportOf<M> {
    let mut report = Report::default();
    let mut batch: Vec<(usize, &StepOf<M>)> = Vec::new();
    let mut index = 0;
    for phase in plan.phases() {
        for step in &phase.steps {
            let needs_batch = batch.first().is_some_and(|(first, _)| {
                let mut needs = step.needs.iter().chain(&step.needs_any);
                needs.any(|need| need.index() >= *first)
            });
            if needs_batch {
                execute(&mut batch, kernel, data_path, &mut report);
            }
            match missing(step, &report) {
                Some(dependency) => report.push(Outcome::Skipped { dependency }),
                None => {
                    // Replaced by the outcome when the batch is executed.
                    report.push(Outcome::Done);
                    batch.push((index, step));
                }
            }
            index += 1;
        }
        execute(&mut batch, kernel, data_path, &mut report);
    }
    report
}

/// The first step that this one needs and that was not done.
fn missing<K, O, E>(step: &Step<K, O>, report: &Report<E>) -> Option<StepId> {
    let is_done = |id: &StepId| matches!(report.outcome(*id), Some(Outcome::Done));
    let missing = step.needs.iter().find(|id| !is_done(id));
    let missing_any = || {
        let any = &step.needs_any;
        any.first().filter(|_| !any.iter().any(is_done))
    };
    missing.or_else(missing_any).copied()
}

fn execute<M: DataPath>(
    batch: &mut Vec<(usize, &StepOf<M>)>,
    kernel: &mut M::Kernel,
    data_path: &mut M,
    report: &mut ReportOf<M>,
) {
    if batch.is_empty() {
        return;
    }
    let operations: Vec<&M::Operation> = batch.iter().map(|(_, step)| &step.operation).collect();
    let mut results = M::execute(kernel, &operations).into_iter();
    for (index, step) in batch.drain(..) {
        let outcome = match results.next() {
            Some(Ok(())) => {
                data_path.record(&step.operation);
                Outcome::Done
            }
            Some(Err(error)) => {
                data_path.record_failure(&step.operation, &error);
                Outcome::Failed(error)
            }
            None => {
                let error = M::outcome_missing();
                data_path.record_failure(&step.operation, &error);
                Outcome::Failed(error)
            }
        };
        report.replace(StepId::at(index), outcome);
    }
}

#[cfg(test)]
mod tests {
    use kernlink_base::Backoff;
    use kernlink_services::Config;

    use super::*;
    use crate::plan::{Needs, PlanBuilder, Subject};
    use crate::retry::Retries;
    use crate::scripted::{Refused, Script, Scripted};

    #[test]
    fn an_operation_without_an_outcome_is_recorded_as_failed() {
        let mut kernel = Script {
            steps: vec![
                (0, "a", "add a"),
                (0, "b", "add b"),
                (0, "c", "add c"),
                (1, "d", "add d"),
            ],
            // Of three operations, the last two have none. The next call returns one too many.
            outcomes: [vec![Ok(())], vec![Err(Refused::Refused), Ok(())]].into(),
        };
        let mut state = Scripted::new(&Config::new("node-a"));
        state.observe(&mut kernel).unwrap();
        let retries = Retries::new(Backoff::default());
        let mut builder = PlanBuilder::new(&retries);
        state.plan(&mut builder);
        let report = apply(&builder.finish().plan, &mut kernel, &mut state);
        let failed = |error| Outcome::Failed(error);
        assert_eq!(
            report.outcomes().cloned().collect::<Vec<_>>(),
            [
                Outcome::Done,
                failed(Refused::OutcomeMissing),
                failed(Refused::OutcomeMissing),
                failed(Refused::Refused),
            ]
        );
        assert_eq!(state.done, ["add a"]);
        let failed = [
            ("add b", Refused::OutcomeMissing),
            ("add c", Refused::OutcomeMissing),
            ("add d", Refused::Refused),
        ];
        let failed = failed.map(|(operation, error)| (operation.to_owned(), error));
        assert_eq!(state.failed, failed);
    }

    #[test]
    fn a_step_that_needs_one_of_its_batch_is_passed_after_that_one_was_done() {
        let retries = Retries::new(Backoff::default());
        let mut builder = PlanBuilder::new(&retries);
        let mut push = |phase, key, needs| {
            let operation = format!("add {key}");
            builder.push(phase, key, Subject::DataPath, operation, needs)
        };
        let first = push(0, "a", Needs::none());
        let second = push(1, "b", Needs::all([first]));
        push(1, "c", Needs::none());
        push(1, "d", Needs::all([second.clone()]));
        push(1, "e", Needs::none().and_any([second]));
        // One call for a, one for b and c, and one for d and e, which need b.
        let mut kernel = Script {
            steps: Vec::new(),
            outcomes: [
                vec![Ok(())],
                vec![Err(Refused::Refused), Ok(()), Ok(()), Ok(())],
                vec![Ok(()), Ok(())],
            ]
            .into(),
        };
        let mut state = Scripted::new(&Config::new("node-a"));
        let plan = builder.finish().plan;
        let report = apply(&plan, &mut kernel, &mut state);
        let dependency = StepId::at(1);
        assert_eq!(
            report.outcomes().cloned().collect::<Vec<_>>(),
            [
                Outcome::Done,
                Outcome::Failed(Refused::Refused),
                Outcome::Done,
                Outcome::Skipped { dependency },
                Outcome::Skipped { dependency },
            ]
        );
        assert_eq!(state.done, ["add a", "add c"]);
        // If b is done, d and e are passed together.
        let mut kernel = Script {
            steps: Vec::new(),
            outcomes: [vec![Ok(())], vec![Ok(()), Ok(())], vec![Ok(()), Ok(())]].into(),
        };
        let mut state = Scripted::new(&Config::new("node-a"));
        assert!(apply(&plan, &mut kernel, &mut state).is_success());
        assert_eq!(kernel.outcomes.len(), 0);
    }
}
