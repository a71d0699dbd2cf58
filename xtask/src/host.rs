//! The kernel tests on this host: as root, each binary in a network namespace of its own, for what its kernel has.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    report::Tier,
    step::Step,
    test::{Which, run_here},
    workspace::Workspace,
};

/// Runs the steps behind `unshare`, so that nothing a test forgets reaches the host's own network.
pub(crate) fn run(workspace: &Workspace, steps: &[Step]) -> Result<Tier> {
    let steps: Vec<_> = steps.iter().map(in_private_namespace).collect();
    run_here(workspace, Which::Host.name(), &steps)
}

/// The same step in a new network namespace, in which only its loopback device is, and that is down.
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
