//! The types of sets that a client remembers.

use std::collections::BTreeSet;

use super::batch::Types;
use crate::client::Client;
use crate::name::SetName;
use crate::set::SetContents;

impl Client {
    /// The remembered types of these sets.
    pub(super) fn remembered_types(&self, names: &BTreeSet<SetName>) -> Types {
        let remembered = self.remembered.iter().flatten();
        remembered
            .filter(|(name, _)| names.contains(*name))
            .map(|(name, set_type)| (*name, Ok(*set_type)))
            .collect()
    }

    /// Remembers the types of sets whose entries were changed.
    pub(super) fn remember_types(&mut self, types: Types) {
        if let Some(remembered) = &mut self.remembered {
            let known = types
                .into_iter()
                .filter_map(|(name, set_type)| Some((name, set_type.ok()?)));
            remembered.extend(known);
        }
    }

    /// Remembers the types in a listing of one set or of all.
    pub(super) fn remember_listed(&mut self, name: Option<&SetName>, sets: &[SetContents]) {
        let Some(remembered) = &mut self.remembered else {
            return;
        };
        match name {
            Some(name) => _ = remembered.remove(name),
            None => remembered.clear(),
        }
        let headers = sets.iter().map(|set| &set.header.set);
        remembered.extend(headers.map(|set| (set.name, (set.set_type, set.family))));
    }

    /// Forgets all types.
    pub(super) fn forget_types(&mut self) {
        self.remembered
            .iter_mut()
            .for_each(std::collections::BTreeMap::clear);
    }
}
