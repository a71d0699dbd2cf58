//! UDP Services on the fake kernel, and flows to them in connection tracking.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kernlink_conntrack::{Filter, NewFlow, Protocol as FlowProtocol, Tuple, Zone};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, ObjectChange, ObjectName, Port, Protocol, Service,
    ServiceType,
};

use crate::node::SOURCE;

/// The node port of a [`udp_service`] with one.
pub(crate) const NODE_PORT: u16 = 30_053;

/// A Service with a cluster IP and UDP port 53.
pub(crate) fn udp_service(name: &str, cluster_ip: &str) -> Service {
    Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(cluster_ip)
        .with_port(Port::new("dns", 53).with_protocol(Protocol::Udp))
}

/// The same with a node port.
pub(crate) fn with_node_port(mut service: Service, port: u16) -> Service {
    service.service_type = ServiceType::NodePort;
    service.ports[0].node_port = port;
    service
}

/// Sets the endpoints of a UDP Service, by last octet, with port 5353.
pub(crate) fn udp_endpoints(proxier: &mut Proxier, service: &str, endpoints: &[u8]) {
    let slice = EndpointSlice::new(
        ObjectName::new("ns", format!("{service}-1")),
        service,
        Family::Ipv4,
    )
    .with_port(EndpointPort::new("dns", 5353).with_protocol(Protocol::Udp));
    let slice = endpoints.iter().fold(slice, |slice, &last| {
        slice.with_endpoint(Endpoint::new([10, 244, 0, last].into()).with_node("node-b"))
    });
    proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Upsert(slice)));
}

/// A flow of a client, by last octet, to a destination, translated to a reply source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestFlow {
    pub(crate) protocol: FlowProtocol,
    pub(crate) client: u16,
    pub(crate) destination: SocketAddr,
    pub(crate) reply_source: SocketAddr,
    pub(crate) zone: u16,
}

/// A UDP flow in zone 0.
pub(crate) fn udp(client: u16, destination: &str, reply_source: &str) -> TestFlow {
    TestFlow {
        protocol: FlowProtocol::UDP,
        client,
        destination: destination.parse().unwrap(),
        reply_source: reply_source.parse().unwrap(),
        zone: 0,
    }
}

impl TestFlow {
    pub(crate) fn tcp(mut self) -> Self {
        self.protocol = FlowProtocol::TCP;
        self
    }

    pub(crate) fn in_zone(mut self, zone: u16) -> Self {
        self.zone = zone;
        self
    }

    pub(crate) fn add(self, kernel: &mut Kernel) {
        let address: IpAddr = match self.destination {
            SocketAddr::V4(_) => [198, 51, 100, 7].into(),
            SocketAddr::V6(_) => "2001:db8:9::7".parse().unwrap(),
        };
        let client = SocketAddr::new(address, self.client);
        let tuple = match self.protocol {
            FlowProtocol::TCP => Tuple::tcp,
            _ => Tuple::udp,
        };
        let flow = NewFlow::new(tuple(client, self.destination), Duration::from_secs(120))
            .with_reply(tuple(self.reply_source, client))
            .with_zone(Zone::new(self.zone));
        kernel.conntrack.add(&flow).unwrap();
    }
}

/// Adds flows to the table.
pub(crate) fn add(kernel: &mut Kernel, flows: &[TestFlow]) {
    flows.iter().for_each(|flow| flow.add(kernel));
}

/// The flows in the table, by source port.
pub(crate) fn flows(kernel: &mut Kernel) -> Vec<TestFlow> {
    let listed = kernel.conntrack.list(&Filter::new()).unwrap();
    let mut flows: Vec<TestFlow> = listed
        .iter()
        .map(|flow| TestFlow {
            protocol: flow.protocol(),
            client: flow.original.source_socket().port(),
            destination: flow.original.destination_socket(),
            reply_source: flow.reply.source_socket(),
            zone: flow.zone.id,
        })
        .collect();
    flows.sort_unstable_by_key(|flow| flow.client);
    flows
}

/// The source ports of the flows in the table, sorted.
pub(crate) fn clients(kernel: &mut Kernel) -> Vec<u16> {
    flows(kernel).iter().map(|flow| flow.client).collect()
}
