//! Prints, as commands, what kube-proxy's IPVS mode would need in an empty kernel for the Services of manifests.
//!
//! `cargo run --example plan_only -- PATH...` with files or folders; no privileges, nothing is changed.

mod manifest_files;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use kernlink_proxier::ipvs_mode::{Config, Kernel, Proxier};
use kernlink_proxier::services::SourceId;

fn main() -> Result<()> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    ensure!(!paths.is_empty(), "usage: plan_only PATH...");
    let objects = manifest_files::read(&paths)?;
    for error in &objects.errors {
        eprintln!("invalid: {error}");
    }
    let is_complete = objects.missing.is_empty();
    // With `Kernel::open()` the plan is the difference from what the kernel of this network namespace holds.
    let mut proxier = Proxier::new(&Config::new("node-a"), Kernel::fake())?;
    for change in objects.into_changes_without_missing() {
        for event in proxier.change(SourceId(0), change) {
            eprintln!("event: {event}");
        }
    }
    write!(std::io::stdout(), "{}", proxier.plan(Instant::now())?)?;
    ensure!(
        is_complete,
        "some objects of the manifests cannot be read; the plan is without them"
    );
    Ok(())
}
