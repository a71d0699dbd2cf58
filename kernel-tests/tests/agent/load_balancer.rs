//! A load balancer that forwards connections, and keeps those to a server that hangs.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Forwards connections to a server.
#[derive(Clone, Default)]
pub(crate) struct LoadBalancer(Arc<Counts>);

#[derive(Default)]
struct Counts {
    accepted: AtomicUsize,
    /// The connections with lower numbers forward nothing.
    hanging: AtomicUsize,
}

impl LoadBalancer {
    /// Listens in the network namespace of the calling thread until the test program ends.
    pub(crate) fn start(address: &str, target: &'static str) -> Self {
        let this = Self::default();
        let listener = TcpListener::bind(address).unwrap();
        let shared = this.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let number = shared.0.accepted.fetch_add(1, Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(target) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let shared = shared.clone();
                    thread::spawn(move || shared.copy(number, from, to));
                }
            }
        });
        this
    }

    /// From now on nothing is forwarded between those that are connected; the connections stay open.
    pub(crate) fn hang(&self) {
        self.0.hanging.store(self.accepted(), Ordering::SeqCst);
    }

    /// Nothing is forwarded, also between those that connect later.
    pub(crate) fn hang_for_ever(&self) {
        self.0.hanging.store(usize::MAX, Ordering::SeqCst);
    }

    /// The number of connections until now.
    pub(crate) fn accepted(&self) -> usize {
        self.0.accepted.load(Ordering::SeqCst)
    }

    fn copy(&self, number: usize, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 16384];
        let hangs = || number < self.0.hanging.load(Ordering::SeqCst);
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            if !hangs() && to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        if !hangs() {
            let _ = to.shutdown(Shutdown::Both);
        }
    }
}
