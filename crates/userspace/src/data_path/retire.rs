//! Userspace mode on a node that it does not serve any more.
//!
//! Its portals lead to ports at which nothing listens since its process ended. So they serve nothing, and are removed by the first sync of another
//! mode, all together.

use std::fmt;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_engine::retire::{Kept, Retire, Retired, Round};
use kernlink_iptables_restore::Iptables;
use kernlink_services::Family;

use super::cleanup::{has_portals, remaining};

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
        let removal = remaining(&mut *self.0, &Family::ALL);
        match removal.errors.first() {
            Some(error) => Err(ErrorChain(error).to_string()),
            None => Ok(!removal.operations.is_empty()),
        }
    }

    fn is_serving(&mut self) -> Result<bool, String> {
        has_portals(&mut *self.0).map_err(|error| ErrorChain(&error).to_string())
    }

    fn retire(&mut self, round: &Round<'_>) -> Retired {
        remaining(&mut *self.0, &Family::ALL).retire(&mut *self.0, round)
    }
}
