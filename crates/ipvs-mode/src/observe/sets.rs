//! Reads sets and their entries.

use std::collections::{BTreeMap, HashSet};

use kernlink_base::ErrorChain;
use kernlink_engine::unreadable::SETS_UNREADABLE;
use kernlink_ipset::{Entry, EntryOptions, Set, SetType};
use kernlink_services::{Event, Family};

use super::fail;
use crate::drain;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::replacement;
use crate::sets::SetId;
use crate::state::{Part, State};

/// Reads all sets. Returns an event if some or all cannot be read; their recorded values stay then.
pub(super) fn observe(state: &mut State, kernel: &mut Kernel) -> Option<Event> {
    let all = || {
        Family::ALL
            .into_iter()
            .flat_map(|family| SetId::ALL.iter().map(move |&set| (family, set)))
    };
    let headers = match kernel.sets.headers() {
        Ok(headers) => headers,
        // A module that has sets cannot be removed.
        Err(error) if error.is_unsupported() && state.sets.iter_observed().len() == 0 => {
            state.readings.is_ipset_missing = true;
            all().for_each(|key| state.readings.set_read(key));
            let text = format!(
                "{}; without sets no new Service is served, because its traffic would be neither masqueraded nor filtered; existing \
                 virtual servers are kept in step",
                ErrorChain(&error)
            );
            fail(state, Part::Sets, Some(error.into()));
            return Some(Event::host("IpsetUnsupported", text));
        }
        Err(error) => return Some(unreadable(state, error.into())),
    };
    state.readings.is_ipset_missing = false;
    let mut listed: BTreeMap<(Family, SetId), (Set, Vec<Entry>)> = BTreeMap::new();
    let mut temporary: Vec<(Family, SetId)> = Vec::new();
    let mut drain_sets = Vec::new();
    let mut failed: BTreeMap<(Family, SetId), Set> = BTreeMap::new();
    let mut error: Option<Error> = None;
    let mut are_drains_read = true;
    for header in headers {
        let name = header.set.name;
        if let Some(key) = SetId::of_name(&name) {
            match kernel.sets.list_set(&name) {
                Ok(contents) => _ = listed.insert(key, (contents.header.set, contents.entries)),
                // It was destroyed in between.
                Err(error) if error.is_not_found() => {}
                Err(cause) => {
                    failed.insert(key, header.set);
                    error.get_or_insert(cause.into());
                }
            }
        } else if let Some(key) = replacement::of_temporary(&name) {
            temporary.push(key);
        } else if let Some(family) = drain::family_of_set(&name) {
            match kernel.sets.list_set(&name) {
                Ok(contents) => drain_sets.push((family, contents.header.set, contents.entries)),
                Err(error) if error.is_not_found() => {}
                Err(cause) => {
                    are_drains_read = false;
                    error.get_or_insert(cause.into());
                }
            }
        }
    }
    if are_drains_read {
        state.drains.observe_sets(drain_sets);
    }
    state
        .temporary_sets
        .observe_all(temporary.into_iter().map(|key| (key, ())));
    // What could not be read keeps its recorded values.
    let mut definitions: Vec<((Family, SetId), Set)> = Vec::new();
    for (key, header) in &failed {
        // To be destroyed, its entries need not be known.
        let header = Some(header).filter(|_| state.retired.is_some());
        let set = state.sets.observed(key).or(header);
        definitions.extend(set.map(|set| (*key, set.clone())));
    }
    for key in all().filter(|key| !failed.contains_key(key)) {
        let (set, entries) = listed.remove(&key).unzip();
        definitions.extend(set.map(|set| (key, set)));
        let entries = entries.unwrap_or_default().into_iter().map(without_options);
        state.entries[key.0.index()][key.1.index()].observe_all(entries.map(|entry| (entry, ())));
        state.readings.set_read(key);
    }
    state.sets.observe_all(definitions);
    error.map(|error| unreadable(state, error))
}

/// An entry as those of the desired sets are. One of a set with other parameters may have a timeout, counters or a comment; the element
/// identifies it. An exception from the set is another entry.
fn without_options(entry: Entry) -> Entry {
    let options = entry.options();
    if *options == EntryOptions::default() || options.nomatch {
        return entry;
    }
    Entry::new(*entry.element())
}

/// The event about sets that cannot be read.
fn unreadable(state: &mut State, error: Error) -> Event {
    let is_ownership_known = state.families().all(|family| state.is_ownership_known(family));
    let consequence = if state.retired.is_some() {
        "virtual servers of which it is not known whether they are owned stay"
    } else if is_ownership_known {
        "changes by other programs are not found until they can be read"
    } else {
        "it is not known which virtual servers are owned: nothing is changed until they can be read"
    };
    let text = format!("sets cannot be read: {}; {consequence}", ErrorChain(&error));
    fail(state, Part::Sets, Some(error));
    Event::host(SETS_UNREADABLE, text)
}

/// Reads the definition of a set again.
pub(super) fn observe_header(
    state: &mut State,
    kernel: &mut Kernel,
    key: (Family, SetId),
) -> Result<(), Error> {
    let header = match kernel.sets.header(&key.1.name(key.0)) {
        Ok(header) => Some(header.set),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    state.sets.observe(key, header);
    Ok(())
}

/// Reads entries of a set again.
pub(super) fn observe_entries(
    state: &mut State,
    kernel: &mut Kernel,
    family: Family,
    set: SetId,
    entries: Vec<Entry>,
) -> Result<(), Error> {
    let name = set.name(family);
    let table = &mut state.entries[family.index()][set.index()];
    let exists: Vec<bool> = if set.set_type() == SetType::HashIpPortNet {
        // A test of an address would also find a network that contains it.
        let listed = match kernel.sets.list_set(&name) {
            Ok(contents) => contents.entries,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let listed: HashSet<Entry> = listed.into_iter().map(without_options).collect();
        entries.iter().map(|entry| listed.contains(entry)).collect()
    } else {
        let tests = kernel.sets.test_all(&name, &entries).into_iter();
        let exists = tests.map(|test| match test {
            Err(error) if error.is_not_found() => Ok(false),
            test => test,
        });
        exists.collect::<Result<_, _>>()?
    };
    let mut present = Vec::new();
    for (entry, exists) in entries.into_iter().zip(exists) {
        if exists && set == SetId::Ledger {
            present.push(entry.clone());
        }
        table.observe(entry, exists.then_some(()));
    }
    // The addition whose outcome was unknown was executed.
    for entry in present {
        state.adopt(&entry);
    }
    Ok(())
}

/// Reads a set again with its entries. Returns whether it differs from what is recorded.
pub(crate) fn recheck(
    state: &mut State,
    kernel: &mut Kernel,
    family: Family,
    set: SetId,
) -> Result<bool, Error> {
    let (definition, entries): (_, HashSet<Entry>) = match kernel.sets.list_set(&set.name(family)) {
        Ok(contents) => {
            let entries = contents.entries.into_iter().map(without_options);
            (Some(contents.header.set), entries.collect())
        }
        Err(error) if error.is_not_found() => (None, HashSet::new()),
        Err(error) => return Err(error.into()),
    };
    let key = (family, set);
    let table = &mut state.entries[family.index()][set.index()];
    let is_same = state.sets.observed(&key) == definition.as_ref()
        && table.iter_observed().len() == entries.len()
        && table.iter_observed().all(|(entry, ())| entries.contains(entry));
    if !is_same {
        table.observe_all(entries.into_iter().map(|entry| (entry, ())));
        state.sets.observe(key, definition);
        state.sets.set_dirty(key);
        if set == SetId::Ledger {
            state.check_ledger(family);
        }
    }
    Ok(!is_same)
}
