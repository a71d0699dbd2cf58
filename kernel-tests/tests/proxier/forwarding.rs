//! Direct routing and tunnels with real packets: endpoints that have the virtual IP themselves answer the client by a way of
//! their own, and see the client's address.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::support::{
    assert_holds_what_is_wanted, cluster_ips, hand_in, load_balancer, proxier, slices, sync,
};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Network, Protocol, Server, ask_many, wait_for_neighbour};
use kernlink_kernel_tests::wait;

const EXTERNAL: [&str; 2] = ["203.0.113.20", "2001:db8:ff::20"];
const BALANCED: [&str; 2] = ["203.0.113.10", "2001:db8:ff::10"];
/// The Service's ports are its endpoints' too.
const PORTS: [(Protocol, u16); 2] = [(Protocol::Tcp, 80), (Protocol::Udp, 53)];
const NODE_PORTS: [u16; 2] = [30_080, 30_053];

/// How a server takes what is not addressed to it.
#[derive(Clone, Copy)]
enum Method {
    Direct,
    Tunnel,
}

/// A network of so many servers that have the virtual IPs and a link of their own to the client. At the virtual IPs `vip<n>`
/// answers, at the server's own address `pod<n>`.
fn network(servers: u8, method: Method) -> (Network, Vec<Server>) {
    let network = Network::new(servers);
    // Packets come in on one link and are answered on another.
    let any_way = || {
        for of in ["all", "default", "eth0"] {
            tools::set_sysctl(&format!("net.ipv4.conf.{of}.rp_filter"), "0");
        }
    };
    network.client.run(any_way);
    let mut running = Vec::new();
    for number in 0..servers {
        let server = &network.pods[usize::from(number)];
        server.run(any_way);
        let link = format!("server{number}");
        network.client.connect(&link, server, "eth1");
        network.client.run(|| {
            tools::ip_batch(&format!(
                "address add 198.51.100.{}/30 dev {link}\naddress add 2001:db8:2:{number}::1/64 dev {link} nodad\n",
                number * 4 + 1
            ));
        });
        let mut setup = format!(
            "address add 198.51.100.{}/30 dev eth1\naddress add 2001:db8:2:{number}::2/64 dev eth1 nodad\n\
             route add {}/32 via 198.51.100.{}\nroute add {}/128 via 2001:db8:2:{number}::1\n",
            number * 4 + 2,
            Network::client_ipv4(),
            number * 4 + 1,
            Network::client_ipv6(),
        );
        for [v4, v6] in [EXTERNAL, BALANCED] {
            setup += &format!("address add {v4}/32 dev lo\naddress add {v6}/128 dev lo nodad\n");
        }
        if let Method::Tunnel = method {
            setup += &format!(
                "link add tunnel4 type ipip local {}\nlink set tunnel4 up\n\
                 link add tunnel6 type ip6tnl mode ip6ip6 local {}\nlink set tunnel6 up\n",
                Network::pod_ipv4(number),
                Network::pod_ipv6(number),
            );
        }
        server.run(|| {
            // It must not say that the virtual IPs are here, where the node is who has them.
            tools::set_sysctl("net.ipv4.conf.all.arp_ignore", "1");
            tools::ip_batch(&setup);
            wait::for_ipv6_addresses();
        });
        for gateway in [
            format!("198.51.100.{}", number * 4 + 1),
            format!("2001:db8:2:{number}::1"),
        ] {
            wait_for_neighbour(server, gateway.parse().unwrap());
        }
        for address in EXTERNAL.into_iter().chain(BALANCED) {
            for (protocol, port) in PORTS {
                let at = SocketAddr::new(address.parse().unwrap(), port);
                running.push(Server::start(server, &format!("vip{number}"), protocol, at));
            }
        }
    }
    for (protocol, port) in PORTS {
        running.extend(network.serve(protocol, port));
    }
    (network, running)
}

fn manifests(method: &str, pods: &[(u8, &str)]) -> String {
    let spec = format!(
        "type: LoadBalancer, externalIPs: ['{}', '{}'], loadBalancerSourceRanges: [192.0.2.0/24, '2001:db8:1::/64'], \
         ports: [{{name: web, port: 80, nodePort: {}, protocol: TCP}}, \
         {{name: ask, port: 53, nodePort: {}, protocol: UDP}}]",
        EXTERNAL[0], EXTERNAL[1], NODE_PORTS[0], NODE_PORTS[1]
    );
    let service = load_balancer("web", 1, &spec, BALANCED).replace(
        "metadata: {name: web,",
        &format!("metadata: {{name: web, annotations: {{kernlink.io/forwarding-method: {method}}},"),
    );
    let ports = "[{name: web, port: 80, protocol: TCP}, {name: ask, port: 53, protocol: UDP}]";
    service + &slices("web", ports, pods)
}

/// Asks each frontend from the client, and expects these to answer at the virtual IPs. Everywhere else it is `pod<n>`, which
/// sees the node.
fn ask_everywhere(network: &Network, at_virtual_ips: &[&str], pods: u8) {
    let by_own_address: Vec<String> = (0..pods).map(|number| format!("pod{number}")).collect();
    let by_own_address: Vec<&str> = by_own_address.iter().map(String::as_str).collect();
    let clients: [IpAddr; 2] = [Network::client_ipv4().into(), Network::client_ipv6().into()];
    let nodes: [IpAddr; 2] = [Network::node_ipv4().into(), Network::node_ipv6().into()];
    for family in [0, 1] {
        for (index, (protocol, port)) in PORTS.into_iter().enumerate() {
            let asked = |address: IpAddr, port| {
                ask_many(
                    &network.client,
                    protocol,
                    SocketAddr::new(address, port),
                    usize::from(pods),
                )
            };
            for address in [EXTERNAL[family], BALANCED[family]] {
                // The client takes an answer for one only if it comes from the address that it has asked.
                let tally = asked(address.parse().unwrap(), port);
                tally.assert_balanced(at_virtual_ips, 0);
                let keeps_source = tally.sources == [clients[family]].into();
                assert_eq!(keeps_source, at_virtual_ips[0].starts_with("vip"), "{tally:#?}");
            }
            for tally in [
                asked(cluster_ips(1)[family], port),
                asked(nodes[family], NODE_PORTS[index]),
            ] {
                tally.assert_balanced(&by_own_address, 0);
                assert!(!tally.sources.contains(&clients[family]), "{tally:#?}");
            }
        }
    }
}

fn endpoints_answer_from_the_virtual_ip(method: Method) {
    let (network, _servers) = network(2, method);
    let word = match method {
        Method::Direct => "direct",
        Method::Tunnel => "tunnel",
    };
    let _on_node = network.node.enter();
    let elsewhere = [(0, "outside-0"), (1, "outside-1")];
    let proxier = &mut proxier(&manifests(word, &elsewhere));
    sync(proxier);
    assert_holds_what_is_wanted(proxier);
    ask_everywhere(&network, &["vip0", "vip1"], 2);

    // An endpoint here could not answer from an address that the node has too, so all are masqueraded; and back again.
    hand_in(proxier, &manifests(word, &[(0, "outside-0"), (1, "node-a")]));
    let synced = sync(proxier);
    assert!(
        synced
            .events
            .iter()
            .any(|event| event.to_string().contains("is on this node")),
        "{:?}",
        synced.events
    );
    ask_everywhere(&network, &["pod0", "pod1"], 2);
    hand_in(proxier, &manifests(word, &elsewhere));
    sync(proxier);
    assert_holds_what_is_wanted(proxier);
    ask_everywhere(&network, &["vip0", "vip1"], 2);
    proxier.resync();
    assert!(proxier.plan(Instant::now()).unwrap().is_empty());
}

#[test]
fn with_direct_routing_endpoints_answer_from_the_virtual_ip_and_see_the_client() {
    requires_the_kernel!();
    endpoints_answer_from_the_virtual_ip(Method::Direct);
}

#[test]
fn through_a_tunnel_endpoints_answer_from_the_virtual_ip_and_see_the_client() {
    requires!(
        Feature::Ipvs,
        Feature::IpSet,
        Feature::Iptables,
        Feature::DummyLink,
        Feature::Tunnel
    );
    endpoints_answer_from_the_virtual_ip(Method::Tunnel);
}
