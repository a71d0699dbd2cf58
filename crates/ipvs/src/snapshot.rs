//! The whole table.

use crate::forwarding::ForwardingMethod;
use crate::real_server::{RealServer, RealServerKey, Weight};
use crate::stats::{ConnectionCounts, RealServerStatus, VirtualServerStatus};
use crate::virtual_server::VirtualServerKey;

/// All virtual servers of a network namespace with their real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Every virtual server once, in the order of the keys.
    pub virtual_servers: Vec<SnapshotEntry>,
    /// Whether servers may be missing.
    pub consistency: Consistency,
}

impl Snapshot {
    /// A snapshot of these virtual servers, which are put in order.
    pub fn new(mut virtual_servers: Vec<SnapshotEntry>, consistency: Consistency) -> Self {
        virtual_servers.sort_by_key(|entry| entry.virtual_server.server.key);
        Self {
            virtual_servers,
            consistency,
        }
    }

    /// A virtual server by key.
    pub fn get(&self, key: &VirtualServerKey) -> Option<&SnapshotEntry> {
        let found = self
            .virtual_servers
            .binary_search_by_key(key, |entry| entry.virtual_server.server.key);
        self.virtual_servers.get(found.ok()?)
    }

    /// Number of all real servers.
    pub fn real_server_count(&self) -> usize {
        self.virtual_servers
            .iter()
            .map(|entry| entry.real_servers.len())
            .sum()
    }
}

/// Whether a snapshot is complete.
///
/// The kernel lists by position: if a server is deleted between two datagrams of a list, another one can be skipped, and the
/// kernel does not report it. This crate reads overlapping parts and so detects whether a server was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consistency {
    /// The snapshot has every virtual server and every real server that existed from the beginning to the end of the call,
    /// once. One that was added, changed or deleted during the call is in it with its state before or after, so that the
    /// snapshot as a whole need not show one single moment.
    Verified,
    /// The table changed too fast in every attempt: servers that exist may be missing.
    Torn {
        /// How often it was tried.
        attempts: u32,
    },
}

/// A virtual server with its real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotEntry {
    /// The virtual server, with its counters.
    pub virtual_server: VirtualServerStatus,
    /// Its real servers, in the order of the keys; may be empty.
    pub real_servers: Vec<RealServerSummary>,
}

impl SnapshotEntry {
    /// A virtual server with these real servers, which are put in order, the first of each key.
    pub fn new(virtual_server: VirtualServerStatus, mut real_servers: Vec<RealServerSummary>) -> Self {
        real_servers.sort_by_key(|server| server.key);
        real_servers.dedup_by_key(|server| server.key);
        Self {
            virtual_server,
            real_servers,
        }
    }

    /// A real server by key.
    pub fn get(&self, key: &RealServerKey) -> Option<&RealServerSummary> {
        let found = self.real_servers.binary_search_by_key(key, |server| server.key);
        self.real_servers.get(found.ok()?)
    }
}

/// What one pass over the kernel's table tells of a real server. For thresholds, tunnel and statistics ask for the real
/// servers of its virtual server: [`Ipvs::list_real_servers`](crate::Ipvs::list_real_servers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RealServerSummary {
    /// Which real server.
    pub key: RealServerKey,
    /// How packets reach it.
    pub forwarding: ForwardingSummary,
    /// Its share of new connections.
    pub weight: Weight,
    /// Active connections now; see [`ConnectionCounts::active`]. 0 where the kernel shows a negative number.
    pub active_connections: u32,
    /// Other connections now; see [`ConnectionCounts::inactive`]. 0 where the kernel shows a negative number.
    pub inactive_connections: u32,
}

impl RealServerSummary {
    /// A summary without connections.
    pub fn new(key: RealServerKey, forwarding: ForwardingSummary, weight: Weight) -> Self {
        Self {
            key,
            forwarding,
            weight,
            active_connections: 0,
            inactive_connections: 0,
        }
    }

    /// Whether nothing that the summary tells speaks against these settings. Thresholds and tunnel it does not tell.
    pub fn agrees_with(&self, server: &RealServer) -> bool {
        self.key == server.key
            && self.weight == server.weight
            && self.forwarding == ForwardingSummary::from(server.forwarding)
    }

    /// Active and inactive connections together: 0 means that nothing is lost when the real server goes.
    pub fn total_connections(&self) -> u64 {
        u64::from(self.active_connections) + u64::from(self.inactive_connections)
    }
}

impl From<&RealServerStatus> for RealServerSummary {
    fn from(status: &RealServerStatus) -> Self {
        let ConnectionCounts { active, inactive, .. } = status.connections;
        Self {
            key: status.server.key,
            forwarding: status.server.forwarding.into(),
            weight: status.server.weight,
            active_connections: active,
            inactive_connections: inactive,
        }
    }
}

/// The forwarding method, as far as the kernel's table in `/proc` tells it: it prints `Masq` for all but three methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ForwardingSummary {
    /// [`ForwardingMethod::Masquerade`], or the rare [`ForwardingMethod::Bypass`] or an unknown method.
    MasqueradeOrOther,
    /// [`ForwardingMethod::Local`].
    Local,
    /// [`ForwardingMethod::Tunnel`].
    Tunnel,
    /// [`ForwardingMethod::DirectRoute`].
    DirectRoute,
}

impl From<ForwardingMethod> for ForwardingSummary {
    fn from(method: ForwardingMethod) -> Self {
        match method.named() {
            ForwardingMethod::Local => Self::Local,
            ForwardingMethod::Tunnel => Self::Tunnel,
            ForwardingMethod::DirectRoute => Self::DirectRoute,
            ForwardingMethod::Masquerade | ForwardingMethod::Bypass | ForwardingMethod::Unknown(_) => {
                Self::MasqueradeOrOther
            }
        }
    }
}
