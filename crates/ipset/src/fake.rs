//! Sets in memory.

mod set;

use std::collections::{BTreeMap, HashMap};

use kernlink_netlink::Errno;

use self::set::{FakeSet, Refused, complete, is_same_set};
use crate::client::IpSets;
use crate::element::Element;
use crate::entry::Entry;
use crate::entry_options::Position;
use crate::entry_range::EntryRange;
use crate::error::Error;
use crate::matching;
use crate::name::SetName;
use crate::operation::{Action, IfExists, Operation};
use crate::revisions::{self, Revisions};
use crate::set::{Set, SetContents, SetHeader, SetStats};
use crate::set_family::SetFamily;
use crate::set_type::SetType;
use crate::uapi::*;
use crate::validation::{check_length, check_options, check_set};

/// Sets in memory. Operations fail if they would fail on the kernel, with the same [`Reason`](crate::Reason). Time does not pass:
/// the timeout of an entry does not change.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    /// By name. The kernel lists sets by index, lists of sets last.
    sets: BTreeMap<SetName, FakeSet>,
    next_index: u16,
    /// Set types of which the simulated kernel has other revisions than this crate, or none.
    revisions: HashMap<SetType, Option<Revisions>>,
    /// The number of rules that use a set.
    rules: HashMap<SetName, u32>,
    /// The number of operations that still succeed, and the error number with which all later ones fail.
    failing_after: Option<(usize, i32)>,
}

/// The kernel's table of sets grows in steps of 64 while its length stays below 65 536.
const MAX_SETS: usize = 65_472;

const ENOENT: i32 = Errno::ENOENT.0;
const EEXIST: i32 = Errno::EEXIST.0;

impl Fake {
    /// A namespace without sets, on a kernel with all set types and revisions that this crate supports.
    #[must_use]
    pub fn new() -> Self {
        Fake::default()
    }

    /// Simulates a kernel with these revisions of a set type; `None` is a kernel without the type.
    pub fn set_revisions(&mut self, set_type: SetType, revisions: Option<Revisions>) {
        self.revisions.insert(set_type, revisions);
    }

    /// Simulates rules that use the set with this name.
    pub fn set_rules(&mut self, set: SetName, rules: u32) {
        self.rules.insert(set, rules);
    }

    /// Lets this many operations succeed and refuses all later ones with an error number. With `None` no operation is refused any
    /// more.
    pub fn fail_after(&mut self, operations: usize, errno: Option<Errno>) {
        self.failing_after = errno.map(|errno| (operations, errno.0));
    }

    fn execute_operation(&mut self, operation: &Operation) -> Result<(), Error> {
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
            Error::Refused { action, mut refusal }
                if refusal.reason == (crate::Reason::SetExists { set_type: None }) =>
            {
                let name = match operation {
                    Operation::Rename { to, .. } => to,
                    other => other.set(),
                };
                let set_type = self.sets.get(name).map(|set| set.set.set_type);
                refusal.reason = crate::Reason::SetExists { set_type };
                Error::Refused { action, refusal }
            }
            error => error,
        })
    }

    /// The checks that the client makes before it sends.
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
        // Indexes are given in turn; after the last one, the first free index is used.
        let index = if self.next_index < IPSET_INVALID_ID {
            self.next_index += 1;
            self.next_index - 1
        } else {
            let is_free = |index: &u16| !self.sets.values().any(|set| set.index == *index);
            (0..IPSET_INVALID_ID).find(is_free).ok_or(IPSET_ERR_MAX_SETS)?
        };
        self.sets.insert(set.name, FakeSet::new(created, revision, index));
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
        let entry = matching::stored_entry(&set.set, entry)?;
        if set.set.set_type == SetType::ListSet {
            set.add_member(entry, if_exists)
        } else {
            set.add(entry, if_exists)
        }
    }

    fn delete_entry(&mut self, name: &SetName, entry: &Entry, if_exists: IfExists) -> Refused {
        self.check_member(name, entry)?;
        let set = self.sets.get_mut(name).ok_or(ENOENT)?;
        let entry = matching::stored_entry(&set.set, entry)?;
        match set.find(entry.element()) {
            Some(index) => {
                set.remove(index);
                Ok(())
            }
            None if if_exists == IfExists::Succeed => Ok(()),
            None => Err(IPSET_ERR_EXIST),
        }
    }

    /// Checks that the member in an entry of a list exists and is not a list.
    fn check_member(&self, name: &SetName, entry: &Entry) -> Refused {
        let Element::Set(member) = entry.element() else {
            return Ok(());
        };
        matching::stored_entry(&self.sets.get(name).ok_or(ENOENT)?.set, entry)?;
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

    /// The sets in the kernel's order: by index, lists of sets last.
    fn in_order(&self) -> Vec<&FakeSet> {
        let mut sets: Vec<&FakeSet> = self.sets.values().collect();
        sets.sort_by_key(|set| (set.set.set_type == SetType::ListSet, set.index));
        sets
    }

    fn find(&self, name: &SetName) -> Result<&FakeSet, Error> {
        self.sets
            .get(name)
            .ok_or_else(|| Error::of_errno(Action::List(*name), Errno::ENOENT, None))
    }
}

impl IpSets for Fake {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        operations
            .iter()
            .map(|operation| self.execute_operation(operation))
            .collect()
    }

    fn execute_until_failure(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let mut has_failed = false;
        operations
            .iter()
            .map(|operation| {
                if has_failed {
                    return Err(Error::NotAttempted);
                }
                let outcome = self.execute_operation(operation);
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
        self.find(name).map(|set| self.contents_of(set))
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, Error> {
        Ok(self
            .in_order()
            .into_iter()
            .map(|set| self.header_of(set))
            .collect())
    }

    fn header(&mut self, name: &SetName) -> Result<SetHeader, Error> {
        self.find(name).map(|set| self.header_of(set))
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
                let set = self.find(set).map_err(|error| error.with_action(action()))?;
                // The kernel answers a test of an entry that the set refuses as a test of a missing entry.
                let is_possible = self.check_member(&set.set.name, entry).is_ok();
                Ok(is_possible
                    && matching::stored_entry(&set.set, entry).is_ok_and(|stored| set.matches(&stored)))
            })
            .collect()
    }

    fn index_of(&mut self, name: &SetName) -> Result<u16, Error> {
        self.find(name)
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
    fn all_operations_fail_after_fail_after() {
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
    fn a_set_in_a_rule_is_not_destroyed_but_swapped() {
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
