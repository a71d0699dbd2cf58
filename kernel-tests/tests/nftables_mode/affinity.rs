//! Session affinity `ClientIP`: a client keeps its endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use kernlink_kernel_tests::expectations::{NO_PORTS, ips, node_ips};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, ask_many};
use kernlink_kernel_tests::udp_clients::keep_flows;
use kernlink_kernel_tests::{requires, tools, wait};
use kernlink_nftables::{Element, Elements, Nftables, TableFamily, TableKey, Value};
use kernlink_proxier::nftables_mode::layout::SECOND_TABLE;

use crate::support::{change, config, on_network, proxier, proxier_with, sync};

/// A number of clients so that events with a probability of a third or more happen to one of them, with a probability above 1 - 1e-10.
const CLIENTS: u8 = 60;

/// Clients in the namespace of a pod, each with an address of its own.
struct Clients<'a> {
    namespace: &'a NetNs,
    addresses: Vec<[IpAddr; 2]>,
}

impl<'a> Clients<'a> {
    fn add(network: &'a Network, pod: u8) -> Self {
        let namespace = &network.pods[usize::from(pod)];
        let addresses: Vec<[IpAddr; 2]> = (0..CLIENTS)
            .map(|client| {
                ips(
                    &format!("10.244.{pod}.{}", 100 + client),
                    &format!("fd00:10:244:{pod:x}::{:x}", 0x100 + u16::from(client)),
                )
            })
            .collect();
        namespace.run(|| {
            let line = |address: &IpAddr| match address {
                IpAddr::V4(_) => format!("address add {address}/24 dev eth0\n"),
                IpAddr::V6(_) => format!("address add {address}/64 dev eth0 nodad\n"),
            };
            tools::ip_batch(&addresses.iter().flatten().map(line).collect::<String>());
            wait::for_ipv6_addresses();
        });
        Self { namespace, addresses }
    }

    /// The server that answers each client.
    fn ask(&self, protocol: Protocol, target: SocketAddr) -> BTreeMap<IpAddr, String> {
        let family = usize::from(target.is_ipv6());
        let ask = |addresses: &[IpAddr; 2]| {
            let source = addresses[family];
            let answer = Connection::open_from(self.namespace, protocol, source, target)
                .and_then(|mut connection| connection.ask());
            let answer = answer.unwrap_or_else(|error| panic!("{source} to {target}: {error}"));
            (source, answer.server)
        };
        self.addresses.iter().map(ask).collect()
    }
}

fn sticky(timeout: u32) -> String {
    format!("sessionAffinity: ClientIP, sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {timeout}}}}}")
}

fn frontends(addresses: [IpAddr; 2]) -> impl Iterator<Item = (Protocol, SocketAddr)> {
    addresses.into_iter().flat_map(|address| {
        [(Protocol::Tcp, 80), (Protocol::Udp, 53)]
            .map(|(protocol, port)| (protocol, SocketAddr::new(address, port)))
    })
}

#[test]
fn each_client_keeps_its_endpoint_at_every_frontend_also_after_a_restart_and_with_other_rules() {
    requires!(Feature::Conntrack);
    on_network(4, |network| {
        let clients = Clients::add(network, 3);
        let external = ["203.0.113.20", "2001:db8:ff::20"];
        let ingress = ["203.0.113.10", "2001:db8:ff::10"];
        let spec = format!(
            "type: LoadBalancer, externalTrafficPolicy: Local, {}, externalIPs: ['{}', '{}'], healthCheckNodePort: 32000",
            sticky(900),
            external[0],
            external[1]
        );
        let node_ports = [", nodePort: 30080", ", nodePort: 30053"];
        let pods = [(0, "node-a"), (1, "node-a"), (2, "node-b")];
        let manifests = service("sticky", 1, &spec, node_ports, &ingress) + &slices("sticky", &pods);
        let mut of_before = proxier(&manifests);
        sync(&mut of_before);
        let mut of_targets = Vec::new();
        for (protocol, target) in frontends(cluster_ips(1)) {
            let first = clients.ask(protocol, target);
            let servers: BTreeSet<&str> = first.values().map(String::as_str).collect();
            assert_eq!(
                servers,
                ["pod0", "pod1", "pod2"].into(),
                "all endpoints have clients"
            );
            assert_eq!(clients.ask(protocol, target), first);
            // Pods use all endpoints at a frontend with policy `Local` too.
            let family = usize::from(target.is_ipv6());
            let node_port = if target.port() == 80 { 30080 } else { 30053 };
            for other in [
                SocketAddr::new(ips(external[0], external[1])[family], target.port()),
                SocketAddr::new(ips(ingress[0], ingress[1])[family], target.port()),
                SocketAddr::new(node_ips()[family], node_port),
            ] {
                assert_eq!(clients.ask(protocol, other), first, "{other}");
            }
            of_targets.push((protocol, target, first));
        }
        // The next process.
        drop(of_before);
        sync(&mut proxier(&manifests));
        for (protocol, target, first) in &of_targets {
            assert_eq!(clients.ask(*protocol, *target), *first);
        }
        // One with other rules, which are in another table.
        let mut config = config();
        config.masquerade_all = true;
        sync(&mut proxier_with(&config, &manifests));
        for family in ["ip", "ip6"] {
            let tables = tools::must("nft", &["list", "tables", family]);
            assert_eq!(tables.trim(), format!("table {family} {SECOND_TABLE}"));
        }
        for (protocol, target, first) in &of_targets {
            assert_eq!(clients.ask(*protocol, *target), *first);
        }
    });
}

#[test]
fn a_client_at_a_frontend_with_policy_local_keeps_an_endpoint_of_this_node() {
    requires!(Feature::Conntrack);
    on_network(4, |network| {
        let external = ["203.0.113.20", "2001:db8:ff::20"];
        let spec = format!(
            "type: LoadBalancer, externalTrafficPolicy: Local, {}, externalIPs: ['{}', '{}'], healthCheckNodePort: 32000",
            sticky(900),
            external[0],
            external[1]
        );
        let pods = [(0, "node-a"), (1, "node-a"), (2, "node-b")];
        let near = [(0, "node-a"), (2, "node-b")];
        let manifests = |pods| service("sticky", 1, &spec, NO_PORTS, &[]) + &slices("sticky", pods);
        let mut proxier = proxier(&manifests(&pods));
        sync(&mut proxier);
        for (protocol, target) in frontends(ips(external[0], external[1])) {
            // From outside. Another endpoint of the cluster IP would not be one of this node.
            let cluster_ip = cluster_ips(1)[usize::from(target.is_ipv6())];
            let tally = ask_many(
                &network.client,
                protocol,
                SocketAddr::new(cluster_ip, target.port()),
                5,
            );
            let of_cluster_ip: Vec<&String> = tally.answers.keys().collect();
            let tally = ask_many(&network.client, protocol, target, 20);
            assert_eq!(tally.failures, Vec::<String>::new());
            let servers: Vec<&String> = tally.answers.keys().collect();
            let [server] = &servers[..] else {
                panic!("{target}: {tally:?}")
            };
            assert!(["pod0", "pod1"].contains(&server.as_str()), "{tally:?}");
            if of_cluster_ip != ["pod2"] {
                assert_eq!(
                    servers, of_cluster_ip,
                    "the chains of both policies share the affinity"
                );
            }
        }
        change(&mut proxier, &manifests(&near));
        for (protocol, target) in frontends(ips(external[0], external[1])) {
            ask_many(&network.client, protocol, target, 5).assert_balanced(&["pod0"], 0);
        }
    });
}

#[test]
fn the_clients_of_an_endpoint_that_leaves_choose_once_more_and_all_others_stay() {
    requires!(Feature::Conntrack);
    on_network(5, |network| {
        let clients = Clients::add(network, 4);
        let manifests = |pods: &[(u8, &str)]| {
            let spec = format!("type: ClusterIP, {}", sticky(900));
            service("sticky", 1, &spec, NO_PORTS, &[]) + &slices("sticky", pods)
        };
        let mut proxier = proxier(&manifests(&[(0, "node-a"), (1, "node-a"), (2, "node-a")]));
        sync(&mut proxier);
        let targets: Vec<_> = frontends(cluster_ips(1)).collect();
        let mut kept: Vec<BTreeMap<IpAddr, String>> = targets
            .iter()
            .map(|(protocol, target)| clients.ask(*protocol, *target))
            .collect();
        let sets: [&[(u8, &str)]; 4] = [
            &[(0, "node-a"), (2, "node-a")],
            &[(0, "node-a"), (2, "node-a"), (3, "node-a")],
            &[(3, "node-a"), (2, "node-a")],
            &[(3, "node-a")],
        ];
        for pods in sets {
            change(&mut proxier, &manifests(pods));
            let names: BTreeSet<String> = pods.iter().map(|(pod, _)| format!("pod{pod}")).collect();
            for ((protocol, target), before) in targets.iter().zip(&mut kept) {
                let now = clients.ask(*protocol, *target);
                for (client, server) in &now {
                    assert!(names.contains(server), "{client} to {target}: {server}");
                    let before = &before[client];
                    assert!(
                        server == before || !names.contains(before),
                        "{client} to {target}: from {before} to {server}"
                    );
                }
                assert_eq!(clients.ask(*protocol, *target), now, "the new choice is kept");
                *before = now;
            }
        }
    });
}

#[test]
fn affinity_ends_when_a_client_opened_no_connection_for_the_timeout() {
    requires!(Feature::Conntrack);
    on_network(4, |network| {
        let clients = Clients::add(network, 3);
        let spec = format!("type: ClusterIP, {}", sticky(2));
        let manifests = service("sticky", 1, &spec, NO_PORTS, &[])
            + &slices("sticky", &[(0, "node-a"), (1, "node-a"), (2, "node-a")]);
        sync(&mut proxier(&manifests));
        for (protocol, target) in frontends(cluster_ips(1)) {
            let first = clients.ask(protocol, target);
            thread::sleep(Duration::from_secs(4));
            // All choose again: the same endpoints with a probability of 1 : 3 ^ 60.
            assert_ne!(clients.ask(protocol, target), first, "{target}");
        }
    });
}

/// A client that opens connections all the time keeps its endpoint for longer than the timeout. If the machine is so slow that the time
/// between two of its connections exceeds the timeout, another attempt decides.
#[test]
fn each_connection_extends_the_time_of_affinity() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        let timeout = Duration::from_secs(5);
        let spec = format!("type: ClusterIP, {}", sticky(5));
        let manifests = service("sticky", 1, &spec, NO_PORTS, &[])
            + &slices("sticky", &[(0, "node-a"), (1, "node-a"), (2, "node-a")]);
        sync(&mut proxier(&manifests));
        for address in cluster_ips(1) {
            let target = SocketAddr::new(address, 80);
            let server = || {
                let mut connection = Connection::open(&network.client, Protocol::Tcp, target).unwrap();
                connection.ask().unwrap().server
            };
            wait::until(|| {
                let start = std::time::Instant::now();
                let first = server();
                // Before the last connection was opened.
                let mut last = start;
                let mut is_slow = false;
                let mut servers = BTreeSet::from([first]);
                while start.elapsed() < timeout * 2 {
                    thread::sleep(Duration::from_millis(500));
                    let now = std::time::Instant::now();
                    servers.insert(server());
                    is_slow |= last.elapsed() > timeout * 9 / 10;
                    last = now;
                }
                if is_slow {
                    return Err("the machine is too slow".to_owned());
                }
                assert_eq!(servers.len(), 1, "{target}");
                Ok(())
            });
        }
    });
}

#[test]
fn affinity_can_be_requested_and_withdrawn_while_there_are_connections() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        keep_flows();
        let pods = [(0, "node-a"), (1, "node-a"), (2, "node-a")];
        let manifests = |affinity: &str| {
            service("web", 1, &format!("type: ClusterIP, {affinity}"), NO_PORTS, &[]) + &slices("web", &pods)
        };
        let mut proxier = proxier(&manifests("sessionAffinity: None"));
        sync(&mut proxier);
        let targets: Vec<_> = frontends(cluster_ips(1)).collect();
        let mut open: Vec<Connection> = targets
            .iter()
            .map(|(protocol, target)| Connection::open(&network.client, *protocol, *target).unwrap())
            .collect();
        let of_before: Vec<String> = open.iter_mut().map(|c| c.ask().unwrap().server).collect();
        // With three different timeouts, too.
        for affinity in [
            sticky(900),
            sticky(600),
            "sessionAffinity: None".to_owned(),
            sticky(10_800),
        ] {
            change(&mut proxier, &manifests(&affinity));
            for (protocol, target) in &targets {
                // Each of three endpoints is chosen with a probability above 1 - 1e-10.
                let tally = ask_many(&network.client, *protocol, *target, 60);
                let servers = if affinity.contains("None") { 3 } else { 1 };
                assert_eq!(
                    (tally.answers.len(), &tally.failures[..]),
                    (servers, &[][..]),
                    "{affinity} {target}"
                );
            }
            let now: Vec<String> = open.iter_mut().map(|c| c.ask().unwrap().server).collect();
            assert_eq!(now, of_before);
        }
    });
}

/// The most clients that are remembered in a family.
const MOST_CLIENTS: u32 = 1 << 20;

#[test]
fn a_client_that_is_not_remembered_because_too_many_are_is_served() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        let pods = [(0, "node-a"), (1, "node-a")];
        let web = service(
            "web",
            1,
            &format!("type: ClusterIP, {}", sticky(10_800)),
            NO_PORTS,
            &[],
        );
        let mut proxier = proxier(&(web + &slices("web", &pods)));
        sync(&mut proxier);
        let clients = Clients::add(network, 2);
        clients.namespace.run(|| {
            for last in [100 + CLIENTS, 101 + CLIENTS] {
                tools::ip(&["address", "add", &format!("10.244.2.{last}/24"), "dev", "eth0"]);
            }
        });
        let target = SocketAddr::new(cluster_ips(1)[0], 80);
        let remembered = clients.ask(Protocol::Tcp, target);
        let set = TableKey::new(TableFamily::Ip, "kernlink").set("affinity-clients");
        let tables = &mut proxier.kernel_mut().tables;
        // Clients of a Service that does not exist, so that one more has room.
        let others = MOST_CLIENTS - u32::from(CLIENTS) - 1;
        for part in (0..others).collect::<Vec<u32>>().chunks(1 << 16) {
            let elements = part.iter().map(|number| {
                let key = [Value::host_u32(u32::MAX), Value::from(number.to_be_bytes())];
                let value = [Value::port(0), Value::from([192, 0, 2, 250]), Value::port(9)];
                Element::new(Value::concat(key)).with_value(Value::concat(value))
            });
            let elements = Elements::new(set.clone(), elements);
            tables.add_elements(&elements, 1 << 13).unwrap();
        }
        let ask = |last: u8| {
            let source = IpAddr::from([10, 244, 2, last]);
            let mut connection =
                Connection::open_from(clients.namespace, Protocol::Tcp, source, target).unwrap();
            connection.ask().unwrap().server
        };
        // The last one that is remembered, and those that are not: each connection has a random endpoint.
        let nearly = ask(100 + CLIENTS);
        assert!((0..5).all(|_| ask(100 + CLIENTS) == nearly));
        let servers: BTreeSet<String> = (0..CLIENTS).map(|_| ask(101 + CLIENTS)).collect();
        assert_eq!(servers.len(), 2, "{servers:?}");
        // Others keep their endpoint.
        assert_eq!(clients.ask(Protocol::Tcp, target), remembered);
    });
}
