//! A tree of values as a typed object, with every type error of the object.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::error::FieldError;

/// How many type errors of one object are reported. Each one costs another pass over the object.
const MAX_TYPE_ERRORS: usize = 16;

/// The longest quotation of an invalid value, in characters.
const MAX_REASON: usize = 240;

/// Reads an object. Fields of a wrong type are reported and left out, so that the other fields can be checked. `None` if nothing is
/// left.
pub(crate) fn read<T: DeserializeOwned>(mut value: Value) -> (Option<T>, Vec<FieldError>) {
    let mut errors: Vec<FieldError> = Vec::new();
    // The path is tracked only if there is an error: that costs an allocation per field.
    if let Ok(read) = T::deserialize(&value) {
        return (Some(read), errors);
    }
    for _ in 0..MAX_TYPE_ERRORS {
        let error = match serde_path_to_error::deserialize(&value) {
            Ok(read) => return (Some(read), errors),
            Err(error) => error,
        };
        let field = describe(error.path());
        // An item of a list that was reset to null is invalid again.
        if errors.iter().all(|known| known.field != field) {
            let reason = shortened(&error.inner().to_string());
            errors.push(FieldError { field, reason });
        }
        if !reset(&mut value, error.path()) {
            break;
        }
    }
    (None, errors)
}

/// Sets the value at a path to null, or the nearest value around it that is not null yet. False if only the whole is left.
fn reset(value: &mut Value, path: &Path) -> bool {
    let segments: Vec<&Segment> = path.iter().collect();
    for length in (1..=segments.len()).rev() {
        let path = segments.get(..length).unwrap_or_default();
        if let Some(found) = find(value, path)
            && !found.is_null()
        {
            *found = Value::Null;
            return true;
        }
    }
    false
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
