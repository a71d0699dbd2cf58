//! `cargo xtask check`: all checks except tests.

use std::{
    fmt,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{
    alerts, circles, conformance, import_order, imports, layers, links, metrics, package, pictures,
    public_api, shape, site, snippets, table_cells,
    tools::Tool,
    words,
    workspace::{Workspace, succeed},
};

/// Pinned, because its rules decide whether a commit passes. Newer versions may require a newer compiler.
const CARGO_DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
    asked: &["--version"],
    options: &["--no-default-features"],
    // It runs for one second only.
    is_optimised: false,
};

/// Runs all checks: dependencies between crates, imports, language, shape, documents, format, lints, documentation, each
/// published crate alone, public API, licences and duplicate versions.
///
/// `part` selects the checks with this text in their names. A failed check does not prevent the next one. False if one failed.
pub(crate) fn run(workspace: &Workspace, part: Option<&str>) -> Result<bool> {
    let mut checks = Checks {
        part: part.map(str::to_owned),
        ..Checks::default()
    };
    checks.one("dependencies between crates", || layers::check(workspace));
    checks.one("imports between modules", || imports::check(workspace));
    checks.one("circles of imports", || circles::check(workspace));
    checks.one("words to avoid", || words::check(workspace));
    checks.one("order of imports", || import_order::check(workspace));
    checks.one("files of the kernel crates", || shape::check(workspace));
    checks.one("example programs in documents", || snippets::check(workspace));
    checks.one("conformance list", || conformance::check(workspace));
    checks.one("pictures in documents", || pictures::check(workspace));
    checks.one("cells of tables", || table_cells::check(workspace));
    checks.one("links of documents", || links::check(workspace));
    checks.one("pages of the site", || site::check(workspace));
    checks.one("packages", || package::check(workspace));
    checks.one("metrics in documents", || metrics::check(workspace));
    checks.one("metrics of alerts and the dashboard", || alerts::check(workspace));
    checks.cargo(workspace, &["fmt", "--all", "--check"], &[], &[]);
    let clippy = [
        "clippy",
        "--quiet",
        "--keep-going",
        "--workspace",
        "--all-targets",
        "--all-features",
    ];
    checks.cargo(workspace, &clippy, &["--", "-D", "warnings"], &[]);
    let doc = [
        "doc",
        "--quiet",
        "--keep-going",
        "--workspace",
        "--no-deps",
        "--all-features",
    ];
    checks.cargo(workspace, &doc, &[], &[("RUSTDOCFLAGS", "-D warnings")]);
    // A crate must also compile without the features that other members of the workspace enable.
    for package in workspace.published() {
        let alone = [
            "clippy",
            "--quiet",
            "--no-default-features",
            "--package",
            package.name.as_str(),
        ];
        checks.cargo(workspace, &alone, &["--", "-D", "warnings"], &[]);
    }
    checks.one("public API", || public_api::check(workspace));
    checks.one("cargo deny", || {
        let mut deny = Command::new(CARGO_DENY.program(workspace)?);
        deny.current_dir(workspace.root())
            .args(["--workspace", "--all-features", "check"]);
        succeed(deny.args(["licenses", "bans", "sources"]))
    });
    ensure!(
        !checks.done.is_empty(),
        "no check has `{}` in its name",
        part.unwrap_or_default()
    );
    println!("\n{checks}");
    Ok(checks.failed().next().is_none())
}

/// Names, results and times of the checks so far.
#[derive(Debug, Default)]
struct Checks {
    /// Checks without this text in their names are not run.
    part: Option<String>,
    done: Vec<(String, Result<()>, Duration)>,
}

impl Checks {
    fn one(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        if self.part.as_ref().is_some_and(|part| !name.contains(part)) {
            return;
        }
        println!("== {name} ==");
        let start = Instant::now();
        let result = check();
        self.done.push((name.to_owned(), result, start.elapsed()));
    }

    fn cargo(&mut self, workspace: &Workspace, named: &[&str], more: &[&str], environment: &[(&str, &str)]) {
        self.one(&format!("cargo {}", named.join(" ")), || {
            succeed(
                workspace
                    .cargo()
                    .args(named)
                    .args(more)
                    .envs(environment.iter().copied()),
            )
        });
    }

    fn failed(&self) -> impl Iterator<Item = &str> {
        self.done
            .iter()
            .filter(|(_, result, _)| result.is_err())
            .map(|(name, _, _)| name.as_str())
    }
}

impl fmt::Display for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, result, time) in &self.done {
            let outcome = if result.is_ok() { "good" } else { "FAILED" };
            writeln!(f, "{outcome:<6} {:>6.1} s  {name}", time.as_secs_f64())?;
        }
        // A failure that printed nothing itself, such as a missing program, is printed here.
        for (_, result, _) in &self.done {
            if let Err(error) = result {
                writeln!(f, "FAILED: {error:#}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failed_check_the_next_one_runs() {
        let mut checks = Checks::default();
        checks.one("first", || anyhow::bail!("first problem"));
        checks.one("second", || Ok(()));
        assert_eq!(checks.failed().collect::<Vec<_>>(), ["first"]);
        let text = checks.to_string();
        assert!(
            text.contains("FAILED: first problem") && text.contains("good"),
            "{text}"
        );
    }
}
