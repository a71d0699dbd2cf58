//! The kernel tests on the host: as root, each binary in its own network namespace. Tests of features that the running kernel
//! lacks are skipped.

use std::path::PathBuf;

use crate::step::Step;

/// The same step in a new network namespace. The namespace has only a loopback device, which is down.
pub(crate) fn in_private_namespace(step: &Step) -> Step {
    let mut arguments = vec![
        "--net".to_owned(),
        "--".to_owned(),
        step.program.to_string_lossy().into_owned(),
    ];
    arguments.extend(step.arguments.iter().cloned());
    Step {
        program: PathBuf::from("unshare"),
        arguments,
        ..step.clone()
    }
}
