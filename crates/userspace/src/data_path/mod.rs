//! The data path: compiles arbitrated frontends to listening ports and to the portal rules that lead to them.
//!
//! It runs in [`kernlink_engine::Proxier`], which orders and executes plans and retries failed operations by key.

pub mod chains;
mod cleanup;
mod compile;
pub mod config;
pub mod error;
pub mod kernel;
pub mod key;
#[cfg(feature = "metrics")]
pub mod metrics;
mod mode;
mod observe;
pub mod operation;
pub mod order;
mod plan;
mod portal;
pub mod retire;
mod rules;
pub mod sockets;
mod state;
mod totals;
mod watch;

pub use self::cleanup::{has_portals, remaining};
pub use self::config::Config;
pub use self::error::{Error, SocketError};
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::operation::Operation;
pub use self::order::Phase;
pub use self::state::State;
pub use self::totals::Totals;

/// The data path of userspace mode.
pub type UserspaceMode = State;
/// A proxier of userspace mode.
pub type Proxier = kernlink_engine::Proxier<State>;
/// A plan of userspace mode.
pub type Plan = kernlink_engine::data_path::PlanOf<State>;
/// What a sync in userspace mode did.
pub type Synced = kernlink_engine::data_path::SyncedOf<State>;
/// Why a sync in userspace mode did nothing.
pub type SyncError = kernlink_engine::data_path::SyncErrorOf<State>;
