//! Whether the links of Markdown files to files of this repository lead to files and headings that exist.
//!
//! The README of a published crate is also its page on crates.io and docs.rs, where a relative link leads nowhere: it has links to the
//! repository's address, and these are checked in the same way.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    prose::outside_fences,
    workspace::{Workspace, files},
};

/// The address of the files of the repository.
const REPOSITORY: &str = "https://github.com/kernlink/kernlink/blob/main/";
/// The address of the documentation of crates.
const DOCUMENTATION: &str = "https://docs.rs/";

/// Fails with every link to this repository whose file, or whose heading in a Markdown file, does not exist, with every link to the
/// documentation of a crate of the workspace that is not published, and with every relative link in the README of a published crate.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let mut problems = Vec::new();
    let mut links = 0;
    let mut known = BTreeMap::new();
    let crates: Vec<_> = workspace
        .published()
        .iter()
        .map(|package| package.name.to_string())
        .collect();
    let mut pages = Vec::new();
    for package in workspace.published() {
        let manifest = package.manifest_path.as_std_path();
        pages.extend(
            package
                .readme
                .iter()
                .map(|readme| manifest.with_file_name(readme)),
        );
    }
    for relative in files(root, &["md"])? {
        let path = root.join(&relative);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let name = relative.display();
        for (line, target) in targets(&text) {
            links += 1;
            let problem = if let Some(of_repository) = target.strip_prefix(REPOSITORY) {
                problem(&root.join("README.md"), of_repository, &mut known)?
            } else if let Some(of_crate) = target.strip_prefix(DOCUMENTATION) {
                problem_of_crate(of_crate, &crates)
            } else if pages.contains(&path) && !target.starts_with('#') {
                Some(format!(
                    "`{target}` is relative, and leads nowhere on docs.rs; expected {REPOSITORY}..."
                ))
            } else {
                problem(&path, &target, &mut known)?
            };
            if let Some(problem) = problem {
                problems.push(format!("{name}:{line}: {problem}"));
            }
        }
    }
    ensure!(links > 0, "no link was found");
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

/// What is wrong with the part of a link after [`DOCUMENTATION`].
fn problem_of_crate(target: &str, crates: &[String]) -> Option<String> {
    let name = target.split(['/', '#']).next().unwrap_or_default();
    let is_missing = name.starts_with("kernlink") && crates.iter().all(|published| published != name);
    is_missing.then(|| format!("`{DOCUMENTATION}{target}`: there is no published crate {name}"))
}

/// The targets of the links of a text that are checked, with the number of the line. Code is left out. `[name]` alone is a link of rustdoc, which
/// checks it.
pub(crate) fn targets(text: &str) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (number, line) in outside_fences(text) {
        // A code block without a fence.
        if line.starts_with("    ") {
            continue;
        }
        let line = without_code(line);
        if let Some(target) = definition(&line) {
            targets.push((number, target.to_owned()));
        }
        for part in line.split("](").skip(1) {
            let target = part.split([')', ' ']).next().unwrap_or_default();
            targets.push((number, target.trim_matches(['<', '>']).to_owned()));
        }
    }
    targets.retain(|(_, target)| {
        is_relative(target) || target.starts_with(REPOSITORY) || target.starts_with(DOCUMENTATION)
    });
    targets
}

/// `[name]: TARGET`.
fn definition(line: &str) -> Option<&str> {
    let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
    (!name.contains(']')).then(|| target.trim())
}

/// A line without the text between backticks, in which brackets are no links.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Whether a target is a path. Items of rustdoc contain `::`, or are no file names.
fn is_relative(target: &str) -> bool {
    let is_other = target.contains("://") || target.starts_with("mailto:") || target.contains("::");
    let path = target.split('#').next().unwrap_or_default();
    !target.is_empty() && !is_other && (path.is_empty() || path.contains(['/', '.']))
}

/// What is wrong with a target in a file. `known` has the headings of the files that were read.
fn problem(
    file: &Path,
    target: &str,
    known: &mut BTreeMap<PathBuf, BTreeSet<String>>,
) -> Result<Option<String>> {
    let (path, heading) = match target.split_once('#') {
        Some((path, heading)) => (path, Some(heading)),
        None => (target, None),
    };
    let folder = file.parent().unwrap_or(Path::new("."));
    let path = if path.is_empty() {
        file.to_owned()
    } else {
        folder.join(path)
    };
    if !path.exists() {
        return Ok(Some(format!("`{target}` does not exist")));
    }
    let Some(heading) = heading.filter(|_| path.extension().is_some_and(|extension| extension == "md"))
    else {
        return Ok(None);
    };
    if !known.contains_key(&path) {
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        known.insert(path.clone(), headings(&text));
    }
    let exists = known
        .get(&path)
        .is_some_and(|headings| headings.contains(heading));
    Ok((!exists).then(|| format!("`{target}`: there is no such heading")))
}

/// The anchors of the headings of a text, as GitHub makes them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in outside_fences(text) {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if !(1..=6).contains(&level) || !title.starts_with(' ') {
            continue;
        }
        let anchor = anchor(title.trim());
        let free = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(free);
        let new = free.into_iter().find(|anchor| !anchors.contains(anchor));
        anchors.extend(new);
    }
    anchors
}

fn anchor(title: &str) -> String {
    title
        .to_lowercase()
        .chars()
        .filter_map(|letter| match letter {
            ' ' => Some('-'),
            letter if letter.is_alphanumeric() || matches!(letter, '-' | '_') => Some(letter),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_outside_of_code_are_found() {
        let text = "[a](a.md) and [b](../b.md#c), `[c](c.md)`\n```\n[d](d.md)\n```\n    [e](e.md)\n\
                    [web](https://example.org/x.md) [item](Type::method) [item](Type)\n[f]: f.md\n[g](#g) ![h](h.svg \"h\")\n";
        let expected = [
            (1, "a.md"),
            (1, "../b.md#c"),
            (7, "f.md"),
            (8, "#g"),
            (8, "h.svg"),
        ];
        assert_eq!(
            targets(text),
            expected.map(|(line, target)| (line, target.to_owned()))
        );
    }

    #[test]
    fn links_to_the_repository_and_to_documentation_are_found() {
        let text = "[a](https://github.com/kernlink/kernlink/blob/main/a.md#b) [c](https://docs.rs/kernlink-c) [d](https://d.org/)";
        let expected = [
            "https://github.com/kernlink/kernlink/blob/main/a.md#b",
            "https://docs.rs/kernlink-c",
        ];
        assert_eq!(targets(text), expected.map(|target| (1, target.to_owned())));
        let crates = ["kernlink-ipvs".to_owned()];
        assert_eq!(
            problem_of_crate("kernlink-ipvs/latest/kernlink_ipvs/", &crates),
            None
        );
        assert_eq!(problem_of_crate("tokio", &crates), None);
        assert_eq!(
            problem_of_crate("kernlink-agent", &crates).unwrap(),
            "`https://docs.rs/kernlink-agent`: there is no published crate kernlink-agent"
        );
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# One Two\n## `kernlink-agent`: what, why?\n```\n# code\n```\n## One two\n#no\n";
        let expected = ["one-two", "kernlink-agent-what-why", "one-two-1"];
        assert_eq!(headings(text), expected.map(str::to_owned).into());
    }

    #[test]
    fn files_and_headings_that_do_not_exist_are_named() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let file = root.join("docs/agent.md");
        let of = |target: &str| problem(&file, target, &mut BTreeMap::new()).unwrap();
        assert_eq!(of("../README.md"), None);
        assert_eq!(of("agent.md#the-mode"), None);
        assert_eq!(of("#the-mode"), None);
        assert_eq!(of("missing.md").unwrap(), "`missing.md` does not exist");
        assert_eq!(
            of("agent.md#missing").unwrap(),
            "`agent.md#missing`: there is no such heading"
        );
    }
}
