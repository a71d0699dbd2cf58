//! The objects of one kind from all sources. One object from two sources: the lower source wins.

use std::collections::hash_map::Entry;

use crate::event::{Event, Reason, Subject};
use crate::name_map::{NameMap, NameSet};
use crate::source::{Object, ObjectChange, ObjectName, SourceId};

/// What the sources have of one kind.
#[derive(Clone, Debug)]
pub(super) struct Objects<T> {
    held: NameMap<Held<T>>,
    /// Whether each source that is known has handed in its first full list.
    complete: Vec<(SourceId, bool)>,
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
            complete: Vec::new(),
        }
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<&T> {
        self.held.get(name).map(|held| &held.effective.1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.held.values().map(|held| &held.effective.1)
    }

    /// From now on this source has to be complete.
    pub(super) fn expect(&mut self, source: SourceId) {
        if !self.complete.iter().any(|(known, _)| *known == source) {
            self.complete.push((source, false));
        }
    }

    pub(super) fn has_sources(&self) -> bool {
        !self.complete.is_empty()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete.iter().all(|(_, complete)| *complete)
    }

    /// Applies a change and names the objects whose effective version is another now.
    pub(super) fn change(
        &mut self,
        source: SourceId,
        change: ObjectChange<T>,
        events: &mut Vec<Event>,
    ) -> Vec<Changed<T>> {
        self.expect(source);
        match change {
            ObjectChange::Upsert(object) => self.upsert(source, object, events).into_iter().collect(),
            ObjectChange::Delete(name) => self.delete(source, &name).into_iter().collect(),
            ObjectChange::ReplaceAll(objects) => self.replace_all(source, objects, events),
            ObjectChange::Complete => {
                for (known, complete) in &mut self.complete {
                    *complete |= *known == source;
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
                    reason: Reason::Repeated { source },
                });
            }
        }
        if !self.held.is_empty() {
            let of_source = |held: &Held<T>| {
                held.effective.0 == source || held.ignored.iter().any(|(id, _)| *id == source)
            };
            let gone: Vec<ObjectName> = self
                .held
                .iter()
                .filter(|(name, held)| of_source(held) && !stay.contains(name))
                .map(|(name, _)| name.clone())
                .collect();
            changed.extend(gone.iter().filter_map(|name| self.delete(source, name)));
        }
        changed.reserve(objects.len());
        self.held.reserve(objects.len().saturating_sub(self.held.len()));
        changed.extend(
            objects
                .into_iter()
                .filter_map(|object| self.upsert(source, object, events)),
        );
        changed
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
            reason: Reason::SeveralSources { effective, ignored },
        };
        if source < held.effective.0 {
            let before = std::mem::replace(&mut held.effective, (source, object));
            events.push(several(source, before.0));
            let changed = before.1 != held.effective.1;
            let was = changed.then(|| Box::new(before.1.clone()));
            // The former winner is lower than all that it beat.
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
