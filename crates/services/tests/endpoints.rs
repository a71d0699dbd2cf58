//! Which endpoints of EndpointSlices are used, and what is reported about the others.
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use std::net::IpAddr;

use kernlink_services::{
    AddressType, Change, Conditions, Config, Endpoint, EndpointPort, EndpointSlice, Family, ObjectChange,
    ObjectName, Port, Protocol, Service, ServicePortKey, ServiceType, Services, SourceId, TrafficPolicy,
};

fn slice(name: &str, family: Family) -> EndpointSlice {
    EndpointSlice::new(ObjectName::new("ns", name), "a", family)
}

fn http() -> EndpointPort {
    EndpointPort::new("http", 8080)
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint::new(address.parse().unwrap()).with_node("node-a")
}

/// A Service of both families with this port and a health check.
fn service() -> Service {
    let mut service = Service::new(ObjectName::new("ns", "a"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80));
    service.cluster_ips = vec!["10.96.0.1".to_owned(), "fd00:96::1".to_owned()];
    service.ip_families = Family::ALL.into();
    service.service_type = ServiceType::LoadBalancer;
    service.external_traffic_policy = TrafficPolicy::Local;
    service.health_check_node_port = 32_000;
    service
}

struct Cluster {
    services: Services,
    /// About the slices.
    events: Vec<String>,
}

fn cluster(slices: impl IntoIterator<Item = EndpointSlice>) -> Cluster {
    let mut services = Services::new(Config::new("node-a"));
    services.change(SourceId(0), Change::Services(ObjectChange::Upsert(service())));
    let mut events = Vec::new();
    for slice in slices {
        let change = Change::EndpointSlices(ObjectChange::Upsert(slice));
        let new = services.change(SourceId(0), change);
        events.extend(new.iter().map(|event| event.reason.to_string()));
    }
    services.update();
    Cluster { services, events }
}

impl Cluster {
    fn key(&self, family: Family) -> ServicePortKey {
        let mut ports = self.services.ports();
        ports
            .find(|(_, port)| port.key.family == family)
            .unwrap()
            .1
            .key
            .clone()
    }

    fn used(&self, family: Family) -> Vec<String> {
        let port = self.services.port_by_key(&self.key(family)).unwrap();
        let used = port.endpoints.cluster.iter();
        used.map(|endpoint| format!("{} {}", endpoint.address, endpoint.port))
            .collect()
    }

    /// The number that the health check of the load balancer answers with.
    fn local(&self, family: Family) -> usize {
        self.services
            .health_check(family, 32_000)
            .unwrap()
            .local_endpoints
    }

    /// The slices that are not used, with the reasons.
    fn unused(&self, family: Family) -> Vec<String> {
        let explained = self.services.explain_endpoints(&self.key(family)).unwrap();
        let unused = explained.unused_slices.iter();
        unused
            .map(|slice| format!("{} {}: {}", slice.name, slice.endpoints, slice.reason))
            .collect()
    }
}

#[test]
fn endpoints_of_the_family_and_the_port_are_used() {
    let cluster = cluster([
        slice("a-1", Family::Ipv4)
            .with_port(http())
            .with_endpoint(endpoint("10.244.0.1")),
        slice("a-2", Family::Ipv6)
            .with_port(http())
            .with_endpoint(endpoint("fd00:244::1")),
        slice("a-3", Family::Ipv4)
            .with_port(EndpointPort::new("other", 8081))
            .with_endpoint(endpoint("10.244.0.2")),
        slice("a-4", Family::Ipv4)
            .with_port(http().with_protocol(Protocol::Udp))
            .with_endpoint(endpoint("10.244.0.3")),
    ]);
    assert_eq!(cluster.events, [""; 0]);
    assert_eq!(cluster.used(Family::Ipv4), ["10.244.0.1 8080"]);
    assert_eq!(cluster.used(Family::Ipv6), ["fd00:244::1 8080"]);
    // On any port of the Service.
    assert_eq!((cluster.local(Family::Ipv4), cluster.local(Family::Ipv6)), (3, 1));
    let no_port = "it has no port with this name and protocol";
    assert_eq!(
        cluster.unused(Family::Ipv4),
        [format!("ns/a-3 1: {no_port}"), format!("ns/a-4 1: {no_port}")]
    );
    assert_eq!(cluster.unused(Family::Ipv6), [""; 0]);
}

#[test]
fn a_slice_of_a_headless_service_or_of_names_is_not_used_and_nothing_in_it_is_reported() {
    let invalid = |name| {
        let mut port = http();
        port.name = None;
        slice(name, Family::Ipv4)
            .with_port(http())
            .with_port(port)
            .with_endpoint(endpoint("10.244.0.1"))
            .with_endpoint(endpoint("127.0.0.1"))
    };
    let mut headless = invalid("a-1");
    headless.is_headless = true;
    let mut other = invalid("a-2");
    other.address_type = AddressType::Other;
    let cluster = cluster([headless, other]);
    assert_eq!(cluster.events, [""; 0]);
    assert_eq!(cluster.used(Family::Ipv4), [""; 0]);
    assert_eq!(cluster.local(Family::Ipv4), 0);
    assert_eq!(
        cluster.unused(Family::Ipv4),
        [
            "ns/a-1 2: it has the label service.kubernetes.io/headless",
            "ns/a-2 2: its addressType is neither IPv4 nor IPv6"
        ]
    );
    // Of both, names of another type are the reason in both families.
    assert_eq!(
        cluster.unused(Family::Ipv6),
        ["ns/a-2 2: its addressType is neither IPv4 nor IPv6"]
    );
}

#[test]
fn a_port_without_a_name_or_a_number_is_reported_and_not_used() {
    let mut unnamed = http();
    unnamed.name = None;
    let slices = [
        slice("a-1", Family::Ipv4)
            .with_port(unnamed)
            .with_endpoint(endpoint("10.244.0.1")),
        slice("a-2", Family::Ipv4)
            .with_port(EndpointPort::new("other", 1))
            .with_port(EndpointPort::new("http", 0))
            .with_endpoint(endpoint("10.244.0.2")),
    ];
    let cluster = cluster(slices);
    assert_eq!(
        cluster.events,
        [
            "ports[0].name: missing; the port is ignored (an unnamed port has the name \"\")",
            "ports[1].port: missing or 0; the port is ignored"
        ]
    );
    assert_eq!(cluster.used(Family::Ipv4), [""; 0]);
    // The second slice has another port that is complete.
    assert_eq!(cluster.local(Family::Ipv4), 1);
}

#[test]
fn an_endpoint_with_an_address_of_the_other_family_or_without_a_route_is_reported_and_not_used() {
    let slices = [
        slice("a-1", Family::Ipv4)
            .with_port(http())
            .with_endpoint(endpoint("10.244.0.1"))
            .with_endpoint(endpoint("fd00:244::1"))
            .with_endpoint(endpoint("127.0.0.1")),
        slice("a-2", Family::Ipv6)
            .with_port(http())
            .with_endpoint(endpoint("10.244.0.2"))
            .with_endpoint(endpoint("fe80::1"))
            .with_endpoint(endpoint("fd00:244::2")),
    ];
    let cluster = cluster(slices);
    assert_eq!(cluster.events.len(), 4, "{:?}", cluster.events);
    let starts = [
        "endpoints: fd00:244::1 is not an IPv4 address",
        "endpoints: 127.0.0.1 is ",
        "endpoints: 10.244.0.2 is not an IPv6 address",
        "endpoints: fe80::1 is ",
    ];
    for start in starts {
        assert!(
            cluster.events.iter().any(|event| event.starts_with(start)),
            "{start}: {:?}",
            cluster.events
        );
    }
    assert_eq!(cluster.used(Family::Ipv4), ["10.244.0.1 8080"]);
    assert_eq!(cluster.used(Family::Ipv6), ["fd00:244::2 8080"]);
    assert_eq!((cluster.local(Family::Ipv4), cluster.local(Family::Ipv6)), (1, 1));
}

#[test]
fn a_health_check_counts_the_addresses_of_this_node_that_are_ready() {
    let ended = Conditions {
        ready: false,
        serving: false,
        terminating: true,
    };
    let first = slice("a-1", Family::Ipv4)
        .with_port(http())
        .with_port(EndpointPort::new("more", 8081))
        .with_endpoint(endpoint("10.244.0.1"))
        .with_endpoint(endpoint("10.244.0.2").with_conditions(ended))
        .with_endpoint(Endpoint::new(IpAddr::from([10, 244, 0, 3])).with_node("node-b"))
        .with_endpoint(Endpoint::new(IpAddr::from([10, 244, 0, 4])))
        .with_endpoint(endpoint("10.244.0.5"));
    assert_eq!(cluster([first.clone()]).local(Family::Ipv4), 2);
    // Of two entries with an address and port, the one that is ready is used, in either order.
    let again = |address: &str| {
        slice("a-0", Family::Ipv4)
            .with_port(http())
            .with_endpoint(endpoint(address))
    };
    let [ready, last] = ["a-0", "a-2"].map(|name| {
        let mut slice = again("10.244.0.2");
        slice.name = ObjectName::new("ns", name);
        slice
    });
    assert_eq!(cluster([ready, first.clone()]).local(Family::Ipv4), 3);
    assert_eq!(cluster([first.clone(), last]).local(Family::Ipv4), 3);
    let mut before = again("10.244.0.1");
    before.endpoints[0].conditions = ended;
    assert_eq!(cluster([before, first]).local(Family::Ipv4), 2);
}

/// Its endpoints would be those without a node.
#[test]
fn a_node_without_a_name_has_no_endpoints() {
    let mut services = Services::new(Config::new(""));
    services.change(SourceId(0), Change::Services(ObjectChange::Upsert(service())));
    let unnamed = Endpoint::new(IpAddr::from([10, 244, 0, 1])).with_node("");
    let slice = slice("a-1", Family::Ipv4)
        .with_port(http())
        .with_endpoint(unnamed);
    services.change(SourceId(0), Change::EndpointSlices(ObjectChange::Upsert(slice)));
    services.update();
    assert_eq!(
        services
            .health_check(Family::Ipv4, 32_000)
            .unwrap()
            .local_endpoints,
        0
    );
}
