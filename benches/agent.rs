//! `kernlink-agent` as a process of its own: a benchmark starts itself again with an environment variable, so the agent is the same
//! code, built with the same profile.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};

use kernlink_kernel_tests::programs;

use crate::Result;
use crate::cluster::{NODE_NAME, PODS};

/// Set for a process that is the agent. Its value is the file of a control group that the process joins first, or empty.
const AGENT: &str = "KERNLINK_BENCH_AGENT";

/// Runs the agent if this process was started for it.
#[must_use]
pub fn main_of_child() -> Option<ExitCode> {
    let processes = std::env::var_os(AGENT)?;
    if !processes.is_empty()
        && let Err(error) = fs::write(&processes, "0")
    {
        eprintln!("{}: {error}", processes.display());
        return Some(ExitCode::FAILURE);
    }
    Some(kernlink_agent::main(std::env::args_os().skip(1)))
}

/// An agent that runs. It is killed at the end.
#[derive(Debug)]
pub struct Agent(Child);

/// How an agent is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// `--proxy-mode`.
    pub mode: &'a str,
    /// The folder of manifests.
    pub manifests: &'a Path,
    /// The file with the processes of a control group that the agent and the tools that it starts are in.
    pub control_group: Option<&'a Path>,
}

/// The memory of a process, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// `VmRSS`: resident now.
    pub resident: u64,
    /// `VmHWM`: the largest it was.
    pub peak: u64,
}

impl Agent {
    /// Starts an agent in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(start: Start<'_>) -> Result<Self> {
        let flags = [
            ("--proxy-mode", start.mode),
            ("--node-name", NODE_NAME),
            ("--cluster-cidr", PODS),
            // All namespaces share the sysctls of connection tracking.
            ("--conntrack-max-per-core", "0"),
            ("--conntrack-tcp-timeout-established", "0s"),
            ("--conntrack-tcp-timeout-close-wait", "0s"),
        ];
        let mut command = programs::this_program();
        command
            .args(flags.into_iter().flat_map(|(flag, value)| [flag, value]))
            .args([OsStr::new("--watch"), start.manifests.as_os_str()])
            .env(
                AGENT,
                start.control_group.map_or_else(OsString::new, OsString::from),
            )
            .stderr(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    /// Waits until its log has a sync of all Services.
    ///
    /// # Errors
    /// If a sync fails in part, or the process ends.
    pub fn wait_for_sync(&mut self) -> Result<()> {
        let stderr = self.0.stderr.take().ok_or("no log")?;
        let mut log = Vec::new();
        for line in BufReader::new(stderr).lines() {
            let line = line?;
            let is_synced = line.contains(" synced done=");
            log.push(line);
            if is_synced {
                return Ok(());
            }
            if log.last().is_some_and(|line| line.contains("synced in part")) {
                break;
            }
        }
        Err(format!("the agent did not sync:\n{}", log.join("\n")).into())
    }

    /// The memory of the process.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn memory(&self) -> Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let field = |name: &str| -> Result<u64> {
            let mut lines = status.lines().filter_map(|line| line.strip_prefix(name));
            let value = lines.next().ok_or_else(|| format!("no {name}"))?;
            Ok(value.trim().trim_end_matches(" kB").parse()?)
        };
        Ok(Memory {
            resident: field("VmRSS:")?,
            peak: field("VmHWM:")?,
        })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
