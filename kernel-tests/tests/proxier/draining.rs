//! Endpoints that leave while clients are connected: connections go on until they end, and new ones reach other endpoints.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server, ask_many};
use kernlink_kernel_tests::{tools, wait};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier};
use socket2::{Domain, Socket, Type};

use crate::clusters::WEB_PORTS;
use crate::support::{
    cluster_ips, draining_config, proxier_with, replace_objects, service, slices, sync, sync_at,
};

const WEB: &str = "type: ClusterIP, ports: [{name: web, port: 80, protocol: TCP}]";

/// The Service `web` with these pods; `more` is further metadata.
fn web(spec: &str, more: &str, pods: &[u8]) -> String {
    let pods: Vec<(u8, &str)> = pods.iter().map(|pod| (*pod, "node-b")).collect();
    service("web", 1, spec, more) + &slices("web", WEB_PORTS, &pods)
}

fn draining_proxier(manifests: &str) -> Proxier {
    proxier_with(draining_config(), Kernel::open().unwrap(), manifests)
}

fn targets() -> [SocketAddr; 2] {
    cluster_ips(1).map(|address| SocketAddr::new(address, 80))
}

/// A TCP connection from a given source port, which ends with a reset: the port can be used again at once.
struct FromPort(Socket);

impl FromPort {
    /// The port may have been that of a connection that was closed. A process that a parallel test starts has a copy of the socket until
    /// it executes its program, so the port is in use a little longer.
    fn open(client: &NetNs, port: u16, target: SocketAddr) -> io::Result<Self> {
        client.run(|| {
            wait::until(|| match Self::connect(port, target) {
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Err(error),
                connected => Ok(connected),
            })
        })
    }

    fn connect(port: u16, target: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_linger(Some(Duration::ZERO))?;
        let source: IpAddr = match target {
            SocketAddr::V4(_) => Network::client_ipv4().into(),
            SocketAddr::V6(_) => Network::client_ipv6().into(),
        };
        socket.bind(&SocketAddr::new(source, port).into())?;
        socket.connect_timeout(&target.into(), Duration::from_secs(60))?;
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self(socket))
    }

    /// The name of the server that answers.
    fn server(&mut self) -> io::Result<String> {
        self.0.write_all(b"who\n")?;
        let mut reply = [0; 128];
        let length = self.0.read(&mut reply)?;
        let text = String::from_utf8_lossy(&reply[..length]).into_owned();
        Ok(text.split(' ').next().unwrap_or_default().to_owned())
    }
}

/// The number of a pod in the name of its server.
fn number(server: &str) -> u8 {
    server.strip_prefix("pod").unwrap().parse().unwrap()
}

/// The number of SYNs that a namespace sent more than once.
fn repeated_syns(namespace: &NetNs) -> u64 {
    let text = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut counters = names.split(' ').zip(values.split(' '));
    let (_, value) = counters.find(|(name, _)| *name == "TCPSynRetrans").unwrap();
    value.parse().unwrap()
}

/// Asserts that an attempt sends no SYN twice. A machine that stops for a second causes that too, but not at each of several attempts.
#[track_caller]
fn assert_no_repeated_syn(client: &NetNs, mut attempt: impl FnMut()) {
    let repeated = (0..3).all(|_| {
        let before = repeated_syns(client);
        attempt();
        repeated_syns(client) != before
    });
    assert!(!repeated, "a SYN was sent twice in each of three attempts");
}

/// Syncs until no real server drains any more.
fn sync_until_drained(proxier: &mut Proxier) {
    let mut at = Instant::now();
    wait::until(|| {
        at += Duration::from_secs(5);
        match sync_at(proxier, at).draining {
            0 => Ok(()),
            left => Err(format!("{left} real servers drain")),
        }
    });
}

#[test]
fn connections_to_an_endpoint_that_leaves_last_until_they_end() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let mut proxier = draining_proxier(&web(WEB, "", &[0, 1]));
    sync(&mut proxier);
    // One connection to each endpoint in each family.
    let mut connections = Vec::new();
    for (port, target) in (20_001..).zip(targets().repeat(2)) {
        connections.push(FromPort::open(&network.client, port, target).unwrap());
    }
    let names: Vec<String> = connections.iter_mut().map(|c| c.server().unwrap()).collect();
    replace_objects(&mut proxier, &web(WEB, "", &[1]));
    assert_eq!(sync(&mut proxier).draining, 2);
    for target in targets() {
        ask_many(&network.client, Protocol::Tcp, target, 6).assert_balanced(&["pod1"], 0);
    }
    // Also after the virtual servers were read.
    let read = sync_at(&mut proxier, Instant::now() + Duration::from_secs(5));
    assert!(read.plan.is_empty() && read.draining == 2, "{}", read.plan);
    for (connection, name) in connections.iter_mut().zip(&names) {
        assert_eq!(connection.server().unwrap(), *name);
    }
    // The endpoint returns: its connections go on, and it gets new ones.
    replace_objects(&mut proxier, &web(WEB, "", &[0, 1]));
    assert_eq!(sync(&mut proxier).draining, 0);
    for (connection, name) in connections.iter_mut().zip(&names) {
        assert_eq!(connection.server().unwrap(), *name);
    }
    for target in targets() {
        ask_many(&network.client, Protocol::Tcp, target, 6).assert_balanced(&["pod0", "pod1"], 0);
    }
}

#[test]
fn real_servers_without_connections_are_deleted_at_the_next_reading() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let mut proxier = draining_proxier(&web(WEB, "", &[0, 1]));
    sync(&mut proxier);
    // The kernel keeps a connection that was reset for ten seconds.
    let connections: Vec<FromPort> = (20_001..)
        .zip(targets().repeat(2))
        .map(|(port, target)| FromPort::open(&network.client, port, target).unwrap())
        .collect();
    replace_objects(&mut proxier, &web(WEB, "", &[1]));
    assert_eq!(sync(&mut proxier).draining, 2);
    drop(connections);
    sync_until_drained(&mut proxier);
    assert_eq!(tools::ipvsadm_save().matches(" -r ").count(), 2);
}

#[test]
fn a_client_with_session_affinity_reaches_another_endpoint_when_its_own_leaves() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let sticky = format!("{WEB}, sessionAffinity: ClientIP");
    for target in targets() {
        assert_no_repeated_syn(&network.client, || {
            let mut proxier = draining_proxier(&web(&sticky, "", &[0, 1]));
            sync(&mut proxier);
            let mut bound = Connection::open(&network.client, Protocol::Tcp, target).unwrap();
            let first = bound.ask().unwrap().server;
            let other = 1 - number(&first);
            replace_objects(&mut proxier, &web(&sticky, "", &[other]));
            sync(&mut proxier);
            let tally = ask_many(&network.client, Protocol::Tcp, target, 5);
            tally.assert_balanced(&[&format!("pod{other}")], 0);
            assert_eq!(bound.ask().unwrap().server, first, "the connection goes on");
        });
    }
}

#[test]
fn a_source_port_that_is_used_again_reaches_an_endpoint_that_stayed_with_its_first_syn() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(3);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let mut proxier = draining_proxier(&web(WEB, "", &[0, 1, 2]));
    for target in targets() {
        for port in 21_000..21_010 {
            assert_no_repeated_syn(&network.client, || {
                replace_objects(&mut proxier, &web(WEB, "", &[0, 1, 2]));
                sync(&mut proxier);
                let first = FromPort::open(&network.client, port, target)
                    .unwrap()
                    .server()
                    .unwrap();
                let stay: Vec<u8> = (0..3).filter(|pod| *pod != number(&first)).collect();
                replace_objects(&mut proxier, &web(WEB, "", &stay));
                sync(&mut proxier);
                let mut again = FromPort::open(&network.client, port, target).unwrap();
                assert_ne!(again.server().unwrap(), first);
            });
        }
    }
}

#[test]
fn a_limit_that_passes_deletes_an_endpoint_with_connections_also_after_a_restart() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let limit = ", annotations: {kernlink.io/drain-timeout: 300s}";
    for is_restarted in [false, true] {
        let mut proxier = draining_proxier(&web(WEB, limit, &[0, 1]));
        sync(&mut proxier);
        let mut connections: Vec<Connection> = Vec::new();
        for target in targets().repeat(2) {
            connections.push(Connection::open(&network.client, Protocol::Tcp, target).unwrap());
        }
        let left = web(WEB, limit, &[1]);
        replace_objects(&mut proxier, &left);
        let began = Instant::now();
        assert_eq!(sync_at(&mut proxier, began).draining, 2);
        for set in ["KERNLINK-DRAIN", "KERNLINK-6-DRAIN"] {
            let listed = tools::ipset_save_one(set);
            assert_eq!(listed.matches("add ").count(), 1, "{listed}");
        }
        if is_restarted {
            proxier = proxier_with(draining_config(), proxier.into_kernel(), &left);
        }
        let early = sync_at(&mut proxier, began + Duration::from_secs(200));
        assert!(early.plan.is_empty() && early.draining == 2, "{}", early.plan);
        // The time of the sync is an argument: the remaining time was read at 200 seconds if the process was restarted.
        let late = began + Duration::from_secs(if is_restarted { 510 } else { 301 });
        assert_eq!(sync_at(&mut proxier, late).draining, 0);
        assert_eq!(tools::ipvsadm_save().matches(" -r ").count(), 2);
        for set in ["KERNLINK-DRAIN", "KERNLINK-6-DRAIN"] {
            assert!(!tools::ipset_save_one(set).contains("add "));
        }
    }
}

#[test]
fn no_connection_fails_while_all_endpoints_are_replaced() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(4);
    let start = |pod: u8| -> Vec<Server> {
        let addresses: [IpAddr; 2] = [Network::pod_ipv4(pod).into(), Network::pod_ipv6(pod).into()];
        let serve = |address| {
            let name = format!("pod{pod}");
            let namespace = &network.pods[usize::from(pod)];
            Server::start(namespace, &name, Protocol::Tcp, SocketAddr::new(address, 8080))
        };
        addresses.map(serve).into()
    };
    let mut servers: Vec<Option<Vec<Server>>> = vec![Some(start(0)), Some(start(1)), None, None];
    let _on_node = network.node.enter();
    let mut proxier = draining_proxier(&web(WEB, "", &[0, 1]));
    sync(&mut proxier);
    let mut long: Vec<(Connection, String)> = Vec::new();
    let is_over = AtomicBool::new(false);
    let short = [AtomicU32::new(0), AtomicU32::new(0)];
    thread::scope(|scope| {
        let clients: Vec<_> = targets()
            .into_iter()
            .zip(&short)
            .map(|(target, answered)| {
                let (client, is_over) = (&network.client, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let answer =
                            Connection::open(client, Protocol::Tcp, target).and_then(|mut c| c.ask());
                        assert!(
                            answer.is_ok(),
                            "{target}: {answer:?} after {answered:?} connections"
                        );
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for (old, new) in [(0, 2), (1, 3), (2, 0), (3, 1)] {
            for target in targets().repeat(2) {
                let mut connection = Connection::open(&network.client, Protocol::Tcp, target).unwrap();
                let server = connection.ask().unwrap().server;
                long.push((connection, server));
            }
            servers[usize::from(new)] = Some(start(new));
            let stays = (0..4).filter(|pod| *pod != old && servers[usize::from(*pod)].is_some());
            let stays: Vec<u8> = stays.collect();
            replace_objects(&mut proxier, &web(WEB, "", &stays));
            sync(&mut proxier);
            // A connection that began before may wait to be accepted; the kernel resets those that do when the server ends.
            for (client, answered) in clients.iter().zip(&short) {
                let before = answered.load(Ordering::Relaxed);
                wait::until(|| {
                    // One that has panicked is reported below.
                    let is_next = client.is_finished() || answered.load(Ordering::Relaxed) > before;
                    is_next.then_some(()).ok_or("a connection is not answered")
                });
            }
            // It accepts no new connection from now on.
            servers[usize::from(old)] = None;
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    });
    let short = short.map(AtomicU32::into_inner);
    assert!(short.iter().all(|answered| *answered > 0), "{short:?}");
    for (connection, server) in &mut long {
        assert_eq!(connection.ask().unwrap().server, *server);
    }
}
