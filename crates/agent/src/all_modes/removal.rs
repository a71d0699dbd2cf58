//! The removal of what another mode left: read from the kernel, printed, executed.

use std::collections::BTreeSet;
use std::fmt;

use kernlink_base::ErrorChain;
use kernlink_proxier::iptables_mode;
use kernlink_services::{Family, FrontendKey};
use kernlink_userspace::data_path::{self as userspace, CleanedUp};

use super::error::Error;
use super::kernel::Kernel;

/// What another mode left and nothing needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Removal {
    /// Portal chains of userspace mode. They lead to ports of a process that has ended, or to those of this one, which are closed after it.
    Portals(Result<CleanedUp, Error>),
    /// Chains that iptables mode has, also with rules of IPVS mode.
    Chains(iptables_mode::cleanup::Removal),
}

impl Removal {
    /// What userspace mode left.
    pub(super) fn of_portals(kernel: &mut Kernel) -> Self {
        let read = kernel.iptables().and_then(|kernel| {
            let cleanup = userspace::plan_cleanup(&mut *kernel.rules, &Family::ALL);
            cleanup.map_err(|error| userspace::Error::from(error).into())
        });
        Removal::Portals(read)
    }

    /// What iptables mode left, except what serves these frontends.
    pub(super) fn of_chains(kernel: &mut Kernel, held: &BTreeSet<FrontendKey>) -> Result<Self, Error> {
        let kernel = kernel.iptables()?;
        Ok(Removal::Chains(iptables_mode::cleanup::remaining_except(
            kernel, held,
        )))
    }

    /// Whether there is nothing to remove.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Removal::Portals(read) => read.as_ref().map_or(true, |cleanup| cleanup.restores.is_empty()),
            Removal::Chains(removal) => removal.operations.is_empty(),
        }
    }

    /// The frontends whose rules stay for now.
    pub(super) fn held(&self) -> BTreeSet<FrontendKey> {
        match self {
            Removal::Portals(_) => BTreeSet::new(),
            Removal::Chains(removal) => removal.held.clone(),
        }
    }

    /// What could not be read.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            Removal::Portals(read) => read.as_ref().err().map(|error| ErrorChain(error).to_string()),
            Removal::Chains(removal) => removal.errors.first().map(|error| ErrorChain(error).to_string()),
        }
    }

    /// Executes everything, also after a failure. Returns the first error.
    pub(super) fn execute(&self, kernel: &mut Kernel) -> Result<(), Error> {
        match self {
            Removal::Portals(read) => {
                let cleanup = read.as_ref().map_err(Error::clone)?;
                let rules = &mut kernel.iptables()?.rules;
                let outcomes: Vec<_> = cleanup
                    .restores
                    .iter()
                    .map(|restore| rules.restore(restore))
                    .collect();
                first_error(
                    outcomes
                        .into_iter()
                        .map(|outcome| outcome.map_err(userspace::Error::from)),
                )?;
                kernel.close_userspace();
                Ok(())
            }
            Removal::Chains(removal) => {
                let outcomes = removal.execute(kernel.iptables()?).into_iter();
                first_error(outcomes)
            }
        }
    }
}

fn first_error<E: Into<Error>>(outcomes: impl Iterator<Item = Result<(), E>>) -> Result<(), Error> {
    let mut errors = outcomes.filter_map(Result::err);
    errors.next().map_or(Ok(()), |error| Err(error.into()))
}

impl fmt::Display for Removal {
    /// The commands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Removal::Portals(Ok(cleanup)) => cleanup.fmt(f),
            Removal::Portals(Err(error)) => writeln!(f, "# {}", ErrorChain(error)),
            Removal::Chains(removal) => removal.fmt(f),
        }
    }
}
