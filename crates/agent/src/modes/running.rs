//! A running data path, for what does not depend on the mode.

use std::any::Any;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use kernlink_proxier::Runner;
use kernlink_proxier::health::Health;
use kernlink_proxier::metrics::{Collect, Families, Metrics, prometheus};
use kernlink_proxier::runner::RunnerPanicked;
use kernlink_proxier::status::{Recorder, Status};
use kernlink_services::{Change, Family, Kind, SourceId, Subject};

use super::config::{Config, in_mode};
use super::query::AnyProxier;
use super::served::Served;
use crate::query::{documents, status};

/// A function that reads the proxier.
pub(crate) type Read = Box<dyn FnOnce(&dyn AnyProxier) + Send>;

/// The runner of any mode.
pub(crate) trait AnyRunner: fmt::Debug + Send {
    fn register_source(&self, source: SourceId, kind: Kind);

    fn change_all(&self, source: SourceId, changes: Vec<Change>);

    /// Calls a function with the status.
    fn with_status(&self, read: &mut dyn FnMut(&dyn AnyStatus));

    /// A copy of the status.
    fn status(&self) -> Box<dyn AnyStatus>;

    /// Calls a function with the proxier, on its thread, between two syncs. Returns at once.
    fn start_read(&self, read: Read);

    /// Ends its thread.
    ///
    /// # Errors
    /// If the thread panicked.
    fn stop(self: Box<Self>) -> Result<(), RunnerPanicked>;

    /// To call what depends on the mode.
    fn as_any(&self) -> &dyn Any;
}

impl<M: Served> AnyRunner for Runner<M> {
    fn register_source(&self, source: SourceId, kind: Kind) {
        Runner::register_source(self, source, kind);
    }

    fn change_all(&self, source: SourceId, changes: Vec<Change>) {
        Runner::change_all(self, source, changes);
    }

    fn with_status(&self, read: &mut dyn FnMut(&dyn AnyStatus)) {
        Runner::with_status(self, |status| read(status));
    }

    fn status(&self) -> Box<dyn AnyStatus> {
        Box::new(Runner::status(self))
    }

    fn start_read(&self, read: Read) {
        Runner::start_read(self, |proxier| read(proxier));
    }

    fn stop(self: Box<Self>) -> Result<(), RunnerPanicked> {
        Runner::stop(*self).map(drop)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Replaces the configuration of a runner, which is of the mode of this one.
pub(crate) fn set_config(runner: &dyn AnyRunner, config: &Config) {
    in_mode!(config, |M, settings| {
        let runner = runner.as_any().downcast_ref::<Runner<M>>();
        if let Some(runner) = runner {
            runner.set_config(M::of_settings(settings).clone());
        }
    });
}

/// The status of any mode.
pub(crate) trait AnyStatus {
    fn health(&self, sync_period: Duration) -> Health;

    fn is_node_eligible(&self) -> Option<bool>;

    /// Sets in an answer what the status has.
    fn fill(&self, document: &mut documents::Status, now: Instant, wall: SystemTime);

    /// The last events, the oldest first.
    fn recent(&self) -> Vec<(Subject, documents::RecentEvent)>;

    /// The page of metrics. `add` adds others to it.
    ///
    /// # Errors
    /// None in practice, see [`Metrics::encode`].
    fn encode(
        &self,
        metrics: &Metrics,
        add: &mut dyn FnMut(&mut Families),
    ) -> Result<String, prometheus::Error>;
}

impl<T: Collect + Clone> AnyStatus for Status<T> {
    fn health(&self, sync_period: Duration) -> Health {
        Status::health(self, sync_period)
    }

    fn is_node_eligible(&self) -> Option<bool> {
        self.is_node_eligible
    }

    fn fill(&self, document: &mut documents::Status, now: Instant, wall: SystemTime) {
        status::fill(self, document, now, wall);
    }

    fn recent(&self) -> Vec<(Subject, documents::RecentEvent)> {
        status::recent(self)
    }

    fn encode(
        &self,
        metrics: &Metrics,
        add: &mut dyn FnMut(&mut Families),
    ) -> Result<String, prometheus::Error> {
        metrics.encode_with(self, |page| add(page))
    }
}

/// The status before the first sync may begin.
pub(crate) fn no_status(config: &Config) -> Box<dyn AnyStatus> {
    let families: Vec<Family> = config.services().families.iter().copied().collect();
    in_mode!(config, |M, _settings| status_of::<M>(families))
}

fn status_of<M: Served>(families: Vec<Family>) -> Box<dyn AnyStatus> {
    let recorder = Recorder::<M::Totals>::new(families, SystemTime::now());
    Box::new(recorder.status().clone())
}
