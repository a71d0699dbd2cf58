//! Applying a restore to a rule set in memory, with the checks of the tools and the kernel.

use std::collections::HashSet;

use kernlink_base::Family;

use crate::chain::ChainName;
use crate::condition::Condition;
use crate::error::{Error, Refused, RefusedKind};
use crate::matches::{Match, SetReference};
use crate::protocol::Protocol;
use crate::restore::{Edit, Restore, RestoreMode};
use crate::rule::Rule;
use crate::ruleset::{Chain, CountedRule, Ruleset, TableRules};
use crate::table::{Policy, Table};
use crate::targets::{RejectWith, Target};
use crate::variant::tool;

/// Why an edit or a table is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) table: Table,
    /// The index of the edit; `None` for the table as a whole.
    pub(crate) edit: Option<usize>,
    pub(crate) kind: RefusedKind,
    pub(crate) reason: &'static str,
}

impl Refusal {
    /// As the error of a tool.
    pub(crate) fn to_error(&self, restore: &Restore) -> Error {
        let edits: &[Edit] = restore
            .tables()
            .find(|(table, _)| *table == self.table)
            .map_or(&[], |(_, edits)| edits);
        let refused = match self.edit.and_then(|index| edits.get(index)) {
            Some(edit) => Refused::Edit {
                table: self.table,
                edit: edit.clone(),
            },
            None => Refused::Table(self.table),
        };
        Error::Refused {
            tool: format!("{}-restore (in memory)", tool(restore.family)),
            refused: Box::new(refused),
            kind: self.kind,
            text: self.reason.into(),
            status: Some(1),
            applied: restore.tables_before(self.table),
        }
    }
}

type Checked = Result<(), (RefusedKind, &'static str)>;

const NO_CHAIN: (RefusedKind, &str) = (RefusedKind::NotFound, "No chain/target/match by that name.");

/// Applies `restore` to `ruleset`, table by table. A refused table and those after it are not changed.
pub(crate) fn apply(
    ruleset: &mut Ruleset,
    restore: &Restore,
    sets: Option<&HashSet<String>>,
) -> Result<(), Refusal> {
    for (table, edits) in restore.tables() {
        if edits.is_empty() && restore.mode == RestoreMode::Keep {
            continue;
        }
        let mut rules = ruleset
            .table(table)
            .cloned()
            .unwrap_or_else(|| empty_table(table));
        if restore.mode == RestoreMode::Replace {
            rules = emptied(table, &rules);
        }
        let mut transaction = Transaction {
            family: restore.family,
            table,
            rules,
            sets,
        };
        for (index, edit) in edits.iter().enumerate() {
            transaction.edit(edit).map_err(|(kind, reason)| Refusal {
                table,
                edit: Some(index),
                kind,
                reason,
            })?;
        }
        transaction.commit(edits)?;
        *ruleset.table_mut(table) = transaction.rules;
    }
    Ok(())
}

/// A table as the kernel creates it.
pub(crate) fn empty_table(table: Table) -> TableRules {
    let mut rules = TableRules::new();
    for name in table.builtin_chains() {
        if let Ok(name) = ChainName::new(name) {
            rules.insert(name, Chain::default().with_policy(Policy::Accept));
        }
    }
    rules
}

/// The built-in chains without their rules, with their policies and counters.
fn emptied(table: Table, rules: &TableRules) -> TableRules {
    let mut emptied = TableRules::new();
    for (name, chain) in rules.chains().filter(|(name, _)| table.is_builtin(name)) {
        emptied.insert(
            *name,
            Chain {
                policy: chain.policy,
                counters: chain.counters,
                ..Chain::default()
            },
        );
    }
    emptied
}

struct Transaction<'s> {
    family: Family,
    table: Table,
    rules: TableRules,
    sets: Option<&'s HashSet<String>>,
}

impl Transaction<'_> {
    fn edit(&mut self, edit: &Edit) -> Checked {
        if let Some(rule) = edit.rule() {
            self.check_rule(edit.chain(), rule)?;
        }
        match edit {
            Edit::Declare {
                chain,
                policy,
                counters,
            } if self.table.is_builtin(chain) => {
                let known = self.rules.chain_mut(*chain);
                known.policy = policy.or(known.policy);
                known.counters = *counters;
            }
            Edit::Declare { policy: Some(_), .. } => {
                return Err((RefusedKind::Other, "Bad built-in chain name"));
            }
            Edit::Declare { chain, .. } => *self.rules.chain_mut(*chain) = Chain::default(),
            Edit::NewChain { chain } if self.rules.chain(chain).is_some() => {
                return Err((RefusedKind::AlreadyExists, "Chain already exists."));
            }
            Edit::NewChain { chain } => *self.rules.chain_mut(*chain) = Chain::default(),
            Edit::Append {
                chain,
                rule,
                counters,
            } => {
                let rule = CountedRule {
                    rule: rule.normal_form(self.family),
                    counters: Some(counters.unwrap_or_default()),
                };
                self.chain(chain)?.rules.push(rule);
            }
            Edit::Insert {
                chain,
                position,
                rule,
            } => {
                let index = position.map_or(0, |position| position.get() as usize - 1);
                let rule = CountedRule {
                    rule: rule.normal_form(self.family),
                    counters: Some(Default::default()),
                };
                if !self.chain(chain)?.insert(index, rule) {
                    return Err((RefusedKind::NotFound, "Index of insertion too big."));
                }
            }
            Edit::Delete { chain, rule } => {
                let family = self.family;
                let known = self.chain(chain)?;
                let normal = rule.normal_form(family);
                let same = |known: &Rule| *known == normal || known.normal_form(family) == normal;
                let index = known.slots().position(|known| known.is_some_and(same));
                if !index.is_some_and(|index| known.remove(index)) {
                    let reason = "Bad rule (does a matching rule exist in that chain?).";
                    return Err((RefusedKind::NotFound, reason));
                }
            }
            Edit::DeleteAt { chain, position } => {
                let index = position.get() as usize - 1;
                if !self.chain(chain)?.remove(index) {
                    return Err((RefusedKind::NotFound, "Index of deletion too big."));
                }
            }
            Edit::Flush { chain } => {
                let known = self.chain(chain)?;
                known.rules.clear();
                known.unreadable.clear();
            }
            Edit::DeleteChain { chain } => {
                if self.table.is_builtin(chain) {
                    return Err(NO_CHAIN);
                }
                let used = !self.chain(chain)?.is_empty()
                    || self
                        .rules
                        .chains()
                        .any(|(_, other)| other.rules().any(|rule| jumps_to(rule, chain)))
                    || self.rules.unreadable().iter().any(|line| line.jumps_to(chain));
                if used {
                    return Err((RefusedKind::InUse, "Device or resource busy"));
                }
                self.rules.remove(chain);
            }
        }
        Ok(())
    }

    fn chain(&mut self, name: &ChainName) -> Result<&mut Chain, (RefusedKind, &'static str)> {
        self.rules.existing_chain_mut(name).ok_or(NO_CHAIN)
    }

    /// Refuses what the tools refuse when they parse a rule.
    fn check_rule(&self, chain: &ChainName, rule: &Rule) -> Checked {
        const INVALID: RefusedKind = RefusedKind::Other;
        if let Some(target) = rule.target.as_ref().and_then(Target::chain) {
            if self.table.is_builtin(target) {
                return Err((INVALID, "a built-in chain cannot be a target"));
            }
            self.rules
                .chain(target)
                .ok_or((RefusedKind::NotFound, "Chain does not exist"))?;
        }
        if self.table == Table::Nat && rule.target == Some(Target::Drop) {
            return Err((INVALID, "The \"nat\" table is not intended for filtering"));
        }
        let protocol = rule.matches.iter().find_map(|test| match test {
            Match::Protocol(Condition::Is(protocol)) => Some(protocol.number()),
            _ => None,
        });
        for test in &rule.matches {
            let required = match test {
                Match::InInterface(_) if matches!(chain.as_str(), "OUTPUT" | "POSTROUTING") => {
                    return Err((INVALID, "Can't use -i with OUTPUT or POSTROUTING"));
                }
                Match::OutInterface(_) if matches!(chain.as_str(), "INPUT" | "PREROUTING") => {
                    return Err((INVALID, "Can't use -o with INPUT or PREROUTING"));
                }
                Match::Tcp(_) => Protocol::Tcp,
                Match::Udp(_) => Protocol::Udp,
                Match::Sctp(_) => Protocol::Sctp,
                Match::Icmp(_) => Protocol::Icmp,
                Match::Icmpv6(_) => Protocol::Icmpv6,
                Match::Source(test) | Match::Destination(test)
                    if Family::of(test.value().address) != self.family =>
                {
                    return Err((INVALID, "host/network not found"));
                }
                Match::Set(set) => {
                    self.check_set(set.set.value())?;
                    continue;
                }
                _ => continue,
            };
            if protocol != Some(required.number()) {
                return Err((INVALID, "the match requires its protocol (-p)"));
            }
        }
        if let Some(Target::Set(set)) = &rule.target {
            self.check_set(&set.set)?;
        }
        if rule.target == Some(Target::Reject(Some(RejectWith::TcpReset))) && protocol != Some(6) {
            return Err((INVALID, "tcp-reset requires -p tcp"));
        }
        Ok(())
    }

    fn check_set(&self, set: &SetReference) -> Checked {
        match self.sets {
            Some(sets) if !sets.contains(set.name.as_str()) => {
                Err((RefusedKind::NotFound, "Set doesn't exist."))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what the kernel refuses when the table is committed.
    fn commit(&self, edits: &[Edit]) -> Result<(), Refusal> {
        let refused = |edit, reason| Refusal {
            table: self.table,
            edit,
            kind: RefusedKind::Other,
            reason,
        };
        for (index, edit) in edits.iter().enumerate() {
            if let Some(target) = edit.rule().and_then(|rule| rule.target.as_ref())
                && !tables_of(target).contains(&self.table)
            {
                return Err(refused(Some(index), "the target is not valid in this table"));
            }
        }
        for hook in self.table.builtin_chains() {
            let Ok(hook) = ChainName::new(hook) else { continue };
            if !self.is_hook_valid(&hook) {
                let refused_edit = edits.iter().position(|edit| {
                    edit.rule().is_some_and(|rule| {
                        rule.target.as_ref().is_some_and(|target| {
                            target.chain().is_some() || !hooks_of(target).contains(&hook.as_str())
                        })
                    })
                });
                return Err(refused(
                    refused_edit,
                    "the chains contain a loop, or a target is not valid at this hook",
                ));
            }
        }
        Ok(())
    }

    /// Follows the jumps from a hook. False if there is a loop or a target that is not valid at the hook.
    ///
    /// Not recursive, because jumps can be as deep as the number of chains.
    fn is_hook_valid(&self, hook: &ChainName) -> bool {
        // The path from the hook, each chain with the targets not followed yet.
        let mut path = Vec::new();
        let mut on_path = HashSet::from([*hook]);
        let mut seen = HashSet::from([*hook]);
        let targets = |name: &ChainName| {
            let rules = self.rules.chain(name).into_iter().flat_map(Chain::rules);
            rules.filter_map(|rule| rule.target.as_ref())
        };
        path.push((*hook, targets(hook)));
        while let Some((name, rest)) = path.last_mut() {
            match rest.next().map(|target| (target, target.chain())) {
                Some((_, Some(next))) if on_path.contains(next) => return false,
                Some((_, Some(next))) => {
                    if seen.insert(*next) {
                        on_path.insert(*next);
                        path.push((*next, targets(next)));
                    }
                }
                Some((target, None)) if !hooks_of(target).contains(&hook.as_str()) => return false,
                Some(_) => {}
                None => {
                    on_path.remove(name);
                    path.pop();
                }
            }
        }
        true
    }
}

fn jumps_to(rule: &Rule, chain: &ChainName) -> bool {
    rule.target.as_ref().and_then(Target::chain) == Some(chain)
}

/// Tables in which a target is valid. Source: the `table` of each `xt_target` in `net/netfilter/`, Linux 6.1.
fn tables_of(target: &Target) -> &'static [Table] {
    match target {
        Target::Dnat(_) | Target::Snat(_) | Target::Masquerade(_) | Target::Redirect(_) => &[Table::Nat],
        Target::Notrack | Target::Ct(_) => &[Table::Raw],
        Target::Tproxy(_) => &[Table::Mangle],
        Target::Reject(_) => &[Table::Filter],
        _ => Table::ALL,
    }
}

/// Hooks at which a target is valid. Source: the `hooks` of each `xt_target` in `net/netfilter/`, Linux 6.1.
fn hooks_of(target: &Target) -> &'static [&'static str] {
    match target {
        Target::Dnat(_) | Target::Redirect(_) => &["PREROUTING", "OUTPUT"],
        Target::Snat(_) => &["POSTROUTING", "INPUT"],
        Target::Masquerade(_) => &["POSTROUTING"],
        Target::Tproxy(_) => &["PREROUTING"],
        Target::Reject(_) => &["INPUT", "FORWARD", "OUTPUT"],
        _ => &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
    }
}
