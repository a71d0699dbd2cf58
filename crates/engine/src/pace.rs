//! How often a data path may change a kernel in which each change disturbs other programs.

use std::time::{Duration, Instant};

/// The pace of a data path whose every transaction makes the listings of other programs begin again, as those of nf_tables do. Isolated changes, and
/// a few in a row, are made at once; while changes do not end, they are combined into one transaction in each
/// [shortest interval](crate::Intervals::min). If that is 0 there is no pace: every change is made at once, and there are no pauses.
///
/// A change is urgent if an endpoint is removed, or a Service gets its first one or loses its last one. Urgent changes wait for a tenth of the
/// shortest interval at most, and not for a pause, until there was none for [`urgent_pause_after`](Self::urgent_pause_after).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// So many transactions may follow each other at once. One more is permitted after each shortest interval. At least 1.
    pub burst: u32,
    /// So many of them are for urgent changes only.
    pub reserved: u32,
    /// If transactions followed each other for so long, without a pause in which a listing ends, changes that are not urgent wait for one. An
    /// urgent change ends it, and all that waits is made with it.
    pub pause_after: Duration,
    /// If there was no such pause for so long, because urgent changes do not end either, they wait for one too.
    pub urgent_pause_after: Duration,
}

/// The transactions of a data path with a pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pace: Pace,
    /// The number of transactions that were permitted at `since`.
    tokens: u32,
    since: Option<Instant>,
    /// When the last transaction was made.
    last: Option<Instant>,
    /// When the first of those was made between which there was no pause.
    busy_since: Option<Instant>,
    /// The time that a listing takes.
    listing: Duration,
}

/// So many urgent transactions may be made in each shortest interval when the burst is used.
const URGENT_RATE: u32 = 10;

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Bucket {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            tokens: pace.burst.max(1),
            since: None,
            last: None,
            busy_since: None,
            listing: Duration::ZERO,
        }
    }

    pub(crate) fn set_listing_time(&mut self, time: Duration) {
        self.listing = time.min(LONGEST_PAUSE);
    }

    /// The earliest time of the next transaction. `None`: now.
    pub(crate) fn earliest(&self, interval: Duration, is_urgent: bool) -> Option<Instant> {
        if interval.is_zero() {
            return None;
        }
        let (reserved, spacing, pause_after) = if is_urgent {
            (0, interval / URGENT_RATE, self.pace.urgent_pause_after)
        } else {
            let reserved = self.pace.reserved.min(self.pace.burst.saturating_sub(1));
            (reserved, interval, self.pace.pause_after)
        };
        let missing = (reserved + 1).saturating_sub(self.tokens);
        let refilled = self
            .since
            .and_then(|since| since.checked_add(interval.saturating_mul(missing)));
        let spaced = self.last.and_then(|last| last.checked_add(spacing));
        let permitted = [refilled, spaced].into_iter().flatten().min();
        [
            permitted.filter(|_| missing > 0),
            self.end_of_pause(interval, pause_after),
        ]
        .into_iter()
        .flatten()
        .max()
    }

    /// The end of a pause that is due after transactions followed each other for a time.
    fn end_of_pause(&self, interval: Duration, pause_after: Duration) -> Option<Instant> {
        let (busy_since, last) = (self.busy_since?, self.last?);
        let is_due = last.saturating_duration_since(busy_since) >= pause_after;
        // Otherwise there is a long enough pause between any two.
        let is_long = self.listing > interval;
        last.checked_add(self.listing).filter(|_| is_due && is_long)
    }

    /// A transaction is made.
    pub(crate) fn take(&mut self, now: Instant, interval: Duration) {
        let full = self.pace.burst.max(1);
        if let Some(since) = self.since.filter(|_| !interval.is_zero()) {
            let passed = now.saturating_duration_since(since).as_nanos() / interval.as_nanos().max(1);
            let refilled = u32::try_from(passed).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(refilled).min(full);
            let used = interval.saturating_mul(refilled);
            self.since = since.checked_add(used);
        }
        if self.tokens >= full || interval.is_zero() {
            self.tokens = full;
            self.since = Some(now);
        }
        self.tokens = self.tokens.saturating_sub(1);
        let has_paused =
            |last: Instant| now.saturating_duration_since(last) >= self.listing.max(Duration::from_millis(1));
        if self.last.is_none_or(has_paused) {
            self.busy_since = Some(now);
        }
        self.last = Some(now);
    }
}
