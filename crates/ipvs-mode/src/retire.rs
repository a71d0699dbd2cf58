//! IPVS mode on a node that it does not serve any more.

use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::retire::{Leftovers, Removed, Retire};
use kernlink_engine::unreadable::is_unreadable;
use kernlink_netfilter::removed;

use super::Proxier;
use super::cleanup::{cleanup, plan_cleanup, without_services};
use super::config::Config;
use super::kernel::Kernel;

/// Finds and removes what IPVS mode left: virtual servers, addresses and set entries, then jumps, chains, sets and the dummy link.
#[derive(Debug)]
pub struct Retiring(Proxier);

impl Retiring {
    /// The configuration decides what is owned.
    ///
    /// # Errors
    /// Everything that is invalid in the configuration.
    pub fn new(config: Config, kernel: Kernel) -> Result<Self, InvalidConfig> {
        without_services(config, kernel).map(Self)
    }
}

impl Retire for Retiring {
    fn leftovers(&mut self, now: Instant) -> Leftovers {
        let mut left = Leftovers::default();
        match plan_cleanup(&mut self.0, now) {
            Ok((plan, removal)) => {
                left.commands.extend(plan.map(|plan| plan.to_string()));
                left.commands += &removal.to_string();
                let events = self.0.pending_events().filter(|event| is_unreadable(event));
                left.problems.extend(events.map(|event| event.reason.to_string()));
                let errors = removal.errors.iter();
                left.problems
                    .extend(errors.map(|error| ErrorChain(error).to_string()));
            }
            Err(error) => left.problems.push(ErrorChain(&error).to_string()),
        }
        left
    }

    fn remove(&mut self, now: Instant) -> Removed {
        match cleanup(&mut self.0, now) {
            Ok((synced, removal, outcomes)) => {
                let mut all = removed(
                    &removal.errors,
                    &removal.operations,
                    &outcomes,
                    &removal.kept_chains,
                );
                if let Some(synced) = synced {
                    all.done += synced.counts().done;
                    let is_success = synced.is_success();
                    all.failures.extend((!is_success).then(|| synced.to_string()));
                }
                all
            }
            Err(error) => {
                let mut none = Removed::default();
                none.failures.push(ErrorChain(&error).to_string());
                none
            }
        }
    }
}
