//! The cost of arbitration, counted.
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use super::{Arbitration, REPORTED_CONFLICTS};
use crate::config::Config;
use crate::event::Event;
use crate::model::Model;
use crate::source::{
    Change, Ingress, ObjectChange, ObjectName, Port, Service, ServiceType, SourceId, TrafficPolicy,
};

thread_local! {
    static VISITS: Cell<usize> = const { Cell::new(0) };
}

/// Counts a comparison of two service ports that define one key, or an event about one.
pub(super) fn count_visit() {
    VISITS.set(VISITS.get() + 1);
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

/// A Service with the external IP that all of them have; a higher number is younger.
fn sharing(number: u16) -> Service {
    let mut service = service(number);
    service.external_ips = vec!["203.0.113.9".to_owned()];
    service.created = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(number.into()));
    service
}

/// The largest number of visits and of events of one of these changes, each in an update of its own, and the number of all events.
fn most(
    cluster: &mut Cluster,
    changes: impl IntoIterator<Item = ObjectChange<Service>>,
) -> (usize, usize, usize) {
    let (mut visits, mut most, mut all) = (0, 0, 0);
    for change in changes {
        VISITS.set(0);
        let events = cluster.change([change]).len();
        visits = visits.max(VISITS.get());
        most = most.max(events);
        all += events;
    }
    (visits, most, all)
}

#[test]
fn a_change_of_one_of_2000_services_with_one_external_ip_visits_and_reports_few_of_them() {
    const NUMBER: u16 = 2_000;
    // A search in an ordered map with 2 000 entries needs fewer, and so do the events.
    const VISITS_OF_A_CHANGE: usize = 150;
    let delete = |number| ObjectChange::Delete(service(number).name);
    let add = |number| ObjectChange::Upsert(sharing(number));
    for is_reversed in [false, true] {
        let order = |number: u16| if is_reversed { NUMBER - 1 - number } else { number };
        let mut cluster = Cluster::new();
        let (visits, events, all) = most(&mut cluster, (0..NUMBER).map(order).map(add));
        assert!(visits < VISITS_OF_A_CHANGE, "{visits} visits");
        assert!(events <= REPORTED_CONFLICTS + 1, "{events} events");
        if !is_reversed {
            // Each is younger than all before: only the first are reported, and then powers of two.
            assert_eq!(all, REPORTED_CONFLICTS + 11);
        }
        assert_eq!(cluster.arbitration.events().len(), REPORTED_CONFLICTS + 1);

        // A change of the endpoints of one of them, of the kind of its frontend, and back.
        let mut balanced = sharing(NUMBER / 2);
        balanced.service_type = ServiceType::LoadBalancer;
        balanced.ingress = vec![Ingress {
            ip: "203.0.113.9".to_owned(),
            ..Ingress::default()
        }];
        let changes = [ObjectChange::Upsert(balanced), add(NUMBER / 2)];
        let (visits, events, _) = most(&mut cluster, changes);
        assert!(visits < 2 * VISITS_OF_A_CHANGE, "{visits} visits");
        assert_eq!(events, REPORTED_CONFLICTS + 1);

        let (visits, events, _) = most(&mut cluster, (0..NUMBER).map(order).map(delete));
        assert!(visits < VISITS_OF_A_CHANGE, "{visits} visits");
        assert!(events <= REPORTED_CONFLICTS + 1, "{events} events");
        assert_eq!(cluster.arbitration.events(), []);
    }
}

#[test]
fn services_with_one_external_ip_that_come_and_go_together_are_visited_and_reported_once() {
    const NUMBER: u16 = 2_000;
    let mut cluster = Cluster::new();
    VISITS.set(0);
    let events = cluster.change((0..NUMBER).map(|number| ObjectChange::Upsert(sharing(number))));
    let texts: Vec<String> = events.iter().map(ToString::to_string).collect();
    assert_eq!(events.len(), REPORTED_CONFLICTS + 1, "{texts:?}");
    let more = "Service ns/s00000: 203.0.113.9:80/TCP is defined by more Services than are reported one by one, at least 1024; \
                not programmed for them";
    assert!(texts.iter().any(|text| text == more), "{texts:?}");
    let each = VISITS.get() / usize::from(NUMBER);
    assert!(each < 50, "{each} visits for each");
    VISITS.set(0);
    let events = cluster.change((0..NUMBER - 1).map(|number| ObjectChange::Delete(service(number).name)));
    assert_eq!(events, []);
    let each = VISITS.get() / usize::from(NUMBER);
    assert!(each < 50, "{each} visits for each");
}

#[test]
fn many_services_with_one_health_check_node_port_are_reported_by_few_events() {
    let mut cluster = Cluster::new();
    let checked = |number: u16| {
        let mut service = sharing(number).with_port(Port::new("more", 81));
        service.external_ips.clear();
        service.service_type = ServiceType::LoadBalancer;
        service.external_traffic_policy = TrafficPolicy::Local;
        service.health_check_node_port = 32_001;
        ObjectChange::Upsert(service)
    };
    let events = cluster.change((0..200).map(checked));
    assert_eq!(events.len(), REPORTED_CONFLICTS + 1, "{events:?}");
    let text = events[0].to_string();
    let more = "Service ns/s00000: health-check node port 32001 is defined by more Services than are reported one by one, at least 128; \
                not served for them";
    assert_eq!(text, more);
    let (_, most, _) = most(
        &mut cluster,
        (0..199).map(|number| ObjectChange::Delete(service(number).name)),
    );
    assert!(most <= REPORTED_CONFLICTS + 1, "{most} events");
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
