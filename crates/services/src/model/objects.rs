//! The objects of one kind from all sources. Where two sources have an object of one name, the lower source takes precedence.

use std::collections::hash_map::Entry;

use crate::event::{Event, Reason, Subject};
use crate::name_map::{NameMap, NameSet};
use crate::source::{Object, ObjectChange, ObjectName, SourceId};

/// The objects of one kind.
#[derive(Clone, Debug)]
pub(super) struct Objects<T> {
    held: NameMap<Held<T>>,
    /// The registered sources, and whether each has delivered its first full list.
    sources: Vec<(SourceId, bool)>,
}

/// The versions of one object, by source; never empty.
#[derive(Clone, Debug)]
struct Held<T> {
    effective: (SourceId, T),
    /// By source, ascending.
    ignored: Vec<(SourceId, T)>,
}

/// What became of the effective version of an object.
pub(super) struct Changed<T> {
    pub(super) name: ObjectName,
    /// The version that was effective, if it is another than the one that is now.
    pub(super) before: Option<Box<T>>,
}

impl<T: Object + Clone> Objects<T> {
    pub(super) fn new() -> Self {
        Self {
            held: NameMap::default(),
            sources: Vec::new(),
        }
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<&T> {
        self.held.get(name).map(|held| &held.effective.1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.held.values().map(|held| &held.effective.1)
    }

    /// Adds a source, which then has to deliver its first full list.
    pub(super) fn register(&mut self, source: SourceId) {
        if !self.sources.iter().any(|(known, _)| *known == source) {
            self.sources.push((source, false));
        }
    }

    /// Removes a source with its objects, and names the objects whose effective version changed.
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

    /// Applies a change and names the objects whose effective version is another now.
    pub(super) fn change(
        &mut self,
        source: SourceId,
        change: ObjectChange<T>,
        events: &mut Vec<Event>,
    ) -> Vec<Changed<T>> {
        // To delete an object that the source never had says nothing about the source.
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
        let mut stay: NameSet<&ObjectName> = NameSet::default();
        stay.reserve(objects.len());
        for object in &objects {
            if !stay.insert(object.name()) {
                events.push(Event {
                    subject: Subject::Object(T::KIND, object.name().clone()),
                    reason: Reason::DuplicateObject { source },
                });
            }
        }
        changed.extend(self.retain(source, &stay));
        changed.reserve(objects.len());
        self.held.reserve(objects.len().saturating_sub(self.held.len()));
        changed.extend(
            objects
                .into_iter()
                .filter_map(|object| self.upsert(source, object, events)),
        );
        changed
    }

    /// Deletes the objects of a source that are not named.
    fn retain(&mut self, source: SourceId, stay: &NameSet<&ObjectName>) -> Vec<Changed<T>> {
        let of_source =
            |held: &Held<T>| held.effective.0 == source || held.ignored.iter().any(|(id, _)| *id == source);
        let gone: Vec<ObjectName> = self
            .held
            .iter()
            .filter(|(name, held)| of_source(held) && !stay.contains(name))
            .map(|(name, _)| name.clone())
            .collect();
        gone.iter().filter_map(|name| self.delete(source, name)).collect()
    }

    fn upsert(&mut self, source: SourceId, object: T, events: &mut Vec<Event>) -> Option<Changed<T>> {
        let name = object.name().clone();
        let held = match self.held.entry(name.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(Held {
                    effective: (source, object),
                    ignored: Vec::new(),
                });
                return Some(Changed { name, before: None });
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if held.effective.0 == source {
            if held.effective.1 == object {
                return None;
            }
            let before = std::mem::replace(&mut held.effective.1, object);
            return Some(Changed {
                name,
                before: Some(Box::new(before)),
            });
        }
        let known = held.ignored.iter_mut().find(|(id, _)| *id == source);
        if let Some((_, ignored)) = known {
            *ignored = object;
            return None;
        }
        let several = |effective, ignored| Event {
            subject: Subject::Object(T::KIND, name.clone()),
            reason: Reason::MultipleSources { effective, ignored },
        };
        if source < held.effective.0 {
            let before = std::mem::replace(&mut held.effective, (source, object));
            events.push(several(source, before.0));
            let changed = before.1 != held.effective.1;
            let was = changed.then(|| Box::new(before.1.clone()));
            // The former effective source is lower than all ignored ones.
            held.ignored.insert(0, before);
            return changed.then_some(Changed { name, before: was });
        }
        events.push(several(held.effective.0, source));
        let position = held.ignored.partition_point(|(id, _)| *id < source);
        held.ignored.insert(position, (source, object));
        None
    }

    fn delete(&mut self, source: SourceId, name: &ObjectName) -> Option<Changed<T>> {
        let Entry::Occupied(mut entry) = self.held.entry(name.clone()) else {
            return None;
        };
        let held = entry.get_mut();
        if held.effective.0 != source {
            held.ignored.retain(|(id, _)| *id != source);
            return None;
        }
        if held.ignored.is_empty() {
            let before = entry.remove().effective.1;
            return Some(Changed {
                name: name.clone(),
                before: Some(Box::new(before)),
            });
        }
        let next = held.ignored.remove(0);
        let (_, before) = std::mem::replace(&mut held.effective, next);
        (before != held.effective.1).then(|| Changed {
            name: name.clone(),
            before: Some(Box::new(before)),
        })
    }
}
