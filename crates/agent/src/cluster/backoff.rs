//! Delays between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The longest delay after the first failure.
const INITIAL: Duration = Duration::from_millis(800);
/// The longest delay after any number of failures.
const MAX: Duration = Duration::from_secs(30);

/// Delays that double with each failure in a row. A random half is subtracted, so that the nodes of a cluster do not return together
/// to an API server that restarted.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    random: RandomState,
}

impl Backoff {
    /// Forgets the failures.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        let half = INITIAL.saturating_mul(factor).min(MAX) / 2;
        half + half.mul_f64(self.fraction())
    }

    /// A random number from 0 to 1.
    pub(super) fn fraction(&self) -> f64 {
        // A hasher has random keys of its own.
        let number = self.random.hash_one(RandomState::new().hash_one(self.failures));
        let part = u32::try_from(number >> 32).unwrap_or_default();
        f64::from(part) / f64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_begin_again() {
        let mut backoff = Backoff::default();
        for failures in 0..100 {
            let longest = INITIAL.saturating_mul(2_u32.saturating_pow(failures)).min(MAX);
            let delay = backoff.next();
            assert!(delay >= longest / 2 && delay <= longest, "{failures}: {delay:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= INITIAL);
    }
}
