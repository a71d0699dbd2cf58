//! Delays between attempts.

use std::time::Duration;

/// The delays between attempts at something that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest delay after the first failure; with 0 the next attempt is due at once. Default: 1 second.
    pub initial: Duration,
    /// The longest delay after any number of failures. Default: 5 minutes.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(1),
            max: Duration::from_secs(300),
        }
    }
}

impl Backoff {
    /// The delay after a number of failures in a row, from 1. The longest delay is `initial`, doubled with each further failure, and
    /// at most `max`. `random` chooses the delay between half of the longest delay and all of it.
    #[must_use]
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let longest = self.initial.saturating_mul(factor).min(self.max);
        let half = longest / 2;
        // 2^-32 of the range is precise enough.
        let part = u32::try_from(random >> 32).unwrap_or(0);
        half.saturating_add((longest - half).mul_f64(f64::from(part) / f64::from(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_vary() {
        let backoff = Backoff::default();
        for (failures, longest) in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (99, 300)] {
            let longest = Duration::from_secs(longest);
            assert_eq!(backoff.delay(failures, u64::MAX), longest);
            assert_eq!(backoff.delay(failures, 0), longest / 2);
        }
    }
}
