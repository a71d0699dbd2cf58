#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod compile;
pub mod config;
#[cfg(feature = "metrics")]
pub mod counters;
mod data_path;
mod drain;
pub mod error;
mod extensions;
mod facts;
pub mod forwarding;
pub mod hand_back;
pub mod kernel;
pub mod key;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
mod listing;
#[cfg(feature = "metrics")]
mod metrics;
mod observe;
pub mod operation;
pub mod options;
pub mod order;
mod ownership;
mod plan;
mod recheck;
pub mod replacement;
pub mod retire;
pub mod rules;
mod schedulers;
pub mod sets;
mod state;
pub mod sysctls;
pub mod totals;
pub mod virtual_servers;
pub mod watch;

// The kernel crates, for the types in `Kernel`, `Operation` and `Error`.
pub use kernlink_host::DeleteFlows;
pub use {
    kernlink_base::KernelRelease, kernlink_conntrack as conntrack, kernlink_dummylink as dummylink,
    kernlink_ipset as ipset, kernlink_iptables_restore as iptables_restore, kernlink_ipvs as ipvs,
    kernlink_netlink as netlink,
};

pub use self::config::Config;
pub use self::error::Error;
pub use self::forwarding::Forwarding;
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::listing::Listings;
pub use self::operation::Operation;
pub use self::options::IpvsOptions;
pub use self::order::Phase;
pub use self::replacement::Replacement;
pub use self::sets::SetId;
pub use self::state::{DesiredVirtualServer, HostFacts, State};
pub use self::sysctls::Sysctl;
pub use self::totals::{FamilyTotals, Totals};

/// The data path of IPVS mode.
pub type IpvsMode = State;
/// A proxier of IPVS mode.
pub type Proxier = kernlink_engine::Proxier<State>;
/// A plan of IPVS mode.
pub type Plan = kernlink_engine::data_path::PlanOf<State>;
/// What a sync in IPVS mode did.
pub type Synced = kernlink_engine::data_path::SyncedOf<State>;
/// Why a sync in IPVS mode did nothing.
pub type SyncError = kernlink_engine::data_path::SyncErrorOf<State>;
