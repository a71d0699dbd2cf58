//! The order of the imports at the top of each module: `std`, other crates, this crate, with a blank line between them.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, bail};
use proc_macro2::Span;
use syn::{Item, ItemUse, UseTree, Visibility};

use crate::workspace::{self, Workspace};

/// Fails with every module whose imports are in another order.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let wrong = unsorted(workspace.root(), |_, _| Ok(()))?;
    if wrong.is_empty() {
        return Ok(());
    }
    bail!(
        "imports in the wrong order or groups; `cargo xtask fix` sorts those that are not below other items\n  {}",
        wrong.join("\n  ")
    )
}

/// Sorts all imports and formats the files of the workspace.
pub(crate) fn fix(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    unsorted(root, |file, text| {
        println!("{}", file.display());
        fs::write(root.join(file), text).with_context(|| format!("writing {}", file.display()))
    })?;
    workspace::succeed(workspace.cargo().args(["fmt", "--all"]))?;
    // The fuzz targets are a workspace of their own.
    workspace::succeed(
        workspace
            .cargo()
            .args(["fmt", "--manifest-path", "fuzz/Cargo.toml"]),
    )
}

/// The places with a wrong order. `change` gets each such file, relative to `root`, with its sorted text.
fn unsorted(root: &Path, change: impl Fn(&Path, &str) -> Result<()>) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for file in workspace::files(root, &["rs"])? {
        let text =
            fs::read_to_string(root.join(&file)).with_context(|| format!("reading {}", file.display()))?;
        let found = Imports::read(&text).with_context(|| format!("parsing {}", file.display()))?;
        let lines = found.wrong.iter();
        wrong.extend(lines.map(|(line, what)| format!("{}:{line}: {what}", file.display())));
        if found.sorted != text {
            change(&file, &found.sorted)?;
        }
    }
    Ok(wrong)
}

/// The groups, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Std,
    OtherCrates,
    ThisCrate,
}

/// What was found in one file.
struct Imports {
    /// Lines and what is wrong there.
    wrong: Vec<(usize, &'static str)>,
    /// The text with sorted imports.
    sorted: String,
}

/// An import with the comments and attributes before it, by line numbers from 1, both included.
struct Import {
    first: usize,
    last: usize,
    group: Group,
    is_re_export: bool,
}

impl Imports {
    fn read(text: &str) -> Result<Self> {
        let file = syn::parse_file(text)?;
        let lines: Vec<_> = text.lines().collect();
        let mut reader = Reader {
            lines: &lines,
            wrong: Vec::new(),
            blocks: Vec::new(),
        };
        reader.module(&file.items);
        let mut sorted: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        // From the end, so that the numbers of earlier lines stay valid.
        reader
            .blocks
            .sort_by_key(|block| block.first().map(|import| import.first));
        for block in reader.blocks.iter().rev() {
            let (Some(first), Some(last)) = (block.first(), block.last()) else {
                continue;
            };
            sorted.splice(first.first - 1..last.last, rearranged(block, &lines));
        }
        let mut sorted = sorted.join("\n");
        if text.ends_with('\n') {
            sorted.push('\n');
        }
        reader.wrong.sort_unstable();
        Ok(Self {
            wrong: reader.wrong,
            sorted,
        })
    }
}

struct Reader<'a> {
    lines: &'a [&'a str],
    wrong: Vec<(usize, &'static str)>,
    /// The blocks in the wrong order. A block is imports with nothing else between them.
    blocks: Vec<Vec<Import>>,
}

impl Reader<'_> {
    fn module(&mut self, items: &[Item]) {
        let own: BTreeSet<_> = items.iter().filter_map(defined).collect();
        let mut block: Vec<Import> = Vec::new();
        let mut blocks = 0;
        let mut is_after_code = false;
        // The last block ends with the module.
        for item in items.iter().map(Some).chain([None]) {
            if let Some(Item::Use(import)) = item {
                block.push(self.import(import, &own));
                continue;
            }
            let block = without_outer_re_exports(std::mem::take(&mut block));
            if let Some(first) = block.first() {
                blocks += 1;
                if is_after_code {
                    self.wrong.push((first.first, "an import after other items"));
                } else if blocks > 1 {
                    self.wrong.push((first.first, "a second block of imports"));
                }
            }
            self.end_block(block);
            match item {
                Some(Item::Mod(module)) => {
                    if let Some((_, items)) = &module.content {
                        is_after_code = true;
                        self.module(items);
                    }
                }
                // Macros may have to precede what they are used in.
                Some(Item::Use(_) | Item::ExternCrate(_) | Item::Macro(_)) | None => {}
                Some(_) => is_after_code = true,
            }
        }
    }

    fn import(&self, import: &ItemUse, own: &BTreeSet<String>) -> Import {
        let first_line = import
            .attrs
            .first()
            .map_or(import.use_token.span, |attribute| attribute.pound_token.span);
        let mut first = line(first_line);
        while first > 1
            && self
                .lines
                .get(first - 2)
                .is_some_and(|line| line.trim_start().starts_with("// "))
        {
            first -= 1;
        }
        let last = import.semi_token.span.end().line;
        Import {
            first,
            last,
            group: group(import, own),
            is_re_export: !matches!(import.vis, Visibility::Inherited),
        }
    }

    fn end_block(&mut self, block: Vec<Import>) {
        let (Some(first), Some(last)) = (block.first(), block.last()) else {
            return;
        };
        let sorted = rearranged(&block, self.lines);
        let (start, end) = (first.first - 1, last.last);
        let difference = self.lines[start..end]
            .iter()
            .zip(&sorted)
            .position(|(is, should_be)| is != should_be);
        if difference.is_some() || sorted.len() != end - start {
            let line = first.first + difference.unwrap_or_default();
            self.wrong.push((
                line,
                "std, other crates, this crate: one group each, with a blank line between them",
            ));
            self.blocks.push(block);
        }
    }
}

/// A block without the re-exports before its first import and after its last one. Those may have an order of their own.
fn without_outer_re_exports(mut block: Vec<Import>) -> Vec<Import> {
    let imports = |import: &Import| !import.is_re_export;
    block.truncate(block.iter().rposition(imports).map_or(0, |last| last + 1));
    let first = block.iter().position(imports).unwrap_or_default();
    block.split_off(first)
}

/// The lines of a block with one group after the other.
fn rearranged(block: &[Import], lines: &[&str]) -> Vec<String> {
    let mut sorted = Vec::new();
    for group in [Group::Std, Group::OtherCrates, Group::ThisCrate] {
        let members: Vec<_> = block.iter().filter(|import| import.group == group).collect();
        if !members.is_empty() && !sorted.is_empty() {
            sorted.push(String::new());
        }
        for import in members {
            let text = &lines[import.first - 1..import.last];
            sorted.extend(text.iter().map(|&line| line.to_owned()));
        }
    }
    sorted
}

fn group(import: &ItemUse, own: &BTreeSet<String>) -> Group {
    let first = match &import.tree {
        UseTree::Path(path) => path.ident.to_string(),
        UseTree::Name(name) => name.ident.to_string(),
        UseTree::Rename(rename) => rename.ident.to_string(),
        UseTree::Glob(_) | UseTree::Group(_) => String::new(),
    };
    match first.as_str() {
        "crate" | "self" | "super" => Group::ThisCrate,
        name if import.leading_colon.is_none() && own.contains(name) => Group::ThisCrate,
        "std" | "core" | "alloc" => Group::Std,
        _ => Group::OtherCrates,
    }
}

/// The names in a module that an import can begin with.
fn defined(item: &Item) -> Option<String> {
    match item {
        Item::Mod(item) => Some(item.ident.to_string()),
        Item::Enum(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

fn line(span: Span) -> usize {
    span.start().line
}

#[cfg(test)]
mod tests {
    use super::*;

    const SORTED: &str = "\
//! Text.

mod own;

use std::{
    fs,
    io,
};

// Why.
#[cfg(test)]
use anyhow::Result;
use kernlink_ipvs::Client;

use self::own::A;
use crate::B;

pub use own::C;

fn f() {}

mod tests {
    use std::io;

    use super::*;
}
";

    #[test]
    fn sorted_imports_are_accepted() {
        let imports = Imports::read(SORTED).unwrap();
        assert_eq!(imports.wrong, []);
        assert_eq!(imports.sorted, SORTED);
    }

    #[test]
    fn re_exports_between_imports_belong_to_their_groups() {
        let sorted =
            "use a::A;\n\npub use self::b::B;\nuse crate::C;\n\npub use self::d::D;\n\npub use e::E;\n";
        assert_eq!(Imports::read(sorted).unwrap().wrong, []);
        let text = "use crate::C;\n\npub use self::b::B;\nuse crate::D;\n";
        let imports = Imports::read(text).unwrap();
        assert_eq!(imports.wrong.len(), 1);
        assert_eq!(
            imports.sorted,
            "use crate::C;\npub use self::b::B;\nuse crate::D;\n"
        );
    }

    #[test]
    fn unsorted_imports_are_reported_and_sorted() {
        let text = "use b::B;\nuse crate::{\n    C,\n};\n// Why.\nuse std::io;\n\nuse a::A;\nuse own::D;\nmod own {}\n";
        let imports = Imports::read(text).unwrap();
        let lines: Vec<_> = imports.wrong.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1]);
        assert_eq!(
            imports.sorted,
            "// Why.\nuse std::io;\n\nuse b::B;\nuse a::A;\n\nuse crate::{\n    C,\n};\nuse own::D;\nmod own {}\n"
        );
        assert_eq!(Imports::read(&imports.sorted).unwrap().wrong, []);
    }

    #[test]
    fn blank_lines_inside_a_group_and_missing_ones_between_groups_are_reported() {
        let wrong = |text: &str| Imports::read(text).unwrap().wrong.len();
        assert_eq!(wrong("use std::io;\n\nuse std::fs;\n"), 1);
        assert_eq!(wrong("use std::io;\nuse a::A;\n"), 1);
        assert_eq!(wrong("mod tests {\n    use super::*;\n    use std::io;\n}\n"), 1);
    }

    #[test]
    fn imports_in_several_places_are_reported() {
        let wrong = |text: &str| Imports::read(text).unwrap().wrong;
        assert_eq!(
            wrong("use std::io;\nmod a;\nuse a::A;\n"),
            [(3, "a second block of imports")]
        );
        assert_eq!(
            wrong("fn f() {}\nuse std::io;\n"),
            [(2, "an import after other items")]
        );
    }
}
