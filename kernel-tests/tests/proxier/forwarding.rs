//! Direct routing and tunnels with real packets: endpoints that have the virtual IP reply to the client on a path that does not pass the
//! node, and see the address of the client.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol, Server, ask_many, wait_for_neighbour};
use kernlink_kernel_tests::{requires, tools, wait};

use crate::support::{
    assert_in_desired_state, cluster_ips, load_balancer, proxier, replace_objects, slices, sync,
};

const EXTERNAL: [&str; 2] = ["203.0.113.20", "2001:db8:ff::20"];
const BALANCED: [&str; 2] = ["203.0.113.10", "2001:db8:ff::10"];
/// The ports of the Service, which are also those of its endpoints.
const PORTS: [(Protocol, u16); 2] = [(Protocol::Tcp, 80), (Protocol::Udp, 53)];
const NODE_PORTS: [u16; 2] = [30_080, 30_053];

/// How packets are forwarded to a server.
#[derive(Clone, Copy)]
enum Method {
    Direct,
    Tunnel,
}

/// A network of servers that have the virtual IPs and a direct link to the client. Requests to the virtual IPs are answered by `vip<n>`,
/// requests to the address of the server by `pod<n>`.
fn network(servers: u8, method: Method) -> (Network, Vec<Server>) {
    let network = Network::new(servers);
    // Requests and replies use different links.
    let without_rp_filter = || {
        for of in ["all", "default", "eth0"] {
            tools::set_sysctl(&format!("net.ipv4.conf.{of}.rp_filter"), "0");
        }
    };
    network.client.run(without_rp_filter);
    let mut running = Vec::new();
    for number in 0..servers {
        let server = &network.pods[usize::from(number)];
        server.run(without_rp_filter);
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
            // The server must not answer ARP requests for the virtual IPs, which the node has.
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

/// Sends requests from the client to each frontend. Those to the virtual IPs must be answered by these servers, all others by `pod<n>`
/// with the node as the source.
fn request_from_every_frontend(network: &Network, at_virtual_ips: &[&str], pods: u8) {
    let by_own_address: Vec<String> = (0..pods).map(|number| format!("pod{number}")).collect();
    let by_own_address: Vec<&str> = by_own_address.iter().map(String::as_str).collect();
    let clients: [IpAddr; 2] = [Network::client_ipv4().into(), Network::client_ipv6().into()];
    let nodes: [IpAddr; 2] = [Network::node_ipv4().into(), Network::node_ipv6().into()];
    for family in [0, 1] {
        for (index, (protocol, port)) in PORTS.into_iter().enumerate() {
            let request = |address: IpAddr, port| {
                ask_many(
                    &network.client,
                    protocol,
                    SocketAddr::new(address, port),
                    usize::from(pods),
                )
            };
            for address in [EXTERNAL[family], BALANCED[family]] {
                // The client accepts only replies from the address that it sent the request to.
                let tally = request(address.parse().unwrap(), port);
                tally.assert_balanced(at_virtual_ips, 0);
                let keeps_source = tally.sources == [clients[family]].into();
                assert_eq!(keeps_source, at_virtual_ips[0].starts_with("vip"), "{tally:#?}");
            }
            for tally in [
                request(cluster_ips(1)[family], port),
                request(nodes[family], NODE_PORTS[index]),
            ] {
                tally.assert_balanced(&by_own_address, 0);
                assert!(!tally.sources.contains(&clients[family]), "{tally:#?}");
            }
        }
    }
}

fn endpoints_reply_from_the_virtual_ip(method: Method) {
    let (network, _servers) = network(2, method);
    let word = match method {
        Method::Direct => "direct",
        Method::Tunnel => "tunnel",
    };
    let _on_node = network.node.enter();
    let elsewhere = [(0, "outside-0"), (1, "outside-1")];
    let proxier = &mut proxier(&manifests(word, &elsewhere));
    sync(proxier);
    assert_in_desired_state(proxier);
    request_from_every_frontend(&network, &["vip0", "vip1"], 2);

    // A local endpoint cannot reply from an address that the node has too, so all endpoints are masqueraded, until it is replaced.
    replace_objects(proxier, &manifests(word, &[(0, "outside-0"), (1, "node-a")]));
    let synced = sync(proxier);
    assert!(
        synced
            .events
            .iter()
            .any(|event| event.to_string().contains("is on this node")),
        "{:?}",
        synced.events
    );
    request_from_every_frontend(&network, &["pod0", "pod1"], 2);
    replace_objects(proxier, &manifests(word, &elsewhere));
    sync(proxier);
    assert_in_desired_state(proxier);
    request_from_every_frontend(&network, &["vip0", "vip1"], 2);
    proxier.resync();
    assert!(proxier.plan(Instant::now()).unwrap().is_empty());
}

#[test]
fn with_direct_routing_endpoints_reply_from_the_virtual_ip_and_see_the_client() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    endpoints_reply_from_the_virtual_ip(Method::Direct);
}

#[test]
fn through_a_tunnel_endpoints_reply_from_the_virtual_ip_and_see_the_client() {
    requires!(
        Feature::Ipvs,
        Feature::IpSet,
        Feature::Iptables,
        Feature::DummyLink,
        Feature::Tunnel
    );
    endpoints_reply_from_the_virtual_ip(Method::Tunnel);
}
