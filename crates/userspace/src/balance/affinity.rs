//! The endpoints of clients, for session affinity.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;

/// The largest number of clients that are remembered for one listening port, unless another number is set.
pub const DEFAULT_CAPACITY: usize = 65_536;

/// The endpoint of each client, and when the client used it last. Bounded: the longest unused records are removed.
#[derive(Clone, Debug)]
pub struct AffinityRecords {
    records: HashMap<IpAddr, Record, RandomState>,
    /// The clients in the order of their last use.
    order: BTreeMap<u64, IpAddr>,
    /// The place in this order of the next use.
    sequence: u64,
    capacity: usize,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    endpoint: SocketAddr,
    last_used: Instant,
    sequence: u64,
}

impl AffinityRecords {
    /// No records, and room for so many.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            records: HashMap::default(),
            order: BTreeMap::new(),
            sequence: 0,
            capacity,
        }
    }

    /// Changes the largest number of records.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.shrink_to(capacity);
    }

    /// The number of records. Those that timed out are removed when others are added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.records = HashMap::default();
        self.order.clear();
    }

    /// The endpoint of a client, if the client used it less than `timeout` ago. This is a use.
    pub fn find(&mut self, client: IpAddr, timeout: Duration, now: Instant) -> Option<SocketAddr> {
        let record = self.records.get_mut(&client)?;
        if now.saturating_duration_since(record.last_used) >= timeout {
            return None;
        }
        self.order.remove(&record.sequence);
        record.last_used = now;
        record.sequence = self.sequence;
        self.order.insert(self.sequence, client);
        self.sequence += 1;
        Some(record.endpoint)
    }

    /// Sets the endpoint of a client. Removes records that timed out and, if there are too many, the longest unused ones.
    pub fn insert(&mut self, client: IpAddr, endpoint: SocketAddr, timeout: Duration, now: Instant) {
        self.expire(timeout, now);
        let record = Record {
            endpoint,
            last_used: now,
            sequence: self.sequence,
        };
        if let Some(before) = self.records.insert(client, record) {
            self.order.remove(&before.sequence);
        }
        self.order.insert(self.sequence, client);
        self.sequence += 1;
        self.shrink_to(self.capacity);
    }

    /// Removes the records that were not used for `timeout`.
    pub fn expire(&mut self, timeout: Duration, now: Instant) {
        while let Some((&sequence, client)) = self.order.first_key_value() {
            let record = self.records.get(client);
            if record.is_some_and(|record| now.saturating_duration_since(record.last_used) < timeout) {
                return;
            }
            self.remove(sequence);
        }
    }

    /// Removes the record of a client if it names this endpoint.
    pub fn remove_client(&mut self, client: IpAddr, endpoint: SocketAddr) {
        let record = self.records.get(&client);
        if let Some(record) = record.filter(|record| record.endpoint == endpoint) {
            let sequence = record.sequence;
            self.remove(sequence);
        }
    }

    /// Keeps the records whose endpoints satisfy a condition.
    pub fn retain(&mut self, mut keep: impl FnMut(&SocketAddr) -> bool) {
        let order = &mut self.order;
        self.records.retain(|_, record| {
            let is_kept = keep(&record.endpoint);
            if !is_kept {
                order.remove(&record.sequence);
            }
            is_kept
        });
    }

    fn shrink_to(&mut self, size: usize) {
        while self.records.len() > size {
            let Some((&sequence, _)) = self.order.first_key_value() else {
                return;
            };
            self.remove(sequence);
        }
    }

    fn remove(&mut self, sequence: u64) {
        if let Some(client) = self.order.remove(&sequence) {
            self.records.remove(&client);
        }
    }
}
