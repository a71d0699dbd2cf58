//! The objects of one kind from all sources. If several sources deliver an object of one name, that of the lowest id is effective.

use std::collections::hash_map::Entry;
use std::sync::Arc;

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
    effective: (SourceId, Arc<T>),
    /// By source, ascending.
    ignored: Vec<(SourceId, Arc<T>)>,
}

/// The change of a single object.
pub(super) enum SingleChange<T> {
    Upsert(T),
    Delete(ObjectName),
}

/// An object whose effective version changed.
pub(super) struct Changed<T> {
    pub(super) name: ObjectName,
    /// The version that was effective before. `None` if the object did not exist.
    pub(super) before: Option<Arc<T>>,
    /// The version that is effective now. `None` if the object does not exist any more.
    pub(super) now: Option<Arc<T>>,
}

impl<T: Object> Objects<T> {
    pub(super) fn new() -> Self {
        Self {
            versions: NameMap::default(),
            sources: Vec::new(),
        }
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<&T> {
        self.versions.get(name).map(|versions| &*versions.effective.1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.versions.values().map(|versions| &versions.effective.1)
    }

    pub(super) fn len(&self) -> usize {
        self.versions.len()
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
        let gone = self.not_among(source, &NameSet::default());
        gone.iter().filter_map(|name| self.delete(source, name)).collect()
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

    /// The changes of single objects that a change consists of, for [`apply`](Self::apply).
    pub(super) fn single_changes(
        &mut self,
        source: SourceId,
        change: ObjectChange<T>,
        events: &mut Vec<Event>,
    ) -> impl Iterator<Item = SingleChange<T>> + use<T> {
        // Deleting an object that a source never had does not register the source.
        if !matches!(change, ObjectChange::Delete(_)) {
            self.register(source);
        }
        let (deleted, updated) = match change {
            ObjectChange::Upsert(object) => (Vec::new(), vec![object]),
            ObjectChange::Delete(name) => (vec![name], Vec::new()),
            ObjectChange::ReplaceAll(objects) => (self.replaced(source, &objects, events), objects),
            ObjectChange::Synced => {
                for (known, synced) in &mut self.sources {
                    *synced |= *known == source;
                }
                (Vec::new(), Vec::new())
            }
        };
        self.versions
            .reserve(updated.len().saturating_sub(self.versions.len()));
        let deleted = deleted.into_iter().map(SingleChange::Delete);
        deleted.chain(updated.into_iter().map(SingleChange::Upsert))
    }

    /// Applies the change of a single object. Returns the object if its effective version changed.
    pub(super) fn apply(
        &mut self,
        source: SourceId,
        change: SingleChange<T>,
        events: &mut Vec<Event>,
    ) -> Option<Changed<T>> {
        match change {
            SingleChange::Upsert(object) => self.upsert(source, object, events),
            SingleChange::Delete(name) => self.delete(source, &name),
        }
    }

    /// The objects of a source that are not in its new list.
    fn replaced(&self, source: SourceId, list: &[T], events: &mut Vec<Event>) -> Vec<ObjectName> {
        let mut kept: NameSet<&ObjectName> = NameSet::default();
        kept.reserve(list.len());
        for object in list {
            if !kept.insert(object.name()) {
                events.push(Event {
                    subject: Subject::Object(T::KIND, object.name().clone()),
                    reason: Reason::DuplicateObject { source },
                });
            }
        }
        self.not_among(source, &kept)
    }

    /// The objects of a source that are not among `kept`, sorted.
    fn not_among(&self, source: SourceId, kept: &NameSet<&ObjectName>) -> Vec<ObjectName> {
        let of_source = |versions: &Versions<T>| {
            versions.effective.0 == source || versions.ignored.iter().any(|(id, _)| *id == source)
        };
        let gone = self
            .versions
            .iter()
            .filter(|(name, versions)| of_source(versions) && !kept.contains(name));
        let mut gone: Vec<ObjectName> = gone.map(|(name, _)| name.clone()).collect();
        gone.sort_unstable();
        gone
    }

    fn upsert(&mut self, source: SourceId, object: T, events: &mut Vec<Event>) -> Option<Changed<T>> {
        let object = Arc::new(object);
        let name = object.name().clone();
        let changed = |before: Option<Arc<T>>| {
            let now = Some(Arc::clone(&object));
            let name = name.clone();
            Some(Changed { name, before, now })
        };
        let versions = match self.versions.entry(name.clone()) {
            Entry::Vacant(entry) => {
                let changed = changed(None);
                entry.insert(Versions {
                    effective: (source, object),
                    ignored: Vec::new(),
                });
                return changed;
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if versions.effective.0 == source {
            if versions.effective.1 == object {
                return None;
            }
            let before = std::mem::replace(&mut versions.effective.1, Arc::clone(&object));
            return changed(Some(before));
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
            let before = std::mem::replace(&mut versions.effective, (source, Arc::clone(&object)));
            events.push(several(source, before.0));
            let was = Arc::clone(&before.1);
            // The previous effective source is lower than all ignored ones.
            versions.ignored.insert(0, before);
            return if was == object { None } else { changed(Some(was)) };
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
        let (before, now) = if versions.ignored.is_empty() {
            (entry.remove().effective.1, None)
        } else {
            let next = versions.ignored.remove(0);
            let now = Arc::clone(&next.1);
            (std::mem::replace(&mut versions.effective, next).1, Some(now))
        };
        (now.as_ref() != Some(&before)).then(|| Changed {
            name: name.clone(),
            before: Some(before),
            now,
        })
    }
}
