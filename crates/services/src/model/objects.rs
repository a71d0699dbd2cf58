//! The objects of one kind from all sources. If several sources deliver an object of one name, that of the lowest id is effective.

use std::collections::hash_map::Entry;

use crate::event::{Event, Reason, Subject};
use crate::name_map::{NameMap, NameSet};
use crate::source::{Object, ObjectChange, ObjectName, SourceId};

/// The objects of one kind.
#[derive(Clone, Debug)]
pub(super) struct Objects<T> {
    versions: NameMap<Versions<T>>,
    /// The registered sources, and whether each has delivered its first full list.
    sources: Vec<(SourceId, bool)>,
}

/// The versions of one object, by source; never empty.
#[derive(Clone, Debug)]
struct Versions<T> {
    effective: (SourceId, T),
    /// By source, ascending.
    ignored: Vec<(SourceId, T)>,
}

/// An object whose effective version changed.
pub(super) struct Changed<T> {
    pub(super) name: ObjectName,
    /// The version that was effective before. `None` if the object did not exist.
    pub(super) before: Option<Box<T>>,
}

impl<T: Object + Clone> Objects<T> {
    pub(super) fn new() -> Self {
        Self {
            versions: NameMap::default(),
            sources: Vec::new(),
        }
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<&T> {
        self.versions.get(name).map(|versions| &versions.effective.1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.versions.values().map(|versions| &versions.effective.1)
    }

    /// Adds a source that has not delivered its first full list.
    pub(super) fn register(&mut self, source: SourceId) {
        if !self.sources.iter().any(|(known, _)| *known == source) {
            self.sources.push((source, false));
        }
    }

    /// Removes a source with its objects. Returns the objects whose effective version changed.
    pub(super) fn remove_source(&mut self, source: SourceId) -> Vec<Changed<T>> {
        self.sources.retain(|(known, _)| *known != source);
        self.retain(source, &NameSet::default())
    }

    pub(super) fn has_sources(&self) -> bool {
        !self.sources.is_empty()
    }

    /// The sources that have not delivered their first full list.
    pub(super) fn not_synced(&self) -> impl Iterator<Item = SourceId> + '_ {
        self.sources
            .iter()
            .filter(|(_, synced)| !synced)
            .map(|(source, _)| *source)
    }

    /// Applies a change. Returns the objects whose effective version changed.
    pub(super) fn change(
        &mut self,
        source: SourceId,
        change: ObjectChange<T>,
        events: &mut Vec<Event>,
    ) -> Vec<Changed<T>> {
        // Deleting an object that a source never had does not register the source.
        if !matches!(change, ObjectChange::Delete(_)) {
            self.register(source);
        }
        match change {
            ObjectChange::Upsert(object) => self.upsert(source, object, events).into_iter().collect(),
            ObjectChange::Delete(name) => self.delete(source, &name).into_iter().collect(),
            ObjectChange::ReplaceAll(objects) => self.replace_all(source, objects, events),
            ObjectChange::Synced => {
                for (known, synced) in &mut self.sources {
                    *synced |= *known == source;
                }
                Vec::new()
            }
        }
    }

    fn replace_all(&mut self, source: SourceId, objects: Vec<T>, events: &mut Vec<Event>) -> Vec<Changed<T>> {
        let mut changed = Vec::new();
        let mut kept: NameSet<&ObjectName> = NameSet::default();
        kept.reserve(objects.len());
        for object in &objects {
            if !kept.insert(object.name()) {
                events.push(Event {
                    subject: Subject::Object(T::KIND, object.name().clone()),
                    reason: Reason::DuplicateObject { source },
                });
            }
        }
        changed.extend(self.retain(source, &kept));
        changed.reserve(objects.len());
        self.versions
            .reserve(objects.len().saturating_sub(self.versions.len()));
        changed.extend(
            objects
                .into_iter()
                .filter_map(|object| self.upsert(source, object, events)),
        );
        changed
    }

    /// Deletes the objects of a source that are not among `kept`.
    fn retain(&mut self, source: SourceId, kept: &NameSet<&ObjectName>) -> Vec<Changed<T>> {
        let of_source = |versions: &Versions<T>| {
            versions.effective.0 == source || versions.ignored.iter().any(|(id, _)| *id == source)
        };
        let gone: Vec<ObjectName> = self
            .versions
            .iter()
            .filter(|(name, versions)| of_source(versions) && !kept.contains(name))
            .map(|(name, _)| name.clone())
            .collect();
        gone.iter().filter_map(|name| self.delete(source, name)).collect()
    }

    fn upsert(&mut self, source: SourceId, object: T, events: &mut Vec<Event>) -> Option<Changed<T>> {
        let name = object.name().clone();
        let versions = match self.versions.entry(name.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(Versions {
                    effective: (source, object),
                    ignored: Vec::new(),
                });
                return Some(Changed { name, before: None });
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if versions.effective.0 == source {
            if versions.effective.1 == object {
                return None;
            }
            let before = std::mem::replace(&mut versions.effective.1, object);
            return Some(Changed {
                name,
                before: Some(Box::new(before)),
            });
        }
        let known = versions.ignored.iter_mut().find(|(id, _)| *id == source);
        if let Some((_, ignored)) = known {
            *ignored = object;
            return None;
        }
        let several = |effective, ignored| Event {
            subject: Subject::Object(T::KIND, name.clone()),
            reason: Reason::MultipleSources { effective, ignored },
        };
        if source < versions.effective.0 {
            let before = std::mem::replace(&mut versions.effective, (source, object));
            events.push(several(source, before.0));
            let changed = before.1 != versions.effective.1;
            let was = changed.then(|| Box::new(before.1.clone()));
            // The former effective source is lower than all ignored ones.
            versions.ignored.insert(0, before);
            return changed.then_some(Changed { name, before: was });
        }
        events.push(several(versions.effective.0, source));
        let position = versions.ignored.partition_point(|(id, _)| *id < source);
        versions.ignored.insert(position, (source, object));
        None
    }

    fn delete(&mut self, source: SourceId, name: &ObjectName) -> Option<Changed<T>> {
        let Entry::Occupied(mut entry) = self.versions.entry(name.clone()) else {
            return None;
        };
        let versions = entry.get_mut();
        if versions.effective.0 != source {
            versions.ignored.retain(|(id, _)| *id != source);
            return None;
        }
        if versions.ignored.is_empty() {
            let before = entry.remove().effective.1;
            return Some(Changed {
                name: name.clone(),
                before: Some(Box::new(before)),
            });
        }
        let next = versions.ignored.remove(0);
        let (_, before) = std::mem::replace(&mut versions.effective, next);
        (before != versions.effective.1).then(|| Changed {
            name: name.clone(),
            before: Some(Box::new(before)),
        })
    }
}
