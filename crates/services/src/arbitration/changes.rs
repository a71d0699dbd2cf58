//! What an update changed.

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
    /// Service ports that were added, removed, or resolve differently, or that own other frontends than before. Each once, in
    /// the order of the changes.
    pub ports: Vec<ServicePortId>,
    /// Services that an update resolved again, because an object of theirs or something that they depend on changed. An update
    /// appends each once.
    pub services: Vec<ObjectName>,
    /// Frontends whose owner, settings or endpoints changed, or that are gone.
    pub frontends: HashSet<FrontendKey, RandomState>,
    /// Health-check node ports that were added, removed, or count other endpoints.
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

/// What an update did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateReport {
    /// The number of service ports that were resolved again.
    pub resolved: usize,
    /// The number of map entries that were looked up to change them.
    pub map_entries: usize,
    /// New events.
    pub events: Vec<Event>,
}
