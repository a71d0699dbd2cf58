//! Who wants a key, in a fixed order; the first has it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::contribution::Contribution;

/// A place in the [`Ledger`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PortId(u32);

/// The contributions, by short numbers that claims refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    places: Vec<Option<Contribution>>,
    free: Vec<PortId>,
}

impl Ledger {
    pub(crate) fn get(&self, id: PortId) -> Option<&Contribution> {
        self.places.get(id.0 as usize)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Contribution> {
        self.places.iter().flatten()
    }

    /// Makes room for so many more.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.places.reserve(more);
    }

    /// Adds a contribution. `None` only when there are 2³² of them.
    pub(crate) fn add(&mut self, contribution: Contribution) -> Option<PortId> {
        if let Some(id) = self.free.pop() {
            self.replace(id, Some(contribution));
            return Some(id);
        }
        let id = PortId(u32::try_from(self.places.len()).ok()?);
        self.places.push(Some(contribution));
        Some(id)
    }

    pub(crate) fn replace(&mut self, id: PortId, with: Option<Contribution>) -> Option<Contribution> {
        let place = self.places.get_mut(id.0 as usize)?;
        std::mem::replace(place, with)
    }

    /// Lets a place be used again.
    pub(crate) fn release(&mut self, id: PortId) {
        self.replace(id, None);
        self.free.push(id);
    }

    /// Who comes first: the older Service, then the lower namespace and name, then the lower port.
    fn order(&self, a: PortId, b: PortId) -> Ordering {
        match (self.get(a), self.get(b)) {
            (Some(a), Some(b)) => precedence(a, b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        }
    }
}

/// The order of two contributions. A Service without a creation time is younger than any with one.
pub(crate) fn precedence(a: &Contribution, b: &Contribution) -> Ordering {
    let age = |c: &Contribution| (c.created.is_none(), c.created);
    age(a).cmp(&age(b)).then_with(|| a.key.cmp(&b.key))
}

/// The claims on one key; there is at least one.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    first: PortId,
    /// In order.
    others: Vec<PortId>,
}

impl Claims {
    /// One claim, which has the key.
    pub(crate) fn of(id: PortId) -> Self {
        Self {
            first: id,
            others: Vec::new(),
        }
    }

    /// Who has the key.
    pub(crate) fn first(&self) -> PortId {
        self.first
    }

    /// Who wants it too.
    pub(crate) fn others(&self) -> &[PortId] {
        &self.others
    }
}

/// What a claim came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// Nobody had wanted the key.
    Alone,
    /// It takes the key from this one.
    Over(PortId),
    /// It waits behind this one.
    Behind(PortId),
}

impl Claimed {
    /// Whether the key is the claimant's now.
    pub(crate) fn is_first(self) -> bool {
        !matches!(self, Claimed::Behind(_))
    }
}

/// What giving up a claim came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Nobody wants the key any more.
    Gone,
    /// This one has it now.
    PassedTo(PortId),
    /// It had not had the key, or not even claimed it.
    Nothing,
}

/// Adds a claim.
pub(crate) fn claim<K: Ord>(map: &mut BTreeMap<K, Claims>, key: K, id: PortId, ledger: &Ledger) -> Claimed {
    let claims = match map.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(Claims::of(id));
            return Claimed::Alone;
        }
        Entry::Occupied(entry) => entry.into_mut(),
    };
    if ledger.order(id, claims.first) == Ordering::Less {
        let displaced = std::mem::replace(&mut claims.first, id);
        claims.others.insert(0, displaced);
        return Claimed::Over(displaced);
    }
    let position = claims
        .others
        .partition_point(|&other| ledger.order(other, id) == Ordering::Less);
    claims.others.insert(position, id);
    Claimed::Behind(claims.first)
}

/// Takes a claim back.
pub(crate) fn release<K: Ord>(map: &mut BTreeMap<K, Claims>, key: &K, id: PortId) -> Released {
    let Some(claims) = map.get_mut(key) else {
        return Released::Nothing;
    };
    if claims.first != id {
        claims.others.retain(|&other| other != id);
        return Released::Nothing;
    }
    if claims.others.is_empty() {
        map.remove(key);
        return Released::Gone;
    }
    claims.first = claims.others.remove(0);
    // A key that is claimed once in a while should not keep the memory of the day when all wanted it.
    claims.others.shrink_to_fit();
    Released::PassedTo(claims.first)
}
