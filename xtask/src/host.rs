//! The kernel tests on the host: as root, each binary in its own network namespace. Tests of features that the running kernel
//! lacks are skipped.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    report::TierReport,
    step::Step,
    test::{Tier, run_here},
    workspace::Workspace,
};

/// Runs the steps with `unshare`, so that objects that a test does not remove are not in the network of the host.
pub(crate) fn run(workspace: &Workspace, steps: &[Step]) -> Result<TierReport> {
    let steps: Vec<_> = steps.iter().map(in_private_namespace).collect();
    run_here(workspace, Tier::Host.name(), &steps)
}

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
