//! The kernel tests on the host: as root, each binary in its own network namespace. Tests of features that the running kernel
//! lacks are skipped.

use std::{env, path::PathBuf, thread};

use crate::{provision, step::Step};

/// The number of tests of one binary that run at the same time, for each processor. They wait for programs, timers and the kernel most of
/// the time.
const TESTS_PER_PROCESSOR: usize = 4;

/// The environment variable from which a test binary reads how many tests it runs at the same time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// The same step in a new network namespace. The namespace has only a loopback device, which is down.
pub(crate) fn in_private_namespace(step: &Step) -> Step {
    let mut arguments = vec![
        "--net".to_owned(),
        "--".to_owned(),
        step.program.to_string_lossy().into_owned(),
    ];
    arguments.extend(step.arguments.iter().cloned());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let tests = env::var(TEST_THREADS).unwrap_or_else(|_| (processors * TESTS_PER_PROCESSOR).to_string());
    let mut environment = step.environment.clone();
    environment.insert(TEST_THREADS.to_owned(), tests);
    Step {
        program: PathBuf::from("unshare"),
        arguments,
        environment,
        ..step.clone()
    }
}

/// The same step with a lower priority than that of other processes, if the program `nice` is installed.
pub(crate) fn with_low_priority(step: Step) -> Step {
    let Some(nice) = provision::find("nice") else {
        return step;
    };
    let program = step.program.to_string_lossy().into_owned();
    let mut arguments = vec!["-n".to_owned(), "10".to_owned(), program];
    arguments.extend(step.arguments);
    Step {
        program: nice,
        arguments,
        ..step
    }
}
