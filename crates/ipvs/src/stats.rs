//! Counters and rates, apart from the settings, so that equal settings compare equal.

use crate::real_server::RealServer;
use crate::virtual_server::VirtualServer;

/// What went through a virtual server or real server since it was made or its counters were last zeroed.
///
/// The kernel brings its counters together every two seconds: a listing can be that much behind.
///
/// All 64-bit where the kernel offers it (`IPVS_*_ATTR_STATS64`, since Linux 4.1). Older kernels count connections and
/// packets in 32 bits, which wrap.
#[doc(alias = "IPVS_SVC_ATTR_STATS64")]
#[doc(alias = "IPVS_DEST_ATTR_STATS64")]
#[doc(alias = "--stats")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Stats {
    /// Connections scheduled; with one-packet scheduling, datagrams.
    #[doc(alias = "IPVS_STATS_ATTR_CONNS")]
    pub connections: u64,
    /// Packets from clients.
    #[doc(alias = "IPVS_STATS_ATTR_INPKTS")]
    pub incoming_packets: u64,
    /// Packets from real servers; 0 where they answer the client themselves.
    #[doc(alias = "IPVS_STATS_ATTR_OUTPKTS")]
    pub outgoing_packets: u64,
    /// Bytes from clients, network header included.
    #[doc(alias = "IPVS_STATS_ATTR_INBYTES")]
    pub incoming_bytes: u64,
    /// Bytes from real servers, network header included.
    #[doc(alias = "IPVS_STATS_ATTR_OUTBYTES")]
    pub outgoing_bytes: u64,
    /// What goes through now.
    pub rates: Rates,
}

/// Averages that the kernel renews every two seconds. All zero where the kernel's estimator is off
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

/// The connections that a real server has now.
///
/// The kernel counts in signed numbers and on several processors, so that a count can be below zero for a moment. It is 0 here
/// then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// In a state that the scheduler counts as busy: for TCP established, for others none.
    #[doc(alias = "IPVS_DEST_ATTR_ACTIVE_CONNS")]
    #[doc(alias = "ActiveConn")]
    pub active: u32,
    /// All others.
    #[doc(alias = "IPVS_DEST_ATTR_INACT_CONNS")]
    #[doc(alias = "InActConn")]
    pub inactive: u32,
    /// Persistence templates.
    #[doc(alias = "IPVS_DEST_ATTR_PERSIST_CONNS")]
    pub persistent: u32,
}

impl ConnectionCounts {
    /// Active and inactive connections together: 0 means that nothing is lost when the real server goes.
    pub fn total(&self) -> u64 {
        u64::from(self.active) + u64::from(self.inactive)
    }
}

/// A virtual server as the kernel has it, with its counters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct VirtualServerStatus {
    /// The settings.
    pub server: VirtualServer,
    /// The counters.
    pub stats: Stats,
}

impl VirtualServerStatus {
    /// A virtual server with all counters at zero.
    pub fn new(server: VirtualServer) -> Self {
        Self {
            server,
            stats: Stats::default(),
        }
    }
}

/// A real server as the kernel has it, with its counters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RealServerStatus {
    /// The settings.
    pub server: RealServer,
    /// Its connections now.
    pub connections: ConnectionCounts,
    /// The counters.
    pub stats: Stats,
}

impl RealServerStatus {
    /// A real server without connections and with all counters at zero.
    pub fn new(server: RealServer) -> Self {
        Self {
            server,
            connections: ConnectionCounts::default(),
            stats: Stats::default(),
        }
    }
}
