//! The whole: objects in, kernel state out.

use std::collections::BTreeSet;
use std::fmt;

use kernlink_ipvs::VirtualServerKey;

use crate::apply::{self, Counts, Outcome, Report};
use crate::backends::Backends;
use crate::config::Config;
use crate::desired::{Changes, DesiredState};
use crate::error::{BackendError, SyncError};
use crate::event::Event;
use crate::family::Family;
use crate::model::Model;
use crate::observe::{self, Observation};
use crate::plan::{Plan, diff};
use crate::source::{Change, Kind, SourceId};

/// Holds the model, the desired state and the backends, and keeps the kernel at what the model says.
///
/// One proxier serves one or both address families. It has no thread and no clock: the embedder calls
/// [`sync`](Self::sync) when something changed, and from time to time.
#[derive(Debug)]
pub struct Proxier {
    model: Model,
    desired: DesiredState,
    backends: Backends,
    /// What the kernel held last and what was done since; `None` before the first look and after a failure.
    observed: Option<Observation>,
    /// Virtual servers that were wanted and are no more, until they are gone.
    given_up: BTreeSet<VirtualServerKey>,
    /// What was said about the configuration.
    said: Vec<Event>,
}

impl Proxier {
    /// A proxier without objects.
    #[must_use]
    pub fn new(config: Config, backends: Backends) -> Self {
        let model = Model::new(config);
        let desired = DesiredState::new(&model);
        Self {
            model,
            desired,
            backends,
            observed: None,
            given_up: BTreeSet::new(),
            said: Vec::new(),
        }
    }

    /// Takes in what a source says, and returns what is odd about it. Nothing happens in the kernel before the next sync.
    pub fn change(&mut self, source: SourceId, change: Change) -> Vec<Event> {
        self.model.change(source, change)
    }

    /// Waits for a source's first full list of a kind before anything is planned; for sources that may come late.
    pub fn expect(&mut self, source: SourceId, kind: Kind) {
        self.model.expect(source, kind);
    }

    /// Replaces the configuration.
    pub fn set_config(&mut self, config: Config) {
        self.model.set_config(config);
        self.observed = None;
    }

    /// Has the next plan or sync look at the whole kernel again, for changes that others may have made. Call it from time to
    /// time, or when told of such a change.
    pub fn look_again(&mut self) {
        self.observed = None;
    }

    /// What would be done, without doing it.
    ///
    /// # Errors
    /// [`SyncError::NotReady`] before every source has delivered its first full lists; what could not be read.
    pub fn plan(&mut self) -> Result<Planned, SyncError> {
        if !self.model.is_ready() {
            return Err(SyncError::NotReady);
        }
        let mut events = self.fold();
        let mut observation = match self.observed.take() {
            Some(mut observation) => {
                observe::complete(&mut self.backends, &self.desired, &mut observation)?;
                observation
            }
            None => observe::observe(&mut self.backends, &self.desired)?,
        };
        // Which addresses this node has decides where node ports are served.
        self.model
            .set_interface_addresses(observe::interface_addresses(&self.desired, &observation.state));
        events.extend(self.fold());
        self.given_up
            .retain(|key| observation.state.virtual_servers.contains_key(key));
        observation.state.given_up = std::mem::take(&mut self.given_up);
        let plan = diff(&self.desired, &observation.state);
        self.given_up = std::mem::take(&mut observation.state.given_up);
        let unread = observation.failures.clone();
        self.observed = Some(observation);
        Ok(Planned { plan, events, unread })
    }

    /// Makes the kernel hold what the model says, and reports what was done and what failed. What failed is tried again at the
    /// next sync, after a new look at the kernel. A second sync without a change in between does nothing.
    ///
    /// # Errors
    /// As [`plan`](Self::plan). Steps that fail are in the report.
    pub fn sync(&mut self) -> Result<Synced, SyncError> {
        let Planned { plan, events, unread } = self.plan()?;
        let report = match &mut self.observed {
            Some(observation) => apply::apply(&plan, &mut self.backends, &mut observation.state),
            None => Report::default(),
        };
        if self
            .observed
            .as_ref()
            .is_some_and(|observation| observation.state.is_stale)
            || !unread.is_empty()
        {
            self.observed = None;
        }
        Ok(Synced {
            plan,
            report,
            events,
            unread,
        })
    }

    /// What the kernel should hold. Up to date after a plan or sync.
    #[must_use]
    pub fn desired(&self) -> &DesiredState {
        &self.desired
    }

    /// The objects and what they mean on this node.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The backends, for a look at the kernel beside the proxier's own.
    pub fn backends_mut(&mut self) -> &mut Backends {
        &mut self.backends
    }

    /// Ends the proxier; the kernel stays as it is.
    #[must_use]
    pub fn into_backends(self) -> Backends {
        self.backends
    }

    fn fold(&mut self) -> Vec<Event> {
        let touched = self.model.take_touched();
        if touched.is_empty() {
            return Vec::new();
        }
        let mut events = self.desired.fold(&self.model, &touched).events;
        if let Changes::Keys(keys) = self.desired.take_changes() {
            for key in keys.virtual_servers {
                if self.desired.virtual_server(&key).is_some() {
                    self.given_up.remove(&key);
                } else {
                    self.given_up.insert(key);
                }
            }
        }
        if touched.settings {
            let now = self.model.configuration_events();
            events.extend(now.iter().filter(|event| !self.said.contains(event)).cloned());
            self.said = now;
        }
        events
    }
}

/// A plan, and what came up while making it.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What would be done.
    pub plan: Plan,
    /// What an operator should know that was not so before.
    pub events: Vec<Event>,
    /// Families whose tables could not be read: their rules are not in the plan.
    pub unread: Vec<(Family, BackendError)>,
}

/// What a sync did.
#[derive(Clone, Debug, PartialEq)]
pub struct Synced {
    /// What was to be done.
    pub plan: Plan,
    /// What became of it, step by step.
    pub report: Report,
    /// What an operator should know that was not so before.
    pub events: Vec<Event>,
    /// Families whose tables could not be read: their rules were left as they are.
    pub unread: Vec<(Family, BackendError)>,
}

impl Synced {
    /// Whether the kernel now holds all that it should.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.report.is_success() && self.unread.is_empty()
    }

    /// How many steps were done, failed and held back.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.report.counts()
    }
}

impl fmt::Display for Synced {
    /// The counts, then a line for each step that did not succeed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.counts())?;
        for (family, error) in &self.unread {
            write!(f, "\n{family} rules: {}", crate::error::with_sources(error))?;
        }
        for ((_, step), outcome) in self.plan.steps().zip(self.report.outcomes()) {
            match outcome {
                Outcome::Done => {}
                Outcome::Failed(error) => {
                    write!(
                        f,
                        "\nfailed: {}: {}",
                        step.operation.summary(),
                        crate::error::with_sources(error)
                    )?;
                }
                Outcome::HeldBack { by } => write!(
                    f,
                    "\nheld back by step {}: {}",
                    by.index(),
                    step.operation.summary()
                )?,
            }
        }
        Ok(())
    }
}
