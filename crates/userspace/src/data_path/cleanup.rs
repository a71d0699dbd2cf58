//! Removes what userspace mode leaves in the kernel.

use kernlink_iptables_restore::{Edit, Error, Iptables, Restore, Ruleset, Save, Table, Target};
use kernlink_services::Family;

use super::chains::PortalChain;

/// What [`cleanup`] removed, or would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanedUp {
    /// The inputs of `iptables-restore`, one for each family and table with something to remove.
    pub restores: Vec<Restore>,
    /// Chains that stay, empty, because a foreign rule jumps to them.
    pub kept: Vec<(Family, PortalChain)>,
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
    let mut cleaned = CleanedUp::default();
    for &family in families {
        for table in [Table::Nat, Table::Filter] {
            let found = iptables.save(&Save::table(family, table).lenient())?;
            let restore = removal(&found, family, table, &mut cleaned.kept);
            if !restore.is_empty() {
                cleaned.restores.push(restore);
            }
        }
    }
    Ok(cleaned)
}

fn removal(found: &Ruleset, family: Family, table: Table, kept: &mut Vec<(Family, PortalChain)>) -> Restore {
    let mut restore = Restore::new(family);
    let Some(rules) = found.table(table) else {
        return restore;
    };
    let of_table = || {
        PortalChain::ALL
            .into_iter()
            .filter(|chain| chain.table() == table)
    };
    let present: Vec<PortalChain> = of_table()
        .filter(|chain| rules.chain(&chain.name()).is_some())
        .collect();
    for chain in &present {
        let (from, jump, _) = chain.jump();
        let copies = rules.chain(&from).map_or(0, |from| {
            from.rules()
                .filter(|rule| rule.is_equivalent(&jump, family))
                .count()
        });
        for _ in 0..copies {
            restore.push(table, Edit::delete(from, jump.clone()));
        }
    }
    // A declaration empties a chain.
    for chain in &present {
        restore.push(table, Edit::declare(chain.name()));
    }
    for chain in present {
        let (from, jump, _) = chain.jump();
        let name = chain.name();
        let is_used = rules.chains().any(|(of, content)| {
            let is_portal = of_table().any(|portal| portal.name() == *of);
            let mut rules = content.rules();
            let jumps = rules.any(|rule| {
                rule.target.as_ref().and_then(Target::chain) == Some(&name)
                    && !(*of == from && rule.is_equivalent(&jump, family))
            });
            let unreadable = content.unreadable.values();
            let may_jump = unreadable
                .into_iter()
                .any(|line| line.to_string().contains(name.as_str()));
            !is_portal && (jumps || may_jump)
        });
        if is_used {
            kept.push((family, chain));
        } else {
            restore.push(table, Edit::delete_chain(name));
        }
    }
    // What is left of an earlier cleanup needs no input.
    let is_nothing = restore.tables().all(|(_, edits)| {
        edits.iter().all(|edit| {
            let content = rules.chain(edit.chain());
            matches!(edit, Edit::Declare { .. })
                && content.is_some_and(|content| content.rules().len() == 0 && content.unreadable.is_empty())
        })
    });
    if is_nothing { Restore::new(family) } else { restore }
}
