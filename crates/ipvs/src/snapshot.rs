//! Snapshots of the whole table.

use crate::forwarding::ForwardingMethod;
use crate::real_server::{RealServer, RealServerKey, Weight};
use crate::stats::{ConnectionCounts, RealServerStatus, VirtualServerStatus};
use crate::virtual_server::VirtualServerKey;

/// All virtual servers of a network namespace with their real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Each virtual server once, in the order of the keys.
    pub virtual_servers: Vec<SnapshotEntry>,
    /// Whether servers may be missing.
    pub consistency: Consistency,
}

impl Snapshot {
    /// A snapshot of these virtual servers, which are sorted by key.
    #[must_use]
    pub fn new(mut virtual_servers: Vec<SnapshotEntry>, consistency: Consistency) -> Self {
        virtual_servers.sort_by_key(|entry| entry.virtual_server.server.key);
        Self {
            virtual_servers,
            consistency,
        }
    }

    /// The virtual server with a key.
    #[must_use]
    pub fn get(&self, key: &VirtualServerKey) -> Option<&SnapshotEntry> {
        let found = self
            .virtual_servers
            .binary_search_by_key(key, |entry| entry.virtual_server.server.key);
        self.virtual_servers.get(found.ok()?)
    }

    /// The number of real servers of all virtual servers.
    #[must_use]
    pub fn real_server_count(&self) -> usize {
        self.virtual_servers
            .iter()
            .map(|entry| entry.real_servers.len())
            .sum()
    }
}

/// Whether a snapshot is complete.
///
/// The kernel lists by position: if a server is deleted between two datagrams of a listing, another one can be skipped, and the
/// kernel does not report this. This crate reads overlapping parts to detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consistency {
    /// The snapshot contains each virtual server and real server that existed during the whole call once. A server that was added,
    /// changed or deleted during the call is contained in its previous or its new state. So the snapshot may not be the state at
    /// one moment.
    Verified,
    /// The table changed too fast in every attempt. Existing servers may be missing.
    Unverified {
        /// The number of attempts.
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
    /// A virtual server with these real servers, which are sorted by key. Of equal keys the first real server is kept.
    #[must_use]
    pub fn new(virtual_server: VirtualServerStatus, mut real_servers: Vec<RealServerSummary>) -> Self {
        real_servers.sort_by_key(|server| server.key);
        real_servers.dedup_by_key(|server| server.key);
        Self {
            virtual_server,
            real_servers,
        }
    }

    /// The real server with a key.
    #[must_use]
    pub fn get(&self, key: &RealServerKey) -> Option<&RealServerSummary> {
        let found = self.real_servers.binary_search_by_key(key, |server| server.key);
        self.real_servers.get(found.ok()?)
    }
}

/// The fields of a real server that one pass over the kernel's table contains.
/// [`Ipvs::list_real_servers`](crate::Ipvs::list_real_servers) returns thresholds, tunnel and statistics too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RealServerSummary {
    /// Identifies the real server.
    pub key: RealServerKey,
    /// How packets are forwarded to it.
    pub forwarding: ForwardingSummary,
    /// Its share of new connections.
    pub weight: Weight,
    /// The number of active connections; see [`ConnectionCounts::active`]. 0 if the kernel prints a negative number.
    pub active_connections: u32,
    /// The number of other connections; see [`ConnectionCounts::inactive`]. 0 if the kernel prints a negative number.
    pub inactive_connections: u32,
}

impl RealServerSummary {
    /// A summary without connections.
    #[must_use]
    pub fn new(key: RealServerKey, forwarding: ForwardingSummary, weight: Weight) -> Self {
        Self {
            key,
            forwarding,
            weight,
            active_connections: 0,
            inactive_connections: 0,
        }
    }

    /// Whether key, weight and forwarding method are equal. The summary does not contain thresholds and tunnel.
    #[must_use]
    pub fn agrees_with(&self, server: &RealServer) -> bool {
        self.key == server.key
            && self.weight == server.weight
            && self.forwarding == ForwardingSummary::from(server.forwarding)
    }

    /// The sum of active and inactive connections. If it is 0, no connection is lost when the real server is deleted.
    #[must_use]
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

/// The forwarding method in `/proc/net/ip_vs`, which contains `Masq` for all methods except three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ForwardingSummary {
    /// [`ForwardingMethod::Masquerade`], [`ForwardingMethod::Bypass`] or an unknown method.
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
