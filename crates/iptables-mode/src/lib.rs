#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod accounting;
mod batch;
pub mod chains;
pub mod cleanup;
mod compile;
pub mod config;
mod data_path;
pub mod error;
mod events;
mod explain;
mod extensions;
pub mod kernel;
pub mod key;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
mod leftovers;
mod listing;
#[cfg(feature = "metrics")]
mod metrics;
mod names;
mod observe;
mod observed;
pub mod operation;
pub mod order;
mod plan;
mod port_chain;
pub mod retire;
mod rule_key;
mod state;
pub mod sysctls;
mod totals;
mod touched;
pub mod watch;
mod write;

pub use self::chains::FixedChain;
pub use self::config::Config;
pub use self::error::Error;
pub use self::explain::PortRules;
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::listing::Listings;
pub use self::observe::has_service_chains;
pub use self::operation::Operation;
pub use self::order::Phase;
pub use self::state::State;
pub use self::totals::{FamilyTotals, Totals};

/// The data path of iptables mode.
pub type IptablesMode = State;
/// A proxier of iptables mode.
pub type Proxier = kernlink_engine::Proxier<State>;
/// A plan of iptables mode.
pub type Plan = kernlink_engine::data_path::PlanOf<State>;
/// What a sync in iptables mode did.
pub type Synced = kernlink_engine::data_path::SyncedOf<State>;
/// Why a sync in iptables mode did nothing.
pub type SyncError = kernlink_engine::data_path::SyncErrorOf<State>;
