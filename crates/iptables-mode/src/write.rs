//! The input of a step: the edits for one Service, and their effects.

use kernlink_engine::table::Difference;
use kernlink_iptables_restore::{ChainName, Edit, Table};
use kernlink_services::Family;

use super::key::Key;
use super::observed::fingerprint;
use super::operation::{ChainWrite, Effects, RuleWrite, Write};
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
    /// A table is written as a whole, so chains that nothing jumps to any more may be emptied before the rules that jump to them are removed.
    pub(super) fn write(
        mut self,
        family: Family,
        key: Key,
        order: TableOrder,
    ) -> Option<(Write, Vec<Touched>)> {
        self.chains.sort_unstable_by_key(|chain| chain.key);
        let mut touched = Vec::with_capacity(self.chains.len() + self.rules.len());
        let mut chains = Vec::with_capacity(self.chains.len());
        for chain in self.chains {
            let rules = chain.desired.map(PortChain::rules);
            let fingerprint = fingerprint(rules.as_deref().unwrap_or_default(), family);
            if chain.observed == Some(&fingerprint) {
                continue;
            }
            touched.push(Touched::Chain(*chain.key));
            chains.push(ChainWrite {
                name: *chain.key,
                content: chain.desired.cloned(),
                fingerprint,
            });
        }
        touched.extend(self.rules.iter().map(|(key, _)| Touched::Rule(key.clone())));
        // Inserted at the top one after the other, so the last one is first.
        let rules = self.rules.into_iter().rev();
        let rules = rules.map(|(key, is_added)| RuleWrite { key, is_added });
        let mut writer = Writer::new(family);
        writer.chains = chains;
        writer.rules = rules.collect();
        (!touched.is_empty()).then(|| (writer.finish(key, order), touched))
    }
}

/// Collects edits and their effects.
pub(super) struct Writer {
    family: Family,
    edits: Vec<(Table, Edit)>,
    chains: Vec<ChainWrite>,
    rules: Vec<RuleWrite>,
    pub(super) effects: Effects,
}

impl Writer {
    pub(super) fn new(family: Family) -> Self {
        Self {
            family,
            edits: Vec::new(),
            chains: Vec::new(),
            rules: Vec::new(),
            effects: Effects::default(),
        }
    }

    pub(super) fn edit(&mut self, table: Table, edit: Edit) {
        self.edits.push((table, edit));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    pub(super) fn finish(self, key: Key, order: TableOrder) -> Write {
        Write {
            family: self.family,
            key,
            order,
            edits: self.edits,
            chains: self.chains,
            rules: self.rules,
            effects: self.effects,
        }
    }
}
