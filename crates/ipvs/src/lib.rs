#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod availability;
mod client;
mod connection;
mod connections;
#[cfg(feature = "fake")]
pub mod contract;
mod daemon;
mod difference;
mod error;
#[cfg(feature = "fake")]
mod fake;
mod forward;
mod forwarding;
mod info;
mod modules;
mod name;
pub mod notation;
mod number;
mod operation;
#[cfg(feature = "netlink-packet")]
pub mod packet;
pub mod proc_net;
mod real_server;
mod reason;
mod scheduler;
#[cfg(feature = "serde")]
mod serialization;
mod snapshot;
mod stats;
pub mod sysctl;
mod timeouts;
pub mod uapi;
mod virtual_server;
mod wire;

pub use kernlink_base::{Family, KernelRelease};
pub use kernlink_netlink::{Errno, Namespace};

pub use availability::{Availability, Support};
pub use client::{Client, Ipvs};
pub use connection::{ConnectionEntry, ConnectionState, EngineData};
pub use connections::{ConnectionFilter, Connections};
pub use daemon::{Daemon, DaemonRole, InterfaceName};
pub use difference::{Executed, difference};
pub use error::{Cause, Error, InvalidOperation, Unavailable};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use forwarding::ForwardingMethod;
pub use info::{Info, Version};
pub use name::InvalidName;
pub use operation::Operation;
pub use real_server::{
    InvalidThresholds, InvalidWeight, ParseRealServerKeyError, RealServer, RealServerKey, Thresholds, Tunnel,
    TunnelFlags, TunnelKind, Weight,
};
pub use reason::Reason;
pub use scheduler::{PersistenceEngine, Scheduler, SchedulerFlags};
pub use snapshot::{Consistency, ForwardingSummary, RealServerSummary, Snapshot, SnapshotEntry};
pub use stats::{ConnectionCounts, Rates, RealServerStatus, Stats, VirtualServerStatus};
pub use timeouts::Timeouts;
pub use virtual_server::{
    Granularity, InvalidPersistence, Persistence, Protocol, VirtualServer, VirtualServerKey,
};
