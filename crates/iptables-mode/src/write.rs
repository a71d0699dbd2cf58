//! The input of a step: the edits for one Service, and their effects.

use kernlink_engine::table::Difference;
use kernlink_iptables_restore::{ChainName, Edit, Restore, Rule, Table};
use kernlink_services::Family;

use super::key::Key;
use super::observed::fingerprint;
use super::operation::{Effects, Write};
use super::order::TableOrder;
use super::port_chain::PortChain;
use super::rule_key::{Fingerprint, RuleKey};
use super::touched::Touched;

/// A dirty chain of a service port.
pub(super) type DirtyChain<'a> = Difference<'a, ChainName, PortChain, Fingerprint>;

/// What may have to be written for one Service.
#[derive(Default)]
pub(super) struct Part<'a> {
    /// Those that are not desired are emptied, to be deleted.
    pub(super) chains: Vec<DirtyChain<'a>>,
    /// Rules in shared chains, with whether they are added.
    pub(super) rules: Vec<(RuleKey, bool)>,
    /// Those of them that are removed and that an earlier process wrote.
    pub(super) withdrawn: Vec<RuleKey>,
}

impl Part<'_> {
    /// Whether a rule that translates traffic of the Service is removed: then packets that the new rules do not translate were not served by
    /// another mode.
    pub(super) fn is_translated(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|(key, is_added)| !is_added && key.chain.table() == Table::Nat)
    }

    /// The input that writes the chains whose content is not the desired one, and the rules, with what it changes. `None` if there is
    /// nothing to write.
    ///
    /// Chains are declared first, since their rules jump to each other; then they are filled, and the rules that jump to them are added and
    /// others removed. A table is written as a whole, so chains that nothing jumps to any more may be emptied before these rules are removed.
    pub(super) fn write(
        mut self,
        family: Family,
        key: Key,
        order: TableOrder,
    ) -> Option<(Write, Vec<Touched>)> {
        self.chains.sort_unstable_by_key(|chain| chain.key);
        let mut writer = Writer::new(family);
        let mut touched = Vec::with_capacity(self.chains.len() + self.rules.len());
        let lines = |chain: &DirtyChain<'_>| 1 + chain.desired.map_or(0, PortChain::number_of_rules);
        let lines: usize = self.chains.iter().map(lines).sum();
        writer.nat.reserve(lines + self.rules.len());
        writer.effects.chains.reserve(self.chains.len());
        let mut filled = Vec::with_capacity(self.chains.len());
        for chain in self.chains {
            let name = *chain.key;
            let rules = chain.desired.map(PortChain::rules);
            let written = fingerprint(rules.as_deref().unwrap_or_default(), family);
            if chain.observed == Some(&written) {
                continue;
            }
            touched.push(Touched::Chain(name));
            writer.effects.chains.push((name, Some(written)));
            writer.edit(Table::Nat, Edit::declare(name));
            filled.extend(rules.map(|rules| (name, rules)));
        }
        for (name, rules) in filled {
            for rule in rules {
                writer.edit(Table::Nat, Edit::append(name, rule));
            }
        }
        touched.extend(self.rules.iter().map(|(key, _)| Touched::Rule(key.clone())));
        // Inserted at the top one after the other, so the last one is first.
        for (key, is_added) in self.rules.into_iter().rev() {
            let Ok(rule) = key.text.parse::<Rule>() else {
                continue;
            };
            let name = key.chain.name();
            let edit = if is_added {
                Edit::insert(name, rule)
            } else {
                Edit::delete(name, rule)
            };
            writer.edit(key.chain.table(), edit);
            writer.effects.rules.push((key.chain, key.text, is_added));
        }
        (!touched.is_empty()).then(|| (writer.finish(key, order), touched))
    }
}

/// Collects edits and their effects.
pub(super) struct Writer {
    filter: Vec<Edit>,
    nat: Vec<Edit>,
    family: Family,
    pub(super) effects: Effects,
}

impl Writer {
    pub(super) fn new(family: Family) -> Self {
        Self {
            filter: Vec::new(),
            nat: Vec::new(),
            family,
            effects: Effects::default(),
        }
    }

    pub(super) fn edit(&mut self, table: Table, edit: Edit) {
        match table {
            Table::Filter => self.filter.push(edit),
            _ => self.nat.push(edit),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filter.is_empty() && self.nat.is_empty()
    }

    pub(super) fn finish(mut self, key: Key, order: TableOrder) -> Write {
        let mut restore = Restore::new(self.family);
        for table in order {
            let edits = std::mem::take(match table {
                Table::Filter => &mut self.filter,
                _ => &mut self.nat,
            });
            if !edits.is_empty() {
                *restore.table_mut(table) = edits;
            }
        }
        Write {
            restore,
            key,
            order,
            effects: self.effects,
        }
    }
}
