//! Which objects are to be compared, and which of them another program changed.

use std::collections::BTreeSet;

use kernlink_engine::DataPath;
use kernlink_engine::plan::Subject;
use kernlink_services::Family;

use super::State;
use crate::key::Key;
use crate::port_chain::subject_of;

impl State {
    /// Makes all parts dirty of each operation that failed and of which one part is dirty. An operation on a Service changes several chains and
    /// rules in one transaction: if only some of them were compared, a chain that others still jump to would be emptied. The next operation with
    /// the same key replaces the one that failed, so it has all parts of it too.
    pub(crate) fn complete_dirty(&mut self) {
        let mut clean: Vec<Key> = self.touched.keys().cloned().collect();
        while !clean.is_empty() {
            let planned = self.written_keys();
            let before = clean.len();
            // Two operations may have a part in common.
            clean.retain(|key| {
                let is_dirty = planned.contains(key) || self.is_dirty(key);
                if is_dirty {
                    self.set_dirty(key);
                }
                !is_dirty
            });
            if clean.len() == before {
                return;
            }
        }
    }

    /// The keys of operations that write dirty chains and rules of Services.
    fn written_keys(&self) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        for family in Family::ALL {
            let chains = self.chains[family.index()].unsorted_differences();
            let chains = chains
                .into_iter()
                .filter(|chain| chain.desired.is_some() || chain.observed.is_some())
                .map(|chain| chain.subject);
            let rules = self.rules[family.index()].unsorted_differences();
            let rules = rules
                .into_iter()
                .filter(|rule| rule.desired.is_some() != rule.observed.is_some())
                .map(subject_of);
            for subject in chains.chain(rules) {
                match subject {
                    Subject::Service(name) => keys.extend(Key::of_service(family, &name)),
                    _ => _ = keys.insert(Key::Leftovers(family)),
                }
            }
        }
        keys
    }

    /// Forgets the operations on replaced rules that the plan compares: it makes them again, or they are parts of other operations now.
    pub(crate) fn forget_replaced(&mut self) {
        let replaced = self.touched.keys().filter(|key| matches!(key, Key::Replaced(..)));
        let compared: Vec<Key> = replaced.filter(|key| self.is_dirty(key)).cloned().collect();
        for key in compared {
            self.touched.remove(&key);
        }
    }
}
