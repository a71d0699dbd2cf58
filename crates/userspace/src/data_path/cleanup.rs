//! Removes what userspace mode leaves in the kernel.

use std::fmt;

use kernlink_iptables_restore::{ChainName, Error, Iptables, Operation, Restore, Table};
use kernlink_netfilter::{Jump, Owned, plan_removal, write_removal};
use kernlink_services::Family;

use super::chains::PortalChain;

/// What [`cleanup`] removed, or would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanedUp {
    /// The inputs of `iptables-restore`, one for each family and table with something to remove.
    pub restores: Vec<Restore>,
    /// Chains that stay with their rules, because a foreign rule jumps to them.
    pub kept: Vec<(Family, Table, ChainName)>,
}

impl CleanedUp {
    /// The operations, each a command.
    pub(super) fn operations(&self) -> Vec<Operation> {
        self.restores.iter().cloned().map(Operation::Restore).collect()
    }
}

impl fmt::Display for CleanedUp {
    /// The commands, and a line for everything that stays.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: &[Error] = &[];
        write_removal(f, &self.operations(), errors, &self.kept)
    }
}

/// Removes the portal chains of the families and the jumps to them, and nothing else.
///
/// # Errors
/// The first table that could not be read or written.
pub fn cleanup(iptables: &mut dyn Iptables, families: &[Family]) -> Result<CleanedUp, Error> {
    let cleaned = plan_cleanup(iptables, families)?;
    for restore in &cleaned.restores {
        iptables.restore(restore)?;
    }
    Ok(cleaned)
}

/// What [`cleanup`] would remove. Changes nothing.
///
/// # Errors
/// The first table that could not be read.
pub fn plan_cleanup(iptables: &mut dyn Iptables, families: &[Family]) -> Result<CleanedUp, Error> {
    let jumps = PortalChain::ALL.map(|chain| {
        let (from, rule, _) = chain.jump();
        Jump {
            table: chain.table(),
            chain: from,
            rule,
        }
    });
    let mut cleaned = CleanedUp::default();
    for &family in families {
        for table in [Table::Nat, Table::Filter] {
            let is_portal = |name: &ChainName| {
                let mut chains = PortalChain::ALL.into_iter();
                chains.any(|chain| chain.table() == table && chain.name() == *name)
            };
            let owned = Owned {
                is_owned: &is_portal,
                jumps: &jumps,
                rewritten: &[],
            };
            let removal = plan_removal(iptables, family, table, &owned)?;
            let kept = removal.kept.iter();
            cleaned.kept.extend(kept.map(|name| (family, table, *name)));
            cleaned.restores.extend(removal.restore(family, table));
        }
    }
    Ok(cleaned)
}

/// Whether a portal chain of any family has rules: those of a process that runs, or of one that has ended.
///
/// # Errors
/// The first chain that could not be read. A host without the table has no chain.
pub fn has_portals(iptables: &mut dyn Iptables) -> Result<bool, Error> {
    for family in Family::ALL {
        for chain in PortalChain::ALL {
            match iptables.list_chain(family, chain.table(), &chain.name()) {
                Ok(Some(found)) if found.rules().len() > 0 || !found.unreadable.is_empty() => {
                    return Ok(true);
                }
                Ok(_) => {}
                Err(error) if error.is_unsupported() => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(false)
}
