//! The changes between two states of the service ports.

use std::collections::{BTreeSet, HashSet};

use foldhash::quality::RandomState;
use kernlink_base::Family;

use super::frontend::FrontendKey;
use super::slab::ServicePortId;
use crate::event::Event;
use crate::source::ObjectName;

/// What changed since [`Services::take_changes`](crate::Services::take_changes) was called last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// Service ports that were added or removed, or whose resolution or owned frontends changed. Each occurs once, in the order of
    /// the changes.
    pub ports: Vec<ServicePortId>,
    /// Services that an update resolved again, because they, their EndpointSlices or facts of the node changed. Each update appends
    /// a Service at most once.
    pub services: Vec<ObjectName>,
    /// Frontends that were added or removed, or whose owner, configuration or endpoints changed.
    pub frontends: HashSet<FrontendKey, RandomState>,
    /// Health-check node ports that were added or removed, or whose Service or number of endpoints changed.
    pub health_checks: BTreeSet<(Family, u16)>,
    /// Whether the facts of this node or the configuration changed.
    pub node: bool,
}

impl Changes {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
            && self.services.is_empty()
            && self.frontends.is_empty()
            && self.health_checks.is_empty()
            && !self.node
    }
}

/// The outcome of [`Services::update`](crate::Services::update).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateReport {
    /// The number of service ports that were resolved again.
    pub resolved: usize,
    /// The number of entries of the owner maps that were changed. Tests of the cost of an update use it.
    pub map_entries: usize,
    /// Events that did not exist before the update, sorted.
    pub events: Vec<Event>,
}
