//! Deserialization of a tree of values that collects all type errors.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::error::FieldError;
use crate::type_error;

/// The largest number of type errors that are reported for one object. Each one costs another pass over the object.
const MAX_TYPE_ERRORS: usize = 16;

/// The largest length of a reason, in characters. It contains the invalid value.
const MAX_REASON: usize = 240;

/// Deserializes an object. A field of a wrong type is reported and removed from the value, so that the other fields can be checked.
/// `None` if the value as a whole has a wrong type, or too many fields have.
pub(crate) fn from_value<T: DeserializeOwned>(value: &mut Value) -> (Option<T>, Vec<FieldError>) {
    // The path is tracked only after an error, because tracking costs an allocation per field.
    if let Ok(object) = T::deserialize(&*value) {
        return (Some(object), Vec::new());
    }
    remove_nulls(value);
    let mut errors: Vec<FieldError> = Vec::new();
    for _ in 0..MAX_TYPE_ERRORS {
        let error = match serde_path_to_error::deserialize(&*value) {
            Ok(object) => return (Some(object), errors),
            Err(error) => error,
        };
        let field = field_path(error.path());
        // An item of a list that was replaced by null may be invalid again.
        if errors.iter().all(|known| known.field != field) {
            let reason = invalid_time(value, error.path());
            let reason = reason.unwrap_or_else(|| type_error::plain(&error.inner().to_string()));
            errors.push(FieldError {
                field,
                reason: shorten(&reason),
            });
        }
        if !remove(value, error.path()) {
            break;
        }
    }
    (None, errors)
}

/// Deserializes an object, or its default from null. Unlike derived code, it does not accept a list.
pub(crate) fn object_or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
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

/// Removes fields that are null. The API server treats them as absent; serde does not in all cases.
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

/// Removes the field at a path, or replaces the item of a list by null. If that has no effect, does the same with the value that
/// contains it. False if no value but the whole is left.
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

/// The reason if the field is a time with an invalid text. The message of the time library has neither the text nor the format.
fn invalid_time(value: &mut Value, path: &Path) -> Option<String> {
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

/// `spec.ports[0].port`; empty for the object as a whole.
fn field_path(path: &Path) -> String {
    if path.iter().next().is_none() {
        return String::new();
    }
    path.to_string()
}

/// Replaces the middle of a long reason by an ellipsis.
fn shorten(reason: &str) -> String {
    let length = reason.chars().count();
    if length <= MAX_REASON {
        return reason.to_owned();
    }
    let kept = MAX_REASON / 2;
    let start: String = reason.chars().take(kept).collect();
    let end: String = reason.chars().skip(length - kept).collect();
    format!("{start}…{end}")
}
