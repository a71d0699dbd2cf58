//! Changes that waited and were merged have the result of the same changes one by one.
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use std::net::IpAddr;

use kernlink_services::{
    Change, Config, Endpoint, EndpointPort, EndpointSlice, Family, Kind, MergedChanges, Node, NodeAddress,
    NodeAddressType, ObjectChange, ObjectName, Port, Service, Services, SourceId,
};
use proptest::prelude::*;

fn service(name: u8, value: u8) -> Service {
    // Some of them are in conflict.
    Service::new(ObjectName::new("ns", format!("s{name}")))
        .with_cluster_ip(format!("10.96.0.{}", value % 5 + 1))
        .with_port(Port::new("", 80))
}

fn slice(name: u8, value: u8) -> EndpointSlice {
    let slice = EndpointSlice::new(
        ObjectName::new("ns", format!("e{name}")),
        format!("s{}", value % 4),
        Family::Ipv4,
    );
    let slice = slice.with_port(EndpointPort::new("", 8080));
    slice.with_endpoint(Endpoint::new([10, 244, name, value].into()))
}

fn node(name: u8, value: u8) -> Node {
    let mut node = Node::new(format!("n{name}"));
    node.addresses = vec![NodeAddress {
        address_type: NodeAddressType::Internal,
        address: IpAddr::from([192, 0, 2, value]),
    }];
    node
}

/// A change of one kind, made by these functions.
fn change_of<T: Clone + std::fmt::Debug + 'static>(
    object: fn(u8, u8) -> T,
    name: fn(u8) -> ObjectName,
    change: fn(ObjectChange<T>) -> Change,
) -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (0_u8..4, any::<u8>()).prop_map(move |(name, value)| ObjectChange::Upsert(object(name, value))),
        4 => (0_u8..4).prop_map(move |number| ObjectChange::Delete(name(number))),
        1 => prop::collection::vec((0_u8..4, any::<u8>()), 0..4)
            .prop_map(move |list| ObjectChange::ReplaceAll(list.into_iter().map(|(name, value)| object(name, value)).collect())),
        1 => Just(ObjectChange::Synced),
    ]
    .prop_map(change)
}

fn changes() -> impl Strategy<Value = Vec<(SourceId, Change)>> {
    let change = prop_oneof![
        change_of(
            service,
            |number| ObjectName::new("ns", format!("s{number}")),
            Change::Services
        ),
        change_of(
            slice,
            |number| ObjectName::new("ns", format!("e{number}")),
            Change::EndpointSlices
        ),
        change_of(
            node,
            |number| ObjectName::new("", format!("n{number}")),
            Change::Nodes
        ),
    ];
    let changes = prop::collection::vec(((0_u16..2).prop_map(SourceId), change), 0..40);
    // Nodes have one source: see `MergedChanges`.
    changes.prop_map(|mut changes| {
        for (source, change) in &mut changes {
            if change.kind() == Kind::Node {
                *source = SourceId(0);
            }
        }
        changes
    })
}

/// All that a data path, health and log get from the Services.
fn state(services: &mut Services) -> impl PartialEq + std::fmt::Debug + use<> {
    services.update();
    let mut frontends: Vec<_> = services
        .frontends()
        .map(|frontend| (frontend.key, format!("{:?}", frontend.owner)))
        .collect();
    frontends.sort();
    let mut objects: Vec<_> = services.services().cloned().collect();
    objects.sort_by(|a, b| a.name.cmp(&b.name));
    let mut not_synced = services.not_synced();
    if let Some(not_synced) = &mut not_synced {
        not_synced.sources.sort_unstable();
    }
    (
        frontends,
        objects,
        services.events(),
        not_synced,
        services.node_facts().clone(),
        services.node().cloned(),
    )
}

proptest! {
    #[test]
    fn merged_changes_have_the_result_of_the_same_changes_one_by_one(
        before in changes(),
        waiting in changes(),
    ) {
        let mut one_by_one = Services::new(Config::new("n0"));
        for (source, change) in before {
            one_by_one.change(source, change);
        }
        let mut merged = one_by_one.clone();
        let mut waited = MergedChanges::default();
        for (source, change) in waiting {
            one_by_one.change(source, change.clone());
            waited.add(source, change);
        }
        for (source, kind) in waited.registered().collect::<Vec<_>>() {
            merged.register_source(source, kind);
        }
        for (source, change) in waited.into_changes() {
            merged.change(source, change);
        }
        prop_assert_eq!(state(&mut merged), state(&mut one_by_one));
    }
}

#[test]
fn however_often_objects_change_one_change_of_each_waits() {
    let mut merged = MergedChanges::default();
    assert!(merged.is_empty());
    for round in 0..100_000_u32 {
        let value = u8::try_from(round % 250).unwrap();
        merged.add(
            SourceId(0),
            Change::Services(ObjectChange::Upsert(service(1, value))),
        );
        merged.add(
            SourceId(0),
            Change::EndpointSlices(ObjectChange::Upsert(slice(1, value))),
        );
        merged.add(
            SourceId(0),
            Change::Nodes(ObjectChange::ReplaceAll(vec![node(1, value)])),
        );
        let name = ObjectName::new("ns", "s2");
        merged.add(
            SourceId(0),
            Change::Services(ObjectChange::Upsert(service(2, value))),
        );
        merged.add(SourceId(0), Change::Services(ObjectChange::Delete(name)));
        merged.add(SourceId(0), Change::synced(Kind::Service));
    }
    let changes: Vec<_> = merged.into_changes().map(|(_, change)| change).collect();
    assert_eq!(
        changes,
        [
            Change::Services(ObjectChange::Upsert(service(1, 249))),
            Change::Services(ObjectChange::Delete(ObjectName::new("ns", "s2"))),
            Change::synced(Kind::Service),
            Change::EndpointSlices(ObjectChange::Upsert(slice(1, 249))),
            Change::Nodes(ObjectChange::Upsert(node(1, 248))),
            Change::Nodes(ObjectChange::ReplaceAll(vec![node(1, 249)])),
        ]
    );
}
