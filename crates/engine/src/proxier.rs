//! Objects in, kernel state out.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::time::Instant;

use kernlink_base::Backoff;
use kernlink_services::{
    Change, Changes, EndpointSlice, Event, Family, FrontendKey, Kind, ObjectName, Reason, Service, Services,
    SourceId,
};

use crate::apply;
use crate::attempts;
use crate::broadcast::{Broadcaster, Subscriber, Subscription};
use crate::data_path::{DataPath, PlanOf, SyncErrorOf, SyncedOf};
use crate::durations::{Stage, Stopwatch};
use crate::error::{InvalidConfig, SyncError};
use crate::failures::FailureEvents;
use crate::first;
use crate::handover::{Handed, Handover, RetiredMode};
use crate::overlap::join;
use crate::plan::{Built, PlanBuilder};
use crate::retire::{Interim, Name, Retire};
use crate::retry::Retries;
use crate::reverted::Reverted;
use crate::solved::solved_event;
use crate::synced::Synced;

/// Keeps the kernel in the state that the Services need, through one data path.
///
/// It has no thread and no clock: the embedder calls [`sync`](Self::sync) after changes, and at the time that the last sync returned in
/// [`Synced::next`]. The first sync, and the first one after [`resync`](Self::resync), reads the whole kernel; any other reads only single objects
/// whose operations failed, or that have removed endpoints with connections. The cost of a sync depends on what changed, not on the number of
/// Services.
#[derive(Debug)]
pub struct Proxier<M: DataPath> {
    services: Services,
    state: M,
    kernel: KernelApis<M>,
    retries: Retries<M::Key, M::Operation>,
    handover: Handover,
    /// The interim rules that the data path received last.
    interim: Vec<Interim>,
    /// The families of virtual IPs that it received last.
    virtual_ips: BTreeSet<Family>,
    /// Whether the next sync reads the whole kernel.
    needs_listing: bool,
    /// Whether a sync reads the whole kernel when repairs are no longer delayed.
    needs_later_listing: bool,
    /// Objects that the next sync reads again because another program may have changed them.
    recheck: BTreeSet<M::Key>,
    /// Whether the addresses of the node may have changed since they were read.
    recheck_addresses: bool,
    /// The families of which the last listing read only what all families share.
    unread: BTreeSet<Family>,
    /// The changes that a sync of the first Services left out.
    later: Option<Changes>,
    /// Events that no sync has returned.
    pending: BTreeSet<Event>,
    /// Events about the host that were returned and are still true.
    host_events: BTreeSet<Event>,
    /// Those of the listing before the last one.
    last_host_events: BTreeSet<Event>,
    /// The operations that fail, and were reported.
    failures: FailureEvents<M::Key>,
    cost: Cost,
    /// Health-check node ports that changed, and that no sync has returned.
    health_checks: BTreeSet<(Family, u16)>,
    broadcaster: Broadcaster,
    stopwatch: Stopwatch,
    /// What other programs changed back.
    reverted: Reverted<M::Key>,
    /// The objects that the recheck before the next plan found changed.
    found: Vec<M::Key>,
    /// Whether the recorded values were those in the kernel before it was read last: a difference is a change by another program.
    is_comparable: bool,
}

/// A plan of a data path that was made, and what it leaves out.
type BuiltOf<M> = Built<<M as DataPath>::Key, <M as DataPath>::Operation, <M as DataPath>::Phase>;

struct KernelApis<M: DataPath>(M::Kernel);

impl<M: DataPath> fmt::Debug for KernelApis<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

/// Counters since the proxier was made. Their increase over one sync is the cost of the changes before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cost {
    /// Readings of the whole kernel.
    pub listings: usize,
    /// Objects that were read again, each by itself.
    pub rereads: usize,
    /// Service ports that were resolved again.
    pub resolved: usize,
    /// Map entries of the arbitration that were looked up to change them.
    pub map_entries: usize,
}

/// An operation that failed and is tried again.
#[derive(Debug)]
#[non_exhaustive]
pub struct FailingOperation<'a, M: DataPath> {
    /// The object.
    pub key: &'a M::Key,
    /// The operation.
    pub operation: &'a M::Operation,
    /// The number of attempts that failed.
    pub attempts: u32,
    /// When the first of these attempts failed.
    pub since: Instant,
    /// When the next attempt is due.
    pub due: Instant,
    /// The Service that it is for. `None`: it is for no single one.
    pub service: Option<&'a ObjectName>,
    /// The innermost error of the last attempt.
    pub reason: Option<&'a str>,
}

impl<M: DataPath> Proxier<M> {
    /// A proxier without objects.
    ///
    /// # Errors
    /// Everything that is invalid in the configuration.
    pub fn new(config: &M::Config, kernel: M::Kernel) -> Result<Self, InvalidConfig> {
        M::validate(config)?;
        Ok(Self {
            services: Services::new(M::services_config(config).clone()),
            state: M::new(config),
            kernel: KernelApis(kernel),
            retries: Retries::new(Backoff::default()),
            handover: Handover::new(Vec::new()),
            interim: Vec::new(),
            virtual_ips: BTreeSet::new(),
            needs_listing: true,
            needs_later_listing: false,
            recheck: BTreeSet::new(),
            recheck_addresses: false,
            unread: BTreeSet::new(),
            later: None,
            pending: BTreeSet::new(),
            host_events: BTreeSet::new(),
            last_host_events: BTreeSet::new(),
            failures: FailureEvents::new(),
            cost: Cost::default(),
            health_checks: BTreeSet::new(),
            broadcaster: Broadcaster::default(),
            stopwatch: Stopwatch::default(),
            reverted: Reverted::new(),
            found: Vec::new(),
            is_comparable: false,
        })
    }

    /// Sets the delays between attempts of failed operations.
    pub fn set_backoff(&mut self, backoff: Backoff) {
        self.retries.set_backoff(backoff);
        self.handover.set_backoff(backoff);
    }

    /// Sets the modes that may have served the node before: what they left is removed while this one serves, see [`handover`](crate::handover).
    /// Without this call everything that they left stays, and what it contains is not known. Their order matters where several modes have objects
    /// with one name: the mode that has another notice of its presence than such names is first. Call it before the first [`sync`](Self::sync).
    pub fn set_retiring(&mut self, modes: Vec<Box<dyn Retire>>) {
        self.handover = Handover::new(modes);
    }

    /// Sets the clock that measures the stages of a sync, such as [`Instant::now`]: [`Synced::durations`]. It is used for nothing else.
    pub fn set_clock(&mut self, clock: fn() -> Instant) {
        self.stopwatch.set_clock(clock);
    }

    /// Applies a change of a source. Returns new events about single objects; the next sync returns the events about conflicts, frontends
    /// and the node. The kernel is not touched before the next sync.
    pub fn change(&mut self, source: SourceId, change: Change) -> Vec<Event> {
        self.services.change(source, change)
    }

    /// Makes these the Services and EndpointSlices of a source, which has delivered its first full lists with this call; see
    /// [`Change::replace_all`]. Returns events as [`change`](Self::change).
    pub fn replace_all(
        &mut self,
        source: SourceId,
        services: Vec<Service>,
        slices: Vec<EndpointSlice>,
    ) -> Vec<Event> {
        let changes = Change::replace_all(services, slices).into_iter();
        changes.flat_map(|change| self.change(source, change)).collect()
    }

    /// Whether a change since the last call must not wait for others: an endpoint does not accept traffic any more, or a Service has its first one
    /// again. [`Schedule::on_urgent_change`](crate::Schedule::on_urgent_change) takes it.
    pub fn take_urgent(&mut self) -> bool {
        self.services.take_urgent()
    }

    /// Declares that a source delivers a kind of object: no sync acts before the first full list of this kind from this source. A source
    /// that delivers an object is registered without this call.
    pub fn register_source(&mut self, source: SourceId, kind: Kind) {
        self.services.register_source(source, kind);
    }

    /// A listener that receives what the data path receives, beginning with a snapshot; see [`broadcast`](crate::broadcast). At most
    /// `capacity` updates wait to be received; further ones are merged.
    pub fn subscribe(&mut self, capacity: NonZeroUsize) -> Subscription {
        let (subscriber, subscription) = Broadcaster::pair(capacity);
        self.add_subscriber(subscriber);
        subscription
    }

    pub(crate) fn add_subscriber(&mut self, subscriber: Subscriber) {
        self.broadcaster.add(&self.services, subscriber);
    }

    /// Removes a source with all its objects.
    pub fn remove_source(&mut self, source: SourceId) -> Vec<Event> {
        self.services.remove_source(source)
    }

    /// Replaces the configuration. The next sync reads the whole kernel.
    ///
    /// # Errors
    /// Everything that is invalid; the previous configuration stays in use.
    pub fn set_config(&mut self, config: &M::Config) -> Result<(), InvalidConfig> {
        M::validate(config)?;
        self.state.set_config(config);
        self.services.set_config(M::services_config(config).clone());
        self.needs_listing = true;
        self.is_comparable = false;
        Ok(())
    }

    /// Makes the next plan or sync read the whole kernel, to find changes by other programs. Call it when the kernel reports such a
    /// change, and at intervals.
    pub fn resync(&mut self) {
        self.needs_listing = true;
    }

    /// Makes the next plan or sync read these objects again, because another program may have removed or changed them. What differs is
    /// repaired, and then the whole kernel is read: [`Synced::next`] is now. Before [`Synced::no_listing_before`] the whole kernel is not read
    /// for them, and those that another program changed back again and again are not read either; a later sync reads them.
    ///
    /// Objects that are not recorded as existing are ignored: only [`resync`](Self::resync) finds what another program added. Returns
    /// whether there is anything to read.
    pub fn recheck(&mut self, keys: impl IntoIterator<Item = M::Key>) -> bool {
        let state = &self.state;
        let observed = keys.into_iter().filter(|key| state.is_observed(key));
        self.recheck.extend(observed);
        !self.recheck.is_empty()
    }

    /// Makes the next plan or sync read the addresses of this node's interfaces again, because one may have been added or removed.
    pub fn recheck_addresses(&mut self) {
        self.recheck_addresses = true;
    }

    /// The plan that a sync would execute now. Consumes no events.
    ///
    /// # Errors
    /// [`SyncError::NotSynced`], [`SyncError::Observe`].
    pub fn plan(&mut self, now: Instant) -> Result<PlanOf<M>, SyncErrorOf<M>> {
        self.prepare(now)?;
        Ok(self.make_plan().plan)
    }

    /// What a sync removes of what retiring modes left, as soon as the data path serves all frontends. Up to date after [`plan`](Self::plan).
    /// Changes nothing.
    pub fn plan_handover(&mut self, now: Instant) -> Vec<RetiredMode> {
        let state = &self.state;
        self.handover.planned(now, &|name: &Name<'_>| state.keeps(name))
    }

    /// The operations that failed and are tried again, in no particular order.
    pub fn failing(&self) -> impl Iterator<Item = FailingOperation<'_, M>> {
        self.retries.iter().map(|failed| FailingOperation {
            key: failed.key,
            operation: failed.operation,
            attempts: failed.attempts,
            since: failed.since,
            due: failed.due,
            service: failed.service,
            reason: self.failures.reason(failed.key),
        })
    }

    /// The events that the next sync returns, as far as they are known: after [`plan`](Self::plan), also those about the node. Consumes none.
    pub fn pending_events(&self) -> impl Iterator<Item = &Event> {
        self.pending.iter()
    }

    /// Brings the kernel to the desired state. A failed operation is retried later, at its own time; all others are executed. A second sync
    /// without a change in between does nothing.
    ///
    /// A sync that follows no [`plan`](Self::plan) and finds a kernel without objects of the data path programs only
    /// [`DataPath::first_services`], if there are others: [`Synced::is_partial`]. The next one, which is due now, programs these.
    ///
    /// # Errors
    /// As [`plan`](Self::plan). Steps that fail are in the report.
    pub fn sync(&mut self, now: Instant) -> Result<SyncedOf<M>, SyncErrorOf<M>> {
        let (mut changes, is_listing) = self.read(now)?;
        if is_listing
            && self.later.is_none()
            && !self.handover.may_have_leftovers()
            && let Some(first) = first::split(&self.services, self.state.first_services(), &mut changes)
        {
            self.read_deferred(&first::families(&self.services, &first));
            if !self.state.first_services().is_empty() {
                self.later = Some(changes);
                self.compile(&first, is_listing)?;
                let built = self.make_plan();
                let mut synced = self.execute(built, now);
                // They would attract traffic to Services that are not programmed yet.
                self.health_checks = std::mem::take(&mut synced.health_checks);
                return Ok(Synced {
                    is_partial: true,
                    next: Some(now),
                    ..synced
                });
            }
            // What was read shows that something serves the Services already.
            changes = first::join(first, changes);
        }
        self.complete(changes, is_listing)?;
        let built = self.make_plan();
        let synced = self.execute(built, now);
        Ok(self.hand_over(synced, now))
    }

    /// Removes what nothing needs any more of what retiring modes left, after a plan was executed.
    fn hand_over(&mut self, mut synced: SyncedOf<M>, now: Instant) -> SyncedOf<M> {
        let state = &self.state;
        let keeps = |name: &Name<'_>| state.keeps(name);
        let is_served = |frontend: &FrontendKey, service: &ObjectName| state.serves(frontend, service);
        let is_servable = |frontend: &FrontendKey| state.is_servable(frontend);
        let mut handed = self.handover.retire(now, &keeps, is_served, is_servable);
        synced.events.append(&mut handed.events);
        synced.is_continued = self.set_meanwhile();
        let continued = Some(now).filter(|_| synced.is_continued);
        synced.next = [synced.next, handed.next, continued].into_iter().flatten().min();
        synced.draining += handed.draining;
        synced.waiting += handed.waiting;
        synced.handover = handed;
        synced
    }

    /// Passes what retiring modes need, or have, meanwhile to the data path, if it is other than before. Returns whether chains change with it.
    fn set_meanwhile(&mut self) -> bool {
        let virtual_ips = self.handover.virtual_ips();
        let has_changed = virtual_ips != self.virtual_ips;
        if has_changed {
            self.state.set_virtual_ips(&virtual_ips);
            self.virtual_ips = virtual_ips;
        }
        self.set_interim() || has_changed
    }

    /// Passes the rules of retiring modes to the data path, if these are others than before. Returns whether chains change with them.
    fn set_interim(&mut self) -> bool {
        let interim = self.handover.interim();
        if interim == self.interim {
            return false;
        }
        let rules = |all: &[Interim]| -> Vec<Interim> {
            let with_rules = all.iter().filter(|interim| !interim.rules.is_empty());
            with_rules.cloned().collect()
        };
        let has_changed = rules(&interim) != rules(&self.interim);
        self.state.set_interim(&interim);
        self.interim = interim;
        has_changed
    }

    /// Executes a reviewed plan. The whole kernel is read again, and a new plan is made and compared with the reviewed one.
    ///
    /// # Errors
    /// [`SyncError::PlanOutdated`] if the new plan differs: the kernel or the objects changed, or the retry of an operation that failed
    /// became due. Nothing is done then; make a new plan. Otherwise as [`plan`](Self::plan).
    pub fn apply(&mut self, reviewed: &PlanOf<M>, now: Instant) -> Result<SyncedOf<M>, SyncErrorOf<M>> {
        self.needs_listing = true;
        self.prepare(now)?;
        let built = self.make_plan();
        if built.plan != *reviewed {
            return Err(SyncError::PlanOutdated);
        }
        let synced = self.execute(built, now);
        Ok(self.hand_over(synced, now))
    }

    /// Brings the observed and the desired state up to date.
    fn prepare(&mut self, now: Instant) -> Result<(), SyncErrorOf<M>> {
        let (changes, is_listing) = self.read(now)?;
        self.complete(changes, is_listing)
    }

    /// Reads and compiles all that was left for later: what concerns one family alone, and what a sync of the first Services left out.
    fn complete(&mut self, changes: Changes, is_listing: bool) -> Result<(), SyncErrorOf<M>> {
        self.read_deferred(&Family::ALL);
        let changes = match self.later.take() {
            Some(later) => first::join(later, changes),
            None => changes,
        };
        self.compile(&changes, is_listing)
    }

    /// Brings the observed state and the Services up to date. Returns the changes to compile, and whether the whole kernel was read. If there
    /// may be first Services, what [`read_deferred`](Self::read_deferred) reads was not.
    fn read(&mut self, now: Instant) -> Result<(Changes, bool), SyncErrorOf<M>> {
        if let Some(not_synced) = self.services.not_synced() {
            return Err(SyncError::NotSynced(not_synced));
        }
        self.stopwatch.start();
        self.state.set_time(now);
        self.handover.set_time(now);
        let (mut due, dependents) = self.retries.take_due(now);
        if self.reverted.no_listing_before(now).is_none() {
            self.needs_listing |= std::mem::take(&mut self.needs_later_listing);
        }
        let is_listing = self.needs_listing || self.state.needs_listing(now);
        if !is_listing {
            due.extend(self.state.due(now));
        }
        for key in due.iter().chain(&dependents) {
            self.state.set_dirty(key);
        }
        if is_listing {
            // After an error the next sync reads everything.
            self.needs_listing = true;
            self.cost.listings += 1;
            let events = self
                .state
                .observe(&mut self.kernel.0)
                .map_err(SyncError::Observe)?;
            self.read_addresses()?;
            self.needs_listing = false;
            self.needs_later_listing = false;
            let state = &self.state;
            self.recheck.retain(|key| !state.is_read_by_listing(key));
            self.last_host_events = std::mem::take(&mut self.host_events);
            self.add_host_events(events);
            let state = &self.state;
            let left = self.handover.observe(now, &|name: &Name<'_>| state.keeps(name));
            self.add_host_events(left);
            self.unread = Family::ALL.into();
            self.read_rechecked(now)?;
        } else {
            self.reread(&due)?;
            self.read_rechecked(now)?;
            if self.recheck_addresses {
                self.cost.rereads += 1;
                self.read_addresses()?;
            }
        }
        let updated = if is_listing && self.state.first_services().is_empty() {
            let (state, kernel) = (&mut self.state, &mut self.kernel.0);
            let services = &mut self.services;
            let (events, updated) = join(
                || state.observe_families(kernel, &Family::ALL),
                || services.update(),
            );
            self.add_families(&Family::ALL, events);
            self.stopwatch.end(Stage::Read);
            updated
        } else {
            self.stopwatch.end(Stage::Read);
            self.services.update()
        };
        self.cost.resolved += updated.resolved;
        self.cost.map_entries += updated.map_entries;
        self.pending.extend(updated.events);
        let changes = self.services.take_changes();
        self.health_checks.extend(&changes.health_checks);
        self.broadcaster.publish(&self.services, &changes);
        Ok((changes, is_listing))
    }

    /// Reads what a listing did not read of these families.
    fn read_deferred(&mut self, families: &[Family]) {
        let unread = families.iter().filter(|family| self.unread.contains(family));
        let unread: Vec<Family> = unread.copied().collect();
        if !unread.is_empty() {
            let events = self.state.observe_families(&mut self.kernel.0, &unread);
            self.add_families(&unread, events);
            self.stopwatch.end(Stage::Read);
        }
    }

    /// What concerns these families was read.
    fn add_families(&mut self, families: &[Family], events: Vec<Event>) {
        self.unread.retain(|family| !families.contains(family));
        self.add_host_events(events);
        if self.unread.is_empty() {
            let events = &self.host_events;
            let is_solved = |event: &Event| !events.iter().any(|other| is_same_kind(event, other));
            let last = std::mem::take(&mut self.last_host_events);
            self.pending
                .extend(last.into_iter().filter(is_solved).map(solved_event));
        }
    }

    /// Adds what a listing reports. Only what the listing before did not report is returned by the sync.
    fn add_host_events(&mut self, events: Vec<Event>) {
        let last = &self.last_host_events;
        let new = events.iter().filter(|event| !last.contains(event));
        self.pending.extend(new.cloned());
        self.host_events.extend(events);
    }

    /// Brings the desired state up to date with changes of the Services, and decides which failed operations are planned again.
    fn compile(&mut self, changes: &Changes, is_listing: bool) -> Result<(), SyncErrorOf<M>> {
        self.handover.compile(&self.services, changes);
        self.set_meanwhile();
        let events = self.state.compile(&self.services, changes);
        self.pending.extend(events);
        // A dependent may have failed itself, and have dependents of its own.
        loop {
            let dependents = self.retries.dependents_of(|key| self.state.is_dirty(key));
            if dependents.is_empty() {
                break;
            }
            for key in dependents {
                self.state.set_dirty(&key);
            }
        }
        self.stopwatch.end(Stage::Compile);
        self.read_uncertain(is_listing)
    }

    /// Reads the objects again for which another operation may be planned although the outcome of the last one is not known. After a listing, these
    /// and those whose retries fell due are read if the listing did not read them.
    fn read_uncertain(&mut self, is_listing: bool) -> Result<(), SyncErrorOf<M>> {
        let state = &self.state;
        let is_read = |key: &M::Key| is_listing && state.is_read_by_listing(key);
        let (mut uncertain, dependents) = self
            .retries
            .take_unknown(|key| state.is_dirty(key) && !is_read(key));
        if is_listing {
            let due = self.retries.due().filter(|key| !is_read(key));
            uncertain = due.cloned().collect();
        }
        for key in uncertain.iter().chain(&dependents) {
            self.state.set_dirty(key);
        }
        if is_listing && uncertain.is_empty() {
            return Ok(());
        }
        self.reread(&uncertain)?;
        self.stopwatch.end(Stage::Read);
        Ok(())
    }

    /// Reads single objects again.
    fn reread(&mut self, keys: &[M::Key]) -> Result<(), SyncErrorOf<M>> {
        if keys.is_empty() {
            return Ok(());
        }
        self.cost.rereads += keys.len();
        self.state
            .observe_keys(&mut self.kernel.0, keys)
            .map_err(|error| {
                // Their observed values are unknown now.
                self.needs_listing = true;
                self.is_comparable = false;
                SyncError::Observe(error)
            })
    }

    /// Reads the objects again that another program may have changed.
    fn read_rechecked(&mut self, now: Instant) -> Result<(), SyncErrorOf<M>> {
        let is_delayed = self.reverted.no_listing_before(now).is_some();
        let recheck = std::mem::take(&mut self.recheck).into_iter();
        let (delayed, due): (BTreeSet<M::Key>, BTreeSet<M::Key>) =
            recheck.partition(|key| self.notice(key, now));
        self.recheck = delayed;
        let keys: Vec<M::Key> = due.into_iter().collect();
        if keys.is_empty() {
            return Ok(());
        }
        self.cost.rereads += keys.len();
        let rechecked = self.state.recheck(&mut self.kernel.0, &keys);
        // Where one object was changed, others may be, of which there was no notice. An error leaves observed values unknown.
        let has_changed = rechecked.as_ref().is_ok_and(|changed| !changed.is_empty());
        if rechecked.is_err() {
            // The next listing does not read all of them.
            self.recheck.extend(keys);
        }
        self.needs_listing |= rechecked.is_err() || (has_changed && !is_delayed);
        self.needs_later_listing |= has_changed && is_delayed;
        self.is_comparable &= rechecked.is_ok();
        self.found.extend(rechecked.map_err(SyncError::Observe)?);
        Ok(())
    }

    /// Records a notice that an object may have changed. Returns whether its repair is delayed, or of the one that it is repaired with.
    fn notice(&mut self, key: &M::Key, now: Instant) -> bool {
        self.reverted.notice(key, now) || {
            let repaired = self.state.repaired_with(key);
            repaired.is_some_and(|repaired| self.reverted.notice(&repaired, now))
        }
    }

    /// The time before which an object is not read again, or the one that it is repaired with.
    fn delayed_until(&self, key: &M::Key, now: Instant) -> Option<Instant> {
        let until = |key: &M::Key| self.reverted.delayed_until(key, now);
        let repaired = self.state.repaired_with(key);
        until(key).max(repaired.as_ref().and_then(until))
    }

    /// Reads the addresses of the node. Node ports are served at these: they must be known before the Services are resolved.
    fn read_addresses(&mut self) -> Result<(), SyncErrorOf<M>> {
        let read = self.state.interface_addresses(&mut self.kernel.0);
        self.needs_listing |= read.is_err();
        self.services
            .set_interface_addresses(read.map_err(SyncError::Observe)?);
        self.recheck_addresses = false;
        Ok(())
    }

    fn make_plan(&mut self) -> BuiltOf<M> {
        let mut builder = PlanBuilder::new(&self.retries);
        self.state.plan(&mut builder);
        let built = builder.finish();
        self.stopwatch.end(Stage::Plan);
        built
    }

    fn execute(&mut self, built: BuiltOf<M>, now: Instant) -> SyncedOf<M> {
        let Built {
            plan,
            waiting,
            needed,
        } = built;
        self.find_reverted(&plan, now);
        // A failed operation that is no longer desired needs no retry: its key was compared, and there is nothing to do.
        let state = &self.state;
        self.retries
            .retain(|key| needed.contains(key) || !state.is_dirty(key));
        let report = apply::apply(&plan, &mut self.kernel.0, &mut self.state);
        attempts::record::<M>(&mut self.retries, &plan, &report, waiting, now);
        let events = self
            .failures
            .update::<M>(&plan, &report, |key| self.retries.has_failed(key));
        self.pending.extend(events);
        self.state.clear_dirty();
        self.is_comparable = true;
        self.stopwatch.end(Stage::Apply);
        let no_listing_before = self.reverted.no_listing_before(now);
        let recheck = self
            .recheck
            .iter()
            // What it is repaired with may have changed by this plan.
            .map(|key| self.delayed_until(key, now).unwrap_or(now))
            .min();
        let later_listing = no_listing_before.filter(|_| self.needs_later_listing);
        Synced {
            plan,
            report,
            events: std::mem::take(&mut self.pending).into_iter().collect(),
            next: if self.needs_listing {
                Some(now)
            } else {
                [self.retries.next(), self.state.next(), recheck, later_listing]
                    .into_iter()
                    .flatten()
                    .min()
            },
            is_partial: false,
            is_continued: false,
            handover: Handed::default(),
            draining: self.state.draining(),
            no_listing_before,
            waiting: self.retries.len(),
            unread: self.state.unread().len(),
            health_checks: std::mem::take(&mut self.health_checks),
            durations: self.stopwatch.take(),
        }
    }

    /// Counts the objects that a listing or a recheck found changed by another program.
    fn find_reverted(&mut self, plan: &PlanOf<M>, now: Instant) {
        let mut found = std::mem::take(&mut self.found);
        if self.is_comparable {
            let steps = plan.steps().map(|(_, step)| step);
            // An operation that failed may have been executed all the same.
            let intact = steps.filter(|step| !self.retries.has_failed(&step.key));
            found.extend(intact.filter_map(|step| self.state.reverted(&step.key)));
        }
        let event = self.reverted.found(found, now);
        self.pending.extend(event);
    }

    /// The Services, and what each means on this node. Up to date after a plan or sync.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// The tables of the data path. Up to date after a plan or sync.
    #[must_use]
    pub fn state(&self) -> &M {
        &self.state
    }

    /// The kernel objects whose operations failed and are retried, in no particular order. [`Synced::waiting`] is their number.
    pub fn waiting(&self) -> impl Iterator<Item = &M::Key> {
        self.retries.keys()
    }

    /// The number of Services of which an operation failed and is retried: they are not served, or not as they should be.
    #[must_use]
    pub fn failing_services(&self) -> usize {
        self.retries.services().collect::<BTreeSet<_>>().len()
    }

    /// The counters of work since the proxier was made.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// The kernel APIs. After a change through them call [`resync`](Self::resync).
    pub fn kernel_mut(&mut self) -> &mut M::Kernel {
        &mut self.kernel.0
    }

    /// Returns the kernel APIs. The kernel is not changed.
    #[must_use]
    pub fn into_kernel(self) -> M::Kernel {
        self.kernel.0
    }
}

/// Whether two events about the host have the same code, so that one follows the other.
fn is_same_kind(event: &Event, other: &Event) -> bool {
    match (&event.reason, &other.reason) {
        (Reason::DataPath { code: a, .. }, Reason::DataPath { code: b, .. }) => a == b,
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests;
