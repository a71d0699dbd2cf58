//! Connections that go on during a whole test.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::wait;

/// The time between two requests of a kind.
const PAUSE: Duration = Duration::from_millis(20);

/// Requests of the client to one server: on a connection that stays open, and on a new connection each.
pub(crate) struct Traffic {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_done: AtomicBool,
    /// Answers on the open connection.
    held: AtomicU64,
    /// Answers on new connections.
    new: AtomicU64,
    /// The first failure.
    failure: Mutex<Option<String>>,
}

impl Traffic {
    /// Begins to send requests to this address, which this server answers.
    pub(crate) fn start(network: &Network, target: SocketAddr, server: &'static str) -> Self {
        let shared = Arc::new(Shared::default());
        let start = |work: fn(&Shared, &NetNs, SocketAddr, &str) -> Result<(), String>| {
            let (shared, client) = (Arc::clone(&shared), network.client.clone());
            thread::spawn(move || {
                if let Err(failure) = work(&shared, &client, target, server) {
                    shared.failure.lock().unwrap().get_or_insert(failure);
                }
            })
        };
        let threads = vec![start(Shared::hold), start(Shared::renew)];
        let this = Self { shared, threads };
        this.assert_goes_on();
        this
    }

    /// Waits for further answers of both kinds. Panics if a request was not answered since the start.
    #[track_caller]
    pub(crate) fn assert_goes_on(&self) {
        let counts = || [&self.shared.held, &self.shared.new].map(|count| count.load(Ordering::Relaxed));
        let before = counts();
        wait::until(|| {
            if let Some(failure) = &*self.shared.failure.lock().unwrap() {
                panic!("{failure}");
            }
            // The second further request began after this call.
            let now = counts();
            if now[0] > before[0] + 1 && now[1] > before[1] + 1 {
                return Ok(());
            }
            Err(format!("{now:?} answers after {before:?}"))
        });
    }

    /// The requests that were answered, on the open connection and on new ones.
    pub(crate) fn answers(&self) -> (u64, u64) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (count(&self.shared.held), count(&self.shared.new))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.is_done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn hold(&self, client: &NetNs, target: SocketAddr, server: &str) -> Result<(), String> {
        let context = |error| format!("the connection to {target} that stays open: {error}");
        let mut connection = Connection::open(client, Protocol::Tcp, target).map_err(context)?;
        let first = connection.ask().map_err(context)?;
        self.repeat(&self.held, || {
            let answer = connection.ask().map_err(context)?;
            if answer == first && answer.server == server {
                return Ok(());
            }
            Err(format!(
                "{answer:?} on the connection that stays open, after {first:?}"
            ))
        })
    }

    fn renew(&self, client: &NetNs, target: SocketAddr, server: &str) -> Result<(), String> {
        self.repeat(&self.new, || {
            let answer = Connection::open(client, Protocol::Tcp, target)
                .and_then(|mut connection| connection.ask())
                .map_err(|error| format!("a new connection to {target}: {error}"))?;
            if answer.server == server {
                return Ok(());
            }
            Err(format!("{answer:?} on a new connection; expected {server}"))
        })
    }

    /// Sends requests until the end, or until one fails.
    fn repeat(
        &self,
        answers: &AtomicU64,
        mut request: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        while !self.is_done.load(Ordering::Relaxed) {
            request()?;
            answers.fetch_add(1, Ordering::Relaxed);
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}
