//! nftables mode on the running kernel, with 1 000 to 50 000 Services of ten endpoints: a first sync, the change of one endpoint, a restart
//! under traffic, memory, other programs on the node while Services change all the time, and connections.
//!
//! Needs root; for other programs, `nft` and the tools of iptables.

mod neighbours;
mod packets;
mod rolling;
mod syncs;

use std::time::{Duration, Instant};

use kernlink_benches::Result;
use kernlink_benches::cluster::{self, Cluster};
use kernlink_benches::memory::child;
use kernlink_proxier::nftables_mode::{Kernel, Proxier};

/// As in the program `kernlink-agent`.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SIZES: [u32; 3] = [1_000, 10_000, 50_000];
/// The environment variable with the parts to run, separated by commas: `syncs`, `restart`, `resident`, `chains`, `neighbours`, `rolling`,
/// `packets`. Without it all run.
const PARTS: &str = "KERNLINK_BENCH_NFTABLES";
/// The environment variable with the number of Services for a process that prints its resident memory.
const RESIDENT: &str = "KERNLINK_BENCH_RESIDENT";

/// A part of the benchmark.
type Part = fn() -> Result<()>;

fn main() -> Result<()> {
    if let Some(size) = child(RESIDENT)? {
        return syncs::print_resident(size);
    }
    let parts = std::env::var(PARTS).ok();
    let is_requested = |part: &str| {
        let mut requested = parts.iter().flat_map(|parts| parts.split(','));
        parts.is_none() || requested.any(|requested| requested == part)
    };
    let all: [(&str, Part); 7] = [
        ("syncs", syncs::run),
        ("restart", syncs::restart),
        ("resident", syncs::resident),
        ("chains", neighbours::chains),
        ("neighbours", neighbours::run),
        ("rolling", rolling::run),
        ("packets", packets::run),
    ];
    for (part, run) in all {
        if is_requested(part) {
            run()?;
        }
    }
    Ok(())
}

/// A proxier on the calling thread's network namespace with the complete model, before its first sync.
fn proxier(cluster: &Cluster) -> Result<Proxier> {
    let mut proxier = cluster.proxier(&cluster::nftables_config()?, Kernel::open()?)?;
    proxier.set_clock(Instant::now);
    Ok(proxier)
}

/// The time of a sync, all of whose steps must succeed.
fn sync(proxier: &mut Proxier) -> Result<Duration> {
    let start = Instant::now();
    let synced = proxier.sync(start)?;
    let time = start.elapsed();
    if synced.is_success() {
        return Ok(time);
    }
    let text = synced.to_string();
    let lines: Vec<&str> = text.lines().take(5).collect();
    Err(lines.join("\n").into())
}
