//! The input of a step: the edits for one Service, and their effects.

use kernlink_iptables_restore::{ChainName, Edit, Restore, Rule, Table};
use kernlink_services::Family;

use super::key::Key;
use super::observed::fingerprint;
use super::operation::{Effects, Write};
use super::order::TableOrder;
use super::plan::Touched;
use super::state::{Fingerprint, RuleKey};

/// The rules of a chain, and their fingerprint.
type Content = (Vec<Rule>, Fingerprint);

/// What is written for one Service.
#[derive(Default)]
pub(super) struct Part {
    /// Chains with their content; `None` for those that are emptied, to be deleted.
    pub(super) chains: Vec<(ChainName, Option<Content>)>,
    /// Rules in shared chains, with whether they are added.
    pub(super) rules: Vec<(RuleKey, bool)>,
    /// Those of them that are removed and that an earlier process wrote.
    pub(super) former: Vec<RuleKey>,
}

impl Part {
    pub(super) fn touched(&self) -> Vec<Touched> {
        let chains = self.chains.iter().map(|(name, _)| Touched::Chain(*name));
        chains
            .chain(self.rules.iter().map(|(key, _)| Touched::Rule(key.clone())))
            .collect()
    }

    /// Whether a rule that translates traffic of the Service is removed: then packets that the new rules do not translate were not served by
    /// IPVS mode.
    pub(super) fn is_translated(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|(key, is_added)| !is_added && key.chain.table() == Table::Nat)
    }

    /// Chains that are filled are declared first, since their rules jump to each other; then the rules that jump to them are added and
    /// others removed; chains that nothing jumps to any more are emptied last. In the joined input all declarations are before these rules,
    /// which makes no difference: a table is written as a whole.
    pub(super) fn write(self, family: Family, key: Key, order: TableOrder) -> Write {
        let mut writer = Writer::new(family);
        let rules_of_chains = self.chains.iter().flat_map(|(_, content)| content);
        let rules_of_chains: usize = rules_of_chains.map(|(rules, _)| rules.len()).sum();
        writer
            .nat
            .reserve(self.chains.len() + rules_of_chains + self.rules.len());
        writer.effects.chains.reserve(self.chains.len());
        for (name, content) in &self.chains {
            let is_emptied = content.is_none();
            let written = content.as_ref().map(|(_, fingerprint)| *fingerprint);
            let written = written.unwrap_or_else(|| fingerprint(&[], family));
            writer.effects.chains.push((*name, Some(written)));
            if !is_emptied {
                writer.edit(Table::Nat, Edit::declare(*name));
            }
        }
        let mut emptied = Vec::new();
        for (name, content) in self.chains {
            match content {
                Some((rules, _)) => {
                    for rule in rules {
                        writer.edit(Table::Nat, Edit::append(name, rule));
                    }
                }
                None => emptied.push(name),
            }
        }
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
        for name in emptied {
            writer.edit(Table::Nat, Edit::declare(name));
        }
        writer.finish(key, order)
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
