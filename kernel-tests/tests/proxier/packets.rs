//! The proxier on a real kernel with real packets: which clients can reach a frontend, which endpoint replies, and which source address it
//! sees.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server, Tally, ask_many};
use kernlink_kernel_tests::{tools, wait};
use socket2::{Domain, Socket, Type};

use crate::support::{
    assert_in_desired_state, cluster_ips, load_balancer, proxier, replace_objects, service, slices, sync,
};

const PORTS: &str = "[{name: web, port: 8080, protocol: TCP}, {name: ask, port: 5353, protocol: UDP}]";

/// The two ports of each Service in this file.
const TCP_AND_UDP: [(Protocol, u16); 2] = [(Protocol::Tcp, 80), (Protocol::Udp, 53)];

/// The specification of a Service with these ports and a cluster IP only.
const CLUSTER_IP: &str =
    "type: ClusterIP, ports: [{name: web, port: 80, protocol: TCP}, {name: ask, port: 53, protocol: UDP}]";

/// Both ports at an address of each family, with the index of the family.
fn targets(addresses: [IpAddr; 2]) -> impl Iterator<Item = (usize, Protocol, SocketAddr)> {
    let addresses = addresses.into_iter().enumerate();
    addresses.flat_map(|(family, address)| {
        TCP_AND_UDP.map(|(protocol, port)| (family, protocol, SocketAddr::new(address, port)))
    })
}

/// A network of pods that all serve [`PORTS`].
fn network(pods: u8) -> (Network, Vec<Server>) {
    let network = Network::new(pods);
    let mut servers = network.serve(Protocol::Tcp, 8080);
    servers.extend(network.serve(Protocol::Udp, 5353));
    (network, servers)
}

fn ips(v4: &str, v6: &str) -> [IpAddr; 2] {
    [v4.parse().unwrap(), v6.parse().unwrap()]
}

fn node_ips() -> [IpAddr; 2] {
    [Network::node_ipv4().into(), Network::node_ipv6().into()]
}

fn client_ips() -> [IpAddr; 2] {
    [Network::client_ipv4().into(), Network::client_ipv6().into()]
}

fn pod_ips(number: u8) -> [IpAddr; 2] {
    [Network::pod_ipv4(number).into(), Network::pod_ipv6(number).into()]
}

/// The address of the node on the link to a pod: the source that the pod sees of masqueraded packets.
fn gateway_ips(number: u8) -> [IpAddr; 2] {
    ips(
        &format!("10.244.{number}.1"),
        &format!("fd00:10:244:{number:x}::1"),
    )
}

/// Asserts that every request was answered, that these servers answered the same number of them, and that they saw these sources.
fn assert_tally(tally: &Tally, servers: &[&str], sources: &[IpAddr]) {
    tally.assert_balanced(servers, 1);
    assert_eq!(
        tally.sources,
        sources.iter().copied().collect::<BTreeSet<_>>(),
        "{tally:#?}"
    );
}

#[test]
fn traffic_to_a_cluster_ip_is_masqueraded_unless_it_comes_from_pods() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let (network, _servers) = network(3);
    let _on_node = network.node.enter();
    let manifests =
        service("web", 1, CLUSTER_IP, "") + &slices("web", PORTS, &[(0, "node-a"), (1, "node-b")]);
    sync(&mut proxier(&manifests));
    for (family, protocol, target) in targets(cluster_ips(1)) {
        let gateways = [gateway_ips(0)[family], gateway_ips(1)[family]];
        // A pod of this cluster, a client outside, the node itself.
        for (from, sources) in [
            (&network.pods[2], &[pod_ips(2)[family]][..]),
            (&network.client, &gateways),
            (&network.node, &gateways),
        ] {
            let tally = ask_many(from, protocol, target, 4);
            assert_tally(&tally, &["pod0", "pod1"], sources);
        }
    }
}

#[test]
fn external_traffic_is_masqueraded_with_policy_cluster_and_not_with_policy_local() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let (network, _servers) = network(2);
    let _on_node = network.node.enter();
    let both_ports = |first: u16| {
        format!(
            "ports: [{{name: web, port: 80, nodePort: {first}, protocol: TCP}}, \
             {{name: ask, port: 53, nodePort: {}, protocol: UDP}}]",
            first + 1
        )
    };
    let frontends = |policy: &str, external: [&str; 2], first: u16| {
        format!(
            "type: LoadBalancer, externalTrafficPolicy: {policy}, externalIPs: ['{}', '{}'], {}",
            external[0],
            external[1],
            both_ports(first)
        )
    };
    let pods = [(0, "node-a"), (1, "node-b")];
    let manifests = [
        load_balancer(
            "wide",
            1,
            &frontends("Cluster", ["203.0.113.20", "2001:db8:ff::20"], 30080),
            ["203.0.113.10", "2001:db8:ff::10"],
        ),
        slices("wide", PORTS, &pods),
        load_balancer(
            "near",
            2,
            &frontends("Local", ["203.0.113.21", "2001:db8:ff::21"], 30090),
            ["203.0.113.11", "2001:db8:ff::11"],
        ),
        slices("near", PORTS, &pods),
    ]
    .concat();
    let proxier = &mut proxier(&manifests);
    sync(proxier);
    assert_in_desired_state(proxier);
    for family in [0, 1] {
        for (index, (protocol, port)) in (0..).zip(TCP_AND_UDP) {
            let request = |address: IpAddr, port: u16| {
                ask_many(&network.client, protocol, SocketAddr::new(address, port), 4)
            };
            let load_balancers = [
                ips("203.0.113.10", "2001:db8:ff::10"),
                ips("203.0.113.11", "2001:db8:ff::11"),
            ];
            let external = [
                ips("203.0.113.20", "2001:db8:ff::20"),
                ips("203.0.113.21", "2001:db8:ff::21"),
            ];
            let gateways = [gateway_ips(0)[family], gateway_ips(1)[family]];
            for tally in [
                request(node_ips()[family], 30080 + index),
                request(load_balancers[0][family], port),
                request(external[0][family], port),
            ] {
                assert_tally(&tally, &["pod0", "pod1"], &gateways);
            }
            for tally in [
                request(node_ips()[family], 30090 + index),
                request(load_balancers[1][family], port),
                request(external[1][family], port),
            ] {
                assert_tally(&tally, &["pod0"], &[client_ips()[family]]);
            }
        }
    }
}

#[test]
fn source_ranges_accept_the_sources_in_them_only() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let (network, _servers) = network(1);
    let _on_node = network.node.enter();
    let ranges = |ranges: &str| {
        let spec = format!(
            "type: LoadBalancer, allocateLoadBalancerNodePorts: false, loadBalancerSourceRanges: [{ranges}], \
             ports: [{{name: web, port: 80, protocol: TCP}}, {{name: ask, port: 53, protocol: UDP}}]"
        );
        load_balancer("outer", 1, &spec, ["203.0.113.10", "2001:db8:ff::10"])
            + &slices("outer", PORTS, &[(0, "node-a")])
    };
    let frontends = ips("203.0.113.10", "2001:db8:ff::10");
    let proxier = &mut proxier(&ranges("'192.0.2.0/24', '2001:db8:1::/64'"));
    sync(proxier);
    for (_, protocol, target) in targets(frontends) {
        ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
    }

    // Other sources only: packets of the client are dropped. A range of one host is among them.
    replace_objects(
        proxier,
        &ranges("'198.51.100.0/24', '192.0.2.3/32', '2001:db8:5::/48', '2001:db8:1::3/128'"),
    );
    sync(proxier);
    assert_in_desired_state(proxier);
    let refusals: Vec<ErrorKind> = thread::scope(|scope| {
        let threads: Vec<_> = targets(frontends)
            .map(|(_, protocol, target)| {
                let client = &network.client;
                scope.spawn(move || {
                    let result =
                        Connection::open_within(SILENCE, client, protocol, target).and_then(|mut c| c.ask());
                    result.map_or_else(
                        |error| error.kind(),
                        |answer| panic!("{protocol} {target}: {answer:?}"),
                    )
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for kind in refusals {
        assert!(
            [ErrorKind::TimedOut, ErrorKind::WouldBlock].contains(&kind),
            "{kind:?}"
        );
    }
    for program in ["iptables", "ip6tables"] {
        let listing = tools::must(program, &["-nvxL", "KUBE-SOURCE-RANGES-FIREWALL"]);
        let dropped = listing.lines().find(|line| line.contains("DROP")).unwrap();
        let packets: u64 = dropped.split_whitespace().next().unwrap().parse().unwrap();
        assert!(packets >= 2, "{listing}");
    }

    // The host of that range is accepted.
    network.client.run(|| {
        tools::ip(&["address", "add", "192.0.2.3/24", "dev", "eth0"]);
        tools::ip(&["address", "add", "2001:db8:1::3/64", "dev", "eth0", "nodad"]);
        wait::for_ipv6_addresses();
    });
    for (source, target) in ips("192.0.2.3", "2001:db8:1::3").into_iter().zip(frontends) {
        let mut flow =
            Connection::open_udp_from(&network.client, (source, 0).into(), (target, 53).into()).unwrap();
        assert_eq!(flow.ask().unwrap().server, "pod0");
    }
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let (network, _servers) = network(1);
    let _on_node = network.node.enter();
    let manifests = service("web", 1, CLUSTER_IP, "") + &slices("web", PORTS, &[(0, "node-a")]);
    sync(&mut proxier(&manifests));
    for (family, protocol, target) in targets(cluster_ips(1)) {
        let tally = ask_many(&network.pods[0], protocol, target, 3);
        // Without masquerading, the pod would reply to itself directly, and not from the cluster IP.
        assert_tally(&tally, &["pod0"], &[gateway_ips(0)[family]]);
    }
}

#[test]
fn with_session_affinity_a_client_keeps_its_endpoint() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let (network, _servers) = network(3);
    let _on_node = network.node.enter();
    let sticky = format!(
        "{CLUSTER_IP}, sessionAffinity: ClientIP, sessionAffinityConfig: {{clientIP: {{timeoutSeconds: 900}}}}"
    );
    let pods = [(0, "node-a"), (1, "node-a"), (2, "node-a")];
    let manifests = [
        service("sticky", 1, &sticky, ""),
        slices("sticky", PORTS, &pods),
        service("fickle", 2, CLUSTER_IP, ""),
        slices("fickle", PORTS, &pods),
    ]
    .concat();
    let mut first = proxier(&manifests);
    sync(&mut first);
    for (_, protocol, target) in targets(cluster_ips(1)) {
        let tally = ask_many(&network.client, protocol, target, 6);
        assert_eq!((tally.answers.len(), tally.failures.len()), (1, 0), "{tally:#?}");
        // Also after a restart.
        sync(&mut proxier(&manifests));
        let again = ask_many(&network.client, protocol, target, 3);
        assert!(
            again.answers.keys().eq(tally.answers.keys()),
            "{tally:#?} {again:#?}"
        );
    }
    for (_, protocol, target) in targets(cluster_ips(2)) {
        let tally = ask_many(&network.client, protocol, target, 6);
        tally.assert_balanced(&["pod0", "pod1", "pod2"], 0);
    }
}

#[test]
fn a_connection_to_a_port_of_a_virtual_ip_that_is_not_served_is_rejected() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let (network, _servers) = network(1);
    let _on_node = network.node.enter();
    tools::permit_icmp_errors();
    // A daemon on every address of the node must not be reachable through a virtual IP.
    let _daemons: Vec<Server> = [Protocol::Tcp, Protocol::Udp]
        .into_iter()
        .flat_map(|protocol| {
            ["0.0.0.0:9999", "[::]:9998"]
                .map(|address| Server::start(&network.node, "daemon", protocol, address.parse().unwrap()))
        })
        .collect();
    let spec = "type: LoadBalancer, externalIPs: ['203.0.113.20', '2001:db8:ff::20'], ports: [{name: web, port: 80, protocol: TCP}]";
    let manifests = load_balancer("web", 1, spec, ["203.0.113.10", "2001:db8:ff::10"])
        + &slices("web", PORTS, &[(0, "node-a")]);
    sync(&mut proxier(&manifests));
    for (v4, v6) in [
        ("203.0.113.20", "2001:db8:ff::20"),
        ("203.0.113.10", "2001:db8:ff::10"),
        ("10.96.0.1", "fd00:10:96::1"),
    ] {
        for (address, daemon) in ips(v4, v6).into_iter().zip([9999, 9998]) {
            ask_many(&network.client, Protocol::Tcp, SocketAddr::new(address, 80), 1)
                .assert_balanced(&["pod0"], 0);
            let closed = [
                (Protocol::Tcp, 81),
                (Protocol::Udp, 80),
                (Protocol::Tcp, daemon),
                (Protocol::Udp, daemon),
            ];
            for from in [&network.client, &network.node] {
                for (protocol, port) in closed {
                    let target = SocketAddr::new(address, port);
                    let result = Connection::open(from, protocol, target).and_then(|mut c| c.ask());
                    let kind = result.map_err(|error| error.kind());
                    assert_eq!(kind, Err(ErrorKind::ConnectionRefused), "{protocol} {target}");
                }
            }
        }
    }
    // The daemon answers on the node's own address.
    for (address, daemon) in node_ips().into_iter().zip([9999, 9998]) {
        ask_many(
            &network.client,
            Protocol::Tcp,
            SocketAddr::new(address, daemon),
            1,
        )
        .assert_balanced(&["daemon"], 0);
    }
}

#[test]
fn sctp_associations_are_balanced_and_keep_their_source_under_the_local_policy() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers: Vec<SctpServer> = (0..2_u8)
        .flat_map(|pod| pod_ips(pod).map(|address| (pod, address)))
        .map(|(pod, address)| {
            SctpServer::start(
                &network.pods[usize::from(pod)],
                &format!("pod{pod}"),
                (address, 9900).into(),
            )
        })
        .collect();
    let _on_node = network.node.enter();
    let wide = "type: NodePort, ports: [{name: s, port: 99, nodePort: 30099, protocol: SCTP}]";
    let near = "type: NodePort, externalTrafficPolicy: Local, ports: [{name: s, port: 99, nodePort: 30098, protocol: SCTP}]";
    let ports = "[{name: s, port: 9900, protocol: SCTP}]";
    let pods = [(0, "node-a"), (1, "node-b")];
    let manifests = [
        service("wide", 1, wide, ""),
        slices("wide", ports, &pods),
        service("near", 2, near, ""),
        slices("near", ports, &pods),
    ]
    .concat();
    let mut proxier = proxier(&manifests);
    sync(&mut proxier);
    assert_in_desired_state(&proxier);
    for family in [0, 1] {
        let gateways = [gateway_ips(0)[family], gateway_ips(1)[family]];
        let both = ["pod0", "pod1"];
        for (target, servers, sources) in [
            ((cluster_ips(1)[family], 99), &both[..], &gateways[..]),
            ((node_ips()[family], 30099), &both, &gateways),
            ((node_ips()[family], 30098), &both[..1], &[client_ips()[family]]),
        ] {
            let mut tally = Tally::default();
            for _ in 0..4 {
                match sctp_request(&network.client, client_ips()[family], target.into()) {
                    Ok(answer) => {
                        let (server, source) = answer.split_once(' ').unwrap();
                        *tally.answers.entry(server.to_owned()).or_default() += 1;
                        tally.sources.insert(source.parse::<SocketAddr>().unwrap().ip());
                    }
                    Err(error) => tally.failures.push(error.to_string()),
                }
            }
            assert_tally(&tally, servers, sources);
        }
    }
}

/// A server that replies to each association with its name and the source address. It stops when dropped.
struct SctpServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn sctp_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(socket2::Protocol::SCTP),
    )?;
    socket.bind(&address.into())?;
    Ok(socket)
}

impl SctpServer {
    fn start(namespace: &NetNs, name: &str, address: SocketAddr) -> Self {
        let listener = namespace.run(|| sctp_socket(address)).unwrap();
        listener.listen(16).unwrap();
        listener
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, name) = (stop.clone(), name.to_owned());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // On a timeout, check whether to stop.
                if let Ok((mut association, source)) = listener.accept() {
                    let answer = format!("{name} {}", source.as_socket().unwrap());
                    association.set_read_timeout(Some(PATIENCE)).unwrap();
                    // A client that aborts reports its own error.
                    let _ = association.read(&mut [0; 64]);
                    let _ = association.write(answer.as_bytes());
                }
            }
        });
        let thread = Some(thread);
        Self { stop, thread }
    }
}

impl Drop for SctpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How long to wait for a reply that must not arrive.
const SILENCE: Duration = Duration::from_secs(5);

/// How long a client waits for a reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a request from a different port each time. Ports chosen by the kernel can repeat, and the same port reaches the same server.
fn sctp_request(namespace: &NetNs, source: IpAddr, target: SocketAddr) -> io::Result<String> {
    static PORT: AtomicU16 = AtomicU16::new(10_000);
    namespace.run(|| {
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let mut association = sctp_socket((source, port).into())?;
        association.connect_timeout(&target.into(), PATIENCE)?;
        association.set_read_timeout(Some(PATIENCE))?;
        association.write_all(b"who")?;
        let mut answer = [0; 128];
        let length = association.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    })
}
