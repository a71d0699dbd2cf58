//! The part that runs inside the VM: runs the steps of a job and records each in a folder shared with the host.

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::step::{self, Records, Step, Stream};

/// In the shared folder: the steps, written by the host.
pub(crate) const JOB: &str = "job.json";
/// In the shared folder: the guest has booted and starts the job. If it is missing, the boot failed.
pub(crate) const STARTED: &str = "started";
/// In the shared folder: all steps were run. Contains the taint mask of the kernel, in decimal.
pub(crate) const FINISHED: &str = "finished";
/// In the shared folder: why the job failed.
pub(crate) const ERROR: &str = "error";
/// The first byte of lines of standard error. Both streams share one channel.
pub(crate) const STDERR_PREFIX: u8 = 0x1e;

/// What the guest has to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Kernel modules to load before the first step. If loading one fails, the job fails.
    pub(crate) modules: Vec<String>,
    pub(crate) steps: Vec<Step>,
}

/// Runs the job in `folder`.
///
/// # Errors
///
/// If the job cannot be run. Failures of single steps are in their records.
pub(crate) fn run(folder: &Path) -> Result<()> {
    let result = run_steps(folder);
    if let Err(error) = &result {
        fs::write(folder.join(ERROR), format!("{error:#}")).context("writing the error of the guest")?;
    }
    result
}

fn run_steps(folder: &Path) -> Result<()> {
    fs::write(folder.join(STARTED), "").context("writing the file `started`")?;
    let text = fs::read_to_string(folder.join(JOB)).context("reading the job")?;
    let job: Job = serde_json::from_str(&text).context("reading the job")?;
    for module in &job.modules {
        let output = std::process::Command::new("modprobe")
            .arg(module)
            .output()
            .with_context(|| format!("starting modprobe {module}"))?;
        anyhow::ensure!(
            output.status.success(),
            "loading the module {module} in the guest failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    for (position, step) in job.steps.iter().enumerate() {
        step::run(step, &Records::new(folder, position), to_host)?;
    }
    let tainted = fs::read_to_string("/proc/sys/kernel/tainted").context("reading the taint mask")?;
    fs::write(folder.join(FINISHED), tainted.trim()).context("writing the file `finished`")?;
    Ok(())
}

/// Writes lines of both streams to standard output. The standard error of the guest is its console, which the host records.
fn to_host(stream: Stream, line: &[u8]) {
    let mut framed = Vec::with_capacity(line.len() + 2);
    if stream == Stream::Err {
        framed.push(STDERR_PREFIX);
    }
    framed.extend_from_slice(line);
    if !line.ends_with(b"\n") {
        framed.push(b'\n');
    }
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&framed).and_then(|()| out.flush());
}
