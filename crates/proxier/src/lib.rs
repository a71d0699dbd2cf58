#![doc = include_str!("../README.md")]

mod apply;
pub mod data_path;
pub mod error;
#[cfg(feature = "health")]
pub mod health;
pub mod ipvs_mode;
pub mod lock;
pub mod plan;
pub mod proxier;
pub mod report;
pub mod retry;
pub mod runner;
pub mod schedule;
pub mod table;

pub use data_path::DataPath;
pub use error::{InvalidConfig, SyncError};
pub use lock::Lock;
pub use plan::{Plan, Subject};
pub use proxier::{Cost, Proxier, Synced};
pub use report::{Counts, Outcome, Report};
pub use retry::Backoff;
pub use runner::Runner;
pub use schedule::{Intervals, Schedule};

#[cfg(feature = "kubernetes")]
pub use kernlink_kubernetes as kubernetes;
pub use kernlink_services as services;
