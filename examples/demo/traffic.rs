//! A server for every endpoint, and requests from the client. A server answers each request with its own address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use kernlink_proxier::services::{EndpointSlice, Protocol};

use crate::network::{Namespace, Network, is_routable};

/// A request fails without an answer in this time. Emulated machines are slow.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often a client of UDP sends its request, because packets are lost while the kernel makes an address usable.
const UDP_REQUESTS: u32 = 5;

/// Starts a server for every port of every ready endpoint, in the two pods by turns. Returns their number. SCTP is left out, because
/// the standard library has no socket for it.
pub(crate) fn start_servers(network: &Network, slices: &[EndpointSlice]) -> Result<usize> {
    let mut pod_of: BTreeMap<IpAddr, usize> = BTreeMap::new();
    let mut started = BTreeSet::new();
    for slice in slices {
        for endpoint in slice
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.conditions.ready)
        {
            let address = endpoint.address;
            if address.is_ipv6() && !network.has_ipv6 {
                continue;
            }
            if !is_routable(address) {
                print_line!("No server for the endpoint {address}: the address is not routable.");
                continue;
            }
            let next = pod_of.len() % network.pods.len();
            let pod = match pod_of.get(&address) {
                Some(&pod) => pod,
                None => {
                    network.add_address(next, address)?;
                    *pod_of.entry(address).or_insert(next)
                }
            };
            for port in slice.ports.iter().filter(|port| port.port != 0) {
                let target = SocketAddr::new(address, port.port);
                if port.protocol != Protocol::Sctp && started.insert((target, port.protocol)) {
                    let namespace = network.pods[pod].try_clone()?;
                    start_server(&namespace, target, port.protocol)
                        .with_context(|| format!("listen on {target}"))?;
                }
            }
        }
    }
    Ok(started.len())
}

/// Binds the socket in the namespace, where it stays; the threads that serve it may be in any.
fn start_server(namespace: &Namespace, address: SocketAddr, protocol: Protocol) -> Result<()> {
    match protocol {
        Protocol::Udp => {
            let socket = namespace.run(|| Ok(UdpSocket::bind(address)?))?;
            thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok((_, client)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(address.to_string().as_bytes(), client);
                }
            });
        }
        _ => {
            let listener = namespace.run(|| Ok(TcpListener::bind(address)?))?;
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = (&stream).write_all(address.to_string().as_bytes());
                }
            });
        }
    }
    Ok(())
}

/// The answers to many requests.
#[derive(Default)]
pub(crate) struct Answers {
    /// The number of answers by server.
    by_server: BTreeMap<String, usize>,
    /// The errors of the requests that failed.
    pub(crate) failures: Vec<io::Error>,
}

impl fmt::Display for Answers {
    /// `10.244.1.20:8080 30, 10.244.2.20:8080 30; 1 failed: timed out`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self
            .by_server
            .iter()
            .map(|(server, count)| format!("{server} {count}"));
        f.write_str(&servers.collect::<Vec<_>>().join(", "))?;
        match self.failures.first() {
            Some(first) => write!(f, "; {} failed: {first}", self.failures.len()),
            None => Ok(()),
        }
    }
}

/// Sends requests from the client, each on a socket of its own.
pub(crate) fn request(
    client: &Namespace,
    target: SocketAddr,
    protocol: Protocol,
    count: usize,
) -> Result<Answers> {
    client.run(|| {
        let mut answers = Answers::default();
        for _ in 0..count {
            let answer = match protocol {
                Protocol::Udp => request_udp(target),
                _ => request_tcp(target),
            };
            match answer {
                Ok(server) => *answers.by_server.entry(server).or_default() += 1,
                Err(error) => answers.failures.push(error),
            }
        }
        Ok(answers)
    })
}

fn request_tcp(target: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn request_udp(target: SocketAddr) -> io::Result<String> {
    let any: IpAddr = if target.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(TIMEOUT / UDP_REQUESTS))?;
    socket.connect(target)?;
    let mut buffer = [0; 64];
    let mut left = UDP_REQUESTS;
    loop {
        left -= 1;
        socket.send(b"request")?;
        match socket.recv(&mut buffer) {
            Err(error) if left > 0 && error.kind() == io::ErrorKind::WouldBlock => {}
            length => return Ok(String::from_utf8_lossy(&buffer[..length?]).into_owned()),
        }
    }
}
