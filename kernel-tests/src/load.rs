//! New connections all the time, while a test changes something.

#![expect(
    clippy::panic,
    reason = "this module is only for tests, which fail by panicking"
)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::netns::NetNs;
use crate::tools;
use crate::traffic::{Connection, Protocol};
use crate::wait;

/// How long a new connection may wait for its answer. Far longer than any queue, and than the first repetition of a SYN: a connection whose
/// first packet is lost is answered late, and counted as late.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Clients that open a new connection after the other, ask once, and close it. Dropping it stops them.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    /// Starts a client for each of these: from a namespace to a frontend. Returns when each was served once.
    ///
    /// # Panics
    /// If one is not.
    #[must_use]
    pub fn start(clients: &[(&NetNs, Protocol, SocketAddr)]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let served = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for (namespace, protocol, target) in clients {
            let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
            let (namespace, protocol, target) = ((*namespace).clone(), *protocol, *target);
            let is_started = Arc::new(AtomicBool::new(false));
            let started = Arc::clone(&is_started);
            threads.push(thread::spawn(move || {
                let _entered = namespace.enter();
                // More connections than there are ports are opened in a minute.
                tools::set_sysctl("net.ipv4.ip_local_port_range", "1024 65000");
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match ask(protocol, target) {
                        Ok(()) => {
                            served.fetch_add(1, Ordering::Relaxed);
                            started.store(true, Ordering::Relaxed);
                        }
                        Err(error) => failures.push(format!("{protocol} {target}: {error}")),
                    }
                }
                failures
            }));
            wait::until(|| {
                let is_started = is_started.load(Ordering::Relaxed);
                is_started
                    .then_some(())
                    .ok_or_else(|| format!("{target} is not served"))
            });
        }
        Self {
            stop,
            served,
            threads,
        }
    }

    /// How many connections were served until now.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Waits until so many more connections were served.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for(&self, more: u64) {
        let before = self.served();
        wait::until(|| {
            let now = self.served();
            (now >= before + more)
                .then_some(())
                .ok_or_else(|| format!("{} connections", now - before))
        });
    }

    /// Stops all clients. Returns how many connections were served, and the errors of those that were not.
    ///
    /// # Panics
    /// If a client did.
    #[must_use]
    pub fn stop(mut self) -> (u64, Vec<String>) {
        let failures = self.end();
        (self.served(), failures)
    }

    /// Stops all clients, which must all have been served. Returns the number of connections.
    ///
    /// # Panics
    /// If a connection was not served.
    #[allow(clippy::must_use_candidate, reason = "the number is information")]
    pub fn assert_all_served(self) -> u64 {
        let (served, failures) = self.stop();
        assert!(
            failures.is_empty(),
            "{} of {} not served: {:?}",
            failures.len(),
            served + failures.len() as u64,
            failures.iter().take(20).collect::<Vec<_>>()
        );
        served
    }

    fn end(&mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let threads = self.threads.drain(..);
        threads
            .flat_map(|thread| thread.join().unwrap_or_else(|_| panic!("a client panicked")))
            .collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A UDP client asks again on the same flow, as every UDP client has to: a flow whose endpoint leaves is deleted, and a reply that is under way
/// then is lost.
fn ask(protocol: Protocol, target: SocketAddr) -> io::Result<()> {
    let (timeout, attempts) = match protocol {
        Protocol::Tcp => (TIMEOUT, 1),
        Protocol::Udp => (TIMEOUT / 30, 30),
    };
    let mut connection = Connection::open_briefly(timeout, protocol, target)?;
    let mut answer = connection.ask();
    for _ in 1..attempts {
        match answer {
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind()) => {
                answer = connection.ask();
            }
            _ => break,
        }
    }
    answer.map(drop)
}
