//! When tables that could not be read are read again.

use std::collections::BTreeSet;
use std::time::Instant;

use kernlink_base::Backoff;
use kernlink_engine::data_path::Class;
use kernlink_services::Family;

/// The readings that failed. What is recorded of the tables stays in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readings {
    /// The families whose tables could not be read since the last listing that read them.
    failed: BTreeSet<Family>,
    /// Failed readings in a row.
    failures: u32,
    /// When the whole kernel is read again.
    retry_at: Option<Instant>,
}

impl Readings {
    /// Records that the table of a family could not be read. The whole kernel is read after a delay.
    pub(crate) fn fail(&mut self, family: Family, now: Option<Instant>) {
        self.failed.insert(family);
        self.failures = self.failures.saturating_add(1);
        let delay = Backoff::default().delay(self.failures, u64::MAX);
        self.retry_at = now.and_then(|now| now.checked_add(delay));
    }

    /// Records that a listing read the table of a family.
    pub(crate) fn succeed(&mut self, family: Family) {
        self.failed.remove(&family);
        if self.failed.is_empty() {
            *self = Self::default();
        }
    }

    /// When the whole kernel is read again; `None`: no reading failed.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// What could not be read.
    pub(crate) fn unread(&self) -> Vec<Class> {
        let class = |family: &Family| Class {
            kind: "table",
            family: Some(*family),
            is_shared: true,
        };
        self.failed.iter().map(class).collect()
    }
}
