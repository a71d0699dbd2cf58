//! A tree of values as a typed object, with every type error of the object.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::error::FieldError;

/// How many type errors of one object are reported. Each one costs another pass over the object.
const MAX_TYPE_ERRORS: usize = 16;

/// The longest quotation of an invalid value, in characters.
const MAX_REASON: usize = 240;

/// Reads an object. A field of a wrong type is reported and removed from the value, so that the other fields can be checked. `None`
/// if nothing is left.
pub(crate) fn read<T: DeserializeOwned>(value: &mut Value) -> (Option<T>, Vec<FieldError>) {
    // The path is tracked only if there is an error: that costs an allocation per field.
    if let Ok(read) = T::deserialize(&*value) {
        return (Some(read), Vec::new());
    }
    remove_nulls(value);
    let mut errors: Vec<FieldError> = Vec::new();
    for _ in 0..MAX_TYPE_ERRORS {
        let error = match serde_path_to_error::deserialize(&*value) {
            Ok(read) => return (Some(read), errors),
            Err(error) => error,
        };
        let field = describe(error.path());
        // An item of a list that was set to null may be invalid again.
        if errors.iter().all(|known| known.field != field) {
            let reason = wrong_time(value, error.path());
            let reason = reason.unwrap_or_else(|| error.inner().to_string());
            errors.push(FieldError {
                field,
                reason: shortened(&reason),
            });
        }
        if !remove(value, error.path()) {
            break;
        }
    }
    (None, errors)
}

/// Reads an object, or its default for null. Derived code alone would read a list as an object too.
pub(crate) fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    struct Visitor<T>(PhantomData<T>);

    impl<'de, T: Default + Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<T, E> {
            Ok(T::default())
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_any(Visitor(PhantomData))
}

/// Removes fields that are null. The API server takes such a field as absent, also where serde does not.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Removes the field at a path, or sets the item of a list to null. If it is null already, does so with the value around it. False
/// if only the whole is left.
fn remove(value: &mut Value, path: &Path) -> bool {
    let segments: Vec<&Segment> = path.iter().collect();
    for length in (0..segments.len()).rev() {
        let (parents, rest) = segments.split_at(length);
        let is_removed = match (find(value, parents), rest.first()) {
            (Some(Value::Object(fields)), Some(Segment::Map { key })) => fields.remove(key).is_some(),
            (Some(Value::Array(items)), Some(Segment::Seq { index })) => {
                items.get_mut(*index).is_some_and(|item| !item.take().is_null())
            }
            _ => false,
        };
        if is_removed {
            return true;
        }
    }
    false
}

/// The reason if the field is a time with a text that is none. The time library names neither the text nor the format.
fn wrong_time(value: &mut Value, path: &Path) -> Option<String> {
    let segments: Vec<&Segment> = path.iter().collect();
    let Some(Segment::Map { key }) = segments.last() else {
        return None;
    };
    let is_time = ["time", "Time", "Timestamp"].iter().any(|end| key.ends_with(end));
    let text = find(value, &segments)?.as_str().filter(|_| is_time)?;
    Some(format!("{text:?} is not a time such as 2026-01-01T00:00:00Z"))
}

fn find<'a>(value: &'a mut Value, path: &[&Segment]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Seq { index } => value.get_mut(*index),
        Segment::Map { key } => value.get_mut(key),
        _ => None,
    })
}

/// `spec.ports[0].port`; empty for the whole.
fn describe(path: &Path) -> String {
    if path.iter().next().is_none() {
        return String::new();
    }
    path.to_string()
}

/// The reason without the middle of a long value.
fn shortened(reason: &str) -> String {
    let length = reason.chars().count();
    if length <= MAX_REASON {
        return reason.to_owned();
    }
    let kept = MAX_REASON / 2;
    let start: String = reason.chars().take(kept).collect();
    let end: String = reason.chars().skip(length - kept).collect();
    format!("{start}…{end}")
}
