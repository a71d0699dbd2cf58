//! The steps that bring the kernel to the desired state, in phases. A plan is plain data. It prints as the equivalent commands.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::{self, Display};
use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;
use kernlink_services::ObjectName;

use crate::retry::Retries;

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
    /// Earlier steps, in ascending order, each once. The step is skipped unless all of them were done.
    pub needs: Box<[StepId]>,
    /// Earlier steps, in ascending order, each once. The step is skipped unless at least one of them was done. Empty: no such condition.
    pub needs_any: Box<[StepId]>,
}

/// The position of a step in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(u32);

impl StepId {
    pub(crate) fn at(index: usize) -> Self {
        // No plan fits in memory that has more steps.
        StepId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The position, counted through all phases from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for StepId {
    /// The number of the step as plans and reports print it, from 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.index() + 1)
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
        steps.enumerate().map(|(index, step)| (StepId::at(index), step))
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
                writeln!(f, "[{}] {}", StepId::at(index), step.operation)?;
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
pub struct BuilderStep(StepId);

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

/// Steps in ascending order, each once.
fn each_once(mut steps: Vec<StepId>) -> Box<[StepId]> {
    steps.sort_unstable();
    steps.dedup();
    steps.into()
}

/// Collects the steps of a plan, in any order of phases.
#[derive(Debug)]
pub struct PlanBuilder<'a, K, O, P> {
    retries: &'a Retries<K, O>,
    /// In the order of the phases. Until the plan is complete, the needs of a step are positions in `places`.
    phases: Vec<Phase<K, O, P>>,
    /// Where each step is, in the order in which they were added.
    places: Vec<Place<P>>,
    waiting: Vec<(K, K)>,
    /// The keys of failed operations for which there still is something to do.
    needed: BTreeSet<K>,
    index: Index<K>,
}

/// Where a step is: its phase, and its position there.
#[derive(Clone, Copy, Debug)]
struct Place<P> {
    phase: P,
    position: u32,
}

/// The steps of each key.
#[derive(Debug)]
struct Index<K> {
    hasher: RandomState,
    /// By the hash of a key, its last step, or that of another key with this hash. The keys are in the steps.
    last: HashMap<u64, StepId, RandomState>,
    /// For the steps that have any: the one before it with the same hash.
    before: HashMap<StepId, StepId, RandomState>,
    /// The keys of steps that were left out, or that wait for another step.
    left_out: HashSet<K, RandomState>,
    /// The steps of other keys that change a key too.
    included: HashMap<K, Need<K>, RandomState>,
}

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            last: HashMap::default(),
            before: HashMap::default(),
            left_out: HashSet::default(),
            included: HashMap::default(),
        }
    }
}

impl<K: Clone + Eq + Hash> Index<K> {
    fn add(&mut self, key: &K, step: StepId) {
        if let Some(before) = self.last.insert(self.hasher.hash_one(key), step) {
            self.before.insert(step, before);
        }
    }

    /// The steps with the hash of a key, the last one first.
    fn steps(&self, key: &K) -> impl Iterator<Item = StepId> {
        let last = match self.last.is_empty() {
            true => None,
            false => self.last.get(&self.hasher.hash_one(key)).copied(),
        };
        std::iter::successors(last, |step| self.before.get(step).copied())
    }
}

impl<'a, K, O, P> PlanBuilder<'a, K, O, P>
where
    K: Clone + Hash + Ord,
    O: PartialEq,
    P: Copy + Ord,
{
    pub(crate) fn new(retries: &'a Retries<K, O>) -> Self {
        Self {
            retries,
            phases: Vec::new(),
            places: Vec::new(),
            waiting: Vec::new(),
            needed: BTreeSet::new(),
            index: Index::default(),
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
            return self.leave_out(key);
        }
        let mut all = Vec::with_capacity(needs.all.len());
        for need in needs.all {
            match need {
                Need::Step(BuilderStep(step)) => all.push(step),
                Need::Waiting(on) => {
                    self.waiting.push((on, key.clone()));
                    return self.leave_out(key);
                }
            }
        }
        let mut any = Vec::with_capacity(needs.any.len());
        let mut waits = Vec::new();
        for need in needs.any {
            match need {
                Need::Step(BuilderStep(step)) => any.push(step),
                Need::Waiting(on) => waits.push(on),
            }
        }
        if any.is_empty() && !waits.is_empty() {
            // The first of them that is done is enough.
            self.waiting.extend(waits.into_iter().map(|on| (on, key.clone())));
            return self.leave_out(key);
        }
        let id = StepId::at(self.places.len());
        self.index.add(&key, id);
        self.add(
            phase,
            Step {
                key,
                subject,
                operation,
                needs: each_once(all),
                needs_any: each_once(any),
            },
        );
        Need::Step(BuilderStep(id))
    }

    /// Adds a step at the end of a phase.
    fn add(&mut self, kind: P, step: Step<K, O>) {
        let at = match self.phases.binary_search_by_key(&kind, |phase| phase.kind) {
            Ok(at) => at,
            Err(at) => {
                let steps = Vec::new();
                self.phases.insert(at, Phase { kind, steps });
                at
            }
        };
        if let Some(phase) = self.phases.get_mut(at) {
            self.places.push(Place {
                phase: kind,
                position: StepId::at(phase.steps.len()).0,
            });
            phase.steps.push(step);
        }
    }

    /// The step at a place.
    fn step(&self, place: &Place<P>) -> Option<&Step<K, O>> {
        let at = self.phases.binary_search_by_key(&place.phase, |phase| phase.kind);
        self.phases.get(at.ok()?)?.steps.get(place.position as usize)
    }

    fn leave_out(&mut self, key: K) -> Need<K> {
        self.index.left_out.insert(key.clone());
        Need::Waiting(key)
    }

    /// What a step needs that requires the object `key` to be in its desired state: all steps of this key so far, in no particular order.
    /// Without any, nothing if the object `is_in_place`; otherwise its operation failed before, and the step waits for it. If the object must
    /// only exist, and does, do not call this: the step would wait for a change of the object too.
    #[must_use]
    pub fn after(&self, key: &K, is_in_place: bool) -> Vec<Need<K>> {
        let needs = self.steps_of(key);
        if needs.is_empty() && !is_in_place {
            return vec![Need::Waiting(key.clone())];
        }
        needs
    }

    /// The steps of a key so far. A step that was left out is [`Need::Waiting`]. Empty: the plan has no step of it.
    #[must_use]
    pub fn steps_of(&self, key: &K) -> Vec<Need<K>> {
        let steps = self.index.steps(key);
        let is_of_key = |step: &StepId| {
            let place = self.places.get(step.index());
            place
                .and_then(|place| self.step(place))
                .is_some_and(|step| step.key == *key)
        };
        let mut needs: Vec<Need<K>> = steps
            .filter(is_of_key)
            .map(|step| Need::Step(BuilderStep(step)))
            .collect();
        needs.extend(self.index.included.get(key).cloned());
        if !self.index.left_out.is_empty() && self.index.left_out.contains(key) {
            needs.push(Need::Waiting(key.clone()));
        }
        needs
    }

    /// A step that was added brings the object `key` in its desired state too, for [`after`](Self::after).
    pub fn include(&mut self, key: K, step: Need<K>) {
        self.index.included.insert(key, step);
    }

    /// The steps added so far: what each is for, its operation, and the value by which a later step needs it.
    pub fn steps(&self) -> impl Iterator<Item = (&Subject, &O, Need<K>)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(index, place)| {
            let step = self.step(place)?;
            let need = Need::Step(BuilderStep(StepId::at(index)));
            Some((&step.subject, &step.operation, need))
        })
    }

    /// Completes the plan: the needs of its steps become positions in it. No step is copied.
    pub(crate) fn finish(self) -> Built<K, O, P> {
        let Self {
            mut phases, places, ..
        } = self;
        let mut steps = 0;
        let mut first: Vec<(P, usize)> = Vec::with_capacity(phases.len());
        for phase in &phases {
            first.push((phase.kind, steps));
            steps += phase.steps.len();
        }
        let in_plan = |step: StepId| {
            let place = places.get(step.index())?;
            let at = first.binary_search_by_key(&place.phase, |(kind, _)| *kind).ok()?;
            let (_, before) = first.get(at)?;
            Some(StepId::at(before + place.position as usize))
        };
        for step in phases.iter_mut().flat_map(|phase| &mut phase.steps) {
            for needs in [&mut step.needs, &mut step.needs_any] {
                for need in needs.iter_mut() {
                    *need = in_plan(*need).unwrap_or(*need);
                }
                needs.sort_unstable();
            }
        }
        let plan = Plan { phases, steps };
        Built {
            plan,
            waiting: self.waiting,
            needed: self.needed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use kernlink_base::Backoff;

    use super::*;
    use crate::retry::Retries;

    type Builder<'a> = PlanBuilder<'a, &'static str, &'static str, u8>;

    fn push(builder: &mut Builder<'_>, key: &'static str, operation: &'static str) -> Need<&'static str> {
        builder.push(0, key, Subject::DataPath, operation, Needs::none())
    }

    /// The steps and keys of needs.
    fn shown(needs: &[Need<&'static str>]) -> Vec<String> {
        let mut shown: Vec<String> = needs.iter().map(|need| format!("{need:?}")).collect();
        shown.sort_unstable();
        shown
    }

    #[test]
    fn a_step_after_an_object_needs_all_of_its_steps() {
        let retries = Retries::new(Backoff::default());
        let mut builder: Builder<'_> = PlanBuilder::new(&retries);
        let first = push(&mut builder, "a", "write");
        push(&mut builder, "b", "write");
        let second = push(&mut builder, "a", "write more");
        let expected = shown(&[first, second]);
        assert_eq!(shown(&builder.after(&"a", false)), expected);
        // It is changed, although it was in place.
        assert_eq!(shown(&builder.after(&"a", true)), expected);
    }

    #[test]
    fn a_step_after_an_object_without_steps_waits_unless_the_object_is_in_place() {
        let retries = Retries::new(Backoff::default());
        let builder: Builder<'_> = PlanBuilder::new(&retries);
        assert!(builder.after(&"a", true).is_empty());
        assert_eq!(shown(&builder.after(&"a", false)), shown(&[Need::Waiting("a")]));
        assert!(builder.steps_of(&"a").is_empty());
    }

    #[test]
    fn a_step_after_one_that_was_left_out_waits_for_its_key() {
        let mut retries = Retries::new(Backoff::default());
        retries.fail(&"a", "write", None, false, Instant::now());
        let mut builder: Builder<'_> = PlanBuilder::new(&retries);
        push(&mut builder, "a", "write");
        let waiting = shown(&[Need::Waiting("a")]);
        for is_in_place in [false, true] {
            assert_eq!(shown(&builder.after(&"a", is_in_place)), waiting);
        }
        assert!(builder.steps_of(&"b").is_empty());
        let needs = Needs::all(builder.after(&"a", false));
        builder.push(0, "b", Subject::DataPath, "write", needs);
        assert_eq!(shown(&builder.after(&"b", true)), shown(&[Need::Waiting("b")]));
        assert!(builder.finish().plan.is_empty());
    }

    #[test]
    fn one_step_may_include_several_objects() {
        let retries = Retries::new(Backoff::default());
        let mut builder: Builder<'_> = PlanBuilder::new(&retries);
        let all = push(&mut builder, "all", "write");
        builder.include("a", all.clone());
        assert_eq!(shown(&builder.after(&"a", false)), shown(&[all]));
    }

    #[test]
    fn a_plan_has_the_number_of_its_steps() {
        let retries = Retries::new(Backoff::default());
        let mut builder: Builder<'_> = PlanBuilder::new(&retries);
        push(&mut builder, "a", "write");
        builder.push(1, "b", Subject::Node, "write", Needs::none());
        push(&mut builder, "c", "write");
        let plan = builder.finish().plan;
        assert_eq!((plan.len(), plan.is_empty()), (3, false));
        let none = PlanBuilder::<&str, &str, u8>::new(&retries).finish().plan;
        assert_eq!((none.len(), none.is_empty()), (0, true));
    }

    #[test]
    fn a_key_that_waits_for_its_retry_is_needed() {
        let mut retries = Retries::new(Backoff::default());
        retries.fail(&"a", "write", None, false, Instant::now());
        let mut builder: Builder<'_> = PlanBuilder::new(&retries);
        assert!(!builder.is_waiting(&"b"));
        assert!(builder.is_waiting(&"a"));
        assert_eq!(builder.finish().needed, ["a"].into());
    }

    #[test]
    fn a_subject_prints_what_it_is() {
        let service = ObjectName::new("ns", "web");
        let subjects = [Subject::of(Some(&service)), Subject::Node, Subject::of(None)];
        let texts = subjects.map(|subject| subject.to_string());
        assert_eq!(texts, ["Service ns/web", "node", "data path"]);
    }
}
