//! The hand-over: what modes left that do not serve the node any more is removed, while one mode serves it.
//!
//! [`Proxier`](crate::Proxier) has one `Handover`, with a [`Retire`] for each mode that may have served the node before. A hand-over is no
//! data path: each retiring mode has its own state, kernel APIs and retries, and what it did is in [`Synced::handover`](crate::Synced), apart
//! from the plan and the report of the serving mode. No mode depends on another one. What they have in common passes through here as plain values:
//!
//! | who | what | for whom |
//! | --- | --- | --- |
//! | serving mode | [`DataPath::serves`](crate::DataPath::serves): whether it serves a frontend | which frontends a retiring mode still serves |
//! | serving mode | [`DataPath::is_servable`](crate::DataPath::is_servable): whether it will ever serve one | what a retiring mode does not wait for |
//! | serving mode | [`DataPath::keeps`](crate::DataPath::keeps): the names that it has too | what a retiring mode does not remove |
//! | retiring mode | [`Retire::has`]: the names that it may have | what other retiring modes do not remove meanwhile |
//! | retiring mode | [`Retire::interim`]: rules that a chain needs meanwhile | the serving mode, if it writes this chain ([`DataPath::set_interim`](crate::DataPath::set_interim)) |
//! | retiring mode | [`Retire::has_virtual_ips`]: whether addresses of Services may be addresses of the node | the serving mode, which should serve no node ports at them ([`DataPath::set_virtual_ips`](crate::DataPath::set_virtual_ips)) |
//!
//! # A sync
//!
//! 1. In a listing each retiring mode reads what is left. As long as there is anything, or it cannot be read, no
//!    [first Services](crate::DataPath::first_services) are programmed before all others: a plan for a part of the Services would not know
//!    what serves the rest.
//! 2. The Services are compiled, for retiring modes too. Before the plan of the serving mode is made, it receives the interim rules and the
//!    families with virtual IPs.
//! 3. The plan of the serving mode is executed, regardless of what is left.
//! 4. Each retiring mode of which a round is due removes what nothing needs any more ([`Retire::retire`]). Only what is in the tables of the
//!    serving mode at this time matters: not which steps the plan had, nor whether other steps failed. So an operation that keeps failing, on
//!    another Service or a sysctl, does not hold anything back. There is one point in a sync for it, after the serving mode: a retiring
//!    mode removes its own rules from a chain of the serving mode, and the chains to which they lead, in one transaction. So there is nothing
//!    that it would have to remove before the serving mode writes.
//!
//!    A frontend that the serving mode can never serve, such as one of SCTP in userspace mode, stays as it is until all others are served. Then
//!    what a retiring mode has for it is removed too, and an event names the Service: otherwise leftovers would stay for ever.
//! 5. If the interim rules or these families are others now, the next sync is due at once, so that the serving mode writes its chains without
//!    them.
//!
//! # When a round is due
//!
//! After a listing; at once after a round with steps; when a frontend changed that the mode holds; every 5 seconds while it holds any; after a
//! minute if something could not be read; after a delay that doubles if a step failed; and at [`Retired::next`](crate::retire::Retired::next).
//! A mode that no listing could read is only read then: what it left is removed after the next sync, which is due at once, passed the Services to it.
//!
//! # Adding a mode
//!
//! A mode implements [`Retire`] in its own crate, and the embedder adds it to the list of [`Proxier::set_retiring`](crate::Proxier::set_retiring)
//! for every other mode. It is not known to any other mode. Without a serving mode, [`remove_all`](crate::retire::remove_all) removes everything.

mod handed;
mod member;
mod steps;

#[cfg(test)]
mod tests;

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use foldhash::quality::RandomState;
use kernlink_base::Backoff;
use kernlink_services::{Changes, Event, Family, FrontendKey, ObjectName, Services};

pub use self::handed::{Handed, RetiredMode};
use self::member::{Member, Presence};
pub use self::steps::Steps;
use crate::retire::{Interim, Kept, Name, Retire, Round, Unserved};

/// The code of the event that another mode served the node before, and what it left is not removed yet.
pub const RETIRING_MODE: &str = "RetiringMode";

/// The code of the event that what another mode left for Services is removed, although the serving mode cannot serve them.
pub const NO_LONGER_SERVED: &str = "NoLongerServed";

/// The modes that do not serve the node any more.
#[derive(Debug)]
pub(crate) struct Handover {
    members: Vec<Member>,
    /// The desired frontends, if anything is left.
    desired: HashMap<FrontendKey, Unserved, RandomState>,
    /// Whether the desired frontends are complete.
    is_compiled: bool,
    backoff: Backoff,
    random: RandomState,
    /// Events that no sync has returned.
    events: Vec<Event>,
    now: Option<Instant>,
}

impl Handover {
    pub(crate) fn new(modes: Vec<Box<dyn Retire>>) -> Self {
        Self {
            members: modes.into_iter().map(Member::new).collect(),
            desired: HashMap::default(),
            is_compiled: false,
            backoff: Backoff::default(),
            random: RandomState::default(),
            events: Vec::new(),
            now: None,
        }
    }

    pub(crate) fn set_backoff(&mut self, backoff: Backoff) {
        self.backoff = backoff;
    }

    pub(crate) fn set_time(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// Reads what is left, in a listing. `keeps`: the names of the serving mode. Returns an event for each mode of which anything is left.
    pub(crate) fn observe(&mut self, now: Instant, keeps: Kept<'_>) -> Vec<Event> {
        for index in 0..self.members.len() {
            self.with_kept(index, keeps, |member, kept| {
                if member.presence != Presence::Absent || member.mode.is_read_again() {
                    member.read(now, kept);
                }
            });
        }
        let desired = &self.desired;
        let service_of = |frontend: &FrontendKey| Some(Arc::new(desired.get(frontend)?.service.clone()));
        self.members
            .iter()
            .filter_map(|member| member.event(service_of))
            .collect()
    }

    /// Calls `then` with a member and what stays: what the serving mode has, and what others have of which something is left.
    fn with_kept<T>(
        &mut self,
        index: usize,
        keeps: Kept<'_>,
        then: impl FnOnce(&mut Member, Kept<'_>) -> T,
    ) -> Option<T> {
        let (before, rest) = self.members.split_at_mut_checked(index)?;
        let (member, after) = rest.split_first_mut()?;
        let others: Vec<&Member> = before
            .iter()
            .chain(after.iter())
            .filter(|other| other.is_present())
            .collect();
        let kept = |name: &Name<'_>| keeps(name) || others.iter().any(|other| other.mode.has(name));
        Some(then(member, &kept))
    }

    /// Whether anything is left, or may be.
    pub(crate) fn may_have_leftovers(&self) -> bool {
        self.members.iter().any(Member::may_be_present)
    }

    /// Brings the desired frontends up to date. Call it after the listing.
    pub(crate) fn compile(&mut self, services: &Services, changes: &Changes) {
        if !self.may_have_leftovers() {
            if self.is_compiled {
                self.desired = HashMap::default();
                self.is_compiled = false;
            }
            return;
        }
        let everything = LazyCell::new(|| services.everything());
        let of_frontends: &Changes = if self.is_compiled { changes } else { &everything };
        self.add_frontends(services, of_frontends);
        self.is_compiled = true;
        let now = self.now;
        for member in self.members.iter_mut().filter(|member| member.is_present()) {
            let of_mode: &Changes = if member.is_new { &everything } else { changes };
            member.is_new = false;
            member.mode.compile(services, of_mode);
            if changes
                .frontends
                .iter()
                .any(|frontend| member.held.contains(frontend))
            {
                member.next = now;
            }
        }
    }

    fn add_frontends(&mut self, services: &Services, changes: &Changes) {
        for key in &changes.frontends {
            match services.frontend(key) {
                Some(owned) => {
                    let mut ranges = owned.frontends().map(|frontend| &frontend.source_ranges);
                    let restricted = ranges.find(|ranges| !ranges.is_empty());
                    let unserved = Unserved {
                        service: owned.owner.key.name.service.clone(),
                        source_ranges: restricted.cloned().unwrap_or_default(),
                    };
                    self.desired.insert(*key, unserved);
                }
                None => _ = self.desired.remove(key),
            }
        }
    }

    /// The rules that chains of the serving mode need meanwhile.
    pub(crate) fn interim(&self) -> Vec<Interim> {
        self.members
            .iter()
            .flat_map(|member| member.interim.iter().cloned())
            .collect()
    }

    /// The families in which addresses of Services are addresses of the node meanwhile, or may be.
    pub(crate) fn virtual_ips(&self) -> BTreeSet<Family> {
        let members = self.members.iter().filter(|member| member.may_be_present());
        let has_any = |family: &Family| members.clone().any(|member| member.mode.has_virtual_ips(*family));
        Family::ALL.into_iter().filter(has_any).collect()
    }

    /// Executes the rounds that are due, after the serving mode executed a plan.
    pub(crate) fn retire(
        &mut self,
        now: Instant,
        keeps: Kept<'_>,
        is_served: impl Fn(&FrontendKey, &ObjectName) -> bool,
        is_servable: impl Fn(&FrontendKey) -> bool,
    ) -> Handed {
        let mut handed = Handed::default();
        let is_due = |member: &Member| member.next.is_some_and(|next| next <= now);
        if self.members.iter().any(is_due) {
            let unserved = self.unserved(is_served);
            let has_served = unserved.len() < self.desired.len();
            let mut waiting = unserved.clone();
            waiting.retain(|frontend, _| is_servable(frontend));
            for index in 0..self.members.len() {
                if let Some(member) = self.members.get_mut(index).filter(|member| is_due(member)) {
                    if waiting.is_empty() {
                        self.events.extend(member.release(&unserved));
                    }
                    let unserved = if member.is_released { &waiting } else { &unserved };
                    let (steps, events) = self.round(index, now, keeps, unserved, has_served);
                    self.events.extend(events);
                    handed.modes.extend(steps);
                }
            }
        }
        handed.draining = self.members.iter().map(|member| member.draining).sum();
        handed.waiting = self.members.iter().map(|member| member.waiting).sum();
        handed.next = self.members.iter().filter_map(|member| member.next).min();
        handed.events = std::mem::take(&mut self.events);
        handed
    }

    /// One round of a mode.
    fn round(
        &mut self,
        index: usize,
        now: Instant,
        keeps: Kept<'_>,
        unserved: &BTreeMap<FrontendKey, Unserved>,
        has_served: bool,
    ) -> (Option<RetiredMode>, Vec<Event>) {
        let (backoff, random) = (self.backoff, self.random.clone());
        let done = self.with_kept(index, keeps, |member, kept| {
            if !member.is_present() {
                // It could not be read before. What is found now is removed after the next sync, which is due at once, passed the Services to it:
                // it does not know before which frontends it serves.
                member.read(now, kept);
                return (None, Vec::new());
            }
            let retired = member.mode.retire(&Round {
                now,
                has_serving_mode: true,
                unserved,
                has_served,
                kept,
                executes: true,
            });
            let events = member.record(&retired, now, &backoff, &random);
            let steps = RetiredMode {
                mode: member.mode.mode(),
                steps: retired.steps,
            };
            (Some(steps).filter(|mode| !mode.steps.is_empty()), events)
        });
        done.unwrap_or_default()
    }

    fn unserved(
        &self,
        is_served: impl Fn(&FrontendKey, &ObjectName) -> bool,
    ) -> BTreeMap<FrontendKey, Unserved> {
        let desired = self.desired.iter();
        let unserved = desired.filter(|(frontend, unserved)| !is_served(frontend, &unserved.service));
        unserved
            .map(|(frontend, unserved)| (*frontend, unserved.clone()))
            .collect()
    }

    /// The steps that are due as soon as all frontends are served. Changes nothing.
    pub(crate) fn planned(&mut self, now: Instant, keeps: Kept<'_>) -> Vec<RetiredMode> {
        let unserved = BTreeMap::new();
        let mut planned = Vec::new();
        for index in 0..self.members.len() {
            let of_mode = self.with_kept(index, keeps, |member, kept| {
                if !member.is_present() {
                    return None;
                }
                let retired = member.mode.retire(&Round {
                    now,
                    has_serving_mode: true,
                    unserved: &unserved,
                    has_served: true,
                    kept,
                    executes: false,
                });
                let mode = member.mode.mode();
                Some(RetiredMode {
                    mode,
                    steps: retired.steps,
                })
            });
            planned.extend(of_mode.flatten().filter(|mode| !mode.steps.is_empty()));
        }
        planned
    }
}
