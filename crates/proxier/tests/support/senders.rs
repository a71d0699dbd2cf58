//! Services that keep their names and cluster IPs, their endpoints, and packets of all senders to them.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use kernlink_ipvs::{Protocol as IpvsProtocol, VirtualServerKey};
use kernlink_services::{
    Change, Conditions, Endpoint, EndpointPort, EndpointSlice, Family, ObjectChange, ObjectName, Protocol,
    Service,
};

use crate::tracer::Packet;

/// The Service with a name and a cluster IP of its own. Services may conflict about their other addresses.
pub(crate) fn named(mut service: Service, number: u8) -> Service {
    service.name = ObjectName::new("ns", format!("s{number}"));
    service.cluster_ip = format!("10.96.0.{number}");
    service.cluster_ips = vec![service.cluster_ip.clone(), format!("fd00::{number}")];
    service.ip_families = vec![Family::Ipv4, Family::Ipv6];
    // At an address of the node an external IP could become a node port with the same number.
    let is_elsewhere = |ip: &String| !["192.0.2.1", "203.0.113.2"].contains(&ip.as_str());
    service.external_ips.retain(is_elsewhere);
    service
}

/// The slices of a Service, for each family and protocol. Endpoints 1 and 2 are on this node.
pub(crate) fn slices(service: &Service, endpoints: &[u8], ready: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    for (family, protocol) in Family::ALL
        .into_iter()
        .flat_map(|family| [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| (family, protocol)))
    {
        let name = format!("{}-{family}-{protocol}", service.name.name).to_lowercase();
        let name = ObjectName::new(&*service.name.namespace, name);
        let mut slice = EndpointSlice::new(name, Arc::clone(&service.name.name), family);
        for port in &service.ports {
            let port = EndpointPort::new(Arc::clone(&port.name), 8_080).with_protocol(protocol);
            slice = slice.with_port(port);
        }
        for &number in endpoints {
            let address: IpAddr = match family {
                Family::Ipv4 => [10, 244, 1, number].into(),
                Family::Ipv6 => format!("fd01::{number}").parse().unwrap(),
            };
            let node = if number < 3 { "node-a" } else { "node-b" };
            let conditions = Conditions {
                ready,
                serving: true,
                terminating: !ready,
            };
            slice = slice.with_endpoint(Endpoint::new(address).with_node(node).with_conditions(conditions));
        }
        changes.push(Change::EndpointSlices(ObjectChange::Upsert(slice)));
    }
    changes
}

/// The input interfaces and the IPv4 and IPv6 addresses of senders.
const SENDERS: [(Option<&str>, &str, &str); 8] = [
    // An endpoint on this node, which may be an endpoint of the Service itself.
    (Some("veth0"), "10.244.1.1", "fd01::1"),
    (Some("veth1"), "10.244.1.50", "fd01::50"),
    // In some source ranges: a node, clients, another node.
    (Some("eth0"), "192.0.2.66", "2001:db8:6::7"),
    (Some("eth0"), "198.18.0.7", "2001:db8:5::4"),
    (Some("eth0"), "10.1.2.4", "2001:db8:5::5"),
    // In no source range but that of all addresses.
    (Some("eth0"), "203.0.114.9", "2001:db8:9::9"),
    (None, "127.0.0.1", "::1"),
    (None, "192.0.2.1", "2001:db8::1"),
];

/// Packets of all senders, and of the node with the virtual IP as its source address, to a virtual server.
pub(crate) fn packets(key: &VirtualServerKey) -> Vec<Packet> {
    let (Some(address), Some(port), Some(protocol)) = (key.address(), key.port(), key.protocol()) else {
        return Vec::new();
    };
    let protocol = match protocol {
        IpvsProtocol::Tcp => Protocol::Tcp,
        IpvsProtocol::Udp => Protocol::Udp,
        IpvsProtocol::Sctp => Protocol::Sctp,
        other => panic!("{other:?}"),
    };
    let senders = SENDERS.into_iter().map(|(input, v4, v6)| {
        let source: IpAddr = if address.is_ipv4() { v4 } else { v6 }.parse().unwrap();
        (input, source)
    });
    let destination = SocketAddr::new(address, port);
    senders
        .chain([(None, address)])
        .map(|(input, source)| Packet::new(input, source, destination, protocol))
        .collect()
}
