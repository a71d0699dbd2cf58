//! Histograms of durations.

use std::time::Duration;

/// How many durations are in which range.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// The number of durations in each range: one for each bound, and one above the last bound.
    counts: Box<[u64]>,
    sum: Duration,
}

impl Histogram {
    /// No durations. `bounds` are the upper bounds of the ranges in seconds, ascending; a bound belongs to its range.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1].into_boxed_slice(),
            sum: Duration::ZERO,
        }
    }

    /// Adds a duration.
    pub fn add(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let place = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(duration);
    }

    /// The sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Each bound in seconds, with the number of durations up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let counts = self.bounds.iter().zip(&self.counts);
        counts.scan(0, |total, (bound, count)| {
            *total += count;
            Some((*bound, *total))
        })
    }
}

/// The bounds of kube-proxy's `sync_proxy_rules_duration_seconds`: 15 from 1 ms, each twice the one before.
pub const SYNC_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// The bounds of kube-proxy's `network_programming_duration_seconds`: 0.25 s, 0.5 s, 1 s to 60 s by 1 s, to 120 s by 5 s, to 300 s by 30 s.
pub const PROGRAMMING_SECONDS: &[f64] = &programming_seconds();

const fn programming_seconds() -> [f64; 80] {
    let mut bounds = [0.25; 80];
    bounds[1] = 0.5;
    let (mut place, mut bound) = (2, 1.0);
    while place < bounds.len() {
        bounds[place] = bound;
        place += 1;
        bound += if bound < 60.0 {
            1.0
        } else if bound < 120.0 {
            5.0
        } else {
            30.0
        };
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_network_programming_are_those_of_kube_proxy() {
        let text = |bounds: &[f64]| bounds.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(&PROGRAMMING_SECONDS[..4]), ["0.25", "0.5", "1", "2"]);
        assert_eq!(text(&PROGRAMMING_SECONDS[59..64]), ["58", "59", "60", "65", "70"]);
        assert_eq!(
            text(&PROGRAMMING_SECONDS[71..76]),
            ["110", "115", "120", "150", "180"]
        );
        assert_eq!(PROGRAMMING_SECONDS.last(), Some(&300.0));
    }

    #[test]
    fn a_bound_belongs_to_its_range_and_counts_are_cumulative() {
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for millis in [100, 500, 501, 1000, 1001, 5000] {
            histogram.add(Duration::from_millis(millis));
        }
        let counts: Vec<_> = histogram.cumulative().collect();
        assert_eq!(counts, [(0.5, 2), (1.0, 4)]);
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.sum(), Duration::from_millis(8102));
    }

    #[test]
    fn the_bounds_of_syncs_are_powers_of_two() {
        for (bound, power) in SYNC_SECONDS.iter().zip(0..) {
            assert!((bound - 0.001 * f64::from(1 << power)).abs() < 1e-9, "{bound}");
        }
        assert_eq!(SYNC_SECONDS.len(), 15);
    }
}
