//! What the fake contains.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::chain::Chain;
use crate::element::{Element, ElementFlags};
use crate::flowtable::Flowtable;
use crate::object::{Object, ObjectKind};
use crate::rule::Rule;
use crate::set::{Set, SetFlags};
use crate::table::Table;
use crate::value::Value;

#[derive(Clone, Debug)]
pub(super) struct FakeTable {
    pub(super) table: Table,
    pub(super) chains: BTreeMap<Box<str>, Arc<FakeChain>>,
    pub(super) sets: BTreeMap<Box<str>, Set>,
    pub(super) objects: BTreeMap<(ObjectKind, Box<str>), Object>,
    pub(super) flowtables: BTreeMap<Box<str>, Flowtable>,
    /// The last handle.
    pub(super) handle: u64,
}

impl FakeTable {
    pub(super) fn new(table: Table) -> Self {
        FakeTable {
            table,
            chains: BTreeMap::new(),
            sets: BTreeMap::new(),
            objects: BTreeMap::new(),
            flowtables: BTreeMap::new(),
            handle: 0,
        }
    }

    pub(super) fn next_handle(&mut self) -> u64 {
        self.handle += 1;
        self.handle
    }
}

#[derive(Clone, Debug)]
pub(super) struct FakeChain {
    pub(super) chain: Chain,
    pub(super) rules: Vec<Rule>,
}

/// Key, flags and end of an element. The end of a range sorts after an element with the same key.
pub(super) type StoredKey = (Value, u32, Option<Value>);

pub(super) fn stored_key(element: &Element) -> StoredKey {
    (element.key.clone(), element.flags.bits(), element.key_end.clone())
}

/// An element and when it expires.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) element: Element,
    pub(super) deadline: Option<Duration>,
}

impl Stored {
    fn at(&self, now: Duration) -> Element {
        let mut element = self.element.clone();
        element.expiration = self.deadline.map(|deadline| deadline.saturating_sub(now));
        element
    }
}

/// The elements of one set.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredElements {
    pub(super) elements: BTreeMap<StoredKey, Stored>,
}

impl StoredElements {
    pub(super) fn expire(&mut self, now: Duration) {
        self.elements
            .retain(|_, stored| stored.deadline.is_none_or(|deadline| deadline > now));
    }

    pub(super) fn iter(&self, now: Duration) -> impl Iterator<Item = Element> {
        self.elements.values().map(move |stored| stored.at(now))
    }

    /// The element that the key of a packet matches.
    pub(super) fn find(&self, set: &Set, key: &Value, now: Duration) -> Option<Element> {
        let found = self.matching(set, key);
        let catch_all = || {
            let catch_all = (Value::new(&[]), ElementFlags::CATCHALL.bits(), None);
            self.elements.get(&catch_all)
        };
        found.or_else(catch_all).map(|stored| stored.at(now))
    }

    fn matching(&self, set: &Set, key: &Value) -> Option<&Stored> {
        if set.flags.contains(SetFlags::CONCAT) {
            return self.elements.values().find(|stored| {
                let element = &stored.element;
                let end = element.key_end.as_ref().unwrap_or(&element.key);
                is_in_ranges(set, key, &element.key, end)
            });
        }
        let exact = self.elements.get(&(key.clone(), 0, None));
        if exact.is_some() || !set.flags.contains(SetFlags::INTERVAL) {
            return exact;
        }
        let before = self.elements.range(..(key.clone(), 0, None));
        let ((last, ..), stored) = before.rev().find(|((key, ..), _)| !key.is_empty())?;
        // Where a range ends, another one may begin.
        let first = self.elements.get(&(last.clone(), 0, None));
        Some(first.unwrap_or(stored))
            .filter(|stored| !stored.element.flags.contains(ElementFlags::INTERVAL_END))
            .filter(|_| {
                !self
                    .elements
                    .contains_key(&(key.clone(), ElementFlags::INTERVAL_END.bits(), None))
            })
    }
}

/// Whether each field of a key is in the range of this field.
fn is_in_ranges(set: &Set, key: &Value, first: &Value, last: &Value) -> bool {
    let mut start = 0;
    set.field_lengths.iter().all(|length| {
        let range = start..start + *length as usize;
        start += length.next_multiple_of(4) as usize;
        let [key, first, last] = [key, first, last].map(|value| value.as_bytes().get(range.clone()));
        first <= key && key <= last
    })
}
