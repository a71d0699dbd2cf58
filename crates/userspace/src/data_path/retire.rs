//! Userspace mode on a node that it does not serve any more.
//!
//! Its portals lead to ports at which nothing listens since its process ended. So they serve nothing, and are removed by the first sync of another
//! mode, all together.

use std::fmt;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_engine::retire::{Kept, Retire, Retired, Round};
use kernlink_iptables_restore::{Iptables, Operation};
use kernlink_netfilter::{kept_chain, retired_step};
use kernlink_services::Family;

use super::cleanup::{has_portals, plan_cleanup};

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
    fn mode(&self) -> &'static str {
        "userspace mode"
    }

    fn read(&mut self, _now: Instant, _kept: Kept<'_>) -> Result<bool, String> {
        match plan_cleanup(&mut *self.0, &Family::ALL) {
            Ok(cleanup) => Ok(!cleanup.restores.is_empty()),
            Err(error) => Err(ErrorChain(&error).to_string()),
        }
    }

    fn is_serving(&mut self) -> Result<bool, String> {
        has_portals(&mut *self.0).map_err(|error| ErrorChain(&error).to_string())
    }

    fn retire(&mut self, round: &Round<'_>) -> Retired {
        let mut retired = Retired::default();
        match plan_cleanup(&mut *self.0, &Family::ALL) {
            Ok(cleanup) => {
                retired.kept = cleanup.kept.iter().map(kept_chain).collect();
                let operations = cleanup.restores.into_iter().map(Operation::Restore);
                retired.steps = operations
                    .map(|operation| retired_step(&mut *self.0, round, &operation))
                    .collect();
            }
            Err(error) => retired.problems.push(ErrorChain(&error).to_string()),
        }
        retired.is_gone = retired.steps.is_empty() && retired.problems.is_empty();
        retired
    }
}
