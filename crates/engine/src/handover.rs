//! The hand-over: what modes left that do not serve the node any more is removed, while one mode serves it.
//!
//! [`Proxier`](crate::Proxier) has one `Handover`, with a [`Retire`] for each mode that may have served the node before. A hand-over is no
//! data path: each retiring mode has its own state, kernel APIs and retries, and what it did is in [`Synced::handover`](crate::Synced), apart
//! from the plan and the report of the serving mode. No mode depends on another one. What they have in common passes through here as plain values:
//!
//! | who | what | for whom |
//! | --- | --- | --- |
//! | serving mode | [`DataPath::serves`](crate::DataPath::serves): whether it serves a frontend | which frontends a retiring mode still serves |
//! | serving mode | [`DataPath::keeps`](crate::DataPath::keeps): the names that it has too | what a retiring mode does not remove |
//! | retiring mode | [`Retire::has`]: the names that it may have | what other retiring modes do not remove meanwhile |
//! | retiring mode | [`Retire::interim`]: rules that a chain needs meanwhile | the serving mode, if it writes this chain ([`DataPath::set_interim`](crate::DataPath::set_interim)) |
//!
//! # A sync
//!
//! 1. In a listing each retiring mode reads what is left. As long as there is anything, or it cannot be read, no
//!    [first Services](crate::DataPath::first_services) are programmed before all others: a plan for a part of the Services would not know
//!    what serves the rest.
//! 2. The Services are compiled, for retiring modes too. Before the plan of the serving mode is made, it receives the interim rules.
//! 3. The plan of the serving mode is executed, regardless of what is left.
//! 4. Each retiring mode of which a round is due removes what nothing needs any more ([`Retire::retire`]). Only what is in the tables of the
//!    serving mode at this time matters: not which steps the plan had, nor whether other steps failed. So an operation that keeps failing, on
//!    another Service or a sysctl, does not hold anything back. There is one point in a sync for it, after the serving mode: a retiring
//!    mode removes its own rules from a chain of the serving mode, and the chains to which they lead, in one transaction. So there is nothing
//!    that it would have to remove before the serving mode writes.
//! 5. If the interim rules are others now, the next sync is due at once, so that the serving mode writes its chains without them.
//!
//! # When a round is due
//!
//! After a listing; at once after a round with steps; when a frontend changed that the mode holds; every 5 seconds while it holds any; after a
//! minute if something could not be read; after a delay that doubles if a step failed; and at [`Retired::next`].
//!
//! # Adding a mode
//!
//! A mode implements [`Retire`] in its own crate, and the embedder adds it to the list of [`Proxier::set_retiring`](crate::Proxier::set_retiring)
//! for every other mode. It is not known to any other mode. Without a serving mode, [`remove_all`](crate::retire::remove_all) removes everything.

mod steps;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;
use kernlink_base::Backoff;
use kernlink_services::{Changes, Event, FrontendKey, ObjectName, Services};

use crate::report::Counts;
use crate::retire::{
    Interim, Kept, Name, Retire, Retired, RetiredOutcome, RetiredStep, Round, Unserved, names,
};
use crate::solved::{OPERATION_FAILED, solved_event};
use crate::unreadable::LEFTOVERS_UNREADABLE;

pub use self::steps::Steps;

/// The code of the event that another mode served the node before, and what it left is not removed yet.
pub const RETIRING_MODE: &str = "RetiringMode";

/// How often it is compared whether the serving mode serves what is held.
const HELD_INTERVAL: Duration = Duration::from_secs(5);
/// When what could not be read is read again.
const READ_INTERVAL: Duration = Duration::from_secs(60);

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

/// A retiring mode.
#[derive(Debug)]
struct Member {
    mode: Box<dyn Retire>,
    presence: Presence,
    /// Whether the Services were not passed to the mode since it was found.
    is_new: bool,
    /// The unserved frontends that it still serves.
    held: BTreeSet<FrontendKey>,
    interim: Vec<Interim>,
    draining: usize,
    /// When the next round is due.
    next: Option<Instant>,
    /// The number of rounds in a row in which a step failed.
    failures: u32,
    /// The number of operations that failed and are tried again.
    waiting: usize,
    /// The failures that were reported.
    reported: BTreeMap<String, Event>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Presence {
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
    fn new(mode: Box<dyn Retire>) -> Self {
        Self {
            mode,
            presence: Presence::Unread,
            is_new: true,
            held: BTreeSet::new(),
            interim: Vec::new(),
            draining: 0,
            next: None,
            failures: 0,
            waiting: 0,
            reported: BTreeMap::new(),
        }
    }

    fn is_present(&self) -> bool {
        match &self.presence {
            Presence::Present => true,
            Presence::Unknown { was_present, .. } => *was_present,
            Presence::Unread | Presence::Absent => false,
        }
    }

    /// Whether anything is left, or may be.
    fn may_be_present(&self) -> bool {
        matches!(self.presence, Presence::Present | Presence::Unknown { .. })
    }

    fn read(&mut self, now: Instant, kept: Kept<'_>) {
        let was_present = self.is_present();
        match self.mode.read(now, kept) {
            Ok(true) => {
                self.is_new |= !was_present;
                self.presence = Presence::Present;
                self.next = Some(now);
            }
            Ok(false) => self.forget(),
            Err(problem) => {
                self.is_new |= !was_present;
                self.presence = Presence::Unknown { was_present, problem };
                self.next = Some(now + READ_INTERVAL);
            }
        }
        self.interim = self.interim_rules();
    }

    fn interim_rules(&self) -> Vec<Interim> {
        if self.is_present() {
            self.mode.interim()
        } else {
            Vec::new()
        }
    }

    /// Nothing is left.
    fn forget(&mut self) {
        self.presence = Presence::Absent;
        self.is_new = true;
        self.held.clear();
        self.interim.clear();
        self.draining = 0;
        self.next = None;
        self.failures = 0;
        self.waiting = 0;
    }

    /// The event as long as anything is left, or may be.
    fn event(&self, service_of: impl Fn(&FrontendKey) -> Option<Arc<ObjectName>>) -> Option<Event> {
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

    /// Records what a round did.
    fn record(
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
    fn failure_events(&mut self, retired: &Retired) -> Vec<Event> {
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
        let is_new = self
            .members
            .iter()
            .any(|member| member.is_new && member.may_be_present());
        let everything = (is_new || !self.is_compiled).then(|| services.everything());
        if let Some(everything) = everything.as_ref().filter(|_| !self.is_compiled) {
            self.add_frontends(services, everything);
        } else {
            self.add_frontends(services, changes);
        }
        self.is_compiled = true;
        let now = self.now;
        for member in self.members.iter_mut().filter(|member| member.may_be_present()) {
            let of_mode = everything.as_ref().filter(|_| member.is_new).unwrap_or(changes);
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

    /// Executes the rounds that are due, after the serving mode executed a plan.
    pub(crate) fn retire(
        &mut self,
        now: Instant,
        keeps: Kept<'_>,
        is_served: impl Fn(&FrontendKey, &ObjectName) -> bool,
    ) -> Handed {
        let mut handed = Handed::default();
        let is_due = |member: &Member| member.may_be_present() && member.next.is_some_and(|next| next <= now);
        if self.members.iter().any(is_due) {
            let unserved = self.unserved(is_served);
            let has_served = unserved.len() < self.desired.len();
            for index in 0..self.members.len() {
                if self.members.get(index).is_some_and(is_due) {
                    let (steps, events) = self.round(index, now, keeps, &unserved, has_served);
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
            // It could not be read before.
            if !member.is_present() {
                member.read(now, kept);
                if !member.is_present() {
                    return (None, Vec::new());
                }
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

/// What the hand-over did in a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handed {
    /// What each retiring mode did; those that did nothing are missing.
    pub modes: Vec<RetiredMode>,
    /// The number of endpoints of retiring modes that stay until their connections end.
    pub draining: usize,
    /// The number of operations of retiring modes that failed and are tried again.
    pub waiting: usize,
    /// When the next round is due.
    pub(crate) next: Option<Instant>,
    pub(crate) events: Vec<Event>,
}

/// What a retiring mode did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetiredMode {
    /// The name of the mode.
    pub mode: &'static str,
    /// The steps, in order.
    pub steps: Vec<RetiredStep>,
}

impl Handed {
    /// All steps.
    pub fn steps(&self) -> impl Iterator<Item = &RetiredStep> {
        self.modes.iter().flat_map(|mode| &mode.steps)
    }

    /// Whether no step failed or was skipped, and none is tried again later.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.waiting == 0 && self.steps().all(|step| step.outcome == RetiredOutcome::Done)
    }

    /// The number of steps by outcome.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for step in self.steps() {
            match step.outcome {
                RetiredOutcome::Done => counts.done += 1,
                RetiredOutcome::Failed(_) => counts.failed += 1,
                RetiredOutcome::Skipped => counts.skipped += 1,
                RetiredOutcome::Planned => {}
            }
        }
        counts
    }
}

impl fmt::Display for RetiredMode {
    /// A heading, and the command of each step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# leftovers of {}", self.mode)?;
        for step in &self.steps {
            writeln!(f, "{}", step.command)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Mutex;

    use kernlink_services::{Change, Config, Kind, ObjectChange, Port, Service, SourceId};

    use super::*;
    use crate::data_path::Class;

    /// What a mode left, which the test and the mode share.
    #[derive(Debug, Default)]
    struct Left {
        /// The last bytes of the addresses that it serves.
        served: BTreeSet<u8>,
        /// Its shared object, such as a chain.
        has_shared: bool,
        is_unreadable: bool,
        refuses: bool,
        /// The readings, in listings and rounds.
        readings: usize,
        compiled: usize,
    }

    #[derive(Clone, Debug, Default)]
    struct Mode(Arc<Mutex<Left>>);

    impl Mode {
        fn of(served: impl IntoIterator<Item = u8>) -> Self {
            let mode = Self::default();
            let mut left = mode.0.lock().unwrap();
            left.served = served.into_iter().collect();
            left.has_shared = true;
            drop(left);
            mode
        }
    }

    const SHARED: Name<'_> = Name {
        family: kernlink_services::Family::Ipv4,
        table: "nat",
        name: "SHARED",
    };

    impl Retire for Mode {
        fn mode(&self) -> &'static str {
            "another mode"
        }

        fn has(&self, name: &Name<'_>) -> bool {
            *name == SHARED
        }

        fn read(&mut self, _now: Instant, kept: Kept<'_>) -> Result<bool, String> {
            let mut left = self.0.lock().unwrap();
            left.readings += 1;
            if left.is_unreadable {
                return Err("a table cannot be read".to_owned());
            }
            Ok(!left.served.is_empty() || (left.has_shared && !kept(&SHARED)))
        }

        fn is_serving(&mut self) -> Result<bool, String> {
            Ok(!self.0.lock().unwrap().served.is_empty())
        }

        fn compile(&mut self, _services: &Services, changes: &Changes) {
            self.0.lock().unwrap().compiled += changes.frontends.len();
        }

        fn interim(&self) -> Vec<Interim> {
            let rules: Vec<String> = self.0.lock().unwrap().served.iter().map(u8::to_string).collect();
            vec![Interim {
                family: kernlink_services::Family::Ipv4,
                table: "nat",
                chain: "SHARED",
                rules,
            }]
        }

        fn retire(&mut self, round: &Round<'_>) -> Retired {
            let mut left = self.0.lock().unwrap();
            left.readings += 1;
            let mut retired = Retired::default();
            let is_held = |last: &u8| round.unserved.contains_key(&frontend(*last));
            retired.held = left
                .served
                .iter()
                .filter(|last| is_held(last))
                .map(|last| frontend(*last))
                .collect();
            let removed = left.served.iter().filter(|last| !is_held(last)).count();
            let removes_shared = retired.held.is_empty() && left.has_shared && !(round.kept)(&SHARED);
            if removed > 0 || removes_shared {
                let outcome = match (round.executes, left.refuses) {
                    (false, _) => RetiredOutcome::Planned,
                    (true, true) => RetiredOutcome::Failed("refused".to_owned()),
                    (true, false) => {
                        left.served.retain(is_held);
                        left.has_shared &= !removes_shared;
                        RetiredOutcome::Done
                    }
                };
                retired.steps.push(RetiredStep {
                    class: Class {
                        kind: "leftovers",
                        family: None,
                        is_shared: false,
                    },
                    command: format!("remove {removed}\nand more"),
                    outcome,
                });
            }
            retired.is_gone = retired.steps.is_empty();
            retired
        }
    }

    fn frontend(last: u8) -> FrontendKey {
        FrontendKey {
            address: IpAddr::from([10, 96, 0, last]),
            protocol: kernlink_services::Protocol::Tcp,
            port: 80,
        }
    }

    fn upsert(last: u8) -> Change {
        let service = Service::new(ObjectName::new("ns", format!("s{last}")))
            .with_cluster_ip(format!("10.96.0.{last}"))
            .with_port(Port::new("http", 80));
        Change::Services(ObjectChange::Upsert(service))
    }

    /// A hand-over from these modes, with the Services of a node.
    struct Node {
        handover: Handover,
        services: Services,
        now: Instant,
        served: BTreeSet<u8>,
        /// Whether the serving mode has the shared object too.
        keeps: bool,
    }

    impl Node {
        fn new(modes: &[&Mode], desired: impl IntoIterator<Item = u8>) -> Self {
            let modes = modes
                .iter()
                .map(|mode| Box::new((*mode).clone()) as Box<dyn Retire>);
            let mut node = Self {
                handover: Handover::new(modes.collect()),
                services: Services::new(Config::new("node-a")),
                now: Instant::now(),
                served: BTreeSet::new(),
                keeps: false,
            };
            for last in desired {
                node.services.change(SourceId(0), upsert(last));
            }
            node.services.change(SourceId(0), Change::synced(Kind::Service));
            node
        }

        /// A sync in which the serving mode changes nothing.
        fn sync(&mut self, is_listing: bool) -> (Handed, Vec<Event>) {
            let keeps = self.keeps;
            let keeps = move |name: &Name<'_>| keeps && *name == SHARED;
            self.handover.set_time(self.now);
            let events = if is_listing {
                self.handover.observe(self.now, &keeps)
            } else {
                Vec::new()
            };
            self.services.update();
            let changes = self.services.take_changes();
            self.handover.compile(&self.services, &changes);
            let served = &self.served;
            let is_served = |key: &FrontendKey, _: &ObjectName| match key.address {
                IpAddr::V4(address) => served.contains(&address.octets()[3]),
                IpAddr::V6(_) => false,
            };
            let handed = self.handover.retire(self.now, &keeps, is_served);
            (handed, events)
        }
    }

    fn is_left(mode: &Mode) -> (Vec<u8>, bool) {
        let left = mode.0.lock().unwrap();
        (left.served.iter().copied().collect(), left.has_shared)
    }

    #[test]
    fn each_frontend_is_removed_once_it_is_served_and_the_shared_objects_with_the_last_one() {
        let mode = Mode::of([1, 2, 3]);
        let mut node = Node::new(&[&mode], [1, 2]);
        assert!(!node.handover.may_have_leftovers());
        node.served.insert(1);
        let (handed, events) = node.sync(true);
        assert!(node.handover.may_have_leftovers());
        assert_eq!(events.len(), 1);
        // 3 is of no Service any more.
        assert_eq!(is_left(&mode), (vec![2], true));
        assert_eq!((handed.counts().done, handed.is_success()), (1, true));
        assert_eq!(handed.modes[0].steps[0].summary(), "remove 2");
        assert_eq!(
            handed.next,
            Some(node.now),
            "a round with steps is followed by another one"
        );
        assert_eq!(node.handover.interim()[0].rules, ["2"]);
        let (handed, _) = node.sync(false);
        assert_eq!(handed.next, Some(node.now + HELD_INTERVAL));
        // The event names what is held.
        let (_, events) = node.sync(true);
        let text = events[0].reason.to_string();
        assert!(text.contains("another mode still serves ns/s2"), "{text}");
        node.served.insert(2);
        node.now += HELD_INTERVAL;
        node.sync(false);
        assert_eq!(is_left(&mode), (vec![], false));
        let (handed, _) = node.sync(false);
        assert_eq!((handed.next, node.handover.may_have_leftovers()), (None, false));
        // It is not read again.
        let readings = mode.0.lock().unwrap().readings;
        node.sync(true);
        assert_eq!(mode.0.lock().unwrap().readings, readings);
    }

    #[test]
    fn a_service_that_is_deleted_is_not_served_by_the_retiring_mode_until_the_next_round() {
        let mode = Mode::of([1, 2]);
        let mut node = Node::new(&[&mode], [1, 2]);
        node.sync(true);
        assert_eq!(is_left(&mode), (vec![1, 2], true));
        assert_eq!(
            mode.0.lock().unwrap().compiled,
            2,
            "the first changes name everything"
        );
        node.now += Duration::from_secs(1);
        let deleted = ObjectChange::Delete(ObjectName::new("ns", "s1"));
        node.services.change(SourceId(0), Change::Services(deleted));
        node.sync(false);
        assert_eq!(is_left(&mode), (vec![2], true));
    }

    #[test]
    fn what_cannot_be_read_is_read_again_and_first_services_wait_for_it() {
        let mode = Mode::of([1]);
        mode.0.lock().unwrap().is_unreadable = true;
        let mut node = Node::new(&[&mode], [1]);
        node.served.insert(1);
        let (handed, events) = node.sync(true);
        assert_eq!(handed.modes, []);
        let text = events[0].reason.to_string();
        assert_eq!(
            text,
            "what another mode may have left cannot be read: a table cannot be read"
        );
        assert!(node.handover.may_have_leftovers());
        assert_eq!(handed.next, Some(node.now + READ_INTERVAL));
        mode.0.lock().unwrap().is_unreadable = false;
        node.now += READ_INTERVAL;
        node.sync(false);
        assert_eq!(is_left(&mode), (vec![], false));
    }

    #[test]
    fn a_removal_that_fails_is_reported_once_and_tried_again_with_a_growing_delay() {
        let mode = Mode::of([1]);
        mode.0.lock().unwrap().refuses = true;
        let mut node = Node::new(&[&mode], [1]);
        node.served.insert(1);
        let mut reported = 0;
        let mut last = Duration::ZERO;
        for _ in 0..5 {
            let is_first = !node.handover.may_have_leftovers();
            let (handed, _) = node.sync(is_first);
            reported += handed.events.len();
            assert_eq!((handed.counts().failed, handed.waiting), (1, 1));
            let delay = handed.next.unwrap() - node.now;
            assert!(delay >= last, "{delay:?} after {last:?}");
            last = delay / 2;
            node.now = handed.next.unwrap();
        }
        assert_eq!(reported, 1);
        mode.0.lock().unwrap().refuses = false;
        let (handed, _) = node.sync(false);
        assert_eq!(handed.waiting, 0);
        let solved: Vec<String> = handed
            .events
            .iter()
            .map(|event| event.reason.to_string())
            .collect();
        assert!(solved.len() == 1 && solved[0].starts_with("solved"), "{solved:?}");
    }

    #[test]
    fn an_object_that_the_serving_mode_or_another_retiring_one_has_stays() {
        let mode = Mode::of([1]);
        let mut node = Node::new(&[&mode], [1]);
        node.served.insert(1);
        node.keeps = true;
        for _ in 0..3 {
            node.sync(true);
        }
        assert_eq!(is_left(&mode), (vec![], true));
        assert!(!node.handover.may_have_leftovers());
        // Of two retiring modes the second one to leave removes it.
        let (first, second) = (Mode::of([1]), Mode::of([2]));
        let mut node = Node::new(&[&first, &second], [1, 2]);
        node.served.insert(1);
        node.sync(true);
        assert_eq!(
            (is_left(&first), is_left(&second)),
            ((vec![], true), (vec![2], true))
        );
        node.served.insert(2);
        node.now += HELD_INTERVAL;
        for _ in 0..3 {
            node.sync(true);
        }
        assert_eq!(is_left(&second), (vec![], false));
    }

    #[test]
    fn a_plan_of_the_removal_changes_nothing() {
        let mode = Mode::of([1]);
        let mut node = Node::new(&[&mode], [1]);
        node.handover.observe(node.now, &|_| false);
        let planned = node.handover.planned(node.now, &|_| false);
        assert_eq!(
            planned[0].to_string(),
            "# leftovers of another mode\nremove 1\nand more\n"
        );
        assert_eq!(is_left(&mode), (vec![1], true));
    }
}
