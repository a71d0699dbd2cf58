//! iptables mode on a node that it does not serve any more.

use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_engine::retire::{Leftovers, Removed, Retire};
use kernlink_netfilter::removed;

use super::cleanup::remaining;
use super::kernel::Kernel;

/// Finds and removes what iptables mode left: its chains, and the jumps to them.
#[derive(Debug)]
pub struct Retiring(Kernel);

impl Retiring {
    /// Through these kernel APIs.
    #[must_use]
    pub fn new(kernel: Kernel) -> Self {
        Self(kernel)
    }
}

impl Retire for Retiring {
    fn leftovers(&mut self, _now: Instant) -> Leftovers {
        let removal = remaining(&mut self.0);
        let mut left = Leftovers::default();
        left.commands = removal.to_string();
        let errors = removal.errors.iter();
        left.problems
            .extend(errors.map(|error| ErrorChain(error).to_string()));
        left
    }

    fn remove(&mut self, _now: Instant) -> Removed {
        let removal = remaining(&mut self.0);
        let outcomes = removal.execute(&mut self.0);
        removed(
            &removal.errors,
            &removal.operations,
            &outcomes,
            &removal.kept_chains,
        )
    }
}
