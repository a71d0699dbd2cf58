//! The cost of arbitration, counted.
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use std::cell::Cell;

use super::Arbitration;
use crate::config::Config;
use crate::event::Event;
use crate::model::Model;
use crate::source::{Change, ObjectChange, ObjectName, Port, Service, SourceId};

thread_local! {
    static COMPARISONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts a comparison of two service ports that define one key.
pub(super) fn count_comparison() {
    COMPARISONS.set(COMPARISONS.get() + 1);
}

/// A model with the arbitration of its service ports.
struct Cluster {
    model: Model,
    arbitration: Arbitration,
}

impl Cluster {
    fn new() -> Self {
        Self {
            model: Model::new(Config::new("node-a")),
            arbitration: Arbitration::default(),
        }
    }

    /// Applies changes in one update. Returns the new events.
    fn change(&mut self, changes: impl IntoIterator<Item = ObjectChange<Service>>) -> Vec<Event> {
        for change in changes {
            self.model.change(SourceId(0), Change::Services(change));
        }
        let affected = self.model.take_affected();
        self.arbitration.update(&self.model, affected).events
    }
}

/// A Service with a cluster IP of its own.
fn service(number: u16) -> Service {
    let [high, low] = number.to_be_bytes();
    Service::new(ObjectName::new("ns", format!("s{number:05}")))
        .with_cluster_ip(format!("10.96.{high}.{low}"))
        .with_port(Port::new("http", 80))
}

#[test]
fn taking_the_changes_does_not_cost_the_size_of_the_largest_change() {
    let mut cluster = Cluster::new();
    cluster.change((0..2_000).map(|number| ObjectChange::Upsert(service(number))));
    assert!(cluster.arbitration.changed.capacity() >= 2_000);
    cluster.arbitration.take_changes();
    for number in 0..3 {
        cluster.change([ObjectChange::Delete(service(number).name)]);
        let capacity = cluster.arbitration.changed.capacity();
        assert!(capacity < 100, "{capacity} places for one change");
        assert_eq!(cluster.arbitration.take_changes().ports.len(), 1);
    }
}
