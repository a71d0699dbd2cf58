//! The order of changes that one fact causes.
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use kernlink_services::{
    Change, Config, InterfaceAddress, Kind, ObjectChange, ObjectName, Port, Service, Services, SourceId,
};

const NUMBER: usize = 40;

/// Services with node ports, added in order of name.
fn services() -> Services {
    let mut services = Services::new(Config::new("node-a"));
    for number in 0..NUMBER {
        let service = Service::new(ObjectName::new("ns", format!("s{number:02}").as_str()))
            .with_cluster_ip(format!("10.96.0.{number}").as_str())
            .with_port(Port::new("", 80).with_node_port(30_000 + u16::try_from(number).unwrap()));
        services.change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
    }
    services.change(SourceId(0), Change::synced(Kind::EndpointSlice));
    services.update();
    assert_eq!(services.take_changes().services.len(), NUMBER);
    services
}

#[track_caller]
fn assert_sorted(mut services: Services) {
    services.update();
    let changed = services.take_changes().services;
    assert_eq!(changed.len(), NUMBER);
    assert!(changed.is_sorted(), "{changed:?}");
}

#[test]
fn services_that_depend_on_an_address_of_the_node_change_in_order_of_name() {
    let mut services = services();
    let address = InterfaceAddress::new("eth0", "192.0.2.1".parse().unwrap());
    services.set_interface_addresses(vec![address]);
    assert_sorted(services);
}

#[test]
fn services_change_in_order_of_name_with_the_configuration() {
    let mut services = services();
    services.set_config(Config::new("node-b"));
    assert_sorted(services);
}

#[test]
fn services_of_a_removed_source_change_in_order_of_name() {
    let mut services = services();
    services.remove_source(SourceId(0));
    assert_sorted(services);
}
