//! More connections than file descriptors.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::programs;
use kernlink_userspace::balance::Backend;
use kernlink_userspace::{Limits, ListenerKey, Proxy, Serving, Transport};
use nix::sys::resource::{Resource, setrlimit};

/// The variable that makes the test run the proxy instead of testing it. Its value is the address of the endpoint, and how many
/// descriptors the proxy believes to have.
const ROLE: &str = "KERNLINK_FLOOD_ROLE";

/// The descriptor limit of the child.
const LIMIT: u64 = 200;

/// The body of the child: a proxy with few descriptors. It prints its port, and ends when its input ends.
fn child(role: &str) {
    setrlimit(Resource::RLIMIT_NOFILE, LIMIT, LIMIT).unwrap();
    let (endpoint, believed) = role.split_once(' ').unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut limits = Limits::default();
    limits.descriptors = believed.parse().ok();
    let mut proxy = Proxy::new(runtime.handle().clone(), limits).unwrap();
    let key = ListenerKey {
        transport: Transport::Tcp,
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

fn flood(believed: &str) {
    let this = thread::current().name().unwrap().to_owned();
    // The loopback device of a new namespace is up.
    NetNs::new().run(|| flood_here(&this, believed));
}

fn flood_here(this: &str, believed: &str) {
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
    let mut child = programs::this_program()
        .args(["--exact", this, "--nocapture"])
        .env(ROLE, format!("{endpoint} {believed}"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("port ") {
        line.clear();
        assert_ne!(std::io::BufRead::read_line(&mut output, &mut line).unwrap(), 0);
    }
    let port: SocketAddr = line.trim_end().strip_prefix("port ").unwrap().parse().unwrap();

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
    assert!(refused >= 2 * LIMIT as usize, "{refused}");
    // Open connections live.
    for stream in &mut open {
        ask(stream).unwrap();
    }
    // After some end, new ones are accepted. Their descriptors are free when the proxy has seen the end of both directions.
    open.truncate(10);
    kernlink_kernel_tests::wait::until(|| ask(&mut TcpStream::connect(port)?));
    for stream in &mut open {
        ask(stream).unwrap();
    }
    drop(child.stdin.take());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(rest.contains("still here, shed "), "{rest}");
}

#[test]
fn a_flood_of_connections_is_refused_and_open_ones_live() {
    if let Ok(role) = std::env::var(ROLE) {
        return child(&role);
    }
    flood("");
}

/// The proxy does not count what the rest of the process opens. Here it believes to have more descriptors than there are.
#[test]
fn without_any_descriptor_left_connections_are_refused_and_open_ones_live() {
    if let Ok(role) = std::env::var(ROLE) {
        return child(&role);
    }
    flood("100000");
}
