//! Whether `docs/metrics.md` has the metrics of the code, and no others.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{Workspace, files};

/// The page with all metrics.
pub(crate) const PAGE: &str = "docs/metrics.md";
/// What the names of metrics begin with.
const PREFIXES: [&str; 5] = [
    "kernlink_",
    "kubeproxy_",
    "rest_client_",
    "kubernetes_",
    "process_",
];
/// How the names of metrics of a process end.
const PROCESS_SUFFIXES: [&str; 6] = ["_total", "_seconds", "_info", "_bytes", "_fds", "_threads"];

/// Fails with every metric of the code that the page does not have, and every one of the page that the code does not have.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("reading {PAGE}"))?;
    let documented = documented(&page);
    let mut code = BTreeSet::new();
    let folder = root.join("crates");
    for relative in files(&folder, &["rs"])? {
        if relative.iter().any(|part| part == "src") {
            let path = folder.join(relative);
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            code.extend(names(&text));
        }
    }
    let is_crate = |name: &str| {
        let folder = name.trim_start_matches("kernlink_").replace('_', "-");
        root.join("crates").join(folder).is_dir()
    };
    ensure!(!code.is_empty(), "no metric was found in the code");
    let missing = code
        .iter()
        .filter(|name| !is_crate(name) && !documented.iter().any(|known| matches(name, known)))
        .map(|name| format!("{PAGE}: the metric `{name}` of the code is missing"));
    let unknown = documented
        .iter()
        .filter(|known| !code.iter().any(|name| matches(name, known)))
        .map(|known| format!("{PAGE}: the code has no metric `{known}`"));
    let problems: Vec<String> = missing.chain(unknown).collect();
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

/// The metrics of the page: the first cells of rows.
fn documented(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// The names of metrics in string literals of a file of Rust, without its tests. `{name}` of a format is kept.
fn names(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    // What follows a quotation mark: the beginning of a literal, or the text after one.
    let parts = code.split('"').skip(1);
    parts
        .filter(|text| PREFIXES.iter().any(|prefix| text.starts_with(prefix)))
        .filter(|text| {
            let is_name = |letter: char| {
                letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_{}".contains(letter)
            };
            text.chars().all(is_name)
        })
        // In the files about a process, other strings begin like this too.
        .filter(|text| {
            !text.starts_with("process_") || PROCESS_SUFFIXES.iter().any(|suffix| text.ends_with(suffix))
        })
        .map(str::to_owned)
        .collect()
}

/// Whether a name of the code, perhaps with `{}`, is this name.
fn matches(code: &str, name: &str) -> bool {
    match (code.split_once('{'), code.split_once('}')) {
        (Some((start, _)), Some((_, end))) => {
            name.len() > start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
        _ => code == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_literals_outside_of_tests() {
        let text = "page.gauge(\"kernlink_a\", \"kernlink_a is text\");\nformat!(\"kernlink_{name}_total\")\n\
                    \"process_of_other\" \"process_open_fds\"\n#[cfg(test)]\nmod tests {\n\"kernlink_b\"";
        let expected = ["kernlink_a", "kernlink_{name}_total", "process_open_fds"];
        assert_eq!(names(text), expected.map(str::to_owned).into());
    }

    #[test]
    fn a_format_matches_the_names_that_it_makes() {
        assert!(matches("kernlink_{name}_total", "kernlink_opened_total"));
        assert!(!matches("kernlink_{name}_total", "kernlink_total"));
        assert!(!matches("kernlink_{name}_total", "kubeproxy_a_total"));
        assert!(matches("kernlink_a", "kernlink_a") && !matches("kernlink_a", "kernlink_ab"));
    }

    #[test]
    fn the_rows_of_the_page_begin_with_names() {
        let page = "text `kernlink_x`\n| metric | type |\n| `kernlink_a` | gauge | `kernlink_b` |\n";
        assert_eq!(documented(page), ["kernlink_a".to_owned()].into());
    }
}
