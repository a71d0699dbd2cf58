//! Passes the commit that the program is built from to it, as `KERNLINK_COMMIT`: that of the environment variable of this name, or that of the work tree.
//! In a package, which has no work tree, it is `unknown` without the variable.

use std::env;
use std::path::Path;

use self::git::git;

const VARIABLE: &str = "KERNLINK_COMMIT";

/// The digits of a commit: a number that does not depend on the repository, unlike that of `git rev-parse --short`.
const DIGITS: usize = 12;

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    // An argument of a container build that is not given may be empty.
    let given = env::var_os(VARIABLE).filter(|given| !given.is_empty());
    let commit = match given {
        Some(given) => {
            let is_name = |text: &str| {
                text.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._+".contains(&byte))
            };
            let name = given.to_str().filter(|text| is_name(text));
            name.ok_or_else(|| {
                format!("{VARIABLE}: {given:?} is not valid; valid: letters, digits, `-`, `.`, `_`, `+`")
            })?
            .to_owned()
        }
        None => commit().unwrap_or_else(|| "unknown".to_owned()),
    };
    println!("cargo::rustc-env={VARIABLE}={commit}");
    Ok(())
}

/// The commit that the work tree has. `None`: this folder is not in the index of one, such as an unpacked package, or there is no `git`.
fn commit() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "--verify", "HEAD"])?;
    // One of these changes with each commit and each checkout.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_default();
    for name in ["HEAD", "logs/HEAD", "packed-refs", branch.as_str()] {
        let file = git(&["rev-parse", "--git-path", name]).filter(|_| !name.is_empty());
        if let Some(file) = file.filter(|file| Path::new(file).is_file()) {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    let is_hash = commit.len() >= DIGITS && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| commit.chars().take(DIGITS).collect())
}

mod git {
    use std::process::Command;

    /// What a command of git prints. `None`: it failed.
    pub(crate) fn git(arguments: &[&str]) -> Option<String> {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    }
}
