//! Records the outcomes of a plan, which decide what is retried, and when.

use std::time::Instant;

use crate::data_path::{DataPath, PlanOf, ReportOf};
use crate::report::Outcome;
use crate::retry::Retries;

/// Records the outcome of each step, and which steps depend on failed ones. `waiting`: the steps that were left out of the plan, each with the
/// key that it waits for before its own.
pub(crate) fn record<M: DataPath>(
    retries: &mut Retries<M::Key, M::Operation>,
    plan: &PlanOf<M>,
    report: &ReportOf<M>,
    waiting: Vec<(M::Key, M::Key)>,
    now: Instant,
) {
    let steps: Vec<_> = plan.steps().map(|(_, step)| step).collect();
    for (step, outcome) in steps.iter().zip(report.outcomes()) {
        match outcome {
            Outcome::Done => retries.succeed(&step.key),
            Outcome::Failed(error) => {
                let is_unknown = M::is_outcome_unknown(error);
                retries.fail(
                    &step.key,
                    step.operation.clone(),
                    step.subject.service(),
                    is_unknown,
                    now,
                );
            }
            Outcome::Skipped { .. } => {}
        }
    }
    // Before dependents are recorded: a key that fell due and now waits for another one has no dependents itself.
    retries.drop_due();
    for (step, outcome) in steps.iter().zip(report.outcomes()) {
        let Outcome::Skipped { dependency } = outcome else {
            continue;
        };
        // Of several, the first one that is done is enough.
        let is_any = step.needs_any.contains(dependency);
        let others = step.needs_any.iter().filter(|need| is_any && *need != dependency);
        for need in others.chain([dependency]) {
            if let Some(root) = steps.get(report.root(*need).index()) {
                retries.depend(&root.key, step.key.clone());
            }
        }
    }
    for (on, dependent) in waiting {
        retries.depend(&on, dependent);
    }
}
