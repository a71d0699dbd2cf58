//! What a proxier does, for operators: when it synced last, what waits, and the numbers of everything.
//!
//! A [`Recorder`] is fed with changes and the outcomes of syncs, and has no clock. [`Runner`](crate::Runner) has one:
//! [`Runner::status`](crate::Runner::status) never waits for a sync in progress.

mod histogram;
mod recorder;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Instant, SystemTime};

use kernlink_services::{Event, Family, Kind};

pub use self::histogram::{Histogram, PROGRAMMING_SECONDS, SYNC_SECONDS};
pub use self::recorder::Recorder;
use crate::data_path::Class;
use crate::durations::Durations;
use crate::proxier::Cost;
use crate::report::Counts;

/// What a proxier does. A copy of it costs the same for any number of Services.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Status<T> {
    /// By [`Family::index`].
    pub families: [FamilyStatus; 2],
    /// Changes that sources delivered, by kind of object.
    pub changes: BTreeMap<Kind, ChangeCounts>,
    /// Syncs that ended with a report.
    pub syncs: u64,
    /// Syncs that did nothing because of an error.
    pub failed_syncs: u64,
    /// The error of the last sync, if it did nothing.
    pub error: Option<String>,
    /// The last sync that ended with a report.
    pub last_sync: Option<LastSync>,
    /// The durations of each stage in all syncs that needed it, by name: [`Durations::stages`].
    pub stages: BTreeMap<&'static str, Histogram>,
    /// The steps of all syncs by what they changed.
    pub operations: BTreeMap<Class, OperationCounts>,
    /// The objects whose operations failed and are retried, by what they are.
    pub waiting: BTreeMap<Class, usize>,
    /// Services as delivered by their sources, also those that are not served.
    pub services: usize,
    /// Addresses with protocol and port that several service ports define: one of them is served.
    pub conflicts: usize,
    /// Services of which an operation failed and is retried: they are not served, or not as they should be.
    pub failing_services: usize,
    /// The numbers of the desired objects of the data path.
    pub totals: T,
    /// The work of the proxier.
    pub cost: Cost,
    /// Whether this node is eligible for traffic of load balancers: its object exists and it
    /// [is not leaving](kernlink_services::Node::is_leaving). `None`: no source delivered Nodes.
    pub is_node_eligible: Option<bool>,
    /// The last 100 events, the oldest first.
    pub events: VecDeque<RecentEvent>,
}

/// The state of one family.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FamilyStatus {
    /// Whether the configuration names the family.
    pub is_served: bool,
    /// When the first change arrived that no sync has brought to the kernel. `None`: no change waits.
    pub pending: Option<Instant>,
    /// When the last change arrived; before the first one, when the recorder was made.
    pub queued: Option<SystemTime>,
    /// When the last successful sync of the family ended. A sync is successful if no operation on an object that all Services of the
    /// family depend on ([`Class::is_shared`]) failed or waits for its retry, as in kube-proxy.
    pub updated: Option<SystemTime>,
    /// How long the syncs took. Both families are synced together, so the durations are the same.
    pub durations: Histogram,
    /// Those of them that read the whole kernel.
    pub full: Histogram,
    /// All others.
    pub partial: Histogram,
    /// From the [trigger times](kernlink_services::EndpointSlice::trigger_time) of EndpointSlices that were delivered as single changes
    /// to the end of the sync that brought them to the kernel. Triggers before the recorder was made do not count.
    pub programming: Histogram,
}

impl Default for FamilyStatus {
    fn default() -> Self {
        Self {
            is_served: false,
            pending: None,
            queued: None,
            updated: None,
            durations: Histogram::new(SYNC_SECONDS),
            full: Histogram::new(SYNC_SECONDS),
            partial: Histogram::new(SYNC_SECONDS),
            programming: Histogram::new(PROGRAMMING_SECONDS),
        }
    }
}

/// Changes of objects of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeCounts {
    /// All changes. A full list counts as one change for each of its objects.
    pub total: u64,
    /// Changes that no sync has seen.
    pub pending: u64,
}

/// The last sync that ended with a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastSync {
    /// When it ended.
    pub ended: SystemTime,
    /// How long its stages took.
    pub durations: Durations,
    /// Its steps by outcome.
    pub counts: Counts,
}

/// Steps by outcome, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationCounts {
    /// Done.
    pub done: u64,
    /// Tried and failed.
    pub failed: u64,
    /// Not tried, because a step that they need was not done.
    pub skipped: u64,
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentEvent {
    /// When it was reported.
    pub time: SystemTime,
    /// The event.
    pub event: Event,
}

impl<T> Status<T> {
    /// The state of a family.
    #[must_use]
    pub fn family(&self, family: Family) -> &FamilyStatus {
        &self.families[family.index()]
    }

    /// The families that are served.
    pub fn served(&self) -> impl Iterator<Item = (Family, &FamilyStatus)> {
        let families = Family::ALL.into_iter().zip(&self.families);
        families.filter(|(_, status)| status.is_served)
    }

    /// The end of the last sync that was successful for every family that is served. `None`: for at least one of them there was none.
    #[must_use]
    pub fn last_success(&self) -> Option<SystemTime> {
        let mut last = None;
        for (_, family) in self.served() {
            let updated = family.updated?;
            last = Some(last.map_or(updated, |last: SystemTime| last.min(updated)));
        }
        last
    }

    /// When the first change arrived that no sync has brought to the kernel. `None`: no change waits.
    #[must_use]
    pub fn pending_since(&self) -> Option<Instant> {
        self.served().filter_map(|(_, family)| family.pending).min()
    }

    /// What the health endpoints answer. `sync_period` is that of [`Health::new`](crate::health::Health::new).
    #[cfg(feature = "health")]
    #[must_use]
    pub fn health(&self, sync_period: std::time::Duration) -> crate::health::Health {
        let mut health = crate::health::Health::new(sync_period);
        for (family, status) in self.served() {
            if let Some(updated) = status.updated {
                health.on_synced(family, updated);
            }
            if let Some(pending) = status.pending {
                health.on_change(family, pending);
            }
        }
        health
    }
}
