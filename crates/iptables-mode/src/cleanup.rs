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

use kernlink_iptables_restore::{ChainName, Iptables, Table};
pub use kernlink_netfilter::Removal;
use kernlink_netfilter::{Jump, Owned};
use kernlink_services::Family;

use super::chains::{FixedChain, jumps};
use super::observed::is_port_chain;

/// Decides what is removed: all owned chains of both families, and the jumps to them.
#[must_use]
pub fn remaining(rules: &mut dyn Iptables) -> Removal {
    let jumps = owned_jumps();
    let mut removal = Removal::default();
    for family in Family::ALL {
        for table in TABLES {
            let owned = Owned {
                is_owned: &|name: &ChainName| is_owned(table, name),
                jumps: &jumps,
                rewritten: &[],
            };
            removal.add_table(rules, family, table, &owned);
        }
    }
    removal
}

/// The tables with owned chains, in the order of their removal: rules of table `filter` drop packets that are not translated.
pub(super) const TABLES: [Table; 3] = [Table::Filter, Table::Nat, Table::Mangle];

/// The chain that kube-proxy adds to three tables to notice that they were flushed.
const CANARY: &str = "KUBE-PROXY-CANARY";

/// Whether a chain is owned, so that cleanup removes it.
pub(super) fn is_owned(table: Table, name: &ChainName) -> bool {
    let mut fixed = FixedChain::ALL.iter().filter(|chain| is_removed(**chain));
    name.as_str() == CANARY
        || fixed.any(|chain| chain.table() == table && chain.text() == name.as_str())
        || (table == Table::Nat && is_port_chain(name))
}

fn is_removed(chain: FixedChain) -> bool {
    chain != FixedChain::FilterFirewall
}

pub(super) fn owned_jumps() -> Vec<Jump> {
    let firewall = FixedChain::FilterFirewall.name();
    let is_owned = |jump: &Jump| jump.rule.target.as_ref().and_then(|to| to.chain()) != Some(&firewall);
    jumps().iter().filter(|jump| is_owned(jump)).cloned().collect()
}
