//! `cargo xtask site`: the documents of `docs` as a site with search, by mdbook.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

use crate::{
    links, step,
    tools::Tool,
    workspace::{Workspace, files},
};

const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    asked: &["--version"],
    // Without a server for the site.
    options: &["--no-default-features", "--features", "search"],
    is_optimised: false,
};
const DOCUMENTS: &str = "docs";
const SETTINGS: &str = "book.toml";
/// The order of the pages.
const SUMMARY: &str = "SUMMARY.md";
/// Where the files are to which the site links, but which are not part of it.
const REPOSITORY: &str = "https://github.com/kernlink/kernlink/blob/main";

/// Fails if a document of `docs` is not a page of the site, or a page is no document.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let folder = workspace.root().join(DOCUMENTS);
    let summary = fs::read_to_string(folder.join(SUMMARY)).context("reading docs/SUMMARY.md")?;
    let documents = files(&folder, &["md"])?;
    let documents = documents.into_iter().map(|file| file.display().to_string());
    let documents: Vec<String> = documents.filter(|file| file != SUMMARY).collect();
    let problems = problems_of_summary(&pages(&summary), &documents);
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{DOCUMENTS}/{SUMMARY}: {}", problems.join("\n"))
}

/// Builds the site, and checks its links. Returns its first page.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    check(workspace)?;
    let root = workspace.root();
    let folder = workspace.target().join("site");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let (source, html) = (folder.join("source"), folder.join("html"));
    copy(&root.join(DOCUMENTS), &source)?;
    let settings = fs::read_to_string(root.join(SETTINGS)).with_context(|| format!("reading {SETTINGS}"))?;
    let settings = with_source(&settings).with_context(|| SETTINGS.to_owned())?;
    fs::write(folder.join(SETTINGS), settings).with_context(|| format!("writing {SETTINGS}"))?;
    step::succeed_in_group(
        Command::new(MDBOOK.program(workspace)?)
            .current_dir(&folder)
            .args(["build", "--dest-dir"])
            .arg(&html),
    )?;
    let problems = problems_of_site(&html)?;
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(html.join("index.html"))
}

/// The settings for a copy of the documents in the folder `source`.
fn with_source(settings: &str) -> Result<String> {
    let line = format!("src = \"{DOCUMENTS}\"\n");
    ensure!(settings.contains(&line), "no line `{}`", line.trim());
    Ok(settings.replace(&line, "src = \"source\"\n"))
}

/// The targets of the links of the summary, in order.
fn pages(summary: &str) -> Vec<String> {
    let targets = links::targets(summary).into_iter();
    targets.map(|(_, target)| target).collect()
}

fn problems_of_summary(pages: &[String], documents: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for page in pages {
        if !documents.contains(page) {
            problems.push(format!("`{page}` is not a document of {DOCUMENTS}"));
        }
        if !seen.insert(page) {
            problems.push(format!("`{page}` is there twice"));
        }
    }
    let missing = documents.iter().filter(|document| !seen.contains(document));
    problems.extend(missing.map(|document| format!("`{document}` is missing")));
    problems
}

/// Copies the documents. Links to files that are not documents lead to the repository.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let path = entry?.path();
        let target = to.join(path.file_name().context("a file without a name")?);
        if path.is_dir() {
            copy(&path, &target)?;
            continue;
        }
        fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            fs::write(&target, to_repository(&text))
                .with_context(|| format!("writing {}", target.display()))?;
        } else {
            fs::copy(&path, &target).with_context(|| format!("copying {}", path.display()))?;
        }
    }
    Ok(())
}

/// The text of a document in which links that leave the folder of the documents lead to the repository.
fn to_repository(text: &str) -> String {
    let mut of_lines: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (line, target) in links::targets(text) {
        if target.starts_with("../") {
            of_lines.entry(line).or_default().push(target);
        }
    }
    let mut copied = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut line = line.to_owned();
        for target in of_lines.get(&number).into_iter().flatten() {
            let path = target.trim_start_matches("../");
            for (before, after) in [("](", ")"), ("](", " "), ("]: ", "")] {
                let link = format!("{before}{target}{after}");
                line = line.replace(&link, &format!("{before}{REPOSITORY}/{path}{after}"));
            }
        }
        copied += &line;
        copied.push('\n');
    }
    copied
}

/// Links of pages to files or places of the site that do not exist, and what else it lacks.
fn problems_of_site(html: &Path) -> Result<Vec<String>> {
    // Their links are made from those of the pages.
    let derived = ["404.html", "print.html", "toc.html"];
    let mut pages = BTreeMap::new();
    for file in files(html, &["html"])? {
        let text =
            fs::read_to_string(html.join(&file)).with_context(|| format!("reading {}", file.display()))?;
        pages.insert(file, text);
    }
    let link = Regex::new(r#"<(?:a|img|link|script)\b[^>]*?\b(?:href|src)="([^"]+)""#)?;
    let id = Regex::new(r#"\bid="([^"]+)""#)?;
    let ids: BTreeMap<&Path, BTreeSet<&str>> = pages
        .iter()
        .map(|(file, text)| {
            let ids = id.captures_iter(text).filter_map(|found| found.get(1));
            (file.as_path(), ids.map(|id| id.as_str()).collect())
        })
        .collect();
    let mut problems = Vec::new();
    let mut links = 0;
    for (file, text) in &pages {
        if derived.iter().any(|name| file == Path::new(name)) {
            continue;
        }
        for found in link.captures_iter(text) {
            let target = &found[1];
            if target.contains("://") || target.starts_with("mailto:") || target.starts_with("data:") {
                continue;
            }
            links += 1;
            let (path, place) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() {
                file.clone()
            } else {
                normal(&file.parent().unwrap_or(Path::new("")).join(path))
            };
            let exists = match ids.get(path.as_path()) {
                Some(ids) => place.is_empty() || ids.contains(place),
                None => html.join(&path).is_file(),
            };
            if !exists {
                problems.push(format!(
                    "{}: `{target}` does not exist in the site",
                    file.display()
                ));
            }
        }
    }
    ensure!(links > 0, "the site has no link");
    let has_index = fs::read_dir(html)?.flatten().any(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("searchindex")
    });
    if !has_index {
        problems.push("the site has no index for the search".to_owned());
    }
    problems.sort();
    problems.dedup();
    Ok(problems)
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_that_are_no_pages_and_pages_that_are_no_documents_are_named() {
        let strings = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let pages = pages("# Summary\n\n[A](a.md)\n\n- [B](b.md)\n- [B](b.md)\n- [C](c.md)\n");
        assert_eq!(pages, ["a.md", "b.md", "b.md", "c.md"]);
        let problems = problems_of_summary(&pages, &strings(&["a.md", "b.md", "d.md"]));
        let expected = [
            "`b.md` is there twice",
            "`c.md` is not a document of docs",
            "`d.md` is missing",
        ];
        assert_eq!(problems, expected);
        assert_eq!(
            problems_of_summary(&strings(&["a.md"]), &strings(&["a.md"])),
            [""; 0]
        );
    }

    #[test]
    fn the_settings_are_those_of_the_repository_for_a_copy() {
        let settings = "[book]\ntitle = \"a\"\nsrc = \"docs\"\n";
        let expected = "[book]\ntitle = \"a\"\nsrc = \"source\"\n";
        assert_eq!(with_source(settings).unwrap(), expected);
        assert!(with_source(expected).is_err());
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert!(with_source(&fs::read_to_string(root.join(SETTINGS)).unwrap()).is_ok());
    }

    #[test]
    fn links_that_leave_the_documents_lead_to_the_repository() {
        let text = "[a](../README.md#b) and [c](c.md), `[d](../d.md)`\n\n    [e](../e.md)\n[f]: ../f.md\n";
        let expected = format!(
            "[a]({REPOSITORY}/README.md#b) and [c](c.md), `[d](../d.md)`\n\n    [e](../e.md)\n[f]: {REPOSITORY}/f.md\n"
        );
        assert_eq!(to_repository(text), expected);
    }

    #[test]
    fn links_of_a_site_that_lead_nowhere_are_named() {
        let folder = std::env::temp_dir().join(format!("xtask-site-{}", std::process::id()));
        fs::create_dir_all(folder.join("css")).unwrap();
        fs::write(folder.join("css/a.css"), "").unwrap();
        let page = r##"<link rel="stylesheet" href="css/a.css"><h2 id="here">x</h2><a href="#here"></a> <a class="header" href="#gone"></a>
            <a href="b.html#there"></a><a href="b.html#gone"></a><a href="c.html"></a><a href="https://example.org/d.html"></a>"##;
        fs::write(folder.join("a.html"), page).unwrap();
        fs::write(folder.join("b.html"), r#"<h2 id="there">x</h2>"#).unwrap();
        let expected = [
            "a.html: `#gone` does not exist in the site",
            "a.html: `b.html#gone` does not exist in the site",
            "a.html: `c.html` does not exist in the site",
            "the site has no index for the search",
        ];
        assert_eq!(problems_of_site(&folder).unwrap(), expected);
        fs::write(folder.join("searchindex-12.js"), "").unwrap();
        assert_eq!(problems_of_site(&folder).unwrap(), expected[..3]);
        fs::remove_dir_all(folder).unwrap();
    }
}
