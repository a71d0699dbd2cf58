//! Rule sets: tables, their chains and the rules in them.

use std::collections::BTreeMap;
use std::fmt;

use indexmap::IndexMap;

use crate::chain::ChainName;
use crate::family::Family;
use crate::restore::Restore;
use crate::rule::Rule;
use crate::table::{Counters, Policy, Table};
use crate::unreadable::UnreadableLine;
use crate::wire::render::Style;

/// All tables of one address family, as read by `iptables-save` or as wanted.
///
/// Tables and chains keep their order, because rendering must give the text that was read. A table that is
/// not in it is not there (or was not asked for), which is not the same as an empty one.
///
/// Equality looks at the order of rules, not at that of tables and chains, which means nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    tables: IndexMap<Table, TableRules>,
    pub(crate) unreadable_tables: BTreeMap<Table, UnreadableLine>,
    /// Lines that belong to none of the five tables.
    pub(crate) unreadable_lines: Vec<UnreadableLine>,
}

/// The chains of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableRules {
    chains: IndexMap<ChainName, Chain>,
    /// Chains whose names the tools do not take, and their rules.
    pub(crate) unreadable_lines: Vec<UnreadableLine>,
}

/// One chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What happens at its end; none for chains other than the built-in ones.
    pub policy: Option<Policy>,
    /// Packets that met the policy; zero for chains without one.
    pub counters: Counters,
    /// The rules, first one first. May be empty. Without those in `unreadable`.
    pub rules: Vec<CountedRule>,
    /// Rules that a [tolerant](crate::Save::tolerant) read could not understand, by their position among all rules of
    /// the chain, counted from 0. Empty after a strict read.
    ///
    /// A chain with such a rule equals no chain without it.
    pub unreadable: BTreeMap<usize, UnreadableLine>,
}

/// A rule with what it has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedRule {
    /// The rule.
    pub rule: Rule,
    /// What it has counted; none if that was not asked for, or is left to the kernel.
    pub counters: Option<Counters>,
}

impl From<Rule> for CountedRule {
    fn from(rule: Rule) -> Self {
        CountedRule { rule, counters: None }
    }
}

impl Chain {
    /// A chain without policy that holds `rules`.
    pub fn with_rules(rules: impl IntoIterator<Item = Rule>) -> Self {
        Chain {
            rules: rules.into_iter().map(CountedRule::from).collect(),
            ..Chain::default()
        }
    }

    /// The same chain with a policy.
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// The rules without their counters.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter().map(|counted| &counted.rule)
    }

    /// Whether `rule`, or one that means the same, is in the chain.
    pub fn holds(&self, rule: &Rule, family: Family) -> bool {
        self.position(rule, family).is_some()
    }

    /// Where the first rule that means the same as `rule` stands, counted from 0.
    pub fn position(&self, rule: &Rule, family: Family) -> Option<usize> {
        let normal = rule.normal_form(family);
        self.rules()
            .position(|known| *known == normal || known.normal_form(family) == normal)
    }

    /// Whether the chain holds no rule, readable or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.unreadable.is_empty()
    }

    /// Number of rules, readable or not.
    pub(crate) fn len(&self) -> usize {
        self.rules.len() + self.unreadable.len()
    }

    /// All rules in order; none for one that could not be read.
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

    /// Puts a rule where `at` rules, readable or not, stand before it. False if there are fewer.
    pub(crate) fn insert(&mut self, at: usize, rule: CountedRule) -> bool {
        if at > self.len() {
            return false;
        }
        let later = self.unreadable.split_off(&at);
        let place = at.saturating_sub(self.unreadable.len());
        self.rules.insert(place.min(self.rules.len()), rule);
        self.unreadable
            .extend(later.into_iter().map(|(position, line)| (position + 1, line)));
        true
    }

    /// Takes the rule out before which `at` rules stand, readable or not. False if there are fewer.
    pub(crate) fn remove(&mut self, at: usize) -> bool {
        if at >= self.len() {
            return false;
        }
        let mut later = self.unreadable.split_off(&at);
        let place = at.saturating_sub(self.unreadable.len());
        if later.remove(&at).is_none() && place < self.rules.len() {
            self.rules.remove(place);
        }
        self.unreadable
            .extend(later.into_iter().map(|(position, line)| (position - 1, line)));
        true
    }
}

impl TableRules {
    /// A table without chains.
    pub fn new() -> Self {
        TableRules::default()
    }

    /// The chain, if it is there.
    pub fn chain(&self, name: &ChainName) -> Option<&Chain> {
        self.chains.get(name)
    }

    /// The chain, made empty if it is not there.
    pub fn chain_mut(&mut self, name: ChainName) -> &mut Chain {
        self.chains.entry(name).or_default()
    }

    /// The chain, which is most likely the one at `hint`; sets `hint` to its place.
    pub(crate) fn near_mut(&mut self, name: &ChainName, hint: &mut usize) -> Option<&mut Chain> {
        if self
            .chains
            .get_index(*hint)
            .is_none_or(|(known, _)| known != name)
        {
            *hint = self.chains.get_index_of(name)?;
        }
        self.chains.get_index_mut(*hint).map(|(_, chain)| chain)
    }

    pub(crate) fn known_mut(&mut self, name: &ChainName) -> Option<&mut Chain> {
        self.chains.get_mut(name)
    }

    /// Puts a chain at the end, or in the place of the one of that name.
    pub fn insert(&mut self, name: ChainName, chain: Chain) -> Option<Chain> {
        self.chains.insert(name, chain)
    }

    /// Takes a chain out; the others keep their order.
    pub fn remove(&mut self, name: &ChainName) -> Option<Chain> {
        self.chains.shift_remove(name)
    }

    /// The chains in order.
    pub fn chains(&self) -> impl ExactSizeIterator<Item = (&ChainName, &Chain)> {
        self.chains.iter()
    }

    /// What a [tolerant](crate::Save::tolerant) read of this table could not understand, in the order of the lines.
    pub fn unreadable(&self) -> Vec<&UnreadableLine> {
        let of_chains = self.chains.values().flat_map(|chain| chain.unreadable.values());
        let mut lines: Vec<_> = self.unreadable_lines.iter().chain(of_chains).collect();
        lines.sort_by_key(|line| line.line);
        lines
    }

    /// Number of rules that were read, in all chains.
    pub fn rule_count(&self) -> usize {
        self.chains.values().map(|chain| chain.rules.len()).sum()
    }
}

impl Ruleset {
    /// No table at all.
    pub fn new() -> Self {
        Ruleset::default()
    }

    /// The table, if it is there.
    pub fn table(&self, table: Table) -> Option<&TableRules> {
        self.tables.get(&table)
    }

    /// The table, made without chains and put at the end if it is not there.
    pub fn table_mut(&mut self, table: Table) -> &mut TableRules {
        self.tables.entry(table).or_default()
    }

    /// Takes a table out; the others keep their order.
    pub fn remove(&mut self, table: Table) -> Option<TableRules> {
        self.tables.shift_remove(&table)
    }

    /// The tables in order.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = (Table, &TableRules)> {
        self.tables.iter().map(|(table, rules)| (*table, rules))
    }

    /// The chain of a table, if both are there.
    pub fn chain(&self, table: Table, chain: &ChainName) -> Option<&Chain> {
        self.table(table)?.chain(chain)
    }

    /// What a [tolerant](crate::Save::tolerant) read could not understand, in the order of the lines. After a strict
    /// read only the lines by which `iptables-nft-save` says that it does not print a table.
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

    /// Whether the table is there and nothing is known of its chains: the tool did not show it. Such a table is not
    /// among [`tables`](Self::tables).
    pub fn is_unreadable(&self, table: Table) -> bool {
        self.unreadable_tables.contains_key(&table)
    }

    /// Number of rules that were read, in all tables.
    pub fn rule_count(&self) -> usize {
        self.tables.values().map(TableRules::rule_count).sum()
    }

    /// The whole as text that `iptables-restore` takes, in the order of tables and chains kept here.
    ///
    /// With [`Style::SAVE`] this is what `iptables-save` printed when the value was read from it, less the
    /// lines that begin with `#`.
    pub fn render(&self, style: Style) -> String {
        let mut out = String::new();
        for (table, rules) in self.tables() {
            crate::restore::render_table(&mut out, table, rules, style);
        }
        out
    }

    /// Adds the tables of `other`, and what could not be read there.
    pub fn merge(&mut self, other: Ruleset) {
        self.tables.extend(other.tables);
        self.unreadable_tables.extend(other.unreadable_tables);
        self.unreadable_lines.extend(other.unreadable_lines);
    }

    /// Takes the counters of all rules away; those of policies stay.
    pub fn forget_rule_counters(&mut self) {
        for table in self.tables.values_mut() {
            for chain in table.chains.values_mut() {
                for counted in &mut chain.rules {
                    counted.counters = None;
                }
            }
        }
    }

    /// Every rule in its normal form.
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

    /// The input that makes the tables named here exactly this, and leaves other tables alone.
    ///
    /// It removes what could not be [read](Self::unreadable) of these tables.
    pub fn to_restore(&self, family: Family) -> Restore {
        Restore::replace(family, self)
    }
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Style::SAVE))
    }
}
