//! How often a data path may change a kernel in which each change disturbs other programs.

use std::time::{Duration, Instant};

/// The pace of a data path whose every transaction makes the listings of other programs begin again, as those of nf_tables do. Isolated changes, and
/// a few in a row, are made at once; while changes do not end, they are combined into one transaction in each
/// [shortest interval](crate::Intervals::min).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// So many transactions may follow each other at once. One more is permitted after each shortest interval. At least 1.
    pub burst: u32,
    /// So many of them are for changes that must not wait only: an endpoint is removed, or a Service gets its first one or loses its last one.
    pub reserved: u32,
    /// If transactions followed each other for so long, without a pause in which a listing ends, there is one.
    pub pause_after: Duration,
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
        let reserved = if is_urgent {
            0
        } else {
            self.pace.reserved.min(self.pace.burst.saturating_sub(1))
        };
        let missing = (reserved + 1).saturating_sub(self.tokens);
        let refilled = match missing {
            0 => None,
            missing => self
                .since
                .and_then(|since| since.checked_add(interval.saturating_mul(missing))),
        };
        [refilled, self.end_of_pause(interval)]
            .into_iter()
            .flatten()
            .max()
    }

    /// The end of a pause that is due.
    fn end_of_pause(&self, interval: Duration) -> Option<Instant> {
        let (busy_since, last) = (self.busy_since?, self.last?);
        let is_due = last.saturating_duration_since(busy_since) >= self.pace.pause_after;
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
