//! The way from a proxy to the API server, which can be cut and counts bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use kernlink_kernel_tests::netns::NetNs;

/// Where the proxy connects to.
pub(crate) const ADDRESS: &str = "127.0.0.1:7443";

/// Forwards connections until it is dropped.
pub(crate) struct Link {
    shared: Arc<Shared>,
    /// Accepts connections.
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    open: Mutex<Vec<TcpStream>>,
    /// Bytes from the server.
    received: AtomicU64,
    has_ended: AtomicBool,
}

impl Link {
    /// Listens in the network namespace of the calling thread, and connects to the server in another one.
    pub(crate) fn start(server: &'static str, namespace: &NetNs) -> Self {
        let listener = TcpListener::bind(ADDRESS).unwrap();
        let shared = Arc::new(Shared::default());
        let (this, namespace) = (Arc::clone(&shared), namespace.clone());
        let thread = thread::spawn(move || {
            let _entered = namespace.enter();
            while let Ok((client, _)) = listener.accept() {
                if this.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                // The server may be away; the client sees that its connection ends.
                if let Ok(server) = TcpStream::connect(server) {
                    this.forward(&client, &server);
                }
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        for connection in self.shared.open.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// The bytes that were received from the server.
    pub(crate) fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        self.cut();
        // Ends the call of accept.
        let _ = TcpStream::connect(ADDRESS);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn forward(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        for (from, to, counts) in [(client, server, false), (server, client, true)] {
            to.set_nodelay(true).unwrap();
            self.open.lock().unwrap().push(from.try_clone().unwrap());
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let this = Arc::clone(self);
            thread::spawn(move || {
                let _ = this.copy(&mut from, &mut to, counts);
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
            });
        }
    }

    fn copy(&self, from: &mut TcpStream, to: &mut TcpStream, counts: bool) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = from.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            if counts {
                self.received.fetch_add(length as u64, Ordering::Relaxed);
            }
            to.write_all(buffer.get(..length).unwrap_or_default())?;
        }
    }
}
