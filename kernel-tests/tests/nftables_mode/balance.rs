//! Every endpoint gets its share of the connections.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use kernlink_kernel_tests::expectations::{NO_PORTS, ips};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Network, Protocol, Server, ask_many};
use kernlink_kernel_tests::{requires, tools, wait};

use crate::support::{change, on_network, proxier};

const MOST: u16 = 17;

fn address(number: u16) -> [IpAddr; 2] {
    ips(
        &format!("10.250.0.{}", number + 1),
        &format!("fd00:10:250::{:x}", number + 1),
    )
}

/// Servers at many addresses of one pod, to which the node has routes.
fn serve_many(network: &Network) -> Vec<Server> {
    let pod: &NetNs = &network.pods[0];
    pod.run(|| {
        tools::ip(&["route", "add", "local", "10.250.0.0/24", "dev", "lo"]);
        tools::ip(&["-6", "route", "add", "local", "fd00:10:250::/64", "dev", "lo"]);
        // A program may listen on an address that is only routed.
        tools::set_sysctl("net.ipv4.ip_nonlocal_bind", "1");
        tools::set_sysctl("net.ipv6.ip_nonlocal_bind", "1");
    });
    for (net, via) in [
        ("10.250.0.0/24", Network::pod_ipv4(0).to_string()),
        ("fd00:10:250::/64", Network::pod_ipv6(0).to_string()),
    ] {
        tools::ip(&["route", "add", net, "via", &via]);
    }
    wait::for_ipv6_addresses();
    (0..MOST)
        .flat_map(|number| address(number).map(|address| (number, address)))
        .map(|(number, address)| {
            Server::start(
                pod,
                &number.to_string(),
                Protocol::Tcp,
                SocketAddr::new(address, 8080),
            )
        })
        .collect()
}

fn manifests(endpoints: u16) -> String {
    let slice = |family: usize, name: &str| {
        let addresses: Vec<String> = (0..endpoints)
            .map(|number| format!("{{addresses: ['{}'], nodeName: node-a}}", address(number)[family]))
            .collect();
        format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: {name}
metadata: {{name: web-{family}, namespace: default, labels: {{kubernetes.io/service-name: web}}}}
ports: [{{name: web, port: 8080, protocol: TCP}}]
endpoints: [{}]
",
            addresses.join(", ")
        )
    };
    service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slice(0, "IPv4") + &slice(1, "IPv6")
}

/// The value that chi-squared exceeds with a probability of one in a billion, by the approximation of Wilson and Hilferty.
fn bound(degrees_of_freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * degrees_of_freedom);
    degrees_of_freedom * (1.0 - spread + 6.0 * spread.sqrt()).powi(3)
}

/// The packets are dropped after they were counted, so that each begins a connection.
const COUNTERS: &str = "table ip counting {
    set endpoints { type ipv4_addr; flags dynamic; size 1000; }
    chain forward { type filter hook forward priority 20; policy accept; ip daddr 10.250.0.0/16 add @endpoints { ip daddr counter } drop; }
}
";

/// The packets to each endpoint.
fn counted() -> Vec<f64> {
    let listed = tools::must("nft", &["list", "set", "ip", "counting", "endpoints"]);
    listed
        .split("counter packets ")
        .skip(1)
        .map(|text| text.split(' ').next().unwrap().parse().unwrap())
        .collect()
}

/// Sends the first packets of connections: each has another source.
fn begin_connections(network: &Network, target: SocketAddr, connections: u32) {
    network.client.run(|| {
        tools::ip(&["route", "add", "local", "198.18.0.0/16", "dev", "lo"]);
        for number in 0..connections {
            let [_, _, high, low] = (number / 50_000).to_be_bytes();
            let port = u16::try_from(10_000 + number % 50_000).unwrap();
            let source = SocketAddr::from(([198, 18, high, low + 1], port));
            let socket = std::net::UdpSocket::bind(source).unwrap();
            // The ICMP error about an earlier packet would be reported.
            wait::until(|| socket.send_to(b"x", target).map_err(|error| error.to_string()));
        }
        tools::ip(&["route", "delete", "local", "198.18.0.0/16", "dev", "lo"]);
    });
}

/// `KERNLINK_CONNECTIONS`: the number for each size; the 99.9 % bound of chi-squared, which one of a thousand runs exceeds, is printed.
#[test]
fn counters_of_the_kernel_show_that_connections_are_balanced() {
    requires!(Feature::Conntrack);
    let connections = std::env::var("KERNLINK_CONNECTIONS").map_or(10_000, |text| text.parse().unwrap());
    on_network(1, |network| {
        tools::set_sysctl("net.ipv4.conf.all.rp_filter", "0");
        tools::run_with_input("nft", &["-f", "-"], COUNTERS).unwrap();
        tools::ip(&[
            "route",
            "add",
            "10.250.0.0/16",
            "via",
            &Network::pod_ipv4(0).to_string(),
        ]);
        let mut proxier = proxier("");
        for endpoints in [2_u16, 3, 7, 64, 257] {
            let addresses: String = (0..endpoints)
                .map(|number| {
                    format!(
                        "{{addresses: ['10.250.{}.{}']}}, ",
                        number / 250,
                        number % 250 + 1
                    )
                })
                .collect();
            let slice = format!(
                "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {{name: web, namespace: default, labels: {{kubernetes.io/service-name: web}}}}
ports: [{{name: ask, port: 5353, protocol: UDP}}]
endpoints: [{addresses}]
"
            );
            change(
                &mut proxier,
                &(service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slice),
            );
            tools::must("nft", &["flush", "set", "ip", "counting", "endpoints"]);
            begin_connections(network, SocketAddr::new(cluster_ips(1)[0], 53), connections);
            let counts = counted();
            assert_eq!(counts.len(), usize::from(endpoints));
            assert_eq!(counts.iter().sum::<f64>(), f64::from(connections));
            let even = f64::from(connections) / f64::from(endpoints);
            let chi_squared: f64 = counts.iter().map(|count| (count - even).powi(2) / even).sum();
            let freedom = f64::from(endpoints) - 1.0;
            let spread = 2.0 / (9.0 * freedom);
            let usual = freedom * (1.0 - spread + 3.09 * spread.sqrt()).powi(3);
            println!(
                "{endpoints} endpoints, {connections} connections: chi-squared {chi_squared:.1}, 99.9 % bound {usual:.1}"
            );
            assert!(
                chi_squared < bound(freedom),
                "{endpoints} endpoints: {chi_squared}, {counts:?}"
            );
        }
    });
}

#[test]
fn every_endpoint_gets_its_share_for_every_number_of_endpoints() {
    requires!(Feature::Conntrack);
    on_network(1, |network| {
        let _servers = serve_many(network);
        let mut proxier = proxier("");
        for endpoints in [1, 2, 3, 5, 8, 9, 16, 17] {
            change(&mut proxier, &manifests(endpoints));
            for ip in cluster_ips(1) {
                let requests = 100 * usize::from(endpoints);
                let tally = ask_many(&network.client, Protocol::Tcp, SocketAddr::new(ip, 80), requests);
                assert_eq!(tally.failures, Vec::<String>::new());
                let expected: BTreeMap<String, usize> =
                    (0..endpoints).map(|number| (number.to_string(), 100)).collect();
                assert!(tally.answers.keys().eq(expected.keys()), "{tally:?}");
                let deviations = expected
                    .keys()
                    .map(|name| (tally.of(name) as f64 - 100.0).powi(2) / 100.0);
                let chi_squared: f64 = deviations.sum();
                assert!(
                    endpoints == 1 || chi_squared < bound(f64::from(endpoints) - 1.0),
                    "{endpoints} endpoints: chi-squared {chi_squared}, {tally:?}"
                );
            }
        }
    });
}
