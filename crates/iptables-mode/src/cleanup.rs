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

use std::collections::BTreeSet;
use std::fmt;

use kernlink_iptables_restore::{ChainName, Edit, Operation, Restore, Rule, Save, Table};
use kernlink_netfilter::{Jump, Owned, frontend_of_rule, node_port_of_rule, plan_removal, write_removal};
use kernlink_services::{Family, FrontendKey, Protocol};

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
    /// Frontends whose rules stay, and with them the chains of their family: those of [`remaining_except`] that have rules.
    pub held: BTreeSet<FrontendKey>,
}

impl Removal {
    /// Adds all owned chains of a family, and the jumps to them.
    fn add_family(&mut self, kernel: &mut Kernel, family: Family) {
        let jumps = owned_jumps();
        for table in [Table::Filter, Table::Nat, Table::Mangle] {
            let owned = Owned {
                is_owned: &|name: &ChainName| is_owned(table, name),
                jumps: &jumps,
                rewritten: &[],
            };
            match plan_removal(&mut *kernel.rules, family, table, &owned) {
                Ok(of_table) => {
                    let kept = of_table.kept.iter().map(|chain| (family, table, *chain));
                    self.kept_chains.extend(kept);
                    let restore = of_table.restore(family, table);
                    self.operations.extend(restore.map(Operation::Restore));
                }
                Err(error) => self.errors.push(error.into()),
            }
        }
    }

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
    for family in Family::ALL {
        removal.add_family(kernel, family);
    }
    removal
}

/// Decides what is removed while another mode serves the node, except these frontends: their rules in `KUBE-SERVICES` and `KUBE-NODEPORTS` of
/// table `nat` stay, and with them the chains of their family. Without rules of such frontends a family has the removal of [`remaining`].
#[must_use]
pub fn remaining_except(kernel: &mut Kernel, held: &BTreeSet<FrontendKey>) -> Removal {
    let mut removal = Removal::default();
    for family in Family::ALL {
        let of_family = held.iter().filter(|frontend| frontend.family() == family);
        let of_family: BTreeSet<FrontendKey> = of_family.copied().collect();
        let released = if of_family.is_empty() {
            Ok(None)
        } else {
            released(kernel, family, &of_family)
        };
        match released {
            Ok(None) => removal.add_family(kernel, family),
            Ok(Some((edits, held))) => {
                removal.held.extend(held);
                let mut restore = Restore::new(family);
                *restore.table_mut(Table::Nat) = edits;
                let is_needed = !restore.is_empty();
                removal
                    .operations
                    .extend(is_needed.then_some(Operation::Restore(restore)));
            }
            Err(error) => removal.errors.push(error),
        }
    }
    removal
}

/// Edits that delete the rules of frontends, and the frontends whose rules stay.
type Released = (Vec<Edit>, BTreeSet<FrontendKey>);

/// The edits that delete the rules of other frontends, and those of these frontends that have rules. `None` if none has.
fn released(
    kernel: &mut Kernel,
    family: Family,
    held: &BTreeSet<FrontendKey>,
) -> Result<Option<Released>, Error> {
    let ruleset = match kernel.rules.save(&Save::table(family, Table::Nat).lenient()) {
        Ok(ruleset) => ruleset,
        Err(error) if error.is_unsupported() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let rules = |chain: FixedChain| {
        let chain = ruleset.chain(Table::Nat, &chain.name()).into_iter();
        chain.flat_map(|chain| chain.rules())
    };
    let frontends: BTreeSet<FrontendKey> = rules(FixedChain::NatServices)
        .filter_map(frontend_of_rule)
        .collect();
    let ports: BTreeSet<(Protocol, u16)> = rules(FixedChain::NatNodePorts)
        .filter_map(node_port_of_rule)
        .collect();
    // A frontend with a rule of its own is no node port.
    let is_port =
        |held: &&FrontendKey| !frontends.contains(held) && ports.contains(&(held.protocol, held.port));
    let held_ports: BTreeSet<FrontendKey> = held.iter().filter(is_port).copied().collect();
    let mut found: BTreeSet<FrontendKey> = held.intersection(&frontends).copied().collect();
    let kept_ports: BTreeSet<(Protocol, u16)> =
        held_ports.iter().map(|key| (key.protocol, key.port)).collect();
    found.extend(held_ports);
    if found.is_empty() {
        return Ok(None);
    }
    let to_node_ports = FixedChain::NatNodePorts.name();
    let is_kept = |rule: &&Rule| match frontend_of_rule(rule) {
        Some(frontend) => found.contains(&frontend),
        None => {
            !kept_ports.is_empty() && rule.target.as_ref().and_then(|to| to.chain()) == Some(&to_node_ports)
        }
    };
    let is_kept_port = |rule: &&Rule| node_port_of_rule(rule).is_some_and(|port| kept_ports.contains(&port));
    let delete = |chain: FixedChain| move |rule: &Rule| Edit::delete(chain.name(), rule.clone());
    let of_services = rules(FixedChain::NatServices).filter(|rule| !is_kept(rule));
    let of_node_ports = rules(FixedChain::NatNodePorts).filter(|rule| !is_kept_port(rule));
    let edits = of_services.map(delete(FixedChain::NatServices));
    let edits = edits.chain(of_node_ports.map(delete(FixedChain::NatNodePorts)));
    Ok(Some((edits.collect(), found)))
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
