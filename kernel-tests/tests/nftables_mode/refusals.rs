//! What is not served: it is refused with an ICMP error, or dropped.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

use kernlink_kernel_tests::expectations::{
    NO_PORTS, assert_refused, assert_silent, ips, node_ips, pod_ips, targets,
};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server, ask_many};
use kernlink_kernel_tests::udp_clients::keep_flows;
use kernlink_kernel_tests::{requires, tools, wait};
use kernlink_proxier::nftables_mode::{Key, Proxier};
use kernlink_services::Family;
use socket2::{Domain, Socket, Type};

use crate::support::{change, config, on_network, proxier, proxier_with, sync};

const NODE_PORTS: [&str; 2] = [", nodePort: 30080", ", nodePort: 30053"];

fn node_port(family: usize, protocol: Protocol) -> SocketAddr {
    let port = if protocol == Protocol::Tcp { 30080 } else { 30053 };
    SocketAddr::new(node_ips()[family], port)
}

#[test]
fn without_endpoints_connections_from_everywhere_are_refused_until_there_is_one() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let external = ["203.0.113.20", "2001:db8:ff::20"];
        let spec = format!(
            "type: LoadBalancer, externalIPs: ['{}', '{}']",
            external[0], external[1]
        );
        let ingress = ["203.0.113.10", "2001:db8:ff::10"];
        let empty = service("web", 1, &spec, NODE_PORTS, &ingress);
        let mut proxier = proxier(&empty);
        sync(&mut proxier);
        let frontends: Vec<(usize, Protocol, SocketAddr)> = [
            cluster_ips(1),
            ips(external[0], external[1]),
            ips(ingress[0], ingress[1]),
        ]
        .into_iter()
        .flat_map(targets)
        .chain((0..2).flat_map(|family| {
            [Protocol::Tcp, Protocol::Udp].map(|protocol| (family, protocol, node_port(family, protocol)))
        }))
        .collect();
        for (_, protocol, target) in &frontends {
            for from in [&network.client, &network.pods[1], &network.node] {
                assert_refused(from, *protocol, *target);
            }
        }
        // The first endpoint, and then the last one leaves.
        change(&mut proxier, &(empty.clone() + &slices("web", &[(0, "node-a")])));
        for (_, protocol, target) in &frontends {
            for from in [&network.client, &network.pods[1], &network.node] {
                ask_many(from, *protocol, *target, 2).assert_balanced(&["pod0"], 0);
            }
        }
        change(&mut proxier, &empty);
        for (_, protocol, target) in &frontends {
            assert_refused(&network.client, *protocol, *target);
        }
    });
}

#[test]
fn a_port_of_a_cluster_ip_that_no_service_has_is_refused() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let manifests = service("web", 1, "type: ClusterIP", NO_PORTS, &[])
            + &slices("web", &[(0, "node-a")])
            + &service("empty", 2, "type: ClusterIP", NO_PORTS, &[]);
        sync(&mut proxier(&manifests));
        for address in [cluster_ips(1), cluster_ips(2)].concat() {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for from in [&network.client, &network.pods[1], &network.node] {
                    assert_refused(from, protocol, SocketAddr::new(address, 81));
                }
            }
        }
    });
}

#[test]
fn an_address_for_cluster_ips_that_no_service_has_is_dropped_if_the_networks_are_known() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let mut config = config();
        let networks = ["10.96.0.0/16", "fd00:10:96::/112"].map(|net| net.parse().unwrap());
        config.service_cidrs = Some(networks.into());
        let manifests =
            service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices("web", &[(0, "node-a")]);
        let mut proxier = proxier_with(&config, &manifests);
        sync(&mut proxier);
        for (_, protocol, target) in targets(cluster_ips(7)) {
            for from in [&network.client, &network.pods[1], &network.node] {
                assert_silent(from, protocol, target);
            }
        }
        for (_, protocol, target) in targets(cluster_ips(1)) {
            ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
            assert_refused(&network.client, protocol, SocketAddr::new(target.ip(), 81));
        }
        // The Service of the address.
        let other =
            service("other", 7, "type: ClusterIP", NO_PORTS, &[]) + &slices("other", &[(1, "node-a")]);
        change(&mut proxier, &(manifests + &other));
        for (_, protocol, target) in targets(cluster_ips(7)) {
            ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod1"], 0);
        }
    });
}

/// Serves cluster IPs that no Service has in the second pod, where packets to them arrive if nothing refuses them.
fn serve_unused(network: &Network, addresses: [IpAddr; 2]) -> Vec<Server> {
    let pod = &network.pods[1];
    let vias: [IpAddr; 2] = [Network::pod_ipv4(1).into(), Network::pod_ipv6(1).into()];
    for (address, via) in addresses.into_iter().zip(vias) {
        tools::ip(&["route", "add", &address.to_string(), "via", &via.to_string()]);
        let mut add = vec!["address".to_owned(), "add".to_owned(), address.to_string()];
        add.extend(["dev", "lo"].map(str::to_owned));
        if address.is_ipv6() {
            add.push("nodad".to_owned());
        }
        pod.run(|| tools::ip(&add.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    pod.run(wait::for_ipv6_addresses);
    let start = |(_, protocol, target)| Server::start(pod, "unused", protocol, target);
    targets(addresses).map(start).collect()
}

#[test]
fn other_networks_of_cluster_ips_take_effect_by_elements_only_and_connections_last() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        keep_flows();
        let _servers = serve_unused(network, cluster_ips(7));
        let manifests =
            service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices("web", &[(0, "node-a")]);
        let mut proxier = proxier(&manifests);
        sync(&mut proxier);
        let clients = [&network.client, &network.pods[0], &network.node];
        let assert_forwarded = || {
            for (_, protocol, target) in targets(cluster_ips(7)) {
                for from in clients {
                    assert_eq!(ask_many(from, protocol, target, 2).of("unused"), 2, "{target}");
                }
            }
        };
        assert_forwarded();
        let mut lasting: Vec<Connection> = [cluster_ips(1), cluster_ips(7)]
            .into_iter()
            .flat_map(targets)
            .map(|(_, protocol, target)| Connection::open(&network.client, protocol, target).unwrap())
            .collect();
        lasting
            .iter_mut()
            .for_each(|connection| _ = connection.ask().unwrap());
        let set = |proxier: &mut Proxier, networks: &[&str]| {
            let mut config = config();
            config.service_cidrs = Some(networks.iter().map(|net| net.parse().unwrap()).collect());
            proxier.set_config(&config).unwrap();
            let synced = sync(proxier);
            let keys = synced.plan.steps().map(|(_, step)| step.key.clone());
            assert_eq!(
                keys.collect::<Vec<Key>>(),
                Family::ALL.map(Key::ServiceCidrs),
                "{}",
                synced.plan
            );
        };
        // The second one begins as the first one, as the third one as the second one.
        for networks in [
            ["10.96.0.0/16", "fd00:10:96::/112"],
            ["10.96.0.0/12", "fd00:10:96::/108"],
            ["10.96.0.0/24", "fd00:10:96::/120"],
        ] {
            set(&mut proxier, &networks);
            for (family, net) in ["ip", "ip6"].into_iter().zip(networks) {
                let listed = tools::must("nft", &["list", "set", family, "kernlink", "service-cidrs"]);
                assert!(listed.contains(&format!("{{ {net} }}")), "{listed}");
            }
            for (_, protocol, target) in targets(cluster_ips(7)) {
                for from in clients {
                    assert_silent(from, protocol, target);
                }
            }
            for (_, protocol, target) in targets(cluster_ips(1)) {
                ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
            }
            lasting
                .iter_mut()
                .for_each(|connection| _ = connection.ask().unwrap());
        }
        // Next to each other, and one in another one.
        let many = [
            "10.95.0.0/16",
            "10.96.0.0/16",
            "10.96.0.0/24",
            "fd00:10:96::/112",
            "fd00:10:97::/112",
        ];
        set(&mut proxier, &many);
        for (_, protocol, target) in targets(cluster_ips(7)) {
            assert_silent(&network.client, protocol, target);
        }
        set(&mut proxier, &[]);
        assert_forwarded();
        lasting
            .iter_mut()
            .for_each(|connection| _ = connection.ask().unwrap());
    });
}

/// What answers an echo request: its type and code.
type EchoAnswer = (u8, u8);

/// An echo reply of each family.
const REPLIES: [EchoAnswer; 2] = [(0, 0), (129, 0)];
/// Destination unreachable, port unreachable.
const REFUSALS: [EchoAnswer; 2] = [(3, 3), (1, 4)];

/// An echo request that no request before was equal to, as connection tracking would take it for one of the same flow.
fn echo_request(target: IpAddr) -> [u8; 8] {
    static IDENTIFIER: AtomicU16 = AtomicU16::new(0x1234);
    let kind = if target.is_ipv4() { 8 } else { 128 };
    let identifier = IDENTIFIER.fetch_add(1, Ordering::Relaxed);
    let [high, low] = identifier.to_be_bytes();
    // Type, code, checksum, identifier, number. The kernel writes the checksum of ICMPv6.
    let mut packet = [kind, 0, 0, 0, high, low, 0, 1];
    if target.is_ipv4() {
        let checksum = !(u16::from(kind) << 8).wrapping_add(identifier + 1);
        packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    packet
}

/// The identifier and the number of the echo request that a received packet answers, and what it is. `None` for a packet that is too short.
fn echo_answer(packet: &[u8], is_ipv4: bool) -> Option<(&[u8], EchoAnswer)> {
    // Sockets of IPv4 receive the header of IP too.
    let header = if is_ipv4 {
        usize::from(packet.first()? & 0xf) * 4
    } else {
        0
    };
    let message = packet.get(header..)?;
    let answer = (*message.first()?, *message.get(1)?);
    let is_reply = REPLIES[usize::from(!is_ipv4)] == answer;
    // Errors have the packet that they answer.
    let request = match (is_reply, is_ipv4) {
        (true, _) => 0,
        (false, true) => 8 + 20,
        (false, false) => 8 + 40,
    };
    Some((message.get(request + 4..request + 8)?, answer))
}

/// Sends an echo request to each address, one after the other, and asserts what answers each. Where no answer is expected, there is none before
/// all expected ones have arrived.
#[track_caller]
fn assert_ping(from: &NetNs, requests: &[(IpAddr, Option<EchoAnswer>)]) {
    let is_ipv4 = requests.iter().all(|(target, _)| target.is_ipv4());
    let (domain, protocol) = if is_ipv4 {
        (Domain::IPV4, socket2::Protocol::ICMPV4)
    } else {
        (Domain::IPV6, socket2::Protocol::ICMPV6)
    };
    let socket = from.run(|| Socket::new(domain, Type::RAW, Some(protocol)).unwrap());
    socket.set_nonblocking(true).unwrap();
    let socket = UdpSocket::from(socket);
    let send = |target: IpAddr| {
        let packet = echo_request(target);
        match socket.send_to(&packet, SocketAddr::new(target, 0)) {
            // A rule of the sender's own namespace drops or rejects it.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            sent => assert_eq!(sent.unwrap(), packet.len()),
        }
        packet
    };
    let mut packets: Vec<Vec<[u8; 8]>> = requests.iter().map(|(target, _)| vec![send(*target)]).collect();
    let mut answers = vec![None; requests.len()];
    // A loaded machine may lose a packet.
    const TRIES: usize = 100;
    let mut tries = 0;
    wait::until(|| {
        let mut buffer = [0; 1500];
        while let Ok((length, _)) = socket.recv_from(&mut buffer) {
            let Some((asked, answer)) = echo_answer(&buffer[..length], is_ipv4) else {
                continue;
            };
            let is_asked = |sent: &Vec<[u8; 8]>| sent.iter().any(|packet| packet[4..] == *asked);
            if let Some(position) = packets.iter().position(is_asked) {
                answers[position] = Some(answer);
            }
        }
        tries += 1;
        if tries % TRIES == 0 {
            for (position, (target, expected)) in requests.iter().enumerate() {
                if expected.is_some() && answers[position].is_none() {
                    packets[position].push(send(*target));
                }
            }
        }
        let mut both = answers.iter().zip(requests);
        match both.all(|(answer, (_, expected))| answer.is_some() || expected.is_none()) {
            true => Ok(()),
            false => Err(format!("{answers:?} instead of {requests:?}")),
        }
    });
    let expected: Vec<Option<EchoAnswer>> = requests.iter().map(|(_, expected)| *expected).collect();
    assert_eq!(answers, expected, "{requests:?}");
}

#[test]
fn an_echo_request_to_a_cluster_ip_is_refused() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let manifests = service("web", 1, "type: ClusterIP", NO_PORTS, &[])
            + &slices("web", &[(0, "node-a")])
            + &service("empty", 2, "type: ClusterIP", NO_PORTS, &[]);
        let mut proxier = proxier(&manifests);
        let mut config = config();
        for networks in [&[][..], &["10.96.0.0/16", "fd00:10:96::/112"]] {
            let networks = networks.iter().map(|net| net.parse().unwrap());
            config.service_cidrs = Some(networks.collect());
            proxier.set_config(&config).unwrap();
            sync(&mut proxier);
            // The endpoint is a client too.
            for from in [&network.client, &network.pods[0], &network.pods[1], &network.node] {
                for (family, refusal) in REFUSALS.into_iter().enumerate() {
                    assert_ping(
                        from,
                        &[1, 2].map(|number| (cluster_ips(number)[family], Some(refusal))),
                    );
                }
            }
        }
    });
}

#[test]
fn an_echo_request_to_a_cluster_ip_that_no_service_has_is_dropped_if_the_networks_are_known() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let _servers = serve_unused(network, cluster_ips(7));
        let manifests =
            service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices("web", &[(0, "node-a")]);
        let mut proxier = proxier(&manifests);
        let mut config = config();
        for is_known in [false, true, false] {
            let networks = ["10.96.0.0/16", "fd00:10:96::/112"].map(|net| net.parse().unwrap());
            config.service_cidrs = Some(if is_known { networks.into() } else { Vec::new() });
            proxier.set_config(&config).unwrap();
            sync(&mut proxier);
            for from in [&network.client, &network.pods[0], &network.node] {
                for (family, reply) in REPLIES.into_iter().enumerate() {
                    // What answers the second one is where the first one would be answered.
                    let unused = (cluster_ips(7)[family], (!is_known).then_some(reply));
                    assert_ping(from, &[unused, (pod_ips(1)[family], Some(reply))]);
                }
            }
        }
    });
}
