//! Parsing of a YAML or JSON document to a tree of values, with limits on its size in memory.

use serde_json::Value;
use serde_saphyr::Error;
use serde_saphyr::budget::BudgetBreach;

/// The largest number of levels of a YAML document. Kubernetes objects have about ten.
const MAX_DEPTH: usize = 64;

/// The largest number of nodes to which all aliases of a document expand. `kubectl` writes no aliases.
const MAX_ALIASED_NODES: usize = 100_000;

/// Parses one document. `None` if it is empty. The error is a line of the document, counted from 0, and a reason.
pub(crate) fn parse(text: &str) -> Result<Option<Value>, (usize, String)> {
    // A directive (`%YAML 1.2`) is before the marker of its document, so it is not content.
    let significant = |line: &str| {
        let line = line.trim_start_matches('\u{feff}');
        !line.trim().is_empty() && !line.trim_start().starts_with('#') && !line.starts_with('%')
    };
    if !text.lines().any(significant) {
        return Ok(None);
    }
    // JSON is also valid YAML, but the JSON parser is several times faster.
    if text.trim_start().starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(Some(value));
    }
    let limit = text.len().max(1_000);
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: limit,
            max_nodes: limit,
            max_total_scalar_bytes: limit.saturating_mul(2),
            max_depth: MAX_DEPTH,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED_NODES,
        },
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Value>(text, options) {
        Ok(Value::Null) => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            let line = error.location().map_or(0, |location| {
                usize::try_from(location.line()).unwrap_or(1).saturating_sub(1)
            });
            Err((line, reason(&error)))
        }
    }
}

/// As [`parse`], but also accepts several JSON values without markers, as two calls of `kubectl get -o json` print them. Returns each
/// value with its line in the text, counted from 0. An invalid value does not affect those before it.
#[cfg(feature = "manifest")]
pub(crate) fn parse_all(text: &str) -> Vec<(usize, Result<Value, String>)> {
    match parse(text) {
        Ok(None) => Vec::new(),
        Ok(Some(value)) => vec![(0, Ok(value))],
        Err((line, reason)) => json_values(text).unwrap_or_else(|| vec![(line, Err(reason))]),
    }
}

/// The JSON objects and lists of a text, up to the first invalid value. `None` if the text does not begin with a JSON object or list.
#[cfg(feature = "manifest")]
fn json_values(text: &str) -> Option<Vec<(usize, Result<Value, String>)>> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut values = Vec::new();
    let (mut line, mut counted) = (0, 0);
    loop {
        let begin = text.len() - text.get(stream.byte_offset()..)?.trim_start().len();
        line += text.get(counted..begin)?.matches('\n').count();
        counted = begin;
        match stream.next() {
            None => return Some(values),
            Some(Ok(value @ (Value::Object(_) | Value::Array(_)))) => values.push((line, Ok(value))),
            Some(_) if values.is_empty() => return None,
            Some(Ok(_)) => {
                values.push((line, Err("expected an object or a list".to_owned())));
                return Some(values);
            }
            Some(Err(error)) => {
                let text = error.to_string();
                let reason = text.split_once(" at line ").map_or(&*text, |(reason, _)| reason);
                values.push((error.line().saturating_sub(1), Err(reason.to_owned())));
                return Some(values);
            }
        }
    }
}

/// The reason of an error, without its position, on one line.
fn reason(error: &Error) -> String {
    match error {
        Error::AliasError { error, .. } => reason(error),
        Error::Budget { breach, .. } => over_budget(breach),
        _ => {
            let text = error.to_string();
            let text = text.lines().next().unwrap_or("invalid YAML");
            // The position is relative to the document; the caller adds the line of the file.
            let reason = text.split_once(" at line ").map_or(text, |(reason, _)| reason);
            // Removes advice to users of the parser's API.
            let reason = reason
                .split_once(", set DuplicateKeyPolicy")
                .or_else(|| reason.split_once("; use from_str"))
                .or_else(|| reason.split_once(" by the configured policy"))
                .map_or(reason, |(reason, _)| reason);
            reason.to_owned()
        }
    }
}

fn over_budget(breach: &BudgetBreach) -> String {
    match breach {
        BudgetBreach::Depth { .. } => format!("more than {MAX_DEPTH} nested levels"),
        BudgetBreach::Events { .. } | BudgetBreach::Nodes { .. } => {
            "more values than expected for a text of this length".to_owned()
        }
        BudgetBreach::Aliases { .. }
        | BudgetBreach::Anchors { .. }
        | BudgetBreach::AliasAnchorRatio { .. }
        | BudgetBreach::MergeKeys { .. } => "too many anchors, aliases or merge keys".to_owned(),
        BudgetBreach::ScalarBytes { .. } => {
            "aliases expand to more text than twice the length of the document".to_owned()
        }
        _ => "exceeds a limit on the size of a document".to_owned(),
    }
}
