//! A retiring mode in a hand-over: what is known of it, and when its next round is due.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;
use kernlink_base::Backoff;
use kernlink_services::{Event, FrontendKey, ObjectName};

use super::{NO_LONGER_SERVED, RETIRING_MODE};
use crate::retire::{Interim, Kept, Retire, Retired, RetiredOutcome, RetiredStep, Unserved, names};
use crate::solved::{OPERATION_FAILED, solved_event};
use crate::unreadable::LEFTOVERS_UNREADABLE;

/// How often it is compared whether the serving mode serves what is held.
pub(super) const HELD_INTERVAL: Duration = Duration::from_secs(5);
/// When what could not be read is read again.
pub(super) const READ_INTERVAL: Duration = Duration::from_secs(60);

/// A retiring mode.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) mode: Box<dyn Retire>,
    pub(super) presence: Presence,
    /// Whether the Services were not passed to the mode since it was found.
    pub(super) is_new: bool,
    /// The unserved frontends that it still serves.
    pub(super) held: BTreeSet<FrontendKey>,
    /// Whether frontends that the serving mode cannot serve are not held any more.
    pub(super) is_released: bool,
    pub(super) interim: Vec<Interim>,
    pub(super) draining: usize,
    /// When the next round is due. `None`: nothing is left, or nothing changes before a listing.
    pub(super) next: Option<Instant>,
    /// The number of rounds in a row in which a step failed.
    pub(super) failures: u32,
    /// The number of operations that failed and are tried again.
    pub(super) waiting: usize,
    /// The failures that were reported.
    pub(super) reported: BTreeMap<String, Event>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Not read yet.
    Unread,
    /// Nothing is left.
    Absent,
    /// Something is left.
    Present,
    /// It could not be read, and why.
    Unknown {
        /// Whether something was left before.
        was_present: bool,
        problem: String,
    },
}

impl Member {
    pub(super) fn new(mode: Box<dyn Retire>) -> Self {
        Self {
            mode,
            presence: Presence::Unread,
            is_new: true,
            held: BTreeSet::new(),
            is_released: false,
            interim: Vec::new(),
            draining: 0,
            next: None,
            failures: 0,
            waiting: 0,
            reported: BTreeMap::new(),
        }
    }

    pub(super) fn is_present(&self) -> bool {
        match &self.presence {
            Presence::Present => true,
            Presence::Unknown { was_present, .. } => *was_present,
            Presence::Unread | Presence::Absent => false,
        }
    }

    /// Whether anything is left, or may be.
    pub(super) fn may_be_present(&self) -> bool {
        matches!(self.presence, Presence::Present | Presence::Unknown { .. })
    }

    pub(super) fn read(&mut self, now: Instant, kept: Kept<'_>) {
        let was_present = self.is_present();
        match self.mode.read(now, kept) {
            Ok(true) => {
                self.presence = Presence::Present;
                self.next = Some(now);
            }
            Ok(false) => self.forget(),
            Err(problem) => {
                self.presence = Presence::Unknown { was_present, problem };
                self.next = Some(now + READ_INTERVAL);
            }
        }
        self.interim = self.interim_rules();
    }

    pub(super) fn interim_rules(&self) -> Vec<Interim> {
        if self.is_present() {
            self.mode.interim()
        } else {
            Vec::new()
        }
    }

    /// Nothing is left.
    pub(super) fn forget(&mut self) {
        self.presence = Presence::Absent;
        self.is_new = true;
        self.held.clear();
        self.is_released = false;
        self.interim.clear();
        self.draining = 0;
        self.next = None;
        self.failures = 0;
        self.waiting = 0;
    }

    /// The event as long as anything is left, or may be.
    pub(super) fn event(
        &self,
        service_of: impl Fn(&FrontendKey) -> Option<Arc<ObjectName>>,
    ) -> Option<Event> {
        let mode = self.mode.mode();
        match &self.presence {
            Presence::Unread | Presence::Absent => None,
            Presence::Present => {
                let services: BTreeSet<Arc<ObjectName>> = self.held.iter().filter_map(service_of).collect();
                let held = names(&services.iter().map(AsRef::as_ref).collect());
                let held =
                    held.map(|held| format!("; {mode} still serves {held}, which cannot be programmed yet"));
                let text = format!(
                    "{mode} served this node before; what it left is removed as soon as nothing needs it{}",
                    held.unwrap_or_default()
                );
                Some(Event::host(RETIRING_MODE, text))
            }
            Presence::Unknown { was_present, problem } => {
                let text = if *was_present {
                    format!("{mode} served this node before; what it left cannot be read: {problem}")
                } else {
                    format!("what {mode} may have left cannot be read: {problem}")
                };
                Some(Event::host(LEFTOVERS_UNREADABLE, text))
            }
        }
    }

    /// Nothing is held from now on that the serving mode cannot serve: it serves all others, and `unserved` are the ones that it cannot.
    /// Returns an event if any is held.
    pub(super) fn release(&mut self, unserved: &BTreeMap<FrontendKey, Unserved>) -> Option<Event> {
        if self.is_released {
            return None;
        }
        let held = self.held.iter().filter_map(|frontend| unserved.get(frontend));
        let services = names(&held.map(|unserved| &unserved.service).collect())?;
        self.is_released = true;
        let mode = self.mode.mode();
        let text = format!(
            "{services}: the configured mode cannot serve some of their addresses and ports, which {mode} served; what it left for them is removed"
        );
        Some(Event::host(NO_LONGER_SERVED, text))
    }

    /// Records what a round did.
    pub(super) fn record(
        &mut self,
        retired: &Retired,
        now: Instant,
        backoff: &Backoff,
        random: &RandomState,
    ) -> Vec<Event> {
        self.held.clone_from(&retired.held);
        self.draining = retired.draining;
        let is_failed = |step: &&RetiredStep| matches!(step.outcome, RetiredOutcome::Failed(_));
        self.waiting = retired
            .steps
            .iter()
            .filter(is_failed)
            .count()
            .max(retired.waiting);
        let has_failed = retired.steps.iter().any(|step| is_failed(&step));
        let has_done = retired
            .steps
            .iter()
            .any(|step| step.outcome == RetiredOutcome::Done);
        self.failures = if has_failed {
            self.failures.saturating_add(1)
        } else {
            0
        };
        let events = self.failure_events(retired);
        if let Some(problem) = retired.problems.first() {
            let was_present = self.is_present();
            let problem = problem.clone();
            self.presence = Presence::Unknown { was_present, problem };
        } else if retired.is_gone && retired.held.is_empty() {
            self.forget();
            return events;
        } else {
            self.presence = Presence::Present;
        }
        let mut next = vec![retired.next];
        if has_done && !has_failed {
            next.push(Some(now));
        }
        if has_failed && retired.next.is_none() {
            let delay = backoff.delay(self.failures, random.hash_one((self.mode.mode(), self.failures)));
            next.push(now.checked_add(delay));
        }
        if !self.held.is_empty() {
            next.push(Some(now + HELD_INTERVAL));
        }
        if !retired.problems.is_empty() {
            next.push(Some(now + READ_INTERVAL));
        }
        self.next = next.into_iter().flatten().min();
        self.interim = self.interim_rules();
        events
    }

    /// An event for each new failure, and for each that is solved.
    pub(super) fn failure_events(&mut self, retired: &Retired) -> Vec<Event> {
        let mut failing = BTreeMap::new();
        let mut events = Vec::new();
        for step in &retired.steps {
            let RetiredOutcome::Failed(error) = &step.outcome else {
                continue;
            };
            if let Some(event) = self.reported.remove(error) {
                failing.insert(error.clone(), event);
            } else if !failing.contains_key(error) {
                let mode = self.mode.mode();
                let text = format!(
                    "what {mode} left cannot be removed, which is tried again: {}: {error}",
                    step.summary()
                );
                let event = Event::host(OPERATION_FAILED, text);
                events.push(event.clone());
                failing.insert(error.clone(), event);
            }
        }
        let others = std::mem::replace(&mut self.reported, failing);
        if retired.waiting > 0 {
            // They are among those that wait.
            self.reported.extend(others);
        } else {
            events.extend(others.into_values().map(solved_event));
        }
        events
    }
}
