//! Passes the commit of the work tree to the program, as `KERNLINK_COMMIT`, unless that variable of the environment is set. In a package, which has no
//! work tree, there is no commit without it.

use std::path::Path;

use self::git::git;

/// The digits of a commit: a number that does not depend on the repository, unlike that of `git rev-parse --short`.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=KERNLINK_COMMIT");
    if std::env::var_os("KERNLINK_COMMIT").is_some() {
        return;
    }
    if let Some(commit) = commit() {
        println!("cargo::rustc-env=KERNLINK_COMMIT={commit}");
    }
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
