//! Whole syncs in the kernel, compared with a replay of what they send and read: from an empty kernel, without changes, and after the
//! change of one endpoint. Each in its own network namespaces, because earlier tables of a namespace make later ones slower.

mod kernel;
mod probe;
mod replay;
mod tools;
mod trace;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kernlink_benches::cluster::{self, Cluster, ENDPOINTS, Place, change};
use kernlink_benches::recorded::{Entry, Record};
use kernlink_benches::runs::{fastest, in_new_namespace, median, ratio};
use kernlink_benches::{Result, exit_code, figure};
use kernlink_ipvs::Ipvs;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_proxier::ipvs_mode::{Proxier, Synced};

use crate::kernel::open_kernel;
use crate::probe::ApiServer;
use crate::replay::Replay;
use crate::trace::{Trace, next_part, traced};

/// The environment variable with the number of Services for a traced process.
const TRACED: &str = "KERNLINK_BENCH_TRACED_SYNC";
const SIZES: [u32; 3] = [1_000, 5_000, 10_000];
const FIRST_SERVICE: u32 = 5_000;
/// The number of first syncs and of their replays.
const COLD_RUNS: usize = 3;
/// The number of full passes and of their replays.
const PASSES: usize = 5;
/// The number of Services of which an endpoint is removed and added again.
const CHANGED: usize = 100;

/// The parts of this benchmark, which `KERNLINK_BENCH_SYNC` selects by name, separated by commas. Without it all parts run.
const PARTS: [&str; 4] = ["cold", "first_service", "full_pass", "one_change"];

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    if let Ok(size) = std::env::var(TRACED) {
        return run_traced(size.parse()?);
    }
    let parts = std::env::var("KERNLINK_BENCH_SYNC").unwrap_or_else(|_| PARTS.join(","));
    if let Some(unknown) = parts.split(',').find(|part| !PARTS.contains(part)) {
        return Err(format!(
            "KERNLINK_BENCH_SYNC: unknown part `{unknown}`; known: {}",
            PARTS.join(", ")
        )
        .into());
    }
    let has = |part: &str| parts.split(',').any(|requested| requested == part);
    let clusters: Vec<Cluster> = SIZES.into_iter().map(Cluster::new).collect();
    let mut changes = None;
    for cluster in &clusters {
        let is_largest = cluster.size == 10_000;
        if has("cold") || is_largest && (has("full_pass") || has("one_change")) {
            let parts = in_new_namespace(|_| traced(TRACED, &cluster.size.to_string()))?;
            let [_, cold, full_pass, here, elsewhere, ..] = &parts[..] else {
                return Err(format!("a trace with {} parts", parts.len()).into());
            };
            if has("cold") {
                cold_syncs(cluster, cold)?;
            }
            if is_largest && has("full_pass") {
                full_passes(cluster, full_pass)?;
            }
            if is_largest && has("one_change") {
                changes = Some([here.clone(), elsewhere.clone()]);
            }
        }
        if cluster.size == FIRST_SERVICE && has("first_service") {
            first_service(cluster)?;
        }
    }
    if let Some([here, elsewhere]) = changes {
        print_changes(&[("on this node", here), ("on another node", elsewhere)])?;
        if let [small, .., large] = &clusters[..] {
            one_change(small, large)?;
        }
    }
    if let Some(large) = clusters.last().filter(|_| has("cold")) {
        let millis = large.parse_manifests()?.as_secs_f64() * 1e3;
        figure(
            &format!("sync.parse_manifests.{}x{ENDPOINTS}", large.size),
            millis,
            "ms",
        )?;
    }
    Ok(())
}

/// The traced process: a first sync, a full pass, and the removal of an endpoint on this node and of one on another node.
fn run_traced(size: u32) -> Result<()> {
    let cluster = Cluster::new(size);
    let mut proxier = proxier(&cluster, &Record::default())?;
    next_part();
    sync(&mut proxier)?;
    next_part();
    proxier.resync();
    let full_pass = proxier.sync(Instant::now())?;
    succeeded(&full_pass)?;
    for (number, place) in [Place::ThisNode, Place::OtherNode].into_iter().enumerate() {
        // Of different Services.
        let changes = cluster.changes(place).into_iter();
        let [without, _] = changes.step_by(100).nth(number).ok_or("no endpoint to remove")?;
        change(&mut proxier, without);
        next_part();
        succeeded(&proxier.sync(Instant::now())?)?;
    }
    next_part();
    Ok(())
}

/// First syncs on an empty kernel, and replays of what they send.
fn cold_syncs(cluster: &Cluster, trace: &Trace) -> Result<()> {
    let name = format!("{}x{ENDPOINTS}", cluster.size);
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    let mut replay = None;
    for _ in 0..COLD_RUNS {
        let (time, entries) = in_new_namespace(|_| {
            let record = Record::default();
            let mut proxier = proxier(cluster, &record)?;
            record.take();
            let time = sync(&mut proxier)?;
            check_kernel(cluster)?;
            Ok((time, record.take()))
        })?;
        times.push(time);
        if replay.is_none() {
            print_processes(&entries);
            replay = Some(Replay::of_changes(trace, entries)?);
        }
        let replay = replay.as_ref().ok_or("no replay")?;
        floors.push(in_new_namespace(|_| {
            let time = replay.run()?;
            check_kernel(cluster)?;
            Ok(time)
        })?);
    }
    println!("{name}: first sync {times:.2?}, replay {floors:.2?}");
    print_trace("first sync", trace);
    figure(
        &format!("sync.cold_over_floor.{name}"),
        ratio(fastest(&times)?, fastest(&floors)?),
        "ratio",
    )?;
    Ok(())
}

/// Syncs that read the whole kernel and find nothing to do, and replays of what they read.
fn full_passes(cluster: &Cluster, trace: &Trace) -> Result<()> {
    let name = format!("{}x{ENDPOINTS}", cluster.size);
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    in_new_namespace(|_| {
        let record = Record::default();
        let mut proxier = proxier(cluster, &record)?;
        sync(&mut proxier)?;
        // The first run is a warm-up.
        for run in 0..=PASSES {
            record.take();
            proxier.resync();
            let start = Instant::now();
            let synced = proxier.sync(start)?;
            let time = start.elapsed();
            succeeded(&synced)?;
            if !synced.plan.is_empty() {
                return Err(format!("a full pass plans {} steps", synced.plan.len()).into());
            }
            let floor = Replay::of_reads(trace, record.take())?.run()?;
            if run > 0 {
                times.push(time);
                floors.push(floor);
            }
        }
        Ok(())
    })?;
    println!("{name}: full pass {times:.2?}, replay {floors:.2?}");
    print_trace("full pass", trace);
    figure(
        &format!("sync.full_pass_over_floor.{name}"),
        ratio(fastest(&times)?, fastest(&floors)?),
        "ratio",
    )?;
    figure(
        &format!("sync.full_pass_syscalls.{name}"),
        trace.calls as f64,
        "calls",
    )?;
    Ok(())
}

/// The time until `default/kubernetes` answers, compared with the whole first sync.
fn first_service(cluster: &Cluster) -> Result<()> {
    let (mut wholes, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..COLD_RUNS {
        let (whole, first) = in_new_namespace(|node| {
            let server = ApiServer::new(node)?;
            let mut proxier = proxier(cluster, &Record::default())?;
            server.first_answer(|| sync(&mut proxier))
        })?;
        println!("first sync {whole:.2?}, default/kubernetes answers after {first:.2?}");
        wholes.push(whole);
        firsts.push(first);
    }
    figure(
        &format!("sync.first_service_over_cold.{}x{ENDPOINTS}", cluster.size),
        ratio(fastest(&firsts)?, fastest(&wholes)?),
        "ratio",
    )?;
    Ok(())
}

/// What the change of one endpoint sends. The figures are the maxima of both kinds.
fn print_changes(changes: &[(&str, Trace)]) -> Result<()> {
    let most = |count: &dyn Fn(&Trace) -> usize| {
        let counts = changes.iter().map(|(_, trace)| count(trace));
        counts.max().unwrap_or_default() as f64
    };
    for (place, trace) in changes {
        print_trace(&format!("one endpoint {place} removed"), trace);
    }
    figure(
        "sync.one_change_messages",
        most(&|trace| trace.messages().count()),
        "messages",
    )?;
    figure("sync.one_change_dumps", most(&Trace::dumps), "dumps")?;
    figure("sync.one_change_processes", most(&Trace::processes), "processes")?;
    Ok(())
}

/// The time of the change of one endpoint with few and with many Services, measured alternately.
fn one_change(small: &Cluster, large: &Cluster) -> Result<()> {
    let clusters = [small, large];
    let mut nodes = Vec::new();
    for cluster in clusters {
        let namespace = NetNs::new();
        let proxier = namespace.run(|| {
            let mut proxier = proxier(cluster, &Record::default())?;
            sync(&mut proxier)?;
            Result::Ok(proxier)
        })?;
        let changes = cluster.changes(Place::OtherNode);
        let every = changes.len() / CHANGED;
        let changes: Vec<_> = changes.into_iter().step_by(every).take(CHANGED).collect();
        nodes.push((namespace, proxier, changes.into_iter().flatten(), Vec::new()));
    }
    for _ in 0..2 * CHANGED {
        for (namespace, proxier, changes, times) in &mut nodes {
            let slice = changes.next().ok_or("too few endpoints")?;
            let _entered = namespace.enter();
            let start = Instant::now();
            change(proxier, slice);
            let synced = proxier.sync(start)?;
            times.push(start.elapsed());
            succeeded(&synced)?;
            if synced.plan.len() != 1 {
                return Err(format!("the change of one endpoint is {} steps", synced.plan.len()).into());
            }
        }
    }
    let times: Vec<Duration> = nodes.into_iter().map(|(_, _, _, times)| median(times)).collect();
    if let [of_small, of_large] = times[..] {
        let (small, large) = (small.size, large.size);
        println!("one endpoint changed: {of_small:.2?} with {small} Services, {of_large:.2?} with {large}");
        let name = format!("sync.one_change_{large}_over_{small}");
        figure(&name, ratio(of_large, of_small), "ratio")?;
    }
    Ok(())
}

/// A proxier with the complete model, before its first sync.
fn proxier(cluster: &Cluster, record: &Record) -> Result<Proxier> {
    cluster.proxier(&cluster::ipvs_config()?, open_kernel(record)?)
}

/// The time of a sync with that of the first Services before it. All steps must succeed.
fn sync(proxier: &mut Proxier) -> Result<Duration> {
    let start = Instant::now();
    let mut synced = proxier.sync(start)?;
    if synced.is_partial {
        synced = proxier.sync(Instant::now())?;
    }
    let time = start.elapsed();
    succeeded(&synced)?;
    Ok(time)
}

fn succeeded(synced: &Synced) -> Result<()> {
    if synced.is_success() {
        Ok(())
    } else {
        let text = synced.to_string();
        let lines: Vec<&str> = text.lines().take(5).collect();
        Err(lines.join("\n").into())
    }
}

/// Fails unless the calling thread's network namespace has the virtual servers, real servers and addresses of the cluster.
fn check_kernel(cluster: &Cluster) -> Result<()> {
    let snapshot = kernlink_ipvs::Client::open()?.snapshot()?;
    let mut links = kernlink_dummylink::Client::open()?;
    let link = "kube-ipvs0".parse()?;
    let addresses =
        kernlink_dummylink::DummyLinks::list(&mut links, kernlink_dummylink::Selection::On(link))?;
    // Without the link-local address.
    let addresses = addresses
        .iter()
        .filter(|address| address.address.key.address().is_ipv4());
    let found = (
        snapshot.virtual_servers.len(),
        snapshot.real_server_count(),
        addresses.count(),
    );
    // Two real servers at both ports of the name server, and one API server.
    let real_servers = (cluster.size * ENDPOINTS) as usize + 5;
    let expected = (cluster.virtual_servers(), real_servers, cluster.virtual_ips());
    if found == expected {
        Ok(())
    } else {
        Err(format!("{found:?} virtual servers, real servers and addresses; expected {expected:?}").into())
    }
}

fn print_trace(what: &str, trace: &Trace) {
    let bytes: usize = trace.messages().map(<[u8]>::len).sum();
    println!(
        "  {what}: {} system calls, {} netlink messages of {bytes} bytes, {} dumps, {} processes",
        trace.calls,
        trace.messages().count(),
        trace.dumps(),
        trace.processes()
    );
}

fn print_processes(entries: &[Entry]) {
    for entry in entries {
        if let Entry::Process(invocation) = entry {
            println!("  {} {}", invocation.program, invocation.arguments.join(" "));
        }
    }
}
