//! Objects that another program keeps reverting, and the delay before the next full listing.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::{Duration, Instant};

use kernlink_base::Backoff;
use kernlink_services::Event;

/// Reverts in a row before repairs are delayed: then an event is returned and full listings wait.
const TOLERATED: u32 = 3;

/// The delay before the next full listing: from the third time on that an object was changed back, doubled each time. A firewall that is
/// reloaded twice looks the same as another proxy, and Services are not served until the repair: so the first delays are short. After an object
/// [stayed intact](INTACT_FOR) its next delay is the first one again.
const DELAYS: Backoff = Backoff {
    initial: Duration::from_secs(1),
    max: Duration::from_secs(300),
};

/// An object that was not found changed for so long, and for twice its last delay, stayed intact: what changes it only every few minutes does not
/// fight about it. If there is a notice of the change, it does not matter how long the last delay was. Longer than the usual interval of listings, in which an object that is changed back at once is found.
const INTACT_FOR: Duration = Duration::from_secs(60);

/// An object that stayed as it was written for so long is forgotten. Longer than the longest delay, after which it is read.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// The number of objects that an event names.
const NAMED: usize = 3;

/// The objects that another program changed or removed after they were written.
#[derive(Clone, Debug)]
pub(crate) struct Reverted<K> {
    runs: BTreeMap<K, Run>,
}

/// How often in a row an object was found changed, and when last.
#[derive(Clone, Copy, Debug)]
struct Run {
    count: u32,
    /// The number of delays in a row, each twice as long as the one before. 0: the next repair is not delayed.
    delays: u32,
    last: Instant,
    /// When there was the first notice of a change since the object was read.
    noticed: Option<Instant>,
}

impl Run {
    /// The object was found changed, and is repaired.
    fn add(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.last);
        let last_delay = self.delay().unwrap_or_default();
        if since >= INTACT_FOR.max(last_delay.saturating_mul(2)) || self.was_intact() {
            self.delays = 0;
        }
        self.noticed = None;
        self.count = self.count.saturating_add(1);
        if self.count >= TOLERATED {
            self.delays = self.delays.saturating_add(1);
        }
        self.last = now;
    }

    /// Whether it stayed intact until there was a notice.
    fn was_intact(&self) -> bool {
        let intact = self.noticed.map(|at| at.saturating_duration_since(self.last));
        intact.is_some_and(|intact| intact >= INTACT_FOR)
    }

    /// Whether it is not read although there may be a notice.
    fn is_delayed(&self, now: Instant) -> bool {
        self.delayed_until(now).is_some() && !self.was_intact()
    }

    /// The delay of the next repair.
    fn delay(&self) -> Option<Duration> {
        (self.delays > 0).then(|| DELAYS.delay(self.delays, u64::MAX))
    }

    /// The time before which the object is not repaired again; `None` if there is no such time, or it has passed.
    fn delayed_until(&self, now: Instant) -> Option<Instant> {
        let until = self.last.checked_add(self.delay()?)?;
        (until > now).then_some(until)
    }
}

impl<K: Display + Ord> Reverted<K> {
    pub(crate) fn new() -> Self {
        Self {
            runs: BTreeMap::new(),
        }
    }

    /// Records that a pass found these objects changed by another program. Returns an event about the first ones that were changed three
    /// times in a row.
    pub(crate) fn found(&mut self, keys: impl IntoIterator<Item = K>, now: Instant) -> Option<Event> {
        let is_recent = |run: &Run| now.saturating_duration_since(run.last) < FORGOTTEN_AFTER;
        self.runs.retain(|_, run| is_recent(run));
        let was_reported = self.runs.values().any(|run| run.count >= TOLERATED);
        let mut has_reached = false;
        for key in keys {
            let first = Run {
                count: 0,
                delays: 0,
                last: now,
                noticed: None,
            };
            let run = self.runs.entry(key).or_insert(first);
            // A pass counts once for an object, however many of its parts differ.
            if run.count == 0 || run.last != now {
                run.add(now);
            }
            has_reached |= run.count >= TOLERATED;
        }
        // What was read and found intact.
        let read = self.runs.values_mut().filter(|run| !run.is_delayed(now));
        read.for_each(|run| run.noticed = None);
        (has_reached && !was_reported).then(|| self.event())
    }

    /// The time before which the whole kernel is not read for changes by other programs; `None` if there is no such time, or it has passed.
    pub(crate) fn no_listing_before(&self, now: Instant) -> Option<Instant> {
        let delayed = self.runs.values().filter_map(|run| run.delayed_until(now));
        delayed.max()
    }

    /// The time before which an object of which there was a notice is not read; `None` if it is not delayed.
    pub(crate) fn delayed_until(&self, key: &K, now: Instant) -> Option<Instant> {
        let run = self.runs.get(key).filter(|run| run.is_delayed(now))?;
        run.delayed_until(now)
    }

    /// Records a notice that an object may have changed. Returns whether its repair is delayed: it was changed back again and again, and soon
    /// after the last repair. Otherwise it is read in this pass.
    pub(crate) fn notice(&mut self, key: &K, now: Instant) -> bool {
        self.runs.get_mut(key).is_some_and(|run| {
            run.noticed.get_or_insert(now);
            run.is_delayed(now)
        })
    }

    fn event(&self) -> Event {
        let reached = self.runs.iter().filter(|(_, run)| run.count >= TOLERATED);
        let keys: Vec<&K> = reached.map(|(key, _)| key).collect();
        let mut names = String::new();
        for (index, key) in keys.iter().take(NAMED).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(names, "{separator}{key}");
        }
        if let Some(more) = keys.len().checked_sub(NAMED).filter(|more| *more > 0) {
            let _ = write!(names, " and {more} more");
        }
        let text = format!(
            "another program, such as kube-proxy, changed or removed {names} {TOLERATED} times in a row after they were written; \
             repairs are delayed by {} to {} seconds",
            DELAYS.initial.as_secs(),
            DELAYS.max.as_secs()
        );
        Event::host("ChangedByAnotherProgram", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_third_time_in_a_row_is_reported_once_and_delays_listings() {
        let start = Instant::now();
        let mut reverted = Reverted::new();
        assert_eq!(reverted.found(["rules"], start), None);
        assert_eq!(reverted.found(["rules", "other"], start + seconds(30)), None);
        assert_eq!(reverted.no_listing_before(start + seconds(30)), None);
        let third = start + seconds(60);
        let event = reverted.found(["rules", "other"], third).unwrap();
        assert_eq!(
            event.to_string(),
            "host: another program, such as kube-proxy, changed or removed rules 3 times in a row after they were written; repairs are \
             delayed by 1 to 300 seconds"
        );
        // Each further time doubles the delay, up to the limit, and is not reported again.
        let mut now = third;
        for delay in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert_eq!(reverted.no_listing_before(now), Some(now + seconds(delay)));
            now += seconds(delay);
            assert_eq!(reverted.no_listing_before(now), None);
            assert_eq!(reverted.found(["rules", "other"], now), None);
        }
    }

    #[test]
    fn an_object_that_stayed_intact_is_forgotten() {
        let start = Instant::now();
        let mut reverted = Reverted::new();
        reverted.found(["a"], start);
        reverted.found(["a"], start + seconds(30));
        assert_eq!(reverted.found([], start + seconds(60)), None);
        assert_eq!(reverted.found(["a"], start + seconds(630)), None);
        assert_eq!(reverted.found(["a"], start + seconds(640)), None);
        assert!(reverted.found(["a"], start + seconds(650)).is_some());
        // After a time without changes, the next three are reported again.
        let later = start + seconds(10_000);
        assert_eq!(reverted.found(["a"], later), None);
        assert_eq!(reverted.no_listing_before(later), None);
        assert_eq!(reverted.found(["a"], later + seconds(1)), None);
        assert!(reverted.found(["a"], later + seconds(2)).is_some());
    }

    #[test]
    fn an_object_that_is_changed_every_few_minutes_is_never_delayed_by_more_than_a_second() {
        for period in [60, 90, 240, 599] {
            let mut now = Instant::now();
            let mut reverted = Reverted::new();
            let mut events = 0;
            for round in 1..=30 {
                events += usize::from(reverted.found(["rules"], now).is_some());
                let delay = (round >= 3).then(|| now + seconds(1));
                assert_eq!(reverted.no_listing_before(now), delay, "{period} s, {round}");
                now += seconds(period);
                assert!(!reverted.notice(&"rules", now), "{period} s, {round}");
            }
            assert_eq!(events, 1, "{period} s");
        }
    }

    #[test]
    fn the_delay_grows_again_after_a_time_in_which_an_object_stayed_intact() {
        let mut now = Instant::now();
        let mut reverted = Reverted::new();
        let delay = |reverted: &Reverted<&str>, now| reverted.no_listing_before(now).map(|time| time - now);
        // Another program changes it at once: it is found when the delay has passed.
        let fight = |reverted: &mut Reverted<&'static str>, now: &mut Instant, delays: &[u64]| {
            for expected in delays {
                *now += delay(reverted, *now).unwrap_or_default() + Duration::from_millis(1);
                reverted.found(["rules"], *now);
                let expected = Some(seconds(*expected)).filter(|expected| !expected.is_zero());
                assert_eq!(delay(reverted, *now), expected);
            }
        };
        fight(&mut reverted, &mut now, &[0, 0, 1, 2, 4, 8, 16, 32, 64]);
        now += seconds(127);
        reverted.found(["rules"], now);
        assert_eq!(
            delay(&reverted, now),
            Some(seconds(128)),
            "less than twice the last one"
        );
        now += seconds(256);
        reverted.found(["rules"], now);
        assert_eq!(delay(&reverted, now), Some(seconds(1)));
        fight(
            &mut reverted,
            &mut now,
            &[2, 4, 8, 16, 32, 64, 128, 256, 300, 300],
        );
    }

    #[test]
    fn a_notice_that_comes_long_after_a_repair_ends_a_long_delay() {
        let start = Instant::now();
        let mut reverted = Reverted::new();
        let mut now = start;
        for _ in 0..20 {
            now = reverted.no_listing_before(now).unwrap_or(now + seconds(1));
            reverted.found(["rules"], now);
        }
        let delay = |reverted: &Reverted<&str>, now| reverted.no_listing_before(now).map(|time| time - now);
        assert_eq!(delay(&reverted, now), Some(seconds(300)));
        // Soon after the repair.
        assert!(reverted.notice(&"rules", now + seconds(59)));
        assert!(
            reverted.notice(&"rules", now + seconds(299)),
            "the first notice counts"
        );
        now += seconds(300);
        reverted.found(["rules"], now);
        assert_eq!(delay(&reverted, now), Some(seconds(300)));
        // Long after it.
        now += seconds(60);
        assert!(!reverted.notice(&"rules", now));
        reverted.found(["rules"], now);
        assert_eq!(delay(&reverted, now), Some(seconds(1)));
        assert!(reverted.notice(&"rules", now));
    }

    #[test]
    fn an_object_that_stayed_intact_is_not_delayed_because_another_one_is() {
        let start = Instant::now();
        let mut reverted = Reverted::new();
        let found = [
            (0, "seldom"),
            (240, "seldom"),
            (241, "fought"),
            (242, "fought"),
            (243, "fought"),
            (244, "fought"),
            (246, "fought"),
            (250, "fought"),
            (258, "fought"),
            (274, "fought"),
            (306, "fought"),
            (370, "fought"),
            (480, "seldom"),
        ];
        for (at, key) in found {
            reverted.found([key], start + seconds(at));
        }
        assert!(reverted.notice(&"fought", start + seconds(371)));
        let now = start + seconds(481);
        assert!(!reverted.notice(&"seldom", now));
        assert!(reverted.notice(&"fought", now));
        assert_eq!(reverted.no_listing_before(now), Some(start + seconds(498)));
    }

    #[test]
    fn different_objects_are_counted_separately() {
        let now = Instant::now();
        let mut reverted = Reverted::new();
        for round in 0..10 {
            assert_eq!(reverted.found([round], now + seconds(round)), None);
        }
        assert_eq!(reverted.no_listing_before(now), None);
    }

    #[test]
    fn an_object_with_several_parts_counts_once_in_a_pass_and_an_event_names_few() {
        let now = Instant::now();
        let mut reverted = Reverted::new();
        assert_eq!(reverted.found(["a", "a", "a", "a"], now), None);
        reverted.found(["a", "b", "c", "d", "e"], now + seconds(1));
        reverted.found(["a", "b", "c", "d", "e"], now + seconds(2));
        let mut reverted = Reverted::new();
        for second in 0..2 {
            reverted.found(["a", "b", "c", "d", "e"], now + seconds(second));
        }
        let event = reverted
            .found(["e", "d", "c", "b", "a"], now + seconds(2))
            .unwrap();
        assert!(
            event.to_string().contains("a, b, c and 2 more 3 times"),
            "{event}"
        );
    }
}
