//! Delays between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use kernlink_base::Backoff as Delays;

const DELAYS: Delays = Delays {
    initial: Duration::from_millis(800),
    max: Duration::from_secs(30),
};

/// The failures in a row. The delays are random, so that the nodes of a cluster do not return together to an API server that restarted.
#[derive(Debug)]
pub(super) struct Backoff {
    delays: Delays,
    failures: u32,
    random: RandomState,
}

impl Default for Backoff {
    /// The delays between requests.
    fn default() -> Self {
        Self::new(DELAYS)
    }
}

impl Backoff {
    pub(super) fn new(delays: Delays) -> Self {
        Self {
            delays,
            failures: 0,
            random: RandomState::new(),
        }
    }

    /// Forgets the failures.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.delays.delay(self.failures, self.random())
    }

    /// The failures in a row.
    #[cfg(test)]
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// A random number from 0 to 1.
    pub(super) fn fraction(&self) -> f64 {
        let part = u32::try_from(self.random() >> 32).unwrap_or_default();
        f64::from(part) / f64::from(u32::MAX)
    }

    fn random(&self) -> u64 {
        // A hasher has random keys of its own.
        self.random.hash_one(RandomState::new().hash_one(self.failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_begin_again() {
        let mut backoff = Backoff::default();
        for failures in 0..100 {
            let longest = DELAYS
                .initial
                .saturating_mul(2_u32.saturating_pow(failures))
                .min(DELAYS.max);
            let delay = backoff.next();
            assert!(delay >= longest / 2 && delay <= longest, "{failures}: {delay:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= DELAYS.initial);
    }
}
