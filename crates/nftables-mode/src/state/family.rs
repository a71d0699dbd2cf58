//! The state of one family.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;
use kernlink_nftables::TableKey;
use kernlink_services::{Family, FrontendKey, NameMap, NameSet, ObjectName, ServicePortId};

use crate::item::{ElementKey, Endpoint, Item, Owner, Shared, read_frontend, read_index};
use crate::key::Key;
use crate::layout::{SetName, Slot};
use crate::networks::Interval;
use crate::operation::{FrontendChange, Observed, Write};
use crate::port::{PortSpec, Written};
use crate::rules::Parameters;
use crate::totals::FamilyTotals;

/// How long a table that serves stays in use because the one that is to replace it lacks Services whose writes fail. Changes of the others
/// are not served meanwhile.
const LONGEST_HOLD: Duration = Duration::from_secs(15);

/// The tables and elements of a family.
#[derive(Clone, Debug)]
pub(crate) struct FamilyState {
    pub(crate) family: Family,
    /// Whether it is configured.
    pub(crate) is_served: bool,
    /// Whether its tables were read since the start.
    pub(crate) is_read: bool,
    /// Whether the listing in progress, or the last one, read its elements.
    pub(crate) are_elements_read: bool,
    /// The table that elements are written to. `None`: it is to be made.
    pub(crate) table: Option<CurrentTable>,
    /// Tables that are to be deleted.
    pub(crate) old: Vec<OldTable>,
    /// A table as it was read, until it is compared with the desired rules.
    pub(crate) found: Vec<FoundTable>,
    /// Whether the tables were read since the last comparison.
    pub(crate) has_found: bool,
    pub(crate) is_table_dirty: bool,
    /// Whether another program changed elements, and it is not known which, until the elements were read.
    pub(crate) are_elements_doubtful: bool,
    /// Whether another program changed so many elements that the table is to be made again.
    pub(crate) is_table_doubtful: bool,
    /// Whether the last reading found another table than the recorded one.
    pub(crate) is_table_changed: bool,
    /// Whether the next sync reads the whole kernel.
    pub(crate) needs_listing: bool,
    /// The frontends.
    pub(super) entries: HashMap<FrontendKey, Entry, RandomState>,
    /// The ports of each Service.
    pub(super) services: NameMap<Vec<ServicePortId>>,
    /// Frontends that a Service had, that are still in the kernel and that no Service has now.
    pub(super) withdrawn: NameMap<BTreeSet<FrontendKey>>,
    /// Frontends in the kernel that no Service has, and that this process did not write.
    pub(crate) leftovers: BTreeSet<FrontendKey>,
    /// The elements that Services have in common: the number of service ports.
    pub(super) shared: HashMap<Shared, u32, RandomState>,
    /// Those that are in the kernel.
    pub(super) observed_shared: HashSet<Shared, RandomState>,
    /// Those that are in the kernel and that no Service has: the last one that had it.
    pub(super) withdrawn_shared: BTreeMap<Shared, Option<ObjectName>>,
    /// The networks that cluster IPs are allocated from: those that are desired (`None`: not known, and nothing was read yet), and those in
    /// the kernel.
    pub(super) networks: Option<BTreeSet<Interval>>,
    pub(super) observed_networks: BTreeSet<Interval>,
    pub(crate) are_networks_dirty: bool,
    /// Whether a listing or a recheck found others than the recorded ones.
    pub(crate) are_networks_changed: bool,
    /// The Services to compare.
    pub(crate) dirty: NameSet,
    pub(crate) is_all_dirty: bool,
    pub(crate) dirty_leftovers: BTreeSet<FrontendKey>,
    pub(crate) is_shared_dirty: bool,
    /// The Services of which a listing or a recheck found other elements than the recorded ones.
    pub(crate) changed: BTreeSet<ObjectName>,
    /// The writes that failed.
    pub(super) failed: HashMap<Key, Arc<Write>, RandomState>,
    /// When the first write failed to a table that is to replace a serving one, until it does.
    pub(super) held_since: Option<Instant>,
    /// Whether there are elements as they were read.
    pub(super) has_raw: bool,
    /// The numbers of service ports with session affinity in the kernel when it was read last, by frontend.
    pub(crate) pools: HashMap<FrontendKey, u32, RandomState>,
    /// The numbers that service ports have.
    pub(super) used_pools: HashSet<u32, RandomState>,
    pub(crate) totals: FamilyTotals,
}

/// A table that elements are written to.
#[derive(Clone, Debug)]
pub(crate) struct CurrentTable {
    pub(crate) slot: Slot,
    pub(crate) parameters: Parameters,
    /// Whether packets reach it.
    pub(crate) is_hooked: bool,
    /// Whether this process made it, or took it and is its owner if the kernel has that.
    pub(crate) is_own: bool,
    /// Whether this process is its owner, and every element was written or read since: no other program can have changed it.
    pub(crate) is_owned: bool,
    /// Whether the kernel has owners, and it has none.
    pub(crate) is_ownerless: bool,
}

/// A table that is to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldTable {
    pub(crate) key: TableKey,
    /// Whether packets reach it: it serves until another one replaces it.
    pub(crate) is_hooked: bool,
}

/// A table with its chains and rules as they were read.
#[derive(Clone, Debug)]
pub(crate) struct FoundTable {
    pub(crate) slot: Slot,
    pub(crate) is_hooked: bool,
    pub(crate) is_own: bool,
    pub(crate) is_owned: bool,
    pub(crate) is_ownerless: bool,
    pub(crate) content: crate::content::Content,
}

/// A frontend.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) desired: Option<Arc<PortSpec>>,
    pub(super) observed: Option<Observed>,
}

impl FamilyState {
    pub(crate) fn new(family: Family) -> Self {
        Self {
            family,
            is_served: false,
            is_read: false,
            are_elements_read: false,
            table: None,
            old: Vec::new(),
            found: Vec::new(),
            has_found: false,
            is_table_dirty: true,
            are_elements_doubtful: false,
            is_table_doubtful: false,
            is_table_changed: false,
            needs_listing: false,
            entries: HashMap::default(),
            services: NameMap::default(),
            withdrawn: NameMap::default(),
            leftovers: BTreeSet::new(),
            shared: HashMap::default(),
            observed_shared: HashSet::default(),
            withdrawn_shared: BTreeMap::new(),
            networks: None,
            observed_networks: BTreeSet::new(),
            are_networks_dirty: false,
            are_networks_changed: false,
            dirty: NameSet::default(),
            is_all_dirty: true,
            dirty_leftovers: BTreeSet::new(),
            is_shared_dirty: false,
            changed: BTreeSet::new(),
            failed: HashMap::default(),
            held_since: None,
            has_raw: false,
            pools: HashMap::default(),
            used_pools: HashSet::default(),
            totals: FamilyTotals::default(),
        }
    }

    pub(crate) fn clear_dirty(&mut self) {
        self.is_all_dirty = false;
        self.is_shared_dirty = false;
        self.are_networks_dirty = false;
        self.are_networks_changed = false;
        self.is_table_dirty = false;
        self.is_table_changed = false;
        self.dirty_leftovers.clear();
        self.changed.clear();
        if self.dirty.capacity() > 64 {
            self.dirty = NameSet::default();
        } else {
            self.dirty.clear();
        }
    }

    pub(crate) fn set_frontend_dirty(&mut self, key: &FrontendKey) {
        match self.service_of(key) {
            Some(service) => _ = self.dirty.insert(service),
            None => _ = self.dirty_leftovers.insert(*key),
        }
    }

    pub(crate) fn set_element_dirty(&mut self, element: &ElementKey) {
        match element.owner(self.family) {
            Some(Owner::Frontend(key)) => self.set_frontend_dirty(&key),
            Some(Owner::ServiceCidrs) => self.are_networks_dirty = true,
            Some(Owner::Shared(_)) | None => self.is_shared_dirty = true,
        }
    }

    /// The object with which an element is read. `None`: this crate adds no such element.
    pub(crate) fn owner_of(&self, element: &ElementKey) -> Option<Key> {
        Some(match element.owner(self.family)? {
            Owner::Frontend(key) => match self.service_of(&key) {
                Some(service) => Key::Service(self.family, service),
                None => Key::Frontend(key),
            },
            Owner::Shared(element) => Key::Shared(self.family, element),
            Owner::ServiceCidrs => Key::ServiceCidrs(self.family),
        })
    }

    /// The Service that has a frontend, or that had it last.
    pub(crate) fn service_of(&self, key: &FrontendKey) -> Option<ObjectName> {
        let entry = self.entries.get(key)?;
        if let Some(desired) = &entry.desired {
            return Some(desired.service.clone());
        }
        match &entry.observed {
            Some(Observed::Written(written)) => Some(written.spec.service.clone()),
            _ => None,
        }
    }

    /// The elements of a frontend as last written or read.
    pub(crate) fn recorded_items(&self, key: &FrontendKey) -> Vec<Item> {
        let observed = self.entries.get(key).and_then(|entry| entry.observed.as_ref());
        observed.map_or_else(Vec::new, |observed| observed.items(key))
    }

    /// Whether elements are written to a table.
    pub(crate) fn uses(&self, slot: Slot) -> bool {
        self.table.as_ref().is_some_and(|table| table.slot == slot)
    }

    /// The Services that have ports.
    pub(crate) fn services(&self) -> impl Iterator<Item = &ObjectName> {
        self.services.keys()
    }

    pub(crate) fn serves(&self, key: &FrontendKey, service: &ObjectName) -> bool {
        let is_hooked = self.table.as_ref().is_some_and(|table| table.is_hooked);
        let Some(entry) = self.entries.get(key).filter(|_| is_hooked) else {
            return false;
        };
        match (&entry.desired, &entry.observed) {
            (Some(desired), Some(Observed::Written(written))) => {
                desired.service == *service && is_as_desired(written, desired)
            }
            _ => false,
        }
    }

    /// Some elements could not be read, for example because others change the ruleset all the time. The table is made again, unless the next listing
    /// reads them. It is no error: no other Service waits for it.
    pub(crate) fn doubt_elements(&mut self) {
        self.are_elements_doubtful = true;
        self.needs_listing = true;
    }

    /// All elements are unknown: those of another table are written. Returns the frontends that no Service has and that this process did not
    /// write.
    pub(crate) fn forget(&mut self) -> BTreeSet<FrontendKey> {
        self.entries.retain(|_, entry| {
            entry.observed = None;
            entry.desired.is_some()
        });
        self.withdrawn = NameMap::default();
        self.observed_shared = HashSet::default();
        self.withdrawn_shared.clear();
        self.observed_networks.clear();
        self.are_elements_doubtful = false;
        // What failed decides how long a table waits that is to replace a serving one, also if it was made again.
        let services = &self.services;
        self.failed
            .retain(|key, _| matches!(key, Key::Service(_, name) if services.contains_key(name)));
        self.has_raw = false;
        self.is_all_dirty = true;
        std::mem::take(&mut self.leftovers)
    }

    /// Replaces what is recorded by elements that were read. What is equal stays as it is recorded.
    pub(crate) fn observe_all(&mut self, read: ReadElements) {
        let mut frontends = read.frontends;
        let mut changed = BTreeSet::new();
        let is_first = !self.is_read;
        for (key, entry) in &mut self.entries {
            let now = frontends.remove(key);
            let is_same = match (&entry.observed, &now) {
                (None, None) => true,
                (Some(known), Some(now)) => is_equal(known.items(key), now),
                _ => false,
            };
            if is_same {
                continue;
            }
            let service = match (&entry.desired, &entry.observed) {
                (Some(desired), _) => Some(desired.service.clone()),
                (None, Some(Observed::Written(written))) => Some(written.spec.service.clone()),
                _ => None,
            };
            changed.extend(service);
            entry.observed = now.map(|items| Observed::Raw(items.into()));
            self.has_raw |= entry.observed.is_some();
        }
        for (key, items) in frontends {
            self.has_raw = true;
            let entry = Entry {
                desired: None,
                observed: Some(Observed::Raw(items.into())),
            };
            self.entries.insert(key, entry);
        }
        self.entries
            .retain(|_, entry| entry.desired.is_some() || entry.observed.is_some());
        self.observed_shared = read.shared;
        if let Some(networks) = read.networks {
            let has_others = self.observe_networks(networks);
            self.are_networks_changed |= has_others && !is_first;
        }
        self.complete_observed();
        if !is_first {
            self.changed.extend(changed);
        }
        self.is_all_dirty = true;
    }

    /// Finds what is in the kernel and that no Service has.
    pub(crate) fn complete_observed(&mut self) {
        self.withdrawn = NameMap::default();
        self.leftovers.clear();
        for (key, entry) in &self.entries {
            if entry.desired.is_some() {
                continue;
            }
            match &entry.observed {
                Some(Observed::Written(written)) => {
                    let service = written.spec.service.clone();
                    self.withdrawn.entry(service).or_default().insert(*key);
                }
                Some(Observed::Raw(_)) => _ = self.leftovers.insert(*key),
                None => {}
            }
        }
        let shared = &self.shared;
        let undesired = self
            .observed_shared
            .iter()
            .filter(|element| !shared.contains_key(*element));
        let last = |element: &Shared| self.withdrawn_shared.get(element).cloned().flatten();
        let withdrawn = undesired.map(|element| (*element, last(element)));
        self.withdrawn_shared = withdrawn.collect();
    }

    /// Records elements of single frontends as they were read.
    pub(crate) fn observe_frontend(&mut self, key: &FrontendKey, items: Vec<Item>) -> bool {
        let known = self.entries.get(key).and_then(|entry| entry.observed.as_ref());
        let is_same = match known {
            None => items.is_empty(),
            Some(known) => is_equal(known.items(key), &items),
        };
        if is_same {
            return false;
        }
        self.has_raw |= !items.is_empty();
        let entry = self.entries.entry(*key).or_default();
        let last = entry.observed.take();
        entry.observed = (!items.is_empty()).then(|| Observed::Raw(items.into()));
        if entry.desired.is_none() {
            // It is a leftover now: who had it is not recorded with what was read.
            if let Some(Observed::Written(written)) = &last
                && let Some(keys) = self.withdrawn.get_mut(&written.spec.service)
            {
                keys.remove(key);
            }
            if self
                .entries
                .get(key)
                .is_some_and(|entry| entry.observed.is_none())
            {
                self.entries.remove(key);
                self.leftovers.remove(key);
            } else {
                self.leftovers.insert(*key);
                self.dirty_leftovers.insert(*key);
            }
        }
        true
    }

    /// Compares the Services that may have an element in common: which ones do is not recorded.
    pub(crate) fn compare_shared(&mut self, element: Shared) {
        self.is_all_dirty |= self.shared.contains_key(&element);
    }

    /// Whether an element that Services have in common is in the kernel.
    pub(crate) fn has_shared(&self, element: Shared) -> bool {
        self.observed_shared.contains(&element)
    }

    pub(crate) fn observe_shared(&mut self, element: Shared, is_present: bool) {
        if is_present {
            self.observed_shared.insert(element);
            if !self.shared.contains_key(&element) {
                self.withdrawn_shared.entry(element).or_default();
            }
        } else {
            self.observed_shared.remove(&element);
            self.withdrawn_shared.remove(&element);
        }
    }

    /// Sets the networks that cluster IPs are allocated from.
    pub(crate) fn set_networks(&mut self, networks: BTreeSet<Interval>) {
        if self.networks.as_ref() != Some(&networks) {
            self.networks = Some(networks);
            self.are_networks_dirty = true;
        }
    }

    /// Records the networks as they were read. Returns whether others were recorded. The first ones stay until it is known which are desired.
    pub(crate) fn observe_networks(&mut self, networks: BTreeSet<Interval>) -> bool {
        let whole = networks.iter().filter(|interval| interval.has_first());
        self.networks.get_or_insert_with(|| whole.cloned().collect());
        let is_changed = networks != self.observed_networks;
        self.observed_networks = networks;
        is_changed
    }

    /// The write that the networks of cluster IPs need; `None` if they need none.
    pub(crate) fn write_networks(&self, slot: Slot) -> Option<Write> {
        let (desired, observed) = (self.networks.as_ref()?, &self.observed_networks);
        let write = Write {
            added_networks: desired.difference(observed).cloned().collect(),
            deleted_networks: observed.difference(desired).cloned().collect(),
            ..Write::new(Key::ServiceCidrs(self.family), self.family, slot)
        };
        (desired != observed).then_some(write)
    }

    /// Recognises what was read as what is desired, apart from the indices of endpoints.
    pub(crate) fn adopt(&mut self) {
        if !std::mem::take(&mut self.has_raw) {
            return;
        }
        // All frontends of a service port have the same indices, but a frontend does not show those of both policies.
        let mut sequences_of: HashMap<*const PortSpec, Sequences> = HashMap::new();
        for (key, entry) in &self.entries {
            if let (Some(desired), Some(Observed::Raw(items))) = (&entry.desired, &entry.observed) {
                let known = sequences_of.entry(Arc::as_ptr(desired)).or_default();
                known.complete(sequences(desired, key, items));
            }
        }
        let mut known: HashMap<*const PortSpec, Arc<Written>> = HashMap::new();
        for (key, entry) in &mut self.entries {
            let (Some(desired), Some(Observed::Raw(items))) = (&entry.desired, &entry.observed) else {
                continue;
            };
            let port = Arc::as_ptr(desired);
            let written = known.entry(port).or_insert_with(|| {
                let Sequences { cluster, local } = sequences_of.remove(&port).unwrap_or_default();
                Arc::new(Written::after(Arc::clone(desired), &cluster, &local))
            });
            if is_equal(crate::operation::items_of(written, key), items) {
                entry.observed = Some(Observed::Written(Arc::clone(written)));
            }
        }
    }

    /// The names of the Services to compare, sorted.
    pub(crate) fn dirty_services(&self) -> Vec<&ObjectName> {
        let mut names: Vec<&ObjectName> = if self.is_all_dirty {
            let withdrawn = self
                .withdrawn
                .keys()
                .filter(|name| !self.services.contains_key(*name));
            let shared = self.withdrawn_shared.values().flatten();
            let shared = shared
                .filter(|name| !self.services.contains_key(*name) && !self.withdrawn.contains_key(*name));
            self.services.keys().chain(withdrawn).chain(shared).collect()
        } else {
            self.dirty.iter().collect()
        };
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The write that a Service needs; `None` if it needs none.
    pub(crate) fn write(
        &self,
        name: &ObjectName,
        ports: &[Option<Arc<PortSpec>>],
        slot: Slot,
    ) -> Option<Write> {
        let mut frontends = Vec::new();
        let mut added = Vec::new();
        for id in self.services.get(name).into_iter().flatten() {
            let Some(spec) = ports.get(id.index()).and_then(Option::as_ref) else {
                continue;
            };
            self.write_port(spec, &mut frontends);
            added.extend(
                spec.shared()
                    .filter(|element| !self.observed_shared.contains(element)),
            );
        }
        for key in self.withdrawn.get(name).into_iter().flatten() {
            let from = self.entries.get(key).and_then(|entry| entry.observed.clone());
            frontends.push(FrontendChange {
                key: *key,
                from,
                to: None,
            });
        }
        added.sort_unstable();
        added.dedup();
        let withdrawn = self.withdrawn_shared.iter();
        let deleted: Vec<Shared> = if self.withdrawn_shared.is_empty() {
            Vec::new()
        } else {
            withdrawn
                .filter(|(_, last)| last.as_ref() == Some(name))
                .map(|(element, _)| *element)
                .collect()
        };
        if frontends.is_empty() && added.is_empty() && deleted.is_empty() {
            return None;
        }
        let write = Write {
            frontends,
            added,
            deleted,
            ..Write::new(Key::Service(self.family, name.clone()), self.family, slot)
        };
        (!write.is_empty()).then_some(write)
    }

    /// Whether the last write of a Service did not fail, and it needs no other one. One that was skipped is still needed.
    pub(crate) fn is_written(&self, name: &ObjectName, ports: &[Option<Arc<PortSpec>>]) -> bool {
        let slot = self.table.as_ref().map(|table| table.slot).unwrap_or_default();
        let key = Key::Service(self.family, name.clone());
        !self.failed.contains_key(&key) && self.write(name, ports, slot).is_none()
    }

    fn write_port(&self, spec: &Arc<PortSpec>, changes: &mut Vec<FrontendChange>) {
        let entries = spec
            .frontends
            .iter()
            .filter_map(|(key, _)| Some((*key, self.entries.get(key)?)));
        let owned: Vec<(FrontendKey, &Entry)> = entries
            .filter(|(_, entry)| {
                entry
                    .desired
                    .as_ref()
                    .is_some_and(|desired| Arc::ptr_eq(desired, spec))
            })
            .collect();
        let is_done = |entry: &Entry, first: Option<&Arc<Written>>| match (&entry.observed, first) {
            (Some(Observed::Written(written)), Some(first)) => {
                Arc::ptr_eq(written, first) || written == first
            }
            _ => false,
        };
        // The indices that the endpoints have.
        let mut target: Option<Arc<Written>> = None;
        let mut known = Sequences::default();
        for (key, entry) in &owned {
            match &entry.observed {
                Some(Observed::Written(written)) if is_as_desired(written, spec) => {
                    target = Some(Arc::clone(written));
                    break;
                }
                Some(Observed::Written(written)) => known.complete(Sequences {
                    cluster: written.endpoints(false).collect(),
                    local: written.endpoints(true).collect(),
                }),
                Some(Observed::Raw(items)) => known.complete(sequences(spec, key, items)),
                None => {}
            }
        }
        let target = target
            .unwrap_or_else(|| Arc::new(Written::after(Arc::clone(spec), &known.cluster, &known.local)));
        for (key, entry) in owned {
            if !is_done(entry, Some(&target)) {
                changes.push(FrontendChange {
                    key,
                    from: entry.observed.clone(),
                    to: Some(Arc::clone(&target)),
                });
            }
        }
    }

    /// The write that removes a frontend that no Service has, and that this process did not write.
    pub(crate) fn write_leftover(&self, key: &FrontendKey, slot: Slot) -> Option<Write> {
        let from = self.entries.get(key)?.observed.clone()?;
        let change = FrontendChange {
            key: *key,
            from: Some(from),
            to: None,
        };
        Some(Write {
            frontends: vec![change],
            ..Write::new(Key::Frontend(*key), self.family, slot)
        })
    }

    /// The elements that Services had in common, that none has any more, and of which it is not known who had them.
    pub(crate) fn shared_leftovers(&self) -> impl Iterator<Item = Shared> + '_ {
        let withdrawn = self.withdrawn_shared.iter();
        withdrawn
            .filter(|(_, last)| last.is_none())
            .map(|(element, _)| *element)
    }

    /// Records that a write was done.
    pub(crate) fn record(&mut self, write: &Write) {
        self.failed.remove(&write.key);
        for change in &write.frontends {
            let last = match self.entries.get_mut(&change.key) {
                Some(entry) => {
                    let last = entry.observed.take();
                    entry.observed = change.to.clone().map(Observed::Written);
                    if entry.desired.is_none() && entry.observed.is_none() {
                        self.entries.remove(&change.key);
                    }
                    last
                }
                None => None,
            };
            self.leftovers.remove(&change.key);
            if let Some(Observed::Written(written)) = last
                && let Some(keys) = self.withdrawn.get_mut(&written.spec.service)
            {
                keys.remove(&change.key);
                if keys.is_empty() {
                    self.withdrawn.remove(&written.spec.service);
                }
            }
        }
        for element in &write.added {
            self.observe_shared(*element, true);
        }
        for element in &write.deleted {
            self.observe_shared(*element, false);
        }
        for interval in &write.deleted_networks {
            self.observed_networks.remove(interval);
        }
        self.observed_networks
            .extend(write.added_networks.iter().cloned());
    }

    pub(crate) fn record_failure(&mut self, write: &Arc<Write>, now: Option<Instant>) {
        self.failed.insert(write.key.clone(), Arc::clone(write));
        if self.table.as_ref().is_some_and(|table| !table.is_hooked) {
            self.held_since = self.held_since.or(now);
        }
    }

    /// Whether a table that is to replace a serving one waits for these Services, whose writes failed: for a while, and as long as they are most
    /// of all.
    pub(crate) fn is_held(&self, failed: usize, now: Option<Instant>) -> bool {
        let times = self.held_since.zip(now);
        let is_new = times.is_none_or(|(since, now)| now.saturating_duration_since(since) < LONGEST_HOLD);
        is_new || failed.saturating_mul(2) > self.services.len()
    }

    /// The Services that were not written when it was tried last, and still need it.
    pub(crate) fn failed_services(&self, ports: &[Option<Arc<PortSpec>>], slot: Slot) -> Vec<Key> {
        let is_needed = |key: &&Key| match key {
            Key::Service(_, name) => self.write(name, ports, slot).is_some(),
            _ => false,
        };
        self.failed.keys().filter(is_needed).cloned().collect()
    }

    /// The writes that failed, by frontend: one of another Service may have been executed.
    pub(crate) fn uncertain(&self) -> Uncertain {
        let mut uncertain = Uncertain::default();
        for write in self.failed.values() {
            for (index, change) in write.frontends.iter().enumerate() {
                let of_frontend = uncertain.entry(change.key).or_default();
                of_frontend.push((Arc::clone(write), index));
            }
        }
        uncertain
    }

    /// The frontends and common elements of a key that are read again, each with the elements that it may have.
    pub(crate) fn candidates(
        &self,
        key: &Key,
        ports: &[Option<Arc<PortSpec>>],
        uncertain: &Uncertain,
    ) -> Candidates {
        let mut candidates = Candidates::default();
        if let Some(write) = self.failed.get(key) {
            candidates.add(write);
        }
        let slot = self.table.as_ref().map(|table| table.slot).unwrap_or_default();
        let names: Vec<ObjectName> = match key {
            Key::Service(_, name) => vec![name.clone()],
            Key::Frontend(key) => {
                if self.entries.contains_key(key) {
                    candidates.frontends.entry(*key).or_default();
                }
                self.service_of(key).into_iter().collect()
            }
            Key::Shared(_, element) => {
                candidates.shared.insert(*element);
                Vec::new()
            }
            _ => Vec::new(),
        };
        for name in names {
            if let Some(write) = self.write(&name, ports, slot) {
                candidates.add(&write);
            }
            for id in self.services.get(&name).into_iter().flatten() {
                let Some(spec) = ports.get(id.index()).and_then(Option::as_ref) else {
                    continue;
                };
                candidates.shared.extend(spec.shared());
                for (key, _) in &spec.frontends {
                    if self.entries.contains_key(key) {
                        candidates.frontends.entry(*key).or_default();
                    }
                }
            }
        }
        // A frontend may have passed to another Service since.
        for (key, items) in &mut candidates.frontends {
            let observed = self.entries.get(key).and_then(|entry| entry.observed.as_ref());
            items.extend(observed.into_iter().flat_map(|observed| observed.items(key)));
            for (write, index) in uncertain.get(key).into_iter().flatten() {
                let change = write.frontends.get(*index).map(FrontendChange::items);
                items.extend(
                    change
                        .into_iter()
                        .flat_map(|(from, to)| from.into_iter().chain(to)),
                );
            }
        }
        candidates
    }
}

/// The writes that failed and the positions of their changes, by frontend.
pub(crate) type Uncertain = HashMap<FrontendKey, Vec<(Arc<Write>, usize)>, RandomState>;

/// The elements that may exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    pub(crate) frontends: BTreeMap<FrontendKey, Vec<Item>>,
    pub(crate) shared: BTreeSet<Shared>,
}

impl Candidates {
    fn add(&mut self, write: &Write) {
        for change in &write.frontends {
            let (from, to) = change.items();
            let items = self.frontends.entry(change.key).or_default();
            items.extend(from);
            items.extend(to);
        }
        self.shared.extend(&write.added);
        self.shared.extend(&write.deleted);
    }
}

/// Elements of a table by what they belong to.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadElements {
    pub(crate) frontends: HashMap<FrontendKey, Vec<Item>, RandomState>,
    pub(crate) shared: HashSet<Shared, RandomState>,
    /// The networks of cluster IPs. `None`: they were not read.
    pub(crate) networks: Option<BTreeSet<Interval>>,
    /// The numbers of service ports with session affinity.
    pub(crate) pools: HashMap<FrontendKey, u32, RandomState>,
    /// Whether there are elements that this crate never adds.
    pub(crate) has_others: bool,
}

impl ReadElements {
    pub(crate) fn add(&mut self, family: Family, item: Item) {
        if item.set.is_of_frontends() {
            match read_frontend(family, &item.key) {
                Some((key, _)) => self.frontends.entry(key).or_default().push(item),
                None => self.has_others = true,
            }
        } else {
            match Shared::read(family, item.set, &item.key) {
                Some(element) => _ = self.shared.insert(element),
                None => self.has_others = true,
            }
        }
    }
}

/// Whether a service port was written as it is desired, apart from the indices of endpoints.
fn is_as_desired(written: &Written, desired: &Arc<PortSpec>) -> bool {
    Arc::ptr_eq(&written.spec, desired) || written.spec == *desired
}

/// Whether these are the same elements.
fn is_equal(mut known: Vec<Item>, read: &[Item]) -> bool {
    if known.len() != read.len() {
        return false;
    }
    let mut read: Vec<&Item> = read.iter().collect();
    known.sort_by(|a, b| (a.set, &a.key).cmp(&(b.set, &b.key)));
    read.sort_by(|a, b| (a.set, &a.key).cmp(&(b.set, &b.key)));
    known.iter().zip(read).all(|(known, read)| known == read)
}

/// The endpoints for policy `Cluster` and those for policy `Local` by index; empty if they are not known.
#[derive(Debug, Default)]
struct Sequences {
    cluster: Vec<Endpoint>,
    local: Vec<Endpoint>,
}

impl Sequences {
    /// Takes over what is not known.
    fn complete(&mut self, other: Sequences) {
        if self.cluster.is_empty() {
            self.cluster = other.cluster;
        }
        if self.local.is_empty() {
            self.local = other.local;
        }
    }
}

/// The endpoints as they were read for a frontend.
fn sequences(spec: &PortSpec, key: &FrontendKey, items: &[Item]) -> Sequences {
    let of = |set: SetName| {
        let mut found: Vec<(u32, Endpoint)> = items
            .iter()
            .filter(|item| item.set == set)
            .filter_map(|item| {
                let (_, rest) = read_frontend(Family::of(key.address), &item.key)?;
                Some((read_index(rest)?, Endpoint::read(item.value.as_ref()?)?))
            })
            .collect();
        found.sort_unstable();
        found
            .into_iter()
            .map(|(_, endpoint)| endpoint)
            .collect::<Vec<Endpoint>>()
    };
    let is_local = spec.frontend(key).is_some_and(|frontend| frontend.is_local);
    if is_local {
        Sequences {
            cluster: of(SetName::ShortEndpoints),
            local: of(SetName::Endpoints),
        }
    } else {
        Sequences {
            cluster: of(SetName::Endpoints),
            local: Vec::new(),
        }
    }
}
