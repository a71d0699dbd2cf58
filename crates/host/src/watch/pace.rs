//! Limits how often something is done.

use std::time::{Duration, Instant};

/// Something that is requested by events and done at most at a certain pace: events within a short time are one request, two are at least
/// `SPACING` apart, and more than a number in a row wait longer.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// How long each time counts.
    refill: Duration,
    /// How many may follow each other at `SPACING`, less one.
    spare: u32,
    /// When it is due, if it is requested.
    due: Option<Instant>,
    /// When it was done last.
    last: Option<Instant>,
    /// When all times so far no longer count.
    counted_until: Option<Instant>,
}

/// The time in which events become one request.
pub(super) const SETTLE: Duration = Duration::from_millis(50);
/// The shortest time between two times.
pub(super) const SPACING: Duration = Duration::from_secs(1);

impl Pace {
    /// At most `burst` times in a row, then once in every `refill`.
    pub(super) fn new(burst: u32, refill: Duration) -> Self {
        Self {
            refill,
            spare: burst.saturating_sub(1),
            due: None,
            last: None,
            counted_until: None,
        }
    }

    /// Requests it.
    pub(super) fn request(&mut self, now: Instant) {
        if self.due.is_some() {
            return;
        }
        let spaced = self.last.and_then(|last| last.checked_add(SPACING));
        let spare = self.refill.saturating_mul(self.spare);
        let counted = self.counted_until.and_then(|until| until.checked_sub(spare));
        let settled = now.checked_add(SETTLE);
        self.due = [settled, spaced, counted].into_iter().flatten().max();
    }

    /// When it is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether it is due at `now`. It counts as done then.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        self.due = None;
        self.last = Some(now);
        let from = self.counted_until.map_or(now, |until| until.max(now));
        self.counted_until = from.checked_add(self.refill);
        true
    }

    /// Withdraws the request: something else did it.
    pub(super) fn withdraw(&mut self) {
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFILL: Duration = Duration::from_secs(10);

    /// The times, after the start, at which it is done if it is requested all the time.
    fn times(pace: &mut Pace, start: Instant, count: usize) -> Vec<Duration> {
        let mut now = start;
        let mut times = Vec::new();
        while times.len() < count {
            pace.request(now);
            now = pace.due().unwrap();
            assert!(pace.take(now));
            times.push(now - start);
        }
        times
    }

    #[test]
    fn requests_within_a_short_time_are_one() {
        let start = Instant::now();
        let mut pace = Pace::new(3, REFILL);
        assert!(!pace.take(start));
        pace.request(start);
        pace.request(start + SETTLE / 2);
        assert_eq!(pace.due(), Some(start + SETTLE));
        assert!(!pace.take(start));
        assert!(pace.take(start + SETTLE));
        assert_eq!(pace.due(), None);
        assert!(!pace.take(start + SETTLE));
    }

    #[test]
    fn a_few_follow_each_other_and_more_wait() {
        let start = Instant::now();
        let mut pace = Pace::new(3, REFILL);
        let times = times(&mut pace, start, 5);
        let first = SETTLE;
        assert_eq!(times[..3], [first, first + SPACING, first + SPACING * 2]);
        assert_eq!(times[3..], [first + REFILL, first + REFILL * 2]);
    }

    #[test]
    fn after_a_quiet_time_all_may_follow_each_other_again() {
        let start = Instant::now();
        let mut pace = Pace::new(3, REFILL);
        times(&mut pace, start, 5);
        let later = start + REFILL * 6;
        let times = times(&mut pace, later, 3);
        assert_eq!(times, [SETTLE, SETTLE + SPACING, SETTLE + SPACING * 2]);
    }

    #[test]
    fn one_that_follows_after_some_time_does_not_wait() {
        let start = Instant::now();
        let mut pace = Pace::new(3, REFILL);
        pace.request(start);
        assert!(pace.take(start + SETTLE));
        pace.request(start + SPACING * 2);
        assert_eq!(pace.due(), Some(start + SPACING * 2 + SETTLE));
        pace.withdraw();
        assert_eq!(pace.due(), None);
    }
}
