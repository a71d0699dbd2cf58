//! Chains and rules as read from the kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use kernlink_iptables_restore::{Chain, ChainName, Rule, Ruleset, Table};
use kernlink_netfilter::TABLES;
use kernlink_services::Family;

use super::chains::{FixedChain, Jump, jumps};
use super::leftovers;
use super::names::ChainKind;
use super::rule_key::{Fingerprint, RuleText, rule_text};

/// The tables of a family, as far as they concern iptables mode.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// The chains of service ports.
    pub(super) chains: Vec<(ChainName, Fingerprint)>,
    pub(super) fixed: BTreeMap<FixedChain, ObservedChain>,
    /// Whether each of the [`jumps`] exists.
    pub(super) jumps: Vec<bool>,
    /// The jumps without a condition that another mode left, once for each copy.
    pub(super) leftover_jumps: Vec<Jump>,
    /// The tables that could not be read. They may have chains that are not listed here.
    pub(super) unread: BTreeSet<Table>,
}

/// A fixed chain: its rules in order, each in its normal form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedChain {
    pub(super) rules: Vec<RuleText>,
    /// Those of `rules` that do not depend on Services and were desired when the chain was read or written.
    pub(super) own: Vec<RuleText>,
    /// Whether it has rules that cannot be parsed.
    pub(super) has_unreadable: bool,
}

impl ObservedChain {
    fn of(chain: &Chain, family: Family) -> Self {
        Self {
            rules: chain.rules().map(|rule| rule_text(rule, family)).collect(),
            own: Vec::new(),
            has_unreadable: !chain.unreadable.is_empty(),
        }
    }
}

impl Observed {
    /// No table could be read.
    pub(super) fn nothing() -> Self {
        Self {
            jumps: vec![false; jumps().len()],
            unread: TABLES.into(),
            ..Self::default()
        }
    }

    /// What a saved rule set contains.
    pub(super) fn of(ruleset: &Ruleset, family: Family) -> Self {
        let mut observed = Self {
            unread: TABLES
                .into_iter()
                .filter(|table| ruleset.is_unreadable(*table))
                .collect(),
            ..Self::default()
        };
        for chain in FixedChain::ALL {
            if let Some(found) = ruleset.chain(chain.table(), &chain.name()) {
                observed.fixed.insert(chain, ObservedChain::of(found, family));
            }
        }
        if let Some(nat) = ruleset.table(Table::Nat) {
            let owned = nat.chains().filter(|(name, _)| is_port_chain(name));
            observed.chains = owned
                .map(|(name, chain)| (*name, fingerprint_of_chain(chain, family)))
                .collect();
        }
        let is_present = |jump: &super::chains::Jump| {
            let chain = ruleset.chain(jump.table, &jump.chain);
            chain.is_some_and(|chain| chain.contains(&jump.rule, family))
        };
        observed.jumps = jumps().iter().map(is_present).collect();
        observed.leftover_jumps = leftovers::unconditional_jumps(ruleset);
        observed
    }
}

/// Whether a chain of table `nat` is one of a service port.
pub(super) fn is_port_chain(name: &ChainName) -> bool {
    ChainKind::ALL
        .iter()
        .any(|kind| name.as_str().starts_with(kind.prefix()))
}

/// The fingerprint of rules.
pub(super) fn fingerprint(rules: &[Rule], family: Family) -> Fingerprint {
    hash(rules.iter(), family, 0)
}

fn fingerprint_of_chain(chain: &Chain, family: Family) -> Fingerprint {
    hash(chain.rules(), family, chain.unreadable.len())
}

fn hash<'a>(rules: impl Iterator<Item = &'a Rule>, family: Family, unreadable: usize) -> Fingerprint {
    let mut hasher = DefaultHasher::new();
    unreadable.hash(&mut hasher);
    for rule in rules {
        rule.hash_normal_form(family, &mut hasher);
    }
    // The state of the hasher is larger than its result.
    let first = hasher.finish();
    first.hash(&mut hasher);
    [first, hasher.finish()]
}

/// How often each rule occurs.
pub(super) fn counts(rules: &[RuleText]) -> HashMap<&str, usize> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for rule in rules {
        *counts.entry(rule).or_default() += 1;
    }
    counts
}
