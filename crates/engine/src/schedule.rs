//! When to sync: a state machine without a clock.

use std::time::{Duration, Instant};

use kernlink_base::Backoff;

use crate::pace::{Bucket, Pace};

/// The intervals between syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// The shortest time between the starts of two syncs; changes in between are combined. 0, the default of kube-proxy's
    /// `ipvs.minSyncPeriod` and of this type: no limit.
    pub min: Duration,
    /// The longest time between two readings of the whole kernel, which find changes by other programs that no event reported. 0: it is
    /// read on request only. Default: 30 seconds, as kube-proxy's `ipvs.syncPeriod`.
    pub max: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Self {
            min: Duration::ZERO,
            max: Duration::from_secs(30),
        }
    }
}

/// What to do when the schedule is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// [`Proxier::sync`](crate::Proxier::sync).
    Sync,
    /// [`Proxier::resync`](crate::Proxier::resync), then [`Proxier::sync`](crate::Proxier::sync).
    Resync,
}

/// Decides when to sync.
///
/// The embedder reports what happens and calls [`take`](Self::take) at the time that [`next`](Self::next) returns. After a sync it calls
/// [`on_report`](Self::on_report) or [`on_error`](Self::on_error). Nothing is due before [`on_synced`](Self::on_synced).
///
/// ```
/// # use std::time::{Duration, Instant};
/// # use kernlink_engine::schedule::{Due, Intervals, Schedule};
/// let start = Instant::now();
/// let mut schedule = Schedule::new(Intervals { min: Duration::from_secs(1), ..Intervals::default() });
/// schedule.on_synced(start);
/// assert_eq!(schedule.take(start), Some(Due::Sync));
/// schedule.on_report(start, None);
/// // Two changes within the shortest interval are one sync.
/// schedule.on_change(start + Duration::from_millis(10));
/// schedule.on_change(start + Duration::from_millis(20));
/// assert_eq!(schedule.next(), Some(start + Duration::from_secs(1)));
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    intervals: Intervals,
    backoff: Backoff,
    /// Whether all sources have synced.
    has_synced: bool,
    /// The time of the first change that no sync has seen.
    change: Option<Instant>,
    /// The time of the first request to read the whole kernel that no sync has seen.
    resync: Option<Instant>,
    /// When a failed operation is retried.
    retry: Option<Instant>,
    /// When the last sync started.
    started: Option<Instant>,
    /// When the whole kernel was read last.
    listed: Option<Instant>,
    /// What the sync in progress does.
    current: Option<Due>,
    /// Syncs in a row that did nothing because of an error.
    errors: u32,
    /// After such an error, when to try again.
    blocked_until: Option<Instant>,
    /// The time before which the whole kernel is not read.
    no_listing_before: Option<Instant>,
    /// The time of the first change that must not wait and that no sync has seen.
    urgent: Option<Instant>,
    /// The transactions, if they have a pace.
    bucket: Option<Bucket>,
}

impl Schedule {
    /// A schedule of a proxier that has not synced.
    #[must_use]
    pub fn new(intervals: Intervals) -> Self {
        Self {
            intervals,
            backoff: Backoff::default(),
            has_synced: false,
            change: None,
            resync: None,
            retry: None,
            started: None,
            listed: None,
            current: None,
            errors: 0,
            blocked_until: None,
            no_listing_before: None,
            urgent: None,
            bucket: None,
        }
    }

    /// Sets the delays after syncs that failed as a whole, because the kernel could not be read. Without jitter; `initial` is the first
    /// delay.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the pace of transactions: [`DataPath::pace`](crate::DataPath::pace). `None`, the default: no two syncs start within the shortest
    /// interval.
    pub fn set_pace(&mut self, pace: Option<Pace>) {
        self.bucket = pace.map(Bucket::new);
    }

    /// Sets the time that a listing of the owned objects by the standard tool takes. A schedule with a pace has pauses of this length, of at
    /// most 5 seconds, while changes do not end.
    pub fn set_listing_time(&mut self, time: Duration) {
        if let Some(bucket) = &mut self.bucket {
            bucket.set_listing_time(time);
        }
    }

    /// Replaces the intervals.
    pub fn set_intervals(&mut self, intervals: Intervals) {
        self.intervals = intervals;
    }

    /// All sources have delivered their first full list: the first sync is due. Later calls have no effect.
    pub fn on_synced(&mut self, now: Instant) {
        if !self.has_synced {
            self.has_synced = true;
            self.change = Some(now);
        }
    }

    /// An object or the configuration changed.
    pub fn on_change(&mut self, now: Instant) {
        self.change.get_or_insert(now);
    }

    /// An object changed, and the change must not wait: [`Proxier::take_urgent`](crate::Proxier::take_urgent).
    pub fn on_urgent_change(&mut self, now: Instant) {
        self.urgent.get_or_insert(now);
        self.on_change(now);
    }

    /// The sync that began at this time changed the kernel. Call it before [`on_report`](Self::on_report); a schedule with a pace counts these syncs.
    pub fn on_written(&mut self, started: Instant) {
        let interval = self.intervals.min;
        if let Some(bucket) = &mut self.bucket {
            bucket.take(started, interval);
        }
    }

    /// Delays readings of the whole kernel, at intervals and after changes by other programs, until a time. `None`: no delay. Changes of
    /// objects and retries are not delayed. Call it after each sync with
    /// [`Synced::no_listing_before`](crate::Synced::no_listing_before), before [`on_report`](Self::on_report).
    pub fn delay_listing(&mut self, until: Option<Instant>) {
        self.no_listing_before = until;
    }

    /// The kernel was changed by another program, or may have been.
    pub fn on_kernel_change(&mut self, now: Instant) {
        self.resync.get_or_insert(now);
    }

    /// A sync ended at `now`. `retry` is [`Synced::next`](crate::Synced::next).
    pub fn on_report(&mut self, now: Instant, retry: Option<Instant>) {
        if self.current.take() == Some(Due::Resync) || self.listed.is_none() {
            self.listed = Some(now);
        }
        self.retry = retry;
        self.errors = 0;
        self.blocked_until = None;
    }

    /// A sync did nothing: [`SyncError`](crate::SyncError). It is repeated after a delay, and reads the whole kernel then.
    pub fn on_error(&mut self, now: Instant) {
        self.current = None;
        self.errors = self.errors.saturating_add(1);
        self.resync.get_or_insert(now);
        self.no_listing_before = None;
        let delay = self.backoff.delay(self.errors, u64::MAX);
        self.blocked_until = now.checked_add(delay);
    }

    /// When [`take`](Self::take) returns something. `None`: after the next call of an `on_` function at the earliest. A time in the past
    /// is due now.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        if !self.has_synced || self.current.is_some() {
            return None;
        }
        let other = [self.urgent, self.listing(), self.retry];
        let other = other.into_iter().flatten().min();
        let due = |requested: Option<Instant>, is_urgent: bool| {
            let earliest = self.earliest(is_urgent);
            requested.map(|requested| requested.max(earliest.unwrap_or(requested)))
        };
        let next = [due(other, true), due(self.change, false)]
            .into_iter()
            .flatten()
            .min()?;
        Some(next.max(self.blocked_until.unwrap_or(next)))
    }

    /// The earliest start of the next sync.
    fn earliest(&self, is_urgent: bool) -> Option<Instant> {
        match &self.bucket {
            Some(bucket) => bucket.earliest(self.intervals.min, is_urgent),
            None => self
                .started
                .and_then(|started| started.checked_add(self.intervals.min)),
        }
    }

    /// What is due at `now`. The sync counts as started then, with everything reported so far.
    pub fn take(&mut self, now: Instant) -> Option<Due> {
        if self.next()? > now {
            return None;
        }
        let is_resync = self.listing().is_some_and(|time| time <= now);
        let due = if is_resync { Due::Resync } else { Due::Sync };
        self.change = None;
        self.urgent = None;
        if is_resync {
            self.resync = None;
        }
        self.retry = None;
        self.started = Some(now);
        self.current = Some(due);
        Some(due)
    }

    /// When the whole kernel is read again.
    fn listing(&self) -> Option<Instant> {
        let requested = [self.resync, self.periodic()].into_iter().flatten().min()?;
        Some(requested.max(self.no_listing_before.unwrap_or(requested)))
    }

    /// When the whole kernel is read again without a request.
    fn periodic(&self) -> Option<Instant> {
        let interval = Some(self.intervals.max).filter(|interval| !interval.is_zero())?;
        self.listed?.checked_add(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVALS: Intervals = Intervals {
        min: Duration::from_secs(1),
        max: Duration::from_secs(30),
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A schedule after its first sync at `start`.
    fn synced(start: Instant) -> Schedule {
        let mut schedule = Schedule::new(INTERVALS);
        schedule.on_synced(start);
        assert_eq!(schedule.take(start), Some(Due::Sync));
        schedule.on_report(start, None);
        schedule
    }

    #[test]
    fn nothing_is_due_before_all_sources_have_synced() {
        let start = Instant::now();
        let mut schedule = Schedule::new(INTERVALS);
        schedule.on_change(start);
        schedule.on_kernel_change(start);
        assert_eq!(schedule.next(), None);
        assert_eq!(schedule.take(start + seconds(100)), None);
        schedule.on_synced(start + seconds(7));
        assert_eq!(schedule.next(), Some(start));
    }

    #[test]
    fn a_change_is_due_at_once_and_changes_are_combined() {
        let start = Instant::now();
        let mut schedule = synced(start);
        schedule.on_change(start + seconds(5));
        assert_eq!(schedule.next(), Some(start + seconds(5)));
        assert_eq!(schedule.take(start + seconds(5)), Some(Due::Sync));
        schedule.on_report(start + seconds(5), None);
        for _ in 0..3 {
            schedule.on_change(start + seconds(5));
        }
        assert_eq!(schedule.take(start + seconds(5)), None);
        assert_eq!(schedule.take(start + seconds(6)), Some(Due::Sync));
        schedule.on_report(start + seconds(6), None);
        assert_eq!(
            schedule.next(),
            Some(start + seconds(30)),
            "only the periodic reading is left"
        );
    }

    #[test]
    fn a_change_during_a_sync_leads_to_another_one() {
        let start = Instant::now();
        let mut schedule = Schedule::new(INTERVALS);
        schedule.on_synced(start);
        assert!(schedule.take(start).is_some());
        schedule.on_change(start);
        assert_eq!(schedule.next(), None, "a sync is in progress");
        schedule.on_report(start + seconds(3), None);
        assert_eq!(schedule.next(), Some(start + seconds(1)));
    }

    #[test]
    fn the_kernel_is_read_at_intervals_and_on_request() {
        let start = Instant::now();
        let mut schedule = synced(start);
        assert_eq!(schedule.take(start + seconds(30)), Some(Due::Resync));
        schedule.on_report(start + seconds(31), None);
        assert_eq!(schedule.next(), Some(start + seconds(61)));
        schedule.on_kernel_change(start + seconds(40));
        assert_eq!(schedule.take(start + seconds(40)), Some(Due::Resync));
        schedule.on_report(start + seconds(40), None);
        assert_eq!(schedule.next(), Some(start + seconds(70)));
        schedule.set_intervals(Intervals {
            max: Duration::ZERO,
            ..INTERVALS
        });
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_change_does_not_delay_the_periodic_reading() {
        let start = Instant::now();
        let mut schedule = synced(start);
        for second in 1..30 {
            schedule.on_change(start + seconds(second));
            assert_eq!(schedule.take(start + seconds(second)), Some(Due::Sync));
            schedule.on_report(start + seconds(second), None);
        }
        schedule.on_change(start + seconds(30));
        assert_eq!(schedule.take(start + seconds(30)), Some(Due::Resync));
    }

    #[test]
    fn a_retry_is_due_at_its_time() {
        let start = Instant::now();
        let mut schedule = synced(start);
        schedule.on_change(start + seconds(2));
        assert!(schedule.take(start + seconds(2)).is_some());
        schedule.on_report(start + seconds(2), Some(start + seconds(9)));
        assert_eq!(schedule.next(), Some(start + seconds(9)));
        assert_eq!(schedule.take(start + seconds(9)), Some(Due::Sync));
        schedule.on_report(start + seconds(9), None);
        assert_eq!(schedule.next(), Some(start + seconds(30)));
    }

    #[test]
    fn readings_of_the_whole_kernel_can_be_delayed_and_changes_are_not() {
        let start = Instant::now();
        let mut schedule = synced(start);
        schedule.delay_listing(Some(start + seconds(60)));
        assert_eq!(schedule.next(), Some(start + seconds(60)));
        // Another program changed the kernel: that waits. A change of an object does not.
        schedule.on_kernel_change(start + seconds(10));
        assert_eq!(schedule.next(), Some(start + seconds(60)));
        schedule.on_change(start + seconds(20));
        assert_eq!(schedule.take(start + seconds(20)), Some(Due::Sync));
        schedule.delay_listing(Some(start + seconds(60)));
        schedule.on_report(start + seconds(20), Some(start + seconds(40)));
        assert_eq!(schedule.take(start + seconds(40)), Some(Due::Sync), "a retry");
        schedule.on_report(start + seconds(40), None);
        // The request is not lost.
        assert_eq!(schedule.take(start + seconds(59)), None);
        assert_eq!(schedule.take(start + seconds(60)), Some(Due::Resync));
        schedule.delay_listing(None);
        schedule.on_report(start + seconds(60), None);
        assert_eq!(schedule.next(), Some(start + seconds(90)));
        // After an error the kernel is read in any case.
        schedule.delay_listing(Some(start + seconds(1_000)));
        schedule.on_change(start + seconds(70));
        assert_eq!(schedule.take(start + seconds(70)), Some(Due::Sync));
        schedule.on_error(start + seconds(70));
        assert_eq!(schedule.take(start + seconds(71)), Some(Due::Resync));
    }

    const PACE: Pace = Pace {
        burst: 4,
        reserved: 2,
        pause_after: Duration::from_secs(20),
        urgent_pause_after: Duration::from_secs(30),
    };

    /// A schedule with a pace, after its first sync at `start`, which wrote nothing.
    fn paced(start: Instant) -> Schedule {
        let mut schedule = Schedule::new(Intervals {
            max: Duration::ZERO,
            ..INTERVALS
        });
        schedule.set_pace(Some(PACE));
        schedule.on_synced(start);
        assert!(schedule.take(start).is_some());
        schedule.on_report(start, None);
        schedule
    }

    /// A sync that is due now and changes the kernel.
    fn write(schedule: &mut Schedule, now: Instant) {
        assert_eq!(schedule.take(now), Some(Due::Sync));
        schedule.on_written(now);
        schedule.on_report(now, None);
    }

    #[test]
    fn a_few_transactions_follow_each_other_at_once_and_what_must_not_wait_has_more() {
        let start = Instant::now();
        let mut schedule = paced(start);
        for _ in 0..2 {
            schedule.on_change(start);
            write(&mut schedule, start);
        }
        schedule.on_change(start);
        assert_eq!(schedule.next(), Some(start + seconds(1)));
        for _ in 0..2 {
            schedule.on_urgent_change(start);
            write(&mut schedule, start);
        }
        // All are used: urgent ones ten times in each interval, and others once.
        schedule.on_change(start);
        assert_eq!(schedule.next(), Some(start + seconds(1)));
        schedule.on_urgent_change(start);
        let tenth = start + Duration::from_millis(100);
        assert_eq!(schedule.next(), Some(tenth));
        write(&mut schedule, tenth);
        schedule.on_change(tenth);
        assert_eq!(schedule.next(), Some(tenth + seconds(1)));
        write(&mut schedule, tenth + seconds(1));
        // After a rest everything is permitted again, and not more.
        let later = start + seconds(100);
        for _ in 0..4 {
            schedule.on_urgent_change(later);
            write(&mut schedule, later);
        }
        schedule.on_change(later);
        assert_eq!(schedule.next(), Some(later + seconds(1)));
    }

    #[test]
    fn changes_that_do_not_end_are_written_once_in_each_interval() {
        let start = Instant::now();
        let mut schedule = paced(start);
        let mut times = Vec::new();
        let mut now = start;
        while now < start + seconds(15) {
            schedule.on_change(now);
            now = schedule.next().unwrap();
            write(&mut schedule, now);
            times.push(now - start);
        }
        let expected = [0, 0].into_iter().chain(1..=15).map(seconds);
        assert_eq!(times, expected.collect::<Vec<_>>());
        // What must not wait has what is reserved.
        schedule.on_urgent_change(now);
        assert_eq!(schedule.next(), Some(now));
    }

    #[test]
    fn without_a_shortest_interval_nothing_waits() {
        let start = Instant::now();
        let mut schedule = paced(start);
        schedule.set_intervals(Intervals {
            min: Duration::ZERO,
            max: Duration::ZERO,
        });
        schedule.set_listing_time(seconds(3));
        for millisecond in 0..60_000 {
            let now = start + Duration::from_millis(millisecond);
            schedule.on_change(now);
            assert_eq!(schedule.next(), Some(now));
            write(&mut schedule, now);
        }
    }

    #[test]
    fn syncs_that_change_nothing_are_not_counted() {
        let start = Instant::now();
        let mut schedule = paced(start);
        for _ in 0..10 {
            schedule.on_change(start);
            assert_eq!(schedule.take(start), Some(Due::Sync));
            schedule.on_report(start, None);
        }
        schedule.on_change(start);
        assert_eq!(schedule.next(), Some(start));
    }

    /// The times after the start at which changes were written that do not end for a minute.
    fn times_of_endless(is_urgent: impl Fn(Duration) -> bool) -> Vec<Duration> {
        let start = Instant::now();
        let mut schedule = paced(start);
        schedule.set_listing_time(seconds(3));
        let mut times = Vec::new();
        let mut now = start;
        while now < start + seconds(60) {
            schedule.on_change(now);
            if is_urgent(now - start) {
                schedule.on_urgent_change(now);
            }
            if schedule.next().unwrap() <= now {
                write(&mut schedule, now);
                times.push(now - start);
            }
            now += Duration::from_millis(20);
        }
        times
    }

    /// Between which times there was a pause of at least 3 seconds.
    fn pauses(times: &[Duration]) -> Vec<[Duration; 2]> {
        times
            .windows(2)
            .map(|pair| [pair[0], pair[1]])
            .filter(|[from, to]| *to - *from >= seconds(3))
            .collect()
    }

    #[test]
    fn while_changes_do_not_end_there_is_a_pause_in_which_a_listing_ends() {
        let times = times_of_endless(|_| false);
        assert_eq!(
            pauses(&times),
            [[seconds(20), seconds(23)], [seconds(43), seconds(46)]]
        );
        // An isolated change never waits.
        let start = Instant::now();
        let mut schedule = paced(start);
        schedule.set_listing_time(seconds(3));
        for minute in 0..5 {
            let now = start + seconds(60 * minute);
            schedule.on_change(now);
            assert_eq!(schedule.next(), Some(now));
            write(&mut schedule, now);
        }
    }

    #[test]
    fn what_must_not_wait_does_not_wait_for_a_pause() {
        // One in 7 seconds, in each of both pauses.
        let is_urgent = |time: Duration| time.as_millis().is_multiple_of(7_000);
        let times = times_of_endless(is_urgent);
        for second in (0..60).step_by(7) {
            assert!(times.contains(&seconds(second)), "{second}: {times:?}");
        }
    }

    #[test]
    fn a_stream_of_what_must_not_wait_waits_for_a_pause_every_half_minute() {
        let times = times_of_endless(|_| true);
        let pauses = pauses(&times);
        let lengths: Vec<Duration> = pauses.iter().map(|[from, to]| *to - *from).collect();
        assert_eq!(lengths, [seconds(3)], "{pauses:?}");
        assert_eq!(pauses[0][0], seconds(30));
        let spacings = times.windows(2).map(|pair| pair[1] - pair[0]);
        let waited = spacings.filter(|spacing| *spacing > Duration::from_millis(100));
        assert_eq!(
            waited.count(),
            1,
            "apart from the pause each waits a tenth of a second"
        );
    }

    #[test]
    fn errors_are_repeated_with_growing_delays() {
        let start = Instant::now();
        let mut schedule = Schedule::new(INTERVALS);
        schedule.on_synced(start);
        let mut now = start;
        for delay in [1, 2, 4] {
            assert!(schedule.take(now).is_some());
            schedule.on_error(now);
            schedule.on_change(now);
            assert_eq!(
                schedule.next(),
                Some(now + seconds(delay)),
                "a change does not shorten the delay"
            );
            now += seconds(delay);
        }
        assert_eq!(schedule.take(now), Some(Due::Resync));
        schedule.on_report(now, None);
        schedule.on_kernel_change(now);
        assert_eq!(
            schedule.next(),
            Some(now + seconds(1)),
            "success resets the delay"
        );
    }
}
