//! The part that runs inside the VM: runs the steps of a job and records each in a folder shared with the host.
//!
//! The host may add steps while the guest runs: the guest takes them in order, and waits for the next one until the host ends the list.

use std::{
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::step::{self, Records, Step, Stream};

/// In the shared folder: what to do before the first step, written by the host.
pub(crate) const JOB: &str = "job.json";
/// In the shared folder: the number of all steps, in decimal, written by the host when no step follows.
const STEPS: &str = "steps";
/// In the shared folder: the guest has booted and starts the job. If it is missing, the boot failed.
pub(crate) const STARTED: &str = "started";
/// In the shared folder: all steps were run. Contains the taint mask of the kernel, in decimal.
pub(crate) const FINISHED: &str = "finished";
/// In the shared folder: why the job failed.
pub(crate) const ERROR: &str = "error";
/// The first byte of lines of standard error. Both streams share one channel.
pub(crate) const STDERR_PREFIX: u8 = 0x1e;

/// How often the guest looks for the next step.
const INTERVAL: Duration = Duration::from_millis(200);

/// What the guest has to do before the first step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Kernel modules to load. If loading one fails, the job fails.
    pub(crate) modules: Vec<String>,
}

/// The host's end of the list of steps in a shared folder. It ends when it is dropped: the guest does not wait for a thread that panicked.
#[derive(Debug)]
pub(crate) struct Steps {
    folder: PathBuf,
    /// Those that the guest got.
    given: Vec<Step>,
    has_ended: bool,
}

impl Steps {
    /// An empty list.
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            given: Vec::new(),
            has_ended: false,
        }
    }

    pub(crate) fn given(&self) -> &[Step] {
        &self.given
    }

    /// Adds a step. The guest may be running already.
    pub(crate) fn give(&mut self, step: Step) -> Result<()> {
        let file = step_file(&self.folder, self.given.len());
        write_at_once(&file, &serde_json::to_string(&step)?)?;
        self.given.push(step);
        Ok(())
    }

    /// No step follows.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.has_ended = true;
        write_at_once(&self.folder.join(STEPS), &self.given.len().to_string())
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        // The guest ends at the time limit of the VM if this fails.
        if !self.has_ended {
            let _ = self.end();
        }
    }
}

fn step_file(folder: &Path, position: usize) -> PathBuf {
    folder.join(format!("{position}.step"))
}

/// Writes a file that the other side never sees in part.
fn write_at_once(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text).with_context(|| format!("writing {}", new.display()))?;
    fs::rename(&new, file).with_context(|| format!("renaming {} to {}", new.display(), file.display()))
}

/// The text of a file. `None` if it does not exist yet.
fn read_if_there(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", file.display())),
    }
}

/// The step at this position, as soon as the host gives it. `None` if there are fewer steps.
fn next_step(folder: &Path, position: usize) -> Result<Option<Step>> {
    loop {
        // In this order: a step is written before the number of all.
        let number = read_if_there(&folder.join(STEPS))?;
        if let Some(text) = read_if_there(&step_file(folder, position))? {
            return serde_json::from_str(&text).context("reading a step").map(Some);
        }
        if let Some(number) = number {
            let number: usize = number.parse().context("reading the number of steps")?;
            anyhow::ensure!(position >= number, "step {position} of {number} is missing");
            return Ok(None);
        }
        thread::sleep(INTERVAL);
    }
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
    let mut position = 0;
    while let Some(step) = next_step(folder, position)? {
        step::run(&step, &Records::new(folder, position), to_host)?;
        position += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str) -> Step {
        Step {
            name: name.to_owned(),
            program: "/bin/true".into(),
            arguments: Vec::new(),
            folder: "/".into(),
            environment: Default::default(),
            time_limit: Duration::from_secs(1),
            show: false,
        }
    }

    #[test]
    fn the_guest_takes_steps_in_order_while_the_host_adds_them() {
        let folder = std::env::temp_dir().join(format!("xtask-guest-steps-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut steps = Steps::new(&folder);
        steps.give(step("a")).unwrap();
        let guest = {
            let folder = folder.clone();
            thread::spawn(move || {
                let steps = (0..).map(|position| next_step(&folder, position).unwrap());
                let steps = steps.map_while(|step| step.map(|step| step.name));
                steps.collect::<Vec<_>>()
            })
        };
        steps.give(step("b")).unwrap();
        thread::sleep(3 * INTERVAL);
        assert!(!guest.is_finished(), "it waits for the end of the list");
        steps.give(step("c")).unwrap();
        steps.end().unwrap();
        assert_eq!(guest.join().unwrap(), ["a", "b", "c"]);
        let given: Vec<_> = steps.given().iter().map(|step| step.name.as_str()).collect();
        assert_eq!(given, ["a", "b", "c"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_guest_does_not_wait_for_a_host_that_panicked() {
        let folder = std::env::temp_dir().join(format!("xtask-guest-panic-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut steps = Steps::new(&folder);
        let host = thread::spawn(move || {
            steps.give(step("a")).unwrap();
            panic!("on purpose");
        });
        assert!(host.join().is_err());
        assert_eq!(next_step(&folder, 0).unwrap().unwrap().name, "a");
        // Otherwise the next call would not return.
        assert_eq!(read_if_there(&folder.join(STEPS)).unwrap().unwrap(), "1");
        assert_eq!(next_step(&folder, 1).unwrap(), None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_step_that_is_missing_is_an_error() {
        let folder = std::env::temp_dir().join(format!("xtask-guest-missing-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(STEPS), "2").unwrap();
        assert!(next_step(&folder, 1).unwrap_err().to_string().contains("missing"));
        assert_eq!(next_step(&folder, 2).unwrap(), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
