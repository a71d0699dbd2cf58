//! Rule sets: tables, their chains and the rules in them.

use std::fmt;

use indexmap::IndexMap;

use crate::chain::ChainName;
use crate::family::Family;
use crate::render::Style;
use crate::restore::Restore;
use crate::rule::Rule;
use crate::table::{Counters, Policy, Table};

/// All tables of one address family, as read by `iptables-save` or as wanted.
///
/// Tables and chains keep their order, because rendering must give the text that was read. A table that is
/// not in it is not there (or was not asked for), which is not the same as an empty one.
///
/// Equality looks at the order of rules, not at that of tables and chains, which means nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    tables: IndexMap<Table, TableRules>,
}

/// The chains of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableRules {
    chains: IndexMap<ChainName, Chain>,
}

/// One chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What happens at its end; none for chains other than the built-in ones.
    pub policy: Option<Policy>,
    /// Packets that met the policy; zero for chains without one.
    pub counters: Counters,
    /// The rules, first one first. May be empty.
    pub rules: Vec<CountedRule>,
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

    /// Number of rules in all chains.
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

    /// Number of rules in all tables.
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
    pub fn to_restore(&self, family: Family) -> Restore {
        Restore::replace(family, self)
    }
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Style::SAVE))
    }
}
