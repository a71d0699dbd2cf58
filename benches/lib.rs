//! What the benchmarks share. See `benches/README.md`.

pub mod agent;
pub mod cluster;
pub mod control_group;
mod figure;
pub mod kube_proxy;
pub mod memory;
pub mod recorded;
pub mod runs;
pub mod traffic;

pub use self::figure::{figure, is_requested, median};

/// An error is printed, and ends the benchmark.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
