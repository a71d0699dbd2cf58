//! What userspace mode leaves in the kernel.

use kernlink_iptables_restore::{ChainName, Error, Iptables, Table};
use kernlink_netfilter::{Jump, Owned, Removal};
use kernlink_services::Family;

use super::chains::PortalChain;

/// Decides what is removed: the portal chains of these families and the jumps to them, and nothing else. Tables that cannot be read are in
/// [`Removal::errors`].
#[must_use]
pub fn remaining(iptables: &mut dyn Iptables, families: &[Family]) -> Removal {
    let of_chain = |chain: &PortalChain| {
        let (from, rule, _) = chain.jump();
        Jump {
            table: chain.table(),
            chain: from,
            rule,
        }
    };
    let jumps: Vec<_> = PortalChain::ALL.iter().map(of_chain).collect();
    let mut removal = Removal::default();
    for &family in families {
        for table in [Table::Nat, Table::Filter] {
            let is_portal = |name: &ChainName| {
                let mut chains = PortalChain::ALL.iter().copied();
                chains.any(|chain| chain.table() == table && chain.name() == *name)
            };
            let owned = Owned {
                is_owned: &is_portal,
                jumps: &jumps,
                rewritten: &[],
            };
            removal.add_table(iptables, family, table, &owned);
        }
    }
    removal
}

/// Whether a portal chain of any family has rules: those of a process that runs, or of one that has ended.
///
/// # Errors
/// The first chain that could not be read. A host without the table has no chain.
pub fn has_portals(iptables: &mut dyn Iptables) -> Result<bool, Error> {
    for family in Family::ALL {
        for &chain in PortalChain::ALL {
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
