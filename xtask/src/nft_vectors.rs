//! `cargo xtask nft-vectors`: reads and writes the messages that the tests of google/nftables expect, which are not part of this repository.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{
    provision::inherited,
    step::{self, Step},
    workspace::Workspace,
};

/// The environment variable from which the test reads the folder.
const FOLDER_VARIABLE: &str = "KERNLINK_NFT_VECTORS";
const PACKAGE: &str = "kernlink-nftables";
const TEST: &str = "messages_of_other_programs_are_read_and_written_the_same";
const TIME_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Prints counts and differences. False if a message is not written as it was read.
pub(crate) fn run(workspace: &Workspace, folder: &Path) -> Result<bool> {
    let folder = fs::canonicalize(folder).with_context(|| format!("nft-vectors: {}", folder.display()))?;
    let arguments = [
        "test",
        "--package",
        PACKAGE,
        "--all-features",
        "--lib",
        "--no-run",
    ];
    let executables = workspace.build(&arguments)?;
    let Some(executable) = executables.iter().find(|executable| executable.is_test) else {
        bail!("cargo did not build the unit tests of {PACKAGE}");
    };
    let mut environment = inherited();
    environment.insert(FOLDER_VARIABLE.to_owned(), folder.to_string_lossy().into_owned());
    let step = Step {
        name: executable.name(),
        program: executable.path.clone(),
        arguments: [TEST, "--nocapture"].map(str::to_owned).to_vec(),
        folder: executable.folder.clone(),
        environment,
        time_limit: TIME_LIMIT,
        show: true,
    };
    step::run_tests("nft-vectors", &step, workspace.target())
}
