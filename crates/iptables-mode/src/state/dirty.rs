//! Which objects are to be compared, and which of them another program changed.

use kernlink_services::Family;

use super::State;
use crate::key::Key;
use crate::touched::Touched;

impl State {
    /// The object that a step with this key repairs, if the last listing found it changed or removed.
    pub(crate) fn undone(&self, key: &Key) -> Option<Key> {
        let is_undone = match key {
            Key::Sysctl(name) => self.sysctls.is_changed(name),
            Key::Fixed(family) | Key::Jump(family, _) | Key::Firewall(family) => {
                // The position of a jump is that of its step.
                let is_changed = self.fixed[family.index()].is_changed;
                return is_changed.then_some(Key::Fixed(*family));
            }
            Key::Service(family, _) | Key::Replaced(family, _) | Key::Leftovers(family) => {
                let (chains, rules) = (&self.chains[family.index()], &self.rules[family.index()]);
                let mut touched = self.touched.get(key).into_iter().flatten();
                touched.any(|object| match object {
                    Touched::Chain(name) => chains.is_changed(name),
                    Touched::Rule(key) => rules.is_changed(key),
                })
            }
            Key::Chain(family, name) => self.chains[family.index()].is_changed(name),
            Key::Accounting(name) => self.accounting.is_changed(name),
            Key::NodeAddresses | Key::Flows(_) => false,
        };
        is_undone.then(|| key.clone())
    }

    /// Makes an object dirty.
    pub(crate) fn set_dirty(&mut self, key: &Key) {
        match key {
            Key::Sysctl(name) => self.sysctls.set_dirty(name.clone()),
            Key::Fixed(family) | Key::Jump(family, _) | Key::Firewall(family) => {
                self.set_fixed_dirty(*family);
            }
            Key::Chain(family, name) => self.tables(*family).0.set_dirty(*name),
            Key::Accounting(name) => self.accounting.set_dirty(name.clone()),
            Key::Flows(family) => self.flows.tracked.set_dirty(*family),
            Key::NodeAddresses => {}
            Key::Service(family, _) | Key::Replaced(family, _) | Key::Leftovers(family) => {
                let touched = self.touched.get(key).cloned().unwrap_or_default();
                let (chains, rules) = self.tables(*family);
                for object in touched {
                    match object {
                        Touched::Chain(name) => chains.set_dirty(name),
                        Touched::Rule(key) => rules.set_dirty(key),
                    }
                }
            }
        }
    }

    /// Whether an object is dirty.
    pub(crate) fn is_dirty(&self, key: &Key) -> bool {
        match key {
            Key::Sysctl(name) => self.sysctls.is_dirty(name),
            Key::Fixed(family) | Key::Jump(family, _) | Key::Firewall(family) => self.is_fixed_dirty(*family),
            Key::Chain(family, name) => self.chains[family.index()].is_dirty(name),
            Key::Accounting(name) => self.accounting.is_dirty(name),
            Key::Flows(family) => self.flows.tracked.is_dirty(*family),
            Key::NodeAddresses => false,
            Key::Service(family, _) | Key::Replaced(family, _) | Key::Leftovers(family) => {
                let (chains, rules) = (&self.chains[family.index()], &self.rules[family.index()]);
                let mut touched = self.touched.get(key).into_iter().flatten();
                touched.any(|object| match object {
                    Touched::Chain(name) => chains.is_dirty(name),
                    Touched::Rule(key) => rules.is_dirty(key),
                })
            }
        }
    }

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

    /// Makes everything clean, after a plan compared what was dirty.
    pub(crate) fn clear_dirty(&mut self) {
        self.sysctls.clear_dirty();
        self.accounting.clear_dirty();
        self.flows.tracked.clear_dirty();
        self.is_fixed_outdated = std::mem::take(&mut self.changes_fixed);
        for family in Family::ALL {
            let (chains, rules) = self.tables(family);
            chains.clear_dirty();
            rules.clear_dirty();
            let fixed = &mut self.fixed[family.index()];
            fixed.is_dirty = false;
            fixed.is_changed = false;
            // Their rules are in the other table.
            for (_, found) in fixed.observed.iter_mut().filter(|(chain, _)| chain.is_shared()) {
                found.rules.retain(|text| found.own.contains(text));
            }
        }
    }
}
