//! Example programs in documents: each is the text of a file that is compiled and run.
//!
//! A code block after the line `<!-- examples/NAME.rs -->` shows this file of the workspace: the lines between two lines
//! `// snippet`, or the file without its leading documentation (`//!`) if it has none.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{self, Workspace};

/// Fails if a document shows another text than the file has.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut wrong = Vec::new();
    update(workspace.root(), |file, _| {
        wrong.push(file.display().to_string());
        Ok(())
    })?;
    if wrong.is_empty() {
        return Ok(());
    }
    bail!(
        "example programs differ from their files; run `cargo xtask fix`\n  {}",
        wrong.join("\n  ")
    )
}

/// Writes the current text of the files to all documents.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    update(root, |file, text| {
        println!("{}", file.display());
        fs::write(root.join(file), text).with_context(|| format!("writing {}", file.display()))
    })
}

/// Calls `change` for each document below `root` that is out of date, with its new text.
fn update(root: &Path, mut change: impl FnMut(&Path, &str) -> Result<()>) -> Result<()> {
    let read = |file: &str| fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"));
    for file in workspace::files(root, &["md"])? {
        let old = read(&file.to_string_lossy())?;
        let new = updated(&old, &read).with_context(|| file.display().to_string())?;
        if new != old {
            change(&file, &new)?;
        }
    }
    Ok(())
}

/// A document with the current text of the files that it shows.
fn updated(document: &str, read: &dyn Fn(&str) -> Result<String>) -> Result<String> {
    let mut text = String::new();
    let mut lines = document.split_inclusive('\n');
    while let Some(line) = lines.next() {
        text.push_str(line);
        let Some(file) = named(line) else {
            continue;
        };
        let fence = lines.next().unwrap_or_default();
        ensure!(
            fence.starts_with("```"),
            "no code block after the line <!-- {file} -->"
        );
        let is_closed = lines.by_ref().any(|line| line.trim_end() == "```");
        ensure!(is_closed, "the code block of {file} has no end");
        text.push_str(fence);
        text.push_str(&snippet(&read(file)?).with_context(|| file.to_owned())?);
        text.push_str("```\n");
    }
    Ok(text)
}

/// The file in a line `<!-- examples/NAME.rs -->`.
fn named(line: &str) -> Option<&str> {
    let name = line.trim_end().strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    (name.ends_with(".rs") && !name.contains(' ')).then_some(name)
}

/// The part of a file that documents show.
fn snippet(source: &str) -> Result<String> {
    let mut parts = source.split_inclusive('\n').collect::<Vec<_>>();
    let marks: Vec<_> = (0..parts.len())
        .filter(|&index| parts[index].trim() == "// snippet")
        .collect();
    match marks[..] {
        [] => {
            let code = parts
                .iter()
                .skip_while(|line| line.starts_with("//!") || line.trim().is_empty());
            return Ok(code.copied().collect());
        }
        [first, last] => parts = parts[first + 1..last].to_vec(),
        _ => bail!("{} lines `// snippet`; expected none or two", marks.len()),
    }
    let indented = parts.iter().filter(|line| !line.trim().is_empty());
    let indent = indented
        .map(|line| line.len() - line.trim_start().len())
        .min()
        .unwrap_or_default();
    Ok(parts
        .iter()
        .map(|line| line.get(indent..).unwrap_or("\n"))
        .collect())
}

/// A document with other text between two lines.
pub(crate) fn between(document: &str, begin: &str, end: &str, text: &str) -> Result<String> {
    let (before, rest) = document
        .split_once(begin)
        .with_context(|| format!("no line {begin}"))?;
    let (_, after) = rest.split_once(end).with_context(|| format!("no line {end}"))?;
    Ok(format!("{before}{begin}\n\n{text}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(document: &str) -> Result<String> {
        updated(document, &|file| match file {
            "examples/list.rs" => Ok("//! Lists.\nfn main() {}\n".to_owned()),
            "examples/part.rs" => {
                Ok("fn main() {\n    // snippet\n    one();\n\n    two();\n    // snippet\n}\n".to_owned())
            }
            "examples/broken.rs" => Ok("// snippet\n".to_owned()),
            _ => bail!("no such file"),
        })
    }

    #[test]
    fn a_whole_file_and_a_part_are_shown() {
        let document = "Text\n<!-- examples/list.rs -->\n```rust\nold\n```\nmore\n<!-- examples/part.rs -->\n```rust,no_run\n```\n";
        let new = update(document).unwrap();
        assert_eq!(
            new,
            "Text\n<!-- examples/list.rs -->\n```rust\nfn main() {}\n```\nmore\n\
             <!-- examples/part.rs -->\n```rust,no_run\none();\n\ntwo();\n```\n"
        );
        assert_eq!(update(&new).unwrap(), new);
    }

    #[test]
    fn other_comments_and_code_blocks_are_left_alone() {
        let document = "<!-- a comment -->\n```rust\nfn f() {}\n```\nthe end";
        assert_eq!(update(document).unwrap(), document);
    }

    #[test]
    fn what_cannot_be_shown_is_an_error() {
        for document in [
            "<!-- examples/list.rs -->\n\n```rust\n```\n",
            "<!-- examples/list.rs -->\n```rust\n",
            "<!-- examples/none.rs -->\n```rust\n```\n",
            "<!-- examples/broken.rs -->\n```rust\n```\n",
        ] {
            assert!(update(document).is_err(), "{document}");
        }
    }

    #[test]
    fn text_between_two_lines_is_replaced() {
        let document = "a\n<!-- b -->\n\nold\n\n<!-- e -->\nz\n";
        let new = between(document, "<!-- b -->", "<!-- e -->", "new\n").unwrap();
        assert_eq!(new, "a\n<!-- b -->\n\nnew\n\n<!-- e -->\nz\n");
        assert!(between("a", "<!-- b -->", "<!-- e -->", "new\n").is_err());
    }
}
