//! One YAML or JSON document as a tree, with limits on what it may cost.

use serde_json::Value;
use serde_saphyr::Error;
use serde_saphyr::budget::BudgetBreach;

/// How deep a document may nest; Kubernetes objects need about ten levels.
const MAX_DEPTH: usize = 64;

/// How many nodes the aliases of a document may stand for together; `kubectl` writes none.
const MAX_ALIASED_NODES: usize = 100_000;

/// Reads one document; `None` if there is nothing in it. The error is a line within the document, from 0, and a reason.
pub(crate) fn parse(text: &str) -> Result<Option<Value>, (usize, String)> {
    let significant = text
        .lines()
        .any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    if !significant {
        return Ok(None);
    }
    // JSON is YAML too, but its own parser is several times faster on the megabytes a cluster prints.
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

/// What is wrong with a document, on one line.
fn reason(error: &Error) -> String {
    match error {
        Error::AliasError { error, .. } => reason(error),
        Error::Budget { breach, .. } => over_budget(breach),
        _ => {
            let said = error.to_string();
            let said = said.lines().next().unwrap_or("not YAML");
            // Lines are counted from the beginning of the document there; whoever reads this has the whole file.
            let reason = said.split_once(" at line ").map_or(said, |(reason, _)| reason);
            // The parser's words to programmers.
            let reason = reason
                .split_once(", set DuplicateKeyPolicy")
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
