//! Clients that hold connections to the servers of the agent: the health server, the metrics server and health-check node ports.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::{requires, wait};
use socket2::{Domain, Socket, Type};

use crate::support::{Agent, Manifests, service};

/// The connections that each hostile client holds, on all ports together.
const HELD: usize = 1_000;
/// The limit of the agent, for all servers.
const LIMIT: usize = 256;
/// The ports of the health server, the metrics server and a health-check node port.
const PORTS: [u16; 3] = [10_256, 10_249, 32_001];
/// The requests that a probe sends, with a part of the answer.
const PROBES: [(u16, &str, &str); 4] = [
    (10_256, "/healthz", "\"healthy\":true"),
    (10_256, "/livez", "\"healthy\":true"),
    (10_249, "/metrics", "\nkernlink_http_connections "),
    (32_001, "/", "\"localEndpoints\": 1"),
];

/// What a hostile connection sends at the beginning.
#[derive(Clone, Copy)]
enum Request {
    /// Nothing.
    None,
    /// A header that does not end.
    Unfinished,
    /// One that is longer than a server reads.
    Large,
    /// Requests whose answers are not read.
    Many,
}

/// Connections that are opened again when they are closed.
struct Hostile {
    target: Ipv4Addr,
    /// The source addresses in turn. `None`: that which the kernel chooses.
    sources: Option<u32>,
    connections: Vec<Option<Socket>>,
}

impl Hostile {
    /// From one address.
    fn new(target: Ipv4Addr) -> Self {
        Self {
            target,
            sources: None,
            connections: (0..HELD).map(|_| None).collect(),
        }
    }

    /// Each connection from another loopback address.
    fn with_many_addresses() -> Self {
        Self {
            sources: Some(u32::from(Ipv4Addr::new(127, 1, 0, 1))),
            ..Self::new(Ipv4Addr::LOCALHOST)
        }
    }

    /// Sends one more byte on each connection, and opens those again that were closed, but at most this number.
    fn renew(&mut self, most: usize) {
        let mut opened = 0;
        for index in 0..self.connections.len() {
            if self.connections[index].as_mut().is_some_and(is_open) {
                continue;
            }
            self.connections[index] = None;
            if opened < most {
                opened += 1;
                self.connections[index] = self.open(index);
            }
        }
    }

    /// `None` if the agent closed it meanwhile, or has too many that wait.
    fn open(&mut self, index: usize) -> Option<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if let Some(source) = &mut self.sources {
            let address = SocketAddr::new(Ipv4Addr::from(*source).into(), 0);
            *source += 1;
            socket.bind(&address.into()).unwrap();
        }
        let target = SocketAddr::new(self.target.into(), PORTS[index % PORTS.len()]);
        socket
            .connect_timeout(&target.into(), Duration::from_secs(1))
            .ok()?;
        socket.set_nonblocking(true).unwrap();
        let request = match index % 4 {
            0 => Request::None,
            1 => Request::Unfinished,
            2 => Request::Large,
            _ => Request::Many,
        };
        let text = match request {
            Request::None => return Some(socket),
            Request::Unfinished => "GET /livez HTTP/1.1\r\nX: ".to_owned(),
            Request::Large => format!("GET /livez HTTP/1.1\r\nX: {}", "x".repeat(1 << 20)),
            Request::Many => "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100),
        };
        // What there is no room for is not sent.
        let _ = (&socket).write(text.as_bytes());
        Some(socket)
    }
}

/// Sends a byte of a header.
fn is_open(socket: &mut Socket) -> bool {
    match socket.write_all(b"x") {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// A folder with a Service that has a health-check node port.
fn manifests() -> Manifests {
    let manifests = Manifests::new();
    let spec = "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32001, clusterIP";
    let text = service("lb", "10.96.0.1", &[0]);
    let text = text.replace("spec: {clusterIP", &format!("spec: {{{spec}"));
    manifests.replace(
        "a.yaml",
        &text.replace("{port: 80}", "{port: 80, nodePort: 30080}"),
    );
    manifests
}

/// An agent whose servers listen.
fn start(manifests: &Manifests) -> Agent {
    let arguments = [
        "--proxy-mode",
        "iptables",
        "--metrics-bind-address",
        "0.0.0.0:10249",
    ];
    let agent = Agent::start(&manifests.0, &arguments);
    agent.wait_for(" server: listening on ", 2);
    agent.wait_for("health-check node port of Service default/lb: listening on ", 1);
    agent
}

/// The answer to a probe. Only one that needed long to send its request may be closed: others have opened more connections than there are places
/// meanwhile. It is sent again.
fn probe(port: u16, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    wait::until(|| {
        let begin = Instant::now();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let sent = stream.write_all(request.as_bytes());
        let was_slow = begin.elapsed() > Duration::from_millis(5);
        let mut answer = String::new();
        match sent.and_then(|()| stream.read_to_string(&mut answer)) {
            Err(error) if was_slow => Err(error),
            Err(error) => panic!("{port}{path}: {error}"),
            Ok(_) => Ok(answer),
        }
    })
}

/// The value of a metric.
fn metric(name: &str) -> usize {
    let page = probe(10_249, "/metrics");
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_else(|| panic!("no {name}:\n{page}"));
    value.trim().parse().unwrap()
}

#[test]
fn probes_are_answered_while_hostile_clients_hold_a_thousand_connections_each() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let manifests = manifests();
    let is_over = AtomicBool::new(false);
    network.node.run(|| {
        let agent = start(&manifests);
        let before = agent.resident();
        thread::scope(|scope| {
            // One address, as fast as it can, and many addresses. More of the latter than there are places between a probe's connection
            // and its request would close the probe, so they are opened between the probes.
            scope.spawn(|| {
                let _in_client = network.client.enter();
                let mut hostile = Hostile::new(Network::node_ipv4());
                while !is_over.load(Ordering::Relaxed) {
                    hostile.renew(HELD);
                }
            });
            let mut hostile = Hostile::with_many_addresses();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..5 {
                    hostile.renew(HELD);
                    for (port, path, expected) in PROBES {
                        let answer = probe(port, path);
                        assert!(answer.contains(expected), "{port}{path}: {answer}");
                    }
                    let open = metric("kernlink_http_connections ");
                    assert!(open <= LIMIT, "{open} connections");
                    let resident = agent.resident();
                    assert!(
                        resident < before + (64 << 10),
                        "{resident} KiB, before {before} KiB"
                    );
                }
                let sockets = fs::read_dir(format!("/proc/{}/fd", agent.child.id())).unwrap();
                let sockets = sockets.count();
                assert!(sockets < 2 * LIMIT, "{sockets} open files");
            }));
            is_over.store(true, Ordering::Relaxed);
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        let closed = metric("kernlink_http_connections_closed_total{reason=\"limit\"} ");
        assert!(closed > 2 * (HELD - LIMIT), "{closed}");
        let log = agent.log();
        let lines = log.matches("more than 256 HTTP connections; ").count();
        // One a minute: far fewer than connections were closed.
        assert!((1..=100).contains(&lines), "{lines} lines:\n{log}");
    });
}

#[test]
fn a_connection_without_a_complete_request_is_closed_and_counted() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let manifests = manifests();
    network.node.run(|| {
        let _agent = start(&manifests);
        for (number, port) in PORTS.into_iter().enumerate() {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            let mut answer = Vec::new();
            // The end, or a reset.
            let _ = stream.read_to_end(&mut answer);
            assert_eq!(answer, b"");
            wait::until(
                || match metric("kernlink_http_connections_closed_total{reason=\"timeout\"} ") {
                    closed if closed == number + 1 => Ok(()),
                    closed => Err(closed),
                },
            );
        }
        // A client that sends more than one request gets one answer.
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 10_256)).unwrap();
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    });
}
