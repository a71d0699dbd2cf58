//! Circles of imports: files of one crate that import each other in a loop.
//!
//! A module consists of the modules below it: an import from one of these is no arrow. In a kernel crate a circle is allowed if one of its
//! files says why, in a line that begins with [`ALLOWED`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use cargo_metadata::TargetKind;

use crate::{modules::Crate, shape, workspace::Workspace};

/// The beginning of the comment with the reason for a circle in a kernel crate.
const ALLOWED: &str = "// Circle of imports: ";

/// What a file imports of other files: the line and the path of the first import of each.
type Arrows = BTreeMap<PathBuf, BTreeMap<PathBuf, (usize, String)>>;

/// Fails with a list of all circles.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let mut found = Vec::new();
    for package in workspace.metadata.workspace_packages() {
        let is_kernel_crate = shape::CRATES
            .iter()
            .any(|name| package.name.as_str() == format!("kernlink-{name}"));
        for target in &package.targets {
            if !matches!(target.kind.first(), Some(TargetKind::Lib | TargetKind::Bin)) {
                continue;
            }
            let source = Crate::read(target.src_path.as_std_path(), &|path| fs::read_to_string(path))?;
            let arrows = arrows(&source);
            for circle in circles(&arrows) {
                if !(is_kernel_crate && has_reason(&circle)?) {
                    found.push(describe(root, &circle, &arrows));
                }
            }
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    bail!("files that import each other in a circle\n{}", found.join("\n"))
}

/// Whether a file of a circle says why there is one.
fn has_reason(circle: &BTreeSet<PathBuf>) -> Result<bool> {
    for file in circle {
        let text = fs::read_to_string(file)?;
        let mut reasons = text.lines().filter_map(|line| line.strip_prefix(ALLOWED));
        if reasons.any(|reason| !reason.trim().is_empty()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The imports between the files of a crate, without those of its tests.
fn arrows(source: &Crate) -> Arrows {
    let mut arrows = Arrows::new();
    for reference in source.references() {
        if reference.is_test {
            continue;
        }
        // The last path is the one of the item itself, behind all re-exports.
        let Some(path) = reference.resolves_to.last().filter(|path| path.0.len() > 1) else {
            continue;
        };
        // A module consists of those below it.
        if path.0.starts_with(&reference.module.0) {
            continue;
        }
        let Some(file) = source.file_of(path).filter(|file| *file != reference.file) else {
            continue;
        };
        let of_file = arrows.entry(reference.file).or_default();
        of_file
            .entry(file.to_owned())
            .or_insert_with(|| (reference.line, path.to_string()));
    }
    arrows
}

/// The largest sets of files of which each one can be reached from each other one.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<PathBuf>> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> = arrows
        .keys()
        .map(|file| (file, reachable(arrows, file)))
        .collect();
    let mut circles: Vec<BTreeSet<PathBuf>> = Vec::new();
    for (file, targets) in &reached {
        if circles.iter().any(|circle| circle.contains(*file)) {
            continue;
        }
        let circle: BTreeSet<PathBuf> = targets
            .iter()
            .filter(|target| reached.get(**target).is_some_and(|back| back.contains(file)))
            .map(|target| (*target).clone())
            .collect();
        if !circle.is_empty() {
            circles.push(circle);
        }
    }
    circles
}

/// The files that a file imports, and those that these import.
fn reachable<'a>(arrows: &'a Arrows, file: &PathBuf) -> BTreeSet<&'a PathBuf> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&PathBuf> = arrows.get(file).into_iter().flat_map(BTreeMap::keys).collect();
    while let Some(file) = next.pop() {
        if found.insert(file) {
            next.extend(arrows.get(file).into_iter().flat_map(BTreeMap::keys));
        }
    }
    found
}

/// The arrows of a circle, a line each.
fn describe(root: &Path, circle: &BTreeSet<PathBuf>, arrows: &Arrows) -> String {
    let name = |file: &Path| file.strip_prefix(root).unwrap_or(file).display().to_string();
    let mut lines = vec![format!("  {} files:", circle.len())];
    for file in circle {
        for (to, (line, path)) in arrows.get(file).into_iter().flatten() {
            if circle.contains(to) {
                lines.push(format!("    {}:{line}: {path} of {}", name(file), name(to)));
            }
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// The circles in a crate of these files.
    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        let source = Crate::read(Path::new("src/lib.rs"), &read).unwrap();
        let names =
            |circle: BTreeSet<PathBuf>| circle.iter().map(|file| file.display().to_string()).collect();
        circles(&arrows(&source)).into_iter().map(names).collect()
    }

    #[test]
    fn a_loop_over_several_files_is_found() {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod c; mod d;"),
            ("src/a.rs", "use crate::b::B; pub struct A;"),
            ("src/b.rs", "pub struct B; fn f(_: crate::c::C) {}"),
            ("src/c.rs", "pub struct C; use super::a::A;"),
            ("src/d.rs", "use super::a::A;"),
        ];
        assert_eq!(found(&files), [["src/a.rs", "src/b.rs", "src/c.rs"]]);
    }

    #[test]
    fn an_item_is_in_the_file_that_defines_it() {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod c;"),
            ("src/a.rs", "pub use crate::b::B; use crate::c::C;"),
            ("src/b.rs", "pub struct B; use crate::a::A;"),
            ("src/c.rs", "use crate::a::B;"),
        ];
        // `c` imports a type of `b` through `a`.
        assert_eq!(found(&files), [["src/a.rs", "src/b.rs", "src/c.rs"]]);
        let files = [
            ("src/lib.rs", "mod a; mod b; pub use a::A;"),
            ("src/a.rs", "pub struct A;"),
            ("src/b.rs", "use crate::A;"),
        ];
        assert_eq!(found(&files), Vec::<Vec<String>>::new());
    }

    #[test]
    fn a_module_and_those_below_it_and_tests_make_no_circle() {
        let files = [
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", "mod b; pub struct A; use self::b::B;"),
            ("src/a/b.rs", "pub struct B; use super::A;"),
        ];
        assert_eq!(found(&files), Vec::<Vec<String>>::new());
        let files = [
            ("src/lib.rs", "mod a; mod b;"),
            (
                "src/a.rs",
                "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
            ),
            ("src/b.rs", "pub struct B; use super::a::A;"),
        ];
        assert_eq!(found(&files), Vec::<Vec<String>>::new());
    }
}
