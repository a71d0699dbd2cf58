//! Sets and elements as `nft` lists them.

// Circle of imports: elements have expressions, and rules have anonymous sets.

use super::form::Form;
use super::rule::Context;
use super::value::{Quoted, duration, prefix_length};
use super::{stateful, type_of};
use crate::data_type::{DataType, DataTypes};
use crate::element::{Element, ElementFlags};
use crate::names::Names;
use crate::set::{HOST_BYTE_ORDER, MapData, Set, SetFlags, SetPolicy};
use crate::user_data::{SET_DATA_BYTE_ORDER, SET_KEY_BYTE_ORDER};
use crate::value::Value;
use crate::verdict::Data;

/// The lines of a set between its braces, without the elements.
pub(super) fn definition(set: &Set, context: &Context<'_>) -> Vec<String> {
    let mut lines = vec![declaration(set)];
    // The size of a constant set is the number of its elements.
    if !set.flags.contains(SetFlags::CONSTANT) {
        lines.extend((set.policy == SetPolicy::Memory).then(|| "policy memory".to_owned()));
        lines.extend(set.size.map(|size| format!("size {size}")));
    }
    let names = [
        (SetFlags::CONSTANT, "constant"),
        (SetFlags::EVAL, "dynamic"),
        (SetFlags::INTERVAL, "interval"),
        (SetFlags::TIMEOUT, "timeout"),
    ];
    let flags = names.iter().filter(|(flag, _)| set.flags.contains(*flag));
    let flags: Vec<&str> = flags.map(|(_, name)| *name).collect();
    // The timeout of the set implies the flag if it is the only one.
    let is_implied = flags == ["timeout"] && set.timeout.is_some();
    lines.extend((!flags.is_empty() && !is_implied).then(|| format!("flags {}", flags.join(","))));
    let expressions = set.expressions.iter();
    let expressions: Vec<String> = expressions
        .map(|expression| {
            stateful::without_state(expression).unwrap_or_else(|| context.expression(expression))
        })
        .collect();
    lines.extend((!expressions.is_empty()).then(|| expressions.join(" ")));
    lines.extend(set.has_auto_merge().then(|| "auto-merge".to_owned()));
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

/// The types of keys and data, or what they are values of.
fn declaration(set: &Set) -> String {
    let declaration = type_of::declaration(set);
    let keyword = if declaration.is_some() { "typeof" } else { "type" };
    let key = declaration.as_ref().map_or_else(
        || set.key_types.to_string(),
        |declaration| type_of::text(&declaration.key),
    );
    let data = match set.data {
        None => return format!("{keyword} {key}"),
        Some(MapData::Values { types, .. }) => declaration
            .and_then(|declaration| declaration.data)
            .map_or_else(|| types.to_string(), |data| type_of::text(&data)),
        Some(MapData::Verdicts) => "verdict".to_owned(),
        Some(MapData::Objects(kind)) => kind.to_string(),
    };
    let interval = if set.has_data_intervals() { "interval " } else { "" };
    format!("{keyword} {key} : {interval}{data}")
}

/// The elements of a set in the notation of `nft`. Ranges that the kernel has as two elements are one.
///
/// The forms are those of the fields that the keys are compared with; otherwise those of the types of the set are taken.
pub(super) fn elements(
    set: &Set,
    elements: &[Element],
    context: &Context<'_>,
    forms: Option<&[Form]>,
) -> Vec<String> {
    let mut sorted: Vec<&Element> = elements.iter().collect();
    let is_pairs = set.flags.contains(SetFlags::INTERVAL) && !set.flags.contains(SetFlags::CONCAT);
    let is_end = |element: &Element| element.flags.contains(ElementFlags::INTERVAL_END);
    let forms = key_forms(set, forms);
    let is_number = forms.len() == 1
        && cfg!(target_endian = "little")
        && forms.iter().all(|form| form.is_host)
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
    sorted.sort_by_key(|element| element.flags.contains(ElementFlags::CATCHALL));
    let mut texts = Vec::new();
    for (index, element) in sorted.iter().enumerate() {
        if is_pairs && is_end(element) {
            continue;
        }
        let key = if element.flags.contains(ElementFlags::CATCHALL) {
            "*".to_owned()
        } else if is_pairs {
            // A range ends before the next element, which may be the first one of another range.
            let next = sorted.get(index + 1).filter(|next| next.key > element.key);
            let last = next.map_or_else(
                || Value::new(&vec![0xff; element.key.len()]),
                |next| predecessor(&next.key),
            );
            ranges(&forms, element.key.as_bytes(), last.as_bytes(), context.names)
        } else {
            let last = element.key_end.as_ref().unwrap_or(&element.key);
            ranges(&forms, element.key.as_bytes(), last.as_bytes(), context.names)
        };
        texts.push(key + &attributes(set, element, context));
    }
    texts
}

/// How the fields of keys are written.
pub(super) fn key_forms(set: &Set, forms: Option<&[Form]>) -> Vec<Form> {
    match forms {
        Some(forms) => forms.to_vec(),
        None => {
            let mut forms = match type_of::declaration(set) {
                Some(declaration) => type_of::forms(&declaration.key),
                None => type_forms(set, set.key_types, SET_KEY_BYTE_ORDER),
            };
            // Ranges are in the byte order of the network, as the kernel compares them.
            if set.flags.contains(SetFlags::INTERVAL) {
                for form in &mut forms {
                    form.is_host = false;
                }
            }
            forms
        }
    }
}

/// How the fields of the data of a map of these types are written.
pub(super) fn data_forms(set: &Set, types: DataTypes) -> Vec<Form> {
    let declared = type_of::declaration(set).and_then(|declaration| declaration.data);
    match declared {
        Some(data) => type_of::forms(&data),
        None => type_forms(set, types, SET_DATA_BYTE_ORDER),
    }
}

/// How values of these types are written. The byte order of a number is in the user data of the set.
fn type_forms(set: &Set, types: DataTypes, entry: u8) -> Vec<Form> {
    let types: Vec<DataType> = types.iter().collect();
    let is_host = set.user_data.entry(entry) == Some(&HOST_BYTE_ORDER.to_ne_bytes()[..]);
    match *types {
        [DataType::Integer] if is_host => vec![Form::host_number()],
        [] => vec![Form::raw()],
        _ => types.iter().map(|data_type| Form::of(*data_type)).collect(),
    }
}

/// The bytes of each field.
fn split<'a>(forms: &[Form], value: &'a [u8]) -> Vec<&'a [u8]> {
    if forms.len() <= 1 {
        return vec![value];
    }
    let mut rest = value;
    let mut fields = Vec::new();
    for form in forms {
        let length = form.bytes() as usize;
        let Some(field) = rest.get(..length) else { break };
        fields.push(field);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    fields
}

fn ranges(forms: &[Form], first: &[u8], last: &[u8], names: &Names) -> String {
    let (first, last) = (split(forms, first), split(forms, last));
    let ranges: Vec<String> = forms
        .iter()
        .zip(first.iter().zip(&last))
        .map(|(form, (first, last))| element_text(&range_text(form, first, last, names), form))
        .collect();
    ranges.join(" . ")
}

/// The flags of an element have no commas between them, because elements have.
fn element_text(text: &str, form: &Form) -> String {
    if form.is_flags() {
        text.replace(',', " | ")
    } else {
        text.to_owned()
    }
}

/// A range of one field: a prefix if it is one.
pub(super) fn range_text(form: &Form, first: &[u8], last: &[u8], names: &Names) -> String {
    if first == last {
        return form.named_text(first, names);
    }
    if form.data_type == DataType::InterfaceName
        && let Some(beginning) = beginning(first, last)
    {
        return form.text(beginning);
    }
    if form.has_prefixes()
        && let Some(length) = prefix_length(first, last)
    {
        return format!("{}/{length}", form.text(first));
    }
    format!("{}-{}", form.end_text(first, names), form.end_text(last, names))
}

/// What all names of a range begin with, if these are all such names.
fn beginning<'a>(first: &'a [u8], last: &[u8]) -> Option<&'a [u8]> {
    let length = first.iter().position(|byte| *byte == 0)?;
    let (name, rest) = first.split_at(length);
    let (same, ends) = last.split_at_checked(length)?;
    let is_all = rest.iter().all(|byte| *byte == 0) && ends.iter().all(|byte| *byte == 0xff);
    (name == same && is_all).then_some(name)
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
            let forms = data_forms(set, types);
            let bytes = data.as_bytes();
            let length: usize = match *forms {
                [form] if form.length > 0 => form.length as usize,
                [form] => form.data_type.length().unwrap_or(0) as usize,
                _ => forms
                    .iter()
                    .map(|form| form.bytes().next_multiple_of(4) as usize)
                    .sum(),
            };
            // The data of a map for address translation may be ranges; one of a single address is a prefix.
            text += " : ";
            text += &match (bytes.split_at_checked(length), forms.as_slice()) {
                (Some((first, last)), [form]) if length > 0 && first == last && form.has_prefixes() => {
                    format!("{}/{}", form.text(first), 8 * length)
                }
                (Some((first, last)), _) if length > 0 && first.len() == last.len() => {
                    ranges(&forms, first, last, context.names)
                }
                _ => ranges(&forms, bytes, bytes, context.names),
            };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_printed_as_a_prefix_if_it_is_one() {
        let form = Form::of(DataType::Ipv4Address);
        let range = |first: [u8; 4], last: [u8; 4]| range_text(&form, &first, &last, &Names::new());
        assert_eq!(range([10, 0, 0, 0], [10, 255, 255, 255]), "10.0.0.0/8");
        assert_eq!(range([10, 0, 4, 0], [10, 0, 7, 255]), "10.0.4.0/22");
        assert_eq!(range([10, 0, 4, 0], [10, 0, 9, 255]), "10.0.4.0-10.0.9.255");
        assert_eq!(range([10, 0, 4, 1], [10, 0, 4, 1]), "10.0.4.1");
        assert_eq!(range([0, 0, 0, 0], [255, 255, 255, 255]), "0.0.0.0/0");
        let form = Form::of(DataType::InterfaceName);
        let range = |first: &[u8; 8], last: &[u8; 8]| range_text(&form, first, last, &Names::new());
        assert_eq!(range(b"eth\0\0\0\0\0", b"eth\xff\xff\xff\xff\xff"), "\"eth*\"");
    }
}
