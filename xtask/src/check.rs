//! Everything about the code that is not a test.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::workspace::{Workspace, output, succeed};

/// Pinned, because its rules decide whether a commit is good. Newer ones may need a newer compiler.
const CARGO_DENY: &str = "0.20.2";

/// Format, lints, documentation, every published crate alone, licences and duplicate versions.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let cargo = |arguments: &[&str]| {
        println!("== cargo {} ==", arguments.join(" "));
        let mut command = workspace.cargo();
        command.args(arguments);
        command
    };
    succeed(&mut cargo(&["fmt", "--all", "--check"]))?;
    let clippy = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
    ];
    succeed(cargo(&clippy).args(["-D", "warnings"]))?;
    let doc = ["doc", "--quiet", "--workspace", "--no-deps", "--all-features"];
    succeed(cargo(&doc).env("RUSTDOCFLAGS", "-D warnings"))?;
    // Features of one member must not be what makes another one build.
    for package in workspace.published() {
        let arguments = [
            "check",
            "--quiet",
            "--no-default-features",
            "--package",
            package.name.as_str(),
        ];
        succeed(&mut cargo(&arguments))?;
    }
    let deny = cargo_deny(workspace)?;
    println!("== cargo deny check licenses bans sources ==");
    succeed(Command::new(deny).current_dir(workspace.root()).args([
        "--workspace",
        "--all-features",
        "check",
        "licenses",
        "bans",
        "sources",
    ]))
}

/// cargo-deny below the target folder; built if it is not there, unoptimised, because it runs for a second.
fn cargo_deny(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join("tools");
    let program = folder.join("bin/cargo-deny");
    let version = |program: &PathBuf| output(Command::new(program).arg("--version"));
    if version(&program).is_ok_and(|version| version.contains(CARGO_DENY)) {
        return Ok(program);
    }
    eprintln!(
        "xtask: building cargo-deny {CARGO_DENY} below {}",
        folder.display()
    );
    succeed(
        workspace
            .cargo()
            .args([
                "install",
                "--quiet",
                "--locked",
                "--no-default-features",
                "--version",
                CARGO_DENY,
            ])
            .args(["cargo-deny", "--root"])
            .arg(&folder)
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    )?;
    Ok(program)
}
