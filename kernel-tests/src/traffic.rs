//! Real packets: a small network of namespaces, servers that say who they are, and clients that count the answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use socket2::{SockRef, Socket as AnySocket};

use crate::{
    netns::NetNs,
    tools::{ip_batch, set_sysctl},
    wait,
};

/// How long a client waits for an answer that it expects: no packet is lost once a [`Network`] is set up, but a machine that is
/// emulated and has other things to do is slow.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a server looks whether it is to stop, should it not have been woken for it.
const STOP_CHECK: Duration = Duration::from_secs(1);

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// One connection per request.
    Tcp,
    /// One socket, so one source port, per request.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A node with pods and one client around it, each a network namespace, joined by veth pairs.
///
/// | who | device | IPv4 | IPv6 |
/// | --- | --- | --- | --- |
/// | pod *n* (from 0) | `eth0` | `10.244.n.2/24` | `fd00:10:244:n::2/64` |
/// | the node towards it | `pod<n>` | `10.244.n.1/24` | `fd00:10:244:n::1/64` |
/// | the client | `eth0` | `192.0.2.2/24` | `2001:db8:1::2/64` |
/// | the node towards it | `client` | `192.0.2.1/24` | `2001:db8:1::1/64` |
///
/// Pods and client send everything else to the node, which forwards both families.
#[derive(Debug)]
pub struct Network {
    /// The one that is programmed.
    pub node: NetNs,
    /// The one that asks.
    pub client: NetNs,
    /// The ones that answer.
    pub pods: Vec<NetNs>,
}

impl Network {
    /// Sets up a node, a client and so many pods (at most 200). Returns when packets pass between the node and each of them.
    pub fn new(pods: u8) -> Self {
        assert!(pods <= 200, "a pod's number is a byte of its address");
        let node = NetNs::new();
        node.run(|| {
            set_sysctl("net.ipv4.ip_forward", "1");
            set_sysctl("net.ipv6.conf.all.forwarding", "1");
        });
        let client = NetNs::new();
        attach(
            &node,
            "client",
            [Self::node_ipv4().into(), Self::node_ipv6().into()],
            &client,
            [Self::client_ipv4().into(), Self::client_ipv6().into()],
        );
        let pods = (0..pods)
            .map(|number| {
                let pod = NetNs::new();
                let own = [Self::pod_ipv4(number).into(), Self::pod_ipv6(number).into()];
                let gateway = [
                    Ipv4Addr::new(10, 244, number, 1).into(),
                    Ipv6Addr::new(0xfd00, 0x10, 0x244, number.into(), 0, 0, 0, 1).into(),
                ];
                attach(&node, &format!("pod{number}"), gateway, &pod, own);
                pod
            })
            .collect();
        Self { node, client, pods }
    }

    /// The address of pod `number`, counted from 0.
    pub fn pod_ipv4(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, number, 2)
    }

    /// The address of pod `number`, counted from 0.
    pub fn pod_ipv6(number: u8) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x10, 0x244, number.into(), 0, 0, 0, 2)
    }

    /// The address from which the client asks.
    pub fn client_ipv4() -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, 2)
    }

    /// The address from which the client asks.
    pub fn client_ipv6() -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2)
    }

    /// The node's address towards the client.
    pub fn node_ipv4() -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, 1)
    }

    /// The node's address towards the client.
    pub fn node_ipv6() -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1)
    }

    /// Starts a server in every pod, on its IPv4 and its IPv6 address, named `pod0`, `pod1`, and so on.
    pub fn serve(&self, protocol: Protocol, port: u16) -> Vec<Server> {
        (0_u8..)
            .zip(&self.pods)
            .flat_map(|(number, pod)| {
                let addresses: [IpAddr; 2] = [Self::pod_ipv4(number).into(), Self::pod_ipv6(number).into()];
                addresses.map(|address| {
                    Server::start(pod, &format!("pod{number}"), protocol, (address, port).into())
                })
            })
            .collect()
    }
}

/// Joins `far` to `near` and makes `near` its way to everywhere.
fn attach(
    near: &NetNs,
    near_name: &str,
    near_addresses: [IpAddr; 2],
    far: &NetNs,
    far_addresses: [IpAddr; 2],
) {
    // Few starts of `ip`: each takes long in an emulated machine.
    let add = |device: &str, addresses: [IpAddr; 2]| {
        // Without `nodad` an IPv6 address is unusable for its first second.
        addresses.map(|address| match address {
            IpAddr::V4(_) => format!("address add {address}/24 dev {device}\n"),
            IpAddr::V6(_) => format!("address add {address}/64 dev {device} nodad\n"),
        })
    };
    near.connect(near_name, far, "eth0");
    near.run(|| ip_batch(&add(near_name, near_addresses).concat()));
    let routes = near_addresses.map(|gateway| format!("route add default via {gateway}\n"));
    far.run(|| ip_batch(&(add("eth0", far_addresses).concat() + &routes.concat())));
    // The kernel makes carriers and IPv6 addresses ready on a thread of its own, and drops what is sent before; then it asks
    // for the neighbour's link-layer address anew only after a second.
    near_addresses
        .iter()
        .for_each(|address| wait_for_neighbour(far, *address));
}

/// Waits until packets pass between a namespace and a neighbour with this address: for the neighbour's refusal of a connection to a
/// port where nobody listens.
pub fn wait_for_neighbour(namespace: &NetNs, neighbour: IpAddr) {
    let target = (neighbour, DISCARD).into();
    namespace.run(|| {
        wait::until(|| match TcpStream::connect_timeout(&target, PATIENCE) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(format!("no packets to and from {neighbour}: {error}")),
            Ok(_) => panic!("somebody listens at {target}"),
        });
    });
}

/// Of the discard service, RFC 863, which nobody runs.
const DISCARD: u16 = 9;

/// A server that answers every request with its name and the address the request came from. It stops when dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    /// The one that the thread waits at.
    socket: AnySocket,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens in a namespace; returns when it does.
    pub fn start(namespace: &NetNs, name: &str, protocol: Protocol, address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let name = name.to_owned();
        let fail = |error: io::Error| -> ! { panic!("listening on {address}/{protocol}: {error}") };
        // A socket stays in the namespace of the thread that made it.
        let shared = |socket: SockRef<'_>| {
            // A thread that waits costs an emulated machine nothing, one that looks again and again does.
            socket
                .set_read_timeout(Some(STOP_CHECK))
                .and_then(|()| socket.try_clone())
                .unwrap_or_else(|error| fail(error))
        };
        let (socket, thread) = match protocol {
            Protocol::Tcp => {
                let listener = namespace
                    .run(|| TcpListener::bind(address))
                    .unwrap_or_else(|error| fail(error));
                (
                    shared(SockRef::from(&listener)),
                    thread::spawn(move || serve_tcp(&listener, &name, &stopped)),
                )
            }
            Protocol::Udp => {
                let socket = namespace
                    .run(|| UdpSocket::bind(address))
                    .unwrap_or_else(|error| fail(error));
                (
                    shared(SockRef::from(&socket)),
                    thread::spawn(move || serve_udp(&socket, &name, &stopped)),
                )
            }
        };
        Self {
            stop,
            socket,
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread; of an unconnected socket the kernel says besides that it is not connected.
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve_tcp(listener: &TcpListener, name: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // Otherwise it is time to look whether to stop, or a connection broke early, which is the client's to report.
        if let Ok((stream, source)) = listener.accept() {
            let name = name.to_owned();
            // A client that holds its connection must not keep others waiting.
            thread::spawn(move || answer_tcp(stream, &name, source));
        }
    }
}

/// Answers every line with one line until the client closes.
fn answer_tcp(mut stream: TcpStream, name: &str, source: SocketAddr) {
    let mut request = [0; 512];
    if stream.set_read_timeout(Some(PATIENCE * 8)).is_err() {
        return;
    }
    while uninterrupted(|| stream.read(&mut request)).is_ok_and(|length| length > 0) {
        if stream.write_all(answer(name, source).as_bytes()).is_err() {
            return;
        }
    }
}

fn serve_udp(socket: &UdpSocket, name: &str, stop: &AtomicBool) {
    let mut request = [0; 512];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((_, source)) = socket.recv_from(&mut request) {
            let _ = socket.send_to(answer(name, source).as_bytes(), source);
        }
    }
}

fn answer(name: &str, source: SocketAddr) -> String {
    format!("{name} {source}\n")
}

/// One answer of a [`Server`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name of the server.
    pub server: String,
    /// The address and port from which the server saw the request come.
    pub source: SocketAddr,
}

impl Answer {
    fn parse(text: &str) -> io::Result<Self> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not an answer: {text:?}"));
        let (server, source) = text.trim_end().split_once(' ').ok_or_else(bad)?;
        Ok(Self {
            server: server.to_owned(),
            source: source.parse().map_err(|_| bad())?,
        })
    }
}

/// An open connection, for what happens to connections that last.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Connection {
    /// Connects from a namespace.
    ///
    /// # Errors
    ///
    /// As the socket: refused, unreachable, timed out.
    pub fn open(namespace: &NetNs, protocol: Protocol, target: SocketAddr) -> io::Result<Self> {
        Self::open_within(PATIENCE, namespace, protocol, target)
    }

    /// The same for a target from which no answer is expected: gives up after so long, here and when it asks.
    ///
    /// # Errors
    ///
    /// As the socket: refused, unreachable, timed out.
    pub fn open_within(
        patience: Duration,
        namespace: &NetNs,
        protocol: Protocol,
        target: SocketAddr,
    ) -> io::Result<Self> {
        namespace.run(|| Self::open_here(patience, protocol, target))
    }

    /// Connects from the calling thread's namespace.
    fn open_here(patience: Duration, protocol: Protocol, target: SocketAddr) -> io::Result<Self> {
        let socket = match protocol {
            Protocol::Tcp => {
                let stream = TcpStream::connect_timeout(&target, patience)?;
                stream.set_read_timeout(Some(patience))?;
                Socket::Tcp(stream)
            }
            Protocol::Udp => Socket::Udp(connected(fresh_udp_socket(target)?, patience, target)?),
        };
        Ok(Self { socket })
    }

    /// A UDP flow from a chosen address and port, so that the next one can have the same.
    ///
    /// # Errors
    ///
    /// As the socket: address in use, unreachable.
    pub fn open_udp_from(namespace: &NetNs, source: SocketAddr, target: SocketAddr) -> io::Result<Self> {
        namespace.run(|| {
            Ok(Self {
                socket: Socket::Udp(connected(UdpSocket::bind(source)?, PATIENCE, target)?),
            })
        })
    }

    /// Sends one request and waits for its answer.
    ///
    /// # Errors
    ///
    /// `WouldBlock` or `TimedOut` where no answer came; `UnexpectedEof` where the server closed.
    pub fn ask(&mut self) -> io::Result<Answer> {
        let mut reply = [0; 512];
        let length = match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.write_all(b"who\n")?;
                uninterrupted(|| stream.read(&mut reply))?
            }
            Socket::Udp(socket) => {
                socket.send(b"who\n")?;
                uninterrupted(|| socket.recv(&mut reply))?
            }
        };
        if length == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "closed without an answer",
            ));
        }
        Answer::parse(&String::from_utf8_lossy(reply.get(..length).unwrap_or_default()))
    }

    /// The address and port that the kernel has given this end.
    ///
    /// # Errors
    ///
    /// As the socket.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        match &self.socket {
            Socket::Tcp(stream) => stream.local_addr(),
            Socket::Udp(socket) => socket.local_addr(),
        }
    }
}

/// A receive with a time limit is not restarted by the kernel when a signal or a debugger has woken the thread.
fn uninterrupted<T>(mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match receive() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// A socket with a source port that no flow has had, wherever it came from. The kernel chooses at random, and now and then one
/// that was used before: to IPVS and connection tracking, the new flow were then a part of the old one.
fn fresh_udp_socket(target: SocketAddr) -> io::Result<UdpSocket> {
    static PORT: AtomicU16 = AtomicU16::new(FIRST_PORT);
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    loop {
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        assert!(
            (FIRST_PORT..EPHEMERAL).contains(&port),
            "one test binary has more UDP flows than there are ports for"
        );
        match UdpSocket::bind((any, port)) {
            // A server's.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
}

/// Above the ports that tests give to servers.
const FIRST_PORT: u16 = 10_000;
/// From here on the kernel hands out ports itself (`net.ipv4.ip_local_port_range`), and those of node ports are not far below.
const EPHEMERAL: u16 = 30_000;

fn connected(socket: UdpSocket, patience: Duration, target: SocketAddr) -> io::Result<UdpSocket> {
    socket.set_read_timeout(Some(patience))?;
    socket.connect(target)?;
    Ok(socket)
}

/// What came of many requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Answers by the name of the server.
    pub answers: BTreeMap<String, usize>,
    /// The source addresses that the servers saw.
    pub sources: BTreeSet<IpAddr>,
    /// Requests without an answer, as the error says it.
    pub failures: Vec<String>,
}

impl Tally {
    /// How many requests this server has answered.
    pub fn of(&self, server: &str) -> usize {
        self.answers.get(server).copied().unwrap_or(0)
    }

    /// Panics where a request got no answer, or where the servers are not these, each with its fair share.
    ///
    /// Fair is what round robin gives: no two shares differ by more than `spread`.
    pub fn assert_balanced(&self, servers: &[&str], spread: usize) {
        assert!(self.failures.is_empty(), "requests without an answer: {self:#?}");
        let seen: BTreeSet<_> = self.answers.keys().map(String::as_str).collect();
        assert_eq!(seen, servers.iter().copied().collect(), "who answered: {self:#?}");
        let least = self.answers.values().min().copied().unwrap_or(0);
        let most = self.answers.values().max().copied().unwrap_or(0);
        assert!(
            most - least <= spread,
            "shares differ by more than {spread}: {self:#?}"
        );
    }
}

/// Sends requests one after the other, each on a connection (or UDP flow) of its own, and counts the answers. No UDP flow has
/// the source port of an earlier one, so that none is taken for a part of it.
pub fn ask_many(namespace: &NetNs, protocol: Protocol, target: SocketAddr, requests: usize) -> Tally {
    namespace.run(|| {
        let mut tally = Tally::default();
        for _ in 0..requests {
            match Connection::open_here(PATIENCE, protocol, target)
                .and_then(|mut connection| connection.ask())
            {
                Ok(answer) => {
                    *tally.answers.entry(answer.server).or_default() += 1;
                    tally.sources.insert(answer.source.ip());
                }
                Err(error) => tally.failures.push(error.to_string()),
            }
        }
        tally
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_back() {
        let source: SocketAddr = "[2001:db8::2]:4660".parse().unwrap();
        let read = Answer::parse(&answer("pod7", source)).unwrap();
        assert_eq!(
            read,
            Answer {
                server: "pod7".to_owned(),
                source
            }
        );
        assert!(Answer::parse("pod7").is_err());
        assert!(Answer::parse("pod7 nowhere").is_err());
    }

    #[test]
    #[should_panic(expected = "shares differ")]
    fn uneven_shares_are_not_balanced() {
        let answers = BTreeMap::from([("pod0".to_owned(), 10), ("pod1".to_owned(), 4)]);
        Tally {
            answers,
            ..Tally::default()
        }
        .assert_balanced(&["pod0", "pod1"], 1);
    }

    #[test]
    #[should_panic(expected = "without an answer")]
    fn a_lost_request_is_not_balanced() {
        let answers = BTreeMap::from([("pod0".to_owned(), 1)]);
        let failures = vec!["timed out".to_owned()];
        Tally {
            answers,
            failures,
            ..Tally::default()
        }
        .assert_balanced(&["pod0"], 1);
    }

    #[test]
    #[should_panic(expected = "who answered")]
    fn a_server_that_gets_nothing_is_not_balanced() {
        let answers = BTreeMap::from([("pod0".to_owned(), 10)]);
        Tally {
            answers,
            ..Tally::default()
        }
        .assert_balanced(&["pod0", "pod1"], 1);
    }
}
