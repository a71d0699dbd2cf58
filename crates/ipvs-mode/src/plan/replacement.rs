//! Steps that replace sets that are too small.

use kernlink_engine::plan::{Needs, Subject};
use kernlink_ipset::{Entry, IfExists, Operation, Set};
use kernlink_services::Family;

use super::Planner;
use crate::key::Key;
use crate::order::Phase;
use crate::replacement::{Replacement, definition_for, temporary_of};
use crate::sets::{SetId, is_usable};

impl Planner<'_, '_, '_> {
    /// Replaces sets that are too small: for their entries, or for those that kube-proxy's definition allows. The additions of entries do
    /// not need the replacement; those that fit are made if it fails.
    pub(super) fn replace_small_sets(&mut self) {
        for family in self.families() {
            for id in SetId::ALL
                .iter()
                .copied()
                .filter(|id| self.state.is_set_known(family, *id))
            {
                let sets = &self.state.sets;
                let key = (family, id);
                let (Some(observed), Some(desired)) = (sets.observed(&key), sets.desired(&key)) else {
                    continue;
                };
                let (Some(actual), Some(least)) = (observed.options.maxelem, desired.options.maxelem) else {
                    continue;
                };
                let most = self.most_entries(family, id);
                // The timeouts of entries are not recorded, so they would be lost.
                let has_timeouts = observed.options.timeout.is_some();
                let is_large_enough = actual >= least && most <= actual as usize;
                if is_large_enough || has_timeouts || !is_usable(observed, desired) {
                    continue;
                }
                let key = Key::Set(family, id);
                if self.builder.is_waiting(&key) {
                    continue;
                }
                let replacement = self.replacement(family, id, desired);
                let subject = Subject::DataPath;
                self.builder
                    .push(Phase::Sets, key, subject, replacement, Needs::none());
            }
        }
    }

    /// A replacement of a set with the same entries.
    pub(super) fn replacement(&self, family: Family, id: SetId, desired: &Set) -> Replacement {
        let table = &self.state.entries[family.index()][id.index()];
        let mut entries: Vec<Entry> = table.iter_observed().map(|(entry, ())| entry.clone()).collect();
        entries.sort_unstable();
        Replacement {
            set: definition_for(desired, self.most_entries(family, id)),
            entries,
        }
    }

    /// Destroys temporary sets that a process left which ended while it replaced a set.
    pub(super) fn destroy_temporary_sets(&mut self) {
        for difference in self.state.temporary_sets.differences() {
            let (family, id) = *difference.key;
            if difference.observed.is_some() {
                let operation = Operation::Destroy {
                    set: temporary_of(family, id),
                    if_exists: IfExists::Succeed,
                };
                let key = Key::TemporarySet(family, id);
                let subject = difference.subject;
                self.builder
                    .push(Phase::Sets, key, subject, operation, Needs::none());
            }
        }
    }

    /// The number of entries that a set has at most during this plan: additions precede removals. A lower number if the definition allows
    /// more than enough.
    pub(super) fn most_entries(&self, family: Family, id: SetId) -> usize {
        let table = &self.state.entries[family.index()][id.index()];
        let present = table.iter_observed().len();
        let limit = self
            .state
            .sets
            .desired(&(family, id))
            .and_then(|set| set.options.maxelem);
        // The exact number is computed only if it matters.
        if limit.is_none_or(|limit| present + table.len() <= limit as usize) {
            return present;
        }
        let differences = table.differences().into_iter();
        let added =
            differences.filter(|difference| difference.desired.is_some() && difference.observed.is_none());
        // As many as are desired, also if those that are missing wait for their own retries.
        (present + added.count()).max(table.len())
    }
}
