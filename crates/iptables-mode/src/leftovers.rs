//! What IPVS mode left on a node that iptables mode serves now, as far as it concerns chains that both modes have.
//!
//! | what | when it is removed |
//! | --- | --- |
//! | rules in `KUBE-SERVICES` (table `nat`) and `KUBE-PROXY-FIREWALL` | after all Services are written, with the rules of withdrawn Services; new rules are inserted above them |
//! | `KUBE-POSTROUTING`, `KUBE-FORWARD`, `KUBE-MARK-MASQ` | they are written with the other fixed chains |
//! | the rule of `KUBE-POSTROUTING` that masquerades connections of a pod to itself | when virtual servers and virtual IPs are gone |
//! | jumps to `KUBE-PROXY-FIREWALL` without a condition | with the fixed chains: they lead packets of established connections of IPVS to rules that are for new ones |
//!
//! The first rules of a Service are written to table `nat` before `filter`: see `order.rs`.
//!
//! As long as virtual IPs are addresses of this node, the kernel selects them as the source of connections that processes of the node open to
//! them. So `KUBE-POSTROUTING` masquerades connections with such a source.

use kernlink_iptables_restore::{Rule, Ruleset, Table};
use kernlink_netfilter::{chain_name, comment_match};
use kernlink_services::Family;

use super::chains::{FixedChain, Jump};

/// The jumps of IPVS mode to a chain that both modes have and that differ from those of iptables mode, as often as each exists.
pub(super) fn jumps(ruleset: &Ruleset, family: Family) -> Vec<Jump> {
    let jump = |chain: &str| Jump {
        table: Table::Filter,
        chain: chain_name(chain),
        rule: Rule::new()
            .with(comment_match("kube-proxy firewall rules"))
            .jump(FixedChain::FilterProxyFirewall.name()),
    };
    let mut found = Vec::new();
    for jump in ["INPUT", "FORWARD"].map(jump) {
        let chain = ruleset.chain(jump.table, &jump.chain).into_iter();
        let copies = chain.flat_map(|chain| chain.rules());
        let copies = copies.filter(|rule| rule.is_equivalent(&jump.rule, family));
        found.extend(copies.map(|_| jump.clone()));
    }
    found
}
