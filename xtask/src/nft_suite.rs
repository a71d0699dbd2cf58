//! `cargo xtask nft-suite`: copies the rules of the test suite of `nft`, which is not part of this repository.

use std::{fs, os::unix::fs::symlink, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use kernlink_kernel_tests::programs::PROGRAMS;

use crate::{
    host, programs,
    provision::{self, inherited},
    step::{self, Step},
    workspace::{KERNEL_TESTS, Workspace},
};

/// The environment variable from which the test reads the folder.
const FOLDER_VARIABLE: &str = "KERNLINK_NFT_SUITE";
const TEST: &str = "every_rule_of_the_suite_is_copied";
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);

/// What the command line requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `tests` of the sources of nftables.
    pub(crate) folder: PathBuf,
    /// The program; `None`: the installed one.
    pub(crate) nft: Option<PathBuf>,
}

/// Prints counts and differences. False if a rule is not copied.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    ensure!(provision::is_root(), "nft-suite requires root");
    let folder = fs::canonicalize(&options.folder)
        .with_context(|| format!("nft-suite: {}", options.folder.display()))?;
    provision::install(&[PROGRAMS])?;
    let mut path = programs::folder(workspace.target())?.into_os_string();
    if let Some(nft) = &options.nft {
        let nft = fs::canonicalize(nft).with_context(|| format!("--nft: {}", nft.display()))?;
        let links = workspace.target().join("xtask/nft-suite");
        fs::create_dir_all(&links).with_context(|| format!("creating {}", links.display()))?;
        let link = links.join("nft");
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link).with_context(|| format!("removing {}", link.display()))?;
        }
        symlink(&nft, &link).with_context(|| format!("linking {}", link.display()))?;
        let mut both = links.into_os_string();
        both.push(":");
        both.push(path);
        path = both;
    }
    let arguments = [
        "test",
        "--package",
        KERNEL_TESTS,
        "--test",
        "nftables",
        "--no-run",
    ];
    let executables = workspace.build(&arguments.map(str::to_owned))?;
    let Some(executable) = executables
        .iter()
        .find(|executable| executable.target == "nftables")
    else {
        bail!("cargo did not build the test `nftables` of {KERNEL_TESTS}");
    };
    let mut environment = inherited();
    environment.insert("PATH".to_owned(), path.to_string_lossy().into_owned());
    environment.insert(FOLDER_VARIABLE.to_owned(), folder.to_string_lossy().into_owned());
    let step = Step {
        name: executable.target.clone(),
        program: executable.path.clone(),
        arguments: [TEST, "--nocapture"].map(str::to_owned).to_vec(),
        folder: executable.folder.clone(),
        environment,
        time_limit: TIME_LIMIT,
        show: true,
    };
    step::run_tests(
        "nft-suite",
        &host::in_private_namespace(&step),
        workspace.target(),
    )
}
