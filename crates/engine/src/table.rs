//! Kernel objects of one kind by key: desired values, observed values, and the keys to compare.

use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use foldhash::quality::RandomState;

use crate::plan::Subject;

type Map<K, V> = HashMap<K, V, RandomState>;
type Set<K> = HashSet<K, RandomState>;

#[cfg(any(test, feature = "fake"))]
thread_local! {
    static VISITED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The number of keys that this thread has visited in iterations over tables, of all tables, and of keys that it looked up to change them. A
/// test compares its increase at two sizes: the cost of a change must not depend on the number of Services.
#[cfg(any(test, feature = "fake"))]
#[must_use]
pub fn visited_keys() -> u64 {
    VISITED.get()
}

/// Counts a visited key, in tests.
fn visit() {
    #[cfg(any(test, feature = "fake"))]
    VISITED.set(VISITED.get().wrapping_add(1));
}

/// The objects of one kind. `D` is the desired value of an object, `O` its observed value.
///
/// A key is desired as long as it has a reference. A change of the desired value makes the key dirty. A plan compares dirty keys only, so
/// its cost depends on what changed. Before the first plan all keys are dirty. [`observe`](Self::observe) records the outcome of a step or
/// a new reading; it does not make the key dirty.
///
/// The cost is that of a change only if a plan does not visit all keys either: use [`differences`](Self::differences), and not the iterators.
/// An index of the keys, such as the observed objects that refer to another one, is a field of the data path. One of desired objects changes
/// in [`DataPath::compile`](crate::DataPath::compile); one of observed objects wherever observed values do.
#[derive(Clone, Debug)]
pub struct Table<K, D, O = D> {
    desired: Map<K, Desired<D>>,
    observed: Map<K, O>,
    /// The dirty keys; with `is_all_dirty` only those that are neither desired nor observed.
    dirty: Set<K>,
    /// Whether every desired or observed key is dirty.
    is_all_dirty: bool,
    /// The keys whose observed values were not the recorded ones, when all were replaced last.
    changed: Set<K>,
    /// The subjects that dirty keys had before they were withdrawn.
    withdrawn: Map<K, Subject>,
    /// The number of map entries that were looked up to change them.
    work: usize,
}

#[derive(Clone, Debug)]
struct Desired<D> {
    value: D,
    subject: Subject,
    /// Those of `subject`.
    references: u32,
    /// The references of other subjects, in the order in which these were added.
    #[expect(clippy::box_collection, reason = "few keys have any, and a box is smaller")]
    others: Option<Box<Vec<(Subject, u32)>>>,
}

impl<D> Desired<D> {
    fn add_reference(&mut self, subject: &Subject) {
        if self.subject == *subject {
            self.references += 1;
            return;
        }
        let others = self.others.get_or_insert_default();
        match others.iter_mut().find(|(other, _)| other == subject) {
            Some((_, references)) => *references += 1,
            None => others.push((subject.clone(), 1)),
        }
    }

    /// Removes a reference of a subject, or if it has none, of the first one. Returns whether it was the last reference of all.
    fn remove_reference(&mut self, subject: &Subject) -> bool {
        if self.subject != *subject
            && let Some(others) = self.others.as_mut()
            && let Some((_, references)) = others.iter_mut().find(|(other, _)| other == subject)
        {
            *references -= 1;
            others.retain(|(_, references)| *references > 0);
            return false;
        }
        self.references -= 1;
        if self.references > 0 {
            return false;
        }
        let Some(others) = self.others.as_mut().filter(|others| !others.is_empty()) else {
            return true;
        };
        (self.subject, self.references) = others.remove(0);
        false
    }

    /// Makes a subject with a reference the first one.
    fn put_first(&mut self, subject: &Subject) {
        let mut others = self.others.iter_mut().flat_map(|others| others.iter_mut());
        if let Some((other, references)) = others.find(|(other, _)| other == subject) {
            std::mem::swap(other, &mut self.subject);
            std::mem::swap(references, &mut self.references);
        }
    }

    fn references(&self) -> usize {
        let others = self.others.iter().flat_map(|others| others.iter());
        let of_others = others.map(|(_, references)| *references as usize);
        self.references as usize + of_others.sum::<usize>()
    }
}

/// A dirty key with its desired and its observed value, which may be equal.
#[derive(Clone, Debug)]
pub struct Difference<'a, K, D, O> {
    /// The key.
    pub key: &'a K,
    /// The desired value; `None` if the object should not exist.
    pub desired: Option<&'a D>,
    /// The observed value; `None` if the object does not exist.
    pub observed: Option<&'a O>,
    /// What the object is for. [`Subject::DataPath`] for an object that this process never desired.
    pub subject: Subject,
}

impl<K, D, O> Default for Table<K, D, O> {
    fn default() -> Self {
        Self {
            desired: Map::default(),
            observed: Map::default(),
            dirty: Set::default(),
            is_all_dirty: true,
            changed: Set::default(),
            withdrawn: Map::default(),
            work: 0,
        }
    }
}

impl<K: Clone + Eq + Hash + Ord, D: PartialEq, O> Table<K, D, O> {
    /// Adds a reference of a subject to a key and sets its desired value. Each call adds one, also for the same subject. The object is for
    /// the subject that changed the value last; of several with the same value, for the first one that still has a reference.
    ///
    /// If a frontend changes, add its new reference before the old one is [removed](Self::remove).
    pub fn add(&mut self, key: K, value: D, subject: Subject) {
        self.work += 1;
        visit();
        match self.desired.entry(key) {
            Entry::Vacant(entry) => {
                if !self.is_all_dirty {
                    self.dirty.insert(entry.key().clone());
                }
                entry.insert(Desired {
                    value,
                    subject,
                    references: 1,
                    others: None,
                });
            }
            Entry::Occupied(mut entry) => {
                let desired = entry.get_mut();
                desired.add_reference(&subject);
                if desired.value != value {
                    desired.value = value;
                    desired.put_first(&subject);
                    if !self.is_all_dirty {
                        self.dirty.insert(entry.key().clone());
                    }
                }
            }
        }
    }

    /// Sets the desired value of a key to which a subject has a reference.
    pub fn update(&mut self, key: &K, value: D, subject: &Subject) {
        self.work += 1;
        visit();
        if let Some(desired) = self.desired.get_mut(key)
            && desired.value != value
        {
            desired.value = value;
            desired.put_first(subject);
            if !self.is_all_dirty {
                self.dirty.insert(key.clone());
            }
        }
    }

    /// Removes one reference of a subject to a key. With the last one the object is withdrawn. Nothing happens if the key is not desired.
    pub fn remove<Q: Eq + Hash + ToOwned<Owned = K> + ?Sized>(&mut self, key: &Q, subject: &Subject)
    where
        K: Borrow<Q>,
    {
        self.work += 1;
        visit();
        let desired = self.desired.get_mut(key);
        if desired.is_some_and(|desired| desired.remove_reference(subject)) {
            if let Some(desired) = self.desired.remove(key) {
                self.withdrawn.insert(key.to_owned(), desired.subject);
            }
            self.dirty.insert(key.to_owned());
        }
    }

    /// Sets or removes the desired value of a key that one frontend alone needs: it has one reference, and every call replaces its value and
    /// its subject. With `None` the subject has no effect. Use [`add`](Self::add) and [`remove`](Self::remove) for a key that several frontends
    /// share.
    pub fn set(&mut self, key: K, value: Option<D>, subject: Subject) {
        match value {
            Some(value) if self.desired.contains_key(&key) => {
                self.update(&key, value, &subject);
                if let Some(desired) = self.desired.get_mut(&key) {
                    desired.subject = subject;
                }
            }
            Some(value) => self.add(key, value, subject),
            None => self.remove(&key, &subject),
        }
    }

    /// Sets or removes an observed value. The key does not become dirty.
    pub fn observe(&mut self, key: K, value: Option<O>) {
        self.work += 1;
        visit();
        match value {
            Some(value) => _ = self.observed.insert(key, value),
            None => _ = self.observed.remove(&key),
        }
    }

    /// Replaces all observed values. Every key becomes dirty, also those that were observed and no longer are.
    pub fn observe_all(&mut self, observed: impl IntoIterator<Item = (K, O)>)
    where
        O: PartialEq,
    {
        let before = std::mem::take(&mut self.observed);
        self.observed.extend(observed);
        self.changed.clear();
        let mut kept = 0;
        for (key, value) in &before {
            visit();
            let now = self.observed.get(key);
            kept += usize::from(now.is_some());
            if now != Some(value) {
                self.changed.insert(key.clone());
            }
            if now.is_none() {
                self.dirty.insert(key.clone());
            }
        }
        // At the first listing all keys are new.
        if !before.is_empty() && self.observed.len() > kept {
            let new = self.observed.keys().filter(|key| !before.contains_key(key));
            self.changed.extend(new.cloned());
        }
        self.set_all_dirty();
    }

    /// Whether the last [`observe_all`](Self::observe_all) found another value than the recorded one. False again after
    /// [`clear_dirty`](Self::clear_dirty).
    #[must_use]
    pub fn is_changed(&self, key: &K) -> bool {
        self.changed.contains(key)
    }

    /// Makes every desired or observed key dirty.
    pub fn set_all_dirty(&mut self) {
        self.is_all_dirty = true;
    }

    /// Makes a key dirty: the next plan compares it, also if it is neither desired nor observed.
    pub fn set_dirty(&mut self, key: K) {
        let is_known = self.desired.contains_key(&key) || self.observed.contains_key(&key);
        if !self.is_all_dirty || !is_known {
            self.dirty.insert(key);
        }
    }

    /// Whether a key is dirty.
    #[must_use]
    pub fn is_dirty(&self, key: &K) -> bool {
        self.is_all_dirty || self.dirty.contains(key)
    }

    /// Makes all keys clean, after a plan compared them.
    pub fn clear_dirty(&mut self) {
        self.is_all_dirty = false;
        self.changed = Set::default();
        // Release the memory of a large set.
        if self.dirty.capacity() > 64 {
            self.dirty = Set::default();
            self.withdrawn = Map::default();
        } else {
            self.dirty.clear();
            self.withdrawn.clear();
        }
    }

    /// The dirty keys, in no particular order; some may occur twice.
    pub fn dirty_keys(&self) -> impl Iterator<Item = &K> {
        let all = self
            .is_all_dirty
            .then(|| self.desired.keys().chain(self.observed.keys()));
        let keys = self.dirty.iter().chain(all.into_iter().flatten());
        keys.inspect(|_| visit())
    }

    /// The dirty keys with their values, sorted.
    #[must_use]
    pub fn differences(&self) -> Vec<Difference<'_, K, D, O>> {
        let mut keys = self.unique_dirty_keys();
        keys.sort_unstable();
        keys.into_iter().map(|key| self.difference(key)).collect()
    }

    /// The dirty keys with their values, in no particular order, which for many keys takes less time.
    #[must_use]
    pub fn unsorted_differences(&self) -> Vec<Difference<'_, K, D, O>> {
        let keys = self.unique_dirty_keys().into_iter();
        keys.map(|key| self.difference(key)).collect()
    }

    /// The dirty keys, each once, in no particular order.
    fn unique_dirty_keys(&self) -> Vec<&K> {
        if !self.is_all_dirty {
            return self.dirty.iter().inspect(|_| visit()).collect();
        }
        let is_desired = |key: &&K| self.desired.contains_key(*key);
        let is_observed = |key: &&K| self.observed.contains_key(*key);
        let mut keys: Vec<&K> = self.desired.keys().inspect(|_| visit()).collect();
        let observed = self.observed.keys().inspect(|_| visit());
        keys.extend(observed.filter(|key| !is_desired(key)));
        let dirty = self.dirty.iter();
        keys.extend(dirty.filter(|key| !is_desired(key) && !is_observed(key)));
        keys
    }

    fn difference<'a>(&'a self, key: &'a K) -> Difference<'a, K, D, O> {
        let desired = self.desired.get(key);
        let subject = desired.map(|desired| &desired.subject);
        let subject = subject.or_else(|| self.withdrawn.get(key));
        Difference {
            key,
            desired: desired.map(|desired| &desired.value),
            observed: self.observed.get(key),
            subject: subject.cloned().unwrap_or(Subject::DataPath),
        }
    }

    /// The desired value of an object; `None` if it should not exist.
    #[must_use]
    pub fn desired(&self, key: &K) -> Option<&D> {
        self.desired.get(key).map(|desired| &desired.value)
    }

    /// Whether an object should exist.
    #[must_use]
    pub fn is_desired(&self, key: &K) -> bool {
        self.desired.contains_key(key)
    }

    /// The number of references to a key; 0 if it is not desired.
    #[must_use]
    pub fn references(&self, key: &K) -> usize {
        self.desired.get(key).map_or(0, Desired::references)
    }

    /// What an object is for, if it should exist.
    #[must_use]
    pub fn subject(&self, key: &K) -> Option<&Subject> {
        self.desired.get(key).map(|desired| &desired.subject)
    }

    /// The observed value of an object; `None` if it does not exist.
    #[must_use]
    pub fn observed(&self, key: &K) -> Option<&O> {
        self.observed.get(key)
    }

    /// The observed value of an object, to change it. The key does not become dirty.
    pub fn observed_mut(&mut self, key: &K) -> Option<&mut O> {
        self.work += 1;
        visit();
        self.observed.get_mut(key)
    }

    /// Whether an object exists.
    #[must_use]
    pub fn is_observed(&self, key: &K) -> bool {
        self.observed.contains_key(key)
    }

    /// The desired objects, in no particular order.
    #[must_use]
    pub fn iter_desired(&self) -> impl ExactSizeIterator<Item = (&K, &D)> {
        self.desired.iter().map(|(key, desired)| {
            visit();
            (key, &desired.value)
        })
    }

    /// The desired keys, sorted.
    #[must_use]
    pub fn sorted_keys(&self) -> Vec<&K> {
        let mut keys: Vec<&K> = self.desired.keys().inspect(|_| visit()).collect();
        keys.sort_unstable();
        keys
    }

    /// The observed objects, in no particular order.
    #[must_use]
    pub fn iter_observed(&self) -> impl ExactSizeIterator<Item = (&K, &O)> {
        self.observed.iter().inspect(|_| visit())
    }

    /// The number of desired objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.desired.len()
    }

    /// Whether no object is desired.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.desired.is_empty()
    }

    /// Reserves memory for more desired objects.
    pub fn reserve(&mut self, more: usize) {
        self.desired.reserve(more);
    }

    /// The number of map entries that were looked up to change them, since the table was made.
    #[must_use]
    pub fn work(&self) -> usize {
        self.work
    }
}

#[cfg(test)]
mod tests {
    use kernlink_services::ObjectName;

    use super::*;

    fn dirty(table: &Table<u8, char>) -> Vec<(u8, Option<char>, Option<char>)> {
        let differences = table.differences().into_iter();
        differences
            .map(|d| (*d.key, d.desired.copied(), d.observed.copied()))
            .collect()
    }

    #[test]
    fn a_key_is_desired_until_its_last_reference_is_removed() {
        let mut table = Table::default();
        table.add(1, 'a', Subject::Node);
        assert_eq!(dirty(&table), [(1, Some('a'), None)]);
        table.add(1, 'a', Subject::DataPath);
        table.add(1, 'a', Subject::Node);
        assert_eq!(table.references(&1), 3);
        table.clear_dirty();
        table.remove(&1, &Subject::Node);
        table.remove(&1, &Subject::DataPath);
        assert_eq!(dirty(&table), []);
        table.remove(&1, &Subject::Node);
        table.remove(&1, &Subject::Node);
        assert_eq!(dirty(&table), [(1, None, None)]);
        assert_eq!(table.differences()[0].subject, Subject::Node);
    }

    fn service(name: &str) -> Subject {
        Subject::Service(ObjectName::new("ns", name))
    }

    #[test]
    fn an_object_is_for_the_first_subject_that_still_needs_it() {
        let [a, b, c] = ["a", "b", "c"].map(service);
        let mut table: Table<u8, char> = Table::default();
        for subject in [&a, &b, &a, &c, &b] {
            table.add(1, 'x', subject.clone());
        }
        let mut remove = |subject| {
            table.remove(&1, subject);
            (table.references(&1), table.subject(&1).cloned())
        };
        assert_eq!(remove(&b), (4, Some(a.clone())));
        assert_eq!(remove(&a), (3, Some(a.clone())));
        assert_eq!(remove(&a), (2, Some(b.clone())));
        assert_eq!(remove(&b), (1, Some(c.clone())));
        // A reference of a subject that has none.
        assert_eq!(remove(&a), (0, None));
        assert_eq!(table.differences()[0].subject, c);
    }

    #[test]
    fn an_object_is_for_the_subject_that_changed_its_value() {
        let [a, b] = ["a", "b"].map(service);
        let mut table: Table<u8, char> = Table::default();
        table.add(1, 'x', a.clone());
        table.add(1, 'y', b.clone());
        assert_eq!(table.subject(&1), Some(&b));
        table.update(&1, 'z', &a);
        assert_eq!(table.subject(&1), Some(&a));
        table.remove(&1, &a);
        assert_eq!((table.references(&1), table.subject(&1)), (1, Some(&b)));
    }

    #[test]
    fn only_a_changed_value_makes_its_key_dirty() {
        let mut table = Table::default();
        table.add(1, 'a', Subject::Node);
        table.observe(1, Some('a'));
        table.clear_dirty();
        table.update(&1, 'a', &Subject::Node);
        table.add(1, 'a', Subject::Node);
        assert_eq!(dirty(&table), []);
        table.update(&1, 'b', &Subject::Node);
        assert_eq!(dirty(&table), [(1, Some('b'), Some('a'))]);
    }

    #[test]
    fn after_a_listing_desired_keys_and_those_observed_now_or_before_are_dirty() {
        let mut table = Table::default();
        table.add(1, 'a', Subject::Node);
        table.observe(2, Some('b'));
        table.clear_dirty();
        table.observe_all([(3, 'c')]);
        assert_eq!(
            dirty(&table),
            [(1, Some('a'), None), (2, None, None), (3, None, Some('c'))]
        );
        table.add(3, 'd', Subject::DataPath);
        table.remove(&1, &Subject::Node);
        assert_eq!(
            dirty(&table),
            [(1, None, None), (2, None, None), (3, Some('d'), Some('c'))]
        );
        assert_eq!(table.differences()[0].subject, Subject::Node);
        assert!(table.is_dirty(&3));
        table.clear_dirty();
        assert_eq!(dirty(&table), []);
        assert!(!table.is_dirty(&3));
    }

    #[test]
    fn a_listing_shows_which_values_are_not_the_recorded_ones() {
        let mut table: Table<u8, char> = Table::default();
        let changed =
            |table: &Table<u8, char>| (0..6).filter(|key| table.is_changed(key)).collect::<Vec<u8>>();
        table.observe_all([(1, 'a'), (2, 'b'), (3, 'c')]);
        assert_eq!(changed(&table), [0; 0], "at first all values are new");
        table.clear_dirty();
        // What was recorded in between is not a difference.
        table.observe(4, Some('d'));
        table.observe(3, None);
        table.observe_all([(1, 'a'), (2, 'x'), (4, 'd'), (5, 'e')]);
        assert_eq!(changed(&table), [2, 5]);
        table.observe_all([(1, 'a'), (5, 'e')]);
        assert_eq!(changed(&table), [2, 4]);
        table.clear_dirty();
        assert_eq!(changed(&table), [0; 0]);
    }

    #[test]
    fn a_key_that_is_set_again_is_for_the_subject_that_set_it_last() {
        let mut table: Table<u8, u8, u8> = Table::default();
        table.set(1, Some(10), Subject::DataPath);
        for value in [10, 11] {
            table.set(1, Some(value), Subject::Node);
            assert_eq!(table.subject(&1), Some(&Subject::Node));
            table.set(1, Some(value), Subject::DataPath);
            assert_eq!(table.subject(&1), Some(&Subject::DataPath));
        }
        // It has one reference.
        table.set(1, None, Subject::Node);
        assert!(!table.is_desired(&1));
    }

    #[test]
    fn the_dirty_keys_are_found_without_visiting_the_others() {
        let mut table: Table<u32, u32> = Table::default();
        for key in 0..10_000 {
            table.set(key, Some(key), Subject::DataPath);
        }
        assert_eq!(table.dirty_keys().count(), 10_000);
        table.clear_dirty();
        // An iterator that skips keys does not know how many it returns at most.
        assert_eq!(table.dirty_keys().size_hint(), (0, Some(0)));
        table.set_dirty(7);
        assert_eq!(table.dirty_keys().size_hint(), (1, Some(1)));
        let before = visited_keys();
        assert_eq!(table.dirty_keys().collect::<Vec<_>>(), [&7]);
        assert_eq!(visited_keys() - before, 1);
        assert_eq!(table.iter_desired().count(), 10_000);
        assert_eq!(visited_keys() - before, 10_001);
    }
}
