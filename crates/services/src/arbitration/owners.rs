//! The Services that define a key, in order of precedence.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use foldhash::quality::RandomState;

use crate::model::ServicePort;

/// Identifies a [`ServicePort`] as long as it exists. The id of a removed one is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortId(u32);

impl ServicePortId {
    /// The id as an index: ids are small and dense.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The service ports by id.
#[derive(Clone, Debug, Default)]
pub(super) struct Slab {
    slots: Vec<Option<ServicePort>>,
    free: Vec<ServicePortId>,
}

impl Slab {
    pub(super) fn get(&self, id: ServicePortId) -> Option<&ServicePort> {
        self.slots.get(id.index())?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ServicePortId, &ServicePort)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(index, port)| Some((ServicePortId(u32::try_from(index).ok()?), port.as_ref()?)))
    }

    pub(super) fn reserve(&mut self, more: usize) {
        self.slots.reserve(more);
    }

    /// Adds a service port. `None` if there are 2³² already.
    pub(super) fn add(&mut self, port: ServicePort) -> Option<ServicePortId> {
        if let Some(id) = self.free.pop() {
            self.replace(id, Some(port));
            return Some(id);
        }
        let id = ServicePortId(u32::try_from(self.slots.len()).ok()?);
        self.slots.push(Some(port));
        Some(id)
    }

    pub(super) fn replace(&mut self, id: ServicePortId, with: Option<ServicePort>) -> Option<ServicePort> {
        let slot = self.slots.get_mut(id.index())?;
        std::mem::replace(slot, with)
    }

    /// Frees an id.
    pub(super) fn release(&mut self, id: ServicePortId) {
        self.replace(id, None);
        self.free.push(id);
    }

    /// Which service port takes precedence: that of the older Service, then of the lower namespace and name, then the lower
    /// port name.
    fn order(&self, a: ServicePortId, b: ServicePortId) -> Ordering {
        match (self.get(a), self.get(b)) {
            (Some(a), Some(b)) => precedence(a, b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        }
    }
}

/// The precedence of two service ports. A Service without a creation time is younger than any with one.
pub(super) fn precedence(a: &ServicePort, b: &ServicePort) -> Ordering {
    let age = |port: &ServicePort| (port.created.is_none(), port.created);
    age(a).cmp(&age(b)).then_with(|| a.key.cmp(&b.key))
}

/// The service ports that define one key; at least one.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    owner: ServicePortId,
    /// In order of precedence.
    others: Vec<ServicePortId>,
}

impl Claims {
    pub(super) fn owner(&self) -> ServicePortId {
        self.owner
    }

    pub(super) fn others(&self) -> &[ServicePortId] {
        &self.others
    }
}

/// The claims on keys of one kind.
pub(super) type ClaimMap<K> = HashMap<K, Claims, RandomState>;

/// The result of [`claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    /// No other service port defines the key.
    Sole,
    /// The claimant replaces this owner.
    Over(ServicePortId),
    /// This owner keeps the key.
    Behind(ServicePortId),
}

/// The result of [`release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Released {
    /// No service port defines the key any more.
    Gone,
    /// This service port owns the key now.
    PassedTo(ServicePortId),
    /// The owner is the same as before.
    Unchanged,
}

/// Adds a claim.
pub(super) fn claim<K: Eq + Hash>(map: &mut ClaimMap<K>, key: K, id: ServicePortId, ports: &Slab) -> Claimed {
    let claims = match map.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(Claims {
                owner: id,
                others: Vec::new(),
            });
            return Claimed::Sole;
        }
        Entry::Occupied(entry) => entry.into_mut(),
    };
    if ports.order(id, claims.owner) == Ordering::Less {
        let displaced = std::mem::replace(&mut claims.owner, id);
        claims.others.insert(0, displaced);
        return Claimed::Over(displaced);
    }
    let position = claims
        .others
        .partition_point(|&other| ports.order(other, id) == Ordering::Less);
    claims.others.insert(position, id);
    Claimed::Behind(claims.owner)
}

/// Removes a claim.
pub(super) fn release<K: Eq + Hash>(map: &mut ClaimMap<K>, key: K, id: ServicePortId) -> Released {
    let Entry::Occupied(mut entry) = map.entry(key) else {
        return Released::Unchanged;
    };
    let claims = entry.get_mut();
    if claims.owner != id {
        claims.others.retain(|&other| other != id);
        return Released::Unchanged;
    }
    if claims.others.is_empty() {
        entry.remove();
        return Released::Gone;
    }
    claims.owner = claims.others.remove(0);
    claims.others.shrink_to_fit();
    Released::PassedTo(claims.owner)
}
