//! Kernel objects of one kind by key: what they should be, what they are, and which to compare.

use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use foldhash::quality::RandomState;

use crate::plan::Subject;

type Map<K, V> = HashMap<K, V, RandomState>;
type Set<K> = HashSet<K, RandomState>;

/// The objects of one kind. `D` is the desired value of an object, `O` its observed value.
///
/// A key is desired as long as it has a reference. A change of the desired value marks the key; a plan compares marked keys only, so
/// its cost depends on what changed. Before the first plan all keys are marked. [`observe`](Self::observe) does not mark: it records the
/// outcome of a step or a new reading.
#[derive(Clone, Debug)]
pub struct Table<K, D, O = D> {
    desired: Map<K, Desired<D>>,
    observed: Map<K, O>,
    /// The marked keys; with `is_all_marked` only those that are neither desired nor observed.
    marked: Set<K>,
    /// Whether every key is marked that is desired or observed.
    is_all_marked: bool,
    /// The subjects that marked keys had before they were withdrawn.
    withdrawn: Map<K, Subject>,
    /// The number of map entries that were looked up to change them.
    work: usize,
}

#[derive(Clone, Debug)]
struct Desired<D> {
    value: D,
    subject: Subject,
    references: u32,
}

/// A marked key.
#[derive(Clone, Debug)]
pub struct Difference<'a, K, D, O> {
    /// The key.
    pub key: &'a K,
    /// What the object should be; `None` if it should not exist.
    pub desired: Option<&'a D>,
    /// What the object is; `None` if it does not exist.
    pub observed: Option<&'a O>,
    /// What the object is for. [`Subject::DataPath`] for an object that this process never desired.
    pub subject: Subject,
}

impl<K, D, O> Default for Table<K, D, O> {
    fn default() -> Self {
        Self {
            desired: Map::default(),
            observed: Map::default(),
            marked: Set::default(),
            is_all_marked: true,
            withdrawn: Map::default(),
            work: 0,
        }
    }
}

impl<K: Clone + Eq + Hash + Ord, D: PartialEq, O> Table<K, D, O> {
    /// Adds a reference to a key and sets its desired value.
    pub fn add(&mut self, key: K, value: D, subject: Subject) {
        self.work += 1;
        match self.desired.entry(key) {
            Entry::Vacant(entry) => {
                if !self.is_all_marked {
                    self.marked.insert(entry.key().clone());
                }
                entry.insert(Desired {
                    value,
                    subject,
                    references: 1,
                });
            }
            Entry::Occupied(mut entry) => {
                let desired = entry.get_mut();
                desired.references += 1;
                if desired.value != value {
                    desired.value = value;
                    desired.subject = subject;
                    if !self.is_all_marked {
                        self.marked.insert(entry.key().clone());
                    }
                }
            }
        }
    }

    /// Sets the desired value of a key that is referenced.
    pub fn update(&mut self, key: &K, value: D, subject: Subject) {
        self.work += 1;
        if let Some(desired) = self.desired.get_mut(key)
            && desired.value != value
        {
            desired.value = value;
            desired.subject = subject;
            if !self.is_all_marked {
                self.marked.insert(key.clone());
            }
        }
    }

    /// Removes a reference to a key. Without a reference it is withdrawn.
    pub fn remove<Q: Eq + Hash + ToOwned<Owned = K> + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.work += 1;
        let Some(desired) = self.desired.get_mut(key) else {
            return;
        };
        desired.references -= 1;
        if desired.references == 0 {
            if let Some(desired) = self.desired.remove(key) {
                self.withdrawn.insert(key.to_owned(), desired.subject);
            }
            self.marked.insert(key.to_owned());
        }
    }

    /// Sets or removes the desired value of a key that has one reference at most. Use [`add`](Self::add) and [`remove`](Self::remove)
    /// for a key that several frontends share. Without a value, `subject` is not used: the key keeps its former one.
    pub fn set(&mut self, key: K, value: Option<D>, subject: Subject) {
        match value {
            Some(value) if self.desired.contains_key(&key) => self.update(&key, value, subject),
            Some(value) => self.add(key, value, subject),
            None => self.remove(&key),
        }
    }

    /// Sets or removes an observed value, without marking the key.
    pub fn observe(&mut self, key: K, value: Option<O>) {
        self.work += 1;
        match value {
            Some(value) => _ = self.observed.insert(key, value),
            None => _ = self.observed.remove(&key),
        }
    }

    /// Replaces all observed values and marks every key.
    pub fn observe_all(&mut self, observed: impl IntoIterator<Item = (K, O)>) {
        let before = std::mem::take(&mut self.observed);
        self.observed.extend(observed);
        let gone = before.into_keys();
        self.marked
            .extend(gone.filter(|key| !self.observed.contains_key(key)));
        self.mark_all();
    }

    /// Marks every key that is desired or observed.
    pub fn mark_all(&mut self) {
        self.is_all_marked = true;
    }

    /// Marks a key.
    pub fn mark(&mut self, key: K) {
        if !self.is_all_marked {
            self.marked.insert(key);
        }
    }

    /// Whether a key is marked.
    pub fn is_marked(&self, key: &K) -> bool {
        self.is_all_marked || self.marked.contains(key)
    }

    /// Removes all marks.
    pub fn settle(&mut self) {
        self.is_all_marked = false;
        // Many marks do not keep the memory for them.
        if self.marked.capacity() > 64 {
            self.marked = Set::default();
            self.withdrawn = Map::default();
        } else {
            self.marked.clear();
            self.withdrawn.clear();
        }
    }

    /// The marked keys, sorted.
    pub fn differences(&self) -> Vec<Difference<'_, K, D, O>> {
        let mut marked: Vec<&K> = self.marked.iter().collect();
        if self.is_all_marked {
            marked.extend(self.desired.keys());
            marked.extend(self.observed.keys().filter(|key| !self.desired.contains_key(key)));
        }
        marked.sort_unstable();
        marked.dedup();
        let differences = marked.into_iter().map(|key| {
            let desired = self.desired.get(key);
            let subject = desired.map(|desired| &desired.subject);
            let subject = subject.or_else(|| self.withdrawn.get(key));
            Difference {
                key,
                desired: desired.map(|desired| &desired.value),
                observed: self.observed.get(key),
                subject: subject.cloned().unwrap_or(Subject::DataPath),
            }
        });
        differences.collect()
    }

    /// What an object should be; `None` if it should not exist.
    pub fn desired(&self, key: &K) -> Option<&D> {
        self.desired.get(key).map(|desired| &desired.value)
    }

    /// Whether an object should exist.
    pub fn is_desired(&self, key: &K) -> bool {
        self.desired.contains_key(key)
    }

    /// How often a key is referenced.
    pub fn references(&self, key: &K) -> usize {
        self.desired
            .get(key)
            .map_or(0, |desired| desired.references as usize)
    }

    /// What an object is for, if it should exist.
    pub fn subject(&self, key: &K) -> Option<&Subject> {
        self.desired.get(key).map(|desired| &desired.subject)
    }

    /// What an object is; `None` if it does not exist.
    pub fn observed(&self, key: &K) -> Option<&O> {
        self.observed.get(key)
    }

    /// What an object is, to change it.
    pub fn observed_mut(&mut self, key: &K) -> Option<&mut O> {
        self.work += 1;
        self.observed.get_mut(key)
    }

    /// Whether an object exists.
    pub fn is_observed(&self, key: &K) -> bool {
        self.observed.contains_key(key)
    }

    /// The desired objects, in no particular order.
    pub fn iter_desired(&self) -> impl ExactSizeIterator<Item = (&K, &D)> {
        self.desired.iter().map(|(key, desired)| (key, &desired.value))
    }

    /// The desired keys, sorted.
    pub fn sorted_keys(&self) -> Vec<&K> {
        let mut keys: Vec<&K> = self.desired.keys().collect();
        keys.sort_unstable();
        keys
    }

    /// The observed objects, in no particular order.
    pub fn iter_observed(&self) -> impl ExactSizeIterator<Item = (&K, &O)> {
        self.observed.iter()
    }

    /// The number of desired objects.
    pub fn len(&self) -> usize {
        self.desired.len()
    }

    /// Whether no object is desired.
    pub fn is_empty(&self) -> bool {
        self.desired.is_empty()
    }

    /// Reserves memory for more desired objects.
    pub fn reserve(&mut self, more: usize) {
        self.desired.reserve(more);
    }

    /// The number of map entries that were looked up to change them, since the table was made.
    pub fn work(&self) -> usize {
        self.work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(table: &Table<u8, char>) -> Vec<(u8, Option<char>, Option<char>)> {
        let differences = table.differences().into_iter();
        differences
            .map(|d| (*d.key, d.desired.copied(), d.observed.copied()))
            .collect()
    }

    #[test]
    fn a_key_is_desired_until_its_last_reference_is_removed() {
        let mut table = Table::default();
        table.add(1, 'a', Subject::Node);
        assert_eq!(marked(&table), [(1, Some('a'), None)]);
        table.add(1, 'a', Subject::DataPath);
        table.settle();
        table.remove(&1);
        assert_eq!(marked(&table), []);
        table.remove(&1);
        table.remove(&1);
        assert_eq!(marked(&table), [(1, None, None)]);
        assert_eq!(table.differences()[0].subject, Subject::Node);
    }

    #[test]
    fn only_a_changed_value_marks_its_key() {
        let mut table = Table::default();
        table.add(1, 'a', Subject::Node);
        table.observe(1, Some('a'));
        table.settle();
        table.update(&1, 'a', Subject::Node);
        table.add(1, 'a', Subject::Node);
        assert_eq!(marked(&table), []);
        table.update(&1, 'b', Subject::Node);
        assert_eq!(marked(&table), [(1, Some('b'), Some('a'))]);
    }

    #[test]
    fn a_listing_marks_what_is_desired_what_is_there_and_what_was_there() {
        let mut table = Table::default();
        table.add(1, 'a', Subject::Node);
        table.observe(2, Some('b'));
        table.settle();
        table.observe_all([(3, 'c')]);
        assert_eq!(
            marked(&table),
            [(1, Some('a'), None), (2, None, None), (3, None, Some('c'))]
        );
        table.add(3, 'd', Subject::DataPath);
        table.remove(&1);
        assert_eq!(
            marked(&table),
            [(1, None, None), (2, None, None), (3, Some('d'), Some('c'))]
        );
        assert_eq!(table.differences()[0].subject, Subject::Node);
        assert!(table.is_marked(&3));
        table.settle();
        assert_eq!(marked(&table), []);
        assert!(!table.is_marked(&3));
    }
}
