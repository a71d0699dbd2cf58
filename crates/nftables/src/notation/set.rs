//! Sets and elements as `nft` lists them.

// Circle of imports: elements have expressions, and rules have anonymous sets.

use super::rule::Context;
use super::value::{Quoted, duration, fields, range, value};
use crate::data_type::{DataType, DataTypes};
use crate::element::{Element, ElementFlags};
use crate::set::{HOST_BYTE_ORDER, MapData, Set, SetFlags, SetPolicy};
use crate::user_data::SET_KEY_BYTE_ORDER;
use crate::value::Value;
use crate::verdict::Data;

/// The lines of a set between its braces, without the elements.
pub(super) fn definition(set: &Set, context: &Context<'_>) -> Vec<String> {
    let data = match set.data {
        None => String::new(),
        Some(MapData::Values { types, .. }) => format!(" : {types}"),
        Some(MapData::Verdicts) => " : verdict".to_owned(),
        Some(MapData::Objects(kind)) => format!(" : {kind}"),
    };
    let mut lines = vec![format!("type {}{data}", set.key_types)];
    if set.policy == SetPolicy::Memory {
        lines.push("policy memory".to_owned());
    }
    lines.extend(set.size.map(|size| format!("size {size}")));
    let flags = [
        (SetFlags::CONSTANT, "constant"),
        (SetFlags::INTERVAL, "interval"),
        (SetFlags::EVAL, "dynamic"),
        (SetFlags::TIMEOUT, "timeout"),
    ];
    let is_printed = |flag: SetFlags| {
        // The timeout of the set implies the flag.
        set.flags.contains(flag)
            && (flag != SetFlags::TIMEOUT || set.timeout.is_none() || set.flags.contains(SetFlags::EVAL))
    };
    let flags: Vec<&str> = flags
        .iter()
        .filter(|(flag, _)| is_printed(*flag))
        .map(|(_, name)| *name)
        .collect();
    lines.extend((!flags.is_empty()).then(|| format!("flags {}", flags.join(","))));
    let expressions = set.expressions.iter();
    lines.extend(expressions.map(|expression| context.expression(expression)));
    lines.extend(
        set.timeout
            .map(|timeout| format!("timeout {}", duration(timeout))),
    );
    let interval = set.collection_interval;
    lines.extend(interval.map(|interval| format!("gc-interval {}", duration(interval))));
    lines.extend(
        set.comment()
            .map(|comment| format!("comment {}", Quoted(comment))),
    );
    lines
}

/// The elements of a set in the notation of `nft`. Ranges that the kernel has as two elements are one.
pub(super) fn elements(set: &Set, elements: &[Element], context: &Context<'_>) -> Vec<String> {
    let mut sorted: Vec<&Element> = elements.iter().collect();
    let is_pairs = set.flags.contains(SetFlags::INTERVAL) && !set.flags.contains(SetFlags::CONCAT);
    let is_end = |element: &Element| element.flags.contains(ElementFlags::INTERVAL_END);
    let types = printed_types(set);
    let is_number = types.iter().count() == 1
        && cfg!(target_endian = "little")
        && types.iter().all(|data_type| data_type.is_host_byte_order())
        && !set.flags.contains(SetFlags::INTERVAL);
    sorted.sort_by_cached_key(|element| {
        let mut key = element.key.as_bytes().to_vec();
        if is_number && element.key.len() <= 8 {
            key.reverse();
        }
        key
    });
    if is_pairs {
        // The end of a range is before the beginning of the next one.
        sorted.sort_by_key(|element| (&element.key, !is_end(element)));
    }
    let mut texts = Vec::new();
    for (index, element) in sorted.iter().enumerate() {
        if is_pairs && is_end(element) {
            continue;
        }
        let key = if element.flags.contains(ElementFlags::CATCHALL) {
            "*".to_owned()
        } else if is_pairs {
            let end = sorted.get(index + 1).filter(|next| is_end(next));
            let last = end.map_or_else(
                || Value::new(&vec![0xff; element.key.len()]),
                |end| predecessor(&end.key),
            );
            ranges(types, &element.key, &last)
        } else {
            let last = element.key_end.as_ref().unwrap_or(&element.key);
            ranges(types, &element.key, last)
        };
        texts.push(key + &attributes(set, element, context));
    }
    texts
}

/// The types of keys. A number whose byte order is that of the host, according to the user data of the set, prints as a user id does.
fn printed_types(set: &Set) -> DataTypes {
    let mut types = set.key_types.iter();
    let is_number = types.next() == Some(DataType::Integer) && types.next().is_none();
    let byte_order = set.user_data.entry(SET_KEY_BYTE_ORDER);
    if is_number && byte_order == Some(&HOST_BYTE_ORDER.to_ne_bytes()[..]) {
        DataTypes::new(&[DataType::UserId])
    } else {
        set.key_types
    }
}

fn ranges(types: DataTypes, first: &Value, last: &Value) -> String {
    let (first, last) = (fields(types, first), fields(types, last));
    let ranges: Vec<String> = first
        .iter()
        .zip(&last)
        .map(|((data_type, first), (_, last))| range(*data_type, first, last))
        .collect();
    ranges.join(" . ")
}

/// The value before this one in the order of the bytes.
fn predecessor(value: &Value) -> Value {
    let mut bytes = value.as_bytes().to_vec();
    for byte in bytes.iter_mut().rev() {
        let (next, is_underflow) = byte.overflowing_sub(1);
        *byte = next;
        if !is_underflow {
            break;
        }
    }
    Value::new(&bytes)
}

/// What follows the key of an element.
pub(super) fn attributes(set: &Set, element: &Element, context: &Context<'_>) -> String {
    let mut text = String::new();
    if let Some(timeout) = element.timeout {
        text += &format!(" timeout {}", duration(timeout));
    }
    if let Some(expiration) = element.expiration {
        text += &format!(" expires {}", duration(expiration));
    }
    for expression in &element.expressions {
        text += &format!(" {}", context.expression(expression));
    }
    if let Some(comment) = element.comment() {
        text += &format!(" comment {}", Quoted(comment));
    }
    match (&element.data, set.data) {
        (Some(Data::Value(data)), Some(MapData::Values { types, .. })) => {
            text += &format!(" : {}", value(types, data))
        }
        (Some(Data::Value(data)), _) => text += &format!(" : {data}"),
        (Some(Data::Verdict(verdict)), _) => text += &format!(" : {verdict}"),
        (None, _) => {}
    }
    if let Some(object) = &element.object {
        text += &format!(" : {}", Quoted(object));
    }
    text
}
