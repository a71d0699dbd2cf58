//! The owner of each key, and the other service ports that define it.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use foldhash::quality::RandomState;

use super::slab::{ServicePortId, Slab};

/// The service ports that define one key; at least one.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    owner: ServicePortId,
    /// In order of precedence.
    others: Vec<ServicePortId>,
}

impl Candidates {
    pub(super) fn owner(&self) -> ServicePortId {
        self.owner
    }

    /// The service ports that are in conflict with the owner, in order of precedence.
    pub(super) fn others(&self) -> &[ServicePortId] {
        &self.others
    }
}

/// The owners of the keys of one kind.
#[derive(Clone, Debug)]
pub(super) struct Owners<K> {
    candidates: HashMap<K, Candidates, RandomState>,
}

impl<K> Default for Owners<K> {
    fn default() -> Self {
        Self {
            candidates: HashMap::default(),
        }
    }
}

/// The result of [`Owners::add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// The service port owns the key; no other one defines it.
    Owner,
    /// The service port owns the key; this one owned it before.
    NewOwner(ServicePortId),
    /// This service port owns the key.
    Conflict(ServicePortId),
}

/// The result of [`Owners::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removed {
    /// No service port defines the key any more.
    Last,
    /// This service port owns the key now.
    NewOwner(ServicePortId),
    /// The owner is the same as before.
    OwnerUnchanged,
}

impl<K: Eq + Hash> Owners<K> {
    pub(super) fn get(&self, key: &K) -> Option<&Candidates> {
        self.candidates.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &Candidates)> {
        self.candidates.iter()
    }

    pub(super) fn reserve(&mut self, more: usize) {
        self.candidates.reserve(more);
    }

    /// Adds a service port that defines a key.
    pub(super) fn add(&mut self, key: K, id: ServicePortId, ports: &Slab) -> Added {
        let candidates = match self.candidates.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Candidates {
                    owner: id,
                    others: Vec::new(),
                });
                return Added::Owner;
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if ports.order(id, candidates.owner) == Ordering::Less {
            let former = std::mem::replace(&mut candidates.owner, id);
            candidates.others.insert(0, former);
            return Added::NewOwner(former);
        }
        let position = candidates
            .others
            .partition_point(|&other| ports.order(other, id) == Ordering::Less);
        candidates.others.insert(position, id);
        Added::Conflict(candidates.owner)
    }

    /// Removes a service port that does not define a key any more.
    pub(super) fn remove(&mut self, key: K, id: ServicePortId) -> Removed {
        let Entry::Occupied(mut entry) = self.candidates.entry(key) else {
            return Removed::OwnerUnchanged;
        };
        let candidates = entry.get_mut();
        if candidates.owner != id {
            candidates.others.retain(|&other| other != id);
            return Removed::OwnerUnchanged;
        }
        if candidates.others.is_empty() {
            entry.remove();
            return Removed::Last;
        }
        candidates.owner = candidates.others.remove(0);
        candidates.others.shrink_to_fit();
        Removed::NewOwner(candidates.owner)
    }
}
