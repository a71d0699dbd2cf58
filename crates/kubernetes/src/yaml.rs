//! One YAML or JSON document as a tree of values, with limits on its size in memory.

use serde_json::Value;
use serde_saphyr::Error;
use serde_saphyr::budget::BudgetBreach;

/// The most levels of a YAML document. Kubernetes objects have about ten.
const MAX_DEPTH: usize = 64;

/// The most nodes that the aliases of a document may stand for together. `kubectl` writes no aliases.
const MAX_ALIASED_NODES: usize = 100_000;

/// Reads one document. `None` if it is empty. The error is a line of the document, counted from 0, and a reason.
pub(crate) fn parse(text: &str) -> Result<Option<Value>, (usize, String)> {
    // A directive (`%YAML 1.2`) stands before the marker of its document.
    let significant = |line: &str| {
        let line = line.trim_start_matches('\u{feff}');
        !line.trim().is_empty() && !line.trim_start().starts_with('#') && !line.starts_with('%')
    };
    if !text.lines().any(significant) {
        return Ok(None);
    }
    // JSON is YAML too, but a JSON parser is several times faster.
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

/// As [`parse`], also for JSON values that follow each other without a marker, as two calls of `kubectl get -o json` print them. Each
/// value has its line in the text, counted from 0. An invalid value does not affect those before it.
#[cfg(feature = "manifest")]
pub(crate) fn parse_all(text: &str) -> Vec<(usize, Result<Value, String>)> {
    match parse(text) {
        Ok(None) => Vec::new(),
        Ok(Some(value)) => vec![(0, Ok(value))],
        Err((line, reason)) => json_values(text).unwrap_or_else(|| vec![(line, Err(reason))]),
    }
}

/// The JSON objects and lists of a text that begins with one, up to the first invalid value. `None` if it begins otherwise.
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
                values.push((line, Err("expected an object".to_owned())));
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
            let text = text.lines().next().unwrap_or("not YAML");
            // The position counts from the beginning of the document; the caller adds that in the file.
            let reason = text.split_once(" at line ").map_or(text, |(reason, _)| reason);
            // Advice to programmers who call the parser.
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
        BudgetBreach::Depth { .. } => format!("nests deeper than {MAX_DEPTH} levels"),
        BudgetBreach::Events { .. } | BudgetBreach::Nodes { .. } => {
            "has more parts than a text of this length may have".to_owned()
        }
        BudgetBreach::Aliases { .. }
        | BudgetBreach::Anchors { .. }
        | BudgetBreach::AliasAnchorRatio { .. }
        | BudgetBreach::MergeKeys { .. } => "has too many anchors, aliases or merge keys".to_owned(),
        BudgetBreach::ScalarBytes { .. } => "holds more text than its length, by aliases".to_owned(),
        _ => "costs more to read than a manifest should".to_owned(),
    }
}
