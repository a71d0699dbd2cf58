//! Steps of chains, rules and jumps.

use kernlink_engine::plan::{Needs, Subject};
use kernlink_iptables_restore::{Edit, Operation, Ownership, Restore, Ruleset, diff_operations};
use kernlink_services::Family;

use super::{Need, Planner};
use crate::error::Error;
use crate::key::Key;
use crate::order::Phase;
use crate::rules;
use crate::sets::SetId;
use crate::state::{Emptying, ObservedRules, State};

impl Planner<'_, '_, '_> {
    pub(super) fn rules(&mut self, rules: Vec<RulesPlan>) {
        for (family, operations, _) in rules {
            let is_needed =
                |id: &SetId| self.state.is_read_by_rules(family, *id) && !self.is_set_in_place(family, *id);
            let sets = SetId::ALL.iter().copied().filter(is_needed);
            let needs: Vec<Need> = sets
                .flat_map(|id| self.builder.steps_of(&Key::Set(family, id)))
                .collect();
            let mut steps: Vec<Need> = Vec::new();
            for (position, operation) in operations.unwrap_or_default().into_iter().enumerate() {
                let key = match operation {
                    Operation::EnsureJump { .. } => Key::Jump(family, position),
                    _ => Key::Rules(family),
                };
                // A jump needs the chain that is its target.
                let needs = Needs::all(needs.iter().chain(&steps).cloned());
                let need = self
                    .builder
                    .push(Phase::Rules, key, Subject::DataPath, operation, needs);
                steps.push(need);
            }
            self.rules.insert(family, steps);
        }
    }

    /// The needs of a step that requires the rules of a family to be in place.
    pub(super) fn rules_needs(&self, family: Family) -> Vec<Need> {
        let chains = &self.state.chains[family.index()];
        match self.rules.get(&family) {
            Some(steps) if chains.pending.is_some() => steps.clone(),
            None if chains.is_in_place && !chains.is_unread => Vec::new(),
            _ => vec![Need::Waiting(Key::Rules(family))],
        }
    }

    /// Removes the rules of sets that became empty.
    pub(super) fn remove_rules(&mut self) {
        for family in self.families() {
            let chains = &self.state.chains[family.index()];
            let Some(interim) = chains
                .interim
                .as_ref()
                .filter(|_| chains.is_dirty && !chains.is_unread)
            else {
                continue;
            };
            let mut needs = self.rules_needs(family);
            for id in self.state.emptied(family) {
                for (entry, ()) in self.state.entries[family.index()][id.index()].iter_observed() {
                    let key = Key::Entry(family, id, entry.clone());
                    needs.extend(self.builder.after(&key, false));
                }
            }
            self.builder.push(
                Phase::RemoveRules,
                Key::Rules(family),
                Subject::DataPath,
                (*interim.removal).clone(),
                Needs::all(needs),
            );
        }
    }
}

/// A family, the operations that bring its chains and jumps in place, and the rules that are in place then if they differ from the desired
/// ones. The operations are `None` if the host does not support the tables of the family.
pub(super) type RulesPlan = (Family, Option<Vec<Operation>>, Option<Emptying>);

/// The plan for the chains and jumps of each dirty family.
pub(super) fn plan_rules(state: &State) -> Vec<RulesPlan> {
    let dirty = state.managed.iter().copied();
    let dirty = dirty.filter(|family| {
        let chains = &state.chains[family.index()];
        chains.is_dirty && !chains.is_unread && state.are_rule_sets_known(*family)
    });
    dirty
        .map(|family| {
            let interim = interim(state, family);
            let desired = match &interim {
                Some(interim) => (*interim.rules).clone(),
                None => state.rules(family),
            };
            (family, rules_operations(state, family, &desired), interim)
        })
        .collect()
}

/// The rules of a family while sets become empty, if they differ from the desired ones.
fn interim(state: &State, family: Family) -> Option<Emptying> {
    let rules = state.interim_rules(family)?;
    let removal = changed_chains(family, &rules, &state.rules(family))?;
    Some(Emptying {
        rules: Box::new(rules),
        removal: Box::new(removal.into()),
    })
}

fn rules_operations(state: &State, family: Family, rules: &Ruleset) -> Option<Vec<Operation>> {
    let desired = rules::desired(family, rules);
    match &state.chains[family.index()].observed {
        // Foreign rules may jump to these chains too, such as those of host ports to `KUBE-MARK-MASQ`; they are not changed.
        ObservedRules::Saved(saved) => {
            let owned = Ownership::new().with_foreign_jumps();
            Some(diff_operations(saved, &desired, &owned))
        }
        ObservedRules::Written(written) if state.chains[family.index()].is_in_place => {
            let changed = changed_chains(family, written, rules);
            Some(changed.into_iter().map(Into::into).collect())
        }
        // A host without the tables of a family is accepted if it serves no Services in that family.
        ObservedRules::Unreadable(Error::Rules(error), _)
            if error.is_unsupported() && !has_servers(state, family) =>
        {
            None
        }
        // If a step failed since the chains were written, the jumps may be missing too.
        ObservedRules::Unreadable(..) | ObservedRules::Unknown | ObservedRules::Written(_) => {
            let jumps = desired
                .jumps()
                .map(|(table, jump)| Operation::ensure_jump(family, table, jump.clone()));
            let restore = Operation::from(desired.to_restore());
            Some(std::iter::once(restore).chain(jumps).collect())
        }
    }
}

fn has_servers(state: &State, family: Family) -> bool {
    let mut servers = state.servers.iter_desired();
    servers.any(|(key, _)| key.address().map(Family::of) == Some(family))
}

/// The restore that writes the chains that differ from those written last; `None` if none differs.
fn changed_chains(family: Family, written: &Ruleset, desired: &Ruleset) -> Option<Restore> {
    let mut restore = Restore::new(family);
    for (table, chains) in desired.tables() {
        let changed: Vec<_> = chains
            .chains()
            .filter(|(name, chain)| {
                let known = written.chain(table, name);
                known.is_none_or(|known| !known.rules().eq(chain.rules()))
            })
            .collect();
        if changed.is_empty() {
            continue;
        }
        let edits = restore.table_mut(table);
        edits.extend(changed.iter().map(|(name, _)| Edit::declare(**name)));
        for (name, chain) in changed {
            edits.extend(chain.rules().map(|rule| Edit::append(*name, rule.clone())));
        }
    }
    (!restore.is_empty()).then_some(restore)
}
