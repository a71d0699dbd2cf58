//! What has to be done so that the kernel holds what is desired: phases of steps, made by [`diff`] and executed by
//! [`apply`](crate::apply).

mod diff;
mod operation;
mod order;
mod rules;

use std::fmt;

pub use diff::diff;
pub use operation::{Operation, SettingOperation};
pub use order::PhaseKind;

/// The name under which the number of buckets of the table of tracked connections is read and written: a parameter of its module.
pub(crate) const CONNTRACK_BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// Phases in the order in which they are executed. Prints one command a step, in the notation of the standard tools, under a
/// heading a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    phases: Vec<Phase>,
    steps: usize,
}

/// Steps that do not depend on each other's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Which phase it is.
    pub kind: PhaseKind,
    /// Its steps; never empty.
    pub steps: Vec<Step>,
}

/// One operation, with every value that its execution needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub operation: Operation,
    /// Steps of earlier phases that must have succeeded: if one failed or was held back, so is this one.
    pub needs: Vec<StepId>,
}

/// The position of a step in its plan, counted through all phases from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(usize);

impl StepId {
    pub(crate) fn at(index: usize) -> Self {
        StepId(index)
    }

    /// The position.
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

impl Plan {
    /// The phases; each kind at most once, in the order of [`PhaseKind`].
    #[must_use]
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// All steps with their positions.
    pub fn steps(&self) -> impl Iterator<Item = (StepId, &Step)> {
        let steps = self.phases.iter().flat_map(|phase| &phase.steps);
        steps.enumerate().map(|(index, step)| (StepId(index), step))
    }

    /// Number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps == 0
    }

    /// Appends a step to a phase, which must be the last one so far or a later one.
    fn push(&mut self, kind: PhaseKind, operation: impl Into<Operation>, needs: Vec<StepId>) -> StepId {
        let step = Step {
            operation: operation.into(),
            needs,
        };
        match self.phases.last_mut() {
            Some(phase) if phase.kind == kind => phase.steps.push(step),
            last => {
                debug_assert!(
                    last.is_none_or(|phase| phase.kind < kind),
                    "phases are filled in order"
                );
                self.phases.push(Phase {
                    kind,
                    steps: vec![step],
                });
            }
        }
        self.steps += 1;
        StepId(self.steps - 1)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for phase in &self.phases {
            writeln!(f, "# {}", phase.kind)?;
            for step in &phase.steps {
                writeln!(f, "{}", step.operation)?;
            }
        }
        Ok(())
    }
}
