//! When tables that could not be read are read again, for any data path that reads them by family.

use std::collections::BTreeSet;
use std::time::Instant;

use kernlink_base::Backoff;
use kernlink_services::Family;

use crate::class::Class;

/// The readings that failed. What is recorded of the tables stays in use: after an operation with an unknown outcome, an object may be written
/// a second time, which only a later listing finds.
#[derive(Clone, Debug)]
pub struct Readings {
    kind: &'static str,
    is_shared: bool,
    /// The families whose tables could not be read since the last listing that read them.
    failed: BTreeSet<Family>,
    /// Failed readings in a row.
    failures: u32,
    /// When the whole kernel is read again.
    retry_at: Option<Instant>,
}

impl Readings {
    /// No reading failed. `kind` and `is_shared` are those of [`unread`](Self::unread).
    #[must_use]
    pub fn new(kind: &'static str, is_shared: bool) -> Self {
        Self {
            kind,
            is_shared,
            failed: BTreeSet::new(),
            failures: 0,
            retry_at: None,
        }
    }

    /// Records that the tables of a family could not be read. The whole kernel is read after a delay.
    pub fn fail(&mut self, family: Family, now: Option<Instant>) {
        self.failed.insert(family);
        self.failures = self.failures.saturating_add(1);
        let delay = Backoff::default().delay(self.failures, u64::MAX);
        self.retry_at = now.and_then(|now| now.checked_add(delay));
    }

    /// Records that a listing read the tables of a family.
    pub fn succeed(&mut self, family: Family) {
        self.failed.remove(&family);
        if self.failed.is_empty() {
            *self = Self::new(self.kind, self.is_shared);
        }
    }

    /// When the whole kernel is read again, for [`DataPath::needs_listing`](crate::DataPath::needs_listing) and
    /// [`DataPath::next`](crate::DataPath::next); `None`: no reading failed.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// What could not be read, for [`DataPath::unread`](crate::DataPath::unread).
    #[must_use]
    pub fn unread(&self) -> Vec<Class> {
        let class = |family: &Family| Class {
            kind: self.kind,
            family: Some(*family),
            is_shared: self.is_shared,
        };
        self.failed.iter().map(class).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_reading_is_repeated_until_the_tables_of_all_families_were_read() {
        let now = Instant::now();
        let mut readings = Readings::new("tables", true);
        assert_eq!((readings.retry_at(), readings.unread()), (None, vec![]));
        for family in Family::ALL {
            readings.fail(family, Some(now));
        }
        readings.succeed(Family::Ipv4);
        assert!(readings.retry_at().is_some_and(|at| at > now));
        let unread = Class {
            kind: "tables",
            family: Some(Family::Ipv6),
            is_shared: true,
        };
        assert_eq!(readings.unread(), [unread]);
        readings.succeed(Family::Ipv6);
        assert_eq!((readings.retry_at(), readings.unread()), (None, vec![]));
    }
}
