//! Operations.

use crate::chain::{Chain, ChainKey};
use crate::element::{Element, Elements};
use crate::flowtable::{Flowtable, FlowtableKey};
use crate::object::{Object, ObjectKey};
use crate::rule::{Rule, RuleKey};
use crate::set::{Set, SetKey};
use crate::table::{Table, TableKey};
use crate::table_family::TableFamily;

/// One change of the ruleset. A transaction consists of operations, which are executed in order, all or none.
///
/// `Display` is the command of `nft`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Adds something, unless it exists (`nft add`). A rule is added at the end of its chain or after its position, also if the chain has
    /// the same rule already.
    ///
    /// If it exists and is different, the kernel refuses that, or changes what can be changed: the policy of a base chain, the dormant flag of a
    /// table, size and timeout of a set, the timeout of an element. Something that is not given, such as the timeout of a set,
    /// is removed.
    Add(Item),
    /// Adds something that must not exist (`nft create`).
    Create(Item),
    /// Adds a rule at the front of its chain or before its position (`nft insert rule`).
    Insert(Rule),
    /// Replaces a rule, which gets a new handle (`nft replace rule`).
    Replace(RuleKey, Rule),
    /// Deletes something (`nft delete`). The kernel refuses that if it does not exist or is used by something that the same
    /// transaction does not delete before. A table is deleted with everything in it.
    Delete(ItemKey),
    /// Deletes something if it exists (`nft destroy`, Linux 6.3).
    Destroy(ItemKey),
    /// Deletes what something contains (`nft flush`).
    Flush(Flush),
}

/// Something that can be added.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Item {
    /// A table.
    Table(Table),
    /// A chain.
    Chain(Chain),
    /// A set or map.
    Set(Set),
    /// Elements of a set or map.
    Elements(Elements),
    /// A rule.
    Rule(Rule),
    /// A stateful object.
    Object(Object),
    /// A flowtable.
    Flowtable(Flowtable),
}

/// Something that can be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ItemKey {
    /// A table.
    Table(TableKey),
    /// A chain.
    Chain(ChainKey),
    /// A set or map.
    Set(SetKey),
    /// Elements of a set or map, by their keys.
    Elements(Elements),
    /// A rule.
    Rule(RuleKey),
    /// A stateful object.
    Object(ObjectKey),
    /// A flowtable.
    Flowtable(FlowtableKey),
}

/// Whose content is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flush {
    /// All tables of all families. Tables that another socket owns remain.
    Ruleset,
    /// All tables of a family.
    Family(TableFamily),
    /// The rules of all chains of a table.
    Table(TableKey),
    /// The rules of a chain.
    Chain(ChainKey),
    /// The elements of a set or map.
    Set(SetKey),
}

impl Item {
    /// The table that it is, or is in.
    #[must_use]
    pub fn table(&self) -> &TableKey {
        match self {
            Item::Table(table) => &table.key,
            Item::Chain(chain) => &chain.key.table,
            Item::Set(set) => &set.key.table,
            Item::Elements(elements) => &elements.set.table,
            Item::Rule(rule) => &rule.chain.table,
            Item::Object(object) => &object.key.table,
            Item::Flowtable(flowtable) => &flowtable.key.table,
        }
    }
}

macro_rules! conversions {
    ($($target:ident { $($variant:ident($type:ty),)* })*) => {$($(
        impl From<$type> for $target {
            fn from(value: $type) -> Self {
                $target::$variant(value)
            }
        }
    )*)*};
}

conversions! {
    Item {
        Table(Table),
        Chain(Chain),
        Set(Set),
        Elements(Elements),
        Rule(Rule),
        Object(Object),
        Flowtable(Flowtable),
    }
    ItemKey {
        Table(TableKey),
        Chain(ChainKey),
        Set(SetKey),
        Elements(Elements),
        Rule(RuleKey),
        Object(ObjectKey),
        Flowtable(FlowtableKey),
    }
}

impl Operation {
    /// [`Operation::Add`].
    #[must_use]
    pub fn add(item: impl Into<Item>) -> Self {
        Operation::Add(item.into())
    }

    /// [`Operation::Create`].
    #[must_use]
    pub fn create(item: impl Into<Item>) -> Self {
        Operation::Create(item.into())
    }

    /// [`Operation::Delete`].
    #[must_use]
    pub fn delete(key: impl Into<ItemKey>) -> Self {
        Operation::Delete(key.into())
    }

    /// [`Operation::Destroy`].
    #[must_use]
    pub fn destroy(key: impl Into<ItemKey>) -> Self {
        Operation::Destroy(key.into())
    }

    /// [`Operation::Flush`] of the rules of a chain.
    #[must_use]
    pub fn flush_chain(chain: ChainKey) -> Self {
        Operation::Flush(Flush::Chain(chain))
    }

    /// [`Operation::Flush`] of the elements of a set.
    #[must_use]
    pub fn flush_set(set: SetKey) -> Self {
        Operation::Flush(Flush::Set(set))
    }

    /// The elements of an operation on elements.
    #[must_use]
    pub fn elements(&self) -> Option<&Elements> {
        match self {
            Operation::Add(Item::Elements(elements))
            | Operation::Create(Item::Elements(elements))
            | Operation::Delete(ItemKey::Elements(elements))
            | Operation::Destroy(ItemKey::Elements(elements)) => Some(elements),
            _ => None,
        }
    }

    /// The same operation on other elements. An operation that is not on elements is as before.
    pub(crate) fn with_elements(&self, elements: Vec<Element>) -> Self {
        let changed = |of: &Elements| Elements::new(of.set.clone(), elements);
        match self {
            Operation::Add(Item::Elements(of)) => Operation::add(changed(of)),
            Operation::Create(Item::Elements(of)) => Operation::create(changed(of)),
            Operation::Delete(ItemKey::Elements(of)) => Operation::delete(changed(of)),
            Operation::Destroy(ItemKey::Elements(of)) => Operation::destroy(changed(of)),
            other => other.clone(),
        }
    }
}
