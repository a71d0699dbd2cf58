//! A set of the fake.

use std::collections::HashMap;
use std::net::IpAddr;

use kernlink_netlink::Errno;

use crate::element::Element;
use crate::entry::Entry;
use crate::entry_options::{EntryOptions, Position};
use crate::matching;
use crate::network::masked;
use crate::operation::IfExists;
use crate::set::{Set, SetRange};
use crate::set_type::SetType;
use crate::uapi::*;

/// `Err` is the error number with which the kernel refuses; positive, as in `Errno`.
pub(super) type Refused = Result<(), i32>;

/// A set with its entries.
#[derive(Clone, Debug)]
pub(super) struct FakeSet {
    pub(super) set: Set,
    pub(super) revision: u8,
    pub(super) index: u16,
    pub(super) entries: Vec<Entry>,
    /// Index in `entries` by key; not used for a `list:set`.
    indexes: HashMap<Element, usize>,
}

impl FakeSet {
    /// A set without entries.
    pub(super) fn new(set: Set, revision: u8, index: u16) -> Self {
        FakeSet {
            set,
            revision,
            index,
            entries: Vec::new(),
            indexes: HashMap::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.indexes.clear();
    }

    /// The index of the entry with the key of an element.
    pub(super) fn find(&self, element: &Element) -> Option<usize> {
        if self.set.set_type == SetType::ListSet {
            return self.entries.iter().position(|entry| entry.element() == element);
        }
        if let Some(index) = self.indexes.get(&matching::key(self.set.set_type, element)) {
            return Some(*index);
        }
        matching::find_by_interface_prefix(&self.entries, element)
    }

    /// Adds an entry to a set other than a `list:set`.
    pub(super) fn add(&mut self, entry: Entry, if_exists: IfExists) -> Refused {
        if let Some(index) = self.find(entry.element()) {
            let Some(existing) = self.entries.get_mut(index) else {
                return Err(Errno::EINVAL.0);
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
            // Counters stay unless they are given; the other options are replaced.
            let (packets, bytes) = (existing.options().packets, existing.options().bytes);
            let mut options = entry.options().clone();
            options.packets = options.packets.or(packets);
            options.bytes = options.bytes.or(bytes);
            let element = match (existing.element(), entry.element()) {
                // A given Ethernet address replaces the existing one.
                (stored, Element::IpMac { mac: None, .. }) => *stored,
                (_, given @ Element::IpMac { .. }) => *given,
                (stored, _) => *stored,
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
        self.indexes.insert(
            matching::key(self.set.set_type, entry.element()),
            self.entries.len(),
        );
        self.entries.push(entry);
        Ok(())
    }

    /// Adds a member to a `list:set`.
    pub(super) fn add_member(&mut self, entry: Entry, if_exists: IfExists) -> Refused {
        let index = self.find(entry.element());
        if index.is_some() && if_exists == IfExists::Fail {
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
        match index.and_then(|index| self.entries.get_mut(index)) {
            // An existing member keeps its position.
            Some(existing) => *existing = entry,
            None => self.entries.insert(at, entry),
        }
        Ok(())
    }

    /// Removes the entry at an index.
    pub(super) fn remove(&mut self, index: usize) {
        if self.set.set_type == SetType::ListSet {
            self.entries.remove(index);
            return;
        }
        let removed = self.entries.swap_remove(index);
        self.indexes
            .remove(&matching::key(self.set.set_type, removed.element()));
        if let Some(moved) = self.entries.get(index) {
            let identity = matching::key(self.set.set_type, moved.element());
            self.indexes.insert(identity, index);
        }
    }

    /// Whether an entry is in the set, as the kernel decides it.
    pub(super) fn matches(&self, entry: &Entry) -> bool {
        let equal = self
            .find(entry.element())
            .and_then(|index| self.entries.get(index));
        matching::matches(equal, &self.entries, entry)
    }

    /// An entry with the timeout and counters that the kernel lists for every entry of the set.
    pub(super) fn listed(&self, entry: &Entry) -> Entry {
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

/// Fills in the kernel's defaults.
pub(super) fn complete(set: &mut Set) -> Refused {
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

/// Whether the kernel takes two sets for equal when one is created again. It does not compare the hashsize.
pub(super) fn is_same_set(existing: &Set, created: &Set) -> bool {
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
