//! Userspace mode on a node that it does not serve any more.

use std::fmt;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_engine::retire::{Leftovers, Removed, Retire};
use kernlink_iptables_restore::{Error, Iptables};
use kernlink_netfilter::removed;
use kernlink_services::Family;

use super::cleanup::plan_cleanup;

/// Finds and removes what userspace mode left: the portal chains, and the jumps to them. Its listening ports end with its process.
pub struct Retiring(Box<dyn Iptables>);

impl Retiring {
    /// Through these tables.
    #[must_use]
    pub fn new(rules: Box<dyn Iptables>) -> Self {
        Self(rules)
    }
}

impl fmt::Debug for Retiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retiring").finish_non_exhaustive()
    }
}

impl Retire for Retiring {
    fn leftovers(&mut self, _now: Instant) -> Leftovers {
        let mut left = Leftovers::default();
        match plan_cleanup(&mut *self.0, &Family::ALL) {
            Ok(cleanup) => left.commands = cleanup.to_string(),
            Err(error) => left.problems.push(ErrorChain(&error).to_string()),
        }
        left
    }

    fn remove(&mut self, _now: Instant) -> Removed {
        let cleanup = match plan_cleanup(&mut *self.0, &Family::ALL) {
            Ok(cleanup) => cleanup,
            Err(error) => return removed::<Error>(&[error], &[""; 0], &[], &[]),
        };
        let restores = cleanup.restores.iter();
        let outcomes: Vec<Result<(), Error>> = restores.map(|restore| self.0.restore(restore)).collect();
        let operations = cleanup.operations();
        removed(&[], &operations, &outcomes, &cleanup.kept)
    }
}
