//! The modules of a crate, and the paths that they name, resolved to items.
//!
//! The sources are parsed from the root file along the `mod` declarations. A path is resolved through `self`, `super`, the
//! imports of its module and the re-exports of other modules, including globs. Paths in the arguments of macros are found.
//! Names that come from the expansion of a macro or from type inference, and the targets of type aliases, are not found.

mod reader;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
};

use anyhow::Result;

/// A path from a crate's root, as `crate::a::B`, or from another crate, as `std::process::Command`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FullPath(pub(crate) Vec<String>);

impl FullPath {
    fn in_crate<'a>(segments: impl IntoIterator<Item = &'a String>) -> Self {
        let root = std::iter::once("crate".to_owned());
        Self(root.chain(segments.into_iter().cloned()).collect())
    }
}

impl fmt::Display for FullPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("::"))
    }
}

/// A place in a module that names something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The module that holds the place.
    pub(crate) module: FullPath,
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    /// Whether the place is compiled for tests only: under `#[cfg(test)]` or `#[test]`.
    pub(crate) is_test: bool,
    /// The named path without `self`, `super` and imports, followed by the paths that re-exports resolve it to.
    pub(crate) resolves_to: Vec<FullPath>,
}

/// The modules of one crate.
#[derive(Debug)]
pub(crate) struct Crate {
    /// The first one is the root module.
    modules: Vec<Module>,
}

#[derive(Debug, Default)]
struct Module {
    path: Vec<String>,
    file: PathBuf,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// Names of the other items defined here.
    items: BTreeSet<String>,
    /// The names that imports define, with the imported paths as written.
    imports: BTreeMap<String, Vec<String>>,
    /// The paths of glob imports, as written.
    globs: Vec<Vec<String>>,
    written: Vec<Written>,
}

/// A path as written in the source. A path with a leading `::` begins with an empty segment.
#[derive(Clone, Debug)]
struct Written {
    path: Vec<String>,
    line: usize,
    is_test: bool,
    is_import: bool,
}

/// The maximum depth of imports of imports. The compiler reports cycles, this module does not.
const DEPTH: usize = 32;

impl Crate {
    /// Reads the crate with this root file; `read` returns the text of a file.
    pub(crate) fn read(root: &Path, read: &dyn Fn(&Path) -> io::Result<String>) -> Result<Self> {
        Ok(Self {
            modules: reader::modules(root, read)?,
        })
    }

    /// The paths of all modules, the root's first.
    pub(crate) fn modules(&self) -> impl Iterator<Item = FullPath> {
        self.modules.iter().map(|module| FullPath::in_crate(&module.path))
    }

    /// The file of the innermost module of this crate that a path begins with. `None` for a path of another crate.
    pub(crate) fn file_of(&self, path: &FullPath) -> Option<&Path> {
        let (root, path) = path.0.split_first()?;
        let modules = self
            .modules
            .iter()
            .filter(|module| path.starts_with(&module.path));
        let innermost = modules.max_by_key(|module| module.path.len())?;
        (root == "crate").then_some(&innermost.file)
    }

    /// All places that name something, except names of the module itself.
    pub(crate) fn references(&self) -> Vec<Reference> {
        let mut references = Vec::new();
        for (index, module) in self.modules.iter().enumerate() {
            for written in &module.written {
                let mut resolves_to = Vec::new();
                self.resolve(index, &written.path, written.is_import, DEPTH, &mut resolves_to);
                if !resolves_to.is_empty() {
                    references.push(Reference {
                        module: FullPath::in_crate(&module.path),
                        file: module.file.clone(),
                        line: written.line,
                        is_test: written.is_test,
                        resolves_to,
                    });
                }
            }
        }
        references
    }

    /// Appends what a path in a module resolves to.
    fn resolve(
        &self,
        module: usize,
        path: &[String],
        is_import: bool,
        depth: usize,
        resolves_to: &mut Vec<FullPath>,
    ) {
        let (Some((first, rest)), Some(depth)) = (path.split_first(), depth.checked_sub(1)) else {
            return;
        };
        match first.as_str() {
            "" => resolves_to.push(FullPath(rest.to_vec())),
            "Self" => {}
            "crate" => self.walk(0, rest, depth, resolves_to),
            "self" => self.walk(module, rest, depth, resolves_to),
            "super" => {
                let mut from = self.modules[module].parent;
                let mut rest = rest;
                while let Some((next, after)) = rest.split_first()
                    && next == "super"
                {
                    from = self.modules[from].parent;
                    rest = after;
                }
                self.walk(from, rest, depth, resolves_to);
            }
            name if self.has(module, name, depth) => self.walk(module, path, depth, resolves_to),
            // The name of another crate, of the prelude, or of a variable.
            _ => {
                if is_import || path.len() > 1 {
                    resolves_to.push(FullPath(path.to_vec()));
                }
                for glob in &self.modules[module].globs {
                    if !is_import && self.module_at(module, glob, depth).is_none() {
                        let whole = glob.iter().chain(path).filter(|segment| !segment.is_empty());
                        resolves_to.push(FullPath(whole.cloned().collect()));
                    }
                }
            }
        }
    }

    /// Resolves a path relative to a module, through the imports on its way.
    fn walk(&self, module: usize, path: &[String], depth: usize, resolves_to: &mut Vec<FullPath>) {
        let Some(depth) = depth.checked_sub(1) else {
            return;
        };
        let mut at = module;
        resolves_to.push(FullPath::in_crate(self.modules[at].path.iter().chain(path)));
        for (position, name) in path.iter().enumerate() {
            let rest = &path[position + 1..];
            let here = &self.modules[at];
            if let Some(&child) = here.children.get(name) {
                at = child;
                continue;
            }
            if let Some(target) = here.imports.get(name) {
                let whole: Vec<_> = target.iter().chain(rest).cloned().collect();
                if target.first() == Some(name) {
                    // `use serde;` and `use serde::serde` name the other crate.
                    resolves_to.push(FullPath(whole));
                } else {
                    self.resolve(at, &whole, true, depth, resolves_to);
                }
            } else if !here.items.contains(name) {
                let mut globs = here
                    .globs
                    .iter()
                    .filter_map(|glob| self.module_at(at, glob, depth));
                if let Some(from) = globs.find(|&from| self.has(from, name, depth)) {
                    self.walk(from, &path[position..], depth, resolves_to);
                }
            }
            return;
        }
    }

    /// Whether a module defines or imports a name.
    fn has(&self, module: usize, name: &str, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else {
            return false;
        };
        let here = &self.modules[module];
        here.children.contains_key(name)
            || here.imports.contains_key(name)
            || here.items.contains(name)
            || here.globs.iter().any(|glob| {
                self.module_at(module, glob, depth)
                    .is_some_and(|from| from != module && self.has(from, name, depth))
            })
    }

    /// The module of this crate that a path in a module resolves to.
    fn module_at(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let mut resolves_to = Vec::new();
        self.resolve(module, path, true, depth.min(4), &mut resolves_to);
        resolves_to.iter().rev().find_map(|path| {
            let (root, path) = path.0.split_first()?;
            (root == "crate").then_some(())?;
            self.modules.iter().position(|module| module.path == path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The references in a crate of these files, as `module:line path, path after a re-export`.
    fn references(files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        let whole = Crate::read(Path::new("src/lib.rs"), &read).unwrap();
        let line = |reference: Reference| {
            let resolves_to: Vec<_> = reference.resolves_to.iter().map(ToString::to_string).collect();
            let test = if reference.is_test { " (test)" } else { "" };
            format!(
                "{}:{}{test} {}",
                reference.module,
                reference.line,
                resolves_to.join(", ")
            )
        };
        whole.references().into_iter().map(line).collect()
    }

    #[track_caller]
    fn assert_names(files: &[(&str, &str)], expected: &[&str]) {
        let found = references(files);
        for expected in expected {
            assert!(
                found.iter().any(|line| line == expected),
                "no {expected:?} in {found:#?}"
            );
        }
    }

    #[test]
    fn modules_are_found_in_files_folders_and_inline() {
        let files = [
            (
                "src/lib.rs",
                "mod a; mod b; mod c { mod d; } #[path = \"other.rs\"] mod e;",
            ),
            ("src/a.rs", "mod f;"),
            ("src/a/f.rs", "use x1::X;"),
            ("src/b/mod.rs", "mod g;"),
            ("src/b/g.rs", "use x2::X;"),
            ("src/c/d.rs", "use x3::X;"),
            ("src/other.rs", "use x4::X;"),
        ];
        assert_eq!(
            references(&files),
            [
                "crate::a::f:1 x1::X",
                "crate::b::g:1 x2::X",
                "crate::c::d:1 x3::X",
                "crate::e:1 x4::X"
            ]
        );
    }

    #[test]
    fn a_module_without_a_file_is_an_error() {
        let read = |path: &Path| match path.to_str() {
            Some("src/lib.rs") => Ok("\nmod gone;".to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let error = Crate::read(Path::new("src/lib.rs"), &read).unwrap_err();
        assert_eq!(
            error.to_string(),
            "src/lib.rs:2: no file of the module gone in src"
        );
    }

    #[test]
    fn relative_paths_are_resolved() {
        let inner =
            "use super::y::Y;\nuse super::super::b;\nfn f() { self::g(); super::y::h(); crate::b::i() }";
        let files = [
            ("src/lib.rs", "mod a { mod x; pub mod y {} } mod b {}"),
            ("src/a/x.rs", inner),
        ];
        assert_names(
            &files,
            &[
                "crate::a::x:1 crate::a::y::Y",
                "crate::a::x:2 crate::b",
                "crate::a::x:3 crate::a::x::g",
                "crate::a::x:3 crate::a::y::h",
                "crate::a::x:3 crate::b::i",
            ],
        );
    }

    #[test]
    fn imports_are_followed_under_any_name() {
        let text = "use std::process::{self, Command as Process};\nuse std::io as other;\n\
                    fn f() { Process::new(); process::exit(1); other::stdin(); }";
        assert_names(
            &[("src/lib.rs", text)],
            &[
                "crate:1 std::process",
                "crate:1 std::process::Command",
                "crate:3 crate::Process::new, std::process::Command::new",
                "crate:3 crate::process::exit, std::process::exit",
                "crate:3 crate::other::stdin, std::io::stdin",
            ],
        );
    }

    #[test]
    fn re_exports_are_followed() {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod c; pub use a::A as B;"),
            ("src/a.rs", "pub use elsewhere::A;"),
            ("src/b.rs", "use crate::B;"),
            ("src/c.rs", "use crate::*;\nfn f() -> B { a::g() }"),
        ];
        assert_names(
            &files,
            &[
                "crate::b:1 crate::B, crate::a::A, elsewhere::A",
                "crate::c:2 crate::c::B, crate::B, crate::a::A, elsewhere::A",
                "crate::c:2 crate::c::a::g, crate::a::g",
            ],
        );
    }

    #[test]
    fn a_glob_import_from_another_crate_may_import_any_name() {
        let text = "use std::process::*;\nfn f() { Command::new(); }";
        assert_names(
            &[("src/lib.rs", text)],
            &[
                "crate:1 std::process",
                "crate:2 Command::new, std::process::Command::new",
            ],
        );
    }

    #[test]
    fn items_of_the_module_have_precedence_over_other_crates() {
        let text = "use x::Command;\nmod a { struct Command; fn f() { Command::new(); } }";
        assert_names(&[("src/lib.rs", text)], &["crate::a:2 crate::a::Command::new"]);
    }

    #[test]
    fn paths_are_found_in_macros() {
        let text = "use x::Y;\nfn f() {\n  assert!(Y::new(|| crate::a::b(1)) == ::z::Z);\n}\n\
                    macro_rules! m { () => { use q::{r, s::T}; $crate::a::c() } }\nmod a {}";
        assert_names(
            &[("src/lib.rs", text)],
            &[
                "crate:3 crate::Y::new, x::Y::new",
                "crate:3 crate::a::b",
                "crate:3 z::Z",
                "crate:5 q::r",
                "crate:5 q::s::T",
                "crate:5 crate::a::c",
            ],
        );
    }

    #[test]
    fn paths_are_found_in_types_patterns_and_traits() {
        let text = "fn f(x: &[crate::a::A]) -> impl crate::a::B {\n  let crate::a::C(_) = x;\n\
                    <crate::a::D as crate::a::E>::f();\n}\nmod a {}";
        assert_names(
            &[("src/lib.rs", text)],
            &[
                "crate:1 crate::a::A",
                "crate:1 crate::a::B",
                "crate:2 crate::a::C",
                "crate:3 crate::a::D",
                "crate:3 crate::a::E::f",
            ],
        );
    }

    #[test]
    fn code_for_tests_only_is_recognised() {
        let text = "#[cfg(test)] use x1::X;\n#[cfg(test)] mod tests;\n#[cfg(all(test, unix))] mod t { use x3::X; }\n\
                    #[cfg(any(test, feature = \"fake\"))] use x4::X;\n#[test] fn t() { x5::X; }\nuse x6::X as Z;";
        let files = [("src/lib.rs", text), ("src/tests.rs", "use x2::X;")];
        assert_names(
            &files,
            &[
                "crate:1 (test) x1::X",
                "crate::tests:1 (test) x2::X",
                "crate::t:3 (test) x3::X",
                "crate:4 x4::X",
                "crate:5 (test) x5::X",
                "crate:6 x6::X",
            ],
        );
    }

    #[test]
    fn circles_of_imports_end() {
        let files = [
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "pub use crate::b::*; pub use crate::b::X;"),
            ("src/b.rs", "pub use crate::a::*; pub use crate::a::X;"),
        ];
        assert!(!references(&files).is_empty());
    }
}
