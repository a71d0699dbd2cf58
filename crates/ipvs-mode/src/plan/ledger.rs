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
            let needs = Needs::all(self.set_need(family, ID));
            let key = Key::Set(family, ID);
            let need = self
                .builder
                .push(Phase::Ledger, key, Subject::DataPath, replacement, needs);
            for entry in &entries {
                self.entries.insert((family, ID, entry.clone()), need.clone());
            }
            self.ledgers.insert(family, (need, entries));
        }
    }

    /// The step that an addition to the ledger of a family needs.
    pub(super) fn ledger_need(&self, family: Family) -> Option<Need> {
        self.ledgers.get(&family).map(|(need, _)| need.clone())
    }

    /// The step that a change of a foreign virtual server needs, which makes it owned: its entry in the ledger.
    pub(super) fn adoption_need(&self, difference: &ServerDifference<'_>) -> Option<Need> {
        difference.observed.filter(|known| !known.is_owned)?;
        let family = difference.key.address().map(Family::of)?;
        let key = (family, ID, sets::of_virtual_server(difference.key)?);
        if self.state.entries[family.index()][ID.index()].is_observed(&key.2) {
            return None;
        }
        let need = self.entries.get(&key).cloned();
        Some(need.unwrap_or(Need::Waiting(Key::Entry(key.0, key.1, key.2))))
    }

    /// Removes the entries of withdrawn virtual servers from the ledgers that this plan writes.
    pub(super) fn remove_ledger_entries(&mut self) {
        for (family, (written, entries)) in std::mem::take(&mut self.ledgers) {
            let table = &self.state.entries[family.index()][ID.index()];
            for entry in entries.iter().filter(|entry| !table.is_desired(entry)) {
                let Some(Identified::VirtualServer(server)) = identified(ID, entry) else {
                    continue;
                };
                let deleted = self.deleted.get(&server).cloned();
                let deleted = deleted.unwrap_or(Need::Waiting(Key::VirtualServer(server)));
                self.builder.push(
                    Phase::RemoveEntries,
                    Key::Entry(family, ID, entry.clone()),
                    Subject::DataPath,
                    delete_entry(family, ID, entry),
                    Needs::all([written.clone(), deleted]),
                );
            }
        }
    }
}
