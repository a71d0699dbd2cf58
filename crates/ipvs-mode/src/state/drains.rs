//! Which real servers drain, when they are read again, and their deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernlink_ipset::{Entry, Set, Timeout};
use kernlink_ipvs::{RealServerKey, VirtualServerKey};
use kernlink_services::Family;

use super::State;
use crate::drain::{READ_INTERVAL, of_entry};
use crate::key::Key;

/// The draining real servers. Everything here is read from the kernel again after a restart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drains {
    /// The time of the sync in progress; `None` before the first one.
    now: Option<Instant>,
    /// The sets of deadlines, by family, as last read or created.
    sets: [Option<Set>; 2],
    deadlines: BTreeMap<VirtualServerKey, BTreeMap<IpAddr, Deadline>>,
    /// The virtual servers with draining real servers.
    draining: BTreeMap<VirtualServerKey, Draining>,
    /// The same, by the time at which they are read again.
    queue: BTreeSet<(Instant, VirtualServerKey)>,
    /// The number of draining real servers.
    count: usize,
    /// The virtual servers with real servers of weight 0 that were read for this sync.
    read: BTreeSet<VirtualServerKey>,
    /// The real servers that had weight 0 and no connections when they were read for this sync.
    idle: BTreeMap<VirtualServerKey, BTreeSet<RealServerKey>>,
}

/// When the draining real servers of a virtual server at an address are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    /// Whether the kernel has its entry.
    pub(crate) is_stored: bool,
}

#[derive(Clone, Copy, Debug)]
struct Draining {
    /// The number of draining real servers.
    count: usize,
    /// When the virtual server is read again: after an interval, or at the first deadline.
    read_at: Instant,
}

/// Virtual servers are read so much earlier together with one that is due, so that their times coincide.
const COMBINED: Duration = Duration::from_secs(1);

/// The greatest difference between a deadline and the same deadline computed from the listed remaining time, which the kernel rounds
/// down to seconds.
const ROUNDING: Duration = Duration::from_secs(2);

impl Drains {
    /// Sets the time of the sync in progress.
    pub(crate) fn set_time(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// The time of the sync in progress.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.now
    }

    /// The virtual servers to read again.
    pub(crate) fn due(&self, now: Instant) -> Vec<Key> {
        if self.next().is_none_or(|next| next > now) {
            return Vec::new();
        }
        let is_due = |read_at: Instant| read_at.saturating_duration_since(now) < COMBINED;
        let due = self.queue.iter().take_while(|(read_at, _)| is_due(*read_at));
        let mut due: Vec<VirtualServerKey> = due.map(|(_, key)| *key).collect();
        due.sort_unstable();
        due.into_iter().map(Key::VirtualServer).collect()
    }

    /// When a virtual server is to be read again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(read_at, _)| *read_at)
    }

    /// The number of draining real servers.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Sets the draining real servers of a virtual server; `None` if it has none.
    fn set_draining(&mut self, server: VirtualServerKey, draining: Option<Draining>) {
        let before = match draining {
            Some(draining) => {
                self.count += draining.count;
                self.queue.insert((draining.read_at, server));
                self.draining.insert(server, draining)
            }
            None => self.draining.remove(&server),
        };
        if let Some(before) = before {
            self.count -= before.count;
            if draining.is_none_or(|draining| draining.read_at != before.read_at) {
                self.queue.remove(&(before.read_at, server));
            }
        }
    }

    /// Records that a virtual server was read, with its real servers of weight 0, and whether each has no connections.
    pub(crate) fn observe(
        &mut self,
        server: VirtualServerKey,
        real_servers: impl Iterator<Item = (RealServerKey, bool)>,
    ) {
        self.idle.remove(&server);
        self.add_observed(server, real_servers);
    }

    fn add_observed(
        &mut self,
        server: VirtualServerKey,
        real_servers: impl Iterator<Item = (RealServerKey, bool)>,
    ) {
        let mut has_any = false;
        for (real_server, is_idle) in real_servers {
            has_any = true;
            if is_idle {
                self.idle.entry(server).or_default().insert(real_server);
            }
        }
        if let Some(read_at) = self.now.map(|now| now + READ_INTERVAL).filter(|_| has_any) {
            self.read.insert(server);
            // Only a sync that compares it postpones the next reading.
            if !self.draining.contains_key(&server) {
                self.set_draining(server, Some(Draining { count: 0, read_at }));
            }
        }
    }

    /// Replaces what is known about real servers with weight 0, after all virtual servers were read.
    pub(crate) fn observe_all(
        &mut self,
        servers: impl Iterator<Item = (VirtualServerKey, Vec<(RealServerKey, bool)>)>,
    ) {
        self.idle.clear();
        for (server, real_servers) in servers {
            self.add_observed(server, real_servers.into_iter());
        }
    }

    /// Replaces the sets and the stored deadlines by those that were read. Deadlines that the kernel no longer has are kept; they are
    /// stored again as long as their real servers drain.
    pub(crate) fn observe_sets(&mut self, sets: Vec<(Family, Set, Vec<Entry>)>) {
        let Some(now) = self.now else { return };
        self.sets = [None, None];
        for deadline in self.deadlines.values_mut().flat_map(BTreeMap::values_mut) {
            deadline.is_stored = false;
        }
        for (family, set, entries) in sets {
            self.sets[family.index()] = Some(set);
            for entry in entries {
                let Some((server, address)) = of_entry(&entry) else {
                    continue;
                };
                let left = entry.options().timeout.filter(|left| left.as_secs() > 0);
                let left = left.unwrap_or(Timeout::MAX).as_secs();
                let at = now + Duration::from_secs(left.into());
                let deadlines = self.deadlines.entry(server).or_default();
                let known = deadlines.get(&address).map_or(at, |known| known.at);
                let difference = known.max(at) - known.min(at);
                let at = if difference <= ROUNDING { known } else { at };
                deadlines.insert(address, Deadline { at, is_stored: true });
            }
        }
    }

    /// Whether a real server had no connections when it was read for this sync.
    pub(crate) fn is_idle(&self, server: VirtualServerKey, real_server: RealServerKey) -> bool {
        let idle = self.idle.get(&server);
        idle.is_some_and(|idle| idle.contains(&real_server))
    }

    /// The deadline of the real servers at an address.
    pub(crate) fn deadline(&self, server: &VirtualServerKey, address: IpAddr) -> Option<Deadline> {
        self.deadlines.get(server)?.get(&address).copied()
    }

    /// The addresses of a virtual server that have an entry in the kernel.
    pub(crate) fn stored(&self, server: &VirtualServerKey) -> impl Iterator<Item = IpAddr> {
        let deadlines = self.deadlines.get(server).into_iter().flatten();
        deadlines
            .filter(|(_, deadline)| deadline.is_stored)
            .map(|(address, _)| *address)
    }

    /// The virtual servers with deadlines.
    pub(super) fn servers_with_deadlines(&self) -> impl Iterator<Item = &VirtualServerKey> {
        self.deadlines.keys()
    }

    /// The set of a family, as last read or created.
    pub(crate) fn set(&self, family: Family) -> Option<&Set> {
        self.sets[family.index()].as_ref()
    }

    /// Records an operation on the set of a family that was done.
    pub(super) fn record(&mut self, family: Family, operation: &kernlink_ipset::Operation) {
        use kernlink_ipset::Operation;
        match operation {
            Operation::Create { set, .. } => self.sets[family.index()] = Some((**set).clone()),
            Operation::Add { entry, .. } => {
                if let (Some(now), Some((server, address)), Some(left)) =
                    (self.now, of_entry(entry), entry.options().timeout)
                {
                    let at = now + Duration::from_secs(left.as_secs().into());
                    let deadlines = self.deadlines.entry(server).or_default();
                    deadlines.insert(address, Deadline { at, is_stored: true });
                }
            }
            Operation::Delete { entry, .. } => {
                if let Some((server, address)) = of_entry(entry)
                    && let Some(deadlines) = self.deadlines.get_mut(&server)
                {
                    deadlines.remove(&address);
                    if deadlines.is_empty() {
                        self.deadlines.remove(&server);
                    }
                }
            }
            Operation::Destroy { .. } => {
                self.sets[family.index()] = None;
                let of_family = |server: &VirtualServerKey| server.address().map(Family::of) == Some(family);
                self.deadlines.retain(|server, _| !of_family(server));
            }
            // Plans contain no other operation.
            _ => {}
        }
    }

    /// Ends the sync in progress for a virtual server, with the addresses of its draining real servers.
    fn finish(&mut self, server: VirtualServerKey, addresses: &[IpAddr]) {
        let Some(now) = self.now else { return };
        if let Some(deadlines) = self.deadlines.get_mut(&server) {
            deadlines.retain(|address, deadline| deadline.is_stored || addresses.contains(address));
            if deadlines.is_empty() {
                self.deadlines.remove(&server);
            }
        }
        if addresses.is_empty() {
            self.set_draining(server, None);
            return;
        }
        let deadlines = self.deadlines.get(&server).into_iter().flatten();
        let coming = deadlines.map(|(_, deadline)| deadline.at).filter(|at| *at > now);
        let latest = now + READ_INTERVAL;
        let known = self.draining.get(&server).map(|draining| draining.read_at);
        let planned = known
            .filter(|read_at| *read_at > now && !self.read.contains(&server))
            .map_or(latest, |read_at| read_at.min(latest));
        let draining = Draining {
            count: addresses.len(),
            read_at: coming.fold(planned, Instant::min),
        };
        self.set_draining(server, Some(draining));
    }
}

impl State {
    /// The draining real servers of a virtual server that is desired: they exist, are not desired and have weight 0. If another mode serves
    /// the node, those of owned virtual servers that have weight 0.
    fn draining(&self, server: &VirtualServerKey) -> Vec<IpAddr> {
        let is_retired = self.retired.is_some();
        let desired = self.servers.desired(server).filter(|_| !is_retired);
        let Some(observed) = self.servers.observed(server) else {
            return Vec::new();
        };
        if (is_retired && !observed.is_owned) || (!is_retired && desired.is_none()) {
            return Vec::new();
        }
        let of_weight_0 = observed
            .real_servers
            .iter()
            .filter(|(_, known)| known.is_draining());
        of_weight_0
            .filter(|(key, _)| desired.is_none_or(|desired| desired.real_server(key).is_none()))
            .map(|(key, _)| key.address)
            .collect()
    }

    /// Ends the sync in progress: finds the draining real servers of the virtual servers that it compared.
    pub(crate) fn finish_drains(&mut self) {
        let dirty: Vec<VirtualServerKey> = self.servers.dirty_keys().copied().collect();
        for server in dirty {
            let addresses = self.draining(&server);
            self.drains.finish(server, &addresses);
        }
        self.drains.idle.clear();
        self.drains.read.clear();
    }

    /// Makes the virtual servers dirty whose deadlines are stored, also those that are neither desired nor observed.
    pub(crate) fn set_deadlines_dirty(&mut self) {
        let servers: Vec<VirtualServerKey> = self.drains.servers_with_deadlines().copied().collect();
        for server in servers {
            self.servers.set_dirty(server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_and_the_number_of_draining_real_servers_are_those_of_all_virtual_servers() {
        let start = Instant::now();
        let mut drains = Drains::default();
        drains.set_time(start);
        let key = |last: u8| VirtualServerKey::tcp([10, 96, 0, last], 80);
        // The same numbers in another order, some of them again, and some without real servers.
        for step in 0..200_u64 {
            let server = key(u8::try_from(step * 7 % 20).unwrap());
            let draining = (step % 5 > 0).then(|| Draining {
                count: usize::try_from(step % 4).unwrap(),
                read_at: start + Duration::from_secs(step * 13 % 17),
            });
            drains.set_draining(server, draining);
            let times = drains.draining.values().map(|draining| draining.read_at);
            assert_eq!(drains.next(), times.min());
            let counts = drains.draining.values().map(|draining| draining.count);
            assert_eq!(drains.len(), counts.sum::<usize>());
            let now = start + Duration::from_secs(8);
            let is_due = |draining: &Draining| draining.read_at < now + COMBINED;
            let due = drains.draining.iter().filter(|(_, draining)| is_due(draining));
            let due: Vec<Key> = due.map(|(key, _)| Key::VirtualServer(*key)).collect();
            let is_any = drains.next().is_some_and(|next| next <= now);
            assert_eq!(drains.due(now), if is_any { due } else { Vec::new() });
        }
    }
}
