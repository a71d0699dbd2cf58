//! What a restore makes of a rule set, and what the tools and the kernel refuse, without either.

use std::collections::HashSet;

use crate::chain::ChainName;
use crate::condition::Condition;
use crate::error::{Error, Refused, RefusedKind};
use crate::family::Family;
use crate::matches::{Match, SetReference};
use crate::network::Protocol;
use crate::restore::{Edit, Restore, RestoreMode};
use crate::rule::Rule;
use crate::ruleset::{Chain, CountedRule, Ruleset, TableRules};
use crate::table::{Policy, Table};
use crate::targets::{RejectWith, Target};

/// Why a restore is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) table: Table,
    /// Which edit of the table; none if it is the table as a whole.
    pub(crate) place: Option<usize>,
    pub(crate) kind: RefusedKind,
    pub(crate) reason: &'static str,
}

impl Refusal {
    /// As the error that a tool leads to.
    pub(crate) fn to_error(&self, restore: &Restore) -> Error {
        let edits: &[Edit] = restore
            .tables()
            .find(|(table, _)| *table == self.table)
            .map_or(&[], |(_, edits)| edits);
        let refused = match self.place.and_then(|place| edits.get(place)) {
            Some(edit) => Refused::Edit {
                table: self.table,
                edit: edit.clone(),
            },
            None => Refused::Table(self.table),
        };
        Error::Refused {
            tool: format!("{}-restore (in memory)", restore.family.tool()),
            refused: Box::new(refused),
            kind: self.kind,
            text: self.reason.into(),
            status: Some(1),
            applied: restore.tables_before(self.table),
        }
    }
}

type Step = Result<(), (RefusedKind, &'static str)>;

const NO_CHAIN: (RefusedKind, &str) = (RefusedKind::NotFound, "No chain/target/match by that name.");

/// Does `restore` on `ruleset`, table by table. A refused table is left as it was, and those after it too.
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
        let mut work = Work {
            family: restore.family,
            table,
            rules,
            sets,
        };
        for (place, edit) in edits.iter().enumerate() {
            work.edit(edit).map_err(|(kind, reason)| Refusal {
                table,
                place: Some(place),
                kind,
                reason,
            })?;
        }
        work.commit(edits)?;
        *ruleset.table_mut(table) = work.rules;
    }
    Ok(())
}

/// The table as the kernel makes it.
pub(crate) fn empty_table(table: Table) -> TableRules {
    let mut rules = TableRules::new();
    for name in table.builtin_chains() {
        if let Ok(name) = ChainName::new(name) {
            rules.insert(name, Chain::default().with_policy(Policy::Accept));
        }
    }
    rules
}

/// The built-in chains without rules, policies and counters as they are.
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

struct Work<'s> {
    family: Family,
    table: Table,
    rules: TableRules,
    sets: Option<&'s HashSet<String>>,
}

impl Work<'_> {
    fn edit(&mut self, edit: &Edit) -> Step {
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
                let place = position.map_or(0, |position| position.get() as usize - 1);
                let rule = CountedRule {
                    rule: rule.normal_form(self.family),
                    counters: Some(Default::default()),
                };
                if !self.chain(chain)?.insert(place, rule) {
                    return Err((RefusedKind::NotFound, "Index of insertion too big."));
                }
            }
            Edit::Delete { chain, rule } => {
                let family = self.family;
                let known = self.chain(chain)?;
                let normal = rule.normal_form(family);
                let same = |known: &Rule| *known == normal || known.normal_form(family) == normal;
                let place = known.slots().position(|known| known.is_some_and(same));
                if !place.is_some_and(|place| known.remove(place)) {
                    let reason = "Bad rule (does a matching rule exist in that chain?).";
                    return Err((RefusedKind::NotFound, reason));
                }
            }
            Edit::DeleteAt { chain, position } => {
                let place = position.get() as usize - 1;
                if !self.chain(chain)?.remove(place) {
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
                        .any(|(_, other)| other.rules().any(|rule| leads_to(rule, chain)))
                    || self.rules.unreadable().iter().any(|line| line.leads_to(chain));
                if used {
                    return Err((RefusedKind::InUse, "Device or resource busy"));
                }
                self.rules.remove(chain);
            }
        }
        Ok(())
    }

    fn chain(&mut self, name: &ChainName) -> Result<&mut Chain, (RefusedKind, &'static str)> {
        self.rules.known_mut(name).ok_or(NO_CHAIN)
    }

    /// What the tools refuse on reading a rule.
    fn check_rule(&self, chain: &ChainName, rule: &Rule) -> Step {
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
            let needs = match test {
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
            if protocol != Some(needs.number()) {
                return Err((INVALID, "a match needs the protocol it belongs to"));
            }
        }
        if let Some(Target::Set(set)) = &rule.target {
            self.check_set(&set.set)?;
        }
        if rule.target == Some(Target::Reject(Some(RejectWith::TcpReset))) && protocol != Some(6) {
            return Err((INVALID, "tcp-reset needs -p tcp"));
        }
        Ok(())
    }

    fn check_set(&self, set: &SetReference) -> Step {
        match self.sets {
            Some(sets) if !sets.contains(set.name.as_str()) => {
                Err((RefusedKind::NotFound, "Set doesn't exist."))
            }
            _ => Ok(()),
        }
    }

    /// What the kernel refuses of the table as a whole.
    fn commit(&self, edits: &[Edit]) -> Result<(), Refusal> {
        let refused = |place, reason| Refusal {
            table: self.table,
            place,
            kind: RefusedKind::Other,
            reason,
        };
        for (place, edit) in edits.iter().enumerate() {
            if let Some(target) = edit.rule().and_then(|rule| rule.target.as_ref())
                && !tables_of(target).contains(&self.table)
            {
                return Err(refused(Some(place), "the target is not for this table"));
            }
        }
        for hook in self.table.builtin_chains() {
            let Ok(hook) = ChainName::new(hook) else { continue };
            if !self.may_stand_behind(&hook) {
                let culprit = edits.iter().position(|edit| {
                    edit.rule().is_some_and(|rule| {
                        rule.target.as_ref().is_some_and(|target| {
                            target.chain().is_some() || !hooks_of(target).contains(&hook.as_str())
                        })
                    })
                });
                return Err(refused(
                    culprit,
                    "chains make a loop, or a target is not for this hook",
                ));
            }
        }
        Ok(())
    }

    /// Follows the jumps from a hook; false on a loop or on a target that may not be there.
    ///
    /// Without recursion, because chains may be as deep as there are chains.
    fn may_stand_behind(&self, hook: &ChainName) -> bool {
        // The chains on the way from the hook, each with the targets not looked at yet.
        let mut way = Vec::new();
        let mut on_the_way = HashSet::from([*hook]);
        let mut seen = HashSet::from([*hook]);
        let targets = |name: &ChainName| {
            let rules = self.rules.chain(name).into_iter().flat_map(Chain::rules);
            rules.filter_map(|rule| rule.target.as_ref())
        };
        way.push((*hook, targets(hook)));
        while let Some((name, rest)) = way.last_mut() {
            match rest.next().map(|target| (target, target.chain())) {
                Some((_, Some(next))) if on_the_way.contains(next) => return false,
                Some((_, Some(next))) => {
                    if seen.insert(*next) {
                        on_the_way.insert(*next);
                        way.push((*next, targets(next)));
                    }
                }
                Some((target, None)) if !hooks_of(target).contains(&hook.as_str()) => return false,
                Some(_) => {}
                None => {
                    on_the_way.remove(name);
                    way.pop();
                }
            }
        }
        true
    }
}

fn leads_to(rule: &Rule, chain: &ChainName) -> bool {
    rule.target.as_ref().and_then(Target::chain) == Some(chain)
}

/// Tables a target is for. Source: the `table` of each `xt_target` in `net/netfilter/`, Linux 6.1.
fn tables_of(target: &Target) -> &'static [Table] {
    match target {
        Target::Dnat(_) | Target::Snat(_) | Target::Masquerade(_) | Target::Redirect(_) => &[Table::Nat],
        Target::Notrack | Target::Ct(_) => &[Table::Raw],
        Target::Tproxy(_) => &[Table::Mangle],
        Target::Reject(_) => &[Table::Filter],
        _ => &Table::ALL,
    }
}

/// Hooks a target is for. Source: the `hooks` of each `xt_target` in `net/netfilter/`, Linux 6.1.
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
