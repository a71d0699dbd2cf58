//! Repeated measurements in network namespaces of their own.

use std::thread;
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;

use crate::Result;

/// Runs `work` in a new network namespace and drops the namespace.
///
/// # Errors
/// That of `work`.
pub fn in_new_namespace<T: Send>(work: impl FnOnce(&NetNs) -> Result<T> + Send) -> Result<T> {
    let namespace = NetNs::new();
    let result = namespace.run(|| work(&namespace));
    drop(namespace);
    // The kernel deletes the namespace in the background, which would slow down the next case.
    thread::sleep(Duration::from_millis(1500));
    result
}

/// The work is the same in all runs, so the fastest run is the one that other load of the machine affected least.
///
/// # Errors
/// If there are no runs.
pub fn fastest(times: &[Duration]) -> Result<Duration> {
    Ok(times.iter().min().copied().ok_or("no runs")?)
}

/// The median; 0 without runs.
#[must_use]
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// How much longer one time is than another.
#[must_use]
pub fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

/// The median of how much longer the one time of a round is than the other, which the same load of the machine affected. Not a number without
/// rounds.
#[must_use]
pub fn median_ratio(ones: &[Duration], others: &[Duration]) -> f64 {
    let rounds = ones.iter().zip(others);
    middle(rounds.map(|(one, other)| ratio(*one, *other)).collect())
}

/// The median of values. Not a number, which is no figure, without values.
#[must_use]
pub fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
