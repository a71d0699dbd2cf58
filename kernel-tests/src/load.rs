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
use std::time::{Duration, Instant};

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
    clients: Vec<Arc<Client>>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

/// What a client has counted.
#[derive(Debug, Default)]
struct Client {
    served: AtomicU64,
    failed: AtomicU64,
    /// The longest time in which a connection was served, in milliseconds.
    longest: AtomicU64,
}

impl Load {
    /// Starts a client for each of these: from a namespace to a frontend. Returns when each was served once.
    ///
    /// # Panics
    /// If one is not.
    #[must_use]
    pub fn start(clients: &[(&NetNs, Protocol, SocketAddr)]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut counts = Vec::new();
        let mut threads = Vec::new();
        for (namespace, protocol, target) in clients {
            let stop = Arc::clone(&stop);
            let (namespace, protocol, target) = ((*namespace).clone(), *protocol, *target);
            let client = Arc::<Client>::default();
            counts.push(Arc::clone(&client));
            let count = Arc::clone(&client);
            threads.push(thread::spawn(move || {
                let _entered = namespace.enter();
                // More connections than there are ports are opened in a minute.
                tools::set_sysctl("net.ipv4.ip_local_port_range", "1024 65000");
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    match ask(protocol, target) {
                        Ok(()) => {
                            let time = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                            count.longest.fetch_max(time, Ordering::Relaxed);
                            count.served.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            failures.push(format!("{protocol} {target}: {error}"));
                            count.failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                failures
            }));
            wait::until(|| {
                let is_served = client.served.load(Ordering::Relaxed) > 0;
                is_served
                    .then_some(())
                    .ok_or_else(|| format!("{target} is not served"))
            });
        }
        Self {
            stop,
            clients: counts,
            threads,
        }
    }

    /// How many connections were served until now.
    #[must_use]
    pub fn served(&self) -> u64 {
        let served = |client: &Arc<Client>| client.served.load(Ordering::Relaxed);
        self.clients.iter().map(served).sum()
    }

    /// The longest time in which a connection was served until now. A second or more is that of one whose first packet was lost.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let longest = |client: &Arc<Client>| client.longest.load(Ordering::Relaxed);
        Duration::from_millis(self.clients.iter().map(longest).max().unwrap_or(0))
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

    /// Waits until each client was served so many times more, or was not served once more.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_each(&self, more: u64) {
        for client in &self.clients {
            let [served, failed] =
                [&client.served, &client.failed].map(|count| count.load(Ordering::Relaxed));
            wait::until(|| {
                let now = client.served.load(Ordering::Relaxed);
                let is_over = now >= served + more || client.failed.load(Ordering::Relaxed) > failed;
                is_over
                    .then_some(())
                    .ok_or_else(|| format!("{} connections of a client", now - served))
            });
        }
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
