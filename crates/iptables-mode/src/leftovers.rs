//! Jumps to the fixed chains that this mode does not have: those of a mode or of a version that evaluated a chain for other packets.
//!
//! | what another mode left | when it is removed |
//! | --- | --- |
//! | rules of Services in fixed chains | after all Services are written, with the rules of withdrawn Services; new rules are inserted above them |
//! | other rules in fixed chains | they are written with the fixed chains; [interim rules](kernlink_engine::retire::Interim) stay on top as long as the retiring mode needs them |
//! | jumps without a condition | with the fixed chains: they lead packets of established connections to rules that are for new ones |
//!
//! The first rules of a Service are written to table `nat` before `filter`: see `order.rs`.

use kernlink_iptables_restore::{Chain, Match, Rule};

use super::chains::Jump;

/// The jumps from a built-in chain without a condition, where the own jump to the same chain has one, as often as each exists.
pub(super) fn unconditional_jumps(own: &Jump, chain: &Chain) -> Vec<Jump> {
    if is_unconditional(&own.rule) {
        return Vec::new();
    }
    let rules = chain.rules().filter(|rule| rule.target == own.rule.target);
    let leftovers = rules.filter(|rule| is_unconditional(rule) && is_of_kube_proxy(rule));
    let leftovers = leftovers.map(|rule| Jump {
        table: own.table,
        chain: own.chain,
        rule: rule.clone(),
    });
    leftovers.collect()
}

fn is_unconditional(rule: &Rule) -> bool {
    rule.matches.iter().all(|test| matches!(test, Match::Comment(_)))
}

/// Whether a rule has a comment as kube-proxy writes it: a jump without one is foreign.
fn is_of_kube_proxy(rule: &Rule) -> bool {
    let is_it = |test: &Match| matches!(test, Match::Comment(text) if text.as_str().starts_with("kube"));
    rule.matches.iter().any(is_it)
}
