//! A change costs what it touches, not what exists.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

use kernlink_proxier::config::Config;
use kernlink_proxier::desired::{ChangedKeys, Changes, DesiredState};
use kernlink_proxier::family::Family;
use kernlink_proxier::model::{InterfaceAddress, Model};
use kernlink_proxier::source::{
    Change, Endpoint, EndpointPort, EndpointSlice, Node, ObjectChange, ObjectName, Policy, Port, Service,
    ServiceType, SourceId,
};

/// Services of every sort; the one of number 3 is what the changes are about.
fn services(size: u32) -> (Model, DesiredState) {
    let mut model = Model::new(Config::new("node-a"));
    model.set_interface_addresses(addresses(&["192.0.2.1", "192.0.2.2"]));
    for number in 0..size {
        model.change(
            SourceId(0),
            Change::Services(ObjectChange::Upsert(service(number))),
        );
        model.change(
            SourceId(0),
            Change::EndpointSlices(ObjectChange::Upsert(slice(number, 10))),
        );
    }
    let mut desired = DesiredState::new(&model);
    let touched = model.take_touched();
    assert_eq!(desired.fold(&model, &touched).contributions, size as usize);
    desired.take_changes();
    (model, desired)
}

fn addresses(addresses: &[&str]) -> Vec<InterfaceAddress> {
    addresses
        .iter()
        .map(|address| InterfaceAddress::new("eth0", address.parse().unwrap()))
        .collect()
}

fn service(number: u32) -> Service {
    let [_, _, high, low] = number.to_be_bytes();
    let mut service = Service::new(ObjectName::new("ns", format!("s{number}")))
        .with_cluster_ip(format!("10.96.{high}.{low}"))
        .with_port(Port::new("http", 80));
    match number % 4 {
        1 => service.external_ips = vec![format!("203.0.{high}.{low}")],
        2 => {
            service.service_type = ServiceType::NodePort;
            service.ports[0].node_port = 30_000 + number as u16;
        }
        3 => service.external_traffic_policy = Policy::Local,
        _ => {}
    }
    service
}

fn slice(number: u32, endpoints: u8) -> EndpointSlice {
    let [_, _, high, low] = number.to_be_bytes();
    let slice = EndpointSlice::new(
        ObjectName::new("ns", format!("s{number}-x")),
        format!("s{number}"),
        Family::V4,
    )
    .with_port(EndpointPort::new("http", 8_080));
    (0..endpoints).fold(slice, |slice, endpoint| {
        let node = if endpoint == 9 { "node-a" } else { "node-b" };
        slice.with_endpoint(Endpoint::new([11, high, low, endpoint].into()).with_node(node))
    })
}

/// What a change recomputed, which map entries it touched, and what a planner is told.
fn cost(model: &mut Model, desired: &mut DesiredState) -> (usize, usize, ChangedKeys) {
    let touched = model.take_touched();
    let folded = desired.fold(model, &touched);
    match desired.take_changes() {
        Changes::Keys(keys) => (folded.contributions, folded.map_entries, keys),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_change_touches_the_same_at_every_size() {
    let mut costs = Vec::new();
    for size in [10, 100, 1_000, 5_000] {
        let (mut model, mut desired) = services(size);
        let mut of_size = Vec::new();
        let mut change = |change: Change| {
            model.change(SourceId(0), change);
            of_size.push(cost(&mut model, &mut desired));
        };
        // One remote endpoint less, and the local one with it, which has an entry of its own.
        change(Change::EndpointSlices(ObjectChange::Upsert(slice(3, 9))));
        change(Change::EndpointSlices(ObjectChange::Upsert(slice(3, 8))));
        change(Change::EndpointSlices(ObjectChange::Upsert(slice(3, 10))));
        // The same again is no change.
        change(Change::EndpointSlices(ObjectChange::Upsert(slice(3, 10))));
        change(Change::Services(ObjectChange::Delete(ObjectName::new(
            "ns", "s3",
        ))));
        change(Change::Services(ObjectChange::Upsert(service(3))));
        // A node that nobody's virtual IP belongs to.
        change(Change::Nodes(ObjectChange::Upsert(
            Node::new("node-c").with_internal_address([192, 0, 2, 77].into()),
        )));
        costs.push(of_size);
    }
    let contributions: Vec<usize> = costs[0]
        .iter()
        .map(|(contributions, ..)| *contributions)
        .collect();
    assert_eq!(contributions, [1, 1, 1, 0, 0, 1, 0]);
    let [first, rest @ ..] = &costs[..] else { panic!() };
    for other in rest {
        assert_eq!(first, other);
    }
}

#[test]
fn an_address_of_the_node_touches_only_what_depends_on_it() {
    let (mut model, mut desired) = services(400);
    // Node ports are served at every address.
    model.set_interface_addresses(addresses(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]));
    let (contributions, _, keys) = cost(&mut model, &mut desired);
    assert_eq!(contributions, 100);
    assert_eq!(keys.virtual_servers.len(), 100);
    assert_eq!(keys.addresses.len(), 0);
    // An external IP that comes to another link is bound no longer.
    let mut with_external = addresses(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    with_external.push(InterfaceAddress::new("kube-ipvs0", [203, 0, 0, 1].into()));
    model.set_interface_addresses(with_external.clone());
    assert_eq!(cost(&mut model, &mut desired).0, 0);
    with_external.push(InterfaceAddress::new("eth1", [203, 0, 0, 1].into()));
    model.set_interface_addresses(with_external);
    let (contributions, _, keys) = cost(&mut model, &mut desired);
    assert_eq!(contributions, 101);
    assert_eq!(keys.addresses.len(), 1);
}
