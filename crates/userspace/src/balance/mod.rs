//! Chooses the endpoint of a connection. No sockets, no clock: the time is an argument.

mod affinity;
mod shuffle;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

pub use self::affinity::{AffinityRecords, DEFAULT_CAPACITY};
use self::shuffle::Shuffle;

/// How long an endpoint that refused or did not answer is avoided, as long as another one is available.
pub const FAILURE_MEMORY: Duration = Duration::from_secs(5);

/// An endpoint to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// Its address and port.
    pub address: SocketAddr,
    /// Its weight relative to other endpoints. 0: it receives no new connections, and keeps those that it has.
    pub weight: u16,
}

impl Backend {
    /// An endpoint with weight 1.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address, weight: 1 }
    }
}

/// Session affinity by client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The time after the last connection of a client for which its next one goes to the same endpoint.
    pub timeout: Duration,
    /// The number of leading bits of the client address that identify a client; at most 32 for IPv4 and 128 for IPv6.
    pub prefix: u8,
}

/// Which connection an endpoint is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The first attempt: session affinity applies.
    First,
    /// The endpoint chosen before failed: the next one in turn is chosen, and the client stays with it.
    Again,
}

/// The endpoints of one listening port: round robin, weights, session affinity, and a short memory of endpoints that failed.
#[derive(Clone, Debug)]
pub struct Balancer {
    /// The endpoints with a weight above 0, in a random order.
    endpoints: Vec<Candidate>,
    /// The position of the next one in turn.
    next: usize,
    /// Whether the weights differ.
    is_weighted: bool,
    affinity: Option<Affinity>,
    records: AffinityRecords,
    shuffle: Shuffle,
}

#[derive(Clone, Debug)]
struct Candidate {
    backend: Backend,
    /// Smooth weighted round robin: grows by the weight in each turn, and shrinks by the sum of all weights when chosen.
    credit: i64,
    /// The endpoint failed; it is avoided until then.
    avoided_until: Option<Instant>,
}

impl Balancer {
    /// A balancer without endpoints. The seed decides the order of endpoints, so that nodes do not all begin with the same one.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            endpoints: Vec::new(),
            next: 0,
            is_weighted: false,
            affinity: None,
            records: AffinityRecords::new(DEFAULT_CAPACITY),
            shuffle: Shuffle::new(seed),
        }
    }

    /// Sets the largest number of clients whose endpoints are remembered; the longest unused ones are forgotten.
    pub fn set_affinity_capacity(&mut self, capacity: usize) {
        self.records.set_capacity(capacity);
    }

    /// Replaces session affinity. A changed timeout applies to the clients that are remembered. Without affinity they are forgotten.
    pub fn set_affinity(&mut self, affinity: Option<Affinity>) {
        let prefix = |affinity: Option<Affinity>| affinity.map(|affinity| affinity.prefix);
        if prefix(self.affinity) != prefix(affinity) {
            self.records.clear();
        }
        self.affinity = affinity;
    }

    /// Replaces the endpoints. The same endpoints in another order change nothing. Otherwise their order is random again, the first one is
    /// next, and clients of endpoints that left, or that have weight 0 now, are forgotten.
    pub fn set_backends(&mut self, backends: &[Backend]) {
        let mut new: Vec<Backend> = backends
            .iter()
            .filter(|backend| backend.weight > 0)
            .copied()
            .collect();
        new.sort_unstable();
        new.dedup_by_key(|backend| backend.address);
        let mut old: Vec<Backend> = self.endpoints.iter().map(|candidate| candidate.backend).collect();
        old.sort_unstable();
        if new == old {
            return;
        }
        self.records.retain(|endpoint| {
            new.binary_search_by_key(endpoint, |backend| backend.address)
                .is_ok()
        });
        self.is_weighted = new
            .iter()
            .any(|backend| Some(backend.weight) != new.first().map(|first| first.weight));
        let avoided: Vec<(SocketAddr, Instant)> = self
            .endpoints
            .iter()
            .filter_map(|candidate| Some((candidate.backend.address, candidate.avoided_until?)))
            .collect();
        self.shuffle.shuffle(&mut new);
        let candidate = |backend: Backend| Candidate {
            backend,
            credit: 0,
            avoided_until: avoided
                .iter()
                .find(|(address, _)| *address == backend.address)
                .map(|(_, until)| *until),
        };
        self.endpoints = new.into_iter().map(candidate).collect();
        self.next = 0;
    }

    /// The number of endpoints that receive new connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Whether no endpoint receives new connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Whether an endpoint receives new connections.
    #[must_use]
    pub fn contains(&self, endpoint: SocketAddr) -> bool {
        let mut candidates = self.endpoints.iter();
        candidates.any(|candidate| candidate.backend.address == endpoint)
    }

    /// The number of clients that are remembered for session affinity.
    #[must_use]
    pub fn affinity_records(&self) -> usize {
        self.records.len()
    }

    /// Chooses the endpoint for a connection of a client. `None`: there is no endpoint.
    pub fn choose(&mut self, client: IpAddr, attempt: Attempt, now: Instant) -> Option<SocketAddr> {
        let Some(affinity) = self.affinity else {
            return self.rotate(now);
        };
        let client = masked(client, affinity.prefix);
        if attempt == Attempt::First
            && let Some(endpoint) = self.records.find(client, affinity.timeout, now)
        {
            return Some(endpoint);
        }
        let endpoint = self.rotate(now)?;
        self.records.insert(client, endpoint, affinity.timeout, now);
        Some(endpoint)
    }

    /// Records that an endpoint refused a connection or did not answer: it is avoided for [`FAILURE_MEMORY`].
    pub fn set_failed(&mut self, endpoint: SocketAddr, now: Instant) {
        self.set_avoided(endpoint, now.checked_add(FAILURE_MEMORY));
    }

    /// Records that an endpoint refused what it had received from a client: it is avoided, as after [`set_failed`](Self::set_failed), and
    /// the client does not stay with it.
    pub fn set_refused(&mut self, client: IpAddr, endpoint: SocketAddr, now: Instant) {
        self.set_failed(endpoint, now);
        if let Some(affinity) = self.affinity {
            self.records
                .remove_client(masked(client, affinity.prefix), endpoint);
        }
    }

    /// Records that an endpoint accepted a connection.
    pub fn set_working(&mut self, endpoint: SocketAddr) {
        self.set_avoided(endpoint, None);
    }

    fn set_avoided(&mut self, endpoint: SocketAddr, until: Option<Instant>) {
        let mut candidates = self.endpoints.iter_mut();
        if let Some(candidate) = candidates.find(|candidate| candidate.backend.address == endpoint) {
            candidate.avoided_until = until;
        }
    }

    /// The next endpoint in turn. Endpoints that failed are left out, unless all did.
    fn rotate(&mut self, now: Instant) -> Option<SocketAddr> {
        let available = |candidate: &Candidate| candidate.avoided_until.is_none_or(|until| until <= now);
        let ignores_failures = !self.endpoints.iter().any(available);
        let is_candidate = |candidate: &Candidate| ignores_failures || available(candidate);
        if self.is_weighted {
            let mut total = 0;
            let mut best: Option<(usize, i64)> = None;
            for (index, candidate) in self.endpoints.iter_mut().enumerate() {
                if is_candidate(candidate) {
                    let weight = i64::from(candidate.backend.weight);
                    total += weight;
                    candidate.credit += weight;
                    if best.is_none_or(|(_, credit)| candidate.credit > credit) {
                        best = Some((index, candidate.credit));
                    }
                }
            }
            let chosen = self.endpoints.get_mut(best?.0)?;
            chosen.credit -= total;
            return Some(chosen.backend.address);
        }
        let count = self.endpoints.len();
        let turn = (0..count).map(|step| (self.next + step) % count);
        let mut turn = turn.filter_map(|index| Some((index, self.endpoints.get(index)?)));
        let (index, chosen) = turn.find(|(_, candidate)| is_candidate(candidate))?;
        let address = chosen.backend.address;
        self.next = (index + 1) % count;
        Some(address)
    }
}

/// The address with all bits after the prefix cleared.
fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let shift = 32 - u32::from(prefix.min(32));
            let mask = u32::MAX.checked_shl(shift).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let shift = 128 - u32::from(prefix.min(128));
            let mask = u128::MAX.checked_shl(shift).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

#[cfg(test)]
mod tests;
