//! More connections and flows than file descriptors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdout, Stdio};
use std::thread;
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{programs, wait};
use kernlink_userspace::balance::Backend;
use kernlink_userspace::{Limits, ListenerKey, Proxy, Serving, Transport};
use nix::sys::resource::{Resource, setrlimit};

/// The variable that makes the test run the proxy instead of testing it. Its value is the address of the endpoint, and how many
/// descriptors the proxy believes to have.
const ROLE: &str = "KERNLINK_FLOOD_ROLE";

/// The descriptor limit of the child.
const LIMIT: u64 = 200;

/// The body of the child: a proxy with few descriptors. It prints its port, and ends when its input ends.
fn child(transport: Transport, role: &str) {
    setrlimit(Resource::RLIMIT_NOFILE, LIMIT, LIMIT).unwrap();
    let (endpoint, believed) = role.split_once(' ').unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut limits = Limits::default();
    limits.descriptors = believed.parse().ok();
    // No flow ends by itself, however slow the machine is.
    limits.flow_timeouts.idle = wait::LIMIT;
    let mut proxy = Proxy::new(runtime.handle().clone(), limits).unwrap();
    let key = ListenerKey {
        transport,
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    };
    let serving = Serving {
        backends: vec![Backend::new(endpoint.parse().unwrap())],
        ..Serving::default()
    };
    let address = proxy.listen(key, &serving).unwrap();
    println!("\nport {address}");
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input).unwrap();
    println!("\nstill here, shed {}", proxy.stats(&key).unwrap().shed);
}

/// A child with a proxy.
struct Proxied {
    child: Child,
    output: BufReader<ChildStdout>,
    port: SocketAddr,
}

impl Proxied {
    /// Starts this test as a child, for an endpoint.
    fn start(test: &str, endpoint: SocketAddr, believed: &str) -> Self {
        let mut child = programs::this_program()
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, format!("{endpoint} {believed}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("port ") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0);
        }
        let port = line.trim_end().strip_prefix("port ").unwrap().parse().unwrap();
        Self { child, output, port }
    }

    /// Ends the child. Returns how many connections and datagrams it refused because of a limit.
    fn stop(mut self) -> u64 {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        let shed = rest.split_once("still here, shed ").unwrap().1;
        shed.lines().next().unwrap().parse().unwrap()
    }
}

/// Runs a flood in a new network namespace, whose loopback device is up, or the child of one.
fn in_namespace(transport: Transport, believed: &str, flood: impl FnOnce(&str, &str) + Send) {
    if let Ok(role) = std::env::var(ROLE) {
        return child(transport, &role);
    }
    let this = thread::current().name().unwrap().to_owned();
    NetNs::new().run(|| flood(&this, believed));
}

fn flood_of_connections(this: &str, believed: &str) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let endpoint = listener.local_addr().unwrap();
    thread::spawn(move || {
        // An endpoint that answers each byte.
        for client in listener.incoming() {
            let mut client = client.unwrap();
            thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(move || std::io::copy(&mut client.try_clone().unwrap(), &mut client))
                .unwrap();
        }
    });
    let proxied = Proxied::start(this, endpoint, believed);
    let port = proxied.port;
    let ask = |stream: &mut TcpStream| -> std::io::Result<()> {
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])
    };
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..3 * LIMIT {
        // The reset may come before the connection is complete for the client.
        let connected = TcpStream::connect(port).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
            ask(&mut stream).map(|()| stream)
        });
        match connected {
            Ok(stream) => open.push(stream),
            Err(_) => refused += 1,
        }
    }
    assert!(open.len() >= 20, "{}", open.len());
    assert!(refused >= 2 * LIMIT, "{refused}");
    // Open connections live.
    for stream in &mut open {
        ask(stream).unwrap();
    }
    // After some end, new ones are accepted. Their descriptors are free when the proxy has seen the end of both directions.
    open.truncate(10);
    wait::until(|| ask(&mut TcpStream::connect(port)?));
    for stream in &mut open {
        ask(stream).unwrap();
    }
    assert!(proxied.stop() > 0);
}

fn flood_of_flows(this: &str, believed: &str) {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let endpoint = server.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 8];
        while let Ok((length, flow)) = server.recv_from(&mut buffer) {
            // A flow may have ended.
            let _ = server.send_to(&buffer[..length], flow);
        }
    });
    let proxied = Proxied::start(this, endpoint, believed);
    let client = || {
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        client.connect(proxied.port).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client
    };
    let ask = |client: &UdpSocket| {
        client.send(b"x").unwrap();
        client.recv(&mut [0; 8])
    };
    let first = client();
    ask(&first).unwrap();
    let mut open = Vec::new();
    let mut dropped = 0;
    for _ in 0..3 * LIMIT {
        let client = client();
        client.send(b"x").unwrap();
        // Proxy and endpoint receive datagrams in order, and what the proxy found at once it passes on before it receives again: after these
        // answers, that of the new flow is there or does not come.
        for _ in 0..2 {
            ask(&first).unwrap();
        }
        client.set_nonblocking(true).unwrap();
        if client.recv(&mut [0; 8]).is_ok() {
            client.set_nonblocking(false).unwrap();
            open.push(client);
        } else {
            dropped += 1;
        }
    }
    assert!(open.len() >= 20, "{}", open.len());
    assert!(dropped >= 2 * LIMIT, "{dropped}");
    // Open flows live.
    for client in &open {
        ask(client).unwrap();
    }
    assert!(proxied.stop() >= LIMIT);
}

#[test]
fn a_flood_of_connections_is_refused_and_open_ones_live() {
    in_namespace(Transport::Tcp, "", flood_of_connections);
}

/// The proxy does not count what the rest of the process opens. Here it believes to have more descriptors than there are.
#[test]
fn without_any_descriptor_left_connections_are_refused_and_open_ones_live() {
    in_namespace(Transport::Tcp, "100000", flood_of_connections);
}

#[test]
fn a_flood_of_flows_is_dropped_and_open_ones_live() {
    in_namespace(Transport::Udp, "", flood_of_flows);
}

#[test]
fn without_any_descriptor_left_new_flows_are_dropped_and_open_ones_live() {
    in_namespace(Transport::Udp, "100000", flood_of_flows);
}
