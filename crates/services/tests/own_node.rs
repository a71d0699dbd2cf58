//! The Node object of this node.
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use std::net::IpAddr;

use kernlink_services::{
    Change, Config, Family, InterfaceAddress, Node, NodePortAddresses, ObjectChange, ObjectName, Port,
    Service, ServiceType, Services, SourceId,
};

const ADDRESS: &str = "192.0.2.1";
const NETWORK: &str = "10.244.1.0/24";

fn registered() -> Node {
    Node::new("node-a").with_zone("z1")
}

fn complete() -> Node {
    registered()
        .with_internal_address(ADDRESS.parse().unwrap())
        .with_pod_cidr(NETWORK.parse().unwrap())
}

fn config() -> Config {
    let mut config = Config::new("node-a");
    config.node_port_addresses = NodePortAddresses::Primary;
    config
}

/// Of a node with a Service that has a node port.
fn services() -> Services {
    let mut services = Services::new(config());
    let addresses = [ADDRESS, "192.0.2.2"].map(|text| InterfaceAddress::new("eth0", text.parse().unwrap()));
    services.set_interface_addresses(addresses.to_vec());
    let mut service = Service::new(ObjectName::new("ns", "s"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("", 80).with_node_port(30_080));
    service.service_type = ServiceType::NodePort;
    services.change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
    services
}

fn change(services: &mut Services, change: ObjectChange<Node>) {
    services.change(SourceId(0), Change::Nodes(change));
    services.update();
}

/// The addresses at which the node port is served, and the pod network.
fn facts(services: &Services) -> (Vec<IpAddr>, String) {
    let node_ports = services
        .frontends()
        .filter(|frontend| frontend.key.port == 30_080);
    let network = services.node_facts().pod_cidr(Family::Ipv4);
    (
        node_ports.map(|frontend| frontend.key.address).collect(),
        network.map_or_else(String::new, |network| network.to_string()),
    )
}

#[test]
fn a_node_that_is_registered_again_keeps_its_addresses_and_pod_networks() {
    let mut services = services();
    change(&mut services, ObjectChange::Upsert(complete()));
    let before = (vec![ADDRESS.parse().unwrap()], NETWORK.to_owned());
    assert_eq!(facts(&services), before);
    change(&mut services, ObjectChange::Delete(ObjectName::new("", "node-a")));
    assert_eq!(facts(&services), before);
    change(&mut services, ObjectChange::Upsert(registered()));
    assert_eq!(facts(&services), before);
    // The labels are those of the new object.
    change(&mut services, ObjectChange::Upsert(registered().with_zone("z2")));
    assert_eq!(services.node_facts().zone(), Some("z2"));
    assert_eq!(facts(&services), before);
    // Each of them by itself is replaced when the new object has it.
    let other: IpAddr = "192.0.2.2".parse().unwrap();
    let node = registered().with_internal_address(other);
    change(&mut services, ObjectChange::Upsert(node));
    assert_eq!(facts(&services), (vec![other], NETWORK.to_owned()));
}

#[test]
fn a_configuration_keeps_the_addresses_of_a_node_that_is_registered_again_unless_it_names_another_node() {
    let mut services = services();
    change(&mut services, ObjectChange::Upsert(complete()));
    change(&mut services, ObjectChange::Upsert(registered()));
    let before = (vec![ADDRESS.parse().unwrap()], NETWORK.to_owned());
    let mut other = config();
    other.ignore_external_ips = true;
    services.set_config(other.clone());
    services.update();
    assert_eq!(facts(&services), before);
    other.node_name = "node-b".into();
    services.set_config(other);
    services.update();
    assert_eq!(facts(&services), (Vec::new(), String::new()));
    services.set_config(config());
    services.update();
    assert_eq!(
        facts(&services),
        (Vec::new(), String::new()),
        "they were of the object before"
    );
}
