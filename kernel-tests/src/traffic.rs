//! Packets in a small network of namespaces: servers that answer with their name, and clients that count the answers.

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

use socket2::{Domain, SockRef, Socket as AnySocket, Type};

use crate::{
    netns::NetNs,
    tools::{ip, ip_batch, set_sysctl},
    wait,
};

/// Timeout of a client for an expected answer. No packet is lost after a [`Network`] is set up, but an emulated machine under load is
/// slow.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which a server checks whether it has to stop, in case that it was not woken up.
const STOP_CHECK: Duration = Duration::from_secs(1);

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// One connection per request.
    Tcp,
    /// One socket, with a different source port, per request.
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

/// A node, pods and a client, each in a network namespace. Pods and client are connected to the node by veth pairs.
///
/// | namespace | device | IPv4 | IPv6 |
/// | --- | --- | --- | --- |
/// | pod *n* (from 0) | `eth0` | `10.244.n.2/24` | `fd00:10:244:n::2/64` |
/// | node, to pod *n* | `pod<n>` | `10.244.n.1/24` | `fd00:10:244:n::1/64` |
/// | client | `eth0` | `192.0.2.2/24` | `2001:db8:1::2/64` |
/// | node, to the client | `client` | `192.0.2.1/24` | `2001:db8:1::1/64` |
///
/// The node is the default gateway of pods and client, and forwards both families.
#[derive(Debug)]
pub struct Network {
    /// The node, in which tests configure the data path.
    pub node: NetNs,
    /// The client.
    pub client: NetNs,
    /// The pods, which run servers.
    pub pods: Vec<NetNs>,
}

impl Network {
    /// Sets up a node, a client and this number of pods (at most 200). Returns when the node can exchange packets with each of them.
    #[must_use]
    pub fn new(pods: u8) -> Self {
        assert!(
            pods <= 200,
            "at most 200 pods: the number of a pod is a byte of its address"
        );
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
                let pod_addresses = [Self::pod_ipv4(number).into(), Self::pod_ipv6(number).into()];
                let gateway = [
                    Ipv4Addr::new(10, 244, number, 1).into(),
                    Ipv6Addr::new(0xfd00, 0x10, 0x244, number.into(), 0, 0, 0, 1).into(),
                ];
                attach(&node, &format!("pod{number}"), gateway, &pod, pod_addresses);
                pod
            })
            .collect();
        Self { node, client, pods }
    }

    /// The address of pod `number`, counted from 0.
    #[must_use]
    pub fn pod_ipv4(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, number, 2)
    }

    /// The address of pod `number`, counted from 0.
    #[must_use]
    pub fn pod_ipv6(number: u8) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x10, 0x244, number.into(), 0, 0, 0, 2)
    }

    /// The address of the client.
    #[must_use]
    pub fn client_ipv4() -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, 2)
    }

    /// The address of the client.
    #[must_use]
    pub fn client_ipv6() -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2)
    }

    /// The address of the node on the link to the client.
    #[must_use]
    pub fn node_ipv4() -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, 1)
    }

    /// The address of the node on the link to the client.
    #[must_use]
    pub fn node_ipv6() -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1)
    }

    /// Starts a server in every pod, on its IPv4 and its IPv6 address, named `pod0`, `pod1`, and so on.
    #[must_use]
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

    /// Starts the endpoints that the fixture `ordinary` of kube-proxy's state names, in two pods, and routes to them. The servers have
    /// their addresses as names.
    #[must_use]
    pub fn serve_ordinary_fixture(&self) -> Vec<Server> {
        let dns = [(Protocol::Udp, 53), (Protocol::Tcp, 53)];
        let web = [(Protocol::Tcp, 8080), (Protocol::Tcp, 8443)];
        let mut servers = Vec::new();
        for (pod, (node, host), ports) in [
            (0, (1, 3), dns),
            (0, (1, 21), web),
            (0, (1, 22), web),
            (1, (2, 3), dns),
            (1, (2, 21), web),
        ] {
            let address = Ipv4Addr::new(10, 244, node, host);
            let host = format!("{address}/32");
            let via = Self::pod_ipv4(pod).to_string();
            self.node.run(|| ip(&["route", "add", &host, "via", &via]));
            let namespace = &self.pods[usize::from(pod)];
            namespace.run(|| ip(&["address", "add", &host, "dev", "lo"]));
            for (protocol, port) in ports {
                let name = address.to_string();
                servers.push(Server::start(namespace, &name, protocol, (address, port).into()));
            }
        }
        servers
    }
}

/// Connects `far` to `near` and makes `near` its default gateway.
fn attach(
    near: &NetNs,
    near_name: &str,
    near_addresses: [IpAddr; 2],
    far: &NetNs,
    far_addresses: [IpAddr; 2],
) {
    // Few starts of `ip`, because each is slow in an emulated machine.
    let add = |device: &str, addresses: [IpAddr; 2]| {
        // Without `nodad` an IPv6 address is not usable for about a second.
        addresses.map(|address| match address {
            IpAddr::V4(_) => format!("address add {address}/24 dev {device}\n"),
            IpAddr::V6(_) => format!("address add {address}/64 dev {device} nodad\n"),
        })
    };
    near.connect(near_name, far, "eth0");
    near.run(|| ip_batch(&add(near_name, near_addresses).concat()));
    let routes = near_addresses.map(|gateway| format!("route add default via {gateway}\n"));
    far.run(|| ip_batch(&(add("eth0", far_addresses).concat() + &routes.concat())));
    // Carriers and IPv6 addresses become ready asynchronously, and the kernel drops packets that are sent before. It then repeats
    // the request for the neighbour's link-layer address only after a second.
    near_addresses
        .iter()
        .for_each(|address| wait_for_neighbour(far, *address));
}

/// Waits until a namespace can exchange packets with the neighbour of this address: until the neighbour refuses a connection to an
/// unused port.
pub fn wait_for_neighbour(namespace: &NetNs, neighbour: IpAddr) {
    let target = (neighbour, DISCARD).into();
    namespace.run(|| {
        wait::until(|| match TcpStream::connect_timeout(&target, TIMEOUT) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(format!("no connection to {neighbour}: {error}")),
            Ok(_) => panic!("{target} is in use"),
        });
    });
}

/// Port of the discard service (RFC 863), which is not running.
const DISCARD: u16 = 9;

/// A server that answers every request with its name and the source address of the request. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    /// The socket on which the thread waits.
    socket: AnySocket,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server in a namespace. Returns when it is listening.
    #[must_use]
    pub fn start(namespace: &NetNs, name: &str, protocol: Protocol, address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let name = name.to_owned();
        let fail = |error: io::Error| -> ! { panic!("cannot listen on {address}/{protocol}: {error}") };
        // A socket remains in the namespace of the thread that created it.
        let shared = |socket: SockRef<'_>| {
            // A blocked thread uses no processor time, unlike one that polls, which matters in an emulated machine.
            socket
                .set_read_timeout(Some(STOP_CHECK))
                .and_then(|()| socket.try_clone())
                .unwrap_or_else(|error| fail(error))
        };
        let (socket, thread) = match protocol {
            Protocol::Tcp => {
                let listener =
                    bound(namespace, move || TcpListener::bind(address)).unwrap_or_else(|error| fail(error));
                (
                    shared(SockRef::from(&listener)),
                    thread::spawn(move || serve_tcp(&listener, &name, &stopped)),
                )
            }
            Protocol::Udp => {
                let socket =
                    bound(namespace, move || UdpSocket::bind(address)).unwrap_or_else(|error| fail(error));
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
        // Wakes up the thread. For a socket that is not connected the kernel also returns ENOTCONN, which is ignored.
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket of a server. A program that another test starts at this moment has the socket of a server that was dropped too, until it is executed:
/// the address is in use until then.
fn bound<T: Send>(namespace: &NetNs, bind: impl Fn() -> io::Result<T> + Send) -> io::Result<T> {
    namespace.run(move || {
        wait::until(|| match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
            result => Ok(result),
        })
    })
}

fn serve_tcp(listener: &TcpListener, name: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // An error is the timeout, or a connection that was closed early, which the client reports.
        if let Ok((stream, source)) = listener.accept() {
            let name = name.to_owned();
            // A separate thread, so that a client with an open connection does not block others.
            thread::spawn(move || answer_tcp(stream, &name, source));
        }
    }
}

/// Answers every line with one line until the client closes.
fn answer_tcp(mut stream: TcpStream, name: &str, source: SocketAddr) {
    let mut request = [0; 512];
    if stream.set_read_timeout(Some(TIMEOUT * 8)).is_err() {
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
    /// The source address and port of the request as seen by the server.
    pub source: SocketAddr,
}

impl Answer {
    fn parse(text: &str) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("invalid answer {text:?}"));
        let (server, source) = text.trim_end().split_once(' ').ok_or_else(invalid)?;
        Ok(Self {
            server: server.to_owned(),
            source: source.parse().map_err(|_| invalid())?,
        })
    }
}

/// An open connection, or a UDP flow.
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
        Self::open_within(TIMEOUT, namespace, protocol, target)
    }

    /// As [`open`](Self::open), with a timeout for connecting and for each answer. For targets from which no answer is expected.
    ///
    /// # Errors
    ///
    /// As the socket: refused, unreachable, timed out.
    pub fn open_within(
        timeout: Duration,
        namespace: &NetNs,
        protocol: Protocol,
        target: SocketAddr,
    ) -> io::Result<Self> {
        namespace.run(|| Self::open_here(timeout, protocol, target))
    }

    /// Connects from the calling thread's namespace for a few requests: a TCP connection is reset when it is closed, so that neither side nor
    /// connection tracking keeps it, and a UDP flow has a port that the kernel chooses. For many connections, one after the other.
    ///
    /// # Errors
    ///
    /// As the socket: refused, unreachable, timed out.
    pub fn open_briefly(timeout: Duration, protocol: Protocol, target: SocketAddr) -> io::Result<Self> {
        let socket = match protocol {
            Protocol::Tcp => {
                let stream = TcpStream::connect_timeout(&target, timeout)?;
                stream.set_read_timeout(Some(timeout))?;
                reset_on_close(&stream)?;
                Socket::Tcp(stream)
            }
            Protocol::Udp => {
                let any: IpAddr = match target {
                    SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                Socket::Udp(connected(UdpSocket::bind((any, 0))?, timeout, target)?)
            }
        };
        Ok(Self { socket })
    }

    /// Connects from the calling thread's namespace.
    fn open_here(timeout: Duration, protocol: Protocol, target: SocketAddr) -> io::Result<Self> {
        let socket = match protocol {
            Protocol::Tcp => {
                let stream = TcpStream::connect_timeout(&target, timeout)?;
                stream.set_read_timeout(Some(timeout))?;
                Socket::Tcp(stream)
            }
            Protocol::Udp => Socket::Udp(connected(fresh_udp_socket(target)?, timeout, target)?),
        };
        Ok(Self { socket })
    }

    /// Connects from a given address of a namespace, from a port that the kernel chooses.
    ///
    /// # Errors
    ///
    /// As the socket: address not available, refused, unreachable, timed out.
    pub fn open_from(
        namespace: &NetNs,
        protocol: Protocol,
        source: IpAddr,
        target: SocketAddr,
    ) -> io::Result<Self> {
        let source = SocketAddr::new(source, 0);
        namespace.run(|| {
            let socket = match protocol {
                Protocol::Tcp => {
                    let socket = AnySocket::new(Domain::for_address(source), Type::STREAM, None)?;
                    socket.bind(&source.into())?;
                    socket.connect_timeout(&target.into(), TIMEOUT)?;
                    socket.set_read_timeout(Some(TIMEOUT))?;
                    Socket::Tcp(socket.into())
                }
                Protocol::Udp => Socket::Udp(connected(UdpSocket::bind(source)?, TIMEOUT, target)?),
            };
            Ok(Self { socket })
        })
    }

    /// Opens a UDP flow with a given source address and port, for tests that use the same source again.
    ///
    /// # Errors
    ///
    /// As the socket: address in use, unreachable.
    pub fn open_udp_from(namespace: &NetNs, source: SocketAddr, target: SocketAddr) -> io::Result<Self> {
        namespace.run(|| {
            Ok(Self {
                socket: Socket::Udp(connected(UdpSocket::bind(source)?, TIMEOUT, target)?),
            })
        })
    }

    /// Sends one request and waits for its answer.
    ///
    /// # Errors
    ///
    /// `WouldBlock` or `TimedOut` without an answer; `UnexpectedEof` if the server closed the connection.
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
                "the server closed the connection without an answer",
            ));
        }
        Answer::parse(&String::from_utf8_lossy(reply.get(..length).unwrap_or_default()))
    }

    /// The local address and port, chosen by the kernel.
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

/// Makes a TCP connection end with a reset when it is closed: neither side keeps it.
///
/// # Errors
///
/// As the socket.
pub fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Repeats a receive after `EINTR`: the kernel does not restart a receive with a timeout after a signal or a debugger's stop.
fn uninterrupted<T>(mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match receive() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// A socket with a source port that no earlier flow of this process has used. The kernel chooses ports at random and sometimes
/// chooses one that was used before; IPVS and connection tracking would then treat the new flow as part of the old one.
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
            "too many UDP flows in one test binary"
        );
        match UdpSocket::bind((any, port)) {
            // In use by a server.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
}

/// Greater than the ports that tests use for servers.
const FIRST_PORT: u16 = 10_000;
/// Less than the ports that the kernel chooses (`net.ipv4.ip_local_port_range`) and the node ports (30000 to 32767).
const EPHEMERAL: u16 = 30_000;

fn connected(socket: UdpSocket, timeout: Duration, target: SocketAddr) -> io::Result<UdpSocket> {
    socket.set_read_timeout(Some(timeout))?;
    socket.connect(target)?;
    Ok(socket)
}

/// The results of several requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of answers by name of the server.
    pub answers: BTreeMap<String, usize>,
    /// The source addresses of the requests as seen by the servers.
    pub sources: BTreeSet<IpAddr>,
    /// The errors of requests without an answer.
    pub failures: Vec<String>,
}

impl Tally {
    /// The number of answers of this server.
    #[must_use]
    pub fn of(&self, server: &str) -> usize {
        self.answers.get(server).copied().unwrap_or(0)
    }

    /// Panics if a request got no answer, if other servers than these answered, or if the numbers of answers of two servers
    /// differ by more than `spread`.
    pub fn assert_balanced(&self, servers: &[&str], spread: usize) {
        assert!(self.failures.is_empty(), "requests without an answer: {self:#?}");
        let seen: BTreeSet<_> = self.answers.keys().map(String::as_str).collect();
        assert_eq!(
            seen,
            servers.iter().copied().collect(),
            "unexpected set of servers: {self:#?}"
        );
        let least = self.answers.values().min().copied().unwrap_or(0);
        let most = self.answers.values().max().copied().unwrap_or(0);
        assert!(
            most - least <= spread,
            "numbers of answers differ by more than {spread}: {self:#?}"
        );
    }
}

/// Sends requests one after the other, each on a new connection or UDP flow, and counts the answers. Each UDP flow has a source port
/// that was not used before.
#[must_use]
pub fn ask_many(namespace: &NetNs, protocol: Protocol, target: SocketAddr, requests: usize) -> Tally {
    namespace.run(|| {
        let mut tally = Tally::default();
        for _ in 0..requests {
            match Connection::open_here(TIMEOUT, protocol, target).and_then(|mut connection| connection.ask())
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
    fn an_answer_is_parsed_as_it_was_printed() {
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
    #[should_panic(expected = "numbers of answers differ")]
    fn different_numbers_of_answers_are_not_balanced() {
        let answers = BTreeMap::from([("pod0".to_owned(), 10), ("pod1".to_owned(), 4)]);
        Tally {
            answers,
            ..Tally::default()
        }
        .assert_balanced(&["pod0", "pod1"], 1);
    }

    #[test]
    #[should_panic(expected = "without an answer")]
    fn a_request_without_an_answer_is_not_balanced() {
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
    #[should_panic(expected = "unexpected set of servers")]
    fn a_server_without_answers_is_not_balanced() {
        let answers = BTreeMap::from([("pod0".to_owned(), 10)]);
        Tally {
            answers,
            ..Tally::default()
        }
        .assert_balanced(&["pod0", "pod1"], 1);
    }
}
