//! What the state records of operations: those that were done, and those that failed.

use kernlink_iptables_restore::{Edit, Operation as RulesOperation, Refused};
use kernlink_services::{Event, ObjectName};

use super::State;
use crate::chains::{Counters, FixedChain, INVALID_DROPPED, LOOPBACK_ACCEPTED, nfacct};
use crate::error::Error;
use crate::extensions;
use crate::key::Key;
use crate::observed::ObservedChain;
use crate::operation::{Operation, Write};
use crate::rule_key::{RuleKey, RuleText, rule_text};
use crate::sysctls::TCP_BE_LIBERAL;

impl State {
    /// Records an operation that was done.
    pub(crate) fn record(&mut self, operation: &Operation) {
        match operation {
            Operation::Sysctl(sysctl) => {
                if *sysctl.name == *TCP_BE_LIBERAL {
                    // The rule that drops invalid packets stays until then.
                    self.set_tcp_be_liberal(Some(&sysctl.value));
                    self.changes_fixed = true;
                }
                self.sysctls
                    .observe(sysctl.name.clone(), Some(sysctl.value.clone()));
            }
            Operation::EnsureAccounting(name) => self.accounting.observe(name.clone(), Some(())),
            Operation::Flows(pass) => {
                let touched = &self.touched;
                let is_written = |name: &ObjectName| {
                    let keys = Key::of_service(pass.family, name);
                    !keys.iter().any(|key| touched.contains_key(key))
                };
                self.flows.record(pass, is_written);
            }
            Operation::EnsureChain(ensure) => {
                let rules = ensure.rules.iter().map(|rule| rule_text(rule, ensure.family));
                let own: Vec<RuleText> = rules.collect();
                let written = ObservedChain {
                    rules: own.clone(),
                    own,
                    has_unreadable: false,
                };
                let fixed = &mut self.fixed[ensure.family.index()];
                fixed.observed.insert(ensure.chain, written);
            }
            Operation::EnsureJump { position, operation } => {
                let jumps = &mut self.fixed[operation.family().index()].jumps;
                if let Some(jump) = jumps.get_mut(*position) {
                    *jump = true;
                }
            }
            Operation::Write(write) => self.record_write(write),
        }
    }

    /// Records an operation that failed.
    pub(crate) fn record_failure(&mut self, operation: &Operation, error: &Error) {
        let is_unknown = error.is_outcome_unknown();
        if let Operation::Flows(pass) = operation {
            self.flows.tracked.record_failure(pass);
        }
        if let (Operation::EnsureJump { operation, .. }, Error::Rules(error)) = (operation, error)
            && let RulesOperation::EnsureJump { family, table, .. } = &**operation
            && error.is_not_found()
        {
            // Another program removed the chain, and with it perhaps all others of the table, which cannot be read.
            self.forget(*family, *table);
            self.changes_fixed = true;
        }
        if let Operation::Write(write) = operation {
            if !self.is_full {
                self.sums[write.family().index()].record_partial_failure();
            }
            if self.counters != Counters::default() && is_about_counters(write, error) {
                self.refuses_counters = true;
                self.set_counters(Counters::default());
                let text = "a rule with an accounting object was refused; packets are not counted";
                self.events.add([Event::host("AccountingUnavailable", text)]);
                self.changes_fixed = true;
            }
            if let Error::Rules(error) | Error::PartlyWritten(error) = error
                && self.missing.find(write.family(), &extensions::ALL, error)
            {
                self.is_outdated = true;
                self.has_changed_support = true;
            }
            if is_unknown {
                self.refused.remove(&write.key);
            } else {
                self.refused.insert(write.key.clone());
            }
        }
    }

    /// Whether an object is as recorded although an operation on it failed.
    pub(crate) fn is_refused(&self, key: &Key) -> bool {
        self.refused.contains(key)
    }

    fn record_write(&mut self, write: &Write) {
        let family = write.family();
        let effects = &write.effects;
        self.sums[family.index()].record(write, self.now);
        self.touched.remove(&write.key);
        self.refused.remove(&write.key);
        if matches!(write.key, Key::Fixed(_)) {
            self.fixed[family.index()].leftover_jumps.clear();
        }
        for chain in &effects.rewritten {
            let (_, rules) = self.tables(family);
            let of_chain = rules.iter_observed().map(|(key, ())| key);
            let emptied: Vec<RuleKey> = of_chain.filter(|key| key.chain == *chain).cloned().collect();
            for key in emptied {
                rules.observe(key, None);
            }
        }
        for chain in &effects.fixed {
            // One family has the chain without the rule.
            let has_rules = FixedChain::of(&self.config, family).any(|of| of == *chain);
            let own = if has_rules {
                self.static_texts(*chain, family)
            } else {
                Vec::new()
            };
            let written = ObservedChain {
                rules: own.clone(),
                own,
                has_unreadable: false,
            };
            self.fixed[family.index()].observed.insert(*chain, written);
        }
        if effects.jumps {
            self.fixed[family.index()].jumps.fill(true);
        }
        let (chains, rules) = self.tables(family);
        for name in &effects.deleted {
            chains.observe(*name, None);
        }
        for chain in &write.chains {
            chains.observe(chain.name, Some(chain.fingerprint));
        }
        for key in &effects.rules {
            rules.observe(key.clone(), Some(()));
        }
        for rule in &write.rules {
            rules.observe(rule.key.clone(), rule.is_added.then_some(()));
        }
    }
}

/// Whether a refusal may be about a rule with an accounting object.
fn is_about_counters(write: &Write, error: &Error) -> bool {
    let (Error::Rules(error) | Error::PartlyWritten(error)) = error else {
        return false;
    };
    let kernlink_iptables_restore::Error::Refused { refused, .. } = error else {
        return false;
    };
    let objects = [INVALID_DROPPED, LOOPBACK_ACCEPTED].map(nfacct);
    let has_object = |edit: &Edit| {
        let mut matches = edit.rule().into_iter().flat_map(|rule| &rule.matches);
        matches.any(|test| objects.contains(test))
    };
    match &**refused {
        Refused::Edit { edit, .. } => has_object(edit),
        _ => {
            let restore = write.restore();
            let mut edits = restore.tables().flat_map(|(_, edits)| edits);
            edits.any(has_object)
        }
    }
}
