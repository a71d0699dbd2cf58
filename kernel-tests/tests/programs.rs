//! The programs that kernel tests can start.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
};

use kernlink_iptables_restore::{
    ChainName, Client, Completion, Edit, Error, Family, Invocation, Iptables, Restore, Runner, Save, Table,
    Variant,
};
use kernlink_kernel_tests::{programs, tools};

/// Whether `cargo xtask` started this test; otherwise `PATH` is that of the user.
fn path_is_restricted() -> bool {
    std::env::var_os("KERNLINK_TIER").is_some()
}

#[test]
fn the_path_of_kernel_tests_holds_declared_programs_only() {
    if !path_is_restricted() {
        return;
    }
    let path = std::env::var_os("PATH").unwrap();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    for entry in std::fs::read_dir(&folders[0]).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(programs::find(&name).is_some(), "{name}");
    }
    for program in programs::PROGRAMS {
        assert!(folders[0].join(program.name).exists(), "{program:?}");
    }
}

#[test]
fn an_undeclared_program_is_not_found_by_a_declared_one_either() {
    if !path_is_restricted() {
        return;
    }
    let status = programs::command("sh")
        .args(["-c", "exec tail /dev/null"])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(127));
}

const WITHOUT_PROGRAMS: &str = "KERNLINK_TEST_WITHOUT_PROGRAMS";

/// As an error it would look like the answer of a kernel that lacks a feature, for which a test is skipped.
#[test]
fn a_program_that_is_not_installed_fails_the_test() {
    if std::env::var_os(WITHOUT_PROGRAMS).is_some() {
        let _ = tools::run("ip", &["link", "show"]);
        return;
    }
    let test = "a_program_that_is_not_installed_fails_the_test";
    let output = programs::this_program()
        .args(["--exact", test, "--nocapture"])
        .env(WITHOUT_PROGRAMS, "1")
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && printed.contains("ip is not installed; install the Debian package iproute2"),
        "{output:?}"
    );
}

/// Records the names of the tools that it is asked to start, and has none of them.
#[derive(Clone, Default)]
struct NoTools(Arc<Mutex<BTreeSet<String>>>);

impl Runner for NoTools {
    fn run(&mut self, invocation: Invocation) -> Result<Completion, Error> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(invocation.program.clone());
        drop(names);
        Err(Error::NotStarted {
            tool: invocation.program,
            kind: std::io::ErrorKind::NotFound,
            text: "not there".to_owned(),
        })
    }
}

/// The library looks for the tools in the system's folders, not in `PATH`, so what it starts is checked by name.
#[test]
fn the_tools_that_iptables_restore_starts_are_declared() {
    let tools = NoTools::default();
    let chain: ChainName = "KL-A".parse().unwrap();
    for backend in [None, Some(Variant::Legacy), Some(Variant::Nft)] {
        for family in Family::ALL {
            let mut command = Client::with_runner(Box::new(tools.clone()));
            if let Some(backend) = backend {
                command = command.with_variant(backend);
            }
            command.save(&Save::all(family)).unwrap_err();
            let restore = Restore::new(family).with(Table::Nat, Edit::declare(chain));
            command.restore(&restore).unwrap_err();
        }
    }
    let started = tools.0.lock().unwrap();
    assert!(
        started.contains("ip6tables-legacy-restore") && started.contains("iptables-save"),
        "{started:?}"
    );
    for name in started.iter() {
        assert!(programs::find(name).is_some(), "{name}");
    }
}
