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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::{Refused, Script, Scripted};

    fn outcomes(steps: &[RetiredStep]) -> Vec<(&str, &RetiredOutcome)> {
        let steps = steps.iter();
        steps.map(|step| (step.command.as_str(), &step.outcome)).collect()
    }

    /// Steps of which the first one of two failed.
    fn failed(now: Instant) -> (Steps<Scripted>, Scripted, Script) {
        let refused = RetiredOutcome::Failed("refused".to_owned());
        let mut kernel = Script {
            steps: vec![(0, "a", "remove a"), (0, "b", "remove b")],
            outcomes: [vec![Err(Refused::Refused), Ok(())]].into(),
        };
        let mut state = Scripted::default();
        state.observe(&mut kernel).unwrap();
        let mut steps = Steps::default();
        assert_eq!((steps.next(), steps.waiting()), (None, 0));
        let done = steps.run(&mut state, &mut kernel, now, true);
        let expected = [("remove a", &refused), ("remove b", &RetiredOutcome::Done)];
        assert_eq!(outcomes(&done), expected);
        assert_eq!(done[0].class.kind, "object");
        assert_eq!(steps.waiting(), 1);
        (steps, state, kernel)
    }

    #[test]
    fn a_plan_executes_nothing() {
        let (mut steps, mut state, mut kernel) = failed(Instant::now());
        kernel.steps = vec![(0, "c", "remove c")];
        state.observe(&mut kernel).unwrap();
        let planned = steps.run(&mut state, &mut kernel, Instant::now(), false);
        assert_eq!(outcomes(&planned), [("remove c", &RetiredOutcome::Planned)]);
        assert_eq!(state.done, ["remove b"]);
        assert_eq!(steps.waiting(), 1);
    }

    #[test]
    fn what_failed_is_read_again_and_tried_again_when_it_is_due() {
        let now = Instant::now();
        let (mut steps, mut state, mut kernel) = failed(now);
        let due = steps.next().unwrap();
        assert!(due > now);
        steps.reread(&mut state, &mut kernel, now).unwrap();
        assert_eq!(state.read, [""; 0]);
        kernel.outcomes = [vec![Ok(())], vec![Ok(()), Ok(())]].into();
        let again = steps.run(&mut state, &mut kernel, now, true);
        assert_eq!(outcomes(&again), [("remove b", &RetiredOutcome::Done)]);
        steps.reread(&mut state, &mut kernel, due).unwrap();
        assert_eq!((&state.read, &state.set_dirty), (&vec!["a"], &vec!["a"]));
        let retried = steps.run(&mut state, &mut kernel, due, true);
        assert_eq!(retried.len(), 2);
        assert!(retried.iter().all(|step| step.outcome == RetiredOutcome::Done));
        assert_eq!((steps.next(), steps.waiting()), (None, 0));
    }

    #[test]
    fn what_is_compared_and_needs_no_step_any_more_does_not_wait() {
        for is_compared in [true, false] {
            let now = Instant::now();
            let (mut steps, mut state, mut kernel) = failed(now);
            kernel.steps.clear();
            state.observe(&mut kernel).unwrap();
            if !is_compared {
                state.clean.push("a");
            }
            steps.run(&mut state, &mut kernel, now, true);
            assert_eq!(steps.waiting(), usize::from(!is_compared));
        }
    }
}
