//! The lock of a network namespace, in namespaces of the test's own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command, Stdio};

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{programs, tools, wait};
use kernlink_proxier::host::lock::{Lock, LockError};
use nix::unistd::Uid;

/// Set in the child process of a test, which takes the lock, or the socket of an earlier version, and waits.
const CHILD: &str = "KERNLINK_TEST_HOLDS_THE_LOCK";

/// What a process of an earlier version has.
fn bind_socket() -> std::io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(Lock::NAME).unwrap())
}

/// Has a child process wait until its parent ends it, or ends: then standard input is closed.
fn wait_for_the_parent() {
    println!("locked");
    std::io::stdin().lines().for_each(drop);
}

/// Starts a child process for a test, and waits until it has what it takes.
fn start(mut command: Command, test: &str) -> Child {
    let mut child = command
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    assert!(output.lines().any(|line| line.unwrap().contains("locked")));
    child
}

#[test]
fn a_namespace_has_one_lock() {
    let (one, other) = (NetNs::bare(), NetNs::bare());
    let lock = one.run(|| Lock::acquire().unwrap());
    let error = one.run(|| Lock::acquire().unwrap_err());
    assert!(
        matches!(error, LockError::Held { pid: Some(pid) } if pid == std::process::id()),
        "{error:?}"
    );
    let text = format!(
        "network namespace is already programmed by process {}",
        std::process::id()
    );
    assert_eq!(error.to_string(), text);
    one.run(|| assert!((0..20).all(|_| Lock::acquire().is_err_and(|error| error.is_held()))));
    drop(other.run(|| Lock::acquire().unwrap()));
    drop(lock);
    // A child process that another test starts at this moment has a copy of the socket until it executes its program.
    wait::until(|| one.run(|| Lock::acquire().map(drop)));
}

#[test]
fn a_killed_process_releases_the_lock() {
    if std::env::var_os(CHILD).is_some() {
        let _lock = Lock::acquire().unwrap();
        return wait_for_the_parent();
    }
    NetNs::bare().run(|| {
        let mut child = start(programs::this_program(), "a_killed_process_releases_the_lock");
        let error = Lock::acquire().unwrap_err();
        assert!(error.is_held(), "{error}");
        assert!(
            error.to_string().ends_with(&format!("by process {}", child.id())),
            "{error}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        // The lock is released while the process ends; the kernel may finish that after `wait`.
        wait::until(|| Lock::acquire().map(drop));
    });
}

/// As the init container and the container of a pod in the network namespace of the host.
#[test]
fn a_process_in_another_container_keeps_the_lock() {
    const NAME: &str = "a_process_in_another_container_keeps_the_lock";
    if std::env::var_os(CHILD).is_some() {
        let _lock = Lock::acquire().unwrap();
        return wait_for_the_parent();
    }
    NetNs::bare().run(|| {
        let mut command = programs::command("unshare");
        command.args(["--pid", "--mount", "--fork", "--kill-child"]);
        command.arg(programs::this_program().get_program());
        let mut child = start(command, NAME);
        let error = Lock::acquire().unwrap_err();
        assert!(matches!(error, LockError::Held { pid: None }), "{error:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        wait::until(|| Lock::acquire().map(drop));
    });
}

#[test]
fn a_process_without_privileges_cannot_keep_an_agent_out() {
    const NAME: &str = "a_process_without_privileges_cannot_keep_an_agent_out";
    if std::env::var_os(CHILD).is_some() {
        let user = Uid::from_raw(65_534);
        nix::unistd::setresuid(user, user, user).unwrap();
        let error = Lock::acquire().unwrap_err();
        assert!(matches!(error, LockError::NotPermitted), "{error:?}");
        let _socket = bind_socket().unwrap();
        return wait_for_the_parent();
    }
    NetNs::bare().run(|| {
        let mut child = start(programs::this_program(), NAME);
        for _ in 0..2 {
            let lock = wait::until(Lock::acquire);
            assert!(lock.is_exclusive());
            let error = Lock::acquire().unwrap_err();
            assert!(
                matches!(error, LockError::Held { pid: Some(pid) } if pid == std::process::id()),
                "{error:?}"
            );
        }
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

/// As in a container without capabilities in the network namespace of the host.
#[test]
fn a_process_of_root_without_capabilities_cannot_keep_an_agent_out() {
    const NAME: &str = "a_process_of_root_without_capabilities_cannot_keep_an_agent_out";
    if std::env::var_os(CHILD).is_some() {
        let error = Lock::acquire().unwrap_err();
        assert!(matches!(error, LockError::NotPermitted), "{error:?}");
        // The process before may still be ending: its parent, `unshare`, was killed first.
        let _socket = wait::until(bind_socket);
        return wait_for_the_parent();
    }
    NetNs::bare().run(|| {
        // One of this PID namespace, one of another one, and one that has all capabilities in a user namespace of its own.
        let limited = |command: &mut Command| {
            command.args(["--no-new-privs", "--inh-caps", "-all", "--bounding-set", "-all"]);
        };
        let mut visible = programs::command("setpriv");
        limited(&mut visible);
        let mut hidden = programs::command("unshare");
        hidden.args(["--pid", "--mount", "--fork", "--kill-child", "setpriv"]);
        limited(&mut hidden);
        let mut user_namespace = programs::command("unshare");
        user_namespace.args(["--user", "--map-root-user"]);
        for mut command in [visible, hidden, user_namespace] {
            command.arg(programs::this_program().get_program());
            let mut child = start(command, NAME);
            for _ in 0..2 {
                let lock = wait::until(Lock::acquire);
                assert!(lock.is_exclusive());
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
    });
}

#[test]
fn a_process_of_an_earlier_version_and_one_of_this_version_keep_each_other_out() {
    NetNs::bare().run(|| {
        let earlier = bind_socket().unwrap();
        let error = Lock::acquire().unwrap_err();
        assert!(
            matches!(error, LockError::Held { pid: Some(pid) } if pid == std::process::id()),
            "{error:?}"
        );
        drop(earlier);
        let _lock = wait::until(Lock::acquire);
        assert_eq!(bind_socket().unwrap_err().kind(), ErrorKind::AddrInUse);
    });
}

#[test]
fn the_lock_remains_when_the_rules_of_the_host_are_flushed() {
    NetNs::bare().run(|| {
        // As a saved ruleset without the flag leaves it.
        tools::must("nft", &["add", "table", "inet", Lock::NAME]);
        let lock = Lock::acquire().unwrap();
        tools::must("nft", &["flush", "ruleset"]);
        let rules = tools::must("nft", &["list", "ruleset"]);
        let comment = format!("comment \"process {} of pid:[", std::process::id());
        assert!(
            rules.contains("table inet kernlink-proxier {") && rules.contains(&comment),
            "{rules}"
        );
        assert!(Lock::acquire().is_err_and(|error| error.is_held()));
        tools::run("nft", &["delete", "table", "inet", Lock::NAME]).unwrap_err();
        drop(lock);
        wait::until(|| match tools::must("nft", &["list", "ruleset"]) {
            rules if rules.is_empty() => Ok(()),
            rules => Err(rules),
        });
    });
}
