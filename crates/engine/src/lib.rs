#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod apply;
mod attempts;
pub mod broadcast;
mod class;
#[cfg(feature = "fake")]
pub mod contract;
pub mod data_path;
pub mod durations;
pub mod error;
mod failures;
mod first;
pub mod handover;
#[cfg(feature = "health")]
pub mod health;
pub mod kernel_object;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod one_table;
pub mod overlap;
pub mod pace;
pub mod plan;
pub mod proxier;
mod readings;
pub mod report;
pub mod retire;
pub mod retry;
mod reverted;
pub mod runner;
pub mod schedule;
#[cfg(test)]
mod scripted;
mod solved;
mod stale_flows;
pub mod status;
mod synced;
pub mod table;
pub mod unreadable;

pub use kernlink_base::Backoff;
pub use kernlink_services as services;
pub use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Event, Family, Kind, Node, ObjectChange, ObjectName, Port,
    Protocol, Service, ServiceType, SourceId,
};

pub use self::broadcast::Subscription;
pub use self::data_path::DataPath;
pub use self::durations::Durations;
pub use self::error::{InvalidConfig, SyncError};
pub use self::kernel_object::{Found, KernelObject};
pub use self::one_table::{Objects, OneTable};
pub use self::pace::Pace;
pub use self::plan::{Need, Plan, Subject};
pub use self::proxier::{Cost, FailingOperation, Proxier};
pub use self::readings::Readings;
pub use self::report::{Counts, Outcome, Report};
pub use self::runner::Runner;
pub use self::schedule::{Intervals, Schedule};
pub use self::solved::{OPERATION_FAILED, SOLVED};
pub use self::stale_flows::StaleFlows;
pub use self::status::Status;
pub use self::synced::Synced;
