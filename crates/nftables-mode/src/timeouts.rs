//! The timeouts of session affinity that rules exist for.
//!
//! The timeout of an entry that a rule adds is part of the rule. The timeout of a Service is the next of a limited number of timeouts that is
//! not shorter, so that all rules exist from the beginning.

use std::sync::LazyLock;
use std::time::Duration;

/// Timeouts that users write, in seconds, which are kept exactly.
const COMMON: [u32; 28] = [
    15, 30, 45, 60, 90, 120, 150, 180, 240, 300, 360, 600, 900, 1_200, 1_800, 2_700, 3_600, 5_400, 7_200,
    10_800, 14_400, 18_000, 21_600, 28_800, 36_000, 43_200, 64_800, 86_400,
];

/// The default of Kubernetes, which most Services with session affinity have.
pub(crate) const DEFAULT: u32 = 10_800;

/// The longest timeout that Kubernetes permits.
const LONGEST: u32 = 86_400;

/// All timeouts in seconds, in order: every second up to 8, then four in each power of two, and the common ones.
pub(crate) static ALL: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut all: Vec<u32> = (1..=8).collect();
    let mut step = 2;
    let mut next = 10;
    while next < LONGEST {
        all.push(next);
        if next >= step * 8 {
            step *= 2;
        }
        next += step;
    }
    all.extend(COMMON);
    all.sort_unstable();
    all.dedup();
    all
});

/// The timeout in seconds that a Service with this timeout gets.
pub(crate) fn rounded(timeout: Duration) -> u32 {
    let seconds = u32::try_from(timeout.as_secs())
        .unwrap_or(LONGEST)
        .clamp(1, LONGEST);
    let position = ALL.partition_point(|known| *known < seconds);
    ALL.get(position).copied().unwrap_or(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_timeouts_are_kept_and_others_are_at_most_a_quarter_longer() {
        assert!(ALL.len() <= 96, "{}", ALL.len());
        assert_eq!(ALL.last(), Some(&LONGEST));
        assert!(ALL.contains(&DEFAULT));
        let of = |seconds: u32| rounded(Duration::from_secs(seconds.into()));
        for seconds in COMMON {
            assert_eq!(of(seconds), seconds);
        }
        for seconds in 1..=LONGEST {
            let timeout = of(seconds);
            assert!(
                timeout >= seconds && f64::from(timeout) <= f64::from(seconds) * 1.25,
                "{seconds}: {timeout}"
            );
        }
        assert_eq!(of(100_000), LONGEST);
    }
}
