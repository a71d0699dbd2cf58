//! Waiting for what other processes do.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// After this time a cluster that does not start is a failure. It starts in about a minute; much later on a machine with other work.
const LIMIT: Duration = Duration::from_secs(600);
const INTERVAL: Duration = Duration::from_millis(500);

/// Waits until a condition holds.
///
/// # Errors
///
/// Those of the condition, and the time limit.
pub(super) fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        if start.elapsed() > LIMIT {
            bail!("waited {} s until {what}", LIMIT.as_secs());
        }
        thread::sleep(INTERVAL);
    }
    Ok(())
}
