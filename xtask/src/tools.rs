//! Programs that cargo installs below the target folder, for this workspace alone.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{
    retry::retry,
    step,
    workspace::{Workspace, output},
};

/// A program of crates.io.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    /// Of the package, and of the program.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// What makes it print its version.
    pub(crate) asked: &'static [&'static str],
    /// Further options of `cargo install`.
    pub(crate) options: &'static [&'static str],
    /// Whether it runs for so long that optimisation is worth its time.
    pub(crate) is_optimised: bool,
}

impl Tool {
    /// The path of the program. Builds it if it is missing or has another version.
    pub(crate) fn program(&self, workspace: &Workspace) -> Result<PathBuf> {
        let Self { name, version, .. } = self;
        let folder = workspace.target().join("tools");
        let program = folder.join("bin").join(name);
        let present = output(Command::new(&program).args(self.asked));
        if present.is_ok_and(|text| text.contains(version)) {
            return Ok(program);
        }
        eprintln!("xtask: building {name} {version} in {}", folder.display());
        retry(&format!("building {name}"), || {
            let mut command = workspace.cargo();
            command
                .args([
                    "install",
                    "--quiet",
                    "--locked",
                    "--version",
                    version,
                    name,
                    "--root",
                ])
                .arg(&folder)
                .args(self.options);
            if !self.is_optimised {
                command
                    .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
                    .env("CARGO_PROFILE_RELEASE_LTO", "off")
                    .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
            }
            step::succeed_in_group(&mut command)
        })?;
        Ok(program)
    }
}
