//! A transaction on the fake: operations are executed at once, and undone if one of them is refused.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kernlink_netlink::Errno;

use super::content::{FakeChain, FakeTable, Stored, StoredElements, StoredKey, stored_key};
use super::{Fake, rules};
use crate::chain::{Chain, ChainKey};
use crate::element::{Element, Elements};
use crate::flowtable::Flowtable;
use crate::object::{Object, ObjectKey};
use crate::operation::{Flush, Item, ItemKey, Operation};
use crate::rule::{Rule, RuleKey};
use crate::set::{MapData, Set, SetFlags, SetKey};
use crate::table::{Table, TableFlags, TableKey};
use crate::table_family::TableFamily;
use crate::verdict::Data;

/// Why an operation is refused, and which of its elements.
pub(super) struct Refused {
    pub(super) errno: Errno,
    pub(super) element: Option<usize>,
}

/// The table that an operation changes; `None` if it is on all tables.
fn table_of(operation: &Operation) -> Option<&TableKey> {
    match operation {
        Operation::Add(item) | Operation::Create(item) => Some(item.table()),
        Operation::Insert(rule) => Some(&rule.chain.table),
        Operation::Replace(key, _) => Some(&key.chain.table),
        Operation::Delete(key) | Operation::Destroy(key) => Some(match key {
            ItemKey::Table(table) => table,
            ItemKey::Chain(chain) => &chain.table,
            ItemKey::Set(set) => &set.table,
            ItemKey::Elements(elements) => &elements.set.table,
            ItemKey::Rule(rule) => &rule.chain.table,
            ItemKey::Object(object) => &object.table,
            ItemKey::Flowtable(flowtable) => &flowtable.table,
        }),
        Operation::Flush(flush) => match flush {
            Flush::Ruleset | Flush::Family(_) => None,
            Flush::Table(table) => Some(table),
            Flush::Chain(chain) => Some(&chain.table),
            Flush::Set(set) => Some(&set.table),
        },
    }
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Refused { errno, element: None }
    }
}

type Outcome = Result<(), Refused>;

/// What elements were before.
enum Undo {
    Element(SetKey, StoredKey, Option<Box<Stored>>),
    Set(SetKey, Option<StoredElements>),
}

pub(super) struct Changes<'f> {
    fake: &'f mut Fake,
    before: BTreeMap<TableKey, Arc<FakeTable>>,
    undo: Vec<Undo>,
    /// The index of the first operation that may have made a loop of jumps.
    first_jump: Option<usize>,
    /// The handles of the rules of this transaction that have a number.
    ids: HashMap<(ChainKey, u32), u64>,
    index: usize,
    is_changed: bool,
    anonymous: HashSet<SetKey>,
}

impl<'f> Changes<'f> {
    pub(super) fn new(fake: &'f mut Fake, transaction: &[Operation]) -> Self {
        let anonymous = transaction.iter().filter_map(|operation| match operation {
            Operation::Add(Item::Set(set)) | Operation::Create(Item::Set(set))
                if set.flags.contains(SetFlags::ANONYMOUS) =>
            {
                Some(set.key.clone())
            }
            _ => None,
        });
        Changes {
            before: fake.tables.clone(),
            anonymous: anonymous.collect(),
            fake,
            undo: Vec::new(),
            first_jump: None,
            ids: HashMap::new(),
            index: 0,
            is_changed: false,
        }
    }

    pub(super) fn execute(&mut self, operation: &Operation) -> Outcome {
        let outcome = self.execute_one(operation);
        self.index += 1;
        outcome
    }

    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Checks jumps, as the kernel does before it commits.
    pub(super) fn validate(&self) -> Result<(), (usize, Errno)> {
        let Some(index) = self.first_jump else {
            return Ok(());
        };
        let tables = self.fake.tables.values();
        tables
            .filter(|table| {
                let before = self.before.get(&table.table.key);
                before.is_none_or(|before| !Arc::ptr_eq(before, table)) || !self.undo.is_empty()
            })
            .try_for_each(|table| rules::check_jumps(table, &self.fake.elements))
            .map_err(|errno| (index, errno))
    }

    pub(super) fn commit(self) {
        // An anonymous set that no rule uses does not survive the transaction.
        for key in self.anonymous {
            if let Some(table) = self.fake.tables.get_mut(&key.table)
                && !rules::is_set_used(table, &key.name)
            {
                Arc::make_mut(table).sets.remove(&key.name);
                self.fake.elements.remove(&key);
            }
        }
    }

    pub(super) fn roll_back(mut self) {
        self.fake.tables = std::mem::take(&mut self.before);
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Element(set, key, before) => {
                    let elements = self.fake.elements.entry(set).or_default();
                    match before {
                        Some(before) => elements.elements.insert(key, *before),
                        None => elements.elements.remove(&key),
                    };
                }
                Undo::Set(set, Some(before)) => drop(self.fake.elements.insert(set, before)),
                Undo::Set(set, None) => drop(self.fake.elements.remove(&set)),
            }
        }
    }

    /// Whether another socket owns a table.
    fn is_foreign(&self, key: &TableKey) -> bool {
        let owner = self.fake.tables.get(key).and_then(|content| content.table.owner);
        owner.is_some_and(|owner| owner != self.fake.client)
    }

    fn execute_one(&mut self, operation: &Operation) -> Outcome {
        if table_of(operation).is_some_and(|table| self.is_foreign(table)) {
            return Err(Errno::EPERM.into());
        }
        match operation {
            Operation::Add(item) => self.add(item, false),
            Operation::Create(item) => self.add(item, true),
            Operation::Insert(rule) => self.add_rule(rule, true),
            Operation::Replace(key, rule) => self.replace_rule(key, rule),
            Operation::Delete(key) => self.delete(key),
            Operation::Destroy(ItemKey::Elements(elements)) => {
                for element in &elements.elements {
                    let one = Elements::new(elements.set.clone(), [element.clone()]);
                    if_exists(self.delete(&ItemKey::Elements(one)))?;
                }
                Ok(())
            }
            Operation::Destroy(key) => if_exists(self.delete(key)),
            Operation::Flush(flush) => self.flush(flush),
        }
    }

    fn table(&mut self, key: &TableKey) -> Result<&mut FakeTable, Errno> {
        let table = self.fake.tables.get_mut(key).ok_or(Errno::ENOENT)?;
        Ok(Arc::make_mut(table))
    }

    fn chain(&mut self, key: &ChainKey) -> Result<&mut FakeChain, Errno> {
        let chain = self.table(&key.table)?.chains.get_mut(&key.name);
        chain.map(Arc::make_mut).ok_or(Errno::ENOENT)
    }

    fn add(&mut self, item: &Item, must_be_new: bool) -> Outcome {
        match item {
            Item::Table(table) => self.add_table(table, must_be_new),
            Item::Chain(chain) => self.add_chain(chain, must_be_new),
            Item::Set(set) => self.add_set(set, must_be_new),
            Item::Elements(elements) => self.add_elements(elements, must_be_new),
            Item::Rule(rule) => self.add_rule(rule, false),
            Item::Object(object) => self.add_object(object, must_be_new),
            Item::Flowtable(flowtable) => self.add_flowtable(flowtable, must_be_new),
        }
    }

    fn add_table(&mut self, table: &Table, must_be_new: bool) -> Outcome {
        if let TableFamily::Unknown(_) = table.key.family {
            return Err(Errno::EOPNOTSUPP.into());
        }
        match self.fake.tables.get_mut(&table.key) {
            Some(_) if must_be_new => Err(Errno::EEXIST.into()),
            Some(existing) => {
                let before = existing.table.flags;
                if before == table.flags {
                    return Ok(());
                }
                // A table loses its owner only when the socket is closed, and only such a table can be taken over.
                let is_orphan = before & (TableFlags::OWNER | TableFlags::PERSIST) == TableFlags::PERSIST;
                let is_owned = before.contains(TableFlags::OWNER);
                let owns = table.flags.contains(TableFlags::OWNER);
                let persists = |flags: TableFlags| flags.contains(TableFlags::PERSIST);
                if is_owned && !owns
                    || owns && !is_owned && !is_orphan
                    || persists(before) != persists(table.flags)
                {
                    return Err(Errno::EOPNOTSUPP.into());
                }
                let client = self.fake.client;
                let existing = Arc::make_mut(existing);
                existing.table.flags = table.flags;
                existing.table.owner = owns.then_some(client);
                self.is_changed = true;
                Ok(())
            }
            None => {
                self.is_changed = true;
                let mut table = table.clone();
                self.fake.last_table += 1;
                table.handle = Some(self.fake.last_table);
                let owns = table.flags.contains(TableFlags::OWNER);
                table.owner = owns.then_some(self.fake.client);
                self.fake
                    .tables
                    .insert(table.key.clone(), Arc::new(FakeTable::new(table)));
                Ok(())
            }
        }
    }

    fn add_chain(&mut self, chain: &Chain, must_be_new: bool) -> Outcome {
        self.is_changed = true;
        let table = self.table(&chain.key.table)?;
        if let Some(existing) = table.chains.get_mut(&chain.key.name) {
            if must_be_new {
                return Err(Errno::EEXIST.into());
            }
            let existing = Arc::make_mut(existing);
            match (&mut existing.chain.base, &chain.base) {
                (Some(existing), Some(new)) => {
                    if (&existing.chain_type, existing.hook, existing.priority)
                        != (&new.chain_type, new.hook, new.priority)
                    {
                        return Err(Errno::EEXIST.into());
                    }
                    existing.policy = new.policy.or(existing.policy);
                }
                (None, Some(_)) => return Err(Errno::EEXIST.into()),
                (_, None) => {}
            }
            return Ok(());
        }
        let mut chain = chain.clone();
        chain.handle = Some(table.next_handle());
        table.chains.insert(
            chain.key.name.clone(),
            Arc::new(FakeChain {
                chain,
                rules: Vec::new(),
            }),
        );
        Ok(())
    }

    fn add_set(&mut self, set: &Set, must_be_new: bool) -> Outcome {
        self.is_changed = true;
        let table = self.table(&set.key.table)?;
        let has_invalid_flags = set.flags.contains(SetFlags::MAP | SetFlags::OBJECT)
            || set.flags.contains(SetFlags::CONCAT) == set.field_lengths.is_empty()
            || set.flags.contains(SetFlags::MAP)
                != matches!(set.data, Some(MapData::Values { .. } | MapData::Verdicts))
            || set.timeout.is_some() && !set.flags.contains(SetFlags::TIMEOUT);
        if set.key_length == 0 || has_invalid_flags {
            return Err(Errno::EINVAL.into());
        }
        if let Some(existing) = table.sets.get_mut(&set.key.name) {
            let is_same = (
                existing.flags,
                existing.key_length,
                existing.key_types,
                existing.data,
            ) == (set.flags, set.key_length, set.key_types, set.data);
            if must_be_new || !is_same {
                return Err(Errno::EEXIST.into());
            }
            existing.size = set.size.or(existing.size);
            existing.timeout = set.timeout;
            existing.collection_interval = set.collection_interval;
            return Ok(());
        }
        let mut new = set.clone();
        new.handle = Some(table.next_handle());
        table.sets.insert(new.key.name.clone(), new);
        self.undo.push(Undo::Set(set.key.clone(), None));
        self.fake
            .elements
            .insert(set.key.clone(), StoredElements::default());
        Ok(())
    }

    fn add_elements(&mut self, elements: &Elements, must_be_new: bool) -> Outcome {
        let table = self.table(&elements.set.table)?;
        let set = table.sets.get(&elements.set.name).ok_or(Errno::ENOENT)?.clone();
        for (index, element) in elements.elements.iter().enumerate() {
            self.add_element(&set, element, must_be_new)
                .map_err(|errno| Refused {
                    errno,
                    element: Some(index),
                })?;
        }
        Ok(())
    }

    fn add_element(&mut self, set: &Set, element: &Element, must_be_new: bool) -> Result<(), Errno> {
        let table = self.table(&set.key.table)?;
        rules::check_element(table, set, element)?;
        if element
            .data
            .as_ref()
            .is_some_and(|data| matches!(data, Data::Verdict(verdict) if verdict.chain().is_some()))
        {
            self.first_jump.get_or_insert(self.index);
        }
        let now = self.fake.now;
        let stored = self.fake.elements.get_mut(&set.key).ok_or(Errno::ENOENT)?;
        let key = stored_key(element);
        if let Some(existing) = stored.elements.get_mut(&key) {
            if must_be_new
                || existing.element.data != element.data
                || existing.element.object != element.object
            {
                return Err(Errno::EEXIST);
            }
            if element.timeout.is_some() || element.expiration.is_some() {
                self.is_changed = true;
                self.undo.push(Undo::Element(
                    set.key.clone(),
                    key,
                    Some(Box::new(existing.clone())),
                ));
                let timeout = element.timeout.or(existing.element.timeout);
                existing.element.timeout = listed_timeout(set, timeout);
                existing.deadline = element
                    .expiration
                    .or(lifetime(set, timeout))
                    .map(|time| now + time);
            }
            return Ok(());
        }
        if set
            .size
            .is_some_and(|size| stored.elements.len() >= size as usize)
        {
            return Err(Errno::ENFILE);
        }
        self.is_changed = true;
        let mut new = element.clone();
        new.expiration = None;
        new.timeout = listed_timeout(set, element.timeout);
        let lifetime = element.expiration.or(lifetime(set, element.timeout));
        let deadline = lifetime.map(|lifetime| now + lifetime);
        stored.elements.insert(
            key.clone(),
            Stored {
                element: new,
                deadline,
            },
        );
        self.undo.push(Undo::Element(set.key.clone(), key, None));
        Ok(())
    }

    fn add_rule(&mut self, rule: &Rule, at_front: bool) -> Outcome {
        let index = self.index;
        let table = self.table(&rule.chain.table)?;
        if !table.chains.contains_key(&rule.chain.name) {
            return Err(Errno::ENOENT.into());
        }
        rules::check_rule(table, rule)?;
        let handle = table.next_handle();
        let ids = self.ids.clone();
        let chain = self.chain(&rule.chain)?;
        let rules = chain.rules.iter();
        let found = match (rule.position_id, rule.position) {
            (None, None) => None,
            (Some(id), _) => {
                let new = ids.get(&(rule.chain.clone(), id)).ok_or(Errno::ENOENT)?;
                Some(rules.clone().position(|rule| rule.handle == Some(*new)))
            }
            (None, Some(position)) => Some(rules.clone().position(|rule| rule.handle == Some(position))),
        };
        let position = match found {
            None if at_front => 0,
            None => chain.rules.len(),
            Some(found) => found.ok_or(Errno::ENOENT)? + usize::from(!at_front),
        };
        let mut rule = rule.clone();
        rule.handle = Some(handle);
        rule.position = None;
        rule.position_id = None;
        let id = rule.id.take().map(|id| (rule.chain.clone(), id));
        chain.rules.insert(position, rule);
        self.ids.extend(id.map(|id| (id, handle)));
        self.first_jump.get_or_insert(index);
        self.is_changed = true;
        Ok(())
    }

    fn replace_rule(&mut self, key: &RuleKey, rule: &Rule) -> Outcome {
        let index = self.index;
        let table = self.table(&key.chain.table)?;
        rules::check_rule(table, rule)?;
        let handle = table.next_handle();
        let chain = self.chain(&key.chain)?;
        let mut rules = chain.rules.iter_mut();
        let replaced = rules
            .find(|rule| rule.handle == Some(key.handle))
            .ok_or(Errno::ENOENT)?;
        *replaced = Rule {
            handle: Some(handle),
            position: None,
            id: None,
            position_id: None,
            ..rule.clone()
        };
        let id = rule.id.map(|id| ((key.chain.clone(), id), handle));
        self.ids.extend(id);
        self.first_jump.get_or_insert(index);
        self.is_changed = true;
        Ok(())
    }

    fn add_object(&mut self, object: &Object, must_be_new: bool) -> Outcome {
        self.is_changed = true;
        let table = self.table(&object.key.table)?;
        let key = (object.key.kind, object.key.name.clone());
        if table.objects.contains_key(&key) {
            return if must_be_new {
                Err(Errno::EEXIST.into())
            } else {
                Ok(())
            };
        }
        let mut object = object.clone();
        object.handle = Some(table.next_handle());
        table.objects.insert(key, object);
        Ok(())
    }

    fn add_flowtable(&mut self, flowtable: &Flowtable, must_be_new: bool) -> Outcome {
        self.is_changed = true;
        let table = self.table(&flowtable.key.table)?;
        if table.flowtables.contains_key(&flowtable.key.name) {
            return if must_be_new {
                Err(Errno::EEXIST.into())
            } else {
                Ok(())
            };
        }
        let mut flowtable = flowtable.clone();
        flowtable.handle = Some(table.next_handle());
        table.flowtables.insert(flowtable.key.name.clone(), flowtable);
        Ok(())
    }

    fn delete(&mut self, key: &ItemKey) -> Outcome {
        self.is_changed = true;
        match key {
            ItemKey::Table(key) => {
                let table = self.fake.tables.remove(key).ok_or(Errno::ENOENT)?;
                for set in table.sets.values() {
                    let before = self.fake.elements.remove(&set.key);
                    self.undo.push(Undo::Set(set.key.clone(), before));
                }
                Ok(())
            }
            ItemKey::Chain(key) => self.delete_chain(key),
            ItemKey::Set(key) => {
                let table = self.table(&key.table)?;
                if !table.sets.contains_key(&key.name) {
                    return Err(Errno::ENOENT.into());
                }
                if rules::is_set_used(table, &key.name) {
                    return Err(Errno::EBUSY.into());
                }
                table.sets.remove(&key.name);
                let before = self.fake.elements.remove(key);
                self.undo.push(Undo::Set(key.clone(), before));
                Ok(())
            }
            ItemKey::Elements(elements) => self.delete_elements(elements),
            ItemKey::Rule(key) => {
                let chain = self.chain(&key.chain)?;
                let mut rules = chain.rules.iter();
                let position = rules.position(|rule| rule.handle == Some(key.handle));
                let removed = chain.rules.remove(position.ok_or(Errno::ENOENT)?);
                self.delete_anonymous(&key.chain.table, &removed)
            }
            ItemKey::Object(key) => self.delete_object(key),
            ItemKey::Flowtable(key) => {
                let table = self.table(&key.table)?;
                if rules::is_flowtable_used(table, &key.name) {
                    return Err(Errno::EBUSY.into());
                }
                table
                    .flowtables
                    .remove(&key.name)
                    .map(drop)
                    .ok_or(Errno::ENOENT.into())
            }
        }
    }

    fn delete_chain(&mut self, key: &ChainKey) -> Outcome {
        let chain = self.chain(key)?;
        let rules = std::mem::take(&mut chain.rules);
        let table = self.fake.tables.get(&key.table).ok_or(Errno::ENOENT)?;
        if rules::is_chain_used(table, &self.fake.elements, &key.name) {
            return Err(Errno::EBUSY.into());
        }
        self.table(&key.table)?.chains.remove(&key.name);
        rules
            .iter()
            .try_for_each(|rule| self.delete_anonymous(&key.table, rule))
    }

    fn delete_object(&mut self, key: &ObjectKey) -> Outcome {
        let name = (key.kind, key.name.clone());
        let table = self.fake.tables.get(&key.table).ok_or(Errno::ENOENT)?;
        if !table.objects.contains_key(&name) {
            return Err(Errno::ENOENT.into());
        }
        if rules::is_object_used(table, &self.fake.elements, key) {
            return Err(Errno::EBUSY.into());
        }
        self.table(&key.table)?.objects.remove(&name);
        Ok(())
    }

    fn delete_elements(&mut self, elements: &Elements) -> Outcome {
        self.table(&elements.set.table)?;
        let stored = self.fake.elements.get_mut(&elements.set).ok_or(Errno::ENOENT)?;
        for (index, element) in elements.elements.iter().enumerate() {
            let key = stored_key(element);
            let before = stored.elements.remove(&key).ok_or(Refused {
                errno: Errno::ENOENT,
                element: Some(index),
            })?;
            self.undo
                .push(Undo::Element(elements.set.clone(), key, Some(Box::new(before))));
        }
        Ok(())
    }

    /// Anonymous sets and chains end with the rule that uses them.
    fn delete_anonymous(&mut self, table: &TableKey, rule: &Rule) -> Outcome {
        for expression in &rule.expressions {
            if let Some(name) = expression.set()
                && let content = self.table(table)?
                && content
                    .sets
                    .get(name)
                    .is_some_and(|set| set.flags.contains(SetFlags::ANONYMOUS))
            {
                content.sets.remove(name);
                let key = table.set(name);
                let before = self.fake.elements.remove(&key);
                self.undo.push(Undo::Set(key, before));
            }
            if let Some(name) = expression.chain()
                && let content = self.table(table)?
                && content
                    .chains
                    .get(name)
                    .is_some_and(|content| content.chain.is_anonymous())
            {
                content.chains.remove(name);
            }
        }
        Ok(())
    }

    fn flush(&mut self, flush: &Flush) -> Outcome {
        self.is_changed = true;
        match flush {
            Flush::Ruleset | Flush::Family(_) => {
                let tables = self.fake.tables.keys().filter(|table| match flush {
                    Flush::Family(family) => table.family == *family,
                    _ => true,
                });
                let tables = tables.filter(|table| !self.is_foreign(table));
                let tables: Vec<TableKey> = tables.cloned().collect();
                tables
                    .into_iter()
                    .try_for_each(|table| self.delete(&ItemKey::Table(table)))
            }
            Flush::Table(key) => {
                let chains: Vec<ChainKey> = {
                    let table = self.table(key)?;
                    table
                        .chains
                        .values()
                        .map(|content| content.chain.key.clone())
                        .collect()
                };
                chains.iter().try_for_each(|chain| self.flush_chain(chain))
            }
            Flush::Chain(key) => self.flush_chain(key),
            Flush::Set(key) => {
                self.table(&key.table)?;
                let stored = self.fake.elements.get_mut(key).ok_or(Errno::ENOENT)?;
                let before = std::mem::take(stored);
                self.undo.push(Undo::Set(key.clone(), Some(before)));
                Ok(())
            }
        }
    }

    fn flush_chain(&mut self, key: &ChainKey) -> Outcome {
        let rules = std::mem::take(&mut self.chain(key)?.rules);
        rules
            .iter()
            .try_for_each(|rule| self.delete_anonymous(&key.table, rule))
    }
}

fn if_exists(outcome: Outcome) -> Outcome {
    match outcome {
        Err(Refused {
            errno: Errno::ENOENT, ..
        }) => Ok(()),
        outcome => outcome,
    }
}

/// The timeout with which the kernel returns an element: `None` if it is that of the set.
fn listed_timeout(set: &Set, timeout: Option<Duration>) -> Option<Duration> {
    timeout.filter(|timeout| *timeout != set.timeout.unwrap_or_default())
}

/// The time until an element with this timeout expires, if it does.
fn lifetime(set: &Set, timeout: Option<Duration>) -> Option<Duration> {
    timeout.or(set.timeout).filter(|timeout| !timeout.is_zero())
}
