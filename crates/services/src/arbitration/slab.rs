//! The service ports by id.

use crate::model::ServicePort;

/// Identifies a [`ServicePort`] as long as it exists. The id of a removed service port is assigned again.
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

    /// Removes a service port, and frees its id.
    pub(super) fn release(&mut self, id: ServicePortId) {
        self.replace(id, None);
        self.free.push(id);
    }
}
