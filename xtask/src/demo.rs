//! `cargo xtask demo`: installs what the demo needs, and runs it in the best mode that this host can.

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Context, Result};
use kernlink_kernel_tests::programs::Program;

use crate::{e2e::Mode, provision, workspace::Workspace};

/// What the demo starts in iptables mode and in IPVS mode.
const IPTABLES_PROGRAMS: &[Program] = &[
    Program::new("iptables-save", "iptables"),
    Program::new("iptables-restore", "iptables"),
    Program::new("ip6tables-save", "iptables"),
    Program::new("ip6tables-restore", "iptables"),
];

/// What it starts in IPVS mode in addition.
const IPVS_PROGRAMS: &[Program] = &[Program::new("modprobe", "kmod")];

/// Why the demo cannot send packets on this host. `None` if it can.
fn obstacle(is_root: bool, missing: &[Program], failure: Option<&str>) -> Option<String> {
    if !missing.is_empty() {
        let programs = provision::list(missing);
        let why = failure.map(|failure| format!(": {failure}")).unwrap_or_default();
        return Some(format!("missing: {programs}{why}"));
    }
    (!is_root).then(|| "only root can create network namespaces and program them".to_owned())
}

/// Runs the demo with these files, or with its own. Without what a mode with packets needs it reports what is missing, and shows the plan for an
/// in-memory kernel.
pub(crate) fn run(workspace: &Workspace, mode: Option<Mode>, files: &[String]) -> Result<ExitCode> {
    let mode = mode.unwrap_or(Mode::Nftables);
    let programs: &[&[Program]] = match mode {
        Mode::Nftables => &[],
        Mode::Iptables => &[IPTABLES_PROGRAMS],
        Mode::Ipvs => &[IPTABLES_PROGRAMS, IPVS_PROGRAMS],
    };
    let failure = provision::install(programs).err();
    let failure = failure.map(|error| format!("{error:#}"));
    let missing = provision::missing(programs);
    let obstacle = obstacle(provision::is_root(), &missing, failure.as_deref());
    let folder = std::env::current_dir().context("the current folder is not known")?;
    let mut command = workspace.cargo();
    command
        .args([
            "run",
            "--quiet",
            "--package",
            "kernlink-examples",
            "--example",
            "demo",
            "--",
        ])
        // The demo and the iptables tools are started with the folders of the system.
        .env("PATH", OsString::from(provision::search_path()));
    match obstacle {
        Some(obstacle) => {
            eprintln!("xtask: no packets are sent; {obstacle}");
            eprintln!("xtask: this is the plan in IPVS mode, executed on an in-memory kernel\n");
            command.arg("--in-memory");
        }
        None => {
            command.args(["--mode", mode.name()]);
        }
    }
    let status = command
        .args(files.iter().map(|file| folder.join(file)))
        .status()
        .context("starting cargo")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_demo_lacks_is_reported_with_its_package() {
        let missing = [IPTABLES_PROGRAMS[0], IPTABLES_PROGRAMS[1]];
        assert_eq!(
            obstacle(false, &missing, Some("only root can install it")).unwrap(),
            "missing: package iptables (iptables-save iptables-restore): only root can install it"
        );
        assert!(obstacle(false, &[], None).unwrap().starts_with("only root"));
        assert_eq!(obstacle(true, &[], None), None);
    }
}
