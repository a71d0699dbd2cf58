//! Which objects are to be compared, and which of them another program changed.

use kernlink_engine::DataPath;

use super::State;
use crate::key::Key;

impl State {
    /// Makes all parts dirty of each operation that failed and of which one part is dirty. An operation on a Service changes several chains and
    /// rules in one transaction: if only some of them were compared, a chain that others still jump to would be emptied.
    pub(crate) fn complete_dirty(&mut self) {
        let mut clean: Vec<Key> = self.touched.keys().cloned().collect();
        loop {
            let before = clean.len();
            // Two operations may have a part in common.
            clean.retain(|key| {
                let is_dirty = self.is_dirty(key);
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

    /// Forgets the operations on replaced rules that the plan compares: it makes them again, or they are parts of other operations now.
    pub(crate) fn forget_replaced(&mut self) {
        let replaced = self.touched.keys().filter(|key| matches!(key, Key::Replaced(..)));
        let compared: Vec<Key> = replaced.filter(|key| self.is_dirty(key)).cloned().collect();
        for key in compared {
            self.touched.remove(&key);
        }
    }
}
