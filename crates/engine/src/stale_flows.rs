//! The UDP frontends whose flows a plan makes stale, for any data path.
//!
//! Connection tracking leads all datagrams of a flow to where it led the first one. After a change, a flow to a removed endpoint, or one that
//! began before there was any, has to be deleted: one step of a plan does it for a family, after at least one of the changes was done.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::net::SocketAddr;

use crate::plan::{Need, Needs, PlanBuilder, Subject};

/// The UDP frontends of one family whose flows are to be compared, because of the steps of a plan or of what was left by earlier ones.
///
/// A data path supplies the frontends that each of its steps changes, those that are stale already, and at last the operation, with the valid
/// sources of replies.
#[derive(Clone, Debug)]
pub struct StaleFlows<K> {
    destinations: BTreeSet<SocketAddr>,
    /// The steps of which at least one must be done.
    needs: Vec<Need<K>>,
    subjects: BTreeSet<Subject>,
    /// Whether some are stale regardless of the steps of the plan.
    is_unconditional: bool,
    /// Whether some are not of one of the subjects.
    has_others: bool,
}

impl<K> Default for StaleFlows<K> {
    fn default() -> Self {
        Self {
            destinations: BTreeSet::new(),
            needs: Vec::new(),
            subjects: BTreeSet::new(),
            is_unconditional: false,
            has_others: false,
        }
    }
}

impl<K: Clone + Hash + Ord> StaleFlows<K> {
    /// A step that makes the flows to these frontends stale. `subject` is what the step is for; `None` if it is for the data path as a whole.
    pub fn change(
        &mut self,
        destinations: impl IntoIterator<Item = SocketAddr>,
        subject: Option<&Subject>,
        step: Need<K>,
    ) {
        let mut destinations = destinations.into_iter().peekable();
        if destinations.peek().is_none() {
            return;
        }
        self.destinations.extend(destinations);
        self.subjects.extend(subject.cloned());
        self.needs.push(step);
    }

    /// An earlier process made the flows to these frontends stale and may have ended before it deleted them. `subject` is what the step is for
    /// that removes the last trace of them.
    pub fn left_over(&mut self, destinations: impl IntoIterator<Item = SocketAddr>, subject: &Subject) {
        let mut destinations = destinations.into_iter().peekable();
        if destinations.peek().is_some() {
            self.destinations.extend(destinations);
            self.is_unconditional = true;
            self.subjects.insert(subject.clone());
        }
    }

    /// Frontends whose flows became stale before this plan.
    pub fn stale(&mut self, destinations: &BTreeSet<SocketAddr>) {
        if !destinations.is_empty() {
            self.destinations.extend(destinations);
            self.is_unconditional = true;
            self.has_others = true;
        }
    }

    /// Adds all of another list, for the same reasons.
    pub fn add(&mut self, other: &Self) {
        self.destinations.extend(&other.destinations);
        self.needs.extend(other.needs.iter().cloned());
        self.subjects.extend(other.subjects.iter().cloned());
        self.is_unconditional |= other.is_unconditional;
        self.has_others |= other.has_others;
    }

    /// Whether there is nothing to compare.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.destinations.is_empty()
    }

    /// Adds the step, if there is anything to compare. `operation` makes the pass over these frontends.
    pub fn push<O: PartialEq, P: Copy + Ord>(
        self,
        builder: &mut PlanBuilder<'_, K, O, P>,
        phase: P,
        key: K,
        operation: impl FnOnce(BTreeSet<SocketAddr>) -> O,
    ) {
        if self.is_empty() {
            return;
        }
        let needs = if self.is_unconditional {
            Needs::none()
        } else {
            Needs::none().and_any(self.needs)
        };
        let mut subjects = self.subjects.into_iter();
        let subject = match (subjects.next(), subjects.next()) {
            (Some(subject), None) if !self.has_others => subject,
            _ => Subject::DataPath,
        };
        builder.push(phase, key, subject, operation(self.destinations), needs);
    }
}

#[cfg(test)]
mod tests {
    use kernlink_services::ObjectName;

    use super::*;
    use crate::plan::{Step, StepId};
    use crate::retry::Retries;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn service(name: &str) -> Subject {
        Subject::Service(ObjectName::new("ns", name))
    }

    /// The step that is added after two steps for Services `a` and `b`.
    fn step(
        flows: impl FnOnce(&mut StaleFlows<&'static str>, [Need<&'static str>; 2]),
    ) -> Option<Step<&'static str, String>> {
        let retries: Retries<&'static str, String> = Retries::new(kernlink_base::Backoff::default());
        let mut builder: PlanBuilder<'_, &'static str, String, u8> = PlanBuilder::new(&retries);
        let writes = ["a", "b"].map(|name| builder.push(0, name, service(name), "write", Needs::none()));
        let mut stale = StaleFlows::default();
        flows(&mut stale, writes);
        stale.push(&mut builder, 1, "flows", |destinations| {
            format!("{destinations:?}")
        });
        let plan = builder.finish().plan;
        let phase = plan.phases().get(1)?;
        phase.steps.first().cloned()
    }

    #[test]
    fn without_a_change_there_is_no_step() {
        assert_eq!(step(|_, _| {}), None);
        assert_eq!(
            step(|flows, [a, _]| flows.change([], Some(&service("a")), a)),
            None
        );
        assert_eq!(step(|flows, _| flows.left_over([], &service("a"))), None);
        assert_eq!(step(|flows, _| flows.stale(&BTreeSet::new())), None);
    }

    #[test]
    fn one_of_the_changes_must_be_done() {
        let (x, y) = (address("10.96.0.1:53"), address("10.96.0.2:53"));
        let one = step(|flows, [a, _]| flows.change([x], Some(&service("a")), a)).unwrap();
        assert_eq!(one.operation, "{10.96.0.1:53}");
        assert_eq!(
            (one.subject, one.needs_any),
            (service("a"), [StepId::at(0)].into())
        );
        let both = step(|flows, [a, b]| {
            flows.change([x], Some(&service("a")), a);
            flows.change([y, x], Some(&service("b")), b);
        });
        let both = both.unwrap();
        assert_eq!(both.operation, "{10.96.0.1:53, 10.96.0.2:53}");
        assert_eq!(both.subject, Subject::DataPath);
        assert_eq!(
            (both.needs, both.needs_any),
            ([].into(), [StepId::at(0), StepId::at(1)].into())
        );
    }

    #[test]
    fn what_is_stale_already_waits_for_no_change() {
        let (x, y) = (address("10.96.0.1:53"), address("10.96.0.2:53"));
        let before = step(|flows, [a, _]| {
            flows.change([x], Some(&service("a")), a);
            flows.stale(&[y].into());
        });
        let before = before.unwrap();
        assert_eq!((before.subject, before.needs_any), (Subject::DataPath, [].into()));
        let left = step(|flows, [a, _]| {
            flows.change([x], Some(&service("a")), a);
            flows.left_over([x], &service("a"));
        });
        let left = left.unwrap();
        assert_eq!((left.subject, left.needs_any), (service("a"), [].into()));
    }
}
