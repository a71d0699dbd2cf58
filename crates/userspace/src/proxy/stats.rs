//! Counters of a listening port, and of all of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Shared;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of a listening port since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Stats {
            /// Adds other counters to these.
            fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        impl Counters {
            pub(super) fn read(&self) -> Stats {
                Stats { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// TCP connections to endpoints, and UDP flows, that were opened.
    opened,
    /// TCP connections and UDP flows that ended.
    ended,
    /// UDP flows without a reply that ended before their timeout, because a limit was reached and a new flow replaced them.
    replaced,
    /// Attempts to connect to an endpoint that failed.
    dial_failures,
    /// TCP connections that were reset, and datagrams of new flows that were dropped, because no endpoint could be reached or there is none.
    without_endpoint,
    /// TCP connections that were reset, and datagrams of new flows that were dropped, because of a limit.
    shed,
    /// TCP connections that were reset, and datagrams of new flows that were dropped, because their source is not admitted or their
    /// destination is the listening port itself.
    not_admitted,
    /// Half-closed TCP connections that ended because of the timeout.
    half_closed_timeouts,
    /// Bytes from clients to endpoints.
    bytes_in,
    /// Bytes from endpoints to clients.
    bytes_out,
    /// Datagrams from clients to endpoints.
    datagrams_in,
    /// Datagrams from endpoints to clients.
    datagrams_out,
    /// Datagrams of flows that could not be passed on.
    datagrams_lost,
}

/// A counter that any thread may increase.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// The counters of all listening ports, also of those that are closed.
#[derive(Debug, Default)]
pub(super) struct AllCounters(Mutex<Ports>);

#[derive(Debug, Default)]
struct Ports {
    /// The sums of ports that are closed and have no connections.
    closed: Stats,
    open: Vec<Arc<Counters>>,
    /// The number of open ones at which the closed ones are looked for.
    check_at: usize,
}

impl AllCounters {
    /// The counters of a new listening port.
    pub(super) fn open(&self) -> Arc<Counters> {
        let mut ports = self.lock();
        if ports.open.len() >= ports.check_at {
            ports.add_closed();
            ports.check_at = 2 * ports.open.len() + 16;
        }
        let counters = Arc::<Counters>::default();
        ports.open.push(Arc::clone(&counters));
        counters
    }

    fn sum(&self) -> Stats {
        let mut ports = self.lock();
        ports.add_closed();
        let mut sum = ports.closed;
        for counters in &ports.open {
            sum.add(&counters.read());
        }
        sum
    }

    fn lock(&self) -> MutexGuard<'_, Ports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ports {
    fn add_closed(&mut self) {
        let closed = &mut self.closed;
        self.open.retain_mut(|counters| match Arc::get_mut(counters) {
            Some(counters) => {
                closed.add(&counters.read());
                false
            }
            None => true,
        });
    }
}

/// Reads the counters of a [`Proxy`](super::Proxy) that another thread has.
#[derive(Clone, Debug)]
pub struct AllStats(pub(super) Arc<Shared>);

impl AllStats {
    /// The sums of the counters of all listening ports since the proxy was created, also of those that are closed.
    #[must_use]
    pub fn read(&self) -> Stats {
        self.0.counters.sum()
    }

    /// The file descriptors that may be used, and those in use.
    #[must_use]
    pub fn descriptors(&self) -> (usize, usize) {
        (self.0.budget.total(), self.0.budget.taken())
    }
}
