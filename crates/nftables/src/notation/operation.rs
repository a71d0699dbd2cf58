//! Operations as commands of `nft`.

use std::fmt;

use super::ruleset::write_base;
use crate::element::Element;
use crate::operation::{Flush, Item, ItemKey, Operation};
use crate::set::MapData;
use crate::verdict::Data;

/// An operation without its elements and expressions, for errors: at most a few hundred bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief<'a>(pub(crate) &'a Operation);

/// An operation on elements, with the one of this index only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneElement<'a>(pub(crate) &'a Operation, pub(crate) usize);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, item) = match self.0 {
            Operation::Add(item) => ("add", item),
            Operation::Create(item) => ("create", item),
            Operation::Insert(rule) => return write!(f, "insert rule {}", rule.chain),
            Operation::Replace(key, _) => return write!(f, "replace rule {key}"),
            Operation::Delete(key) => {
                f.write_str("delete ")?;
                return write_key(f, key);
            }
            Operation::Destroy(key) => {
                f.write_str("destroy ")?;
                return write_key(f, key);
            }
            Operation::Flush(flush) => {
                return match flush {
                    Flush::Ruleset => f.write_str("flush ruleset"),
                    Flush::Family(family) => write!(f, "flush ruleset {family}"),
                    Flush::Table(table) => write!(f, "flush table {table}"),
                    Flush::Chain(chain) => write!(f, "flush chain {chain}"),
                    Flush::Set(set) => write!(f, "flush set {set}"),
                };
            }
        };
        match item {
            Item::Table(table) => write!(f, "{verb} table {}", table.key),
            Item::Chain(chain) => write!(f, "{verb} chain {}", chain.key),
            Item::Set(set) => {
                let kind = if set.is_map() { "map" } else { "set" };
                write!(f, "{verb} {kind} {}", set.key)
            }
            Item::Elements(elements) => write!(f, "{verb} element {}", elements.set),
            Item::Rule(rule) => write!(f, "{verb} rule {}", rule.chain),
            Item::Object(object) => write!(f, "{verb} {}", object.key),
            Item::Flowtable(flowtable) => write!(f, "{verb} flowtable {}", flowtable.key),
        }
    }
}

fn write_key(f: &mut fmt::Formatter<'_>, key: &ItemKey) -> fmt::Result {
    match key {
        ItemKey::Table(table) => write!(f, "table {table}"),
        ItemKey::Chain(chain) => write!(f, "chain {chain}"),
        ItemKey::Set(set) => write!(f, "set {set}"),
        ItemKey::Elements(elements) => write!(f, "element {}", elements.set),
        ItemKey::Rule(rule) => write!(f, "rule {rule}"),
        ItemKey::Object(object) => write!(f, "{object}"),
        ItemKey::Flowtable(flowtable) => write!(f, "flowtable {flowtable}"),
    }
}

impl fmt::Display for OneElement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OneElement(operation, index) = *self;
        Brief(operation).fmt(f)?;
        let elements = operation.elements().map(|elements| &elements.elements);
        match elements.and_then(|elements| elements.get(index)) {
            Some(element) => write!(f, " {{ {} }}", element.key),
            None => Ok(()),
        }
    }
}

/// As a command of `nft`, with elements and expressions. Fields of sets need the set, so elements and lookups are printed as far as that is
/// possible without.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Brief(self).fmt(f)?;
        match self {
            Operation::Insert(rule) | Operation::Replace(_, rule) => write!(f, " {rule}"),
            Operation::Add(item) | Operation::Create(item) => match item {
                Item::Rule(rule) => write!(f, " {rule}"),
                Item::Chain(chain) => match &chain.base {
                    Some(base) => {
                        f.write_str(" { ")?;
                        write_base(f, chain.key.table.family, base)?;
                        f.write_str(" }")
                    }
                    None => Ok(()),
                },
                Item::Elements(elements) => write_elements(f, &elements.elements),
                Item::Set(set) => {
                    write!(f, " {{ type {}", set.key_types)?;
                    match set.data {
                        None => {}
                        Some(MapData::Values { types, .. }) => write!(f, " : {types}")?,
                        Some(MapData::Verdicts) => f.write_str(" : verdict")?,
                        Some(MapData::Objects(kind)) => write!(f, " : {kind}")?,
                    }
                    f.write_str("; }")
                }
                Item::Table(_) | Item::Object(_) | Item::Flowtable(_) => Ok(()),
            },
            Operation::Delete(ItemKey::Elements(elements))
            | Operation::Destroy(ItemKey::Elements(elements)) => write_elements(f, &elements.elements),
            Operation::Delete(_) | Operation::Destroy(_) | Operation::Flush(_) => Ok(()),
        }
    }
}

fn write_elements(f: &mut fmt::Formatter<'_>, elements: &[Element]) -> fmt::Result {
    f.write_str(" {")?;
    for (index, element) in elements.iter().enumerate() {
        write!(f, "{} {}", if index > 0 { "," } else { "" }, element.key)?;
        match &element.data {
            Some(Data::Value(value)) => write!(f, " : {value}")?,
            Some(Data::Verdict(verdict)) => write!(f, " : {verdict}")?,
            None => {}
        }
    }
    f.write_str(" }")
}
