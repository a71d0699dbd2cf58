//! At which addresses node ports are served.

use std::net::{IpAddr, SocketAddr};

use kernlink_kernel_tests::expectations::{assert_refused, assert_served, gateway_ips, node_ips};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{service, slices};
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::traffic::{Network, Protocol, Server, ask_many};
use kernlink_services::NodePortAddresses;

use crate::support::{config, on_network, proxier, proxier_with, sync};

const PORTS: [(Protocol, u16); 2] = [(Protocol::Tcp, 30080), (Protocol::Udp, 30053)];

fn web() -> String {
    let ports = [", nodePort: 30080", ", nodePort: 30053"];
    service("web", 1, "type: NodePort", ports, &[]) + &slices("web", &[(0, "node-a")])
}

/// Programs of the node that listen on the ports of the Service, at addresses that are not its own.
fn programs(network: &Network, addresses: &[IpAddr]) -> Vec<Server> {
    let sockets = addresses
        .iter()
        .flat_map(|address| PORTS.map(|(protocol, port)| (protocol, SocketAddr::new(*address, port))));
    sockets
        .map(|(protocol, socket)| Server::start(&network.node, "host", protocol, socket))
        .collect()
}

fn loopback() -> [IpAddr; 2] {
    ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]
}

#[test]
fn node_ports_are_served_at_the_primary_addresses_and_other_addresses_are_not_touched() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        sync(&mut proxier(&web()));
        // The address of the node on another link.
        let others = [gateway_ips(1), loopback()].concat();
        for (protocol, port) in PORTS {
            for other in &others {
                assert_refused(&network.node, protocol, SocketAddr::new(*other, port));
            }
        }
        let _programs = programs(network, &others);
        for (protocol, port) in PORTS {
            for family in 0..2 {
                let target = SocketAddr::new(node_ips()[family], port);
                let gateway = gateway_ips(0);
                for from in [&network.client, &network.pods[1], &network.node] {
                    assert_served(from, protocol, target, &["pod0"], &gateway[family..=family]);
                }
            }
            for other in gateway_ips(1) {
                ask_many(&network.pods[1], protocol, SocketAddr::new(other, port), 3)
                    .assert_balanced(&["host"], 0);
            }
            for address in loopback() {
                ask_many(&network.node, protocol, SocketAddr::new(address, port), 3)
                    .assert_balanced(&["host"], 0);
            }
        }
    });
}

#[test]
fn with_all_addresses_node_ports_are_served_at_all_but_loopback_ones() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let mut config = config();
        for everything in [
            NodePortAddresses::All,
            NodePortAddresses::Networks(["0.0.0.0/0", "::/0"].map(|net| net.parse().unwrap()).into()),
        ] {
            config.services.node_port_addresses = everything;
            sync(&mut proxier_with(&config, &web()));
            let _programs = programs(network, &loopback());
            for (protocol, port) in PORTS {
                for address in [node_ips(), gateway_ips(1)].concat() {
                    ask_many(&network.pods[1], protocol, SocketAddr::new(address, port), 3)
                        .assert_balanced(&["pod0"], 0);
                }
                for address in loopback() {
                    ask_many(&network.node, protocol, SocketAddr::new(address, port), 3)
                        .assert_balanced(&["host"], 0);
                }
            }
        }
    });
}

#[test]
fn with_networks_node_ports_are_served_at_the_addresses_in_them() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let mut config = config();
        let networks = ["10.244.1.0/24", "fd00:10:244:1::/64"];
        config.services.node_port_addresses =
            NodePortAddresses::Networks(networks.map(|net| net.parse().unwrap()).into());
        sync(&mut proxier_with(&config, &web()));
        for (protocol, port) in PORTS {
            for address in gateway_ips(1) {
                ask_many(&network.pods[1], protocol, SocketAddr::new(address, port), 3)
                    .assert_balanced(&["pod0"], 0);
            }
            for address in node_ips() {
                assert_refused(&network.client, protocol, SocketAddr::new(address, port));
            }
        }
    });
}
