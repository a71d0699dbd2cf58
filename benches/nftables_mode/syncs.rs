//! First syncs, the change of one endpoint, restarts, and resident memory.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kernlink_benches::cluster::{Cluster, ENDPOINTS, KUBERNETES, change, endpoint_slice};
use kernlink_benches::memory::{of_child, peak_kib, resident_kib};
use kernlink_benches::runs::{in_new_namespace, median, ratio};
use kernlink_benches::{Result, figure};
use kernlink_kernel_tests::load::Load;
use kernlink_kernel_tests::traffic::{Network, Protocol, Server};
use kernlink_proxier::Runner;
use kernlink_proxier::runner::Notice;
use kernlink_proxier::schedule::{Intervals, Schedule};

use super::{RESIDENT, SIZES, proxier, sync};

/// The number of changes that are measured, after some that are not.
const CHANGES: usize = 400;
const WARM_UP: usize = 50;
/// The time that the allocator has to return what the syncs needed.
const PAUSE: Duration = Duration::from_secs(20);

pub(crate) fn run() -> Result<()> {
    let mut changes = Vec::new();
    for size in SIZES {
        let name = format!("{size}x{ENDPOINTS}");
        let cluster = Cluster::new(size);
        let mut first = Vec::new();
        for _ in 0..if size > 10_000 { 3 } else { 5 } {
            first.push(in_new_namespace(|_| {
                // Copies of the full lists, as a source delivers them.
                let lists = cluster.clone();
                let start = Instant::now();
                let mut proxier = proxier(&lists)?;
                sync(&mut proxier)?;
                Ok(start.elapsed())
            })?);
        }
        println!("{name}: first syncs {first:.2?}");
        figure(
            &format!("nftables_mode.cold_s.{name}"),
            median(first).as_secs_f64(),
            "s",
        )?;
        let (kernel, whole) = in_new_namespace(|_| one_change(&cluster))?;
        println!("{name}: one endpoint changed {whole:.2?}, of which the transaction {kernel:.2?}");
        for (what, time) in [("one_change_us", whole), ("kernel_us", kernel)] {
            figure(
                &format!("nftables_mode.{what}.{name}"),
                time.as_secs_f64() * 1e6,
                "us",
            )?;
        }
        changes.push(whole);
    }
    if let ([small, .., large], [of_few, .., of_many]) = (&changes[..], SIZES) {
        let name = format!("nftables_mode.one_change_{of_many}_over_{of_few}");
        figure(&name, ratio(*large, *small), "ratio")?;
    }
    Ok(())
}

/// The median time of the transaction that replaces an endpoint, and from [`Runner::change`] to the end of the sync.
fn one_change(cluster: &Cluster) -> Result<(Duration, Duration)> {
    let mut proxier = proxier(cluster)?;
    sync(&mut proxier)?;
    let pairs = cluster.replacements();
    let every = (pairs.len() / (CHANGES / 2 + WARM_UP)).max(1);
    let slices: Vec<_> = pairs.into_iter().step_by(every).flatten().collect();
    let mut transactions = Vec::new();
    for slice in slices.iter().take(CHANGES / 2) {
        change(&mut proxier, slice.clone());
        transactions.push(transaction(&mut proxier)?);
    }
    transactions.drain(..WARM_UP.min(transactions.len()));
    // As the agent does, without the limit of its schedule: each change is isolated.
    let intervals = Intervals {
        min: Duration::ZERO,
        max: Duration::ZERO,
    };
    let (sender, synced) = mpsc::channel();
    let notify = move |notice| match notice {
        Notice::Synced(synced) => _ = sender.send((Instant::now(), synced)),
        Notice::Failed(error) => eprintln!("{error}"),
        _ => {}
    };
    let runner = Runner::start(proxier, Schedule::new(intervals), notify)?;
    let wait = || synced.recv_timeout(Duration::from_secs(60));
    wait()?;
    let mut times = Vec::new();
    for slice in slices.into_iter().take(CHANGES) {
        let change = endpoint_slice(slice);
        let start = Instant::now();
        runner.change(kernlink_benches::cluster::SOURCE, change);
        let (end, synced) = wait()?;
        if !synced.is_success() || synced.plan.is_empty() {
            return Err(synced.to_string().into());
        }
        times.push(end - start);
    }
    times.drain(..WARM_UP.min(times.len()));
    Ok((median(transactions), median(times)))
}

/// Plans and executes a change. Returns the time of the only transaction.
pub(crate) fn transaction(proxier: &mut super::Proxier) -> Result<Duration> {
    let synced = proxier.sync(Instant::now())?;
    if !synced.is_success() || synced.plan.len() != 1 {
        return Err(synced.to_string().into());
    }
    let apply = synced
        .durations
        .stages()
        .into_iter()
        .find(|(name, _)| *name == "apply");
    Ok(apply.ok_or("no stage of the execution")?.1)
}

/// A new process on a node that another one served: until its first sync ended, and how many connections were lost meanwhile.
pub(crate) fn restart() -> Result<()> {
    for size in SIZES {
        let cluster = Cluster::new(size);
        let (mut times, mut served, mut lost) = (Vec::new(), 0, 0);
        for _ in 0..3 {
            let network = Network::new(1);
            let (time, of_run) = with_api_server(&network, || {
                let mut first = proxier(&cluster)?;
                sync(&mut first)?;
                let target = SocketAddr::new(KUBERNETES.0.into(), KUBERNETES.1);
                let load = Load::start(&[
                    (&network.pods[0], Protocol::Tcp, target),
                    (&network.node, Protocol::Tcp, target),
                ]);
                drop(first);
                let lists = cluster.clone();
                let start = Instant::now();
                let mut next = proxier(&lists)?;
                sync(&mut next)?;
                let time = start.elapsed();
                thread::sleep(Duration::from_millis(200));
                Ok((time, load.stop()))
            })?;
            times.push(time);
            served += of_run.0;
            lost += of_run.1.len();
        }
        let name = format!("{size}x{ENDPOINTS}");
        println!("{name}: restarts {times:.2?}, {served} connections served meanwhile, {lost} lost");
        figure(
            &format!("nftables_mode.restart_s.{name}"),
            median(times).as_secs_f64(),
            "s",
        )?;
        figure(
            &format!("nftables_mode.restart_lost.{name}"),
            lost as f64,
            "connections",
        )?;
    }
    Ok(())
}

/// Runs `work` on the node of a network in which the endpoint of `default/kubernetes` answers: the client.
fn with_api_server<T: Send>(network: &Network, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    use kernlink_benches::cluster::{API_SERVER, API_SERVER_PORT};
    let _server = Server::start(
        &network.client,
        "api",
        Protocol::Tcp,
        (API_SERVER, API_SERVER_PORT).into(),
    );
    network.node.run(|| {
        kernlink_kernel_tests::tools::ip(&["route", "add", "10.0.0.0/8", "dev", "client"]);
        work()
    })
}

pub(crate) fn resident() -> Result<()> {
    for size in SIZES.into_iter().skip(1) {
        let mib = of_child(RESIDENT, size)? / 1_024.0;
        figure(
            &format!("nftables_mode.resident_mib.{size}x{ENDPOINTS}"),
            mib,
            "MiB",
        )?;
    }
    Ok(())
}

/// The child process: prints its resident memory some time after a first sync and the change of an endpoint, in KiB.
pub(crate) fn print_resident(size: u32) -> Result<()> {
    let kib = in_new_namespace(|_| {
        let cluster = Cluster::new(size);
        let mut proxier = proxier(&cluster)?;
        let [changed, _] = cluster.replacements().pop().ok_or("no endpoint to replace")?;
        drop(cluster);
        sync(&mut proxier)?;
        change(&mut proxier, changed);
        sync(&mut proxier)?;
        thread::sleep(PAUSE);
        eprintln!("peak during the first sync: {} MiB", peak_kib()? / 1_024);
        Ok(resident_kib()?)
    })?;
    println!("{kib}");
    Ok(())
}
