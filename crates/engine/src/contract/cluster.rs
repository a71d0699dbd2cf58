//! Services and their endpoints: some that never change, and random ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, FrontendKey, Ingress, Kind, ObjectChange,
    ObjectName, Port, Protocol, Service, ServiceType, SessionAffinity, TrafficPolicy,
};

use super::random::Random;
use super::{Client, Request};

/// The node's IPv4 address.
const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// The node's IPv6 address.
const NODE_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
/// A pod of another Service.
const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 3, 3));
const POD_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 3, 3));
/// A client that the source ranges of all restricted Services admit.
const ADMITTED: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 19, 0, 7));
/// Clients that no source range admits.
const DENIED: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 255, 1));
const DENIED_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1));

/// Services and EndpointSlices of one source.
#[derive(Clone, Debug)]
pub struct Cluster {
    services: BTreeMap<ObjectName, Service>,
    slices: BTreeMap<ObjectName, EndpointSlice>,
    families: BTreeSet<Family>,
}

impl Cluster {
    /// The Services that never change: `default/kubernetes`, `kube-system/kube-dns` with a port for TCP and one for UDP, and `ns/balanced`
    /// with the node port 31999 and the load-balancer IP 203.0.113.200, which admits 198.19.0.0/16. Each has two endpoints in each of the
    /// families.
    #[must_use]
    pub fn stable(families: &BTreeSet<Family>) -> Self {
        let mut cluster = Self {
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            families: families.clone(),
        };
        let kubernetes = service("default", "kubernetes", 1).with_port(Port::new("https", 443));
        cluster.add(kubernetes, 10, 6_443);
        let dns = service("kube-system", "kube-dns", 2)
            .with_port(Port::new("dns", 53).with_protocol(Protocol::Udp))
            .with_port(Port::new("dns-tcp", 53));
        cluster.add(dns, 20, 5_353);
        let mut balanced =
            service("ns", "balanced", 3).with_port(Port::new("http", 80).with_node_port(31_999));
        balanced.service_type = ServiceType::LoadBalancer;
        balanced.ingress = vec![ingress("203.0.113.200")];
        balanced.load_balancer_source_ranges = vec!["198.19.0.0/16".to_owned()];
        cluster.add(balanced, 30, 8_080);
        cluster
    }

    /// Those and some random ones, which share names, addresses and ports.
    #[must_use]
    pub fn random(families: &BTreeSet<Family>, random: &mut Random) -> Self {
        let mut cluster = Self::stable(families);
        for _ in 0..8 {
            cluster.change(random);
        }
        cluster
    }

    /// Those that never change and so many others, each with two endpoints.
    pub(super) fn of_size(families: &BTreeSet<Family>, size: u16) -> Self {
        let mut cluster = Self::stable(families);
        for number in 0..size {
            let mut service = Service::new(ObjectName::new("many", format!("m{number}")));
            let [high, low] = number.to_be_bytes();
            let address = Ipv4Addr::new(10, 97, high, low);
            service.cluster_ip = address.to_string();
            cluster.add(service.with_port(Port::new("http", 80)), 40, 8_080);
        }
        cluster
    }

    /// Adds a Service with two pods as endpoints.
    fn add(&mut self, service: Service, pod: u8, port: u16) {
        for &family in &self.families {
            let mut slice = slice(&service.name, family, &[pod + 1, pod + 2]);
            let ports = service.ports.iter();
            let of_service = |of: &Port| EndpointPort::new(of.name.clone(), port).with_protocol(of.protocol);
            slice.ports = ports.map(of_service).collect();
            self.slices.insert(slice.name.clone(), slice);
        }
        self.services.insert(service.name.clone(), service);
    }

    /// The requests to the Services that never change, each with the endpoints that serve it.
    pub(super) fn expected(&self) -> Vec<(Request, BTreeSet<SocketAddr>)> {
        let mut expected = Vec::new();
        let mut add = |address: IpAddr, protocol, port, clients: &[Client], endpoints: Option<(u8, u16)>| {
            let family = Family::of(address);
            if !self.families.contains(&family) {
                return;
            }
            let frontend = FrontendKey {
                address,
                protocol,
                port,
            };
            let endpoints = endpoints.into_iter().flat_map(|(pod, port)| {
                [pod + 1, pod + 2].map(|pod| SocketAddr::new(self::pod(family, pod), port))
            });
            let endpoints: BTreeSet<SocketAddr> = endpoints.collect();
            for client in clients {
                let client = *client;
                expected.push((Request { frontend, client }, endpoints.clone()));
            }
        };
        for (family, client) in [(Family::Ipv4, POD), (Family::Ipv6, POD_IPV6)] {
            let clients = [Client::Node, Client::Host(client)];
            let service = |number| cluster_ip(family, number);
            add(service(1), Protocol::Tcp, 443, &clients, Some((10, 6_443)));
            add(service(2), Protocol::Udp, 53, &clients, Some((20, 5_353)));
            add(service(2), Protocol::Tcp, 53, &clients, Some((20, 5_353)));
            add(service(3), Protocol::Tcp, 80, &clients, Some((30, 8_080)));
        }
        let balanced = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 200));
        let client = |address| [Client::Host(address)];
        add(balanced, Protocol::Tcp, 80, &client(ADMITTED), Some((30, 8_080)));
        add(balanced, Protocol::Tcp, 80, &client(DENIED), None);
        add(NODE, Protocol::Tcp, 31_999, &client(ADMITTED), Some((30, 8_080)));
        let ipv6_client = client(ADMITTED_IPV6);
        add(NODE_IPV6, Protocol::Tcp, 31_999, &ipv6_client, Some((30, 8_080)));
        expected
    }

    /// A request to a restricted frontend from a client that it does not admit.
    pub(super) fn denied(frontend: FrontendKey) -> Request {
        let client = match frontend.family() {
            Family::Ipv4 => DENIED,
            Family::Ipv6 => DENIED_IPV6,
        };
        Request {
            frontend,
            client: Client::Host(client),
        }
    }

    /// Requests to a frontend: from a pod, from a host that source ranges admit, and from the node.
    pub(super) fn requests(frontend: FrontendKey) -> [Request; 3] {
        let (pod, host) = match frontend.family() {
            Family::Ipv4 => (POD, ADMITTED),
            Family::Ipv6 => (POD_IPV6, ADMITTED_IPV6),
        };
        let clients = [Client::Host(pod), Client::Host(host), Client::Node];
        clients.map(|client| Request { frontend, client })
    }

    /// The full list of all objects.
    #[must_use]
    pub fn all(&self) -> Vec<Change> {
        vec![
            Change::Services(ObjectChange::ReplaceAll(
                self.services.values().cloned().collect(),
            )),
            Change::EndpointSlices(ObjectChange::ReplaceAll(self.slices.values().cloned().collect())),
            Change::synced(Kind::Service),
            Change::synced(Kind::EndpointSlice),
        ]
    }

    /// Without any Service.
    pub(super) fn empty(&self) -> Self {
        Self {
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            families: self.families.clone(),
        }
    }

    /// Changes one of the random Services or its endpoints.
    pub fn change(&mut self, random: &mut Random) -> Change {
        let name = ObjectName::new("ns", format!("s{}", random.below(5)));
        match random.below(10) {
            0..=3 => {
                let service = random_service(name.clone(), random);
                self.services.insert(name, service.clone());
                Change::Services(ObjectChange::Upsert(service))
            }
            4 => {
                self.services.remove(&name);
                Change::Services(ObjectChange::Delete(name))
            }
            5 => {
                let family = self.family(random);
                let name = slice_name(&name, family);
                self.slices.remove(&name);
                Change::EndpointSlices(ObjectChange::Delete(name))
            }
            _ => {
                let family = self.family(random);
                let pods: Vec<u8> = (101..106).filter(|_| random.chance(50)).collect();
                let mut slice = slice(&name, family, &pods);
                for endpoint in &mut slice.endpoints {
                    let node = if random.chance(40) { "node-a" } else { "node-b" };
                    endpoint.node = Some(node.into());
                    endpoint.conditions.ready = random.chance(85);
                }
                for port in ["a", "b"] {
                    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                        let port = EndpointPort::new(port, 8_080).with_protocol(protocol);
                        slice.ports.push(port);
                    }
                }
                self.slices.insert(slice.name.clone(), slice.clone());
                Change::EndpointSlices(ObjectChange::Upsert(slice))
            }
        }
    }

    fn family(&self, random: &mut Random) -> Family {
        random
            .choose(self.families.iter().copied().collect())
            .unwrap_or(Family::Ipv4)
    }

    /// Replaces the endpoints of one of the Services of [`of_size`](Self::of_size), which exist if there is one more than these.
    pub(super) fn move_endpoints(&mut self, service: u16, pods: &[u8]) -> Option<Change> {
        let name = ObjectName::new("many", format!("m{service}"));
        let slice = self.slices.get_mut(&slice_name(&name, Family::Ipv4))?;
        let moved = self::slice(&name, Family::Ipv4, pods);
        slice.endpoints = moved.endpoints;
        Some(Change::EndpointSlices(ObjectChange::Upsert(slice.clone())))
    }
}

const ADMITTED_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 7));

/// The cluster IP of a Service that never changes.
fn cluster_ip(family: Family, number: u8) -> IpAddr {
    match family {
        Family::Ipv4 => [10, 96, 1, number].into(),
        Family::Ipv6 => [0xfd00, 0x96, 0, 0, 0, 0, 1, u16::from(number)].into(),
    }
}

fn pod(family: Family, number: u8) -> IpAddr {
    match family {
        Family::Ipv4 => [10, 244, 1, number].into(),
        Family::Ipv6 => [0xfd00, 0x244, 0, 0, 0, 0, 1, u16::from(number)].into(),
    }
}

/// A Service of both families.
fn service(namespace: &str, name: &str, number: u8) -> Service {
    let addresses = Family::ALL.map(|family| cluster_ip(family, number).to_string());
    let [first, _] = &addresses;
    let mut service = Service::new(ObjectName::new(namespace, name)).with_cluster_ip(first.clone());
    service.cluster_ips = addresses.into();
    service.ip_families = Family::ALL.into();
    service
}

fn ingress(address: &str) -> Ingress {
    Ingress {
        ip: address.to_owned(),
        ..Ingress::default()
    }
}

fn slice_name(service: &ObjectName, family: Family) -> ObjectName {
    ObjectName::new(service.namespace.clone(), format!("{}-{family}", service.name))
}

/// A slice without ports.
fn slice(service: &ObjectName, family: Family, pods: &[u8]) -> EndpointSlice {
    let slice = EndpointSlice::new(slice_name(service, family), service.name.clone(), family);
    pods.iter().fold(slice, |slice, &number| {
        slice.with_endpoint(Endpoint::new(pod(family, number)).with_node("node-b"))
    })
}

/// Options of Services by annotations. A data path ignores those that it does not have.
const OPTIONS: [(&str, &str); 7] = [
    ("forwarding-method", "direct"),
    ("forwarding-method", "tunnel"),
    ("scheduler", "wrr"),
    ("scheduler", "mh"),
    ("weights", "node=node-b:0"),
    ("one-packet", "true"),
    ("affinity-mask", "24,64"),
];

/// A Service with few names, addresses and ports, so that Services conflict.
fn random_service(name: ObjectName, random: &mut Random) -> Service {
    let number = random.below(3);
    let mut service = Service::new(name).with_cluster_ip(format!("10.96.0.{number}"));
    if random.chance(40) {
        service.cluster_ips = vec![format!("10.96.0.{number}"), format!("fd00:96::{number}")];
        service.ip_families = Family::ALL.into();
    }
    service.service_type = match random.below(3) {
        0 => ServiceType::ClusterIp,
        1 => ServiceType::NodePort,
        _ => ServiceType::LoadBalancer,
    };
    for port in ["a", "b"].into_iter().take(1 + random.below(2)) {
        let protocol = match random.below(10) {
            0..=5 => Protocol::Tcp,
            6..=8 => Protocol::Udp,
            _ => Protocol::Sctp,
        };
        let number = if random.chance(60) { 80 } else { 443 };
        let mut port = Port::new(port, number).with_protocol(protocol);
        if service.service_type != ServiceType::ClusterIp && random.chance(70) {
            port = port.with_node_port(if random.chance(50) { 30_001 } else { 30_002 });
        }
        service = service.with_port(port);
    }
    if random.chance(30) {
        service.external_ips = vec![format!("203.0.113.{}", random.below(3))];
    }
    if service.service_type == ServiceType::LoadBalancer {
        service.ingress = vec![ingress(&format!("203.0.113.{}", random.below(3)))];
        if random.chance(50) {
            service.load_balancer_source_ranges = vec!["198.19.0.0/16".to_owned()];
        }
        if random.chance(30) {
            let range = format!("192.0.2.{}/32", random.below(3));
            service.load_balancer_source_ranges.push(range);
        }
        if random.chance(30) {
            service.health_check_node_port = 32_000;
        }
    }
    if random.chance(30) {
        service.external_traffic_policy = TrafficPolicy::Local;
    }
    if random.chance(20) {
        service.internal_traffic_policy = TrafficPolicy::Local;
    }
    for (name, value) in OPTIONS {
        if random.chance(7) {
            service
                .annotations
                .insert(format!("kernlink.io/{name}"), value.to_owned());
        }
    }
    if random.chance(20) {
        service.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(60));
    }
    service
}
