//! `cargo xtask fuzz`: runs the fuzz targets, which are a workspace of their own.

use std::{
    fs::{self, File},
    num::NonZeroU64,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use cargo_metadata::{MetadataCommand, TargetKind};

use crate::{
    step::{Group, succeed_in_group},
    tools::Tool,
    workspace::Workspace,
};

const CARGO_FUZZ: Tool = Tool {
    name: "cargo-fuzz",
    version: "0.13.2",
    asked: &["fuzz", "--version"],
    options: &[],
    is_optimised: true,
};
const MINUTE: Duration = Duration::from_secs(60);
/// The number of lines of its output that are shown of a target that failed.
const LINES: usize = 40;

/// What the command line requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Only targets with this text in their names.
    pub(crate) part: Option<String>,
    /// The time of each target in seconds; `None`: 60.
    pub(crate) seconds: Option<NonZeroU64>,
}

/// Runs each target, and prints how many inputs it had. False if one failed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let folder = workspace.root().join("fuzz");
    let part = options.part.as_deref().unwrap_or_default();
    let mut targets = targets(&folder)?;
    targets.retain(|target| target.contains(part));
    if targets.is_empty() {
        bail!("fuzz: no target has `{part}` in its name");
    }
    let cargo_fuzz = CARGO_FUZZ.program(workspace)?;
    let command = |verb: &str| {
        let mut command = Command::new(&cargo_fuzz);
        // cargo-fuzz passes options that a stable compiler takes with this variable only.
        command
            .args(["fuzz", verb])
            .current_dir(&folder)
            .env("RUSTC_BOOTSTRAP", "1");
        command
    };
    for target in &targets {
        succeed_in_group(command("build").arg(target))?;
    }
    let seconds = options.seconds.map_or(MINUTE.as_secs(), NonZeroU64::get);
    let mut failed = Vec::new();
    for target in &targets {
        // New inputs are written to the first folder.
        let found = workspace.target().join("fuzz").join(target);
        fs::create_dir_all(&found).with_context(|| format!("creating {}", found.display()))?;
        let corpus = folder.join("corpus").join(target);
        let mut command = command("run");
        command.arg(target).arg(&found);
        if corpus.is_dir() {
            command.arg(&corpus);
        }
        command.args(["--", &format!("-max_total_time={seconds}"), "-timeout=20"]);
        let (success, text) = run_to_end(&mut command, &found.with_extension("log"))?;
        match runs(&text).filter(|_| success) {
            Some(runs) => println!("good    {runs:>10} inputs  {target}"),
            None => {
                println!("FAILED  {target}");
                let lines: Vec<&str> = text.lines().collect();
                println!("{}", lines[lines.len().saturating_sub(LINES)..].join("\n"));
                failed.push(target.as_str());
            }
        }
    }
    if failed.is_empty() {
        println!("{} targets, {seconds} seconds each", targets.len());
    } else {
        println!("failed: {}; the inputs are in fuzz/artifacts/", failed.join(", "));
    }
    Ok(failed.is_empty())
}

/// Runs a command, and returns whether it succeeded and what it wrote to the standard error, which is recorded in a file. An interrupt
/// kills it with the processes that it started.
fn run_to_end(command: &mut Command, log: &Path) -> Result<(bool, String)> {
    let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let status = Group::spawn(command)?.wait_while(|_| true)?;
    let text = fs::read(log).with_context(|| format!("reading {}", log.display()))?;
    let success = status.is_some_and(|status| status.success());
    Ok((success, String::from_utf8_lossy(&text).into_owned()))
}

/// The names of the targets, in order.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let manifest = folder.join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(&manifest).no_deps().exec();
    let metadata = metadata.with_context(|| format!("reading {}", manifest.display()))?;
    let targets = metadata.packages.into_iter().flat_map(|package| package.targets);
    let programs = targets.filter(|target| target.kind.contains(&TargetKind::Bin));
    let mut names: Vec<String> = programs.map(|target| target.name).collect();
    names.sort();
    Ok(names)
}

/// The number of inputs, which libFuzzer prints at the end.
fn runs(output: &str) -> Option<u64> {
    let line = output.lines().rev().find_map(|line| line.strip_prefix("Done "))?;
    line.split_once(" runs in ")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_inputs_is_that_of_the_last_line() {
        let text = "#2 INITED cov: 5\nDone 1234 runs in 61 second(s)\n";
        assert_eq!(runs(text), Some(1234));
        assert_eq!(runs("==1== ERROR: libFuzzer: deadly signal\n"), None);
    }

    #[test]
    fn a_target_fails_with_its_output() {
        let log = std::env::temp_dir().join(format!("xtask-fuzz-{}", std::process::id()));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo to the output; echo to the error >&2; exit 77"]);
        let end = run_to_end(&mut command, &log).unwrap();
        assert_eq!(end, (false, "to the error\n".to_owned()));
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn each_target_is_a_program_of_the_workspace() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let targets = targets(&root.join("fuzz")).unwrap();
        let files = fs::read_dir(root.join("fuzz/fuzz_targets")).unwrap();
        let mut files: Vec<String> = files
            .map(|file| {
                file.unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        files.sort();
        assert_eq!(targets, files);
    }
}
