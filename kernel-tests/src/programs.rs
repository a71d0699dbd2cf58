//! Table of the external programs that kernel tests, benchmarks and examples start.
//!
//! `cargo xtask test` installs the packages of the table, and runs tests with a `PATH` that contains only these
//! programs. Tests, benchmarks and examples start programs with [`command`], which panics for a program that is not in the
//! table; `cargo xtask check` fails for those that use [`Command::new`] instead.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program and the package that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// File name, without a folder.
    pub name: &'static str,
    /// Package in Debian and Ubuntu.
    pub package: &'static str,
}

impl Program {
    /// An entry of the table.
    #[must_use]
    pub const fn new(name: &'static str, package: &'static str) -> Self {
        Self { name, package }
    }
}

/// All programs that may be started by a test, a benchmark, an example, a library under test, or another program of this
/// table. Sorted by name.
pub const PROGRAMS: &[Program] = &[
    Program::new("bash", "bash"),
    Program::new("cat", "coreutils"),
    Program::new("conntrack", "conntrack"),
    Program::new("cp", "coreutils"),
    Program::new("env", "coreutils"),
    Program::new("flock", "util-linux"),
    Program::new("haproxy", "haproxy"),
    Program::new("ip", "iproute2"),
    Program::new("ip6tables", "iptables"),
    Program::new("ip6tables-legacy", "iptables"),
    Program::new("ip6tables-legacy-restore", "iptables"),
    Program::new("ip6tables-legacy-save", "iptables"),
    Program::new("ip6tables-nft", "iptables"),
    Program::new("ip6tables-nft-restore", "iptables"),
    Program::new("ip6tables-nft-save", "iptables"),
    Program::new("ip6tables-restore", "iptables"),
    Program::new("ip6tables-save", "iptables"),
    Program::new("ipset", "ipset"),
    Program::new("iptables", "iptables"),
    Program::new("iptables-legacy", "iptables"),
    Program::new("iptables-legacy-restore", "iptables"),
    Program::new("iptables-legacy-save", "iptables"),
    Program::new("iptables-nft", "iptables"),
    Program::new("iptables-nft-restore", "iptables"),
    Program::new("iptables-nft-save", "iptables"),
    Program::new("iptables-restore", "iptables"),
    Program::new("iptables-save", "iptables"),
    Program::new("ipvsadm", "ipvsadm"),
    Program::new("modprobe", "kmod"),
    Program::new("nft", "nftables"),
    Program::new("openssl", "openssl"),
    Program::new("rmmod", "kmod"),
    Program::new("setpriv", "util-linux"),
    Program::new("sh", "dash"),
    Program::new("sleep", "coreutils"),
    Program::new("strace", "strace"),
    Program::new("unshare", "util-linux"),
];

/// The entry of a program in [`PROGRAMS`]. `None` if it is not in the table.
#[must_use]
pub fn find(name: &str) -> Option<Program> {
    PROGRAMS.iter().copied().find(|program| program.name == name)
}

/// A command that starts a program of [`PROGRAMS`]. Panics if the program is not in the table.
#[track_caller]
#[must_use]
pub fn command(name: &str) -> Command {
    assert!(
        find(name).is_some(),
        "undeclared program `{name}`: add it and its package to PROGRAMS in kernel-tests/src/programs.rs"
    );
    Command::new(name)
}

/// A command that starts the program whose path is in an environment variable, such as one that `cargo xtask e2e` has built. Panics if the
/// variable is not set.
#[track_caller]
#[must_use]
pub fn from_variable(name: &str) -> Command {
    let path = std::env::var_os(name);
    Command::new(
        path.unwrap_or_else(|| panic!("the environment variable {name} is not set: run `cargo xtask e2e`")),
    )
}

/// A command that starts a program that the user named, such as kube-proxy in a benchmark.
#[must_use]
pub fn given(path: &Path) -> Command {
    Command::new(path)
}

/// A command that starts the running program again, for parts of a test that need a separate process. Panics if the path of the
/// running program cannot be read.
#[track_caller]
#[must_use]
pub fn this_program() -> Command {
    let path = std::env::current_exe()
        .unwrap_or_else(|error| panic!("cannot read the path of the running program: {error}"));
    Command::new(path)
}

/// A command that starts an example of the workspace, from the folder into which cargo built it next to the running test. Panics if it
/// was not built.
#[track_caller]
#[must_use]
pub fn example(name: &str) -> Command {
    let path = built(Path::new("examples").join(name));
    let path = path.unwrap_or_else(|| {
        panic!("the example {name} is not built: run `cargo build --package kernlink-examples --examples`")
    });
    Command::new(path)
}

/// A command that starts `kernlink-agent`: the program that the environment variable `KERNLINK_E2E_AGENT` names, else the one in the folder into
/// which cargo built it next to the running test. Panics if it was not built.
#[track_caller]
#[must_use]
pub fn agent() -> Command {
    if let Some(path) = std::env::var_os("KERNLINK_E2E_AGENT") {
        return Command::new(path);
    }
    let path = built(PathBuf::from("kernlink-agent"));
    let path = path.unwrap_or_else(|| {
        panic!("kernlink-agent is not built: run `cargo build --package kernlink-agent --bins`")
    });
    Command::new(path)
}

/// A file in the folder into which cargo built the workspace. `None` if it does not exist.
#[track_caller]
fn built(file: PathBuf) -> Option<PathBuf> {
    let path = std::env::current_exe()
        .unwrap_or_else(|error| panic!("reading the path of the running program: {error}"));
    let path = path.ancestors().nth(2).map(|folder| folder.join(file));
    path.filter(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_program_is_started() {
        let output = command("sh").args(["-c", "echo started"]).output().unwrap();
        assert_eq!(output.stdout, b"started\n");
    }

    #[test]
    #[should_panic(expected = "undeclared program `true`: add it and its package to PROGRAMS")]
    fn starting_an_undeclared_program_panics() {
        let _ = command("true");
    }

    #[test]
    #[should_panic(expected = "undeclared program `/bin/sh`")]
    fn a_path_is_not_accepted_as_a_program() {
        let _ = command("/bin/sh");
    }

    #[test]
    fn the_table_is_sorted_and_without_duplicates() {
        assert!(PROGRAMS.is_sorted_by(|one, other| one.name < other.name));
    }
}
