//! The public API of the published crates as text in `public-api/`, so that a review shows each change of it.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Package;

use crate::workspace::{self, Workspace, output, succeed};

const FOLDER: &str = "public-api";
/// The version of rustdoc's JSON format that the crate `public-api` reads.
const FORMAT_VERSION: u32 = 57;
const WRITE: &str = "cargo xtask public-api";

/// Fails if the API of a crate is not the one in its file.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let folder = workspace.root().join(FOLDER);
    let compiler = compiler(workspace)?;
    for (name, text) in recorded(&folder)? {
        let writer = text
            .lines()
            .next()
            .and_then(writer)
            .unwrap_or("an unknown compiler");
        ensure!(
            writer == compiler,
            "{FOLDER}/{name} was written with {writer}, but this is {compiler}, whose rustdoc may print the same API \
             differently; install {writer}, or run `{WRITE}` in a commit of its own"
        );
    }
    let actual = generate(workspace, &compiler)?;
    let problems = differences(&recorded(&folder)?, &actual);
    if problems.is_empty() {
        return Ok(());
    }
    bail!(
        "{}\nif the change is intended, run `{WRITE}` and commit the files",
        problems.join("\n")
    )
}

/// Writes the files of all published crates and removes other ones.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let folder = workspace.root().join(FOLDER);
    let files = generate(workspace, &compiler(workspace)?)?;
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    for (name, _) in recorded(&folder)? {
        if files.iter().all(|(kept, _)| *kept != name) {
            fs::remove_file(folder.join(&name)).with_context(|| format!("removing {FOLDER}/{name}"))?;
        }
    }
    for (name, text) in files {
        fs::write(folder.join(&name), text).with_context(|| format!("writing {FOLDER}/{name}"))?;
    }
    Ok(())
}

/// Prints the public items of a commit that `public-api/` does not have now: a program that uses one no longer compiles, or may not.
/// False if there are any in a crate whose version is equal or compatible.
///
/// It compares the lines of the files. A change that no line shows, such as a type that is no longer `Send`, is not found.
pub(crate) fn semver(workspace: &Workspace, commit: &str) -> Result<bool> {
    let git = |arguments: &[&str]| output(Command::new("git").current_dir(workspace.root()).args(arguments));
    let manifest = git(&["show", &format!("{commit}:Cargo.toml")])?;
    let old_version = version_of(&manifest).context("no version in Cargo.toml of that commit")?;
    let now = recorded(&workspace.root().join(FOLDER))?;
    let mut is_compatible = true;
    for path in git(&["ls-tree", "--name-only", commit, &format!("{FOLDER}/")])?.lines() {
        let old = git(&["show", &format!("{commit}:{path}")])?;
        let name = path.trim_start_matches(FOLDER).trim_start_matches('/');
        let new = now
            .iter()
            .find(|(file, _)| file == name)
            .map_or("", |(_, text)| text.as_str());
        let gone = removed(&old, new);
        if gone.is_empty() {
            continue;
        }
        let package = workspace.package(name.trim_end_matches(".txt")).ok();
        let new_version = package.map(|package| package.version.to_string());
        let is_allowed = new_version
            .as_deref()
            .is_some_and(|new| !is_compatible_version(&old_version, new));
        let new_version = new_version.unwrap_or_else(|| "no package".to_owned());
        println!(
            "{name}: {old_version} -> {new_version}: {} items are removed or changed",
            gone.len()
        );
        for line in gone {
            println!("  -{line}");
        }
        is_compatible &= is_allowed;
    }
    Ok(is_compatible)
}

/// The items of a text that another one does not have, without the first line.
fn removed<'a>(old: &'a str, new: &str) -> Vec<&'a str> {
    let there: HashSet<_> = new.lines().collect();
    old.lines().skip(1).filter(|line| !there.contains(line)).collect()
}

/// The version in `[workspace.package]`.
fn version_of(manifest: &str) -> Option<String> {
    let (_, rest) = manifest.split_once("[workspace.package]")?;
    let line = rest.lines().find_map(|line| line.strip_prefix("version = "))?;
    Some(line.trim_matches('"').to_owned())
}

/// Whether cargo takes the new version for the old one: the first number that is not 0 is equal.
fn is_compatible_version(old: &str, new: &str) -> bool {
    let numbers = |version: &str| version.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (old, new) = (numbers(old), numbers(new));
    let first = old
        .iter()
        .position(|number| number != "0")
        .unwrap_or(old.len() - 1);
    old.get(..=first) == new.get(..=first)
}

/// Names and contents of files.
type Files = Vec<(String, String)>;

/// The files in the folder, sorted by name; none if it does not exist.
fn recorded(folder: &Path) -> Result<Files> {
    let mut files = Vec::new();
    if folder.exists() {
        for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            let text = fs::read_to_string(entry.path())
                .with_context(|| format!("reading {}", entry.path().display()))?;
            files.push((entry.file_name().to_string_lossy().into_owned(), text));
        }
    }
    files.sort();
    Ok(files)
}

fn differences(recorded: &Files, actual: &Files) -> Vec<String> {
    let find = |files: &Files, name: &str| {
        files
            .iter()
            .find(|(file, _)| file == name)
            .map(|(_, text)| text.clone())
    };
    let mut problems = Vec::new();
    for (name, text) in actual {
        match find(recorded, name) {
            None => problems.push(format!("{FOLDER}/{name} does not exist")),
            Some(old) if old != *text => {
                problems.push(format!("{FOLDER}/{name} differs:\n{}", difference(&old, text)))
            }
            Some(_) => {}
        }
    }
    for (name, _) in recorded {
        if find(actual, name).is_none() {
            problems.push(format!("{FOLDER}/{name} belongs to no published crate"));
        }
    }
    problems
}

/// The lines that are only in the first text, after `-`, and those that are only in the second one, after `+`.
fn difference(old: &str, new: &str) -> String {
    const MOST: usize = 40;
    let only = |sign: char, these: &str, those: &str| {
        let there: HashSet<_> = those.lines().collect();
        let lines = these.lines().filter(|line| !there.contains(line));
        lines.map(|line| format!("  {sign}{line}")).collect::<Vec<_>>()
    };
    let mut lines = only('-', old, new);
    lines.extend(only('+', new, old));
    if lines.is_empty() {
        return "  only the order of lines".to_owned();
    }
    if lines.len() > MOST {
        let more = lines.len() - MOST;
        lines.truncate(MOST);
        lines.push(format!("  and {more} more lines"));
    }
    lines.join("\n")
}

/// The compiler's name and version without its commit, such as `rustc 1.95.0`.
fn compiler(workspace: &Workspace) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(rustc).arg("--version").current_dir(workspace.root()))?;
    let words: Vec<_> = version.split(' ').take(2).map(str::trim).collect();
    Ok(words.join(" "))
}

fn first_line(package: &str, compiler: &str) -> String {
    format!("# Public API of {package} with all features. Written by `{WRITE}` with {compiler}.")
}

/// The compiler in a line of [`first_line`].
fn writer(line: &str) -> Option<&str> {
    Some(line.rsplit_once("` with ")?.1.trim_end_matches('.'))
}

fn generate(workspace: &Workspace, compiler: &str) -> Result<Files> {
    let packages = workspace.published();
    // cargo never takes JSON documentation for fresh, and writing it makes the HTML documentation out of date.
    let cache = workspace.target().join("xtask/public-api.json");
    let cached = fs::read_to_string(&cache).ok();
    let mut cached: BTreeMap<String, (u64, String)> = cached
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let mut changed = Vec::new();
    for &package in &packages {
        let hash = hash_of_sources(workspace, package, compiler)?;
        if cached
            .get(package.name.as_str())
            .is_none_or(|(old, _)| *old != hash)
        {
            changed.push((package.name.as_str(), hash));
        }
    }
    if !changed.is_empty() {
        write_json(workspace, changed.iter().map(|(name, _)| *name))?;
    }
    for (name, hash) in changed {
        cached.insert(name.to_owned(), (hash, print(workspace, name, compiler)?));
    }
    let text = serde_json::to_string(&cached)?;
    fs::write(&cache, text).with_context(|| format!("writing {}", cache.display()))?;
    let texts = packages.iter().filter_map(|package| {
        let (_, text) = cached.get(package.name.as_str())?;
        Some((format!("{}.txt", package.name), text.clone()))
    });
    Ok(texts.collect())
}

fn write_json<'a>(workspace: &Workspace, packages: impl Iterator<Item = &'a str>) -> Result<()> {
    succeed(
        workspace
            .cargo()
            .args(["doc", "--quiet", "--lib", "--no-deps", "--all-features"])
            .args(packages.flat_map(|name| ["--package", name]))
            // Lints of the documentation are reported by the check of the documentation.
            .env(
                "RUSTDOCFLAGS",
                "-Zunstable-options --output-format=json --cap-lints=allow",
            )
            .env("RUSTDOC", rustdoc_with_json(workspace)?),
    )
}

/// The text of the file of a package, from the JSON that rustdoc wrote.
fn print(workspace: &Workspace, name: &str, compiler: &str) -> Result<String> {
    let crate_name = name.replace('-', "_");
    let json = workspace.target().join(format!("doc/{crate_name}.json"));
    check_format(&json, compiler)?;
    let api = public_api::Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .with_context(|| format!("reading {}", json.display()))?;
    let lines = without_trait_methods(api.items().map(ToString::to_string).collect());
    let mut text = first_line(name, compiler) + "\n\n";
    for line in lines.iter().filter(|line| is_of_interest(line, &crate_name)) {
        text.push_str(&shortened(line, &crate_name));
        text.push('\n');
    }
    Ok(text)
}

/// A hash of everything that the text of a package depends on, this program included.
fn hash_of_sources(workspace: &Workspace, package: &Package, compiler: &str) -> Result<u64> {
    let root = workspace.root();
    // The package, and the members that it depends on, whose items it may export.
    let mut folders = Vec::new();
    let mut packages = vec![package];
    while let Some(package) = packages.pop() {
        let folder = package
            .manifest_path
            .parent()
            .context("a manifest without a folder")?;
        let folder = folder.as_std_path().strip_prefix(root)?.to_owned();
        if !folders.contains(&folder) {
            folders.push(folder);
            let names = package.dependencies.iter().map(|dependency| &dependency.name);
            packages.extend(names.filter_map(|name| workspace.package(name).ok()));
        }
    }
    let mut hasher = DefaultHasher::new();
    compiler.hash(&mut hasher);
    let program = fs::metadata(&workspace.xtask).context("reading the attributes of this program")?;
    (program.len(), program.modified()?).hash(&mut hasher);
    for file in workspace::files(root, &["rs", "toml", "lock"])? {
        if folders.iter().any(|folder| file.starts_with(folder)) || file.components().count() == 1 {
            let text = fs::read(root.join(&file)).with_context(|| format!("reading {}", file.display()))?;
            (&file, text).hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

/// A script that starts rustdoc and lets it write JSON, which stable versions do not allow.
///
/// Only rustdoc gets the variable: many build scripts read it, and cargo would compile all dependencies again.
fn rustdoc_with_json(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join("xtask");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let file = folder.join("rustdoc-with-json");
    let rustdoc = std::env::var("RUSTDOC").unwrap_or_else(|_| "rustdoc".to_owned());
    let script = format!("#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec '{rustdoc}' \"$@\"\n");
    if fs::read_to_string(&file).ok().as_ref() != Some(&script) {
        fs::write(&file, script).with_context(|| format!("writing {}", file.display()))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("making {} executable", file.display()))?;
    }
    Ok(file)
}

/// Fails if rustdoc writes another version of the format than the crate `public-api` reads.
fn check_format(json: &Path, compiler: &str) -> Result<()> {
    let text = fs::read_to_string(json).with_context(|| format!("reading {}", json.display()))?;
    let version =
        format_version(&text).with_context(|| format!("no format version in {}", json.display()))?;
    ensure!(
        version == FORMAT_VERSION,
        "rustdoc of {compiler} writes version {version} of its JSON format, but the crate public-api reads version \
         {FORMAT_VERSION}: choose the version of public-api in Cargo.toml that fits the compiler, and change \
         FORMAT_VERSION in xtask/src/public_api.rs"
    );
    Ok(())
}

/// Found as text, because the rest may be in a form that the crate `public-api` cannot read.
fn format_version(json: &str) -> Option<u32> {
    let (_, rest) = json.rsplit_once("\"format_version\":")?;
    let digits = rest.split(|character: char| !character.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// False for the crate itself and for an implementation that each derived `PartialEq` brings along.
fn is_of_interest(line: &str, crate_name: &str) -> bool {
    !line.contains("core::marker::StructuralPartialEq for ") && line != format!("pub mod {crate_name}")
}

/// A line without the name of the crate before its items, and without the modules of items of std that are usually imported
/// by their name.
fn shortened(line: &str, crate_name: &str) -> String {
    let is_path = |character: char| character.is_alphanumeric() || character == '_' || character == ':';
    let mut text = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let path = &rest[..rest.find(|character| !is_path(character)).unwrap_or(rest.len())];
        let other = rest[path.len()..].chars().next().map_or(0, char::len_utf8);
        text.push_str(&short_path(path, crate_name));
        text.push_str(&rest[path.len()..path.len() + other]);
        rest = &rest[path.len() + other..];
    }
    text
}

fn short_path(path: &str, crate_name: &str) -> String {
    // A colon after a name is not part of a path.
    let name = path.trim_end_matches(':');
    let end = &path[name.len()..];
    let segments: Vec<_> = name.split("::").collect();
    let kept = match segments[..] {
        [first, ..] if first == crate_name && segments.len() > 1 => segments[1..].join("::"),
        [
            "core" | "alloc" | "std",
            module @ ("fmt" | "io" | "error"),
            ..,
            last,
        ] => format!("{module}::{last}"),
        ["core" | "alloc" | "std", .., last] => last.to_owned(),
        _ => name.to_owned(),
    };
    kept + end
}

/// Leaves out the functions in implementations of traits: the line of the implementation includes them.
fn without_trait_methods(lines: Vec<String>) -> Vec<String> {
    let mut implemented: Option<String> = None;
    let mut kept = Vec::new();
    for line in lines {
        if line.starts_with("impl") {
            let of = line
                .rsplit_once(" for ")
                .map(|(_, of)| of.split(" where ").next().unwrap_or(of));
            implemented = of.map(|of| format!(" {}::", of.split('<').next().unwrap_or(of)));
        } else if implemented.as_ref().is_some_and(|of| {
            line.contains(" fn ")
                && line
                    .split('(')
                    .next()
                    .is_some_and(|start| without_generics(start).contains(of))
        }) {
            continue;
        }
        kept.push(line);
    }
    kept
}

/// `a::B<C>::d` as `a::B::d`.
fn without_generics(path: &str) -> String {
    let mut depth = 0_usize;
    let mut text = String::new();
    for character in path.chars() {
        match character {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => text.push(character),
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_and_changed_items_are_breaking_and_new_ones_are_not() {
        let old = "# first line\n\npub fn a()\npub fn b(u8)\n";
        assert_eq!(
            removed(old, "# another line\n\npub fn a()\npub fn b(u8)\npub fn c()\n"),
            [""; 0]
        );
        assert_eq!(
            removed(old, "# first line\n\npub fn b(u16)\n"),
            ["pub fn a()", "pub fn b(u8)"]
        );
    }

    #[test]
    fn versions_are_compatible_as_cargo_compares_them() {
        assert!(is_compatible_version("0.1.0", "0.1.7") && is_compatible_version("1.2.3", "1.4.0"));
        assert!(!is_compatible_version("0.1.0", "0.2.0") && !is_compatible_version("1.2.3", "2.0.0"));
        assert!(!is_compatible_version("0.0.1", "0.0.2"));
        let manifest = "[workspace]\n[workspace.package]\nversion = \"0.1.0\"\n";
        assert_eq!(version_of(manifest).unwrap(), "0.1.0");
    }

    #[test]
    fn functions_of_trait_implementations_are_left_out() {
        let lines = [
            "pub struct a::B<T>",
            "impl<T> a::B<T>",
            "pub fn a::B<T>::new() -> Self",
            "impl<T> core::fmt::Debug for a::B<T> where T: a::C<u8>",
            "pub fn a::B<T>::fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result",
            "impl<T> core::str::traits::FromStr for a::B<T>",
            "pub type a::B<T>::Err = a::Error",
            "pub fn a::B<T>::from_str(text: &str) -> core::result::Result<Self, Self::Err>",
            "pub fn a::free(a::B<u8>)",
        ];
        let kept = without_trait_methods(lines.map(str::to_owned).to_vec());
        assert_eq!(kept, [0, 1, 2, 3, 5, 6, 8].map(|index| lines[index]));
    }

    #[test]
    fn paths_of_this_crate_and_of_std_are_shortened() {
        let short = |line: &str| shortened(line, "kernlink_ipvs");
        assert_eq!(
            short(
                "pub fn kernlink_ipvs::Client::open(core::option::Option<kernlink_base::Family>) -> core::result::Result<Self, kernlink_ipvs::Error>"
            ),
            "pub fn Client::open(Option<kernlink_base::Family>) -> Result<Self, Error>"
        );
        assert_eq!(
            short("impl core::fmt::Display for kernlink_ipvs::Key where T: core::error::Error"),
            "impl fmt::Display for Key where T: error::Error"
        );
        assert_eq!(short("pub kernlink_ipvs::Key::port: u16"), "pub Key::port: u16");
        assert!(is_of_interest("pub mod kernlink_ipvs::uapi", "kernlink_ipvs"));
        assert!(!is_of_interest("pub mod kernlink_ipvs", "kernlink_ipvs"));
    }

    #[test]
    fn the_version_of_the_format_is_found() {
        assert_eq!(format_version(r#"{"root":1,"format_version":57}"#), Some(57));
        assert_eq!(format_version(r#"{"format_version":57,"index":{}}"#), Some(57));
        assert_eq!(format_version("{}"), None);
    }

    #[test]
    fn the_compiler_is_read_from_the_first_line() {
        let line = first_line("kernlink-ipvs", "rustc 1.95.0");
        assert_eq!(writer(&line), Some("rustc 1.95.0"));
        assert_eq!(writer("pub mod a"), None);
    }

    #[test]
    fn changed_missing_and_superfluous_files_are_reported() {
        let files = |files: &[(&str, &str)]| -> Files {
            files
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect()
        };
        let old = files(&[("a.txt", "1\n2\n"), ("b.txt", "1\n"), ("d.txt", "1\n")]);
        let new = files(&[("a.txt", "2\n3\n"), ("c.txt", "1\n"), ("d.txt", "1\n")]);
        assert_eq!(
            differences(&old, &new),
            [
                "public-api/a.txt differs:\n  -1\n  +3",
                "public-api/c.txt does not exist",
                "public-api/b.txt belongs to no published crate",
            ]
        );
    }
}
