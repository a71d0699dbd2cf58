//! `cargo xtask nft-vectors`: reads and writes the messages that the tests of google/nftables expect, which are not part of this repository.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::workspace::{Workspace, succeed};

/// The environment variable from which the test reads the folder.
const FOLDER_VARIABLE: &str = "KERNLINK_NFT_VECTORS";
const TEST: &str = "messages_of_other_programs_are_read_and_written_the_same";

/// Prints counts and differences. Fails if a message is not written as it was read.
pub(crate) fn run(workspace: &Workspace, folder: &Path) -> Result<()> {
    let folder = fs::canonicalize(folder).with_context(|| format!("nft-vectors: {}", folder.display()))?;
    let package = [
        "test",
        "--package",
        "kernlink-nftables",
        "--all-features",
        "--lib",
    ];
    let mut command = workspace.cargo();
    command
        .args(package)
        .args([TEST, "--", "--nocapture"])
        .env(FOLDER_VARIABLE, &folder);
    succeed(&mut command)
}
