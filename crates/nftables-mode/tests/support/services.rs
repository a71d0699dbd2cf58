//! Services for tests.

use std::time::{Duration, Instant};

use kernlink_engine::contract::Calls;
use kernlink_nftables_mode::{Config, Proxier, Synced};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Ingress, Kind, ObjectChange, ObjectName, Port,
    Protocol, Service, ServiceType, SessionAffinity, SourceId, TrafficPolicy,
};

use crate::node::Node;

const SOURCE: SourceId = SourceId(0);

/// A process on a node.
pub(crate) struct Process {
    pub(crate) proxier: Proxier,
    pub(crate) node: Node,
    pub(crate) now: Instant,
}

impl Process {
    /// A process without Services on a new node.
    pub(crate) fn new() -> Self {
        Self::on(Node::new(&Calls::default()), &crate::node::config())
    }

    pub(crate) fn on(node: Node, config: &Config) -> Self {
        let mut proxier = Proxier::new(config, node.kernel()).unwrap();
        proxier.change(SOURCE, Change::synced(Kind::Service));
        proxier.change(SOURCE, Change::synced(Kind::EndpointSlice));
        Self {
            proxier,
            node,
            now: Instant::now(),
        }
    }

    pub(crate) fn change(&mut self, change: Change) {
        self.proxier.change(SOURCE, change);
    }

    pub(crate) fn service(&mut self, service: Service) {
        self.change(Change::Services(ObjectChange::Upsert(service)));
    }

    /// Replaces the endpoints of a Service: the last bytes of their addresses, and whether they are on this node.
    pub(crate) fn endpoints(&mut self, service: &str, endpoints: &[(u8, bool)]) {
        self.change(Change::EndpointSlices(ObjectChange::Upsert(slice(
            service, endpoints,
        ))));
    }

    #[track_caller]
    pub(crate) fn sync(&mut self) -> Synced {
        self.now += Duration::from_secs(1);
        let synced = self.proxier.sync(self.now).unwrap();
        assert!(synced.is_success(), "{}\n{synced}", synced.plan);
        synced
    }
}

/// A Service with the cluster IP 10.96.0.`last` and a port named `http`.
pub(crate) fn service(name: &str, last: u8) -> Service {
    Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(format!("10.96.0.{last}"))
        .with_port(Port::new("http", 80))
}

/// The same Service with the node port 30000 + `last` and the load-balancer IP 203.0.113.`last`.
pub(crate) fn balanced(name: &str, last: u8) -> Service {
    let mut service = Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(format!("10.96.0.{last}"))
        .with_port(Port::new("http", 80).with_node_port(30_000 + u16::from(last)));
    service.service_type = ServiceType::LoadBalancer;
    service.ingress = vec![Ingress {
        ip: format!("203.0.113.{last}"),
        ..Ingress::default()
    }];
    service
}

pub(crate) fn with_affinity(mut service: Service, seconds: u64) -> Service {
    service.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(seconds));
    service
}

pub(crate) fn with_local_policy(mut service: Service) -> Service {
    service.external_traffic_policy = TrafficPolicy::Local;
    service
}

/// Endpoints 10.244.0.x at port 8080.
pub(crate) fn slice(service: &str, endpoints: &[(u8, bool)]) -> EndpointSlice {
    let name = ObjectName::new("ns", format!("{service}-a"));
    let mut slice = EndpointSlice::new(name, service, Family::Ipv4);
    for &(last, is_local) in endpoints {
        let node = if is_local { "node-a" } else { "node-b" };
        slice = slice.with_endpoint(Endpoint::new([10, 244, 0, last].into()).with_node(node));
    }
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        slice
            .ports
            .push(EndpointPort::new("http", 8_080).with_protocol(protocol));
    }
    slice
}
