//! The file descriptors that the proxy may use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of file descriptors, taken and returned by any thread. What cannot be taken is refused: the process never runs out of them.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    total: usize,
    taken: AtomicUsize,
}

/// Descriptors that were taken. Dropping it returns them.
#[derive(Debug)]
pub struct Lease {
    budget: Budget,
    count: usize,
}

impl Budget {
    /// A budget of so many descriptors.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self(Arc::new(Counts {
            total,
            taken: AtomicUsize::new(0),
        }))
    }

    /// Takes descriptors. `None` if fewer are left.
    #[must_use]
    pub fn take(&self, count: usize) -> Option<Lease> {
        self.take_unless_below(count, 0)
    }

    /// Takes descriptors if at least `reserve` are left then: for uses that are not necessary.
    #[must_use]
    pub fn take_unless_below(&self, count: usize, reserve: usize) -> Option<Lease> {
        let limit = self.0.total.saturating_sub(reserve);
        let add = |taken: usize| taken.checked_add(count).filter(|sum| *sum <= limit);
        self.0
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        Some(Lease {
            budget: self.clone(),
            count,
        })
    }

    /// The number of descriptors.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.total
    }

    /// The number of descriptors that are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.0.taken.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_and_all_of_it_returns() {
        let budget = Budget::new(5);
        let first = budget.take(2);
        let second = budget.take(2);
        assert!(first.is_some() && second.is_some());
        assert!(budget.take(2).is_none());
        assert!(budget.take(usize::MAX).is_none());
        drop(first);
        assert!(budget.take(3).is_some());
        drop(second);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_is_not_necessary_leaves_a_reserve() {
        let budget = Budget::new(5);
        assert!(budget.take_unless_below(2, 4).is_none());
        let lease = budget.take_unless_below(2, 3);
        assert!(lease.is_some());
        assert!(budget.take_unless_below(1, 9).is_none());
    }
}
