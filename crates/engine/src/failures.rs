//! Failed operations as events: each cause once when it appears, and once when no operation fails for it any more.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::hash::Hash;

use foldhash::quality::RandomState;
use kernlink_base::ErrorChain;
use kernlink_services::escape::excerpt_of;
use kernlink_services::{Event, Reason};

use crate::data_path::{Class, DataPath, PlanOf, ReportOf, StepOf};
use crate::plan::{StepId, Subject};
use crate::report::Outcome;
use crate::solved::{OPERATION_FAILED, solved_event};

/// The objects whose operations fail, by cause. Each attempt that fails for the same cause is not reported again.
#[derive(Clone, Debug)]
pub(crate) struct FailureEvents<K> {
    causes: HashMap<K, Cause, RandomState>,
    reported: BTreeMap<Cause, Reported>,
}

/// What the object is, and the innermost error: many objects may fail because one module is missing.
type Cause = (Class, String);

#[derive(Clone, Debug)]
struct Reported {
    event: Event,
    /// The number of objects.
    count: usize,
}

/// New failures for one cause.
struct New<'a> {
    subject: &'a Subject,
    has_one_subject: bool,
    /// Whether all of them are of Services: a user of Services may be the cause, so that the event is not about the host.
    are_services: bool,
    text: String,
    consequence: Option<&'static str>,
    count: usize,
}

impl<K: Clone + Eq + Hash> FailureEvents<K> {
    pub(crate) fn new() -> Self {
        Self {
            causes: HashMap::default(),
            reported: BTreeMap::new(),
        }
    }

    /// The innermost error of the last attempt of an operation on a key that fails.
    pub(crate) fn reason(&self, key: &K) -> Option<&str> {
        self.causes.get(key).map(|(_, reason)| reason.as_str())
    }

    /// Records the outcomes of a plan. `has_failed` returns whether an operation on a key still fails. Returns the events.
    pub(crate) fn update<M: DataPath<Key = K>>(
        &mut self,
        plan: &PlanOf<M>,
        report: &ReportOf<M>,
        has_failed: impl Fn(&K) -> bool,
    ) -> Vec<Event> {
        if self.causes.is_empty() && report.is_success() {
            return Vec::new();
        }
        let mut new: BTreeMap<Cause, New<'_>> = BTreeMap::new();
        let steps = plan.steps().zip(report.outcomes());
        let failed: Vec<_> = steps
            .filter_map(|((id, step), outcome)| match outcome {
                // Otherwise a later step of the plan for the same object was done.
                Outcome::Failed(error) if has_failed(&step.key) => Some((id, step, error)),
                _ => None,
            })
            .collect();
        // Several steps for one object may fail for different causes.
        let last: HashMap<&K, StepId, RandomState> =
            failed.iter().map(|(id, step, _)| (&step.key, *id)).collect();
        for (id, step, error) in &failed {
            if last.get(&step.key) == Some(id) {
                self.add::<M>(step, error, &mut new);
            }
        }
        let mut solved = Vec::new();
        let reported = &mut self.reported;
        self.causes.retain(|key, cause| {
            let still_fails = has_failed(key);
            if !still_fails {
                solved.extend(remove(reported, cause));
            }
            still_fails
        });
        let mut events: Vec<Event> = solved.into_iter().map(solved_event).collect();
        for (cause, new) in new {
            let event = new.event();
            if let Some(reported) = self.reported.get_mut(&cause) {
                reported.event = event.clone();
            }
            events.push(event);
        }
        events
    }

    fn add<'a, M: DataPath<Key = K>>(
        &mut self,
        step: &'a StepOf<M>,
        error: &M::Error,
        new: &mut BTreeMap<Cause, New<'a>>,
    ) {
        let cause = (M::class(&step.key), root(error).to_string());
        let before = self.causes.get(&step.key);
        if before == Some(&cause) {
            return;
        }
        // It fails for another cause now; the previous one is not solved.
        if let Some(before) = self.causes.insert(step.key.clone(), cause.clone()) {
            remove(&mut self.reported, &before);
        }
        if let Some(reported) = self.reported.get_mut(&cause) {
            reported.count += 1;
        }
        if let Some(new) = new.get_mut(&cause) {
            new.count += 1;
            new.has_one_subject &= *new.subject == step.subject;
            new.are_services &= step.subject.service().is_some();
        } else if !self.reported.contains_key(&cause) {
            let reported = Reported {
                // Replaced when all of them were counted.
                event: Event::host(OPERATION_FAILED, String::new()),
                count: 1,
            };
            self.reported.insert(cause.clone(), reported);
            let first = New {
                subject: &step.subject,
                has_one_subject: true,
                are_services: step.subject.service().is_some(),
                text: text(&step.operation.to_string(), error),
                consequence: M::consequence(&step.key),
                count: 1,
            };
            new.insert(cause, first);
        }
    }
}

/// What failed and why, without the input of a command: the error names the part of it that was refused.
fn text(operation: &str, error: &(dyn Error + 'static)) -> String {
    let command = operation.lines().next().unwrap_or_default();
    let command = command.strip_suffix(" <<'EOF'").unwrap_or(command);
    let reason = ErrorChain(error).to_string();
    format!(
        "{} failed: {}",
        excerpt_of(command, MAX_TEXT),
        excerpt_of(&reason, MAX_TEXT)
    )
}

/// The longest command or error in an event, in bytes: tools may quote their input.
const MAX_TEXT: usize = 1_000;

impl New<'_> {
    fn event(self) -> Event {
        let mut text = self.text;
        if let Some(more) = self.count.checked_sub(1).filter(|more| *more > 0) {
            let operations = if more == 1 { "operation" } else { "operations" };
            let of_others = if self.are_services && !self.has_one_subject {
                ", also of other Services,"
            } else {
                ""
            };
            text.push_str(&format!(
                "; {more} more {operations}{of_others} failed for the same reason"
            ));
        }
        if let Some(consequence) = self.consequence {
            text.push_str("; ");
            text.push_str(consequence);
        }
        text.push_str("; it is tried again");
        match self.subject {
            Subject::Service(name) if self.are_services => Event::service(
                name.clone(),
                Reason::DataPath {
                    code: OPERATION_FAILED,
                    text,
                },
            ),
            _ => Event::host(OPERATION_FAILED, text),
        }
    }
}

/// Removes an object from a cause. Returns the event of the cause if it was the last one.
fn remove(reported: &mut BTreeMap<Cause, Reported>, cause: &Cause) -> Option<Event> {
    let of_cause = reported.get_mut(cause)?;
    of_cause.count -= 1;
    if of_cause.count > 0 {
        return None;
    }
    reported.remove(cause).map(|reported| reported.event)
}

/// The innermost error.
fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use kernlink_base::Backoff;
    use kernlink_services::event::Subject as EventSubject;
    use kernlink_services::{Change, Config, Kind, ObjectName, SourceId};

    use super::*;
    use crate::Proxier;
    use crate::plan::{Needs, PlanBuilder};
    use crate::report::Report;
    use crate::retry::Retries;
    use crate::scripted::{Refused, Script, Scripted};
    use crate::solved::SOLVED;

    /// The codes of the events about operations of a sync with two steps for one object, which have these outcomes.
    fn codes(outcomes: [Result<(), Refused>; 2]) -> Vec<&'static str> {
        let kernel = Script {
            steps: vec![(0, "flows", "first pass"), (1, "flows", "second pass")],
            outcomes: outcomes.map(|outcome| vec![outcome]).into(),
        };
        let mut proxier = Proxier::<Scripted>::new(&Config::new("node-a"), kernel).unwrap();
        for kind in [Kind::Service, Kind::EndpointSlice] {
            proxier.change(SourceId(0), Change::synced(kind));
        }
        let synced = proxier.sync(Instant::now()).unwrap();
        assert_eq!(synced.report.outcomes().count(), 2);
        let codes = synced.events.iter().filter_map(|event| match &event.reason {
            Reason::DataPath { code, .. } => Some(*code),
            _ => None,
        });
        codes
            .filter(|code| [OPERATION_FAILED, SOLVED].contains(code))
            .collect()
    }

    /// The events of a plan with these steps, which have these outcomes: the key, for which Service, or `node`, and the outcome. No operation was
    /// done since.
    fn update(
        failures: &mut FailureEvents<&'static str>,
        steps: &[(&'static str, &str, Outcome<Refused>)],
    ) -> Vec<Event> {
        let retries = Retries::new(Backoff::default());
        let mut builder = PlanBuilder::new(&retries);
        let mut report = Report::default();
        let mut failed = Vec::new();
        for (key, service, outcome) in steps {
            let subject = match *service {
                "node" => Subject::Node,
                service => Subject::Service(ObjectName::new("ns", service)),
            };
            builder.push(0, *key, subject, format!("add {key}"), Needs::none());
            report.push(outcome.clone());
            failed.extend(matches!(outcome, Outcome::Failed(_)).then_some(*key));
        }
        let plan = builder.finish().plan;
        failures.update::<Scripted>(&plan, &report, |key| failed.contains(key))
    }

    fn texts(events: &[Event]) -> Vec<String> {
        events.iter().map(|event| event.reason.to_string()).collect()
    }

    const REFUSED: Outcome<Refused> = Outcome::Failed(Refused::Refused);
    const MISSING: Outcome<Refused> = Outcome::Failed(Refused::OutcomeMissing);

    #[test]
    fn operations_that_fail_for_one_cause_have_one_event() {
        let mut failures = FailureEvents::new();
        let of_one = [
            ("a", "x", REFUSED),
            ("b", "x", REFUSED),
            ("c", "y", Outcome::Done),
        ];
        assert_eq!(
            texts(&update(&mut failures, &of_one)),
            ["add a failed: refused; 1 more operation failed for the same reason; it is tried again"]
        );
        let mut failures = FailureEvents::new();
        let of_two = [("a", "x", REFUSED), ("b", "y", REFUSED), ("c", "y", REFUSED)];
        assert_eq!(
            texts(&update(&mut failures, &of_two)),
            [
                "add a failed: refused; 2 more operations, also of other Services, failed for the same reason; it is tried \
                 again"
            ]
        );
        assert_eq!(texts(&update(&mut failures, &of_two)), Vec::<String>::new());
    }

    #[test]
    fn a_cause_is_solved_with_its_last_object() {
        let mut failures = FailureEvents::new();
        update(&mut failures, &[("a", "x", REFUSED), ("b", "x", REFUSED)]);
        let one = [("a", "x", Outcome::Done), ("b", "x", REFUSED)];
        assert_eq!(texts(&update(&mut failures, &one)), Vec::<String>::new());
        let solved = update(&mut failures, &[("b", "x", Outcome::Done)]);
        assert_eq!(solved.len(), 1);
    }

    #[test]
    fn an_event_is_about_a_service_if_only_services_have_the_failures() {
        let subject = |steps: &[_]| update(&mut FailureEvents::new(), steps)[0].subject.clone();
        let service = EventSubject::Object(Kind::Service, ObjectName::new("ns", "x"));
        assert_eq!(subject(&[("a", "x", REFUSED), ("b", "y", REFUSED)]), service);
        let others = ["x", "node"].map(|second| ("b", second, REFUSED));
        assert_eq!(
            subject(&[("a", "x", REFUSED), others[1].clone()]),
            EventSubject::Host
        );
        assert_eq!(
            subject(&[("a", "node", REFUSED), others[0].clone()]),
            EventSubject::Host
        );
    }

    #[test]
    fn the_reason_of_an_object_is_that_of_its_last_attempt() {
        let mut failures = FailureEvents::new();
        assert_eq!(failures.reason(&"a"), None);
        update(&mut failures, &[("a", "x", REFUSED)]);
        assert_eq!(failures.reason(&"a"), Some("refused"));
        assert_eq!(failures.reason(&"b"), None);
        update(&mut failures, &[("a", "x", MISSING)]);
        assert_eq!(failures.reason(&"a"), Some("there is no outcome"));
        update(&mut failures, &[("a", "x", Outcome::Done)]);
        assert_eq!(failures.reason(&"a"), None);
    }

    #[test]
    fn an_object_whose_steps_fail_for_different_causes_has_one_event_and_is_solved_once() {
        let mut failures = FailureEvents::new();
        let both = [("a", "x", REFUSED), ("a", "x", MISSING)];
        assert_eq!(
            texts(&update(&mut failures, &both)),
            ["add a failed: there is no outcome; it is tried again"]
        );
        assert_eq!(texts(&update(&mut failures, &both)), Vec::<String>::new());
        assert_eq!(
            texts(&update(&mut failures, &[("a", "x", Outcome::Done)])),
            ["solved, or no longer needed: add a failed: there is no outcome; it is tried again"]
        );
    }

    #[test]
    fn an_object_whose_last_step_was_done_has_no_event() {
        let failed = || Err(Refused::Refused);
        assert_eq!(codes([failed(), Ok(())]), Vec::<&str>::new());
        assert_eq!(codes([Ok(()), failed()]), [OPERATION_FAILED]);
        assert_eq!(codes([failed(), failed()]), [OPERATION_FAILED]);
    }
}
