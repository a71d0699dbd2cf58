//! Whether the tests and scenarios exist that `docs/conformance.md` names.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    upstream_e2e::{BEGIN, END},
    workspace::Workspace,
};

const LIST: &str = "docs/conformance.md";
const SCENARIOS: &str = "crates/proxier/tests/scenarios/desired";

/// Fails with every test and scenario of the list that does not exist, and every row without one or a reason.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let list = fs::read_to_string(root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    let mut problems = Vec::new();
    let mut rows = 0;
    for (number, line) in (1..).zip(without_results(&list)) {
        let names: Vec<Name<'_>> = quoted(line).filter_map(Name::parse).collect();
        if is_row(line) {
            rows += 1;
            if names.is_empty() && !line.contains("no test: ") {
                problems.push(format!(
                    "{LIST}:{number}: expected a test, or `no test: ` and the reason"
                ));
            }
        }
        for name in names {
            if !name.exists(root)? {
                problems.push(format!("{LIST}:{number}: {name:?} does not exist"));
            }
        }
    }
    ensure!(rows > 0, "{LIST}: no row was found");
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

/// The lines of the list. The table of results, whose rows name tests of Kubernetes only, has empty lines instead.
fn without_results(list: &str) -> impl Iterator<Item = &str> {
    let mut is_result = false;
    list.lines().map(move |line| {
        is_result = (is_result || line == BEGIN.trim_end()) && line != END.trim_end();
        if is_result { "" } else { line }
    })
}

/// What a row names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name<'a> {
    /// `FILE.rs::TEST`.
    Test { file: &'a str, test: &'a str },
    /// `NAME.txt`.
    Scenario(&'a str),
}

impl<'a> Name<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        match text.split_once(".rs::") {
            Some((file, test)) => Some(Self::Test { file, test }),
            None => text.ends_with(".txt").then_some(Self::Scenario(text)),
        }
    }

    fn exists(self, root: &Path) -> Result<bool> {
        match self {
            Self::Scenario(name) => Ok(root.join(SCENARIOS).join(name).is_file()),
            Self::Test { file, test } => {
                let path = root.join(format!("{file}.rs"));
                if !path.is_file() {
                    return Ok(false);
                }
                let text =
                    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                Ok(text.contains(&format!("fn {test}(")))
            }
        }
    }
}

/// The first columns of the tables.
const HEADERS: [&str; 2] = ["| test of Kubernetes |", "| defect of kube-proxy |"];

/// Whether a line is a row with a test or a defect, which must have a test of this repository.
fn is_row(line: &str) -> bool {
    line.starts_with("| ") && !HEADERS.iter().any(|header| line.starts_with(header))
}

/// The texts in backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_scenarios_are_found_in_a_row() {
        let row = "| should work | `a/b.rs::it_works`; `a/c.rs::scenarios`: `one.txt`, `x` |";
        assert!(is_row(row));
        let names: Vec<_> = quoted(row).filter_map(Name::parse).collect();
        let test = |file, test| Name::Test { file, test };
        assert_eq!(
            names,
            [
                test("a/b", "it_works"),
                test("a/c", "scenarios"),
                Name::Scenario("one.txt")
            ]
        );
        assert!(!is_row("| defect of kube-proxy | kernlink |"));
        assert!(!is_row("|---|---|") && !is_row("| test of Kubernetes | kernlink |") && !is_row("text"));
    }

    #[test]
    fn the_table_of_results_is_left_out() {
        let list = format!("| a | b |\n{BEGIN}| c | d |\n{END}| e | f |\n");
        let rows: Vec<_> = without_results(&list).collect();
        assert_eq!(rows, ["| a | b |", "", "", END.trim_end(), "| e | f |"]);
    }

    #[test]
    fn a_test_exists_if_its_file_defines_it() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let exists = |file, test| Name::Test { file, test }.exists(root).unwrap();
        assert!(exists("src/conformance", "a_test_exists_if_its_file_defines_it"));
        assert!(!exists("src/conformance", "a_test_that_is_missing"));
        assert!(!exists("src/missing", "check"));
        let workspace = root.parent().unwrap();
        assert!(Name::Scenario("hairpin.txt").exists(workspace).unwrap());
        assert!(!Name::Scenario("missing.txt").exists(workspace).unwrap());
    }
}
