//! Rule sets: tables, their chains and rules.

use std::collections::BTreeMap;
use std::fmt;

use indexmap::IndexMap;
use kernlink_base::Family;

use crate::chain::ChainName;
use crate::restore::Restore;
use crate::rule::Rule;
use crate::style::Style;
use crate::table::{Counters, Policy, Table};
use crate::unreadable::UnreadableLine;
use crate::wire::render::render_table;

/// Tables of one address family, as `iptables-save` prints them.
///
/// Tables and chains keep their order, so that rendering reproduces the parsed text. A missing table does not exist or was not
/// requested; it differs from a table without rules.
///
/// Equality includes the order of rules, but not that of tables and chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    tables: IndexMap<Table, TableRules>,
    pub(crate) unreadable_tables: BTreeMap<Table, UnreadableLine>,
    /// Lines outside the five tables.
    pub(crate) unreadable_lines: Vec<UnreadableLine>,
}

/// The chains of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableRules {
    chains: IndexMap<ChainName, Chain>,
    /// Chains with invalid names, and their rules.
    pub(crate) unreadable_lines: Vec<UnreadableLine>,
}

/// One chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What happens to packets at its end; `None` for chains that are not built in.
    pub policy: Option<Policy>,
    /// Packets that the policy applied to; zero for chains without a policy.
    pub counters: Counters,
    /// The parsed rules in order, without those in `unreadable`.
    pub rules: Vec<CountedRule>,
    /// Rules that a [lenient](crate::Save::lenient) read could not parse, by their position among all rules of the chain, from 0.
    /// Empty after a strict read.
    pub unreadable: BTreeMap<usize, UnreadableLine>,
}

/// A rule with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedRule {
    /// The rule.
    pub rule: Rule,
    /// `None` if counters were not requested, or are not to be set.
    pub counters: Option<Counters>,
}

impl From<Rule> for CountedRule {
    fn from(rule: Rule) -> Self {
        CountedRule { rule, counters: None }
    }
}

impl Chain {
    /// A chain with these rules, without a policy.
    pub fn with_rules(rules: impl IntoIterator<Item = Rule>) -> Self {
        Chain {
            rules: rules.into_iter().map(CountedRule::from).collect(),
            ..Chain::default()
        }
    }

    /// Sets the policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// The rules without their counters.
    #[must_use]
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter().map(|counted| &counted.rule)
    }

    /// Whether the chain contains an [equivalent](Rule::is_equivalent) rule.
    #[must_use]
    pub fn contains(&self, rule: &Rule, family: Family) -> bool {
        self.position(rule, family).is_some()
    }

    /// The index in `rules` of the first [equivalent](Rule::is_equivalent) rule.
    #[must_use]
    pub fn position(&self, rule: &Rule, family: Family) -> Option<usize> {
        let normal = rule.normal_form(family);
        self.rules()
            .position(|known| *known == normal || known.normal_form(family) == normal)
    }

    /// Whether the chain contains no rule, parsed or unreadable.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.unreadable.is_empty()
    }

    /// Number of rules, parsed or unreadable.
    pub(crate) fn len(&self) -> usize {
        self.rules.len() + self.unreadable.len()
    }

    /// All rules in order; `None` for an unreadable one.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Option<&Rule>> {
        let mut rules = self.rules();
        (0..self.len()).map(move |at| {
            if self.unreadable.contains_key(&at) {
                None
            } else {
                rules.next()
            }
        })
    }

    /// Inserts a rule after `at` rules, parsed or unreadable. False if there are fewer.
    pub(crate) fn insert(&mut self, at: usize, rule: CountedRule) -> bool {
        if at > self.len() {
            return false;
        }
        let later = self.unreadable.split_off(&at);
        let index = at.saturating_sub(self.unreadable.len());
        self.rules.insert(index.min(self.rules.len()), rule);
        self.unreadable
            .extend(later.into_iter().map(|(position, line)| (position + 1, line)));
        true
    }

    /// Removes the rule after `at` rules, parsed or unreadable. False if there are fewer.
    pub(crate) fn remove(&mut self, at: usize) -> bool {
        if at >= self.len() {
            return false;
        }
        let mut later = self.unreadable.split_off(&at);
        let index = at.saturating_sub(self.unreadable.len());
        if later.remove(&at).is_none() && index < self.rules.len() {
            self.rules.remove(index);
        }
        self.unreadable
            .extend(later.into_iter().map(|(position, line)| (position - 1, line)));
        true
    }
}

impl TableRules {
    /// A table without chains.
    #[must_use]
    pub fn new() -> Self {
        TableRules::default()
    }

    /// The chain, if the table contains it.
    #[must_use]
    pub fn chain(&self, name: &ChainName) -> Option<&Chain> {
        self.chains.get(name)
    }

    /// The chain, created without rules if the table does not contain it.
    pub fn chain_mut(&mut self, name: ChainName) -> &mut Chain {
        self.chains.entry(name).or_default()
    }

    /// Passes all chains, in order, and keeps what is returned.
    pub(crate) fn pass(&mut self, mut take: impl FnMut(&ChainName, Chain) -> Option<Chain>) {
        let chains = std::mem::take(&mut self.chains).into_iter();
        self.chains = chains
            .filter_map(|(name, chain)| take(&name, chain).map(|kept| (name, kept)))
            .collect();
    }

    pub(crate) fn index_of(&self, name: &ChainName) -> Option<usize> {
        self.chains.get_index_of(name)
    }

    pub(crate) fn chain_at(&mut self, index: usize) -> Option<(&ChainName, &mut Chain)> {
        self.chains.get_index_mut(index)
    }

    /// Removes the chains for whose index `keep` is false.
    pub(crate) fn retain_at(&mut self, keep: impl Fn(usize) -> bool) {
        let mut index = 0;
        self.chains.retain(|_, _| {
            index += 1;
            keep(index - 1)
        });
        self.chains.shrink_to_fit();
    }

    /// The chain, if the table contains it. It is first looked up at index `hint`, which is set to its index.
    pub(crate) fn chain_mut_with_hint(&mut self, name: &ChainName, hint: &mut usize) -> Option<&mut Chain> {
        if self
            .chains
            .get_index(*hint)
            .is_none_or(|(known, _)| known != name)
        {
            *hint = self.chains.get_index_of(name)?;
        }
        self.chains.get_index_mut(*hint).map(|(_, chain)| chain)
    }

    pub(crate) fn existing_chain_mut(&mut self, name: &ChainName) -> Option<&mut Chain> {
        self.chains.get_mut(name)
    }

    /// Adds a chain at the end, or replaces the one with this name and returns it.
    pub fn insert(&mut self, name: ChainName, chain: Chain) -> Option<Chain> {
        self.chains.insert(name, chain)
    }

    /// Removes a chain. The others keep their order.
    pub fn remove(&mut self, name: &ChainName) -> Option<Chain> {
        self.chains.shift_remove(name)
    }

    /// The chains in order.
    #[must_use]
    pub fn chains(&self) -> impl ExactSizeIterator<Item = (&ChainName, &Chain)> {
        self.chains.iter()
    }

    /// The lines of this table that a [lenient](crate::Save::lenient) read skipped, in order.
    #[must_use]
    pub fn unreadable(&self) -> Vec<&UnreadableLine> {
        let of_chains = self.chains.values().flat_map(|chain| chain.unreadable.values());
        let mut lines: Vec<_> = self.unreadable_lines.iter().chain(of_chains).collect();
        lines.sort_by_key(|line| line.line);
        lines
    }

    /// Number of parsed rules in all chains.
    #[must_use]
    pub fn rule_count(&self) -> usize {
        self.chains.values().map(|chain| chain.rules.len()).sum()
    }
}

impl Ruleset {
    /// No tables.
    #[must_use]
    pub fn new() -> Self {
        Ruleset::default()
    }

    /// The table, if it exists and was printed.
    #[must_use]
    pub fn table(&self, table: Table) -> Option<&TableRules> {
        self.tables.get(&table)
    }

    /// The table, added without chains at the end if it is missing.
    pub fn table_mut(&mut self, table: Table) -> &mut TableRules {
        self.tables.entry(table).or_default()
    }

    /// Removes a table. The others keep their order.
    pub fn remove(&mut self, table: Table) -> Option<TableRules> {
        self.tables.shift_remove(&table)
    }

    /// The tables in order.
    #[must_use]
    pub fn tables(&self) -> impl ExactSizeIterator<Item = (Table, &TableRules)> {
        self.tables.iter().map(|(table, rules)| (*table, rules))
    }

    /// The chain of a table, if both exist.
    #[must_use]
    pub fn chain(&self, table: Table, chain: &ChainName) -> Option<&Chain> {
        self.table(table)?.chain(chain)
    }

    /// The lines that a [lenient](crate::Save::lenient) read skipped, in order. After a strict read, only the lines by which
    /// `iptables-nft-save` reports a table that it does not print.
    pub fn unreadable(&self) -> Vec<&UnreadableLine> {
        let of_tables = self.tables.values().flat_map(TableRules::unreadable);
        let mut lines: Vec<_> = self
            .unreadable_tables
            .values()
            .chain(&self.unreadable_lines)
            .chain(of_tables)
            .collect();
        lines.sort_by_key(|line| line.line);
        lines
    }

    /// Whether the table exists but the tool did not print it. Such a table is not among [`tables`](Self::tables).
    #[must_use]
    pub fn is_unreadable(&self, table: Table) -> bool {
        self.unreadable_tables.contains_key(&table)
    }

    /// The line, or the message of the tool, which shows that a table [is unreadable](Self::is_unreadable).
    #[must_use]
    pub fn unreadable_table(&self, table: Table) -> Option<&UnreadableLine> {
        self.unreadable_tables.get(&table)
    }

    /// Number of parsed rules in all tables.
    pub fn rule_count(&self) -> usize {
        self.tables.values().map(TableRules::rule_count).sum()
    }

    /// The rule set as input of `iptables-restore`, with tables and chains in order.
    ///
    /// With [`Style::SAVE`] a rule set parsed from the output of `iptables-save` renders to that output without the lines that start
    /// with `#`.
    #[must_use]
    pub fn render(&self, style: Style) -> String {
        let mut out = String::new();
        for (table, rules) in self.tables() {
            render_table(&mut out, table, rules, style);
        }
        out
    }

    /// Adds the tables and the unreadable lines of `other`.
    pub fn merge(&mut self, other: Ruleset) {
        self.tables.extend(other.tables);
        self.unreadable_tables.extend(other.unreadable_tables);
        self.unreadable_lines.extend(other.unreadable_lines);
    }

    /// Sets the counters of all rules to `None`. Those of policies are kept.
    pub fn clear_rule_counters(&mut self) {
        for table in self.tables.values_mut() {
            for chain in table.chains.values_mut() {
                for counted in &mut chain.rules {
                    counted.counters = None;
                }
            }
        }
    }

    /// The rule set with every rule in its [normal form](Rule::normal_form).
    #[must_use]
    pub fn normal_form(&self, family: Family) -> Ruleset {
        let mut normal = self.clone();
        for table in normal.tables.values_mut() {
            for chain in table.chains.values_mut() {
                for counted in &mut chain.rules {
                    counted.rule = counted.rule.normal_form(family);
                }
            }
        }
        normal
    }

    /// The input that replaces these tables and does not change others.
    ///
    /// It deletes the [unreadable](Self::unreadable) rules of these tables.
    #[must_use]
    pub fn to_restore(&self, family: Family) -> Restore {
        Restore::replace(family, self)
    }
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Style::SAVE))
    }
}
