//! Prints, as commands, what kube-proxy's IPVS mode would need in an empty kernel for the Services of manifests.
//!
//! `cargo run --example plan_only -- FILE...`; no privileges, nothing is changed.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kernlink_kubernetes::manifest::{self, Objects};
use kernlink_proxier::ipvs_mode::{Config, Kernel, Proxier};
use kernlink_proxier::services::SourceId;

fn main() -> Result<()> {
    let mut objects = Objects::default();
    for file in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        objects.extend(manifest::read(&file, &text));
    }
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
