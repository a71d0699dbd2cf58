//! Changes that wait, merged: at most one for each object of a source.

use std::collections::BTreeMap;

use super::{Change, EndpointSlice, Kind, Node, Object, ObjectChange, ObjectName, Service, SourceId};
use crate::name_map::NameMap;

/// Changes that wait to be applied. Later ones of an object replace earlier ones, so that the memory depends on the number of objects and not
/// on the time that the changes wait.
///
/// Applied together they have the same result as one by one: the objects, the registered sources, and the first full lists that were delivered.
/// One thing may differ: the facts of this node, which are used further after its Node was deleted, if two sources deliver this Node and both
/// delete it while the changes wait. They are those of its last version in one of the sources.
#[derive(Clone, Debug, Default)]
pub struct MergedChanges {
    sources: BTreeMap<SourceId, OfSource>,
}

#[derive(Clone, Debug, Default)]
struct OfSource {
    services: OfKind<Service>,
    slices: OfKind<EndpointSlice>,
    nodes: OfKind<Node>,
    /// The last version of each Node before the last full list: a proxy uses the facts of its Node also after the object was deleted.
    nodes_before: NameMap<Node>,
    /// The last version of each Node that was changed and deleted after it.
    deleted_nodes: NameMap<Node>,
}

/// Changes of the objects of one kind.
#[derive(Clone, Debug)]
struct OfKind<T> {
    /// The last full list.
    all: Option<Vec<T>>,
    /// Changes after it, in the order in which each object first changed; `None` if it was deleted.
    changes: Vec<(ObjectName, Option<T>)>,
    /// Where each object is in `changes`.
    places: NameMap<usize>,
    is_synced: bool,
    /// Whether a change other than a deletion was added: it registers the source.
    is_registered: bool,
}

impl<T> Default for OfKind<T> {
    fn default() -> Self {
        Self {
            all: None,
            changes: Vec::new(),
            places: NameMap::default(),
            is_synced: false,
            is_registered: false,
        }
    }
}

impl<T: Object> OfKind<T> {
    /// Adds a change. `on_dropped` receives the version that a deletion replaces, or those that a full list replaces.
    fn add(&mut self, change: ObjectChange<T>, mut on_dropped: impl FnMut(T)) {
        self.is_registered |= !matches!(change, ObjectChange::Delete(_));
        match change {
            ObjectChange::Upsert(object) => _ = self.set(object.name().clone(), Some(object)),
            ObjectChange::Delete(name) => {
                if let Some(Some(object)) = self.set(name, None) {
                    on_dropped(object);
                }
            }
            ObjectChange::ReplaceAll(objects) => {
                let changes = std::mem::take(&mut self.changes);
                self.places.clear();
                let dropped = self.all.replace(objects).into_iter().flatten();
                let changed = changes.into_iter().filter_map(|(_, object)| object);
                dropped.chain(changed).for_each(on_dropped);
            }
            ObjectChange::Synced => self.is_synced = true,
        }
    }

    /// Sets the last change of an object. Returns the previous one.
    fn set(&mut self, name: ObjectName, object: Option<T>) -> Option<Option<T>> {
        let known = self
            .places
            .get(&name)
            .and_then(|&place| self.changes.get_mut(place));
        if let Some((_, known)) = known {
            return Some(std::mem::replace(known, object));
        }
        self.places.insert(name.clone(), self.changes.len());
        self.changes.push((name, object));
        None
    }

    fn into_changes(self) -> impl Iterator<Item = ObjectChange<T>> {
        let all = self.all.map(ObjectChange::ReplaceAll);
        let changes = self.changes.into_iter().map(|(name, object)| match object {
            Some(object) => ObjectChange::Upsert(object),
            None => ObjectChange::Delete(name),
        });
        let synced = self.is_synced.then_some(ObjectChange::Synced);
        all.into_iter().chain(changes).chain(synced)
    }
}

impl MergedChanges {
    /// Adds a change of a source.
    pub fn add(&mut self, source: SourceId, change: Change) {
        let of = self.sources.entry(source).or_default();
        match change {
            Change::Services(change) => of.services.add(change, drop),
            Change::EndpointSlices(change) => of.slices.add(change, drop),
            Change::Nodes(change) => {
                let is_list = matches!(change, ObjectChange::ReplaceAll(_));
                if let ObjectChange::Upsert(node) = &change {
                    of.deleted_nodes.remove(&node.name);
                }
                let previous = if is_list {
                    &mut of.nodes_before
                } else {
                    &mut of.deleted_nodes
                };
                of.nodes
                    .add(change, |node| _ = previous.insert(node.name.clone(), node));
                if is_list {
                    of.nodes_before.extend(of.deleted_nodes.drain());
                }
            }
        }
    }

    /// Whether there is no change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// The sources, with the kinds, that the changes register: also those whose objects were all deleted again. Register them before the
    /// changes are applied ([`Services::register_source`](crate::Services::register_source)).
    pub fn registered(&self) -> impl Iterator<Item = (SourceId, Kind)> + '_ {
        self.sources.iter().flat_map(|(&source, of)| {
            let kinds = [
                (Kind::Service, of.services.is_registered),
                (Kind::EndpointSlice, of.slices.is_registered),
                (Kind::Node, of.nodes.is_registered),
            ];
            let registered = kinds.into_iter().filter(|(_, is_registered)| *is_registered);
            registered.map(move |(kind, _)| (source, kind))
        })
    }

    /// The changes, by source.
    pub fn into_changes(self) -> impl Iterator<Item = (SourceId, Change)> {
        self.sources.into_iter().flat_map(|(source, of)| {
            let previous = of.nodes_before.into_values().map(ObjectChange::Upsert);
            let services = of.services.into_changes().map(Change::Services);
            let slices = of.slices.into_changes().map(Change::EndpointSlices);
            let deleted = of.deleted_nodes.into_values().map(ObjectChange::Upsert);
            let mut nodes = of.nodes;
            let all = nodes.all.take().map(ObjectChange::ReplaceAll);
            let nodes = previous.chain(all).chain(deleted).chain(nodes.into_changes());
            let nodes = nodes.map(Change::Nodes);
            let changes = services.chain(slices).chain(nodes);
            changes.map(move |change| (source, change))
        })
    }
}
