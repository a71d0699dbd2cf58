//! Steps of the ledger other than the addition and removal of entries of single frontends.

use kernlink_engine::plan::{Needs, Subject};
use kernlink_ipset::Entry;
use kernlink_services::Family;

use super::entries::delete_entry;
use super::{Need, Planner, ServerDifference};
use crate::key::Key;
use crate::order::Phase;
use crate::ownership::{Identified, identified};
use crate::replacement::{Replacement, definition_for};
use crate::sets::{self, SetId};

const ID: SetId = SetId::Ledger;

impl Planner<'_, '_, '_> {
    /// Writes all owned virtual servers into each ledger that is empty although there are some.
    pub(super) fn write_ledgers(&mut self) {
        let families = self.state.without_ledger.iter().copied();
        let families: Vec<Family> = families
            .filter(|family| self.may_change_set(*family, ID))
            .collect();
        for family in families {
            let servers = self.state.servers.iter_observed();
            let owned = servers
                .filter(|(key, server)| server.is_owned && key.address().map(Family::of) == Some(family));
            let mut entries: Vec<Entry> = owned
                .filter_map(|(key, _)| sets::of_virtual_server(key))
                .collect();
            entries.sort_unstable();
            let set = definition_for(&ID.definition(family), entries.len());
            let replacement = Replacement {
                set,
                entries: entries.clone(),
            };
            let needs = Needs::all(self.set_needs(family, ID));
            let key = Key::Set(family, ID);
            let need = self
                .builder
                .push(Phase::Ledger, key, Subject::DataPath, replacement, needs);
            for entry in &entries {
                self.builder
                    .include(Key::Entry(family, ID, entry.clone()), need.clone());
            }
            self.ledgers.insert(family, (need, entries));
        }
    }

    /// The step that an addition to the ledger of a family needs.
    pub(super) fn ledger_need(&self, family: Family) -> Option<Need> {
        self.ledgers.get(&family).map(|(need, _)| need.clone())
    }

    /// The step that a change of a foreign virtual server needs, which makes it owned: its entry in the ledger.
    pub(super) fn adoption_needs(&self, difference: &ServerDifference<'_>) -> Vec<Need> {
        let is_foreign = difference.observed.is_some_and(|known| !known.is_owned);
        let family = difference.key.address().map(Family::of);
        match (family, sets::of_virtual_server(difference.key)) {
            (Some(family), Some(entry)) if is_foreign => self.entry_needs(family, ID, entry),
            _ => Vec::new(),
        }
    }

    /// Removes the entries of withdrawn virtual servers from the ledgers that this plan writes.
    pub(super) fn remove_ledger_entries(&mut self) {
        for (family, (written, entries)) in std::mem::take(&mut self.ledgers) {
            let table = &self.state.entries[family.index()][ID.index()];
            for entry in entries.iter().filter(|entry| !table.is_desired(entry)) {
                let Some(Identified::VirtualServer(server)) = identified(ID, entry) else {
                    continue;
                };
                let deleted = self.builder.after(&Key::VirtualServer(server), false);
                self.builder.push(
                    Phase::RemoveEntries,
                    Key::Entry(family, ID, entry.clone()),
                    Subject::DataPath,
                    delete_entry(family, ID, entry),
                    Needs::all(deleted.into_iter().chain([written.clone()])),
                );
            }
        }
    }
}
