//! Removing what iptables mode wrote.
//!
//! It begins with what the kernel holds, so a process that has just started can do it, without sources. To hand the node back to kube-proxy
//! nothing is removed: the chains are those that kube-proxy would have written, and there are no others.
//!
//! What stays:
//!
//! | object | why |
//! | --- | --- |
//! | `KUBE-FIREWALL` with its rules and jumps | the kubelet has the same chain, and its rule protects loopback addresses as long as `route_localnet` is 1 |
//! | other chains of the kubelet: `KUBE-KUBELET-CANARY`, `KUBE-IPTABLES-HINT`, `KUBE-MARK-DROP` | foreign |
//! | a chain that a foreign rule jumps to, and what this chain uses | [`Removal::kept_chains`] |
//! | sysctls, flows in connection tracking | other programs may need them |

use std::fmt;

use kernlink_iptables_restore::{ChainName, Operation, Table};
use kernlink_netfilter::{Jump, Owned, plan_removal, write_removal};
use kernlink_services::Family;

use super::chains::{FixedChain, jumps};
use super::error::Error;
use super::kernel::Kernel;
use super::observed::is_port_chain;

/// Operations that remove the owned chains and jumps, and what prevents others.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Removal {
    /// The operations, one for each table. They do not depend on each other.
    pub operations: Vec<Operation>,
    /// What could not be read; its objects stay.
    pub errors: Vec<Error>,
    /// Owned chains that stay because a foreign rule jumps to them, or because such a chain does.
    pub kept_chains: Vec<(Family, Table, ChainName)>,
}

impl Removal {
    /// Executes the operations. Returns one outcome for each, in order; one that fails does not stop those after it.
    pub fn execute(&self, kernel: &mut Kernel) -> Vec<Result<(), Error>> {
        let outcomes = self.operations.iter().map(|operation| {
            let outcome = kernel.rules.execute(std::slice::from_ref(operation)).pop();
            outcome.map_or(Err(Error::OutcomeMissing), |done| done.map_err(Into::into))
        });
        outcomes.collect()
    }
}

impl fmt::Display for Removal {
    /// The commands, and a line for everything that stays.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_removal(f, &self.operations, &self.errors, &self.kept_chains)
    }
}

/// Decides what is removed: all owned chains of both families, and the jumps to them.
#[must_use]
pub fn remaining(kernel: &mut Kernel) -> Removal {
    let mut removal = Removal::default();
    let jumps = owned_jumps();
    for family in Family::ALL {
        for table in [Table::Filter, Table::Nat, Table::Mangle] {
            let owned = Owned {
                is_owned: &|name: &ChainName| is_owned(table, name),
                jumps: &jumps,
                rewritten: &[],
            };
            match plan_removal(&mut *kernel.rules, family, table, &owned) {
                Ok(of_table) => {
                    let kept = of_table.kept.iter().map(|chain| (family, table, *chain));
                    removal.kept_chains.extend(kept);
                    let restore = of_table.restore(family, table);
                    removal.operations.extend(restore.map(Operation::Restore));
                }
                Err(error) => removal.errors.push(error.into()),
            }
        }
    }
    removal
}

/// The chain that kube-proxy adds to three tables to notice that they were flushed.
const CANARY: &str = "KUBE-PROXY-CANARY";

/// Whether a chain is owned, so that cleanup removes it.
fn is_owned(table: Table, name: &ChainName) -> bool {
    let mut fixed = FixedChain::ALL.iter().filter(|chain| is_removed(**chain));
    name.as_str() == CANARY
        || fixed.any(|chain| chain.table() == table && chain.text() == name.as_str())
        || (table == Table::Nat && is_port_chain(name))
}

fn is_removed(chain: FixedChain) -> bool {
    chain != FixedChain::FilterFirewall
}

fn owned_jumps() -> Vec<Jump> {
    let firewall = FixedChain::FilterFirewall.name();
    let is_owned = |jump: &Jump| jump.rule.target.as_ref().and_then(|to| to.chain()) != Some(&firewall);
    jumps().iter().filter(|jump| is_owned(jump)).cloned().collect()
}
