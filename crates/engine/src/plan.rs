//! The steps that bring the kernel to the desired state, in phases. A plan is plain data. It prints as the equivalent commands.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use kernlink_services::ObjectName;

use crate::retry::Failures;

/// What a step is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// A Service. Where several need the object, the first of them.
    Service(ObjectName),
    /// This node: its configuration and addresses.
    Node,
    /// The data path as a whole, independent of the Services.
    DataPath,
}

impl Subject {
    /// The Service, if it is one.
    #[must_use]
    pub fn service(&self) -> Option<&ObjectName> {
        match self {
            Subject::Service(name) => Some(name),
            Subject::Node | Subject::DataPath => None,
        }
    }

    /// A Service; the data path without one.
    #[must_use]
    pub fn of(service: Option<&ObjectName>) -> Self {
        service.cloned().map_or(Subject::DataPath, Subject::Service)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Service(name) => write!(f, "Service {name}"),
            Subject::Node => f.write_str("node"),
            Subject::DataPath => f.write_str("data path"),
        }
    }
}

/// Phases in the order in which they are executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<K, O, P> {
    phases: Vec<Phase<K, O, P>>,
    steps: usize,
}

/// The steps of one phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase<K, O, P> {
    /// Which phase it is.
    pub kind: P,
    /// Its steps, in order; never empty.
    pub steps: Vec<Step<K, O>>,
}

/// One operation, with every value that its execution needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<K, O> {
    /// The kernel object that it changes.
    pub key: K,
    /// What it is for.
    pub subject: Subject,
    /// What to do.
    pub operation: O,
    /// Earlier steps. The step is skipped unless all of them were done.
    pub needs: Vec<StepId>,
    /// Earlier steps. The step is skipped unless at least one of them was done. Empty: no such condition.
    pub needs_any: Vec<StepId>,
}

/// The position of a step in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(usize);

impl StepId {
    pub(crate) fn at(index: usize) -> Self {
        StepId(index)
    }

    /// The position of the same step if so many steps precede the plan.
    pub(crate) fn after(self, steps: usize) -> Self {
        StepId(self.0 + steps)
    }

    /// The position, counted through all phases from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

impl fmt::Display for StepId {
    /// The number of the step as plans and reports print it, from 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 + 1)
    }
}

impl<K, O, P> Default for Plan<K, O, P> {
    fn default() -> Self {
        Self {
            phases: Vec::new(),
            steps: 0,
        }
    }
}

impl<K, O, P> Plan<K, O, P> {
    /// The phases in the order of execution, each at most once.
    #[must_use]
    pub fn phases(&self) -> &[Phase<K, O, P>] {
        &self.phases
    }

    /// All steps with their positions.
    pub fn steps(&self) -> impl Iterator<Item = (StepId, &Step<K, O>)> {
        let steps = self.phases.iter().flat_map(|phase| &phase.steps);
        steps.enumerate().map(|(index, step)| (StepId(index), step))
    }

    /// The number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps == 0
    }
}

impl<K, O: Display, P: Display> fmt::Display for Plan<K, O, P> {
    /// A heading for each phase, and for each step its number and the equivalent command.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut index = 0;
        for phase in &self.phases {
            writeln!(f, "# {}", phase.kind)?;
            for step in &phase.steps {
                writeln!(f, "[{}] {}", StepId(index), step.operation)?;
                index += 1;
            }
        }
        Ok(())
    }
}

/// What a step needs: another step of the plan, or an object whose operation failed and waits for its retry.
#[derive(Clone, Debug)]
pub enum Need<K> {
    /// A step of this plan.
    Step(BuilderStep),
    /// An object that is not in its desired state, and that no step of this plan changes.
    Waiting(K),
}

/// A step of a plan that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuilderStep(usize);

/// What a step needs.
#[derive(Clone, Debug)]
pub struct Needs<K> {
    all: Vec<Need<K>>,
    any: Vec<Need<K>>,
}

impl<K> Needs<K> {
    /// Nothing.
    #[must_use]
    pub fn none() -> Self {
        Self {
            all: Vec::new(),
            any: Vec::new(),
        }
    }

    /// All of these.
    #[must_use]
    pub fn all(needs: impl IntoIterator<Item = Need<K>>) -> Self {
        Self {
            all: needs.into_iter().collect(),
            any: Vec::new(),
        }
    }

    /// Adds the condition that at least one of these was done. An empty list adds no condition.
    #[must_use]
    pub fn and_any(mut self, needs: impl IntoIterator<Item = Need<K>>) -> Self {
        self.any.extend(needs);
        self
    }
}

/// A plan, and the keys whose steps were left out of it.
#[derive(Debug)]
pub(crate) struct Built<K, O, P> {
    pub(crate) plan: Plan<K, O, P>,
    /// For each step that was left out: the key that it waits for, and its own.
    pub(crate) waiting: Vec<(K, K)>,
    /// The keys of failed operations for which there still is something to do.
    pub(crate) needed: BTreeSet<K>,
}

/// Collects the steps of a plan, in any order of phases.
#[derive(Debug)]
pub struct PlanBuilder<'a, K, O, P> {
    retries: &'a dyn Failures<K, O>,
    steps: Vec<(P, Step<K, O>)>,
    waiting: Vec<(K, K)>,
    /// The keys of failed operations for which there still is something to do.
    needed: BTreeSet<K>,
}

impl<'a, K, O, P> PlanBuilder<'a, K, O, P>
where
    K: Clone + Ord,
    O: PartialEq,
    P: Copy + Ord,
{
    pub(crate) fn new(retries: &'a dyn Failures<K, O>) -> Self {
        Self {
            retries,
            steps: Vec::new(),
            waiting: Vec::new(),
            needed: BTreeSet::new(),
        }
    }

    /// Whether any operation on `key` failed and its retry is not due, for operations that are costly to make again with other values.
    /// If so, `key` is recorded as one that still needs an operation.
    pub fn is_waiting(&mut self, key: &K) -> bool {
        let is_waiting = self.retries.waits(key);
        if is_waiting {
            self.needed.insert(key.clone());
        }
        is_waiting
    }

    /// Adds a step. The step is left out if the same operation on `key` failed and its retry is not due, or if the step needs an object
    /// that waits for such a retry; it is then planned together with that retry.
    ///
    /// A step may need only steps of its own phase that were added before it, and steps of earlier phases. Use the returned value in
    /// the `needs` of later steps.
    pub fn push(
        &mut self,
        phase: P,
        key: K,
        subject: Subject,
        operation: impl Into<O>,
        needs: Needs<K>,
    ) -> Need<K> {
        let operation = operation.into();
        if self.retries.has_failed(&key) {
            self.needed.insert(key.clone());
        }
        if self.retries.is_waiting(&key, &operation) {
            return Need::Waiting(key);
        }
        let mut all = Vec::with_capacity(needs.all.len());
        for need in needs.all {
            match need {
                Need::Step(BuilderStep(index)) => all.push(StepId(index)),
                Need::Waiting(on) => {
                    self.waiting.push((on, key.clone()));
                    return Need::Waiting(key);
                }
            }
        }
        let mut any = Vec::with_capacity(needs.any.len());
        let mut waits = Vec::new();
        for need in needs.any {
            match need {
                Need::Step(BuilderStep(index)) => any.push(StepId(index)),
                Need::Waiting(on) => waits.push(on),
            }
        }
        if any.is_empty() && !waits.is_empty() {
            // The first of them that is done is enough.
            self.waiting.extend(waits.into_iter().map(|on| (on, key.clone())));
            return Need::Waiting(key);
        }
        let step = Step {
            key,
            subject,
            operation,
            needs: all,
            needs_any: any,
        };
        self.steps.push((phase, step));
        Need::Step(BuilderStep(self.steps.len() - 1))
    }

    /// The steps added so far: what each is for, its operation, and the value by which a later step needs it.
    pub fn steps(&self) -> impl Iterator<Item = (&Subject, &O, Need<K>)> {
        let steps = self.steps.iter().enumerate();
        steps.map(|(index, (_, step))| (&step.subject, &step.operation, Need::Step(BuilderStep(index))))
    }

    /// Adds the steps of another data path, whose keys, operations and phases are some of this one's. `plan` adds them to a builder of
    /// their own.
    pub fn add_part<PartKey, PartOperation, PartPhase>(
        &mut self,
        plan: impl FnOnce(&mut PlanBuilder<'_, PartKey, PartOperation, PartPhase>),
    ) where
        PartKey: Clone + Into<K> + Ord,
        PartOperation: Clone + Into<O> + PartialEq,
        PartPhase: Copy + Into<P> + Ord,
    {
        let failures = PartFailures { whole: self.retries };
        let mut part = PlanBuilder::new(&failures);
        plan(&mut part);
        let PlanBuilder {
            steps,
            waiting,
            needed,
            ..
        } = part;
        let before = self.steps.len();
        let after = |needs: Vec<StepId>| needs.into_iter().map(|need| need.after(before)).collect();
        self.steps.extend(steps.into_iter().map(|(phase, step)| {
            let step = Step {
                key: step.key.into(),
                subject: step.subject,
                operation: step.operation.into(),
                needs: after(step.needs),
                needs_any: after(step.needs_any),
            };
            (phase.into(), step)
        }));
        let waiting = waiting.into_iter().map(|(on, key)| (on.into(), key.into()));
        self.waiting.extend(waiting);
        self.needed.extend(needed.into_iter().map(Into::into));
    }

    /// Puts the steps in the order of their phases.
    pub(crate) fn finish(self) -> Built<K, O, P> {
        let mut order: Vec<usize> = (0..self.steps.len()).collect();
        order.sort_by_key(|&index| self.steps.get(index).map(|(phase, _)| *phase));
        let mut position = vec![StepId(0); order.len()];
        for (new, &old) in order.iter().enumerate() {
            if let Some(position) = position.get_mut(old) {
                *position = StepId(new);
            }
        }
        let mut steps: Vec<Option<(P, Step<K, O>)>> = self.steps.into_iter().map(Some).collect();
        let mut plan = Plan::default();
        for old in order {
            let Some((kind, mut step)) = steps.get_mut(old).and_then(Option::take) else {
                continue;
            };
            for need in step.needs.iter_mut().chain(&mut step.needs_any) {
                if let Some(position) = position.get(need.0) {
                    *need = *position;
                }
            }
            step.needs.sort_unstable();
            step.needs.dedup();
            step.needs_any.sort_unstable();
            step.needs_any.dedup();
            plan.steps += 1;
            match plan.phases.last_mut() {
                Some(phase) if phase.kind == kind => phase.steps.push(step),
                _ => plan.phases.push(Phase {
                    kind,
                    steps: vec![step],
                }),
            }
        }
        Built {
            plan,
            waiting: self.waiting,
            needed: self.needed,
        }
    }
}

/// The failures of a data path that has another one as a part, as that one identifies them.
struct PartFailures<'a, K, O> {
    whole: &'a dyn Failures<K, O>,
}

impl<K, O> fmt::Debug for PartFailures<'_, K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.whole.fmt(f)
    }
}

impl<K, O, PartKey, PartOperation> Failures<PartKey, PartOperation> for PartFailures<'_, K, O>
where
    PartKey: Clone + Into<K>,
    PartOperation: Clone + Into<O>,
{
    fn is_empty(&self) -> bool {
        self.whole.is_empty()
    }

    fn has_failed(&self, key: &PartKey) -> bool {
        !self.whole.is_empty() && self.whole.has_failed(&key.clone().into())
    }

    fn waits(&self, key: &PartKey) -> bool {
        !self.whole.is_empty() && self.whole.waits(&key.clone().into())
    }

    fn is_waiting(&self, key: &PartKey, operation: &PartOperation) -> bool {
        // Operations may be large: they are compared only if one on the key failed.
        Failures::<PartKey, PartOperation>::waits(self, key)
            && self
                .whole
                .is_waiting(&key.clone().into(), &operation.clone().into())
    }
}
