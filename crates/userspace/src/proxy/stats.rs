//! Counters of a listening port.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of a listening port since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
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
