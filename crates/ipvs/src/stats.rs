//! Counters and rates. They are separate from the configuration, so that configurations can be compared.

use crate::real_server::RealServer;
use crate::virtual_server::VirtualServer;

/// The counters of a virtual server or real server since it was added or its counters were zeroed.
///
/// The kernel sums its per-CPU counters every two seconds, so a listing can be two seconds old.
///
/// The counters have 64 bits since Linux 4.1 (`IPVS_*_ATTR_STATS64`). Older kernels count connections and packets in 32 bits, which
/// overflow.
#[doc(alias = "IPVS_SVC_ATTR_STATS64")]
#[doc(alias = "IPVS_DEST_ATTR_STATS64")]
#[doc(alias = "--stats")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Stats {
    /// Scheduled connections; with one-packet scheduling, datagrams.
    #[doc(alias = "IPVS_STATS_ATTR_CONNS")]
    pub connections: u64,
    /// Packets from clients.
    #[doc(alias = "IPVS_STATS_ATTR_INPKTS")]
    pub incoming_packets: u64,
    /// Packets from real servers; 0 if they reply to the client directly.
    #[doc(alias = "IPVS_STATS_ATTR_OUTPKTS")]
    pub outgoing_packets: u64,
    /// Bytes from clients, including the network header.
    #[doc(alias = "IPVS_STATS_ATTR_INBYTES")]
    pub incoming_bytes: u64,
    /// Bytes from real servers, including the network header.
    #[doc(alias = "IPVS_STATS_ATTR_OUTBYTES")]
    pub outgoing_bytes: u64,
    /// The current rates.
    pub rates: Rates,
}

/// Averages that the kernel updates every two seconds. All are zero if the kernel's estimator is off
/// (`net.ipv4.vs.run_estimation`).
#[doc(alias = "--rate")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Rates {
    /// Connections per second.
    #[doc(alias = "IPVS_STATS_ATTR_CPS")]
    pub connections: u64,
    /// Packets per second from clients.
    #[doc(alias = "IPVS_STATS_ATTR_INPPS")]
    pub incoming_packets: u64,
    /// Packets per second from real servers.
    #[doc(alias = "IPVS_STATS_ATTR_OUTPPS")]
    pub outgoing_packets: u64,
    /// Bytes per second from clients.
    #[doc(alias = "IPVS_STATS_ATTR_INBPS")]
    pub incoming_bytes: u64,
    /// Bytes per second from real servers.
    #[doc(alias = "IPVS_STATS_ATTR_OUTBPS")]
    pub outgoing_bytes: u64,
}

/// The current numbers of connections of a real server.
///
/// The kernel counts with signed numbers on several CPUs, so a count can be negative temporarily. It is 0 here then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Connections in an active state: TCP `ESTABLISHED` and, in newer kernels, the states before it; SCTP `ESTABLISHED`. UDP
    /// connections are never active.
    #[doc(alias = "IPVS_DEST_ATTR_ACTIVE_CONNS")]
    #[doc(alias = "ActiveConn")]
    pub active: u32,
    /// All other connections.
    #[doc(alias = "IPVS_DEST_ATTR_INACT_CONNS")]
    #[doc(alias = "InActConn")]
    pub inactive: u32,
    /// Persistence templates.
    #[doc(alias = "IPVS_DEST_ATTR_PERSIST_CONNS")]
    pub persistent: u32,
}

impl ConnectionCounts {
    /// The sum of active and inactive connections. If it is 0, no connection is lost when the real server is deleted.
    #[must_use]
    pub fn total(&self) -> u64 {
        u64::from(self.active) + u64::from(self.inactive)
    }
}

/// A virtual server of a listing, with its counters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct VirtualServerStatus {
    /// The configuration.
    pub server: VirtualServer,
    /// The counters.
    pub stats: Stats,
}

impl VirtualServerStatus {
    /// A virtual server with all counters at zero.
    #[must_use]
    pub fn new(server: VirtualServer) -> Self {
        Self {
            server,
            stats: Stats::default(),
        }
    }
}

/// A real server of a listing, with its counters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RealServerStatus {
    /// The configuration.
    pub server: RealServer,
    /// The current numbers of connections.
    pub connections: ConnectionCounts,
    /// The counters.
    pub stats: Stats,
}

impl RealServerStatus {
    /// A real server without connections and with all counters at zero.
    #[must_use]
    pub fn new(server: RealServer) -> Self {
        Self {
            server,
            connections: ConnectionCounts::default(),
            stats: Stats::default(),
        }
    }
}
