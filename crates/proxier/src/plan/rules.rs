//! The restore input that makes our chains and jumps what they should be, and touches no other.

use kernlink_iptables_restore::{Error, Jump, Owned, Place, Restore, Ruleset, Wanted, diff};

use crate::desired::DesiredState;
use crate::desired::rules::jumps;
use crate::family::Family;

/// The smallest input for one family, `None` if everything is as it should be: the chains of ours that mean something else or
/// are missing, whole, and the jumps that are missing.
///
/// Others jump to our chains too (a container runtime's host ports to `KUBE-MARK-MASQ`, say); their rules stay.
#[expect(clippy::expect_used, reason = "constants that every test of a plan checks")]
pub(super) fn restore(desired: &DesiredState, family: Family, saved: &Ruleset) -> Option<Restore> {
    // Refused would be a built-in chain among ours, or a jump that leads nowhere; names and jumps are constants.
    let wanted = wanted(desired, family).expect("chains of ours, and jumps to them");
    let restore = diff(saved, &wanted, &Owned::new().with_shared_chains());
    (!restore.is_empty()).then_some(restore)
}

fn wanted(desired: &DesiredState, family: Family) -> Result<Wanted, Error> {
    let mut wanted = Wanted::new(family.tables());
    for (table, rules) in desired.rules(family).tables() {
        for (name, chain) in rules.chains() {
            wanted.set_chain(table, *name, chain.rules().cloned())?;
        }
    }
    // kube-proxy puts one after the other at the top of its chain, so the last one listed comes first.
    for jump in jumps().into_iter().rev() {
        let place = Place::First;
        wanted.add_jump(
            jump.table,
            Jump {
                from: jump.chain,
                rule: jump.rule,
                place,
            },
        )?;
    }
    Ok(wanted)
}
