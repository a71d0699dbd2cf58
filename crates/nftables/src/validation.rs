//! Operations that the kernel would misinterpret, or refuse without a useful reason.

use std::time::Duration;

use crate::element::Elements;
use crate::operation::{Flush, Item, ItemKey, Operation};
use crate::rule::Rule;
use crate::set::Set;
use crate::table::TableKey;
use crate::uapi::{NFT_DATA_VALUE_MAXLEN, NFT_NAME_MAXLEN, NFT_USERDATA_MAXLEN};
use crate::user_data::UserData;

/// The reason why an operation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOperation {
    /// An invalid name.
    #[error("invalid name of a {what}: {length} bytes; valid: 1 to 255 bytes without NUL")]
    Name {
        /// What has the name.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// A value that is too long.
    #[error("invalid {what} of {length} bytes; valid: at most 64")]
    ValueLength {
        /// What is too long.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// User data that are too long. The kernel drops those of an element with 256 bytes without an error.
    #[error("invalid user data of {length} bytes; valid: at most {limit}")]
    UserDataLength {
        /// Their length in bytes.
        length: usize,
        /// The maximum.
        limit: usize,
    },
    /// A time between collections of expired elements that the kernel cannot store.
    #[error("invalid interval of garbage collection {interval:?}; valid: at most 4294967295 ms")]
    CollectionInterval {
        /// The interval.
        interval: Duration,
    },
    /// A replacement in another chain.
    #[error(
        "the replacement is in chain {replacement}; valid: {replaced}, the chain of the rule that it replaces"
    )]
    OtherChain {
        /// The chain of the replaced rule.
        replaced: Box<str>,
        /// The chain of the replacement.
        replacement: Box<str>,
    },
}

/// The longest user data of an element in bytes.
const ELEMENT_USER_DATA: usize = 254;

impl Operation {
    pub(crate) fn check(&self) -> Result<(), InvalidOperation> {
        match self {
            Operation::Add(item) | Operation::Create(item) => item.check(),
            Operation::Insert(rule) => check_rule(rule),
            Operation::Replace(key, rule) => {
                check_rule(rule)?;
                if key.chain != rule.chain {
                    return Err(InvalidOperation::OtherChain {
                        replaced: key.chain.to_string().into(),
                        replacement: rule.chain.to_string().into(),
                    });
                }
                Ok(())
            }
            Operation::Delete(key) | Operation::Destroy(key) => key.check(),
            Operation::Flush(flush) => match flush {
                Flush::Ruleset | Flush::Family(_) => Ok(()),
                Flush::Table(table) => check_table(table),
                Flush::Chain(chain) => check_names(&chain.table, "chain", &chain.name),
                Flush::Set(set) => check_names(&set.table, "set", &set.name),
            },
        }
    }
}

impl Item {
    fn check(&self) -> Result<(), InvalidOperation> {
        match self {
            Item::Table(table) => {
                check_table(&table.key)?;
                check_user_data(&table.user_data, NFT_USERDATA_MAXLEN)
            }
            Item::Chain(chain) => {
                check_names(&chain.key.table, "chain", &chain.key.name)?;
                check_user_data(&chain.user_data, NFT_USERDATA_MAXLEN)?;
                let devices = chain.base.iter().flat_map(|base| &base.devices);
                devices
                    .into_iter()
                    .try_for_each(|device| check_name("device", device))
            }
            Item::Set(set) => check_set(set),
            Item::Elements(elements) => check_elements(elements),
            Item::Rule(rule) => check_rule(rule),
            Item::Object(object) => {
                check_names(&object.key.table, "object", &object.key.name)?;
                check_user_data(&object.user_data, NFT_USERDATA_MAXLEN)
            }
            Item::Flowtable(flowtable) => {
                check_names(&flowtable.key.table, "flowtable", &flowtable.key.name)?;
                let mut devices = flowtable.devices.iter();
                devices.try_for_each(|device| check_name("device", device))
            }
        }
    }
}

impl ItemKey {
    fn check(&self) -> Result<(), InvalidOperation> {
        match self {
            ItemKey::Table(table) => check_table(table),
            ItemKey::Chain(chain) => check_names(&chain.table, "chain", &chain.name),
            ItemKey::Set(set) => check_names(&set.table, "set", &set.name),
            ItemKey::Elements(elements) => check_elements(elements),
            ItemKey::Rule(rule) => check_names(&rule.chain.table, "chain", &rule.chain.name),
            ItemKey::Object(object) => check_names(&object.table, "object", &object.name),
            ItemKey::Flowtable(flowtable) => check_names(&flowtable.table, "flowtable", &flowtable.name),
        }
    }
}

fn check_table(table: &TableKey) -> Result<(), InvalidOperation> {
    check_name("table", &table.name)
}

fn check_names(table: &TableKey, what: &'static str, name: &str) -> Result<(), InvalidOperation> {
    check_table(table)?;
    check_name(what, name)
}

fn check_name(what: &'static str, name: &str) -> Result<(), InvalidOperation> {
    if name.is_empty() || name.len() >= NFT_NAME_MAXLEN || name.contains('\0') {
        return Err(InvalidOperation::Name {
            what,
            length: name.len(),
        });
    }
    Ok(())
}

fn check_user_data(user_data: &UserData, limit: usize) -> Result<(), InvalidOperation> {
    let length = user_data.as_bytes().len();
    if length > limit {
        return Err(InvalidOperation::UserDataLength { length, limit });
    }
    Ok(())
}

fn check_rule(rule: &Rule) -> Result<(), InvalidOperation> {
    check_names(&rule.chain.table, "chain", &rule.chain.name)?;
    check_user_data(&rule.user_data, NFT_USERDATA_MAXLEN)?;
    rule.expressions.iter().try_for_each(|expression| {
        for (what, name) in [("set", expression.set()), ("chain", expression.chain())] {
            if let Some(name) = name {
                check_name(what, name)?;
            }
        }
        Ok(())
    })
}

fn check_set(set: &Set) -> Result<(), InvalidOperation> {
    check_names(&set.key.table, "set", &set.key.name)?;
    check_length("key", set.key_length as usize)?;
    if let Some(interval) = set.collection_interval
        && interval > Duration::from_millis(u32::MAX.into())
    {
        return Err(InvalidOperation::CollectionInterval { interval });
    }
    check_user_data(&set.user_data, NFT_USERDATA_MAXLEN)
}

fn check_length(what: &'static str, length: usize) -> Result<(), InvalidOperation> {
    if length > NFT_DATA_VALUE_MAXLEN {
        return Err(InvalidOperation::ValueLength { what, length });
    }
    Ok(())
}

fn check_elements(elements: &Elements) -> Result<(), InvalidOperation> {
    check_names(&elements.set.table, "set", &elements.set.name)?;
    elements.elements.iter().try_for_each(|element| {
        check_length("key", element.key.len())?;
        check_user_data(&element.user_data, ELEMENT_USER_DATA)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chain, Element, RuleKey, Table, TableFamily, Value};

    fn problem(operation: Operation) -> String {
        operation.check().unwrap_err().to_string()
    }

    #[test]
    fn what_the_kernel_would_misinterpret_is_refused_with_the_valid_values() {
        let table = TableKey::new(TableFamily::Ip, "t");
        for name in ["", "a\0b", &"a".repeat(256)] {
            let text = problem(Operation::add(Chain::new(table.chain(name))));
            assert!(text.contains("valid: 1 to 255 bytes without NUL"), "{text}");
            let key = TableKey::new(TableFamily::Ip, name);
            assert!(Operation::add(Table::new(key)).check().is_err());
        }
        assert_eq!(
            Operation::add(Chain::new(table.chain("a".repeat(255)))).check(),
            Ok(())
        );
        let mut element = Element::new([1]);
        element.user_data = UserData::from_bytes(&[0; 255]);
        let elements = Elements::new(table.set("s"), [element]);
        assert_eq!(
            problem(Operation::add(elements)),
            "invalid user data of 255 bytes; valid: at most 254"
        );
        let set = Set::new(table.set("s"), &[crate::DataType::Mark]);
        let longest = Duration::from_millis(u32::MAX.into());
        assert_eq!(
            Operation::add(set.clone().with_collection_interval(longest)).check(),
            Ok(())
        );
        assert_eq!(
            problem(Operation::add(set.with_collection_interval(longest * 2))),
            "invalid interval of garbage collection 8589934.59s; valid: at most 4294967295 ms"
        );
        let elements = Elements::new(table.set("s"), [Element::new(Value::new(&[0; 65]))]);
        assert_eq!(
            problem(Operation::delete(elements)),
            "invalid key of 65 bytes; valid: at most 64"
        );
        let replace = Operation::Replace(
            RuleKey::new(table.chain("a"), 4),
            Rule::new(table.chain("b"), Vec::new()),
        );
        assert!(problem(replace).contains("valid: ip t a"));
    }
}
