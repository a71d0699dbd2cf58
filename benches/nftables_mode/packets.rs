//! New connections to Services with nftables mode and with the rules of iptables mode, in turn; and with those of kube-proxy in both modes, if its program
//! is given.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_benches::cluster::{self, Cluster, ENDPOINTS};
use kernlink_benches::kube_proxy::{self, KubeProxy};
use kernlink_benches::traffic::{Node, measure};
use kernlink_benches::{Result, figure};
use kernlink_iptables_restore::{Client, Variant};
use kernlink_proxier::iptables_mode;
use kernlink_proxier::services::EndpointSlice;

use super::{proxier, sync};

const SIZES: [u32; 3] = [10, 10_000, 50_000];
/// The numbers of Services with which the peers are measured: what they need to write their rules grows faster.
const SIZES_OF_PEERS: [u32; 2] = [10, 10_000];
/// The environment variable with other numbers for kube-proxy, separated by commas.
const SIZES_OF_KUBE_PROXY: &str = "KERNLINK_BENCH_KUBE_PROXY";
/// Many short ones: the load of the machine changes within a second.
const ROUNDS: u32 = 45;
/// How long connections are opened at each node in a round.
const TIME: Duration = Duration::from_millis(100);
/// How long the first sync of kube-proxy, or one after a change, may take.
const LIMIT: Duration = Duration::from_secs(2 * 3_600);
/// The name of nftables mode in figures.
const KERNLINK: &str = "kernlink";

pub(crate) fn run() -> Result<()> {
    let program = kube_proxy::program();
    let of_kube_proxy = match std::env::var(SIZES_OF_KUBE_PROXY) {
        Ok(sizes) => (sizes.split(',').map(|size| size.trim().parse()))
            .collect::<std::result::Result<Vec<u32>, _>>()
            .map_err(|error| {
                format!("{SIZES_OF_KUBE_PROXY}: {error}; valid: numbers, separated by commas")
            })?,
        Err(_) => SIZES_OF_PEERS.to_vec(),
    };
    let mut sizes = SIZES.to_vec();
    sizes.extend(&of_kube_proxy);
    sizes.sort_unstable();
    sizes.dedup();
    let mut nodes = Vec::new();
    for size in sizes {
        let cluster = Cluster::new(size);
        nodes.push(Node::new(KERNLINK, size, || {
            let mut proxier = proxier(&cluster)?;
            sync(&mut proxier)?;
            Ok(proxier)
        })?);
        if SIZES_OF_PEERS.contains(&size) {
            nodes.push(Node::new("iptables_mode", size, || iptables(&cluster))?);
        }
        if let Some(program) = &program
            && of_kube_proxy.contains(&size)
        {
            nodes.push(Node::new("kube_proxy", size, || {
                nftables_of_kube_proxy(program, &cluster)
            })?);
            nodes.push(Node::new("kube_proxy_iptables", size, || {
                start(program, "iptables", &cluster).map(drop)
            })?);
        }
    }
    let all = measure(&nodes, ROUNDS, TIME)?;
    all.iter().try_for_each(|one| one.print("nftables_mode"))?;
    let own: Vec<_> = all.iter().filter(|one| one.name == KERNLINK).collect();
    for one in &own {
        let peers = all
            .iter()
            .filter(|peer| peer.size == one.size && peer.name != KERNLINK);
        for peer in peers {
            let name = format!("nftables_mode.connections_over.{}.{}", peer.name, peer.size);
            figure(&name, one.rate_over(peer), "ratio")?;
        }
    }
    let of = |size: u32| own.iter().find(|one| one.size == size);
    if let (Some(smallest), Some(largest)) = (of(SIZES[0]), of(SIZES[SIZES.len() - 1])) {
        let name = format!(
            "nftables_mode.connections_{}_over_{}",
            largest.size, smallest.size
        );
        figure(&name, largest.rate_over(smallest), "ratio")?;
    }
    Ok(())
}

/// kube-proxy after its first sync, with the number of its syncs and the time that they took. The rules that it wrote stay when it ended.
fn start(program: &Path, mode: &str, cluster: &Cluster) -> Result<(KubeProxy, (f64, f64))> {
    let mut kube_proxy = KubeProxy::start(program, mode, cluster)?;
    let start = Instant::now();
    match kube_proxy.wait_for_syncs(1.0, LIMIT)? {
        Some(syncs) => Ok((kube_proxy, syncs)),
        None => Err(format!(
            "kube-proxy in {mode} mode does not serve {} Services after {:.0?}",
            cluster.size,
            start.elapsed()
        )
        .into()),
    }
}

/// kube-proxy in nftables mode, until it has written a few changes.
fn nftables_of_kube_proxy(program: &Path, cluster: &Cluster) -> Result<()> {
    let name = format!("{}x{ENDPOINTS}", cluster.size);
    let before = Instant::now();
    let (mut kube_proxy, first) = start(program, "nftables", cluster)?;
    figure(
        &format!("nftables_mode.kube_proxy_cold_s.{name}"),
        before.elapsed().as_secs_f64(),
        "s",
    )?;
    one_change(&mut kube_proxy, cluster, first, &name)
}

/// The median time of a sync of kube-proxy after the change of one endpoint.
fn one_change(kube_proxy: &mut KubeProxy, cluster: &Cluster, first: (f64, f64), name: &str) -> Result<()> {
    let mut before = first;
    let mut times = Vec::new();
    // With many Services each takes minutes.
    let changes = if cluster.size > 10_000 { 2 } else { 6 };
    let slices: Vec<EndpointSlice> = (cluster.replacements().into_iter().flatten())
        .take(changes)
        .collect();
    for (version, slice) in (2..).zip(&slices) {
        // Later than its shortest interval between syncs.
        thread::sleep(Duration::from_secs(2));
        kube_proxy.change(slice, version);
        let Some(after) = kube_proxy.wait_for_syncs(before.0 + 1.0, LIMIT)? else {
            return Err(format!("{name}: kube-proxy did not write a change").into());
        };
        times.push((after.1 - before.1) / (after.0 - before.0));
        before = after;
    }
    times.sort_by(f64::total_cmp);
    let half = times.get(times.len() / 2).copied().ok_or("no change")?;
    figure(
        &format!("nftables_mode.kube_proxy_one_change_ms.{name}"),
        half * 1e3,
        "ms",
    )?;
    Ok(())
}

/// iptables mode with the legacy tools.
fn iptables(cluster: &Cluster) -> Result<()> {
    let mut kernel = iptables_mode::Kernel::open()?;
    let lock = PathBuf::from(format!("/dev/shm/kernlink-bench-{}.lock", std::process::id()));
    let client = Client::new()
        .with_variant(Variant::Legacy)
        .with_timeout(Duration::from_secs(600))
        .with_lock_file(lock);
    kernel.rules = Box::new(client);
    let mut proxier: iptables_mode::Proxier = cluster.proxier(&cluster::iptables_config()?, kernel)?;
    cluster::sync(&mut proxier)
}
