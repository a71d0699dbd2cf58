//! Traffic policy `Local`.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::traffic::{Connection, Protocol, ask_many};
use kernlink_services::TrafficPolicy;

use super::support::*;

/// How long a client waits for an answer that does not come.
const SILENCE: Duration = Duration::from_millis(200);

fn assert_silent(from: &NetNs, protocol: Protocol, target: SocketAddr) {
    let answer = Connection::open_within(SILENCE, from, protocol, target).and_then(|mut open| open.ask());
    let answer = answer.map_err(|error| error.kind());
    assert!(
        [Err(ErrorKind::TimedOut), Err(ErrorKind::WouldBlock)].contains(&answer),
        "{protocol} {target}: {answer:?}"
    );
}

/// The frontends with the external traffic policy.
fn external() -> Vec<(Protocol, SocketAddr)> {
    let addresses = EXTERNAL.into_iter().chain(BALANCER);
    let addresses = addresses.map(|ip| ip.parse::<IpAddr>().unwrap());
    let node_ports = node_ips().into_iter().flat_map(|ip| targets(ip, 30_080, 30_053));
    node_ports
        .chain(addresses.flat_map(|ip| targets(ip, 80, 53)))
        .collect()
}

#[test]
fn without_an_endpoint_on_this_node_new_connections_are_dropped() {
    requires!(Feature::Iptables);
    for variant in VARIANTS {
        let place = Place::new(1);
        let mut service = with_external_addresses();
        service.external_traffic_policy = TrafficPolicy::Local;
        let mut process = Process::serving(variant, service, &[0]);
        process.sync();
        for (protocol, target) in cluster_ips().into_iter().flat_map(|ip| targets(ip, 80, 53)) {
            ask_many(place.client(), protocol, target, 1).assert_balanced(&["pod0"], 0);
        }
        for (protocol, target) in external() {
            assert_silent(place.client(), protocol, target);
        }
        process.endpoints_here(&[0]);
        process.sync();
        for (protocol, target) in external() {
            ask_many(place.client(), protocol, target, 1).assert_balanced(&["pod0"], 0);
        }
        // Established connections live.
        let node_port = SocketAddr::new(node_ips()[0], 30_080);
        let mut open = Connection::open(place.client(), Protocol::Tcp, node_port).unwrap();
        open.ask().unwrap();
        process.endpoints(&[0]);
        process.sync();
        assert_eq!(open.ask().unwrap().server, "pod0");
        for target in node_ips().map(|ip| SocketAddr::new(ip, 30_080)) {
            assert_silent(place.client(), Protocol::Tcp, target);
        }
        // With no endpoint on any node they are refused.
        process.endpoints(&[]);
        process.sync();
        for target in node_ips().map(|ip| SocketAddr::new(ip, 30_080)) {
            let answer =
                Connection::open(place.client(), Protocol::Tcp, target).and_then(|mut open| open.ask());
            let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            let error = answer.unwrap_err();
            assert!(reset.contains(&error.kind()), "{error}");
        }
    }
}

#[test]
fn the_internal_policy_concerns_cluster_ips_only() {
    requires!(Feature::Iptables);
    let place = Place::new(1);
    let mut service = with_node_ports();
    service.internal_traffic_policy = TrafficPolicy::Local;
    let mut process = Process::serving(VARIANTS[1], service, &[0]);
    process.sync();
    for namespace in [place.client(), place.node()] {
        for target in cluster_ips().map(|ip| SocketAddr::new(ip, 80)) {
            assert_silent(namespace, Protocol::Tcp, target);
        }
        for target in node_ips().map(|ip| SocketAddr::new(ip, 30_080)) {
            ask_many(namespace, Protocol::Tcp, target, 1).assert_balanced(&["pod0"], 0);
        }
    }
}
