//! A proxier of any mode, as tests of several modes use it.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::fmt::{self, Debug};
use std::time::Instant;

use kernlink_proxier::report::Counts;
use kernlink_proxier::retire::Retire;
use kernlink_proxier::{Backoff, DataPath, Proxier};
use kernlink_services::{Change, Event, SourceId};

/// What a sync did.
#[derive(Clone, Debug)]
pub(crate) struct Did {
    pub(crate) next: Option<Instant>,
    pub(crate) is_success: bool,
    pub(crate) is_partial: bool,
    pub(crate) is_idle: bool,
    pub(crate) counts: Counts,
    pub(crate) waiting: usize,
    pub(crate) draining: usize,
    pub(crate) events: Vec<Event>,
    /// The report, and the plan with what was removed of other modes.
    pub(crate) text: String,
    pub(crate) plan: String,
}

impl fmt::Display for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Did {
    pub(crate) fn is_success(&self) -> bool {
        self.is_success
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// The texts of the events.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.events.iter().map(|event| event.reason.to_string()).collect()
    }
}

pub(crate) trait AnyProxier: Debug + Send {
    fn sync(&mut self, now: Instant) -> Did;

    /// The events that a plan adds.
    fn planned_events(&mut self, now: Instant) -> Vec<Event>;

    /// The plan, and what is removed of other modes.
    fn plan(&mut self, now: Instant) -> String;

    fn change(&mut self, change: Change);

    fn resync(&mut self);

    fn set_backoff(&mut self, backoff: Backoff);
}

impl<M: DataPath> AnyProxier for Proxier<M> {
    fn sync(&mut self, now: Instant) -> Did {
        let synced = Proxier::sync(self, now).unwrap();
        let mut plan = synced.plan.to_string();
        for mode in &synced.handover.modes {
            plan += &mode.to_string();
        }
        Did {
            next: synced.next,
            is_success: synced.is_success(),
            is_partial: synced.is_partial,
            is_idle: synced.is_idle(),
            counts: synced.counts(),
            waiting: synced.waiting,
            draining: synced.draining,
            text: synced.to_string(),
            events: synced.events,
            plan,
        }
    }

    fn planned_events(&mut self, now: Instant) -> Vec<Event> {
        Proxier::plan(self, now).unwrap();
        self.pending_events().cloned().collect()
    }

    fn plan(&mut self, now: Instant) -> String {
        let mut text = Proxier::plan(self, now).unwrap().to_string();
        for mode in self.plan_handover(now) {
            text += &mode.to_string();
        }
        text
    }

    fn change(&mut self, change: Change) {
        Proxier::change(self, SourceId(0), change);
    }

    fn resync(&mut self) {
        Proxier::resync(self);
    }

    fn set_backoff(&mut self, backoff: Backoff) {
        Proxier::set_backoff(self, backoff);
    }
}

/// A proxier with retiring modes.
pub(crate) fn proxier<M: DataPath>(
    config: &M::Config,
    kernel: M::Kernel,
    retiring: Vec<Box<dyn Retire>>,
) -> Box<dyn AnyProxier> {
    let mut proxier = Proxier::<M>::new(config, kernel).unwrap();
    proxier.set_retiring(retiring);
    Box::new(proxier)
}
