//! Stale UDP flows in connection tracking.

use std::sync::Arc;

use kernlink_services::{Family, Port, Protocol, ServiceType};
use kernlink_userspace::data_path::Phase;

use super::support::*;

/// Service `dns` with node port 30053.
fn with_udp_node_port() -> kernlink_services::Service {
    let mut service = dns();
    service.service_type = ServiceType::NodePort;
    service.ports = vec![
        Port::new("dns", 53)
            .with_protocol(Protocol::Udp)
            .with_node_port(30_053),
    ];
    service
}

/// The listening port of Service `dns`.
fn port(fixture: &Fixture) -> u16 {
    let state = fixture.sockets.lock();
    state.listeners.keys().next().unwrap().address.port()
}

/// Adds flows to Service `dns` through rules to a listening port, and others.
fn add_flows(tracking: &Tracking, port: u16) -> Vec<String> {
    // To the cluster IP from outside and from the node, to the node port.
    tracking.add(
        "198.51.100.1:1001",
        "10.96.0.10:53",
        &format!("192.0.2.10:{port}"),
    );
    tracking.add("192.0.2.10:1002", "10.96.0.10:53", &format!("192.0.2.10:{port}"));
    tracking.add(
        "198.51.100.1:1003",
        "192.0.2.10:30053",
        &format!("192.0.2.10:{port}"),
    );
    // To another port, another address, a foreign server with the number of the node port.
    tracking.add("198.51.100.1:2001", "10.96.0.10:54", "192.0.2.10:9999");
    tracking.add("198.51.100.1:2002", "10.96.0.11:53", "192.0.2.10:9999");
    tracking.add("198.51.100.1:2003", "203.0.113.9:30053", "203.0.113.9:30053");
    let others = tracking.all().into_iter();
    others.filter(|flow| flow.starts_with('2')).collect()
}

fn passes(synced: &kernlink_userspace::data_path::Synced) -> usize {
    let phases = synced.plan.phases().iter();
    let flows = phases.filter(|phase| phase.kind == Phase::DeleteFlows);
    flows.map(|phase| phase.steps.len()).sum()
}

#[test]
fn flows_to_a_deleted_service_are_deleted_and_no_others() {
    let mut fixture = Fixture::new();
    fixture.services(vec![with_udp_node_port()]).sync();
    let others = add_flows(&fixture.tracking, port(&fixture));
    // Without a change nothing is deleted, and the table is not listed.
    let listings = *fixture.tracking.listings.lock().unwrap();
    fixture.endpoints("dns", &[3]).sync();
    assert_eq!(fixture.tracking.all().len(), 6);
    assert_eq!(*fixture.tracking.listings.lock().unwrap(), listings);
    let synced = fixture.delete("dns").sync();
    assert_eq!(passes(&synced), 1, "{}", synced.plan);
    assert_eq!(fixture.tracking.all(), others);
}

#[test]
fn flows_are_deleted_after_rules_changed_and_before_the_listening_port_is_closed() {
    let mut fixture = Fixture::new();
    fixture.services(vec![dns()]).sync();
    let synced = fixture.delete("dns").try_sync();
    let kinds: Vec<Phase> = synced.plan.phases().iter().map(|phase| phase.kind).collect();
    assert_eq!(kinds, [Phase::Deletions, Phase::DeleteFlows, Phase::Closing]);
}

#[test]
fn flows_to_a_former_listening_port_are_deleted() {
    let mut fixture = Fixture::new();
    fixture.services(vec![with_udp_node_port()]).sync();
    let others = add_flows(&fixture.tracking, port(&fixture));
    let mut config = config();
    config.port_range = "50000-50099".parse().unwrap();
    fixture.set_config(&config).sync();
    assert_eq!(fixture.tracking.all(), others);
    // Those to the present one are not.
    add_flows(&Tracking::default(), 0);
    let flow = ("198.51.100.1:1001", "10.96.0.10:53");
    let reply = format!("192.0.2.10:{}", port(&fixture));
    fixture.tracking.add(flow.0, flow.1, &reply);
    fixture.proxier.resync();
    fixture.sync();
    assert_eq!(fixture.tracking.all().len(), others.len() + 1);
}

#[test]
fn flows_that_began_before_the_service_are_deleted() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 11)]).sync();
    let mut service = with_udp_node_port();
    service.external_ips = vec!["203.0.113.5".into(), "192.0.2.10".into()];
    for (client, destination) in [
        ("198.51.100.1:1001", "10.96.0.10:53"),
        ("198.51.100.1:1002", "192.0.2.10:30053"),
        ("198.51.100.1:1003", "192.0.2.10:53"),
        // Programs of the node and bridged pods reach the external IP itself also with the Service.
        ("192.0.2.10:2001", "203.0.113.5:53"),
    ] {
        fixture.tracking.add(client, destination, destination);
    }
    fixture
        .tracking
        .add("198.51.100.1:1004", "203.0.113.5:53", "10.244.0.9:53");
    fixture.change(service).sync();
    assert_eq!(fixture.tracking.all(), ["2001 203.0.113.5:53 203.0.113.5:53"]);
}

#[test]
fn a_restart_without_a_change_deletes_no_flow() {
    let mut earlier = Fixture::new();
    earlier.services(vec![with_udp_node_port()]).sync();
    add_flows(&earlier.tracking, port(&earlier));
    let flows = earlier.tracking.all();
    let tracking = earlier.tracking.clone();
    let mut new = Fixture::tracking(
        &config(),
        earlier.tables.clone(),
        Default::default(),
        tracking.clone(),
    );
    let listings = *tracking.listings.lock().unwrap();
    let synced = new.services(vec![with_udp_node_port()]).try_sync();
    assert_eq!(passes(&synced), 0, "{}", synced.plan);
    assert_eq!(*tracking.listings.lock().unwrap(), listings + 1);
    new.sync();
    assert_eq!(tracking.all(), flows);
}

#[test]
fn a_new_process_deletes_the_flows_that_the_one_before_left() {
    let mut earlier = Fixture::new();
    earlier.services(vec![with_udp_node_port()]).sync();
    // It ended after it had written rules to another port, and before it deleted flows.
    let others = add_flows(&earlier.tracking, 39_999);
    let tracking = earlier.tracking.clone();
    let tables = earlier.tables.clone();
    let mut new = Fixture::tracking(&config(), tables, Default::default(), tracking.clone());
    let synced = new.services(vec![with_udp_node_port()]).sync();
    assert_eq!(passes(&synced), 1, "{}", synced.plan);
    assert_eq!(tracking.all(), others);

    // The Service was deleted while no process ran.
    tracking.fake.lock().unwrap().clear();
    let others = add_flows(&tracking, port(&new));
    let mut third = Fixture::tracking(
        &config(),
        new.tables.clone(),
        Default::default(),
        tracking.clone(),
    );
    third.services(vec![web("web", 11)]).sync();
    assert_eq!(tracking.all(), others);
}

#[test]
fn a_pass_that_failed_is_repeated() {
    let mut fixture = Fixture::new();
    fixture.services(vec![with_udp_node_port()]).sync();
    let others = add_flows(&fixture.tracking, port(&fixture));
    *fixture.tracking.failing.lock().unwrap() = 1;
    let synced = fixture.delete("dns").try_sync();
    assert_eq!(synced.report.counts().failed, 1, "{synced}");
    assert_eq!(fixture.tracking.all().len(), 6);
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4), [] as [&str; 0]);
    assert!(synced.next.is_some());
    fixture.sync();
    assert_eq!(fixture.tracking.all(), others);
}

#[test]
fn without_connection_tracking_services_are_served_and_one_event_reports_it() {
    let tracking = Tracking {
        fake: Arc::default(),
        ..Tracking::default()
    };
    *tracking.failing.lock().unwrap() = u32::MAX;
    let mut earlier = Fixture::new();
    earlier.services(vec![dns()]).sync();
    let mut fixture = Fixture::tracking(&config(), earlier.tables.clone(), Default::default(), tracking);
    let synced = fixture.services(vec![dns()]).try_sync();
    assert!(synced.is_success(), "{synced}");
    let events = synced.events.iter().map(ToString::to_string);
    let events: Vec<String> = events.filter(|event| event.contains("UDP flows")).collect();
    assert_eq!(events.len(), 1, "{:?}", synced.events);
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 2);
}
