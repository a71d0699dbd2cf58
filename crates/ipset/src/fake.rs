//! An in-memory twin of the kernel's sets.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use kernlink_netlink::Errno;

use crate::client::IpSets;
use crate::element::Element;
use crate::entry::Entry;
use crate::entry_options::{EntryOptions, Position};
use crate::entry_range::EntryRange;
use crate::error::Error;
use crate::matching;
use crate::name::SetName;
use crate::network::masked;
use crate::operation::{Action, IfExists, Operation};
use crate::revisions::{self, Revisions};
use crate::set::{Set, SetContents, SetHeader, SetRange, SetStats};
use crate::set_family::SetFamily;
use crate::set_type::SetType;
use crate::uapi::*;
use crate::validation::{check_length, check_options, check_set};

/// Sets in memory that refuse what the kernel refuses, for the same reasons. Time stands still: a time-out stays as it
/// was given.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    /// By name; the kernel lists them by number, lists of sets last.
    sets: BTreeMap<SetName, FakeSet>,
    next_index: u16,
    /// Kernels that differ from the newest that this crate knows.
    revisions: HashMap<SetType, Option<Revisions>>,
    /// Rules that use a set.
    rules: HashMap<SetName, u32>,
    /// Operations that still succeed before every one fails; `None` is no limit.
    failing_after: Option<(usize, i32)>,
}

#[derive(Clone, Debug)]
struct FakeSet {
    set: Set,
    revision: u8,
    index: u16,
    entries: Vec<Entry>,
    /// Place in `entries` by identity; of a `list:set` not used.
    places: HashMap<Element, usize>,
}

/// A number of the kernel, positive, as `Errno` has them.
type Refused = Result<(), i32>;

/// The kernel's table of sets grows by 64 places while its length stays below 65 536.
const MAX_SETS: usize = 65_472;

const ENOENT: i32 = Errno::ENOENT.0;
const EEXIST: i32 = Errno::EEXIST.0;
const EINVAL: i32 = Errno::EINVAL.0;

impl Fake {
    /// A namespace without sets, of a kernel that has all that this crate knows.
    pub fn new() -> Self {
        Fake::default()
    }

    /// Has only these revisions of a set type, or the type not at all.
    pub fn set_revisions(&mut self, set_type: SetType, revisions: Option<Revisions>) {
        self.revisions.insert(set_type, revisions);
    }

    /// Acts as if so many rules used the set of this name.
    pub fn set_rules(&mut self, set: SetName, rules: u32) {
        self.rules.insert(set, rules);
    }

    /// Refuses every operation with this error number once so many more have succeeded; `None` ends that.
    pub fn fail_after(&mut self, operations: usize, errno: Option<Errno>) {
        self.failing_after = errno.map(|errno| (operations, errno.0));
    }

    fn one(&mut self, operation: &Operation) -> Result<(), Error> {
        let action = || Action::Change(operation.clone());
        let set_type = self.sets.get(operation.set()).map(|set| set.set.set_type);
        if let Some((left, errno)) = &mut self.failing_after {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => return Err(Error::of_errno(action(), Errno(*errno), set_type)),
            }
        }
        let outcome = match operation {
            Operation::Create { set, if_exists } => {
                check_set(set, &action)?;
                match self.revisions(set.set_type, set.family)? {
                    None => Err(IPSET_ERR_FIND_TYPE),
                    Some(revisions) => {
                        let revision = revisions::choose_revision(set, revisions, &action)?;
                        self.create_set(set, revision, *if_exists)
                    }
                }
            }
            Operation::Destroy { set, if_exists } => self.destroy_set(set, *if_exists),
            Operation::Flush { set } => self.sets.get_mut(set).map(FakeSet::clear).ok_or(ENOENT),
            Operation::Rename { from, to } => self.rename_set(from, to),
            Operation::Swap { first, second } => self.swap_sets(first, second),
            Operation::Add {
                set,
                entry,
                if_exists,
            } => {
                self.check(set, &EntryRange::new(entry.clone()), false, &action)?;
                self.add_entry(set, entry, *if_exists)
            }
            Operation::Delete {
                set,
                entry,
                if_exists,
            } => {
                self.check(set, &EntryRange::new(entry.clone()), false, &action)?;
                self.delete_entry(set, entry, *if_exists)
            }
            Operation::AddRange {
                set,
                range,
                if_exists,
            } => {
                self.check(set, range, true, &action)?;
                range
                    .entries()
                    .try_for_each(|entry| self.add_entry(set, &entry, *if_exists))
            }
            Operation::DeleteRange {
                set,
                range,
                if_exists,
            } => {
                self.check(set, range, true, &action)?;
                range
                    .entries()
                    .try_for_each(|entry| self.delete_entry(set, &entry, *if_exists))
            }
        };
        let set_type = match operation {
            Operation::Create { set, .. } => Some(set.set_type),
            _ => set_type,
        };
        outcome.map_err(|errno| match Error::of_errno(action(), Errno(errno), set_type) {
            Error::Refused { action, mut refusal }
                if refusal.reason == (crate::Reason::Full { maxelem: None }) =>
            {
                let options = self.sets.get(operation.set()).map(|set| &set.set.options);
                let maxelem = options.and_then(|options| options.maxelem.or(options.size));
                refusal.reason = crate::Reason::Full { maxelem };
                Error::Refused { action, refusal }
            }
            error => error,
        })
    }

    /// What is noticed before the kernel is asked.
    fn check(
        &self,
        set: &SetName,
        range: &EntryRange,
        is_range: bool,
        action: &dyn Fn() -> Action,
    ) -> Result<(), Error> {
        let Some(set) = self.sets.get(set) else {
            return Err(Error::of_errno(action(), Errno::ENOENT, None));
        };
        let (set_type, family) = (set.set.set_type, set.set.family);
        let checked = if is_range {
            range.check(set_type, family).map_err(|reason| crate::Mismatch {
                set_type,
                dimension: None,
                reason,
            })
        } else {
            range.first.element().check(set_type, family)
        };
        checked.map_err(|mismatch| Error::invalid_entry(action(), mismatch))?;
        check_options(&range.first, set_type, action)?;
        if is_range && !range.is_expanded_by_kernel() {
            check_length(range, action)?;
        }
        Ok(())
    }

    fn create_set(&mut self, set: &Set, revision: u8, if_exists: IfExists) -> Refused {
        let mut created = set.clone();
        complete(&mut created)?;
        if let Some(existing) = self.sets.get(&set.name) {
            return if if_exists == IfExists::Succeed && is_same_set(&existing.set, &created) {
                Ok(())
            } else {
                Err(EEXIST)
            };
        }
        if self.sets.len() >= MAX_SETS {
            return Err(IPSET_ERR_MAX_SETS);
        }
        // A namespace gives its numbers in turn; only after all have been given is a free one looked for.
        let index = if self.next_index < IPSET_INVALID_ID {
            self.next_index += 1;
            self.next_index - 1
        } else {
            let is_free = |index: &u16| !self.sets.values().any(|set| set.index == *index);
            (0..IPSET_INVALID_ID).find(is_free).ok_or(IPSET_ERR_MAX_SETS)?
        };
        let set = FakeSet {
            set: created,
            revision,
            index,
            entries: Vec::new(),
            places: HashMap::new(),
        };
        self.sets.insert(set.set.name, set);
        Ok(())
    }

    fn destroy_set(&mut self, name: &SetName, if_exists: IfExists) -> Refused {
        if !self.sets.contains_key(name) {
            return if if_exists == IfExists::Succeed {
                Ok(())
            } else {
                Err(ENOENT)
            };
        }
        if self.references(name) > 0 {
            return Err(IPSET_ERR_BUSY);
        }
        self.sets.remove(name);
        Ok(())
    }

    fn rename_set(&mut self, from: &SetName, to: &SetName) -> Refused {
        if !self.sets.contains_key(from) {
            return Err(ENOENT);
        }
        if self.references(from) > 0 {
            return Err(IPSET_ERR_REFERENCED);
        }
        if self.sets.contains_key(to) {
            return Err(IPSET_ERR_EXIST_SETNAME2);
        }
        if let Some(mut set) = self.sets.remove(from) {
            set.set.name = *to;
            self.sets.insert(*to, set);
        }
        Ok(())
    }

    fn swap_sets(&mut self, first: &SetName, second: &SetName) -> Refused {
        let a = self.sets.get(first).ok_or(ENOENT)?.clone();
        let b = self.sets.get(second).ok_or(IPSET_ERR_EXIST_SETNAME2)?.clone();
        if a.set.set_type != b.set.set_type || a.set.family != b.set.family {
            return Err(IPSET_ERR_TYPE_MISMATCH);
        }
        for (mut set, other) in [(a.clone(), &b), (b.clone(), &a)] {
            (set.set.name, set.index) = (other.set.name, other.index);
            self.sets.insert(set.set.name, set);
        }
        Ok(())
    }

    fn add_entry(&mut self, name: &SetName, entry: &Entry, if_exists: IfExists) -> Refused {
        self.check_member(name, entry)?;
        let reference = match &entry.options().position {
            Some(Position::Before(name) | Position::After(name)) => {
                Some((*name, self.sets.contains_key(name)))
            }
            None => None,
        };
        let set = self.sets.get_mut(name).ok_or(ENOENT)?;
        if matches!(reference, Some((_, false))) {
            return Err(IPSET_ERR_NAMEREF);
        }
        let entry = matching::kept(&set.set, entry)?;
        if set.set.set_type == SetType::ListSet {
            set.add_member(entry, if_exists)
        } else {
            set.add(entry, if_exists)
        }
    }

    fn delete_entry(&mut self, name: &SetName, entry: &Entry, if_exists: IfExists) -> Refused {
        self.check_member(name, entry)?;
        let set = self.sets.get_mut(name).ok_or(ENOENT)?;
        let entry = matching::kept(&set.set, entry)?;
        match set.find(entry.element()) {
            Some(place) => {
                set.remove(place);
                Ok(())
            }
            None if if_exists == IfExists::Succeed => Ok(()),
            None => Err(IPSET_ERR_EXIST),
        }
    }

    /// Of an entry of a list: the member has to be a set, and none of sets.
    fn check_member(&self, name: &SetName, entry: &Entry) -> Refused {
        let Element::Set(member) = entry.element() else {
            return Ok(());
        };
        matching::kept(&self.sets.get(name).ok_or(ENOENT)?.set, entry)?;
        match self.sets.get(member).map(|set| set.set.set_type) {
            None => Err(IPSET_ERR_NAME),
            Some(SetType::ListSet) => Err(IPSET_ERR_LOOP),
            Some(_) => Ok(()),
        }
    }

    fn references(&self, name: &SetName) -> u32 {
        let member = Element::Set(*name);
        let lists = self
            .sets
            .values()
            .filter(|set| set.entries.iter().any(|entry| *entry.element() == member))
            .count();
        self.rules.get(name).copied().unwrap_or(0) + u32::try_from(lists).unwrap_or(u32::MAX)
    }

    fn header_of(&self, set: &FakeSet) -> SetHeader {
        SetHeader {
            set: set.set.clone(),
            revision: set.revision,
            stats: SetStats {
                references: self.references(&set.set.name),
                memory: u32::try_from(size_of::<FakeSet>() + set.entries.len() * size_of::<Entry>())
                    .unwrap_or(u32::MAX),
                elements: u32::try_from(set.entries.len()).unwrap_or(u32::MAX),
            },
        }
    }

    fn contents_of(&self, set: &FakeSet) -> SetContents {
        let mut entries: Vec<Entry> = set.entries.iter().map(|entry| set.listed(entry)).collect();
        if set.set.set_type != SetType::ListSet {
            entries.sort();
        }
        SetContents {
            header: self.header_of(set),
            entries,
        }
    }

    /// In the kernel's order: by number, lists of sets last.
    fn in_order(&self) -> Vec<&FakeSet> {
        let mut sets: Vec<&FakeSet> = self.sets.values().collect();
        sets.sort_by_key(|set| (set.set.set_type == SetType::ListSet, set.index));
        sets
    }

    fn get(&self, name: &SetName) -> Result<&FakeSet, Error> {
        self.sets
            .get(name)
            .ok_or_else(|| Error::of_errno(Action::List(*name), Errno::ENOENT, None))
    }
}

impl IpSets for Fake {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        operations.iter().map(|operation| self.one(operation)).collect()
    }

    fn execute_until_failure(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let mut has_failed = false;
        operations
            .iter()
            .map(|operation| {
                if has_failed {
                    return Err(Error::NotAttempted);
                }
                let outcome = self.one(operation);
                has_failed = outcome.is_err();
                outcome
            })
            .collect()
    }

    fn list(&mut self) -> Result<Vec<SetContents>, Error> {
        Ok(self
            .in_order()
            .into_iter()
            .map(|set| self.contents_of(set))
            .collect())
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, Error> {
        self.get(name).map(|set| self.contents_of(set))
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, Error> {
        Ok(self
            .in_order()
            .into_iter()
            .map(|set| self.header_of(set))
            .collect())
    }

    fn header(&mut self, name: &SetName) -> Result<SetHeader, Error> {
        self.get(name).map(|set| self.header_of(set))
    }

    fn names(&mut self) -> Result<Vec<SetName>, Error> {
        Ok(self.in_order().into_iter().map(|set| set.set.name).collect())
    }

    fn test_all(&mut self, set: &SetName, entries: &[Entry]) -> Vec<Result<bool, Error>> {
        entries
            .iter()
            .map(|entry| {
                let action = || Action::Test(*set, entry.clone());
                self.check(set, &EntryRange::new(entry.clone()), false, &action)?;
                let set = self.get(set).map_err(|error| error.with_action(action()))?;
                // The kernel answers a test that it refuses as one for what is not there.
                let is_possible = self.check_member(&set.set.name, entry).is_ok();
                Ok(is_possible && matching::kept(&set.set, entry).is_ok_and(|kept| set.matches(&kept)))
            })
            .collect()
    }

    fn index_of(&mut self, name: &SetName) -> Result<u16, Error> {
        self.get(name)
            .map(|set| set.index)
            .map_err(|error| error.with_action(Action::IndexOf(*name)))
    }

    fn name_of(&mut self, index: u16) -> Result<SetName, Error> {
        let set = self.sets.values().find(|set| set.index == index);
        set.map(|set| set.set.name)
            .ok_or_else(|| Error::of_errno(Action::NameOf(index), Errno::ENOENT, None))
    }

    fn revisions(&mut self, set_type: SetType, family: SetFamily) -> Result<Option<Revisions>, Error> {
        if let Some(revisions) = self.revisions.get(&set_type) {
            return Ok(*revisions);
        }
        let is_known = !matches!(set_type, SetType::Unknown(_)) && set_type.families().contains(&family);
        Ok(is_known.then(|| Revisions {
            min: 0,
            max: set_type.newest_known_revision(),
        }))
    }

    fn destroy_all(&mut self) -> Result<(), Error> {
        // Membership in lists does not count: the lists go as well.
        if self
            .rules
            .iter()
            .any(|(name, rules)| *rules > 0 && self.sets.contains_key(name))
            || self.sets.keys().any(|name| self.references(name) > 0)
        {
            return Err(Error::of_errno(Action::DestroyAll, Errno(IPSET_ERR_BUSY), None));
        }
        self.sets.clear();
        Ok(())
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        self.sets.values_mut().for_each(FakeSet::clear);
        Ok(())
    }
}

impl FakeSet {
    fn clear(&mut self) {
        self.entries.clear();
        self.places.clear();
    }

    fn find(&self, element: &Element) -> Option<usize> {
        if self.set.set_type == SetType::ListSet {
            return self.entries.iter().position(|entry| entry.element() == element);
        }
        if let Some(place) = self.places.get(&matching::identity(self.set.set_type, element)) {
            return Some(*place);
        }
        matching::by_interface_prefix(&self.entries, element)
    }

    fn add(&mut self, entry: Entry, if_exists: IfExists) -> Refused {
        if let Some(place) = self.find(entry.element()) {
            let Some(existing) = self.entries.get_mut(place) else {
                return Err(EINVAL);
            };
            let fills_mac = matches!(
                (self.set.set_type, existing.element(), entry.element()),
                (
                    SetType::BitmapIpMac,
                    Element::IpMac { mac: None, .. },
                    Element::IpMac { mac: Some(_), .. }
                )
            );
            if if_exists == IfExists::Fail && !fills_mac {
                return Err(IPSET_ERR_EXIST);
            }
            // Counters stay unless given; the rest is as given now.
            let (packets, bytes) = (existing.options().packets, existing.options().bytes);
            let mut options = entry.options().clone();
            options.packets = options.packets.or(packets);
            options.bytes = options.bytes.or(bytes);
            let element = match (existing.element(), entry.element()) {
                // The other Ethernet address takes the place of the one that is there; none leaves it.
                (kept, Element::IpMac { mac: None, .. }) => *kept,
                (_, given @ Element::IpMac { .. }) => *given,
                (kept, _) => *kept,
            };
            *existing = Entry::new(element).with_options(options);
            return Ok(());
        }
        if self.set.set_type.is_hash()
            && self.entries.len() >= self.set.options.maxelem.unwrap_or(65_536) as usize
        {
            if !self.set.options.forceadd || self.entries.is_empty() {
                return Err(IPSET_ERR_HASH_FULL);
            }
            self.remove(0);
        }
        self.places.insert(
            matching::identity(self.set.set_type, entry.element()),
            self.entries.len(),
        );
        self.entries.push(entry);
        Ok(())
    }

    fn add_member(&mut self, entry: Entry, if_exists: IfExists) -> Refused {
        let place = self.find(entry.element());
        if place.is_some() && if_exists == IfExists::Fail {
            return Err(IPSET_ERR_EXIST);
        }
        let at = match entry.options().position {
            None => self.entries.len(),
            Some(Position::Before(name)) => self.find(&Element::Set(name)).ok_or(IPSET_ERR_REF_EXIST)?,
            Some(Position::After(name)) => self.find(&Element::Set(name)).ok_or(IPSET_ERR_REF_EXIST)? + 1,
        };
        let options = EntryOptions {
            position: None,
            ..entry.options().clone()
        };
        let entry = Entry::new(*entry.element()).with_options(options);
        match place.and_then(|place| self.entries.get_mut(place)) {
            // One that is there stays where it is.
            Some(existing) => *existing = entry,
            None => self.entries.insert(at, entry),
        }
        Ok(())
    }

    fn remove(&mut self, place: usize) {
        if self.set.set_type == SetType::ListSet {
            self.entries.remove(place);
            return;
        }
        let removed = self.entries.swap_remove(place);
        self.places
            .remove(&matching::identity(self.set.set_type, removed.element()));
        if let Some(moved) = self.entries.get(place) {
            let identity = matching::identity(self.set.set_type, moved.element());
            self.places.insert(identity, place);
        }
    }

    fn matches(&self, entry: &Entry) -> bool {
        let same = self
            .find(entry.element())
            .and_then(|place| self.entries.get(place));
        matching::matches(same, &self.entries, entry)
    }

    /// With what the kernel lists for every entry of such a set.
    fn listed(&self, entry: &Entry) -> Entry {
        let options = &self.set.options;
        if options.timeout.is_none() && !options.counters {
            return entry.clone();
        }
        let mut listed = entry.options().clone();
        if let Some(timeout) = options.timeout {
            listed.timeout = Some(listed.timeout.unwrap_or(timeout));
        }
        if options.counters {
            listed.packets = Some(listed.packets.unwrap_or(0));
            listed.bytes = Some(listed.bytes.unwrap_or(0));
        }
        Entry::new(*entry.element()).with_options(listed)
    }
}

/// Fills in what the kernel chooses.
fn complete(set: &mut Set) -> Refused {
    let options = &mut set.options;
    if set.set_type.is_hash() {
        let hashsize = options.hashsize.unwrap_or(1024).max(64);
        options.hashsize = Some(hashsize.checked_next_power_of_two().unwrap_or(1 << 31));
        options.maxelem = Some(options.maxelem.unwrap_or(65_536));
        options.bucketsize = Some(options.bucketsize.unwrap_or(12));
        options.initval = Some(options.initval.unwrap_or(0x5eed_5eed));
    }
    if set.set_type == SetType::ListSet {
        options.size = Some(options.size.unwrap_or(8).max(4));
    }
    if options.netmask == Some(set.family.address_bits()) {
        options.netmask = None;
    }
    if set.set_type == SetType::HashIpMark {
        options.markmask = Some(options.markmask.unwrap_or(u32::MAX));
    }
    if let Some(SetRange::Addresses(first, last)) = &mut options.range {
        let prefix_len = options.netmask.unwrap_or(32);
        if let (IpAddr::V4(masked_first), IpAddr::V4(masked_last)) = (
            masked((*first).into(), prefix_len),
            masked((*last).into(), prefix_len),
        ) {
            let blocks =
                (u64::from(masked_last.to_bits()) - u64::from(masked_first.to_bits())) >> (32 - prefix_len);
            if blocks > 65_535 {
                return Err(IPSET_ERR_BITMAP_RANGE_SIZE);
            }
        }
    }
    Ok(())
}

/// What the kernel compares when a set is created again. It does not compare the hashsize.
fn is_same_set(existing: &Set, created: &Set) -> bool {
    let comparable = |set: &Set| {
        let mut set = set.clone();
        set.options.hashsize = None;
        set.options.initval = None;
        set.options.bucketsize = None;
        set.options.forceadd = false;
        set
    };
    comparable(existing) == comparable(created)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reason;

    fn set(text: &str) -> Set {
        Set::new(SetName::new(text).unwrap(), SetType::HashIp)
    }

    #[test]
    fn a_namespace_has_room_for_65_472_sets() {
        let mut fake = Fake::new();
        for number in 0..65_472 {
            fake.create(&set(&number.to_string())).unwrap();
        }
        assert_eq!(
            fake.create(&set("more")).unwrap_err().reason(),
            Some(Reason::TooManySets)
        );
        fake.destroy(&set("7").name).unwrap();
        fake.create(&set("more")).unwrap();
    }

    #[test]
    fn an_older_kernel_lacks_options_and_types() {
        let mut fake = Fake::new();
        fake.set_revisions(SetType::HashIp, Some(Revisions { min: 0, max: 1 }));
        fake.set_revisions(SetType::HashMac, None);
        fake.create(&set("counters").with_counters()).unwrap();
        assert!(
            fake.create(&set("comment").with_comment())
                .unwrap_err()
                .is_unsupported()
        );
        let macs = Set::new(SetName::new("macs").unwrap(), SetType::HashMac);
        assert!(fake.create(&macs).unwrap_err().is_unsupported());
    }

    #[test]
    fn failures_can_be_asked_for() {
        let mut fake = Fake::new();
        fake.fail_after(1, Some(Errno::ENOMEM));
        let outcomes = fake.execute(&[Operation::create(set("a")), Operation::create(set("b"))]);
        assert!(outcomes.first().unwrap().is_ok());
        assert_eq!(
            outcomes.get(1).unwrap().as_ref().unwrap_err().reason(),
            Some(Reason::NoMemory)
        );
        fake.fail_after(0, None);
        fake.create(&set("b")).unwrap();
    }

    #[test]
    fn rules_keep_a_set_and_its_name() {
        let mut fake = Fake::new();
        fake.create(&set("a")).unwrap();
        fake.create(&set("b")).unwrap();
        fake.set_rules(set("a").name, 1);
        assert!(fake.destroy(&set("a").name).unwrap_err().is_busy());
        assert!(fake.destroy_all().unwrap_err().is_busy());
        fake.swap(&set("a").name, &set("b").name).unwrap();
        assert_eq!(fake.header(&set("a").name).unwrap().stats.references, 1);
    }
}
