//! The files of the kernel crates: the same in all of them, so that a reader of one finds the way in the others.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{snippets::between, workspace::Workspace};

/// The folders below `crates/`.
pub(crate) const CRATES: [&str; 6] = [
    "ipvs",
    "ipset",
    "iptables-restore",
    "dummylink",
    "conntrack",
    "nftables",
];

/// The files that each of them has in `src/`, in the order of the table, without `.rs`.
const FILES: [&str; 9] = [
    "lib",
    "operation",
    "uapi",
    "wire",
    "client",
    "error",
    "fake",
    "contract",
    "forward",
];

const DOCUMENT: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- Written by `cargo xtask fix`, printed by `cargo xtask shape`. -->";
const END: &str = "<!-- End of the table. -->";

/// Fails if a crate lacks one of the files, or the table in the document is not the current one.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let shapes = read(workspace.root())?;
    let mut problems = missing(&shapes);
    let document = document(workspace)?;
    if between(&document, BEGIN, END, &table(&shapes)).context(DOCUMENT)? != document {
        problems.push(format!(
            "the table in {DOCUMENT} is out of date: run `cargo xtask fix`"
        ));
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

/// Prints the table.
pub(crate) fn print(workspace: &Workspace) -> Result<()> {
    print!("{}", table(&read(workspace.root())?));
    Ok(())
}

/// Writes the table to the document.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let old = document(workspace)?;
    let new = between(&old, BEGIN, END, &table(&read(workspace.root())?)).context(DOCUMENT)?;
    if new != old {
        println!("{DOCUMENT}");
        fs::write(workspace.root().join(DOCUMENT), new).with_context(|| format!("writing {DOCUMENT}"))?;
    }
    Ok(())
}

fn document(workspace: &Workspace) -> Result<String> {
    fs::read_to_string(workspace.root().join(DOCUMENT)).with_context(|| format!("reading {DOCUMENT}"))
}

/// What one crate has in `src/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    /// Names of files without `.rs`. A folder is the module of the same name.
    files: BTreeSet<String>,
    /// The first public trait in `client.rs`.
    kernel_api: Option<String>,
}

fn read(root: &Path) -> Result<Vec<Shape>> {
    CRATES.into_iter().map(|name| Shape::read(root, name)).collect()
}

impl Shape {
    fn read(root: &Path, name: &'static str) -> Result<Self> {
        let folder = root.join("crates").join(name).join("src");
        let mut files = BTreeSet::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            files.insert(name.strip_suffix(".rs").unwrap_or(&name).to_owned());
        }
        let client = fs::read_to_string(folder.join("client.rs")).unwrap_or_default();
        Ok(Self {
            name,
            files,
            kernel_api: public_trait(&client),
        })
    }

    fn cell(&self, file: &str) -> String {
        match &self.kernel_api {
            _ if !self.files.contains(file) => "missing".to_owned(),
            Some(name) if file == "client" => format!("yes: `{name}`"),
            None if file == "client" => "yes, without a trait".to_owned(),
            _ => "yes".to_owned(),
        }
    }

    fn others(&self) -> String {
        let others = self.files.iter().filter(|file| !FILES.contains(&file.as_str()));
        others
            .map(|file| format!("`{file}`"))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

fn public_trait(source: &str) -> Option<String> {
    let rest = source.lines().find_map(|line| line.strip_prefix("pub trait "))?;
    let end = rest
        .find(|character: char| !character.is_alphanumeric())
        .unwrap_or(rest.len());
    Some(rest[..end].to_owned())
}

fn missing(shapes: &[Shape]) -> Vec<String> {
    let mut problems = Vec::new();
    for shape in shapes {
        for file in FILES.iter().filter(|&&file| !shape.files.contains(file)) {
            problems.push(format!("crates/{} has no src/{file}.rs", shape.name));
        }
        if shape.files.contains("client") && shape.kernel_api.is_none() {
            problems.push(format!(
                "crates/{}/src/client.rs defines no public trait",
                shape.name
            ));
        }
    }
    problems
}

fn table(shapes: &[Shape]) -> String {
    let mut text = row("", shapes.iter().map(|shape| format!("`{}`", shape.name)));
    text.push_str(&row("---", shapes.iter().map(|_| "---".to_owned())));
    for file in FILES {
        text.push_str(&row(
            &format!("`{file}.rs`"),
            shapes.iter().map(|shape| shape.cell(file)),
        ));
    }
    text.push_str("\nThe other files, which are types and functions on them:\n\n");
    for shape in shapes {
        text.push_str(&format!("- `{}`: {}\n", shape.name, shape.others()));
    }
    text
}

fn row(first: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<_> = std::iter::once(first.to_owned()).chain(cells).collect();
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(name: &'static str, files: &[&str], kernel_api: Option<&str>) -> Shape {
        Shape {
            name,
            files: files.iter().map(|&file| file.to_owned()).collect(),
            kernel_api: kernel_api.map(str::to_owned),
        }
    }

    #[test]
    fn a_complete_crate_has_no_missing_file() {
        assert_eq!(missing(&[shape("ipvs", &FILES, Some("Ipvs"))]), [""; 0]);
    }

    #[test]
    fn missing_files_and_a_missing_trait_are_reported() {
        let files: Vec<_> = FILES.into_iter().filter(|&file| file != "forward").collect();
        assert_eq!(
            missing(&[shape("ipvs", &files, None)]),
            [
                "crates/ipvs has no src/forward.rs",
                "crates/ipvs/src/client.rs defines no public trait"
            ]
        );
    }

    #[test]
    fn the_table_names_what_each_crate_has() {
        let files = ["lib", "client", "name", "daemon"];
        let text = table(&[
            shape("ipvs", &files, Some("Ipvs")),
            shape("ipset", &["lib"], None),
        ]);
        let lines: Vec<_> = text.lines().take(5).collect();
        assert_eq!(
            lines,
            [
                "|  | `ipvs` | `ipset` |",
                "| --- | --- | --- |",
                "| `lib.rs` | yes | yes |",
                "| `operation.rs` | missing | missing |",
                "| `uapi.rs` | missing | missing |",
            ]
        );
        assert!(text.contains("| `client.rs` | yes: `Ipvs` | missing |"), "{text}");
        assert!(
            text.ends_with("\n- `ipvs`: `daemon`, `name`\n- `ipset`: \n"),
            "{text}"
        );
    }

    #[test]
    fn the_first_public_trait_is_found() {
        assert_eq!(
            public_trait("trait A {}\npub trait Ipvs: Send {\n").as_deref(),
            Some("Ipvs")
        );
        assert_eq!(public_trait("pub struct Client;"), None);
    }
}
