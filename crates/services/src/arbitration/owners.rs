//! The owner of each key, and the other service ports that define it.

use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::SystemTime;

use foldhash::quality::RandomState;

use super::slab::{ServicePortId, Slab};
use crate::event::Precedence;
use crate::model::{FrontendKind, ServicePort, ServicePortKey};

/// The position of a service port among those that define a key; the lowest one owns the key.
#[derive(Clone, Debug, Eq)]
pub(super) struct Rank {
    /// The kind of the frontend with the key; `None` for a health-check node port. Of several frontends with the key, the kind that takes
    /// precedence.
    pub(super) kind: Option<FrontendKind>,
    created: Option<SystemTime>,
    pub(super) port: ServicePortKey,
}

impl Rank {
    pub(super) fn new(kind: Option<FrontendKind>, port: &ServicePort) -> Self {
        Self {
            kind,
            created: port.created,
            port: port.key.clone(),
        }
    }

    fn compare_kinds(&self, other: &Self) -> Ordering {
        let place = |kind: Option<FrontendKind>| kind.map(FrontendKind::precedence);
        place(self.kind).cmp(&place(other.kind))
    }

    /// A Service without a creation time counts as the youngest.
    fn compare_ages(&self, other: &Self) -> Ordering {
        let age = |rank: &Self| (rank.created.is_none(), rank.created);
        age(self).cmp(&age(other))
    }

    /// Why the owner, which has this rank, takes precedence over a service port with a higher rank.
    pub(super) fn precedence_over(&self, other: &Self) -> Precedence {
        match self.kind {
            Some(kind) if self.compare_kinds(other).is_ne() => Precedence::Kind(kind),
            _ if self.compare_ages(other).is_ne() => Precedence::Age,
            _ => Precedence::Name,
        }
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        super::tests::count_visit();
        self.compare_kinds(other)
            .then_with(|| self.compare_ages(other))
            .then_with(|| self.port.cmp(&other.port))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The service ports that define one key; at least one.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    owner: ServicePortId,
    /// The kind in the rank of the owner. The rank itself is needed only if there are others.
    kind: Option<FrontendKind>,
    others: BTreeMap<Rank, ServicePortId>,
}

impl Candidates {
    pub(super) fn owner(&self) -> ServicePortId {
        self.owner
    }

    /// The kind of the owner's frontend; `None` for a health-check node port.
    pub(super) fn kind(&self) -> Option<FrontendKind> {
        self.kind
    }

    /// The service ports that are in conflict with the owner, in order of precedence.
    pub(super) fn others(&self) -> &BTreeMap<Rank, ServicePortId> {
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
    /// Another service port owns the key.
    Conflict,
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

    /// Adds a service port of the slab that defines a key, with the kind of its frontend.
    pub(super) fn add(
        &mut self,
        key: K,
        id: ServicePortId,
        kind: Option<FrontendKind>,
        ports: &Slab,
    ) -> Added {
        let candidates = match self.candidates.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Candidates {
                    owner: id,
                    kind,
                    others: BTreeMap::new(),
                });
                return Added::Owner;
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        let (Some(added), Some(owner)) = (ports.get(id), ports.get(candidates.owner)) else {
            return Added::Conflict;
        };
        let rank = Rank::new(kind, added);
        let owner = Rank::new(candidates.kind, owner);
        if rank < owner {
            let previous = std::mem::replace(&mut candidates.owner, id);
            candidates.kind = kind;
            candidates.others.insert(owner, previous);
            return Added::NewOwner(previous);
        }
        candidates.others.insert(rank, id);
        Added::Conflict
    }

    /// Removes a service port that does not define a key any more, or has another rank. `rank` is the one that it had.
    pub(super) fn remove(&mut self, key: K, id: ServicePortId, rank: &Rank) -> Removed {
        let Entry::Occupied(mut entry) = self.candidates.entry(key) else {
            return Removed::OwnerUnchanged;
        };
        let candidates = entry.get_mut();
        if candidates.owner != id {
            candidates.others.remove(rank);
            return Removed::OwnerUnchanged;
        }
        let Some((next, owner)) = candidates.others.pop_first() else {
            entry.remove();
            return Removed::Last;
        };
        candidates.owner = owner;
        candidates.kind = next.kind;
        Removed::NewOwner(owner)
    }

    /// Sets the kind of the only service port that defines a key.
    pub(super) fn set_kind(&mut self, key: &K, kind: Option<FrontendKind>) {
        if let Some(candidates) = self.candidates.get_mut(key) {
            candidates.kind = kind;
        }
    }
}
