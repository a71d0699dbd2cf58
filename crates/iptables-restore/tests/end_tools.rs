//! The end of the tools of a process. In a file of its own: later tests of the process could start none.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use kernlink_iptables_restore::{Error, Invocation, LocalRunner, Runner, end_tools};

/// A script that no test waits for.
fn invocation(script: &str) -> Invocation {
    Invocation {
        program: "sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: BTreeMap::new(),
        stdin: Vec::new(),
        timeout: Duration::from_secs(1000),
        output_limit: 1000,
    }
}

#[test]
fn a_tool_that_hangs_ends_with_the_process_and_no_other_one_is_started() {
    let folder = std::env::temp_dir().join(format!("kernlink-end-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let fifo = folder.join("started");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // The shell waits for a process that it started: both end.
    let script = format!("echo yes > {}; sleep 1000 & wait", fifo.display());
    let running = thread::spawn(move || LocalRunner::new().run(invocation(&script)));
    assert_eq!(std::fs::read_to_string(&fifo).unwrap(), "yes\n");
    std::fs::remove_dir_all(&folder).unwrap();
    end_tools();
    let ended = Err(Error::Ended { tool: "sh".into() });
    assert_eq!(running.join().unwrap(), ended);
    assert!(matches!(&ended, Err(error) if error.is_outcome_unknown()));
    assert_eq!(LocalRunner::new().run(invocation("exit 0")), ended);
}
