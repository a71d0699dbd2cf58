//! Why each endpoint of a service port receives traffic, or does not.
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use std::net::IpAddr;

use kernlink_services::{
    Change, Conditions, Config, Endpoint, EndpointPort, EndpointSlice, ExplainedEndpoints, Family,
    FrontendKey, FrontendKind, Hints, NotChosen, ObjectChange, ObjectName, Port, Precedence, Protocol,
    Service, ServicePort, Services, SourceId, TrafficPolicy, UnusedReason,
};
use proptest::prelude::*;

fn service(name: &str) -> Service {
    Service::new(ObjectName::new("ns", name))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("web", 80))
}

fn slice(name: &str, port: &str) -> EndpointSlice {
    EndpointSlice::new(ObjectName::new("ns", name), "a", Family::Ipv4)
        .with_port(EndpointPort::new(port, 8080))
}

fn endpoint(last: u8, node: &str) -> Endpoint {
    let mut endpoint = Endpoint::new(IpAddr::from([10, 0, 0, last]));
    endpoint.node = Some(node.into());
    endpoint
}

fn conditions(ready: bool, serving: bool, terminating: bool) -> Conditions {
    Conditions {
        ready,
        serving,
        terminating,
    }
}

/// This node in the zone `z`, with a Service and slices.
fn services(service: Service, slices: Vec<EndpointSlice>) -> Services {
    let mut config = Config::new("node-a");
    config.zone = Some("z".into());
    let mut services = Services::new(config);
    services.change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
    for slice in slices {
        services.change(SourceId(0), Change::EndpointSlices(ObjectChange::Upsert(slice)));
    }
    services.update();
    services
}

fn port(services: &Services) -> &ServicePort {
    services.ports().next().unwrap().1
}

fn explain(services: &Services) -> ExplainedEndpoints {
    services.explain_endpoints(&port(services).key).unwrap()
}

fn reasons(services: &Services) -> Vec<(Option<NotChosen>, Option<NotChosen>)> {
    let explained = explain(services).endpoints.into_iter();
    explained.map(|e| (e.cluster, e.local)).collect()
}

#[test]
fn each_endpoint_that_is_not_chosen_has_a_reason() {
    let mut of_service = service("a");
    of_service.external_traffic_policy = TrafficPolicy::Local;
    of_service.external_ips.push("192.0.2.9".to_owned());
    let mut not_ready = endpoint(2, "node-a");
    not_ready.conditions = conditions(false, false, false);
    let mut terminating = endpoint(3, "node-a");
    terminating.conditions = conditions(false, true, true);
    let mut ended = endpoint(4, "node-b");
    ended.conditions = conditions(false, false, true);
    let slice = slice("a-1", "web")
        .with_endpoint(endpoint(1, "node-a"))
        .with_endpoint(not_ready)
        .with_endpoint(terminating)
        .with_endpoint(ended)
        .with_endpoint(endpoint(5, "node-b"));
    let both = |reason| (Some(reason), Some(reason));
    assert_eq!(
        reasons(&services(of_service, vec![slice])),
        [
            (None, None),
            both(NotChosen::NotReady),
            both(NotChosen::Terminating),
            (Some(NotChosen::TerminatingNotServing), Some(NotChosen::OtherNode)),
            (None, Some(NotChosen::OtherNode)),
        ]
    );
}

#[test]
fn hints_are_the_reason_only_while_they_are_used() {
    let hinted = |last, zone: &str| {
        let mut endpoint = endpoint(last, "node-b");
        endpoint.hints = Some(Box::new(Hints {
            zones: vec![zone.into()],
            ..Hints::default()
        }));
        endpoint
    };
    let slice = slice("a-1", "web")
        .with_endpoint(hinted(1, "z"))
        .with_endpoint(hinted(2, "y"));
    let of = services(service("a"), vec![slice.clone()]);
    assert_eq!(
        reasons(&of),
        [(None, None), (Some(NotChosen::HintsOfOtherZones), None)]
    );
    let of = services(service("a"), vec![slice.with_endpoint(endpoint(3, "node-b"))]);
    assert_eq!(
        reasons(&of),
        [(None, None); 3],
        "an endpoint without hints: none is used"
    );
}

#[test]
fn a_slice_without_the_port_is_named() {
    let of = services(
        service("a"),
        vec![slice("a-1", "http").with_endpoint(endpoint(1, "node-a"))],
    );
    let explained = explain(&of);
    assert!(explained.endpoints.is_empty());
    let unused: Vec<_> = explained
        .unused_slices
        .iter()
        .map(|slice| (slice.name.to_string(), slice.endpoints, slice.reason))
        .collect();
    assert_eq!(unused, [("ns/a-1".to_owned(), 1, UnusedReason::NoPort)]);
}

#[test]
fn the_losers_of_a_conflict_are_named_with_the_reason() {
    let mut services = services(service("a"), Vec::new());
    let mut other = service("b").with_port(Port::new("admin", 81));
    other.cluster_ip = "10.96.0.2".to_owned();
    other.external_ips.push("10.96.0.1".to_owned());
    services.change(SourceId(0), Change::Services(ObjectChange::Upsert(other)));
    services.update();
    let key = |port| FrontendKey {
        address: "10.96.0.1".parse().unwrap(),
        protocol: Protocol::Tcp,
        port,
    };
    let contenders: Vec<_> = services
        .contenders(&key(80))
        .map(|(port, kind, why)| (port.key.name.to_string(), kind, why))
        .collect();
    let why = Precedence::Kind(FrontendKind::ClusterIp);
    assert_eq!(
        contenders,
        [("ns/b:web".to_owned(), FrontendKind::ExternalIp, why)]
    );
    assert_eq!(services.contenders(&key(81)).count(), 0);
    assert_eq!(services.contenders(&key(82)).count(), 0);
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let hints = proptest::option::of(proptest::sample::select(vec!["z", "y"]));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (1..6u8, any::<bool>(), flags, hints).prop_map(
        |(last, is_local, (ready, serving, terminating), hints)| {
            let mut endpoint = endpoint(last, if is_local { "node-a" } else { "node-b" });
            endpoint.conditions = conditions(ready, serving, terminating);
            endpoint.hints = hints.map(|zone| {
                Box::new(Hints {
                    zones: vec![zone.into()],
                    ..Hints::default()
                })
            });
            endpoint
        },
    )
}

proptest! {
    #[test]
    fn the_endpoints_without_a_reason_are_those_that_are_chosen(
        endpoints in proptest::collection::vec(any_endpoint(), 0..8),
        internal in any::<bool>(),
        external in any::<bool>(),
    ) {
        let policy = |is_local| if is_local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
        let mut of_service = service("a");
        of_service.internal_traffic_policy = policy(internal);
        of_service.external_traffic_policy = policy(external);
        of_service.external_ips.push("192.0.2.9".to_owned());
        let slice = endpoints.into_iter().fold(slice("a-1", "web"), EndpointSlice::with_endpoint);
        let of = services(of_service, vec![slice]);
        let explained = explain(&of);
        let chosen = |is_used: bool, refused: &dyn Fn(&kernlink_services::ExplainedEndpoint) -> bool| {
            let chosen = explained.endpoints.iter().filter(|e| is_used && !refused(e));
            chosen.map(|e| (e.address, e.port, e.weight)).collect::<Vec<_>>()
        };
        let of_port = |list: &[kernlink_services::ChosenEndpoint]| {
            list.iter().map(|e| (e.address, e.port, e.weight)).collect::<Vec<_>>()
        };
        let endpoints = &port(&of).endpoints;
        prop_assert_eq!(chosen(explained.uses_cluster, &|e| e.cluster.is_some()), of_port(&endpoints.cluster));
        prop_assert_eq!(chosen(explained.uses_local, &|e| e.local.is_some()), of_port(&endpoints.local));
        prop_assert_eq!(explained.endpoints.len(), port(&of).endpoint_count);
    }
}
