//! What the container of `kernlink-agent` is charged: the memory of the agent, of the tools that it starts, and of the kernel objects that they
//! make, in a control group with the limit of the DaemonSet.
//!
//! For each mode that runs on the running kernel: an agent on an empty node, and then another one that finds its Services served. Objects are
//! read from a folder of manifests.
//!
//! Needs root and a control group hierarchy with the controller `memory`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use kernlink_benches::agent::{Agent, Start, main_of_child};
use kernlink_benches::cluster::{Cluster, ENDPOINTS};
use kernlink_benches::control_group::ControlGroup;
use kernlink_benches::runs::in_new_namespace;
use kernlink_benches::{Result, exit_code, figure};
use kernlink_kernel_tests::mounts::select_iptables_variant;
use kernlink_kernel_tests::tools;

/// As in the program `kernlink-agent`.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SIZE: u32 = 10_000;
/// From the first sync. After 30 seconds the agent reads the whole kernel; then it has time to free what that needed.
const PAUSE: Duration = Duration::from_secs(75);
/// The environment variable with the only case to run.
const CASE: &str = "KERNLINK_BENCH_CONTAINER";
const DAEMON_SET: &str = include_str!("../dist/kubernetes/daemonset.yaml");

/// The names of the figures, the modes, and the variant of the tools.
const CASES: [(&str, &str, Option<&str>); 4] = [
    ("nftables", "nftables", None),
    ("iptables_nft", "iptables", Some("nft")),
    ("iptables", "iptables", Some("legacy")),
    ("userspace", "userspace", Some("nft")),
];

fn main() -> ExitCode {
    if let Some(code) = main_of_child() {
        return code;
    }
    exit_code(run())
}

fn run() -> Result<()> {
    let requested = std::env::var(CASE).ok();
    if let Some(requested) = &requested
        && !CASES.iter().any(|(name, ..)| name == requested)
    {
        let names = CASES.map(|(name, ..)| name).join(", ");
        return Err(format!("{CASE}={requested:?}: valid are {names}").into());
    }
    let limit = limit_of_daemon_set()?;
    println!("the limit of the DaemonSet is {} MiB", limit >> 20);
    // On a tmpfs.
    let folder = Folder::new("/dev/shm")?;
    let manifests = folder.0.join("manifests");
    Cluster::new(SIZE).write_manifests(&manifests)?;
    for (name, mode, variant) in CASES {
        if requested.as_deref().is_some_and(|requested| requested != name) {
            continue;
        }
        in_new_namespace(|_| {
            if let Some(variant) = variant {
                select_iptables_variant(variant);
            }
            for node in ["empty", "served"] {
                let group = ControlGroup::new(&format!("kernlink-bench-{}", std::process::id()), limit)?;
                let processes = group.processes();
                let start = Start {
                    mode,
                    manifests: &manifests,
                    control_group: Some(&processes),
                };
                let mut agent = Agent::start(start)?;
                agent
                    .wait_for_sync()
                    .map_err(|error| format!("{name}: {error}"))?;
                thread::sleep(PAUSE);
                if let Some(variant) = variant {
                    check_variant(variant)?;
                }
                show(&format!("{name}.{node}.container_peak_mib"), group.peak()?)?;
                show(&format!("{name}.{node}.container_steady_mib"), group.usage()?)?;
                let reached = group.limit_reached()?;
                drop(agent);
                if reached > 0 {
                    return Err(format!("{name}: the limit was reached {reached} times").into());
                }
            }
            Ok(())
        })?;
    }
    println!("{SIZE} Services with {ENDPOINTS} endpoints each");
    Ok(())
}

fn show(name: &str, bytes: u64) -> Result<()> {
    Ok(figure(
        &format!("memory.{name}"),
        bytes as f64 / f64::from(1 << 20),
        "MiB",
    )?)
}

/// The limit of memory in the DaemonSet of `dist/`, in bytes.
fn limit_of_daemon_set() -> Result<u64> {
    let (_, rest) = DAEMON_SET
        .split_once("limits: {memory: ")
        .ok_or("the DaemonSet has no limit of memory")?;
    let (quantity, _) = rest.split_once('}').ok_or("the limit of memory does not end")?;
    let units = [("Mi", 20), ("Gi", 30)];
    let (number, shift) = units
        .into_iter()
        .find_map(|(suffix, shift)| Some((quantity.strip_suffix(suffix)?, shift)))
        .ok_or_else(|| format!("invalid limit of memory {quantity:?}: valid is a number with Mi or Gi"))?;
    Ok(number.parse::<u64>()? << shift)
}

/// Fails if the Services are not in the tables of this variant. The tool is not in the control group.
fn check_variant(variant: &str) -> Result<()> {
    let rules = tools::run(&format!("iptables-{variant}-save"), &["-t", "nat"])?;
    println!("{variant}: {} lines in table nat", rules.lines().count());
    if rules.contains("-A PREROUTING") && rules.contains("KUBE-") {
        Ok(())
    } else {
        Err(format!("the agent did not write {variant} tables").into())
    }
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(parent: &str) -> Result<Self> {
        let folder = Path::new(parent).join(format!("kernlink-bench-{}", std::process::id()));
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
