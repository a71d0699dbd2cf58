//! Builds a status from changes and the outcomes of syncs.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Instant, SystemTime};

use kernlink_base::ErrorChain;
use kernlink_services::{
    AddressType, Change, EndpointSlice, Event, Family, HealthCheck, Kind, NameMap, ObjectChange,
};

use super::{
    ChangeCounts, FamilyStatus, Histogram, LastSync, OperationCounts, RecentEvent, SYNC_SECONDS, Status,
};
use crate::data_path::{Class, DataPath, SyncedOf};
use crate::durations::Durations;
use crate::error::SyncError;
use crate::proxier::{Cost, Proxier};
use crate::report::{Counts, Outcome};
use crate::retire::RetiredOutcome;

/// The number of events that are kept.
const RECENT_EVENTS: usize = 100;

/// The number of EndpointSlices whose trigger times are kept while no sync is successful.
const WAITING_TRIGGERS: usize = 100_000;

/// The number of trigger times of one EndpointSlice that are kept: the first ones, which wait longest.
const TRIGGERS_OF_SLICE: usize = 100;

/// Builds a [`Status`]. It has no clock: times are arguments.
///
/// Call [`on_change`](Self::on_change) when a source delivers a change, [`on_started`](Self::on_started) before a sync, and
/// [`on_synced`](Self::on_synced) or [`on_error`](Self::on_error) after it. [`Runner`](crate::Runner) does it.
#[derive(Clone, Debug)]
pub struct Recorder<T> {
    status: Status<T>,
    /// The time of the first change since the sync in progress started.
    next_pending: Option<Instant>,
    is_syncing: bool,
    /// The changes that the sync in progress has seen, by kind.
    seen: BTreeMap<Kind, u64>,
    has_node_source: bool,
    health_checks: BTreeMap<(Family, u16), HealthCheck>,
    started: SystemTime,
    /// The trigger times of each EndpointSlice that no sync has seen.
    triggers: NameMap<Triggers>,
    /// The trigger times that the sync in progress, or a previous one that was not successful, has seen.
    seen_triggers: Vec<Triggers>,
    /// What the sync in progress did for the first Services.
    partial: (Durations, Counts),
}

/// The trigger times of changes of an EndpointSlice.
#[derive(Clone, Debug)]
struct Triggers {
    family: Family,
    times: Vec<SystemTime>,
}

impl<T: Default> Recorder<T> {
    /// Nothing happened yet in these families. `time` is now.
    #[must_use]
    pub fn new(families: impl IntoIterator<Item = Family>, time: SystemTime) -> Self {
        let mut recorder = Self {
            status: Status {
                families: std::array::from_fn(|_| FamilyStatus::default()),
                changes: BTreeMap::new(),
                syncs: 0,
                failed_syncs: 0,
                error: None,
                last_sync: None,
                stages: BTreeMap::new(),
                operations: BTreeMap::new(),
                waiting: BTreeMap::new(),
                services: 0,
                conflicts: 0,
                failing_services: 0,
                totals: T::default(),
                cost: Cost::default(),
                is_node_eligible: None,
                events: VecDeque::new(),
            },
            next_pending: None,
            is_syncing: false,
            seen: BTreeMap::new(),
            has_node_source: false,
            health_checks: BTreeMap::new(),
            started: time,
            triggers: NameMap::default(),
            seen_triggers: Vec::new(),
            partial: Default::default(),
        };
        recorder.serve(families);
        recorder
    }

    fn serve(&mut self, families: impl IntoIterator<Item = Family>) {
        let served: Vec<Family> = families.into_iter().collect();
        for family in Family::ALL {
            let status = &mut self.status.families[family.index()];
            status.is_served = served.contains(&family);
            status.queued = status.queued.or(Some(self.started).filter(|_| status.is_served));
        }
    }

    /// The present status.
    #[must_use]
    pub fn status(&self) -> &Status<T> {
        &self.status
    }

    /// The health-check node ports of a family as of the last sync, sorted by port.
    pub fn health_checks(&self, family: Family) -> impl Iterator<Item = &HealthCheck> {
        let checks = self.health_checks.range((family, 0)..=(family, u16::MAX));
        checks.map(|(_, check)| check)
    }

    /// The health-check node port with this number, as of the last sync.
    #[must_use]
    pub fn health_check(&self, family: Family, port: u16) -> Option<&HealthCheck> {
        self.health_checks.get(&(family, port))
    }

    /// A source delivered a change, which waits for a sync. `time` is the same moment as `now`.
    pub fn on_change(&mut self, change: &Change, now: Instant, time: SystemTime) {
        self.has_node_source |= change.kind() == Kind::Node;
        let changes = match change {
            Change::Services(change) => number(change),
            Change::EndpointSlices(change) => {
                self.on_slices(change);
                number(change)
            }
            Change::Nodes(change) => number(change),
        };
        let counts = self.status.changes.entry(change.kind()).or_default();
        counts.total += changes;
        counts.pending += changes;
        for family in self.status.families.iter_mut().filter(|family| family.is_served) {
            family.queued = Some(time);
            if self.is_syncing {
                self.next_pending.get_or_insert(now);
            }
            family.pending.get_or_insert(now);
        }
    }

    /// Collects the trigger time of a slice. A deletion has none, and the times before it say little about the endpoints that remain. In a
    /// full list it is not known which slices changed.
    fn on_slices(&mut self, change: &ObjectChange<EndpointSlice>) {
        match change {
            ObjectChange::Upsert(slice) => {
                let trigger = slice.trigger_time.filter(|time| *time > self.started);
                if let (Some(time), AddressType::Ip(family)) = (trigger, slice.address_type)
                    && self.status.family(family).is_served
                {
                    let triggers = self.triggers.entry(slice.name.clone());
                    let times = Vec::new();
                    let triggers = triggers.or_insert(Triggers { family, times });
                    if triggers.times.len() < TRIGGERS_OF_SLICE {
                        triggers.times.push(time);
                    }
                }
            }
            ObjectChange::Delete(name) => _ = self.triggers.remove(name),
            ObjectChange::ReplaceAll(_) | ObjectChange::Synced => {}
        }
    }

    /// A sync starts. It sees every change so far.
    pub fn on_started(&mut self) {
        self.seen_triggers
            .extend(self.triggers.drain().map(|(_, triggers)| triggers));
        let surplus = self.seen_triggers.len().saturating_sub(WAITING_TRIGGERS);
        self.seen_triggers.drain(..surplus);
        self.is_syncing = true;
        self.next_pending = None;
        let pending = self.status.changes.iter();
        self.seen = pending.map(|(kind, counts)| (*kind, counts.pending)).collect();
    }

    /// A sync ended with a report. One that [is partial](crate::Synced::is_partial) and the next one count as one sync.
    pub fn on_synced<M: DataPath<Totals = T>>(
        &mut self,
        proxier: &Proxier<M>,
        synced: &SyncedOf<M>,
        time: SystemTime,
    ) {
        self.count_operations::<M>(synced);
        let (durations, counts) = std::mem::take(&mut self.partial);
        let (durations, counts) = (durations.plus(synced.durations), counts.plus(synced.counts()));
        if synced.is_partial {
            self.partial = (durations, counts);
            self.on_events(&synced.events, time);
            return;
        }
        let services = proxier.services();
        self.serve(services.config().families.iter().copied());
        self.end_sync(&synced.events, time);
        let status = &mut self.status;
        for (kind, seen) in std::mem::take(&mut self.seen) {
            let counts: &mut ChangeCounts = status.changes.entry(kind).or_default();
            counts.pending = counts.pending.saturating_sub(seen);
        }
        status.syncs += 1;
        status.error = None;
        let is_full = proxier.cost().listings > status.cost.listings;
        status.cost = proxier.cost();
        status.last_sync = Some(LastSync {
            ended: time,
            durations,
            counts,
        });
        for (name, duration) in durations.stages() {
            let stage = status.stages.entry(name);
            let histogram = stage.or_insert_with(|| Histogram::new(SYNC_SECONDS));
            if !duration.is_zero() {
                histogram.add(duration);
            }
        }
        status.waiting.clear();
        for key in proxier.waiting() {
            *status.waiting.entry(M::class(key)).or_default() += 1;
        }
        for class in proxier.state().unread() {
            *status.waiting.entry(class).or_default() += 1;
        }
        status.services = services.number_of_services();
        status.conflicts = services.number_of_conflicts();
        status.failing_services = proxier.failing_services();
        status.totals = proxier.state().totals();
        status.is_node_eligible = self
            .has_node_source
            .then(|| services.node().is_some_and(|node| !node.is_leaving));
        for (place, family) in Family::ALL.into_iter().enumerate() {
            let is_blocked = |class: &Class| class.is_shared && class.family.is_none_or(|of| of == family);
            let is_updated = !status.waiting.keys().any(is_blocked);
            if let Some(family) = status.families.get_mut(place).filter(|family| family.is_served) {
                let duration = durations.total();
                family.durations.add(duration);
                if is_full {
                    family.full.add(duration);
                } else {
                    family.partial.add(duration);
                }
                if is_updated {
                    let seen = self
                        .seen_triggers
                        .extract_if(.., |seen| seen.family.index() == place);
                    for trigger in seen.flat_map(|seen| seen.times) {
                        family
                            .programming
                            .add(time.duration_since(trigger).unwrap_or_default());
                    }
                    family.updated = Some(time);
                    family.pending = self.next_pending;
                }
            }
        }
        for &(family, port) in &synced.health_checks {
            match services.health_check(family, port) {
                Some(check) => _ = self.health_checks.insert((family, port), check.clone()),
                None => _ = self.health_checks.remove(&(family, port)),
            }
        }
    }

    fn count_operations<M: DataPath<Totals = T>>(&mut self, synced: &SyncedOf<M>) {
        let operations = &mut self.status.operations;
        for ((_, step), outcome) in synced.plan.steps().zip(synced.report.outcomes()) {
            let counts: &mut OperationCounts = operations.entry(M::class(&step.key)).or_default();
            match outcome {
                Outcome::Done => counts.done += 1,
                Outcome::Failed(_) => counts.failed += 1,
                Outcome::Skipped { .. } => counts.skipped += 1,
            }
        }
        for step in synced.handover.steps() {
            let counts: &mut OperationCounts = operations.entry(step.class).or_default();
            match step.outcome {
                RetiredOutcome::Done => counts.done += 1,
                RetiredOutcome::Failed(_) => counts.failed += 1,
                RetiredOutcome::Skipped => counts.skipped += 1,
                RetiredOutcome::Planned => {}
            }
        }
    }

    /// A sync did nothing.
    pub fn on_error<E: std::error::Error + 'static>(&mut self, error: &SyncError<E>, time: SystemTime) {
        self.end_sync(&[], time);
        self.status.failed_syncs += 1;
        self.status.error = Some(ErrorChain(error).to_string());
    }

    /// Events outside a sync, such as those that [`Proxier::change`] returns.
    pub fn on_events(&mut self, events: &[Event], time: SystemTime) {
        let recent = &mut self.status.events;
        for event in events.iter().skip(events.len().saturating_sub(RECENT_EVENTS)) {
            if recent.len() == RECENT_EVENTS {
                recent.pop_front();
            }
            recent.push_back(RecentEvent {
                time,
                event: event.clone(),
            });
        }
    }

    fn end_sync(&mut self, events: &[Event], time: SystemTime) {
        self.is_syncing = false;
        self.on_events(events, time);
    }
}

/// The number of objects that a change concerns.
fn number<T>(change: &ObjectChange<T>) -> u64 {
    match change {
        ObjectChange::Upsert(_) | ObjectChange::Delete(_) => 1,
        ObjectChange::ReplaceAll(objects) => objects.len() as u64,
        ObjectChange::Synced => 0,
    }
}
