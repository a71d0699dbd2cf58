//! A running data path, for what does not depend on the mode.

use std::any::Any;
use std::fmt;
use std::time::{Duration, SystemTime};

use kernlink_proxier::Runner;
use kernlink_proxier::health::Health;
use kernlink_proxier::metrics::{Collect, Families, Metrics, prometheus};
use kernlink_proxier::runner::RunnerPanicked;
use kernlink_proxier::status::{Recorder, Status};
use kernlink_services::{Change, Family, Kind, SourceId};

use super::config::{Config, in_mode};
use super::served::Served;

/// The runner of any mode.
pub(crate) trait AnyRunner: fmt::Debug + Send {
    fn register_source(&self, source: SourceId, kind: Kind);

    fn change_all(&self, source: SourceId, changes: Vec<Change>);

    /// Calls a function with the status.
    fn with_status(&self, read: &mut dyn FnMut(&dyn AnyStatus));

    /// A copy of the status.
    fn status(&self) -> Box<dyn AnyStatus>;

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

    fn stop(self: Box<Self>) -> Result<(), RunnerPanicked> {
        Runner::stop(*self).map(drop)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The status of any mode.
pub(crate) trait AnyStatus {
    fn health(&self, sync_period: Duration) -> Health;

    fn is_node_eligible(&self) -> Option<bool>;

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
