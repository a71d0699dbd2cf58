//! The part that runs inside the VM: does the steps it is given and records each in a folder shared with the host.

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::step::{self, Records, Step, Stream};

/// In the shared folder: the steps, written by the host.
pub(crate) const JOB: &str = "job.json";
/// In the shared folder: the guest came up and began. Its absence means that the boot failed.
pub(crate) const STARTED: &str = "started";
/// In the shared folder: the guest has done all steps; holds the kernel's taint mask.
pub(crate) const FINISHED: &str = "finished";
/// In the shared folder: why the guest gave up.
pub(crate) const ERROR: &str = "error";
/// Begins a line of standard error on the one channel that both streams share.
pub(crate) const ERROR_MARK: u8 = 0x1e;

/// What the guest is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Kernel modules loaded before the first step; one that does not load ends the job.
    pub(crate) modules: Vec<String>,
    pub(crate) steps: Vec<Step>,
}

/// Runs the job in `folder`. Problems of a single step are in its records; an error here means the job as a whole.
pub(crate) fn run(folder: &Path) -> Result<()> {
    let result = run_steps(folder);
    if let Err(error) = &result {
        fs::write(folder.join(ERROR), format!("{error:#}")).context("writing why the guest gave up")?;
    }
    result
}

fn run_steps(folder: &Path) -> Result<()> {
    fs::write(folder.join(STARTED), "").context("writing the sign of life")?;
    let text = fs::read_to_string(folder.join(JOB)).context("reading the job")?;
    let job: Job = serde_json::from_str(&text).context("reading the job")?;
    for module in &job.modules {
        let output = std::process::Command::new("modprobe")
            .arg(module)
            .output()
            .with_context(|| format!("starting modprobe {module}"))?;
        anyhow::ensure!(
            output.status.success(),
            "the guest's kernel does not load the module {module}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    for (position, step) in job.steps.iter().enumerate() {
        step::run(step, &Records::new(folder, position), to_host)?;
    }
    let tainted = fs::read_to_string("/proc/sys/kernel/tainted").context("reading the taint mask")?;
    fs::write(folder.join(FINISHED), tainted.trim()).context("writing the end mark")?;
    Ok(())
}

/// Everything goes over standard output, which the host reads alone; the guest's standard error
/// is the host's log of the boot.
fn to_host(stream: Stream, line: &[u8]) {
    let mut framed = Vec::with_capacity(line.len() + 2);
    if stream == Stream::Err {
        framed.push(ERROR_MARK);
    }
    framed.extend_from_slice(line);
    if !line.ends_with(b"\n") {
        framed.push(b'\n');
    }
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&framed).and_then(|()| out.flush());
}
