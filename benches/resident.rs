//! How much memory `kernlink-agent` has after it programmed the Services of a folder of manifests.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use kernlink_benches::agent::{Agent, Memory, Start, main_of_child};
use kernlink_benches::cluster::{Cluster, ENDPOINTS};
use kernlink_benches::runs::in_new_namespace;
use kernlink_benches::{Result, exit_code, figure};

/// As in the program `kernlink-agent`.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// On a tmpfs.
const FOLDER: &str = "/dev/shm/kernlink-bench-manifests";
/// The time that the agent has to free what the sync needed, and its allocator to return it.
const PAUSE: Duration = Duration::from_secs(20);
const SIZE: u32 = 10_000;

fn main() -> ExitCode {
    if let Some(code) = main_of_child() {
        return code;
    }
    exit_code(run())
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

/// The memory of an agent in the calling thread's network namespace after its first sync, with the objects of a cluster.
fn memory(cluster: &Cluster) -> Result<Memory> {
    let folder = Path::new(FOLDER);
    cluster.write_manifests(folder)?;
    let start = Start {
        mode: "ipvs",
        manifests: folder,
        control_group: None,
    };
    let mut agent = Agent::start(start)?;
    let memory = agent.wait_for_sync().and_then(|()| {
        thread::sleep(PAUSE);
        agent.memory()
    });
    fs::remove_dir_all(folder)?;
    memory
}
