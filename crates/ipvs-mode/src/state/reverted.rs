//! Which objects the last listing found changed by another program.

use super::{ObservedRules, State};
use crate::key::Key;
use crate::recheck::is_as_written;

impl State {
    /// The object that a step with this key repairs, if the last listing found it changed or removed.
    pub(crate) fn reverted(&self, key: &Key) -> Option<Key> {
        let is_undone = match key {
            Key::Sysctl(name) => self.sysctls.is_changed(name),
            Key::Set(family, set) => self.sets.is_changed(&(*family, *set)),
            Key::Entry(family, set, entry) => self.entries[family.index()][set.index()].is_changed(entry),
            Key::Rules(family) | Key::Jump(family, _) => {
                let chains = &self.chains[family.index()];
                let is_changed = match (&chains.before, &chains.observed) {
                    (Some(before), ObservedRules::Saved(saved)) => !is_as_written(*family, saved, before),
                    _ => false,
                };
                // The position of a jump is that of its step.
                return is_changed.then_some(Key::Rules(*family));
            }
            Key::VirtualServer(key) | Key::RealServer(key, _) => self.servers.is_changed(key),
            Key::Address(key) => self.addresses.is_changed(key),
            // With a link its addresses are removed. Deadlines end by themselves.
            Key::Link(_)
            | Key::TemporarySet(..)
            | Key::DrainSet(_)
            | Key::Deadline(..)
            | Key::Timeouts
            | Key::Flows(_) => false,
        };
        is_undone.then(|| key.clone())
    }
}
