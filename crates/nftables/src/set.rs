//! Sets and maps.

// Circle of imports: a set has elements that are copied to others, and the key of an element names its set.

use std::fmt;
use std::time::Duration;

use crate::data_type::{DataType, DataTypes};
use crate::element::{Element, ElementFlags};
use crate::expression::Expression;
use crate::object::ObjectKind;
use crate::table::TableKey;
use crate::type_of::{self, TypeOf};
use crate::user_data::{self, UserData};
use crate::value::Value;
use crate::wire::{flags_field, open_enum};

/// A set or map: table and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct SetKey {
    /// The table.
    pub table: TableKey,
    /// The name, at most 255 bytes.
    pub name: Box<str>,
}

impl SetKey {
    /// The set of this name.
    #[must_use]
    pub fn new(table: TableKey, name: impl Into<Box<str>>) -> Self {
        SetKey {
            table,
            name: name.into(),
        }
    }
}

/// As in `nft` commands: `ip filter banned`.
impl fmt::Display for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

bitflags::bitflags! {
    /// Flags of a set.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SetFlags: u32 {
        /// It belongs to the rule that uses it and is deleted with the rule. The kernel replaces the
        /// number at the end of a name such as `__set1`. Rules and elements of the same transaction find it by the name that they and the set have.
        const ANONYMOUS = crate::uapi::NFT_SET_ANONYMOUS;
        /// Its elements cannot change while a rule uses it.
        const CONSTANT = crate::uapi::NFT_SET_CONSTANT;
        /// Elements can be ranges.
        const INTERVAL = crate::uapi::NFT_SET_INTERVAL;
        /// It is a map.
        const MAP = crate::uapi::NFT_SET_MAP;
        /// Elements can have timeouts.
        const TIMEOUT = crate::uapi::NFT_SET_TIMEOUT;
        /// Rules may change it (`dynamic`).
        const EVAL = crate::uapi::NFT_SET_EVAL;
        /// It is a map to objects.
        const OBJECT = crate::uapi::NFT_SET_OBJECT;
        /// Ranges are given for each field of a concatenation (Linux 5.6).
        const CONCAT = crate::uapi::NFT_SET_CONCAT;
        /// Elements have expressions (Linux 5.11).
        const EXPR = crate::uapi::NFT_SET_EXPR;
        const _ = !0;
    }
}

flags_field!(SetFlags);

open_enum! {
    /// What the kernel prefers when it chooses a data structure.
    SetPolicy: u32 {
        /// Speed.
        Performance = NFT_SET_POL_PERFORMANCE "performance",
        /// Memory.
        Memory = NFT_SET_POL_MEMORY "memory",
    }
}

/// What a map has for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MapData {
    /// Values.
    Values {
        /// The types of their fields.
        types: DataTypes,
        /// Their length in bytes, at most 64.
        length: u32,
    },
    /// A `netfilter verdict`: a verdict map.
    Verdicts,
    /// Objects of a kind.
    Objects(ObjectKind),
}

/// A set or map, without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Set {
    /// Table and name.
    pub key: SetKey,
    /// Flags.
    pub flags: SetFlags,
    /// The types of the fields of keys.
    pub key_types: DataTypes,
    /// The length of keys in bytes, at most 64.
    pub key_length: u32,
    /// What a map has for a key; `None` for a set.
    pub data: Option<MapData>,
    /// Which data structure the kernel prefers.
    pub policy: SetPolicy,
    /// The maximum number of elements; `None`: no limit, except that the kernel sets 65 535 when the first rule changes the set.
    pub size: Option<u32>,
    /// The lengths of the fields of keys in bytes, for sets of the flag [`CONCAT`](SetFlags::CONCAT).
    pub field_lengths: Vec<u32>,
    /// Timeout of elements without one of their own.
    pub timeout: Option<Duration>,
    /// How often expired elements are deleted.
    pub collection_interval: Option<Duration>,
    /// Expressions that each element has, of sets of the flag [`EXPR`](SetFlags::EXPR).
    pub expressions: Vec<Expression>,
    /// User data.
    pub user_data: UserData,
    /// The kernel's number of the set; only read.
    pub handle: Option<u64>,
    /// The number of elements; only read, since Linux 6.16.
    pub count: Option<u32>,
}

/// How `nft` numbers byte orders in user data.
pub(crate) const HOST_BYTE_ORDER: u32 = 1;
const NETWORK_BYTE_ORDER: u32 = 2;

impl Set {
    /// A set whose keys have one field of each of these types.
    ///
    /// The length of the key is the sum of the lengths of the types, each padded to 4 bytes if there are several. Types without a
    /// fixed length count as 4 bytes: set `key_length` and `field_lengths` then.
    #[must_use]
    pub fn new(key: SetKey, key_types: &[DataType]) -> Self {
        let mut user_data = UserData::new();
        user_data.push_u32(user_data::SET_KEY_BYTE_ORDER, byte_order(key_types));
        Set {
            key,
            flags: SetFlags::empty(),
            key_types: DataTypes::new(key_types),
            key_length: length(key_types),
            data: None,
            policy: SetPolicy::Performance,
            size: None,
            field_lengths: Vec::new(),
            timeout: None,
            collection_interval: None,
            expressions: Vec::new(),
            user_data,
            handle: None,
            count: None,
        }
    }

    /// A map from keys to values, each with one field of each of these types.
    #[must_use]
    pub fn map(key: SetKey, key_types: &[DataType], data_types: &[DataType]) -> Self {
        let mut map = Set::new(key, key_types).with_flags(SetFlags::MAP);
        map.user_data
            .push_u32(user_data::SET_DATA_BYTE_ORDER, byte_order(data_types));
        map.data = Some(MapData::Values {
            types: DataTypes::new(data_types),
            length: length(data_types),
        });
        map
    }

    /// A verdict map.
    #[must_use]
    pub fn verdict_map(key: SetKey, key_types: &[DataType]) -> Self {
        let mut map = Set::new(key, key_types).with_flags(SetFlags::MAP);
        map.data = Some(MapData::Verdicts);
        map
    }

    /// A map to objects.
    #[must_use]
    pub fn object_map(key: SetKey, key_types: &[DataType], kind: ObjectKind) -> Self {
        let mut map = Set::new(key, key_types).with_flags(SetFlags::OBJECT);
        map.data = Some(MapData::Objects(kind));
        map
    }

    /// Adds flags.
    #[must_use]
    pub fn with_flags(mut self, flags: SetFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// Declares the fields of keys with `typeof`, which also sets their types and lengths. `nft` lists the set so, and prints elements as
    /// values of these fields.
    ///
    /// It has no effect if the fields exceed the 255 bytes that an entry of user data has, about ten fields, or if one of them has no notation
    /// ([`TypeOf::length`]). Before [`with_intervals`](Self::with_intervals), which needs the lengths.
    #[must_use]
    pub fn with_type_of(mut self, fields: &[TypeOf]) -> Self {
        if let Some((types, length, order)) = self.declare(user_data::SET_KEY_TYPE_OF, fields) {
            self.user_data.set_u32(user_data::SET_KEY_BYTE_ORDER, order);
            (self.key_types, self.key_length) = (types, length);
        }
        self
    }

    /// Declares the fields of the data of a map with `typeof`, as [`with_type_of`](Self::with_type_of) those of keys. `nft` needs both, except
    /// for a map to objects.
    #[must_use]
    pub fn with_data_type_of(mut self, fields: &[TypeOf]) -> Self {
        if let Some((types, length, order)) = self.declare(user_data::SET_DATA_TYPE_OF, fields)
            && let Some(MapData::Values { .. }) = self.data
        {
            self.user_data.set_u32(user_data::SET_DATA_BYTE_ORDER, order);
            self.data = Some(MapData::Values { types, length });
        }
        self
    }

    /// Stores fields. Returns their types, length and byte order.
    fn declare(&mut self, entry: u8, fields: &[TypeOf]) -> Option<(DataTypes, u32, u32)> {
        let types: Option<Vec<DataType>> = fields.iter().map(TypeOf::data_type).collect();
        let lengths: Option<Vec<u32>> = fields.iter().map(TypeOf::length).collect();
        let (types, lengths) = (types?, lengths?);
        self.user_data.set(entry, &type_of::encode(fields)?);
        let (length, order) = match (fields, lengths.as_slice()) {
            ([field], [length]) if field.is_host_byte_order() => (*length, HOST_BYTE_ORDER),
            ([_], [length]) => (*length, NETWORK_BYTE_ORDER),
            (_, lengths) => {
                let add = |sum: u32, length: &u32| sum.saturating_add(length.div_ceil(4).saturating_mul(4));
                (lengths.iter().fold(0, add), 0)
            }
        };
        Some((DataTypes::new(&types), length, order))
    }

    /// What the fields of keys are declared with; `None` for types.
    #[must_use]
    pub fn key_type_of(&self) -> Option<Vec<TypeOf>> {
        type_of::decode(self.user_data.entry(user_data::SET_KEY_TYPE_OF)?)
    }

    /// What the fields of data are declared with; `None` for types.
    #[must_use]
    pub fn data_type_of(&self) -> Option<Vec<TypeOf>> {
        type_of::decode(self.user_data.entry(user_data::SET_DATA_TYPE_OF)?)
    }

    /// Whether the data of the map are ranges, which `nft` declares with `interval`: both ends one after the other.
    #[must_use]
    pub fn has_data_intervals(&self) -> bool {
        self.user_data
            .u32(user_data::SET_DATA_INTERVAL)
            .is_some_and(|number| number != 0)
    }

    /// Whether `nft` merges elements that overlap or are adjacent (`auto-merge`). The kernel does not.
    #[must_use]
    pub fn has_auto_merge(&self) -> bool {
        self.user_data
            .u32(user_data::SET_AUTO_MERGE)
            .is_some_and(|number| number != 0)
    }

    /// Elements can be ranges; those of a concatenation have a range for each field.
    #[must_use]
    pub fn with_intervals(mut self) -> Self {
        self.flags |= SetFlags::INTERVAL;
        let of_types = || {
            let types = self.key_types.iter();
            types.map(|data_type| data_type.length().unwrap_or(4)).collect()
        };
        let of_fields = self.key_type_of().and_then(|fields| {
            let lengths: Option<Vec<u32>> = fields.iter().map(TypeOf::length).collect();
            lengths
        });
        let lengths: Vec<u32> = of_fields.unwrap_or_else(of_types);
        if lengths.len() > 1 {
            self.flags |= SetFlags::CONCAT;
            self.field_lengths = lengths;
        }
        self
    }

    /// Sets the maximum number of elements.
    #[must_use]
    pub fn with_size(mut self, size: u32) -> Self {
        self.size = Some(size);
        self
    }

    /// Elements can have timeouts; those without one of their own have this one.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.flags |= SetFlags::TIMEOUT;
        self.timeout = Some(timeout);
        self
    }

    /// Sets how often expired elements are deleted.
    #[must_use]
    pub fn with_collection_interval(mut self, interval: Duration) -> Self {
        self.collection_interval = Some(interval);
        self
    }

    /// Each element gets these expressions.
    #[must_use]
    pub fn with_expressions(mut self, expressions: Vec<Expression>) -> Self {
        self.flags |= SetFlags::EXPR;
        self.expressions = expressions;
        self
    }

    /// Adds a comment, of at most 128 bytes for `nft`. One of more than 254 bytes is not added.
    #[must_use]
    pub fn with_comment(mut self, comment: &str) -> Self {
        self.user_data.push_text(user_data::SET_COMMENT, comment);
        self
    }

    /// The comment.
    #[must_use]
    pub fn comment(&self) -> Option<&str> {
        self.user_data.text(user_data::SET_COMMENT)
    }

    /// Whether it is a map.
    #[must_use]
    pub fn is_map(&self) -> bool {
        self.data.is_some()
    }

    /// The elements that are a range of keys, both ends included. A concatenation has one element with two keys; other
    /// sets have an element for the first key, and one for the key after the last, unless there is none after it.
    #[must_use]
    pub fn interval(&self, first: Value, last: Value) -> Vec<Element> {
        if self.flags.contains(SetFlags::CONCAT) {
            return vec![Element::new(first).with_key_end(last)];
        }
        let end = successor(&last).map(|end| Element::new(end).with_flags(ElementFlags::INTERVAL_END));
        let mut elements = vec![Element::new(first)];
        elements.extend(end);
        elements
    }

    /// What was configured, without handle and count.
    #[must_use]
    pub fn configuration(mut self) -> Self {
        self.handle = None;
        self.count = None;
        self
    }

    /// The name of an anonymous set in a message that makes it; the kernel replaces `%d`. The sets of the meters of old versions of `nft`
    /// have other names.
    pub(crate) fn template(name: &str) -> String {
        let prefix = name.trim_end_matches(|character: char| character.is_ascii_digit());
        if name.starts_with("__") && prefix != name {
            format!("{prefix}%d")
        } else {
            name.to_owned()
        }
    }
}

/// The next value of the same length in the order of the bytes.
pub(crate) fn successor(value: &Value) -> Option<Value> {
    let mut bytes = value.as_bytes().to_vec();
    for byte in bytes.iter_mut().rev() {
        let (next, is_overflow) = byte.overflowing_add(1);
        *byte = next;
        if !is_overflow {
            return Some(Value::new(&bytes));
        }
    }
    None
}

fn length(types: &[DataType]) -> u32 {
    match types {
        [one] => one.length().unwrap_or(4),
        types => types
            .iter()
            .map(|data_type| data_type.length().unwrap_or(4).next_multiple_of(4))
            .sum(),
    }
}

/// 0 for a concatenation.
fn byte_order(types: &[DataType]) -> u32 {
    match types {
        [one] if one.is_host_byte_order() => HOST_BYTE_ORDER,
        [_] => NETWORK_BYTE_ORDER,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TableKey;
    use crate::table_family::TableFamily;

    #[test]
    fn a_range_ends_with_the_key_after_the_last_one() {
        let key = TableKey::new(TableFamily::Ip, "t").set("s");
        let set = Set::new(key.clone(), &[DataType::Service]).with_intervals();
        let range = |first, last| set.interval(Value::port(first), Value::port(last));
        let end = Element::new(Value::port(256)).with_flags(ElementFlags::INTERVAL_END);
        assert_eq!(range(80, 255), [Element::new(Value::port(80)), end]);
        assert_eq!(range(80, 65_535), [Element::new(Value::port(80))]);
        let types = [DataType::Ipv4Address, DataType::Service];
        let set = Set::new(key, &types).with_intervals();
        assert_eq!((set.key_length, &*set.field_lengths), (8, &[4, 2][..]));
        assert_eq!(set.interval(Value::new(&[0; 8]), Value::new(&[9; 8])).len(), 1);
    }
}
