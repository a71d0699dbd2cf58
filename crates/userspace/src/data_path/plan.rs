//! Makes a plan: compares the dirty objects and adds the steps that change them.

use std::collections::{BTreeMap, BTreeSet};

use kernlink_iptables_restore::{Edit, Restore, Rule, Table};
use kernlink_proxier::Subject;
use kernlink_proxier::plan::{Needs, PlanBuilder};
use kernlink_services::Family;

use super::UserspaceMode;
use super::chains::PortalChain;
use super::key::{Key, RulesKey};
use super::operation::{Operation, Write};
use super::order::Phase;
use super::state::{RuleKey, State};
use crate::proxy::{ListenerKey, Transport};

type Need = kernlink_proxier::plan::Need<Key>;
type Builder<'a> = PlanBuilder<'a, UserspaceMode>;

/// Adds the steps for everything that is dirty.
pub(super) fn plan(state: &mut State, builder: &mut Builder<'_>) {
    let listeners = plan_listeners(state, builder);
    let claims = plan_claims(state, builder);
    let mut deletions: BTreeMap<(Family, Transport, u16), Vec<Need>> = BTreeMap::new();
    for family in state.managed.clone() {
        if !state.chains[family.index()].is_readable {
            continue;
        }
        let mut chains = BTreeMap::new();
        for table in [Table::Filter, Table::Nat] {
            chains.extend(plan_chains(state, family, table, builder).map(|need| (table, need)));
        }
        let opened = Opened {
            listeners: &listeners,
            claims: &claims,
            chains: &chains,
        };
        plan_rules(state, family, &opened, builder, &mut deletions);
    }
    plan_closing(state, builder, &deletions);
}

fn plan_listeners(state: &State, builder: &mut Builder<'_>) -> BTreeMap<ListenerKey, Need> {
    let mut needs = BTreeMap::new();
    for difference in state.listeners.differences() {
        let Some(desired) = difference.desired else {
            continue;
        };
        if difference.observed == Some(desired) {
            continue;
        }
        let key = *difference.key;
        let operation = Operation::Listen {
            key,
            portal: desired.portal.clone(),
            serving: desired.serving.clone(),
        };
        let need = builder.push(
            Phase::Listeners,
            Key::Listener(key),
            difference.subject,
            operation,
            Needs::none(),
        );
        needs.insert(key, need);
    }
    needs
}

fn plan_claims(state: &State, builder: &mut Builder<'_>) -> BTreeMap<ListenerKey, Need> {
    let mut needs = BTreeMap::new();
    for difference in state.claims.differences() {
        if difference.desired.is_some() && difference.observed.is_none() {
            let key = *difference.key;
            let operation = Operation::Claim(key);
            let need = builder.push(
                Phase::Claims,
                Key::Claim(key),
                difference.subject,
                operation,
                Needs::none(),
            );
            needs.insert(key, need);
        }
    }
    needs
}

/// Creates the missing chains and jumps of a table. Returns what rules in these chains need.
fn plan_chains(state: &State, family: Family, table: Table, builder: &mut Builder<'_>) -> Option<Need> {
    let observed = &state.chains[family.index()];
    let of_table = || {
        PortalChain::ALL
            .into_iter()
            .filter(|chain| chain.table() == table)
    };
    let chains: Vec<PortalChain> = of_table()
        .filter(|chain| !observed.present.contains(chain) || observed.unreadable.contains(chain))
        .collect();
    let jumps: Vec<PortalChain> = of_table()
        .filter(|chain| !observed.jumps.contains(chain))
        .collect();
    if chains.is_empty() && jumps.is_empty() {
        return None;
    }
    let key = Key::Chains(family, table);
    if !state.dirty_chains.contains(&(family, table)) {
        return Some(Need::Waiting(key));
    }
    let mut restore = Restore::new(family);
    let edits = restore.table_mut(table);
    edits.extend(chains.iter().map(|chain| Edit::declare(chain.name())));
    // Each is inserted at the top: the last one becomes the first rule.
    edits.extend(jumps.iter().map(|chain| chain.add_jump()));
    let mut rules = Vec::new();
    for chain in &chains {
        let observed = state.rules[family.index()].iter_observed();
        let emptied = observed.filter(|(rule, _)| rule.chain == *chain);
        rules.extend(emptied.map(|(rule, _)| (rule.clone(), false)));
    }
    let write = Write {
        restore,
        key: key.clone(),
        rules,
        chains,
        jumps,
    };
    let need = builder.push(Phase::Chains, key, Subject::DataPath, write, Needs::none());
    Some(need)
}

/// What steps of this plan open or create.
struct Opened<'a> {
    listeners: &'a BTreeMap<ListenerKey, Need>,
    claims: &'a BTreeMap<ListenerKey, Need>,
    chains: &'a BTreeMap<Table, Need>,
}

/// The rules of one operation.
#[derive(Default)]
struct Part {
    subject: Option<Subject>,
    /// With their positions.
    added: Vec<(usize, RuleKey)>,
    /// With the number of copies.
    deleted: Vec<(RuleKey, usize)>,
    needs: BTreeSet<ListenerKey>,
    claims: BTreeSet<ListenerKey>,
}

fn plan_rules(
    state: &mut State,
    family: Family,
    opened: &Opened<'_>,
    builder: &mut Builder<'_>,
    deletions: &mut BTreeMap<(Family, Transport, u16), Vec<Need>>,
) {
    let mut parts: BTreeMap<RulesKey, Part> = BTreeMap::new();
    // The step that creates the chains empties these.
    let emptied = &state.chains[family.index()].unreadable;
    for difference in state.rules[family.index()].differences() {
        let rule = difference.key;
        let observed = difference.observed.filter(|_| !emptied.contains(&rule.chain));
        let count = observed.copied().unwrap_or(0);
        match difference.desired {
            Some(needs) if count == 0 => {
                let part = parts.entry(rule.with).or_default();
                part.subject = Some(difference.subject);
                part.added.push((needs.position, rule.clone()));
                part.needs.insert(needs.listener);
                part.claims.extend(needs.claims.iter());
            }
            Some(_) if count > 1 => {
                let part = parts.entry(rule.with).or_default();
                part.subject.get_or_insert(difference.subject);
                part.deleted.push((rule.clone(), count - 1));
            }
            None if count > 0 => {
                let part = parts.entry(rule.with).or_default();
                part.subject.get_or_insert(difference.subject);
                part.deleted.push((rule.clone(), count));
            }
            _ => {}
        }
    }
    let mut touched = Vec::new();
    for (with, mut part) in parts {
        let key = Key::Rules(with);
        let mut needs: Vec<Need> = Vec::new();
        for listener in &part.needs {
            let is_open = state.listeners.is_observed(listener);
            let waiting = || Need::Waiting(Key::Listener(*listener));
            needs.extend((!is_open).then(|| opened.listeners.get(listener).cloned().unwrap_or_else(waiting)));
        }
        for claim in &part.claims {
            let is_claimed = state.claims.is_observed(claim);
            let waiting = || Need::Waiting(Key::Claim(*claim));
            needs.extend((!is_claimed).then(|| opened.claims.get(claim).cloned().unwrap_or_else(waiting)));
        }
        let table = with.part.table();
        needs.extend(opened.chains.get(&table).cloned());
        let phase = if part.added.is_empty() {
            Phase::Deletions
        } else {
            Phase::Additions
        };
        let has_deletions = part
            .deleted
            .iter()
            .any(|(rule, _)| !state.rules[family.index()].is_desired(rule));
        let subject = part.subject.take().unwrap_or(Subject::DataPath);
        touched.push((with, part.touched()));
        let Some(write) = part.write(family, table, key.clone(), state) else {
            continue;
        };
        let need = builder.push(phase, key, subject, write, Needs::all(needs));
        if has_deletions {
            deletions
                .entry((family, with.transport, with.port))
                .or_default()
                .push(need);
        }
    }
    // Those of failed steps that are not planned now are kept until they are done.
    state.touched.extend(touched);
}

impl Part {
    fn touched(&self) -> Vec<RuleKey> {
        let deleted = self.deleted.iter().map(|(rule, _)| rule.clone());
        self.added
            .iter()
            .map(|(_, rule)| rule.clone())
            .chain(deleted)
            .collect()
    }

    /// Rules are added before others are deleted: the kernel applies the table as a whole, and no frontend is without a rule.
    fn write(mut self, family: Family, table: Table, key: Key, state: &State) -> Option<Write> {
        self.added.sort();
        let mut edits = Vec::new();
        let mut rules = Vec::new();
        for (_, rule) in self.added {
            edits.push(Edit::append(rule.chain.name(), rule.text.parse::<Rule>().ok()?));
            rules.push((rule, true));
        }
        for (rule, copies) in self.deleted {
            let text = rule.text.parse::<Rule>().ok()?;
            let delete = || Edit::delete(rule.chain.name(), text.clone());
            edits.extend((0..copies).map(|_| delete()));
            let is_desired = state.rules[family.index()].is_desired(&rule);
            rules.push((rule, is_desired));
        }
        let mut restore = Restore::new(family);
        *restore.table_mut(table) = edits;
        Some(Write {
            restore,
            key,
            rules,
            chains: Vec::new(),
            jumps: Vec::new(),
        })
    }
}

/// Closes what is no longer desired, after the rules that lead to it.
fn plan_closing(
    state: &State,
    builder: &mut Builder<'_>,
    deletions: &BTreeMap<(Family, Transport, u16), Vec<Need>>,
) {
    for difference in state.listeners.differences() {
        if difference.desired.is_some() || difference.observed.is_none() {
            continue;
        }
        let key = *difference.key;
        let of = (Family::of(key.address.ip()), key.transport, key.address.port());
        let needs = Needs::all(deletions.get(&of).into_iter().flatten().cloned());
        let operation = Operation::Close(key);
        builder.push(
            Phase::Closing,
            Key::Listener(key),
            difference.subject,
            operation,
            needs,
        );
    }
    for difference in state.claims.differences() {
        if difference.desired.is_none() && difference.observed.is_some() {
            let key = *difference.key;
            let operation = Operation::Release(key);
            builder.push(
                Phase::Releases,
                Key::Claim(key),
                difference.subject,
                operation,
                Needs::none(),
            );
        }
    }
}
