//! Changes of a Service and of the node's addresses, as clients see them.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Protocol, ask_many};
use kernlink_kernel_tests::{requires, tools, wait};
use kernlink_services::Port;

use super::support::*;

fn assert_served(from: &NetNs, targets: impl IntoIterator<Item = (Protocol, SocketAddr)>) {
    for (protocol, target) in targets {
        ask_many(from, protocol, target, 1).assert_balanced(&["pod0"], 0);
    }
}

/// Nothing else has these addresses and ports.
fn assert_not_served(from: &NetNs, targets: impl IntoIterator<Item = (Protocol, SocketAddr)>) {
    for (protocol, target) in targets {
        let silence = Duration::from_millis(150);
        let answer = Connection::open_within(silence, from, protocol, target).and_then(|mut open| open.ask());
        assert!(answer.is_err(), "{protocol} {target}: {answer:?}");
    }
}

fn both(addresses: [&str; 2], tcp: u16, udp: u16) -> Vec<(Protocol, SocketAddr)> {
    let addresses = addresses.map(|ip| ip.parse::<IpAddr>().unwrap());
    addresses
        .into_iter()
        .flat_map(|ip| targets(ip, tcp, udp))
        .collect()
}

#[test]
fn changed_ports_and_addresses_are_served_and_the_former_ones_are_not() {
    requires!(Feature::Iptables);
    let place = Place::new(1);
    let mut process = Process::serving(VARIANTS[1], with_external_addresses(), &[0]);
    process.sync();
    let cluster_ips = cluster_ips().map(|ip| ip.to_string());
    let cluster_ips = [cluster_ips[0].as_str(), cluster_ips[1].as_str()];
    for addresses in [cluster_ips, EXTERNAL, BALANCER] {
        assert_served(place.client(), both(addresses, 80, 53));
    }
    let mut service = with_external_addresses();
    let udp = |port: u16| Port::new("ask", port).with_protocol(kernlink_services::Protocol::Udp);
    service.ports = vec![Port::new("web", 81), udp(54)];
    let others = ["203.0.113.6", "2001:db8:5::6"];
    service.external_ips = others.map(String::from).into();
    service.ingress.clear();
    process.change(service);
    process.sync();
    assert_served(place.client(), both(cluster_ips, 81, 54));
    assert_served(place.client(), both(others, 81, 54));
    assert_not_served(place.client(), both(cluster_ips, 80, 53));
    assert_not_served(place.client(), both(EXTERNAL, 81, 54));
    assert_not_served(place.client(), both(BALANCER, 81, 54));
}

#[test]
fn an_external_ip_that_the_node_gets_is_claimed_as_long_as_it_has_it() {
    requires!(Feature::Iptables);
    let place = Place::new(1);
    let mut process = Process::serving(VARIANTS[1], with_external_addresses(), &[0]);
    process.sync();
    let target: SocketAddr = (EXTERNAL[0].parse::<IpAddr>().unwrap(), 80).into();
    let external = || both(EXTERNAL, 80, 53);
    // Programs of the node reach the address itself.
    assert_served(place.client(), external());
    assert!(TcpListener::bind(target).is_err());
    tools::ip(&["address", "add", "203.0.113.5/32", "dev", "lo"]);
    drop(TcpListener::bind(target).unwrap());
    wait_until_free(|port| port == target.port());
    process.proxier.resync();
    assert!(process.sync() > 0);
    let taken = TcpListener::bind(target).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    assert_served(place.client(), external());
    assert_served(place.node(), targets(target.ip(), 80, 53));
    tools::ip(&["address", "delete", "203.0.113.5/32", "dev", "lo"]);
    process.proxier.resync();
    assert!(process.sync() > 0);
    assert_served(place.client(), external());
    tools::ip(&["address", "add", "203.0.113.5/32", "dev", "lo"]);
    wait::until(|| TcpListener::bind(target));
}

#[test]
fn sources_outside_the_ranges_of_a_load_balancer_are_refused() {
    requires!(Feature::Iptables);
    let place = Place::new(1);
    let mut service = with_external_addresses();
    service.load_balancer_source_ranges = vec!["192.0.2.0/24".into(), "2001:db8:1::/64".into()];
    let mut process = Process::serving(VARIANTS[1], service.clone(), &[0]);
    process.sync();
    assert_served(place.client(), both(BALANCER, 80, 53));
    service.load_balancer_source_ranges = vec!["198.18.0.0/15".into(), "2001:db8:2::/64".into()];
    process.change(service);
    process.sync();
    assert_not_served(place.client(), both(BALANCER, 80, 53));
    // The ranges concern load-balancer IPs only.
    assert_served(place.client(), both(EXTERNAL, 80, 53));
}
