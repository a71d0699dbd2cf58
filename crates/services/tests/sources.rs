//! Several sources, and the first full lists that a data path waits for.
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use std::net::IpAddr;

use kernlink_services::{
    Change, Config, Kind, Node, ObjectChange, ObjectName, Port, Service, Services, SourceId,
};

fn service(address: &str) -> Change {
    let service = Service::new(ObjectName::new("ns", "s"))
        .with_cluster_ip(address)
        .with_port(Port::new("", 80));
    Change::Services(ObjectChange::Upsert(service))
}

#[test]
fn every_source_must_deliver_its_first_full_lists() {
    let mut services = Services::new(Config::new("node-a"));
    let text = |services: &Services| services.not_synced().unwrap().to_string();
    assert_eq!(
        text(&services),
        "no source delivers Service; no source delivers EndpointSlice"
    );
    services.change(SourceId(0), Change::synced(Kind::Service));
    assert_eq!(text(&services), "no source delivers EndpointSlice");
    services.change(SourceId(0), Change::synced(Kind::EndpointSlice));
    assert!(services.has_synced());
    services.register_source(SourceId(7), Kind::EndpointSlice);
    assert_eq!(
        text(&services),
        "waiting for the first full list of EndpointSlice from source 7"
    );
    services.change(SourceId(7), Change::synced(Kind::EndpointSlice));
    assert!(services.has_synced());
    services.change(SourceId(8), Change::Nodes(ObjectChange::Upsert(Node::new("n"))));
    assert_eq!(
        text(&services),
        "waiting for the first full list of Node from source 8"
    );
    services.remove_source(SourceId(8));
    assert!(services.has_synced());
}

#[test]
fn a_source_whose_objects_were_replaced_has_synced_and_has_no_other_ones() {
    let named = |name, address: IpAddr| {
        let service = Service::new(ObjectName::new("ns", name));
        service.with_cluster_ip(address).with_port(Port::new("", 80))
    };
    let addresses = |services: &Services| {
        let frontends = services.frontends();
        frontends
            .map(|owned| owned.key.address.to_string())
            .collect::<Vec<_>>()
    };
    let mut services = Services::new(Config::new("node-a"));
    for change in Change::replace_all(vec![named("a", [10, 96, 0, 1].into())], Vec::new()) {
        services.change(SourceId(0), change);
    }
    assert!(services.has_synced());
    services.update();
    assert_eq!(addresses(&services), ["10.96.0.1"]);
    for change in Change::replace_all(vec![named("b", [10, 96, 0, 2].into())], Vec::new()) {
        services.change(SourceId(0), change);
    }
    services.update();
    assert_eq!(addresses(&services), ["10.96.0.2"]);
}

#[test]
fn deleting_an_object_does_not_register_a_source() {
    let mut services = Services::new(Config::new("node-a"));
    for kind in [Kind::Service, Kind::EndpointSlice] {
        services.change(SourceId(0), Change::synced(kind));
    }
    let name = ObjectName::new("ns", "s");
    services.change(SourceId(9), Change::Services(ObjectChange::Delete(name)));
    assert!(services.has_synced());
}

#[test]
fn the_source_with_the_lower_id_takes_precedence_and_both_are_reported() {
    let mut services = Services::new(Config::new("node-a"));
    assert_eq!(services.change(SourceId(2), service("10.96.0.2")), []);
    let events = services.change(SourceId(1), service("10.96.0.1"));
    assert_eq!(
        events[0].to_string(),
        "Service ns/s: both source 1 and source 2 deliver this object; that of source 1 is used"
    );
    let address = |services: &mut Services| {
        services.update();
        let frontends: Vec<_> = services
            .frontends()
            .map(|frontend| frontend.key.to_string())
            .collect();
        frontends.join(" ")
    };
    assert_eq!(address(&mut services), "10.96.0.1:80/TCP");
    services.remove_source(SourceId(1));
    assert_eq!(address(&mut services), "10.96.0.2:80/TCP");
    services.remove_source(SourceId(2));
    assert_eq!(address(&mut services), "");
}
