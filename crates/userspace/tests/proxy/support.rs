//! A proxy, endpoints and clients.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kernlink_userspace::balance::Backend;
use kernlink_userspace::{Limits, ListenerKey, Proxy, Serving, Stats, Transport};
use tokio::runtime::Runtime;

/// Longer than any test waits for something that happens.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A proxy on a runtime of its own. The runtime ends with it.
pub(crate) struct Fixture {
    pub(crate) proxy: Proxy,
    runtime: Runtime,
}

impl Fixture {
    pub(crate) fn new(limits: Limits) -> Self {
        Self::with_threads(limits, 2)
    }

    /// A proxy on so many threads.
    pub(crate) fn with_threads(mut limits: Limits, threads: usize) -> Self {
        // An attempt to connect succeeds or fails at once, unless the machine is stopped for a while.
        limits.dial_timeouts.fill(PATIENCE);
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(threads).enable_all().build().unwrap();
        let proxy = Proxy::new(runtime.handle().clone(), limits).unwrap();
        Self { proxy, runtime }
    }

    /// Calls `work` while the only thread of the proxy is busy: the proxy finds all that happened at once.
    pub(crate) fn while_busy<T>(&self, work: impl FnOnce() -> T) -> T {
        let _busy = self.busy();
        work()
    }

    /// Keeps the only thread of the proxy busy until the value is dropped.
    pub(crate) fn busy(&self) -> Busy {
        assert_eq!(self.runtime.metrics().num_workers(), 1);
        let (began, has_begun) = mpsc::channel();
        let (end, has_ended) = mpsc::channel::<()>();
        self.runtime.spawn(async move {
            began.send(()).unwrap();
            let _ = has_ended.recv();
        });
        has_begun.recv().unwrap();
        Busy(end)
    }

    /// Waits until this many descriptors are in use.
    pub(crate) fn wait_for_descriptors(&self, count: usize) {
        let start = Instant::now();
        while self.proxy.descriptors().1 != count {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.proxy.descriptors());
            pause();
        }
    }

    /// Opens a port that the kernel chooses. `number` distinguishes several of them.
    pub(crate) fn listen(&mut self, transport: Transport, serving: &Serving) -> SocketAddr {
        let address = free_address(transport);
        self.proxy
            .listen(ListenerKey { transport, address }, serving)
            .unwrap()
    }

    /// Waits until the counters of a port satisfy a condition.
    pub(crate) fn wait_for(
        &self,
        transport: Transport,
        address: SocketAddr,
        condition: impl Fn(&Stats) -> bool,
    ) -> Stats {
        let key = ListenerKey { transport, address };
        let start = Instant::now();
        loop {
            let stats = self.proxy.stats(&key).unwrap();
            if condition(&stats) {
                return stats;
            }
            assert!(start.elapsed() < PATIENCE, "{stats:?}");
            pause();
        }
    }
}

/// The thread of a proxy is busy. Dropping it ends that.
pub(crate) struct Busy(#[expect(dead_code, reason = "dropping it wakes up the thread")] mpsc::Sender<()>);

/// Lets other threads run while a test waits.
pub(crate) fn pause() {
    thread::sleep(Duration::from_millis(2));
}

/// A loopback address of this test alone, with a port that was free a moment ago: all tests of this process draw from one sequence of
/// addresses, so none meets the port of another one.
pub(crate) fn free_address(transport: Transport) -> SocketAddr {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let address = Ipv4Addr::new(127, 77, high, low);
    match transport {
        Transport::Tcp => TcpListener::bind((address, 0)).unwrap().local_addr().unwrap(),
        Transport::Udp => UdpSocket::bind((address, 0)).unwrap().local_addr().unwrap(),
    }
}

pub(crate) fn serving(endpoints: impl IntoIterator<Item = SocketAddr>) -> Serving {
    Serving {
        backends: endpoints.into_iter().map(Backend::new).collect(),
        ..Serving::default()
    }
}

/// A TCP endpoint that sends its name, and then everything that it receives, until the client ends.
pub(crate) fn echo(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            thread::spawn(move || {
                let _ = client.write_all(name.as_bytes());
                let _ = std::io::copy(&mut client.try_clone().unwrap(), &mut client);
            });
        }
    });
    address
}

/// A TCP endpoint whose connections the test handles.
pub(crate) fn endpoint() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An address at which nothing listens.
pub(crate) fn closed() -> SocketAddr {
    free_address(Transport::Tcp)
}

/// An address at which no UDP socket is bound.
pub(crate) fn closed_udp() -> SocketAddr {
    free_address(Transport::Udp)
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Connects and reads the name of the endpoint, which has one byte.
pub(crate) fn name_of(address: SocketAddr) -> (char, TcpStream) {
    let mut stream = connect(address);
    let mut name = [0];
    stream.read_exact(&mut name).unwrap();
    (name[0].into(), stream)
}

/// Whether a connection is reset without data.
pub(crate) fn is_reset(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return true;
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = stream.read(&mut [0]).map_err(|error| error.kind());
    assert!(!matches!(error, Ok(1..)), "the connection was served");
    error == Err(std::io::ErrorKind::ConnectionReset)
}

/// A UDP endpoint that answers each datagram with its name and the datagram.
pub(crate) fn udp_echo(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let answer = [name.as_bytes(), &buffer[..length]].concat();
            // The largest datagram leaves no room for the name.
            let answer = if answer.len() > 65_507 {
                &answer[name.len()..]
            } else {
                &answer
            };
            let _ = socket.send_to(answer, client);
        }
    });
    address
}

pub(crate) fn udp_client(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

pub(crate) fn ask(socket: &UdpSocket, data: &[u8]) -> Vec<u8> {
    socket.send(data).unwrap();
    let mut buffer = vec![0; 65_536];
    let length = socket.recv(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}
