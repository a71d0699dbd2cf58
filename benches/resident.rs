//! How much memory `kernlink-agent` has after it programmed the Services of a folder of manifests.
//!
//! The agent is this program with another environment variable: the same code, built with the same profile.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use kernlink_benches::cluster::{Cluster, ENDPOINTS, NODE_NAME, PODS};
use kernlink_benches::runs::in_new_namespace;
use kernlink_benches::{Result, figure};
use kernlink_kernel_tests::programs;

/// As in the program `kernlink-agent`.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Set for a process that is the agent.
const AGENT: &str = "KERNLINK_BENCH_AGENT";
/// On a tmpfs.
const FOLDER: &str = "/dev/shm/kernlink-bench-manifests";
/// The time that the agent has to free what the sync needed, and its allocator to return it.
const PAUSE: Duration = Duration::from_secs(20);
const SIZE: u32 = 10_000;

fn main() -> ExitCode {
    if std::env::var_os(AGENT).is_some() {
        return kernlink_agent::main(std::env::args_os().skip(1));
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The memory of the agent, with the Services of a cluster and, as a floor, with those of the system alone.
fn run() -> Result<()> {
    for size in [0, SIZE] {
        let cluster = Cluster::new(size);
        let memory = in_new_namespace(|_| memory(&cluster))?;
        let name = format!("{size}x{ENDPOINTS}");
        for (figure_name, kib) in [("resident_mib", memory.resident), ("peak_mib", memory.peak)] {
            figure(&format!("sync.{figure_name}.{name}"), kib as f64 / 1024.0, "MiB")?;
        }
    }
    Ok(())
}

/// The memory of a process, in KiB.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// `VmRSS`: resident now.
    resident: u64,
    /// `VmHWM`: the largest it was.
    peak: u64,
}

/// The memory of an agent in the calling thread's network namespace after its first sync, with the objects of a cluster.
fn memory(cluster: &Cluster) -> Result<Memory> {
    let folder = Path::new(FOLDER);
    cluster.write_manifests(folder)?;
    let mut agent = Agent::start(folder)?;
    let memory = agent.wait_for_sync().and_then(|()| {
        thread::sleep(PAUSE);
        agent.memory()
    });
    fs::remove_dir_all(folder)?;
    memory
}

/// An agent that runs. It is killed at the end.
struct Agent(Child);

impl Agent {
    fn start(folder: &Path) -> Result<Self> {
        let flags = [
            ("--proxy-mode", "ipvs"),
            ("--node-name", NODE_NAME),
            ("--cluster-cidr", PODS),
            // All namespaces share the sysctls of connection tracking.
            ("--conntrack-max-per-core", "0"),
            ("--conntrack-tcp-timeout-established", "0s"),
            ("--conntrack-tcp-timeout-close-wait", "0s"),
        ];
        let child = programs::this_program()
            .args(flags.into_iter().flat_map(|(flag, value)| [flag, value]))
            .args([OsStr::new("--watch"), folder.as_os_str()])
            .env(AGENT, "1")
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Self(child))
    }

    /// Waits until its log has the first sync.
    fn wait_for_sync(&mut self) -> Result<()> {
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

    fn memory(&self) -> Result<Memory> {
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
