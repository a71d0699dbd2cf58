//! When failed operations are retried: each key has its own time.

use std::collections::{BTreeSet, HashMap};
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
    /// The failed keys that each skipped key depends on: the reverse of [`Record::dependents`].
    causes: HashMap<K, BTreeSet<K>, RandomState>,
    backoff: Backoff,
    random: RandomState,
}

#[derive(Clone, Debug)]
struct Record<K, O> {
    /// When the operation failed first.
    since: Instant,
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

/// An operation that failed.
#[derive(Debug)]
pub(crate) struct Failed<'a, K, O> {
    pub(crate) key: &'a K,
    pub(crate) operation: &'a O,
    /// The number of attempts that failed.
    pub(crate) attempts: u32,
    /// When the first of these attempts failed.
    pub(crate) since: Instant,
    /// When the next attempt is due.
    pub(crate) due: Instant,
    /// The Service that the operation is for, if it is for one.
    pub(crate) service: Option<&'a ObjectName>,
}

impl<K: Clone + Hash + Ord, O: PartialEq> Retries<K, O> {
    /// No failures.
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self {
            records: HashMap::default(),
            queue: BTreeSet::new(),
            causes: HashMap::default(),
            backoff,
            random: RandomState::default(),
        }
    }

    pub(crate) fn set_backoff(&mut self, backoff: Backoff) {
        self.backoff = backoff;
    }

    /// The operations that failed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Failed<'_, K, O>> {
        self.records.iter().map(|(key, record)| Failed {
            key,
            operation: &record.operation,
            attempts: record.failures,
            since: record.since,
            due: record.due,
            service: record.service.as_ref(),
        })
    }

    /// Whether an operation on a key failed.
    pub(crate) fn has_failed(&self, key: &K) -> bool {
        !self.records.is_empty() && self.records.contains_key(key)
    }

    /// Whether any operation on a key failed and is not due yet.
    pub(crate) fn waits(&self, key: &K) -> bool {
        self.records.get(key).is_some_and(|record| !record.is_due)
    }

    /// Whether this operation on a key failed and is not due yet.
    pub(crate) fn is_waiting(&self, key: &K, operation: &O) -> bool {
        self.records
            .get(key)
            .is_some_and(|record| !record.is_due && record.operation == *operation)
    }

    /// Records that an operation on a key failed. Its object stays one that is to be read again if it was not since an earlier operation on it, which
    /// may have been executed.
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
        let is_unread = before
            .as_ref()
            .is_some_and(|before| before.is_unknown && !before.is_due);
        // A different operation starts with the first delay.
        let (same, other) = match before {
            Some(before) if before.operation == operation => (Some(before), None),
            other => (None, other),
        };
        for dependent in other.into_iter().flat_map(|other| other.dependents) {
            remove_cause(&mut self.causes, key, &dependent);
        }
        let failures = same
            .as_ref()
            .map_or(0, |before| before.failures)
            .saturating_add(1);
        let random = self.random.hash_one((key, failures));
        let delay = self.backoff.delay(failures, random);
        let due = now.checked_add(delay).unwrap_or(now + A_YEAR);
        self.queue.insert((due, key.clone()));
        let record = Record {
            since: same.as_ref().map_or(now, |before| before.since),
            due,
            is_due: false,
            is_unknown: is_unknown || is_unread,
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
            for dependent in &record.dependents {
                remove_cause(&mut self.causes, key, dependent);
            }
        }
    }

    /// Records that an operation on `dependent` was skipped because the operation on the key `on` failed, waits, or was skipped.
    pub(crate) fn depend(&mut self, on: &K, dependent: K) {
        if self.records.contains_key(on) {
            return self.add_dependent(on.clone(), dependent);
        }
        let causes: Vec<K> = self.causes.get(on).into_iter().flatten().cloned().collect();
        if causes.is_empty() {
            // No record has the key `on`: the dependent is planned with the next key that falls due.
            if let Some(next) = self.queue.first().map(|(_, key)| key.clone()) {
                self.add_dependent(next, dependent);
            }
            return;
        }
        for cause in causes {
            self.add_dependent(cause, dependent.clone());
        }
    }

    fn add_dependent(&mut self, cause: K, dependent: K) {
        if let Some(record) = self.records.get_mut(&cause) {
            record.dependents.insert(dependent.clone());
            self.causes.entry(dependent).or_default().insert(cause);
        }
    }

    /// Removes the keys that are not `needed`, except those whose operations may have been executed and whose objects were not read again
    /// since.
    pub(crate) fn retain(&mut self, needed: impl Fn(&K) -> bool) {
        let Self { queue, causes, .. } = self;
        self.records.retain(|key, record| {
            let is_needed = needed(key) || (record.is_unknown && !record.is_due);
            if !is_needed {
                queue.remove(&(record.due, key.clone()));
                for dependent in &record.dependents {
                    remove_cause(causes, key, dependent);
                }
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
                dependents.extend(take_dependents(&mut self.causes, &key, record));
            }
            due.push(key);
        }
        (due, dependents)
    }

    /// The keys that fell due, until their operations are done or fail again.
    pub(crate) fn due(&self) -> impl Iterator<Item = &K> {
        let due = self.records.iter().filter(|(_, record)| record.is_due);
        due.map(|(key, _)| key)
    }

    /// Makes the keys due for which `is_dirty` is true and whose operations may have been executed all the same: another operation on them
    /// must not be planned before their objects are read again. Returns them, and the keys that depend on them.
    pub(crate) fn take_unknown(&mut self, is_dirty: impl Fn(&K) -> bool) -> (Vec<K>, Vec<K>) {
        let (mut due, mut dependents) = (Vec::new(), Vec::new());
        for (key, record) in &mut self.records {
            if record.is_unknown && !record.is_due && is_dirty(key) {
                record.is_due = true;
                self.queue.remove(&(record.due, key.clone()));
                dependents.extend(take_dependents(&mut self.causes, key, record));
                due.push(key.clone());
            }
        }
        (due, dependents)
    }

    /// The dependents of the keys for which `is_dirty` is true: the dependents are planned again although no retry is due.
    pub(crate) fn dependents_of(&mut self, is_dirty: impl Fn(&K) -> bool) -> Vec<K> {
        let causes = &mut self.causes;
        // Most records have none.
        let records = self
            .records
            .iter_mut()
            .filter(|(_, record)| !record.dependents.is_empty());
        let dirty = records.filter(|(key, _)| is_dirty(key));
        dirty
            .flat_map(|(key, record)| take_dependents(causes, key, record))
            .collect()
    }

    /// Removes the keys that fell due and did not fail again.
    pub(crate) fn drop_due(&mut self) {
        if self.records.len() > self.queue.len() {
            let causes = &mut self.causes;
            self.records.retain(|key, record| {
                if record.is_due {
                    take_dependents(causes, key, record);
                }
                !record.is_due
            });
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

/// The dependents of a record, which has none afterwards.
fn take_dependents<K: Clone + Hash + Ord, O>(
    causes: &mut HashMap<K, BTreeSet<K>, RandomState>,
    key: &K,
    record: &mut Record<K, O>,
) -> BTreeSet<K> {
    for dependent in &record.dependents {
        remove_cause(causes, key, dependent);
    }
    std::mem::take(&mut record.dependents)
}

/// Records that a key does not depend on a failed one any more.
fn remove_cause<K: Clone + Hash + Ord>(
    causes: &mut HashMap<K, BTreeSet<K>, RandomState>,
    key: &K,
    dependent: &K,
) {
    if let Some(of_dependent) = causes.get_mut(dependent) {
        of_dependent.remove(key);
        if of_dependent.is_empty() {
            causes.remove(dependent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hash::Hasher;

    use super::*;

    thread_local! {
        static VISITS: Cell<usize> = const { Cell::new(0) };
    }

    /// A key that counts how often one is compared or hashed.
    #[derive(Clone, Debug)]
    struct Counted(usize);

    impl Counted {
        fn visit(&self) -> usize {
            VISITS.set(VISITS.get() + 1);
            self.0
        }
    }

    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.visit().hash(state);
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.visit() == other.0
        }
    }

    impl Eq for Counted {}

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            self.visit().cmp(&other.0)
        }
    }

    #[test]
    fn operations_that_depend_on_many_others_cost_the_same_each() {
        let now = Instant::now();
        let visits = [100, 1_000].map(|number: usize| {
            let mut retries: Retries<Counted, char> = Retries::new(Backoff::default());
            for key in 0..number {
                retries.fail(&Counted(key), 'a', None, false, now);
            }
            let before = VISITS.get();
            for key in 0..number {
                // Virtual servers, their addresses, and what needs an address.
                retries.depend(&Counted(key), Counted(number + key));
                retries.depend(&Counted(number + key), Counted(2 * number + key));
            }
            assert!(!retries.dependents_of(|key| key.0 == 7).is_empty());
            VISITS.get() - before
        });
        // Ten times as many, and a larger logarithm.
        assert!(visits[1] < 20 * visits[0], "{visits:?}");
    }

    #[test]
    fn what_depends_on_an_operation_is_forgotten_with_it() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        for end in 0..5 {
            retries.fail(&1, 'a', None, true, now);
            retries.depend(&1, 2);
            retries.depend(&2, 3);
            match end {
                0 => retries.succeed(&1),
                1 => _ = retries.dependents_of(|_| true),
                2 => retries.fail(&1, 'b', None, true, now),
                3 => _ = retries.take_unknown(|_| true),
                _ => {
                    let due = retries.next().unwrap();
                    retries.take_due(due);
                    retries.drop_due();
                }
            }
            assert!(retries.causes.is_empty(), "{end}: {retries:?}");
        }
        retries.fail(&1, 'a', None, false, now);
        retries.depend(&1, 2);
        retries.retain(|_| false);
        assert!(retries.causes.is_empty());
    }

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
        // Two may have the same nanosecond.
        assert!(times.len() >= 9, "{times:?}");
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

    #[test]
    fn the_delay_of_an_operation_grows_and_that_of_another_one_is_the_first() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        let failures = |retries: &Retries<u8, char>| retries.iter().next().map(|failed| failed.attempts);
        for expected in 1..4 {
            retries.fail(&1, 'a', None, false, now);
            assert_eq!(failures(&retries), Some(expected));
        }
        retries.fail(&1, 'b', None, false, now);
        assert_eq!(failures(&retries), Some(1));
    }

    #[test]
    fn an_operation_fails_since_its_first_failure() {
        let start = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        let since = |retries: &Retries<u8, char>| retries.iter().next().map(|failed| failed.since);
        let mut now = start;
        for _ in 0..3 {
            retries.fail(&1, 'a', None, false, now);
            assert_eq!(since(&retries), Some(start));
            now = retries.next().unwrap();
            retries.take_due(now);
        }
        retries.fail(&1, 'b', None, false, now);
        assert_eq!(since(&retries), Some(now));
        retries.succeed(&1);
        let later = now + Duration::from_secs(1);
        retries.fail(&1, 'b', None, false, later);
        assert_eq!(since(&retries), Some(later));
    }

    #[test]
    fn what_depends_on_an_operation_that_fails_again_still_falls_due_with_it() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        retries.fail(&1, 'a', None, false, now);
        retries.depend(&1, 2);
        retries.fail(&1, 'a', None, false, now);
        let due = retries.next().unwrap();
        assert_eq!(retries.take_due(due), (vec![1], vec![2]));
    }

    #[test]
    fn a_key_waits_until_its_retry_falls_due() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        assert!(!retries.waits(&1));
        retries.fail(&1, 'a', None, false, now);
        assert!(retries.waits(&1) && !retries.waits(&2));
        let due = retries.next().unwrap();
        retries.take_due(due);
        assert!(!retries.waits(&1));
    }

    #[test]
    fn a_changed_delay_is_that_of_the_next_failure() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        let hours = |number: u64| Duration::from_secs(number * 3600);
        retries.set_backoff(Backoff {
            initial: hours(1),
            max: hours(2),
        });
        retries.fail(&1, 'a', None, false, now);
        // A random part of up to half is subtracted.
        assert!(retries.next().unwrap() >= now + hours(1) / 2);
    }

    #[test]
    fn what_is_not_needed_stays_only_until_an_object_that_may_have_changed_is_read_again() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        retries.fail(&1, 'a', None, true, now);
        retries.fail(&2, 'a', None, false, now);
        retries.fail(&3, 'a', None, false, now);
        retries.retain(|key| *key == 3);
        let keys = |retries: &Retries<u8, char>| retries.keys().copied().collect::<BTreeSet<u8>>();
        assert_eq!(keys(&retries), [1, 3].into());
        retries.take_unknown(|key| *key == 1);
        retries.retain(|key| *key == 3);
        assert_eq!(keys(&retries), [3].into());
    }

    #[test]
    fn an_object_that_may_have_changed_is_read_again_although_the_next_operation_on_it_is_refused() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        // Two steps of one plan.
        retries.fail(&1, 'a', None, true, now);
        retries.fail(&1, 'b', None, false, now);
        retries.retain(|_| false);
        assert_eq!(retries.take_unknown(|_| true), (vec![1], vec![]));
        // It was read.
        retries.fail(&1, 'b', None, false, now);
        assert_eq!(retries.take_unknown(|_| true), (vec![], vec![]));
    }

    #[test]
    fn keys_are_counted_until_they_succeed_and_fall_due_not_before_their_time() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        retries.fail(&1, 'a', None, false, now);
        assert_eq!(retries.len(), 1);
        assert!(retries.has_failed(&1) && !retries.has_failed(&2));
        assert_eq!(retries.take_due(now), (vec![], vec![]));
        retries.succeed(&1);
        assert_eq!((retries.len(), retries.next()), (0, None));
    }

    #[test]
    fn a_time_that_cannot_be_represented_is_a_year_away() {
        let now = Instant::now();
        let (initial, max) = (Duration::MAX, Duration::MAX);
        let mut retries: Retries<u8, char> = Retries::new(Backoff { initial, max });
        retries.fail(&1, 'a', None, false, now);
        assert_eq!(retries.next(), Some(now + A_YEAR));
    }

    #[test]
    fn dirty_objects_of_which_the_outcome_is_unknown_fall_due_once() {
        let now = Instant::now();
        let mut retries: Retries<u8, char> = Retries::new(Backoff::default());
        for (key, is_unknown) in [(1, true), (2, false), (3, true)] {
            retries.fail(&key, 'a', None, is_unknown, now);
        }
        assert_eq!(retries.take_unknown(|key| *key < 3), (vec![1], vec![]));
        assert_eq!(retries.take_unknown(|key| *key < 3), (vec![], vec![]));
    }
}
