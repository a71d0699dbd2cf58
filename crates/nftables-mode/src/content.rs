//! The chains, rules and sets of a table, as they were read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kernlink_nftables::{Chain, Expression, Policy, Rule, Set, SetFlags, TableKey};

use crate::layout::SetName;
use crate::rules::{Parameters, RENEWAL, Skeleton, renewal, timeout_of};

/// The chains, rules and sets of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) sets: Vec<Set>,
    /// Whether it has elements that this crate never adds, or more than are read.
    pub(crate) is_replaced: bool,
}

/// The rules of a table for session affinity.
#[derive(Clone, Debug, Default)]
pub(crate) struct Affinities {
    /// Whether it has the rules that all timeouts have in common.
    pub(crate) has_rules: bool,
    pub(crate) timeouts: BTreeSet<u32>,
}

impl Content {
    /// The rules for session affinity, if everything else is as it should be.
    pub(crate) fn compare(&self, table: &TableKey, parameters: &Parameters) -> Option<Affinities> {
        if self.is_replaced {
            return None;
        }
        let skeleton = Skeleton::new(table, parameters);
        let mut rules = by_chain(&self.rules);
        let timeouts = self.timeouts(&rules, table, parameters)?;
        rules.remove(RENEWAL);
        let has_rules = self.chains.iter().any(|chain| *chain.key.name == *RENEWAL);
        if !timeouts.is_empty() && !has_rules {
            return None;
        }
        let parts = [&skeleton.inner, &skeleton.base, &skeleton.affinity];
        let parts = parts.into_iter().take(if has_rules { 3 } else { 2 });
        let mut chains: BTreeMap<&str, &Chain> = BTreeMap::new();
        let mut expected: Vec<Rule> = Vec::new();
        for part in parts {
            chains.extend(part.chains.iter().map(|chain| (&*chain.key.name, chain)));
            expected.extend(part.rules.iter().cloned());
        }
        let are_chains_equal = self.chains.len() == chains.len()
            && self.chains.iter().all(|chain| {
                let known = chains.get(&*chain.key.name);
                known.is_some_and(|known| is_same_chain(known, chain))
            });
        let expected = by_chain(&expected);
        let are_rules_equal = expected.len() == rules.len()
            && expected.iter().all(|(chain, expected)| {
                let rules = rules.get(chain);
                rules.is_some_and(|rules| {
                    rules.len() == expected.len()
                        && rules
                            .iter()
                            .zip(expected)
                            .all(|(rule, expected)| is_same_rule(rule, expected))
                })
            });
        let are_sets_equal = self.sets.len() == SetName::ALL.len()
            && self.sets.iter().all(|set| {
                let name = SetName::named(&set.key.name);
                name.is_some_and(|name| is_same_set(&name.set(table, parameters.family), set))
            });
        (are_chains_equal && are_rules_equal && are_sets_equal).then_some(Affinities { has_rules, timeouts })
    }

    /// The timeouts for which there are rules. `None`: there is another rule in their chain.
    fn timeouts(
        &self,
        rules: &HashMap<&str, Vec<&Rule>>,
        table: &TableKey,
        parameters: &Parameters,
    ) -> Option<BTreeSet<u32>> {
        let mut timeouts = BTreeSet::new();
        for rule in rules.get(RENEWAL).into_iter().flatten() {
            let timeout = timeout_of(rule)?;
            let is_known = is_same_rule(rule, &renewal(table, parameters, timeout));
            if !is_known || !timeouts.insert(timeout) {
                return None;
            }
        }
        Some(timeouts)
    }
}

fn by_chain(rules: &[Rule]) -> HashMap<&str, Vec<&Rule>> {
    let mut chains: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for rule in rules {
        chains.entry(&rule.chain.name).or_default().push(rule);
    }
    chains
}

fn is_same_chain(known: &Chain, chain: &Chain) -> bool {
    match (&known.base, &chain.base) {
        (None, None) => true,
        (Some(known), Some(base)) => {
            known.hook == base.hook
                && known.priority == base.priority
                && known.chain_type == base.chain_type
                && base.policy.is_none_or(|policy| policy == Policy::Accept)
        }
        _ => false,
    }
}

fn is_same_rule(rule: &Rule, expected: &Rule) -> bool {
    rule.comment() == expected.comment()
        && rule.expressions.len() == expected.expressions.len()
        && rule
            .expressions
            .iter()
            .zip(&expected.expressions)
            .all(|(a, b)| is_same_expression(a, b))
}

fn is_same_expression(expression: &Expression, expected: &Expression) -> bool {
    match (expression, expected) {
        // The kernel returns the last address and port, which are the first ones, and that both are given.
        (Expression::Nat(nat), Expression::Nat(expected)) => {
            (nat.kind, nat.family, nat.address, nat.port)
                == (expected.kind, expected.family, expected.address, expected.port)
                && nat.last_address.is_none_or(|last| nat.address == Some(last))
                && nat.last_port.is_none_or(|last| nat.port == Some(last))
        }
        _ => expression == expected,
    }
}

fn is_same_set(known: &Set, set: &Set) -> bool {
    let of = |set: &Set| {
        (
            set.key_types,
            set.key_length,
            set.data,
            set.timeout,
            set.flags & !SetFlags::CONCAT,
        )
    };
    of(known) == of(set) && known.size.is_none_or(|size| set.size == Some(size))
}
