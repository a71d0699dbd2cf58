//! The pictures of the documents, as SVG: written by `cargo xtask fix`, and equal to what it would write.

mod crates;
mod graph;
mod packets;
mod svg;
mod sync;
mod times;

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{
    figures::Documented,
    workspace::{Workspace, files},
};

/// The folder of the pictures.
const FOLDER: &str = "docs/pictures";
const FIGURES: &str = "docs/benchmarks.md";

/// Fails if a picture is not the current one, or names something that the sources do not contain.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut problems = problems_of_names(workspace.root(), &named())?;
    for (name, text) in drawn(workspace)? {
        let file = format!("{FOLDER}/{name}");
        let old = fs::read_to_string(workspace.root().join(&file)).unwrap_or_default();
        if old != text {
            problems.push(format!("{file} is out of date: run `cargo xtask fix`"));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

/// Writes the pictures that are not the current ones.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let folder = workspace.root().join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("creating {FOLDER}"))?;
    for (name, text) in drawn(workspace)? {
        let path = folder.join(name);
        if fs::read_to_string(&path).unwrap_or_default() != text {
            println!("{FOLDER}/{name}");
            fs::write(&path, text).with_context(|| format!("writing {FOLDER}/{name}"))?;
        }
    }
    Ok(())
}

/// The pictures by the names of their files.
fn drawn(workspace: &Workspace) -> Result<[(&'static str, String); 4]> {
    let figures =
        fs::read_to_string(workspace.root().join(FIGURES)).with_context(|| format!("reading {FIGURES}"))?;
    let figures = Documented::parse(&figures).context(FIGURES)?;
    Ok([
        ("crates.svg", crates::draw(&workspace.metadata)?),
        ("packets.svg", packets::draw()),
        ("sync.svg", sync::draw()),
        ("times.svg", times::draw(&figures).context(FIGURES)?),
    ])
}

/// What pictures name in backquotes, with the folder of the sources that must contain it.
fn named() -> Vec<(&'static str, String)> {
    let mut named = packets::named();
    named.extend(sync::named());
    named
}

/// The texts in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn problems_of_names(root: &Path, named: &[(&str, String)]) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut folders: Vec<&str> = named.iter().map(|(folder, _)| *folder).collect();
    folders.sort_unstable();
    folders.dedup();
    for folder in folders {
        let mut sources = String::new();
        for file in files(&root.join(folder), &["rs"])? {
            let path = root.join(folder).join(file);
            sources += &fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        }
        let of_folder = named.iter().filter(|(of, _)| *of == folder);
        problems.extend(
            of_folder
                .filter(|(_, name)| !sources.contains(name.as_str()))
                .map(|(_, name)| format!("a picture names `{name}`, which {folder} does not contain")),
        );
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_sources_do_not_contain_are_reported() {
        let root = std::env::temp_dir().join(format!("xtask-pictures-{}", std::process::id()));
        fs::create_dir_all(root.join("a/src")).unwrap();
        fs::write(root.join("a/src/lib.rs"), "const A: &str = \"KUBE-A\";").unwrap();
        let named = [("a/src", "KUBE-A".to_owned()), ("a/src", "KUBE-B".to_owned())];
        assert_eq!(
            problems_of_names(&root, &named).unwrap(),
            ["a picture names `KUBE-B`, which a/src does not contain"]
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn texts_in_backquotes_are_names() {
        assert_eq!(quoted("a `b` c `d`").collect::<Vec<_>>(), ["b", "d"]);
    }
}
