#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod class;
pub mod config;
mod content;
mod data_path;
mod elements;
pub mod error;
mod events;
mod explain;
pub mod hand_back;
mod item;
pub mod kernel;
pub mod key;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
pub mod layout;
mod listing;
#[cfg(feature = "metrics")]
mod metrics;
mod networks;
mod observe;
pub mod operation;
pub mod order;
mod plan;
mod port;
mod ranges;
pub mod retire;
mod rules;
mod state;
mod timeouts;
mod totals;
pub mod watch;

pub use kernlink_nftables as nftables;

pub use self::config::Config;
pub use self::error::Error;
pub use self::explain::FrontendElements;
pub use self::item::Shared;
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::listing::Listings;
pub use self::operation::Operation;
pub use self::order::Phase;
pub use self::state::State;
pub use self::totals::{FamilyTotals, Totals};

/// The data path of nftables mode.
pub type NftablesMode = State;
/// A proxier of nftables mode.
pub type Proxier = kernlink_engine::Proxier<State>;
/// A plan of nftables mode.
pub type Plan = kernlink_engine::data_path::PlanOf<State>;
/// What a sync in nftables mode did.
pub type Synced = kernlink_engine::data_path::SyncedOf<State>;
/// Why a sync in nftables mode did nothing.
pub type SyncError = kernlink_engine::data_path::SyncErrorOf<State>;
