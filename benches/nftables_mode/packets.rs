//! New connections to Services, and kube-proxy in the same run, if the environment variable `KERNLINK_KUBE_PROXY` names its program.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use kernlink_benches::cluster::{self, Cluster, ENDPOINTS};
use kernlink_benches::{Result, figure};
use kernlink_iptables_restore::{Client, Variant};
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::Network;
use kernlink_proxier::iptables_mode;
use kernlink_proxier::services::EndpointSlice;

use super::kube_proxy::KubeProxy;
use super::neighbours::percentile;
use super::{proxier, sync};

const SIZES: [u32; 3] = [10, 10_000, 50_000];
/// The numbers of Services with which the peers are measured: what they need grows faster.
const SIZES_OF_PEERS: [u32; 2] = [10, 10_000];
/// How long connections are opened.
const TIME: Duration = Duration::from_secs(4);
/// The path of kube-proxy.
const KUBE_PROXY: &str = "KERNLINK_KUBE_PROXY";

pub(crate) fn run() -> Result<()> {
    for size in SIZES {
        let cluster = Cluster::new(size);
        measure("kernlink", size, || {
            let mut proxier = proxier(&cluster)?;
            sync(&mut proxier)?;
            Ok(proxier)
        })?;
    }
    for size in SIZES_OF_PEERS {
        let cluster = Cluster::new(size);
        measure("iptables_mode", size, || iptables(&cluster))?;
    }
    Ok(())
}

/// kube-proxy in nftables mode.
pub(crate) fn kube_proxy() -> Result<()> {
    let Some(program) = std::env::var_os(KUBE_PROXY).map(PathBuf::from) else {
        println!("kube-proxy is not measured: {KUBE_PROXY} is not set");
        return Ok(());
    };
    for size in SIZES_OF_PEERS {
        let cluster = Cluster::new(size);
        measure("kube_proxy", size, || {
            let name = format!("{size}x{ENDPOINTS}");
            let start = Instant::now();
            let mut kube_proxy = KubeProxy::start(&program, "nftables", &cluster)?;
            let Some(first) = kube_proxy.wait_for_syncs(1.0)? else {
                return Err(
                    format!("{name}: kube-proxy does not serve after {:.0?}", start.elapsed()).into(),
                );
            };
            figure(
                &format!("nftables_mode.kube_proxy_cold_s.{name}"),
                start.elapsed().as_secs_f64(),
                "s",
            )?;
            one_change(&mut kube_proxy, &cluster, first, &name)?;
            Ok(kube_proxy)
        })?;
    }
    Ok(())
}

/// The median time of a sync of kube-proxy after the change of one endpoint.
fn one_change(kube_proxy: &mut KubeProxy, cluster: &Cluster, first: (f64, f64), name: &str) -> Result<()> {
    let mut before = first;
    let mut times = Vec::new();
    let slices: Vec<EndpointSlice> = cluster.replacements().into_iter().flatten().take(6).collect();
    for (version, slice) in (2..).zip(&slices) {
        // Later than its shortest interval between syncs.
        thread::sleep(Duration::from_secs(2));
        kube_proxy.change(slice, version);
        let Some(after) = kube_proxy.wait_for_syncs(before.0 + 1.0)? else {
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

/// iptables mode with the legacy tools, whose rules are those of kube-proxy.
fn iptables(cluster: &Cluster) -> Result<()> {
    let mut kernel = iptables_mode::Kernel::open()?;
    let lock = PathBuf::from(format!("/dev/shm/kernlink-bench-{}.lock", std::process::id()));
    let client = Client::new()
        .with_variant(Variant::Legacy)
        .with_timeout(Duration::from_secs(600))
        .with_lock_file(lock);
    kernel.rules = Box::new(client);
    let mut proxier: iptables_mode::Proxier = cluster.proxier(&cluster::iptables_config()?, kernel)?;
    let synced = proxier.sync(Instant::now())?;
    if synced.is_success() {
        Ok(())
    } else {
        Err(synced
            .to_string()
            .lines()
            .take(5)
            .collect::<Vec<_>>()
            .join("\n")
            .into())
    }
}

/// Connections of the client to random Services, whose endpoints all are one server.
fn measure<T>(name: &str, size: u32, serve: impl FnOnce() -> Result<T> + Send) -> Result<()> {
    let network = Network::new(1);
    let pod = &network.pods[0];
    let listener = pod.run(|| {
        tools::ip(&["route", "add", "local", "11.0.0.0/8", "dev", "lo"]);
        TcpListener::bind("0.0.0.0:8080")
    })?;
    // Ends with the process.
    thread::spawn(move || listener.incoming().for_each(drop));
    let _entered = network.node.enter();
    tools::ip(&[
        "route",
        "add",
        "11.0.0.0/8",
        "via",
        &Network::pod_ipv4(0).to_string(),
    ]);
    tools::ip(&["route", "add", "10.0.0.0/8", "dev", "client"]);
    // Connections that were reset are not counted for long.
    tools::set_sysctl("net.netfilter.nf_conntrack_tcp_timeout_close", "1");
    let _served = serve()?;
    let mut times = network.client.run(|| {
        tools::set_sysctl("net.ipv4.ip_local_port_range", "1024 65000");
        connect_many(size)
    })?;
    let rate = times.len() as f64 / TIME.as_secs_f64();
    times.sort();
    let (half, most) = (percentile(&times, 0.5), percentile(&times, 0.99));
    println!("{name} {size}: {rate:.0} connections/s, {half:.2?}, p99 {most:.2?}");
    let name = |what: &str, unit: &str| format!("nftables_mode.{what}_{unit}.{name}.{size}");
    figure(&name("connections", "per_s"), rate, "connections/s")?;
    figure(&name("connect", "us"), half.as_secs_f64() * 1e6, "us")?;
    Ok(())
}

/// Opens connections to random Services, one after the other. Returns the time of each.
fn connect_many(size: u32) -> io::Result<Vec<Duration>> {
    let mut random = 0x9e37_79b9_u32;
    let mut times = Vec::new();
    let mut connect = |is_counted: bool| -> io::Result<()> {
        // Xorshift.
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let address = IpAddr::from((0x0a61_0000 + random % size).to_be_bytes());
        let start = Instant::now();
        let stream = TcpStream::connect_timeout(&SocketAddr::new(address, 80), Duration::from_secs(10))?;
        if is_counted {
            times.push(start.elapsed());
        }
        kernlink_kernel_tests::traffic::reset_on_close(&stream)
    };
    for is_counted in [false, true] {
        let start = Instant::now();
        while start.elapsed() < if is_counted { TIME } else { TIME / 8 } {
            connect(is_counted)?;
        }
    }
    Ok(times)
}
