//! Connections to cluster IPs, external IPs and load-balancer IPs: which endpoint replies, and which source address it sees.

use std::net::{IpAddr, SocketAddr};

use kernlink_kernel_tests::expectations::{
    NO_PORTS, REQUESTS, assert_served, client_ips, gateway_ips, ips, node_ips, pod_ips, targets,
};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server, ask_many};
use kernlink_kernel_tests::{requires, tools};
use kernlink_proxier::host::LocalDetection;

use crate::support::{answers, change, config, on_network, proxier, proxier_with, replace_objects, sync};

fn web(pods: &[(u8, &str)]) -> String {
    service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices("web", pods)
}

#[test]
fn traffic_to_a_cluster_ip_is_masqueraded_unless_it_comes_from_pods() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        sync(&mut proxier(&web(&[(0, "node-a"), (1, "node-b")])));
        for (family, protocol, target) in targets(cluster_ips(1)) {
            let gateways = [gateway_ips(0)[family], gateway_ips(1)[family]];
            let both = ["pod0", "pod1"];
            let of_pod = pod_ips(2);
            assert_served(
                &network.pods[2],
                protocol,
                target,
                &both,
                &of_pod[family..=family],
            );
            assert_served(&network.client, protocol, target, &both, &gateways);
            // The hook `output`.
            assert_served(&network.node, protocol, target, &both, &gateways);
        }
    });
}

#[test]
fn without_local_detection_no_traffic_to_a_cluster_ip_is_masqueraded_unless_all_is() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        let mut config = config();
        config.local_detection = LocalDetection::ClusterCidr(Vec::new());
        let manifests = web(&[(0, "node-a"), (1, "node-b")]);
        let mut proxier = proxier_with(&config, &manifests);
        sync(&mut proxier);
        let both = ["pod0", "pod1"];
        for (family, protocol, target) in targets(cluster_ips(1)) {
            for (from, source) in [
                (&network.pods[2], pod_ips(2)),
                (&network.client, client_ips()),
                (&network.node, node_ips()),
            ] {
                assert_served(from, protocol, target, &both, &source[family..=family]);
            }
        }
        config.masquerade_all = true;
        proxier.set_config(&config).unwrap();
        sync(&mut proxier);
        for (family, protocol, target) in targets(cluster_ips(1)) {
            let gateways = [gateway_ips(0)[family], gateway_ips(1)[family]];
            for from in [&network.pods[2], &network.client, &network.node] {
                assert_served(from, protocol, target, &both, &gateways);
            }
        }
    });
}

#[test]
fn a_pod_reaches_itself_through_its_service_and_other_pods_see_its_address() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        sync(&mut proxier(&web(&[(0, "node-a"), (1, "node-a")])));
        for (family, protocol, target) in targets(cluster_ips(1)) {
            let expected = [
                ("pod0".to_owned(), gateway_ips(0)[family]),
                ("pod1".to_owned(), pod_ips(0)[family]),
            ];
            assert_eq!(
                answers(&network.pods[0], protocol, target, REQUESTS),
                expected.into(),
                "{protocol} {target}"
            );
        }
    });
}

/// Without local detection and policies nothing else is masqueraded.
#[test]
fn only_the_pod_that_reaches_itself_is_masqueraded() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        let mut config = config();
        config.local_detection = LocalDetection::ClusterCidr(Vec::new());
        let manifests = web(&[(0, "node-a"), (1, "node-a")]);
        sync(&mut proxier_with(&config, &manifests));
        for (family, protocol, target) in targets(cluster_ips(1)) {
            let source = |ips: [IpAddr; 2]| ips[family];
            for (from, sources) in [
                (&network.pods[0], [gateway_ips(0), pod_ips(0)]),
                (&network.pods[1], [pod_ips(1), gateway_ips(1)]),
                (&network.pods[2], [pod_ips(2); 2]),
                (&network.client, [client_ips(); 2]),
                (&network.node, [node_ips(); 2]),
            ] {
                let [first, second] = sources.map(source);
                assert_eq!(
                    answers(from, protocol, target, REQUESTS),
                    [("pod0".to_owned(), first), ("pod1".to_owned(), second)].into(),
                    "{protocol} {target}"
                );
            }
        }
    });
}

/// The endpoints of `web` at the ports 80/TCP and 53/UDP instead of 8080 and 5353, in slices of their own.
fn at_low_ports(pods: &[(u8, &str)]) -> String {
    let slices = slices("web", pods).replace("name: web-ipv", "name: web-low-ipv");
    slices
        .replace("port: 8080", "port: 80")
        .replace("port: 5353", "port: 53")
}

/// A second program in each pod, at the ports of [`at_low_ports`].
fn serve_low_ports(network: &Network) -> Vec<Server> {
    let pods = (0..).zip(&network.pods);
    pods.flat_map(|(number, pod)| {
        let name = format!("pod{number}-low");
        let start = move |(_, protocol, address)| Server::start(pod, &name, protocol, address);
        targets(pod_ips(number)).map(start)
    })
    .collect()
}

/// A named target port is that of each endpoint's container, so the slices of one Service may have different ports.
#[test]
fn each_endpoint_is_reached_at_the_port_of_its_slice() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        let _servers = serve_low_ports(network);
        let service = service(
            "web",
            1,
            "type: ClusterIP",
            [", targetPort: web", ", targetPort: ask"],
            &[],
        );
        let mut proxier = proxier(&service);
        for (low, high, servers) in [
            (
                &[(0, "node-a")][..],
                &[(1, "node-b")][..],
                &["pod0-low", "pod1"][..],
            ),
            (&[(1, "node-b")], &[(0, "node-a")], &["pod0", "pod1-low"]),
            // One pod at two ports, as two endpoints.
            (&[(0, "node-a")], &[(0, "node-a")], &["pod0", "pod0-low"]),
        ] {
            replace_objects(
                &mut proxier,
                &(service.clone() + &slices("web", high) + &at_low_ports(low)),
            );
            sync(&mut proxier);
            for (family, protocol, target) in targets(cluster_ips(1)) {
                for from in [&network.client, &network.node, &network.pods[2]] {
                    ask_many(from, protocol, target, REQUESTS).assert_balanced(servers, REQUESTS);
                }
                // To itself and to the other one.
                let source = |server: &str| match server.starts_with("pod0") {
                    true => gateway_ips(0)[family],
                    false => pod_ips(0)[family],
                };
                let expected = servers
                    .iter()
                    .map(|server| ((*server).to_owned(), source(server)));
                assert_eq!(
                    answers(&network.pods[0], protocol, target, REQUESTS),
                    expected.collect(),
                    "{protocol} {target}"
                );
            }
        }
    });
}

#[test]
fn traffic_to_external_addresses_is_always_masqueraded() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        let external = ["203.0.113.20", "2001:db8:ff::20"];
        let ingress = ["203.0.113.10", "2001:db8:ff::10"];
        let spec = format!(
            "type: LoadBalancer, externalIPs: ['{}', '{}']",
            external[0], external[1]
        );
        let manifests =
            service("wide", 1, &spec, NO_PORTS, &ingress) + &slices("wide", &[(0, "node-a"), (1, "node-b")]);
        sync(&mut proxier(&manifests));
        for addresses in [external, ingress] {
            for (family, protocol, target) in targets(ips(addresses[0], addresses[1])) {
                let gateways = [gateway_ips(0)[family], gateway_ips(1)[family]];
                for from in [&network.client, &network.pods[2], &network.node] {
                    assert_served(from, protocol, target, &["pod0", "pod1"], &gateways);
                }
            }
        }
    });
}

/// The mark bit that requests masquerading is cleared after it was used. All other bits are those of other programs.
#[test]
fn other_bits_of_the_packet_mark_are_kept() {
    requires!(Feature::Conntrack);
    on_network(1, |network| {
        sync(&mut proxier(&web(&[(0, "node-a")])));
        let witness = "table inet witness {
    chain before { type filter hook prerouting priority -300; iifname \"client\" meta mark set 0x10001; }
    chain after {
        type filter hook postrouting priority 300;
        oifname \"pod0\" meta mark 0x10001 counter comment \"kept\"
        oifname \"pod0\" meta mark != 0x10001 ct state new counter comment \"changed\"
    }
}";
        tools::run_with_input("nft", &["-f", "-"], witness).unwrap();
        for (family, protocol, target) in targets(cluster_ips(1)) {
            let gateway = gateway_ips(0);
            assert_served(
                &network.client,
                protocol,
                target,
                &["pod0"],
                &gateway[family..=family],
            );
        }
        let counted = tools::must("nft", &["list", "table", "inet", "witness"]);
        let packets = |comment: &str| {
            let line = counted.lines().find(|line| line.contains(comment)).unwrap();
            let number = line.split("packets ").nth(1).unwrap();
            number.split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        assert!(packets("kept") >= 4 * REQUESTS as u64, "{counted}");
        assert_eq!(packets("changed"), 0, "{counted}");
    });
}

#[test]
fn masquerading_chooses_source_ports_at_random() {
    requires!(Feature::Conntrack);
    on_network(1, |network| {
        sync(&mut proxier(&web(&[(0, "node-a")])));
        for (_, protocol, target) in targets(cluster_ips(1)) {
            let is_kept = |_| {
                let mut connection = Connection::open(&network.client, protocol, target).unwrap();
                let port = connection.local_address().unwrap().port();
                connection.ask().unwrap().source.port() == port
            };
            // A random port is the client's own with a probability below 1 : 30 000.
            let kept = (0..10).map(is_kept).filter(|is_kept| *is_kept).count();
            assert!(kept < 3, "{protocol} {target}: {kept} of 10 kept their port");
        }
    });
}

#[test]
fn ports_of_two_protocols_with_one_number_are_different_frontends() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let of_protocol = |name: &str, protocol: &str, pod: u8, port: u16| {
            let [v4, v6] = cluster_ips(1);
            let slices = slices(name, &[(pod, "node-a")]);
            format!(
                "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: default}}
spec: {{clusterIP: '{v4}', clusterIPs: ['{v4}', '{v6}'], ipFamilies: [IPv4, IPv6], type: ClusterIP,
  ports: [{{name: {name}, port: 53, protocol: {protocol}, targetPort: {port}}}]}}
{slices}"
            )
        };
        // Each Service has its endpoints in another pod.
        let manifests = of_protocol("web", "TCP", 0, 8080) + &of_protocol("ask", "UDP", 1, 5353);
        sync(&mut proxier(&manifests));
        for address in cluster_ips(1) {
            let target = SocketAddr::new(address, 53);
            ask_many(&network.client, Protocol::Tcp, target, 5).assert_balanced(&["pod0"], 5);
            ask_many(&network.client, Protocol::Udp, target, 5).assert_balanced(&["pod1"], 5);
        }
    });
}

#[test]
fn a_terminating_endpoint_keeps_its_connections_and_gets_new_ones_only_without_a_ready_one() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let web = |slices: String| service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices;
        let terminating = "nodeName: node-a, conditions: {ready: false, serving: true, terminating: true}";
        let leaving = |slices: String| slices.replace("nodeName: leaving", terminating);
        let mut proxier = proxier(&web(slices("web", &[(0, "node-a")])));
        sync(&mut proxier);
        let frontends = cluster_ips(1).map(|address| SocketAddr::new(address, 80));
        let mut connections =
            frontends.map(|target| Connection::open(&network.client, Protocol::Tcp, target).unwrap());
        for (slices, serving) in [
            (leaving(slices("web", &[(0, "leaving")])), "pod0"),
            (leaving(slices("web", &[(0, "leaving"), (1, "node-a")])), "pod1"),
            (slices("web", &[(1, "node-a")]), "pod1"),
        ] {
            change(&mut proxier, &web(slices));
            for connection in &mut connections {
                assert_eq!(connection.ask().unwrap().server, "pod0");
            }
            for target in frontends {
                ask_many(&network.client, Protocol::Tcp, target, 10).assert_balanced(&[serving], 10);
            }
        }
    });
}

/// Only the first packet of a connection passes the chains of Services.
#[test]
fn established_connections_survive_the_end_of_their_endpoint_and_of_their_service() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let mut proxier = proxier(&web(&[(0, "node-a")]));
        sync(&mut proxier);
        let frontends = cluster_ips(1).map(|address| SocketAddr::new(address, 80));
        let mut connections: Vec<Connection> = frontends
            .iter()
            .flat_map(|target| {
                [
                    (&network.client, target),
                    (&network.pods[1], target),
                    (&network.node, target),
                ]
            })
            .map(|(from, target)| Connection::open(from, Protocol::Tcp, *target).unwrap())
            .collect();
        // Another endpoint, none, and no Service.
        for manifests in [web(&[(1, "node-a")]), web(&[]), String::new()] {
            change(&mut proxier, &manifests);
            for connection in &mut connections {
                assert_eq!(connection.ask().unwrap().server, "pod0");
            }
        }
    });
}
