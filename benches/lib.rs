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

use std::process::ExitCode;

pub use self::figure::{figure, is_requested, median};

/// An error is printed, and ends the benchmark.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How a benchmark ends. Its error is printed.
#[must_use]
pub fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
