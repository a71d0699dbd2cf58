//! What the proxy may use of something that is scarce: file descriptors, and local ports of UDP flows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of units, taken and returned by any thread. What cannot be taken is refused: the process never runs out of them.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    total: usize,
    taken: AtomicUsize,
    /// The budget of which this one is a share, and the factor of [`Budget::share`].
    whole: Option<(Budget, usize)>,
}

/// Units that were taken. Dropping it returns them.
#[derive(Debug)]
pub struct Lease {
    budget: Budget,
    count: usize,
}

impl Budget {
    /// A budget of so many units.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self(Arc::new(Counts {
            total,
            taken: AtomicUsize::new(0),
            whole: None,
        }))
    }

    /// The share of one of several users of this budget: it may take up to `factor` times what is left for all others then. With factor 7, one
    /// user has at most 7/8 of the budget, and two have at most 7/15 each. 0: a user may take all.
    #[must_use]
    pub fn share(&self, factor: usize) -> Self {
        Self(Arc::new(Counts {
            total: self.0.total,
            taken: AtomicUsize::new(0),
            whole: Some((self.clone(), factor)),
        }))
    }

    /// Takes units. `None` if fewer are left.
    #[must_use]
    pub fn take(&self, count: usize) -> Option<Lease> {
        self.take_unless_below(count, 0)
    }

    /// Takes units if at least `reserve` are left then: for uses that are not necessary.
    #[must_use]
    pub fn take_unless_below(&self, count: usize, reserve: usize) -> Option<Lease> {
        self.add(count, reserve).then(|| Lease {
            budget: self.clone(),
            count,
        })
    }

    fn add(&self, count: usize, reserve: usize) -> bool {
        let limit = match &self.0.whole {
            None => self.0.total.saturating_sub(reserve),
            Some((whole, factor)) => {
                if !whole.add(count, reserve) {
                    return false;
                }
                match factor {
                    0 => usize::MAX,
                    factor => whole
                        .total()
                        .saturating_sub(whole.taken())
                        .saturating_mul(*factor),
                }
            }
        };
        let sum = |taken: usize| taken.checked_add(count).filter(|sum| *sum <= limit);
        let is_added = self
            .0
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        if is_added.is_err()
            && let Some((whole, _)) = &self.0.whole
        {
            whole.subtract(count);
        }
        is_added.is_ok()
    }

    fn subtract(&self, count: usize) {
        self.0.taken.fetch_sub(count, Ordering::Relaxed);
        if let Some((whole, _)) = &self.0.whole {
            whole.subtract(count);
        }
    }

    /// The number of units. For a share: those of the whole budget.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.total
    }

    /// The number of units that are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.subtract(self.count);
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
    fn one_user_leaves_something_for_each_other_one() {
        let budget = Budget::new(16);
        let [busy, other] = [budget.share(7), budget.share(7)];
        let mut leases = Vec::new();
        while let Some(lease) = busy.take(2) {
            leases.push(lease);
        }
        assert_eq!((busy.taken(), budget.taken()), (14, 14));
        leases.extend(other.take(1));
        assert_eq!((other.taken(), budget.taken()), (1, 15));
        assert!(other.take(1).is_none(), "nothing would be left");
        assert!(busy.take(1).is_none());
        drop(leases);
        assert_eq!((busy.taken(), other.taken(), budget.taken()), (0, 0, 0));
        let lease = budget.share(0).take(16);
        assert!(lease.is_some(), "without a bound, one takes all");
        assert!(budget.share(0).take(1).is_none());
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
