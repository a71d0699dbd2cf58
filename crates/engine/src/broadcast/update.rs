//! What a listener receives.

use std::collections::BTreeMap;
use std::sync::Arc;

use kernlink_services::{Family, FrontendKey, HealthCheck, NodeFacts, ServicePort};

/// Changes that lead from one state of the Services to a later one; with a snapshot, from nothing.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Update {
    /// The number of the state after this update. It increases by 1 with each change, so a listener that reads in time receives every number; an
    /// update that was merged has the last one.
    pub revision: u64,
    /// Whether this is everything: what an earlier update had and this one does not have is gone.
    pub is_snapshot: bool,
    /// The service port that owns the frontend, with its endpoints, for each frontend of a service port that was added or changed. `None`: the
    /// frontend was removed.
    pub frontends: BTreeMap<FrontendKey, Option<Arc<ServicePort>>>,
    /// The health-check node ports that were added or changed. `None`: it was removed.
    pub health_checks: BTreeMap<(Family, u16), Option<Arc<HealthCheck>>>,
    /// The facts of the node, if they or the configuration changed.
    pub node: Option<Arc<NodeFacts>>,
}

impl Update {
    /// Adds the next update: the result leads to its state. Merged into a snapshot, it is a snapshot of that state, without the entries that were
    /// removed; so a listener keeps the present state by merging what it receives into the first update.
    pub fn merge(&mut self, next: &Self) {
        if next.is_snapshot {
            self.clone_from(next);
            return;
        }
        self.revision = next.revision;
        let is_snapshot = self.is_snapshot;
        merge(&mut self.frontends, &next.frontends, is_snapshot);
        merge(&mut self.health_checks, &next.health_checks, is_snapshot);
        if next.node.is_some() {
            self.node.clone_from(&next.node);
        }
    }
}

fn merge<K: Copy + Ord, V>(
    into: &mut BTreeMap<K, Option<Arc<V>>>,
    next: &BTreeMap<K, Option<Arc<V>>>,
    is_snapshot: bool,
) {
    for (key, value) in next {
        match value {
            None if is_snapshot => _ = into.remove(key),
            value => _ = into.insert(*key, value.clone()),
        }
    }
}
