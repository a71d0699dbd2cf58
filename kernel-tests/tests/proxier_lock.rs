//! The lock of a network namespace, in namespaces of the test's own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{programs, wait};
use kernlink_proxier::lock::{Lock, LockError};

/// Set in the child process of `a_killed_process_releases_the_lock`, which takes the lock and waits.
const CHILD: &str = "KERNLINK_TEST_HOLDS_THE_LOCK";

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
    // More than the queue of the holder has room for: `acquire` does not wait.
    one.run(|| assert!((0..5_000).all(|_| Lock::acquire().is_err_and(|error| error.is_held()))));
    drop(other.run(|| Lock::acquire().unwrap()));
    drop(lock);
    // A child process that another test starts at this moment has a copy of the socket until it executes its program.
    wait::until(|| one.run(|| Lock::acquire().map(drop)));
}

#[test]
fn a_killed_process_releases_the_lock() {
    if std::env::var_os(CHILD).is_some() {
        let _lock = Lock::acquire().unwrap();
        println!("locked");
        // Until the test kills this process, or ends: then standard input is closed.
        std::io::stdin().lines().for_each(drop);
        return;
    }
    NetNs::bare().run(|| {
        let mut child = programs::this_program()
            .args(["--exact", "a_killed_process_releases_the_lock", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.lines().any(|line| line.unwrap().contains("locked")));
        let error = Lock::acquire().unwrap_err();
        assert!(error.is_held(), "{error}");
        assert!(
            error.to_string().ends_with(&format!("by process {}", child.id())),
            "{error}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        // The socket is closed while the process ends; the kernel may finish that after `wait`.
        wait::until(|| Lock::acquire().map(drop));
    });
}
