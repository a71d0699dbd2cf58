//! When failed operations are retried: each key has its own time.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;
use kernlink_base::Backoff;
use kernlink_services::ObjectName;

/// The delay used where `Instant` cannot represent the time after a longer one.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The keys whose operations failed. Each key has its own time of the next attempt; the delays are random, so that many keys do not
/// fall due together.
#[derive(Clone, Debug)]
pub struct Retries<K, O> {
    records: HashMap<K, Record<K, O>, RandomState>,
    /// The keys that wait, by time.
    queue: BTreeSet<(Instant, K)>,
    backoff: Backoff,
    random: RandomState,
}

#[derive(Clone, Debug)]
struct Record<K, O> {
    due: Instant,
    /// Whether the retry fell due. It stays due if a later call passes an earlier time.
    is_due: bool,
    /// Whether the operation may have been executed nevertheless: its object is to be read again.
    is_unknown: bool,
    failures: u32,
    /// The Service that the operation is for, if it is for one.
    service: Option<ObjectName>,
    /// The failed operation. Another operation on the key does not wait.
    operation: O,
    /// Keys whose operations were skipped because this one failed.
    dependents: BTreeSet<K>,
}

/// What a plan depends on of the failed operations.
pub(crate) trait Failures<K, O>: fmt::Debug {
    /// Whether no operation failed.
    fn is_empty(&self) -> bool;

    /// Whether an operation on a key failed.
    fn has_failed(&self, key: &K) -> bool;

    /// Whether any operation on a key failed and is not due yet.
    fn waits(&self, key: &K) -> bool;

    /// Whether this operation on a key failed and is not due yet.
    fn is_waiting(&self, key: &K, operation: &O) -> bool;
}

impl<K, O> Failures<K, O> for Retries<K, O>
where
    K: Clone + fmt::Debug + Hash + Ord,
    O: fmt::Debug + PartialEq,
{
    fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn has_failed(&self, key: &K) -> bool {
        !self.records.is_empty() && self.records.contains_key(key)
    }

    fn waits(&self, key: &K) -> bool {
        self.records.get(key).is_some_and(|record| !record.is_due)
    }

    fn is_waiting(&self, key: &K, operation: &O) -> bool {
        self.records
            .get(key)
            .is_some_and(|record| !record.is_due && record.operation == *operation)
    }
}

impl<K: Clone + Hash + Ord, O: PartialEq> Retries<K, O> {
    /// No failures.
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self {
            records: HashMap::default(),
            queue: BTreeSet::new(),
            backoff,
            random: RandomState::default(),
        }
    }

    pub(crate) fn set_backoff(&mut self, backoff: Backoff) {
        self.backoff = backoff;
    }

    /// Records that an operation on a key failed.
    pub(crate) fn fail(
        &mut self,
        key: &K,
        operation: O,
        service: Option<&ObjectName>,
        is_unknown: bool,
        now: Instant,
    ) {
        let before = self.records.remove(key);
        if let Some(before) = &before {
            self.queue.remove(&(before.due, key.clone()));
        }
        // A different operation starts with the first delay.
        let same = before.filter(|before| before.operation == operation);
        let failures = same
            .as_ref()
            .map_or(0, |before| before.failures)
            .saturating_add(1);
        let random = self.random.hash_one((key, failures));
        let delay = self.backoff.delay(failures, random);
        let due = now.checked_add(delay).unwrap_or(now + A_YEAR);
        self.queue.insert((due, key.clone()));
        let record = Record {
            due,
            is_due: false,
            is_unknown,
            failures,
            service: service.cloned(),
            operation,
            dependents: same.map(|before| before.dependents).unwrap_or_default(),
        };
        self.records.insert(key.clone(), record);
    }

    /// Records that an operation on a key was done.
    pub(crate) fn succeed(&mut self, key: &K) {
        if self.records.is_empty() {
            return;
        }
        if let Some(record) = self.records.remove(key) {
            self.queue.remove(&(record.due, key.clone()));
        }
    }

    /// Records that an operation on `dependent` was skipped because the operation on the key `on` failed, waits, or was skipped.
    pub(crate) fn depend(&mut self, on: &K, dependent: K) {
        if let Some(record) = self.records.get_mut(on) {
            record.dependents.insert(dependent);
            return;
        }
        let mut has_record = false;
        for record in self.records.values_mut() {
            if record.dependents.contains(on) {
                record.dependents.insert(dependent.clone());
                has_record = true;
            }
        }
        if has_record {
            return;
        }
        // No record has the key `on`: the dependent is planned with the next key that falls due.
        let next = self.queue.first().map(|(_, key)| key.clone());
        if let Some(record) = next.and_then(|key| self.records.get_mut(&key)) {
            record.dependents.insert(dependent);
        }
    }

    /// Removes the keys that are not `needed`, except those whose operations may have been executed and whose objects were not read again
    /// since.
    pub(crate) fn retain(&mut self, needed: impl Fn(&K) -> bool) {
        let queue = &mut self.queue;
        self.records.retain(|key, record| {
            let is_needed = needed(key) || (record.is_unknown && !record.is_due);
            if !is_needed {
                queue.remove(&(record.due, key.clone()));
            }
            is_needed
        });
    }

    /// Removes the keys that fall due from the queue. Returns them, and the keys that depend on them.
    pub(crate) fn take_due(&mut self, now: Instant) -> (Vec<K>, Vec<K>) {
        let (mut due, mut dependents) = (Vec::new(), Vec::new());
        while let Some((at, key)) = self.queue.first().cloned() {
            if at > now {
                break;
            }
            self.queue.pop_first();
            if let Some(record) = self.records.get_mut(&key) {
                record.is_due = true;
                dependents.extend(std::mem::take(&mut record.dependents));
            }
            due.push(key);
        }
        (due, dependents)
    }

    /// Makes the keys due for which `is_dirty` is true and whose operations may have been executed all the same: another operation on them
    /// must not be planned before their objects are read again. Returns them, and the keys that depend on them.
    pub(crate) fn take_unknown(&mut self, is_dirty: impl Fn(&K) -> bool) -> (Vec<K>, Vec<K>) {
        let (mut due, mut dependents) = (Vec::new(), Vec::new());
        for (key, record) in &mut self.records {
            if record.is_unknown && !record.is_due && is_dirty(key) {
                record.is_due = true;
                self.queue.remove(&(record.due, key.clone()));
                dependents.extend(std::mem::take(&mut record.dependents));
                due.push(key.clone());
            }
        }
        (due, dependents)
    }

    /// The dependents of the keys for which `is_dirty` is true: the dependents are planned again although no retry is due.
    pub(crate) fn dependents_of(&mut self, is_dirty: impl Fn(&K) -> bool) -> Vec<K> {
        let records = self.records.iter_mut().filter(|(key, _)| is_dirty(key));
        records
            .flat_map(|(_, record)| std::mem::take(&mut record.dependents))
            .collect()
    }

    /// Removes the keys that fell due and did not fail again.
    pub(crate) fn drop_due(&mut self) {
        if self.records.len() > self.queue.len() {
            self.records.retain(|_, record| !record.is_due);
        }
    }

    /// When the next key falls due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// The Services whose operations failed, each as often as it has failed operations.
    pub(crate) fn services(&self) -> impl Iterator<Item = &ObjectName> {
        self.records.values().filter_map(|record| record.service.as_ref())
    }

    /// The keys whose operations failed.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.records.keys()
    }

    /// The number of keys whose operations failed.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_operation_that_failed_waits() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        retries.fail(&1, 'a', None, false, now);
        assert!(retries.is_waiting(&1, &'a'));
        assert!(!retries.is_waiting(&1, &'b'));
        assert!(!retries.is_waiting(&2, &'a'));
        let due = retries.next().unwrap();
        assert_eq!(retries.take_due(due), (vec![1], vec![]));
        assert!(!retries.is_waiting(&1, &'a'));
        retries.drop_due();
        assert_eq!(retries.len(), 0);
    }

    #[test]
    fn keys_that_fail_together_fall_due_at_different_times() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        for key in 0..10 {
            retries.fail(&key, 'a', None, false, now);
        }
        let times: BTreeSet<Instant> = retries.queue.iter().map(|(due, _)| *due).collect();
        assert_eq!(times.len(), 10);
    }

    #[test]
    fn dependents_fall_due_with_what_they_depend_on() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        retries.fail(&1, 'a', None, false, now);
        retries.depend(&1, 2);
        // 3 depends on a dependent; 8 depends on a key without a record.
        retries.depend(&2, 3);
        retries.depend(&7, 8);
        let due = retries.next().unwrap();
        assert_eq!(retries.take_due(due), (vec![1], vec![2, 3, 8]));
        retries.fail(&1, 'a', None, false, due);
        retries.depend(&1, 2);
        assert_eq!(retries.dependents_of(|key| *key == 1), [2]);
    }
}
