//! The chains, rules and sets of a table, as they were read.

use std::collections::{BTreeMap, HashMap};

use kernlink_nftables::{Chain, Expression, Policy, Rule, Set, SetFlags, TableKey};

use crate::layout::SetName;
use crate::rules::{Parameters, Skeleton};

/// The chains, rules and sets of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) sets: Vec<Set>,
    /// Whether it has elements that this crate never adds, or more than are read.
    pub(crate) is_replaced: bool,
}

impl Content {
    /// Whether everything is as it should be.
    pub(crate) fn is_desired(&self, table: &TableKey, parameters: &Parameters) -> bool {
        if self.is_replaced {
            return false;
        }
        let Skeleton { inner, base } = Skeleton::new(table, parameters);
        let chains: BTreeMap<&str, &Chain> = [&inner, &base]
            .into_iter()
            .flat_map(|part| &part.chains)
            .map(|chain| (&*chain.key.name, chain))
            .collect();
        let rules = by_chain(&self.rules);
        let expected: Vec<Rule> = inner.rules.iter().chain(&base.rules).cloned().collect();
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
        are_chains_equal && are_rules_equal && are_sets_equal
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
