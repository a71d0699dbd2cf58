//! The packages of the published crates: what is in them, and a publication without upload.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Package;

use crate::workspace::{Workspace, output, succeed};

/// What every package has.
const REQUIRED: [&str; 6] = [
    "Cargo.toml",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "src/lib.rs",
];
/// What no package has: files with one of these names are compiled for tests only, and the rest is read by tests only.
const TEST_FILES: [&str; 3] = ["tests.rs", "vectors.rs", "vectors.txt"];
const TEST_FOLDERS: [&str; 2] = ["tests", "golden"];
/// Categories of crates.io that fit. A package with an unknown one is refused when it is published.
const CATEGORIES: [&str; 3] = ["network-programming", "os::linux-apis", "parser-implementations"];
/// The bounds of crates.io.
const MOST_KEYWORDS: usize = 5;
const LONGEST_KEYWORD: usize = 20;
/// The version of the Kubernetes API for verification: the program that uses the crates chooses one.
const KUBERNETES_VERSION: (&str, &str) = ("K8S_OPENAPI_ENABLED_VERSION", "1.37");

/// Fails if a published crate lacks what crates.io and docs.rs use, if a file of its package is for tests only, or if one that
/// is not for tests only is missing.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut problems = Vec::new();
    for package in workspace.published() {
        let (name, folder) = (package.name.as_str(), folder(package)?);
        let mut found = problems_of_manifest(package);
        let files = files(workspace, name)?;
        found.extend(problems_of_files(&files));
        for licence in REQUIRED.into_iter().filter(|file| file.starts_with("LICENSE")) {
            let read = |path: &Path| fs::read(path).with_context(|| format!("reading {}", path.display()));
            let path = folder.join(licence);
            if path.exists() && read(&path)? != read(&workspace.root().join(licence))? {
                found.push(format!("{licence} is not the one of the repository"));
            }
        }
        problems.extend(found.into_iter().map(|problem| format!("{name}: {problem}")));
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// Prints the number of files of each package, then publishes all of them without upload, in the order of their dependencies.
/// cargo compiles each one from its package, with all features.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    check(workspace)?;
    let packages = in_order(&workspace.published())?;
    for &package in &packages {
        let files = files(workspace, package.name.as_str())?;
        let folder = folder(package)?;
        let sizes = files
            .iter()
            .filter_map(|file| fs::metadata(folder.join(file)).ok());
        let bytes: u64 = sizes.map(|metadata| metadata.len()).sum();
        println!(
            "{:<26} {:>3} files, {:>4} KiB",
            package.name.as_str(),
            files.len(),
            bytes.div_ceil(1024)
        );
    }
    let mut publish = workspace.cargo();
    publish
        .args(["publish", "--dry-run", "--all-features"])
        .args(
            packages
                .iter()
                .flat_map(|package| ["--package", package.name.as_str()]),
        )
        .env(KUBERNETES_VERSION.0, KUBERNETES_VERSION.1);
    succeed(&mut publish)
}

fn folder(package: &Package) -> Result<&Path> {
    let folder = package.manifest_path.parent();
    Ok(folder.context("a manifest without a folder")?.as_std_path())
}

/// The files of a package, as cargo lists them.
fn files(workspace: &Workspace, name: &str) -> Result<Vec<String>> {
    let list = output(workspace.cargo().args([
        "package",
        "--list",
        "--quiet",
        "--offline",
        "--allow-dirty",
        "--package",
        name,
    ]))?;
    Ok(list.lines().map(str::to_owned).collect())
}

fn problems_of_manifest(package: &Package) -> Vec<String> {
    let mut problems = Vec::new();
    if package.description.is_none() {
        problems.push("no `description`".to_owned());
    }
    if package.rust_version.is_none() {
        problems.push("no `rust-version`".to_owned());
    }
    let keywords = &package.keywords;
    let is_valid = |word: &String| {
        word.len() <= LONGEST_KEYWORD
            && word.starts_with(|letter: char| letter.is_ascii_alphanumeric())
            && word
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "-_+".contains(letter))
    };
    if keywords.is_empty() || keywords.len() > MOST_KEYWORDS || !keywords.iter().all(is_valid) {
        problems.push(format!(
            "invalid keywords {keywords:?}; valid: 1 to {MOST_KEYWORDS}, each of up to {LONGEST_KEYWORD} letters, digits, `-`, `_` and `+`"
        ));
    }
    let categories = &package.categories;
    if categories.is_empty()
        || !categories
            .iter()
            .all(|category| CATEGORIES.contains(&category.as_str()))
    {
        problems.push(format!(
            "invalid categories {categories:?}; valid: one or more of {}",
            CATEGORIES.join(", ")
        ));
    }
    let docs = &package.metadata["docs"]["rs"];
    let arguments = docs["rustdoc-args"].as_array();
    let is_docsrs = arguments.is_some_and(|list| list.iter().any(|argument| argument == "docsrs"));
    if !is_docsrs || (docs["all-features"] != true && !docs["features"].is_array()) {
        problems.push(
            "[package.metadata.docs.rs] requires `all-features = true`, or `features`, and `rustdoc-args = [\"--cfg\", \"docsrs\"]`"
                .to_owned(),
        );
    }
    problems
}

fn problems_of_files(files: &[String]) -> Vec<String> {
    let missing = REQUIRED
        .into_iter()
        .filter(|required| files.iter().all(|file| file != required));
    let mut problems: Vec<_> = missing.map(|file| format!("the package lacks {file}")).collect();
    let for_tests = files.iter().filter(|file| {
        let mut folders: Vec<_> = file.split('/').collect();
        let name = folders.pop().unwrap_or_default();
        TEST_FILES.contains(&name) || folders.iter().any(|folder| TEST_FOLDERS.contains(folder))
    });
    problems.extend(for_tests.map(|file| format!("the package has {file}, which only tests use")));
    problems
}

/// Each package after those that it depends on. A dependency of tests counts if it has a version, because cargo looks it up too.
fn in_order<'a>(packages: &[&'a Package]) -> Result<Vec<&'a Package>> {
    let dependencies = |package: &Package| {
        let of = package
            .dependencies
            .iter()
            .filter(|dependency| !dependency.req.comparators.is_empty());
        of.map(|dependency| dependency.name.clone())
            .collect::<BTreeSet<_>>()
    };
    let waiting: BTreeMap<String, BTreeSet<String>> = packages
        .iter()
        .map(|package| (package.name.to_string(), dependencies(package)))
        .collect();
    let order = order(waiting)?;
    let find = |name: &String| {
        packages
            .iter()
            .find(|package| package.name.as_str() == name)
            .copied()
    };
    Ok(order.iter().filter_map(find).collect())
}

/// Names, each after those that it depends on. Dependencies without an entry are ignored.
fn order(mut waiting: BTreeMap<String, BTreeSet<String>>) -> Result<Vec<String>> {
    let mut done = Vec::new();
    while !waiting.is_empty() {
        let is_ready = |of: &BTreeSet<String>| !of.iter().any(|name| waiting.contains_key(name));
        let ready: Vec<_> = waiting
            .iter()
            .filter(|(_, of)| is_ready(of))
            .map(|(name, _)| name.clone())
            .collect();
        if ready.is_empty() {
            let names: Vec<_> = waiting.into_keys().collect();
            bail!(
                "these crates cannot be published, because they depend on each other in a circle: {}",
                names.join(", ")
            );
        }
        for name in ready {
            waiting.remove(&name);
            done.push(name);
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn files_of_tests_and_missing_licences_are_problems() {
        let mut files = strings(&REQUIRED);
        assert_eq!(problems_of_files(&files), [""; 0]);
        files.extend(strings(&[
            "tests/golden.rs",
            "src/client/tests.rs",
            "src/wire/vectors.txt",
        ]));
        files.retain(|file| file != "LICENSE-MIT");
        assert_eq!(
            problems_of_files(&files),
            [
                "the package lacks LICENSE-MIT",
                "the package has tests/golden.rs, which only tests use",
                "the package has src/client/tests.rs, which only tests use",
                "the package has src/wire/vectors.txt, which only tests use",
            ]
        );
    }

    #[test]
    fn a_crate_is_published_after_those_that_it_depends_on() {
        let of = |pairs: &[(&str, &[&str])]| {
            let pairs = pairs
                .iter()
                .map(|(name, of)| ((*name).to_owned(), strings(of).into_iter().collect()));
            order(pairs.collect())
        };
        let sorted = of(&[("a", &["c", "serde"]), ("b", &[]), ("c", &["b"])]).unwrap();
        assert_eq!(sorted, ["b", "c", "a"]);
        let circle = of(&[("a", &["b"]), ("b", &["a"]), ("c", &[])])
            .unwrap_err()
            .to_string();
        assert!(circle.ends_with("in a circle: a, b"), "{circle}");
    }

    #[test]
    fn a_manifest_without_keywords_or_with_an_unknown_category_is_a_problem() {
        let workspace = Workspace::load().unwrap();
        let mut package = workspace.package("kernlink-base").unwrap().clone();
        assert_eq!(problems_of_manifest(&package), [""; 0]);
        package.keywords = strings(&["two words"]);
        package.categories = strings(&["networks"]);
        package.metadata = serde_json::Value::Null;
        let problems = problems_of_manifest(&package);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(
            problems[0].starts_with("invalid keywords [\"two words\"]"),
            "{problems:?}"
        );
        assert!(
            problems[1].starts_with("invalid categories [\"networks\"]"),
            "{problems:?}"
        );
    }
}
