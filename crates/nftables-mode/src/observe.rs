//! Reads the kernel: tables, elements, addresses and sysctls.

use std::collections::{BTreeMap, BTreeSet};

use kernlink_base::ErrorChain;
use kernlink_engine::DataPath;
use kernlink_engine::overlap::join;
use kernlink_engine::unreadable::{RULES_UNREADABLE, SYSCTL_UNREADABLE};
use kernlink_host::flows::{Reading, read_flows};
use kernlink_host::{CONNTRACK_BUCKETS, SysctlError, processors};
use kernlink_nftables::{Element, Elements, Error as TableError, Nftables, Set, Table, TableFlags, Value};
use kernlink_services::{Event, Family, FrontendKey};

use crate::class;
use crate::content::Content;
use crate::error::Error;
use crate::item::{ElementKey, Item, Owner, read_frontend, read_pool};
use crate::kernel::Kernel;
use crate::key::Key;
use crate::layout::{KUBE_PROXY_TABLE, SetName, Slot};
use crate::networks::Interval;
use crate::state::{Candidates, FoundTable, OldTable, ReadElements, State};

/// A table with more elements is not read: the time that the kernel needs grows with the square of their number. Another one is filled instead,
/// and replaces it.
const MOST_READ: usize = 150_000;

/// Reads everything that a plan depends on, except the tables ([`observe_families`]) and the addresses of the node, and makes all objects dirty.
pub(crate) fn observe(state: &mut State, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
    for family in &mut state.families {
        family.needs_listing = false;
        family.are_elements_read = false;
    }
    let events = observe_sysctls(state, kernel);
    state.events.replace(&events);
    Ok(events)
}

fn observe_sysctls(state: &mut State, kernel: &mut Kernel) -> Vec<Event> {
    let mut events = Vec::new();
    state.configure_sysctls(processors());
    let names: BTreeSet<Box<str>> = state
        .sysctls
        .iter_desired()
        .map(|(name, _)| name.clone())
        .collect();
    let mut values = Vec::new();
    for name in names {
        match kernel.sysctls.read(&name) {
            Ok(value) => values.extend(value.map(|value| (name, value.into()))),
            Err(error) => {
                events.push(unreadable_sysctl(&error));
                if *name == *CONNTRACK_BUCKETS && error.is_permission_denied() {
                    // Only root may read it; the size of the connection table is then not changed.
                    if let Some(value) = state.sysctls.desired(&name).cloned() {
                        values.push((name, value));
                    }
                }
            }
        }
    }
    state.sysctls.observe_all(values);
    events
}

fn observe_sysctl(state: &mut State, kernel: &mut Kernel, name: &str) {
    match kernel.sysctls.read(name) {
        Ok(value) => state.sysctls.observe(name.into(), value.map(Into::into)),
        Err(error) => {
            state.sysctls.observe(name.into(), None);
            state.events.add([unreadable_sysctl(&error)]);
        }
    }
}

fn unreadable_sysctl(error: &SysctlError) -> Event {
    Event::host(SYSCTL_UNREADABLE, ErrorChain(error).to_string())
}

/// Reads the tables of these families, and at the first listing the UDP flows, all at the same time.
///
/// An earlier process may have ended between a change and the deletion of the flows that it made stale. If the flows cannot be read, the
/// next listing tries again.
pub(crate) fn observe_families(state: &mut State, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
    let needs_flows = state.flows.tracked.reading() != Reading::Done;
    let Kernel {
        tables, conntrack, ..
    } = kernel;
    let (events, flows) = join(
        || {
            let events = families
                .iter()
                .filter_map(|family| observe_family(state, &mut **tables, *family));
            events.collect::<Vec<Event>>()
        },
        || needs_flows.then(|| read_flows(&mut **conntrack, |_| true)),
    );
    let recorded = flows.and_then(|flows| state.flows.tracked.record_reading(flows));
    let mut events: Vec<Event> = events.into_iter().chain(recorded).collect();
    events.dedup();
    state.events.returned(&events);
    events
}

/// Reads the tables of a family. Returns an event if they cannot be read: what is recorded stays in use, and a process that did not read them
/// before changes nothing.
pub(crate) fn observe_family(state: &mut State, tables: &mut dyn Nftables, family: Family) -> Option<Event> {
    match read_family(state, tables, family) {
        Ok(read) => {
            state.readings.succeed(family);
            let of_family = state.family_mut(family);
            of_family.old = read.old;
            of_family.found = read.found;
            of_family.has_found = true;
            let mut last_pool = 0;
            let is_read = read.elements.is_some();
            of_family.are_elements_read = is_read;
            if std::mem::take(&mut of_family.are_elements_doubtful) && !is_read {
                of_family.is_table_doubtful = true;
            }
            if let Some(mut elements) = read.elements {
                of_family.pools = std::mem::take(&mut elements.pools);
                last_pool = of_family.pools.values().copied().max().unwrap_or_default();
                of_family.observe_all(elements);
            }
            of_family.is_read = true;
            state.reserve_pools(last_pool);
            None
        }
        Err(error) => {
            state.readings.fail(family, state.now);
            let text = format!("the {family} tables of nftables mode: {}", ErrorChain(&error));
            Some(Event::host(RULES_UNREADABLE, text))
        }
    }
}

/// The tables of a family as they were read.
struct Read {
    old: Vec<OldTable>,
    found: Vec<FoundTable>,
    /// `None`: those that are recorded did not change.
    elements: Option<ReadElements>,
    /// Whether there are some.
    has_elements: bool,
}

/// How often chains, rules and sets are read that others change meanwhile.
const READINGS: usize = 4;

/// Reads the tables of a family at one generation of the ruleset, if other programs permit it: between two readings of parts, another program may delete
/// the table. Otherwise the last reading counts: a table that was replaced meanwhile is noticed by events or the next listing.
///
/// The elements of a table are read once, however often the other parts are: with many of them a reading takes a second. What others do to
/// them meanwhile is noticed in the same way.
fn read_family(state: &State, tables: &mut dyn Nftables, family: Family) -> Result<Read, TableError> {
    let mut known = KnownElements::default();
    let mut readings = 0;
    loop {
        readings += 1;
        let before = tables.generation()?;
        let read = read_once(state, tables, family, &mut known);
        let is_torn = match &read {
            Ok(_) => tables.generation()? != before,
            Err(error) => error.is_not_found(),
        };
        if !is_torn || readings == READINGS {
            return read.map(|mut read| {
                read.elements = known.elements.filter(|_| read.has_elements);
                read
            });
        }
    }
}

/// The elements of a table, which is identified by its handle.
#[derive(Default)]
struct KnownElements {
    table: Option<u64>,
    /// Whether they could be read.
    is_read: bool,
    elements: Option<ReadElements>,
}

impl KnownElements {
    /// Reads them, unless they are known. Returns whether they could be read, and whether some are not of this crate.
    fn read(
        &mut self,
        tables: &mut dyn Nftables,
        family: Family,
        table: &Table,
        sets: &[Set],
    ) -> Result<(bool, bool), TableError> {
        if self.elements.is_none() || self.table.is_none() || self.table != table.handle {
            let mut elements = ReadElements::default();
            self.is_read = read_elements(tables, family, sets, &mut elements)?;
            self.elements = Some(elements);
            self.table = table.handle;
        }
        let has_others = self.elements.as_ref().is_some_and(|elements| elements.has_others);
        Ok((self.is_read, has_others))
    }
}

fn read_once(
    state: &State,
    tables: &mut dyn Nftables,
    family: Family,
    known: &mut KnownElements,
) -> Result<Read, TableError> {
    let mut read = Read {
        old: Vec::new(),
        found: Vec::new(),
        elements: None,
        has_elements: false,
    };
    let recorded = state.family(family).table.as_ref();
    for table in tables.tables(Some(family.into()))? {
        let slot = Slot::ALL.into_iter().find(|slot| slot.table(family) == table.key);
        let Some(slot) = slot else {
            if *table.key.name == *KUBE_PROXY_TABLE {
                read.old.push(OldTable {
                    key: table.key,
                    is_hooked: true,
                });
            }
            continue;
        };
        let mut content = Content {
            chains: tables.chains(&table.key)?,
            rules: tables.rules(&table.key, None)?,
            sets: tables.sets(&table.key)?,
            is_replaced: false,
        };
        let is_hooked = content.chains.iter().any(|chain| chain.base.is_some());
        let recorded = recorded.filter(|recorded| recorded.slot == slot && recorded.is_hooked);
        let has_owner = table.flags.contains(TableFlags::OWNER);
        let is_own = recorded.is_some_and(|recorded| recorded.is_own);
        // No other program can have changed it, or it has too many elements.
        let is_known = recorded.is_some_and(|recorded| recorded.is_owned) && has_owner
            || is_own && state.family(family).totals.elements > MOST_READ;
        if is_hooked && !is_known && !read.has_elements {
            let (is_read, has_others) = known.read(tables, family, &table, &content.sets)?;
            content.is_replaced = has_others || !is_read && !is_own;
            // What this process wrote stays recorded if it cannot be read.
            read.has_elements = is_read || !is_own;
        }
        read.found.push(FoundTable {
            slot,
            is_hooked,
            is_own,
            is_owned: is_own && has_owner,
            is_ownerless: table.flags.contains(TableFlags::PERSIST)
                && !table.flags.contains(TableFlags::OWNER),
            content,
        });
    }
    Ok(read)
}

/// Reads the elements of a table. Returns false if there are too many, or others change while they are read.
fn read_elements(
    tables: &mut dyn Nftables,
    family: Family,
    sets: &[Set],
    read: &mut ReadElements,
) -> Result<bool, TableError> {
    let find = |name: SetName| sets.iter().find(|set| *set.key.name == *name.text());
    // The numbers of service ports with session affinity are needed in any case: clients have them.
    if let Some(pools) = find(SetName::AffinityPools) {
        let elements = match tables.list_elements(&pools.key) {
            Err(TableError::Interrupted { .. }) => return Ok(false),
            elements => elements?,
        };
        for element in elements {
            let item = Item::read(SetName::AffinityPools, &element);
            read.pools.extend(pool_of(family, &item));
        }
    }
    // What these refuse must not be forwarded meanwhile, also if all else is too much to read.
    let Some(networks) = read_networks(tables, find(SetName::ServiceCidrs))? else {
        return Ok(false);
    };
    read.networks = Some(networks);
    let count: Option<usize> = sets.iter().map(|set| set.count.map(|count| count as usize)).sum();
    if count.is_some_and(|count| count > MOST_READ) {
        return Ok(false);
    }
    // The frontends first: their classes are about the number of endpoints, which old kernels do not return.
    let first = [SetName::Frontends, SetName::ShortCircuits];
    let others = SetName::ALL.into_iter().filter(|name| !first.contains(name));
    let mut expected = 0;
    for name in first.into_iter().chain(others) {
        if matches!(name, SetName::AffinityClients | SetName::ServiceCidrs) {
            continue;
        }
        let Some(set) = find(name) else { continue };
        if count.is_none() && expected > MOST_READ {
            return Ok(false);
        }
        let elements = match tables.list_elements(&set.key) {
            // Others change tables all the time.
            Err(TableError::Interrupted { .. }) => return Ok(false),
            elements => elements?,
        };
        for element in &elements {
            let item = Item::read(name, element);
            if first.contains(&name) {
                expected += item.value.as_ref().map_or(0, class::most_endpoints);
            }
            read.add(family, item);
        }
    }
    Ok(true)
}

/// How often a few elements are read that others change meanwhile.
const MOST_ATTEMPTS: usize = 10;

/// Reads the networks of cluster IPs. `None`: others change them all the time.
fn read_networks(
    tables: &mut dyn Nftables,
    set: Option<&Set>,
) -> Result<Option<BTreeSet<Interval>>, TableError> {
    let Some(set) = set else {
        return Ok(Some(BTreeSet::new()));
    };
    for _ in 0..MOST_ATTEMPTS {
        match tables.list_elements(&set.key) {
            Err(TableError::Interrupted { .. }) => {}
            elements => return Ok(Some(Interval::of_elements(&elements?))),
        }
    }
    Ok(None)
}

/// The frontend and the number of its service port.
fn pool_of(family: Family, item: &Item) -> Option<(FrontendKey, u32)> {
    let (key, _) = read_frontend(family, &item.key)?;
    Some((key, read_pool(item.value.as_ref()?)?))
}

/// Reads single objects again.
pub(crate) fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) {
    _ = reread(state, kernel, keys);
}

/// Reads single objects again, and makes those dirty that differ from the recorded ones. Returns those that are repaired by another table.
pub(crate) fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Vec<Key> {
    let changed = reread(state, kernel, keys);
    for key in &changed {
        state.set_dirty(key);
        if let Key::Service(family, name) = key {
            // Repairs count: if another program changes it again and again, this is reported, and repairs are delayed.
            state.family_mut(*family).changed.insert(name.clone());
        }
        if let Key::ServiceCidrs(family) = key {
            state.family_mut(*family).are_networks_changed = true;
        }
    }
    // A Service is repaired by itself: a listing of many elements takes too long.
    changed
        .into_iter()
        .filter(|key| matches!(key, Key::Table(_)))
        .collect()
}

/// Reads single objects again. Returns those that differ from the recorded ones.
fn reread(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Vec<Key> {
    let mut changed = Vec::new();
    let mut families: BTreeSet<Family> = BTreeSet::new();
    let mut elements: BTreeMap<Family, ToRead> = BTreeMap::new();
    for key in keys {
        match key {
            Key::Sysctl(name) => observe_sysctl(state, kernel, name),
            // A pass is repeated as it was.
            Key::Flows(_) => {}
            Key::Table(family) | Key::Owner(family) | Key::Switch(family) | Key::OldTable(family, _) => {
                _ = families.insert(*family)
            }
            Key::Service(family, _) | Key::Shared(family, _) | Key::ServiceCidrs(family) => {
                _ = elements
                    .entry(*family)
                    .or_default()
                    .entry(key.clone())
                    .or_default();
            }
            Key::Frontend(frontend) => {
                let of_family = elements.entry(frontend.family()).or_default();
                _ = of_family.entry(key.clone()).or_default();
            }
            // A table that is to be deleted, or was.
            Key::Element(family, ElementKey { slot, .. }) | Key::Elements(family, slot)
                if !state.family(*family).uses(*slot) => {}
            Key::Element(family, element) => match state.family(*family).owner_of(element) {
                Some(owner) => {
                    let of_family = elements.entry(*family).or_default();
                    of_family.entry(owner).or_default().push(element);
                }
                None => changed.extend(doubt(state, *family, &mut families)),
            },
            Key::Elements(family, _) => changed.extend(doubt(state, *family, &mut families)),
        }
    }
    for family in families {
        let event = observe_family(state, &mut *kernel.tables, family);
        state.events.add(event);
        let parameters = state.parameters(family);
        let of_family = state.family(family);
        let table = of_family.table.as_ref();
        let is_same = table.is_some_and(|table| {
            let mut found = of_family.found.iter().filter(|found| found.slot == table.slot);
            let content = found.next().map(|found| &found.content);
            content.is_some_and(|content| content.is_desired(&table.slot.table(family), &parameters))
                && !of_family.is_table_doubtful
        });
        if !is_same {
            elements.remove(&family);
            changed.push(Key::Table(family));
        }
    }
    for (family, keys) in elements {
        changed.extend(reread_elements(state, kernel, family, &keys));
    }
    changed
}

/// What is read again of a family, each with elements of it that this process may not have written.
type ToRead<'a> = BTreeMap<Key, Vec<&'a ElementKey>>;

/// Any element of a family may have been changed. The table is read, or made again if it has too many elements or cannot be read because others
/// change it.
fn doubt(state: &mut State, family: Family, families: &mut BTreeSet<Family>) -> Option<Key> {
    let of_family = state.family_mut(family);
    of_family.are_elements_doubtful = true;
    if of_family.totals.elements <= MOST_READ {
        families.insert(family);
        return None;
    }
    of_family.is_table_doubtful = true;
    Some(Key::Table(family))
}

fn reread_elements(state: &mut State, kernel: &mut Kernel, family: Family, keys: &ToRead<'_>) -> Vec<Key> {
    let Some(table) = state
        .family(family)
        .table
        .as_ref()
        .map(|table| table.slot.table(family))
    else {
        return Vec::new();
    };
    let mut changed = Vec::new();
    let uncertain = state.family(family).uncertain();
    'keys: for (key, others) in keys {
        if matches!(key, Key::ServiceCidrs(_)) {
            match kernel.tables.list_elements(&SetName::ServiceCidrs.key(&table)) {
                Ok(elements) => {
                    let networks = Interval::of_elements(&elements);
                    if state.family_mut(family).observe_networks(networks) {
                        changed.push(key.clone());
                    }
                }
                Err(error) if error.is_not_found() => {
                    state.family_mut(family).needs_listing = true;
                    return vec![Key::Table(family)];
                }
                Err(_) => state.family_mut(family).doubt_elements(),
            }
            continue;
        }
        let of_family = state.family(family);
        let Candidates {
            mut frontends,
            mut shared,
        } = of_family.candidates(key, state.ports(), &uncertain);
        for element in others {
            match element.owner(family) {
                Some(Owner::Frontend(frontend)) => {
                    let item = Item::new(element.set, element.key.clone());
                    frontends.entry(frontend).or_default().push(item);
                }
                Some(Owner::Shared(element)) => _ = shared.insert(element),
                Some(Owner::ServiceCidrs) | None => {}
            }
        }
        let mut sets: BTreeMap<SetName, BTreeSet<Value>> = BTreeMap::new();
        let items = frontends
            .values()
            .flatten()
            .map(|item| (item.set, item.key.clone()));
        let of_shared = shared
            .iter()
            .map(|element| element.item())
            .map(|item| (item.set, item.key));
        for (set, key) in items.chain(of_shared) {
            sets.entry(set).or_default().insert(key);
        }
        let mut read = ReadElements::default();
        for (set, keys) in sets {
            let elements = Elements::new(set.key(&table), keys.into_iter().map(Element::new));
            match kernel.tables.find_elements(&elements) {
                Ok(found) => {
                    for element in found.into_iter().flatten() {
                        read.add(family, Item::read(set, &element));
                    }
                }
                // Without the table there is nothing, and a listing makes it again.
                Err(error) if error.is_not_found() => {
                    state.family_mut(family).needs_listing = true;
                    return vec![Key::Table(family)];
                }
                Err(_) => {
                    state.family_mut(family).doubt_elements();
                    continue 'keys;
                }
            }
        }
        let of_family = state.family_mut(family);
        let mut is_changed = false;
        for frontend in frontends.keys() {
            let items = read.frontends.remove(frontend).unwrap_or_default();
            is_changed |= of_family.observe_frontend(frontend, items);
        }
        for element in shared {
            let is_present = read.shared.contains(&element);
            let is_other = of_family.has_shared(element) != is_present;
            of_family.observe_shared(element, is_present);
            if is_other {
                is_changed = true;
                // The Service that is read may not have it any more.
                of_family.compare_shared(element);
            }
        }
        if is_changed {
            changed.push(key.clone());
        }
    }
    changed
}
