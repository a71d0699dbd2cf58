//! A folder that contains only the declared programs: the `PATH` of tests and benchmarks.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use kernlink_kernel_tests::programs::{PROGRAMS, Program};

use crate::provision;

/// Creates or updates the folder below the target folder, and returns its absolute path.
///
/// Programs of [`PROGRAMS`] that are not installed are left out.
pub(crate) fn folder(target: &Path) -> Result<PathBuf> {
    let folder = target.join("xtask/programs");
    fill(&folder, PROGRAMS, provision::find)
        .with_context(|| format!("linking the declared programs in {}", folder.display()))?;
    Ok(folder)
}

/// Creates a link in `folder` for each of these programs that is found, and removes all others. A link has the name of the
/// program, because programs such as `xtables-nft-multi` behave according to the name by which they are started.
///
/// A correct link is not changed, because another run may be using it.
fn fill(folder: &Path, programs: &[Program], find: impl Fn(&str) -> Option<PathBuf>) -> Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let found = programs.iter().find(|program| program.name == name);
        if found.and_then(|program| find(program.name)).is_none() {
            unless(io::ErrorKind::NotFound, fs::remove_file(folder.join(name)))?;
        }
    }
    for program in programs {
        let (link, Some(path)) = (folder.join(program.name), find(program.name)) else {
            continue;
        };
        if fs::read_link(&link).ok().as_ref() != Some(&path) {
            unless(io::ErrorKind::NotFound, fs::remove_file(&link))?;
            unless(io::ErrorKind::AlreadyExists, symlink(&path, &link))?;
        }
    }
    Ok(())
}

/// Ignores an error of this kind: another run may have done the same.
fn unless(kind: io::ErrorKind, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, process::Command};

    use super::*;

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-programs-{name}-{}", std::process::id()))
    }

    #[test]
    fn the_folder_contains_the_declared_programs_that_are_installed() {
        let target = scratch("declared");
        let folder = folder(&target).unwrap();
        let installed = PROGRAMS
            .iter()
            .filter(|program| provision::find(program.name).is_some());
        let expected: BTreeSet<_> = installed.map(|program| program.name.to_owned()).collect();
        assert_eq!(names(&folder), expected);
        assert!(expected.contains("sh"));
        fs::remove_dir_all(target).unwrap();
    }

    #[test]
    fn the_folder_of_an_earlier_run_is_updated() {
        let folder = scratch("update");
        let programs = ["a", "b", "c"].map(|name| Program::new(name, "package"));
        fill(&folder, &programs, |name| Some(Path::new("/old").join(name))).unwrap();
        // One is no longer declared, one is no longer installed.
        let find = |name: &str| (name == "a").then(|| PathBuf::from("/new/a"));
        fill(&folder, &programs[..2], find).unwrap();
        assert_eq!(names(&folder), BTreeSet::from(["a".to_owned()]));
        assert_eq!(fs::read_link(folder.join("a")).unwrap(), Path::new("/new/a"));
        fs::remove_dir_all(folder).unwrap();
    }

    /// The shell searches `PATH`, as all programs do.
    #[test]
    fn a_program_that_is_not_declared_is_not_found() {
        let target = scratch("undeclared");
        let folder = folder(&target).unwrap();
        let start = |program: &str| {
            let script = format!("exec {program} --version");
            let mut shell = Command::new("/bin/sh");
            let output = shell.args(["-c", &script]).env("PATH", &folder).output();
            output.unwrap().status.code()
        };
        assert_eq!(start("cat"), Some(0));
        assert!(provision::find("tail").is_some(), "it is installed");
        assert_eq!(start("tail"), Some(127));
        fs::remove_dir_all(target).unwrap();
    }
}
