//! The restore input that makes our chains and jumps what they should be, and touches no other.

use kernlink_iptables_restore::{Edit, Restore, Ruleset, TableRules};

use crate::desired::DesiredState;
use crate::desired::rules::jumps;
use crate::family::Family;

/// The smallest input for one family, `None` if everything is as it should be: the chains of ours that mean something else or
/// are missing, whole, then the jumps that are missing.
pub(super) fn restore(desired: &DesiredState, family: Family, saved: &Ruleset) -> Option<Restore> {
    let tables = family.tables();
    let mut restore = Restore::new(tables);
    let nothing = TableRules::new();
    for (table, wanted) in desired.rules(family).tables() {
        let saved = saved.table(table).unwrap_or(&nothing);
        let changed = wanted.chains().filter(|(name, chain)| {
            !saved.chain(name).is_some_and(|is| {
                is.rules.len() == chain.rules.len()
                    && is
                        .rules()
                        .zip(chain.rules())
                        .all(|(is, wanted)| is.means_the_same(wanted, tables))
            })
        });
        let changed: Vec<_> = changed.collect();
        for (name, _) in &changed {
            restore.push(table, Edit::declare(**name));
        }
        for (name, chain) in &changed {
            for rule in chain.rules() {
                restore.push(table, Edit::append(**name, rule.clone()));
            }
        }
        for jump in jumps().into_iter().filter(|jump| jump.table == table) {
            let is_there = saved
                .chain(&jump.chain)
                .is_some_and(|chain| chain.holds(&jump.rule, tables));
            if !is_there {
                restore.push(table, Edit::insert(jump.chain, jump.rule));
            }
        }
    }
    (!restore.is_empty()).then_some(restore)
}
