//! Syncs of iptables mode on the running kernel, compared with the tool that they use: a first sync, and the change of one endpoint, with
//! 1 000 to 10 000 Services of ten endpoints each, with the legacy and the nft tools, each in its own network namespaces.
//!
//! Needs root and the tools of both variants.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use kernlink_benches::cluster::{self, Cluster, ENDPOINTS, change};
use kernlink_benches::memory::{child, of_child, peak_kib, resident_kib};
use kernlink_benches::recorded::{Entry, Record};
use kernlink_benches::runs::{fastest, in_new_namespace, median, ratio};
use kernlink_benches::{Result, figure};
use kernlink_iptables_restore::{Client, Invocation, LocalRunner, Runner, Variant};
use kernlink_proxier::Durations;
use kernlink_proxier::iptables_mode::accounting::{Accounting, KernelAccounting, is_unsupported};
use kernlink_proxier::iptables_mode::{Kernel, Proxier};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// As in the program `kernlink-agent`.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SIZES: [u32; 3] = [1_000, 5_000, 10_000];
/// The largest number of Services that are passed to the nft tools in one input.
const MOST_IN_ONE_INPUT: u32 = 1_000;
/// The number of Services of which an endpoint is replaced and restored.
const CHANGED: usize = 8;
/// The time that the allocator has to return what the syncs needed.
const PAUSE: Duration = Duration::from_secs(20);
/// The environment variable with the parts to run, separated by commas: `nft.1000`, `legacy.5000` and so on, `resident`. Without it all run.
const PARTS: &str = "KERNLINK_BENCH_IPTABLES";
/// The environment variable with the number of Services for a process that prints its resident memory.
const RESIDENT: &str = "KERNLINK_BENCH_RESIDENT";

fn main() -> Result<()> {
    if let Some(size) = child(RESIDENT)? {
        return print_resident(size);
    }
    let parts = std::env::var(PARTS).ok();
    let is_requested = |part: &str| {
        let mut requested = parts.iter().flat_map(|parts| parts.split(','));
        parts.is_none() || requested.any(|requested| requested == part)
    };
    for variant in [Variant::Nft, Variant::Legacy] {
        let mut changes = Vec::new();
        let sizes = SIZES.into_iter();
        for size in sizes.filter(|size| is_requested(&format!("{}.{size}", label(variant)))) {
            let cluster = Cluster::new(size);
            first_syncs(variant, &cluster)?;
            changes.push(one_change(variant, &cluster)?);
        }
        if let ([small, .., large], [of_few, .., of_many]) = (&changes[..], SIZES)
            && changes.len() == SIZES.len()
        {
            let growth = |name: &str, large: Duration, small: Duration| {
                let name = format!("iptables_mode.{name}_{of_many}_over_{of_few}.{}", label(variant));
                figure(&name, ratio(large, small), "ratio")
            };
            growth("one_change", large.sync, small.sync)?;
            growth("restore", large.restore, small.restore)?;
        }
    }
    if !is_requested("resident") {
        return Ok(());
    }
    let [.., size] = SIZES;
    let mib = of_child(RESIDENT, size)? / 1_024.0;
    figure(
        &format!("iptables_mode.resident_mib.{size}x{ENDPOINTS}"),
        mib,
        "MiB",
    )?;
    Ok(())
}

/// The variant in names of figures.
fn label(variant: Variant) -> &'static str {
    match variant {
        Variant::Nft => "nft",
        Variant::Legacy => "legacy",
    }
}

/// First syncs on an empty kernel, compared with a replay of the same inputs in the same processes, and with one `iptables-restore` for each
/// family of what `iptables-save` prints after the sync. The latter is left out where it takes too long: the time of the nft tools grows
/// with the square of the input.
fn first_syncs(variant: Variant, cluster: &Cluster) -> Result<()> {
    let name = format!("{}.{}x{ENDPOINTS}", label(variant), cluster.size);
    let has_one_input = variant == Variant::Legacy || cluster.size <= MOST_IN_ONE_INPUT;
    // Of those that take tens of seconds one.
    let runs = match cluster.size {
        ..=1_000 => 20,
        ..=5_000 if has_one_input => 5,
        _ => 1,
    };
    // The inputs are the same in every run. To record them takes time, which is not measured.
    let (restores, saved) = in_new_namespace(|_| {
        let record = Record::default();
        sync(&mut proxier(variant, cluster, record.runner(LocalRunner::new()))?)?;
        let restores = restores(record.take());
        let saved = if has_one_input {
            saved(&restores)?
        } else {
            Vec::new()
        };
        Ok((restores, saved))
    })?;
    let (mut times, mut replays, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let (time, stages) = in_new_namespace(|_| {
            let runner = Box::new(LocalRunner::new());
            sync(&mut proxier(variant, cluster, runner)?)
        })?;
        let stages = stages.stages().map(|(name, time)| format!("{name} {time:.1?}"));
        println!("{name}: {}", stages.join(", "));
        times.push(time);
        if !saved.is_empty() {
            bare.push(time_of(&saved)?);
        }
        replays.push(time_of(&restores)?);
    }
    let processes = restores.len();
    println!(
        "{name}: first sync {times:.2?}, the same {processes} restores {replays:.2?}, of what was saved {bare:.2?}"
    );
    for (floor, times_of_floor) in [("replay", replays), ("restore", bare)] {
        if !times_of_floor.is_empty() {
            let value = ratio(fastest(&times)?, fastest(&times_of_floor)?);
            figure(&format!("iptables_mode.cold_over_{floor}.{name}"), value, "ratio")?;
        }
    }
    Ok(())
}

/// The accounting objects that rules name.
const ACCOUNTING_OBJECTS: [&str; 2] = ["ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"];

/// The time of processes, one after the other, in a network namespace of their own.
fn time_of(processes: &[Invocation]) -> Result<Duration> {
    in_new_namespace(|_| {
        // On a host without such objects no rule names one.
        let mut accounting = KernelAccounting::open()?;
        for name in ACCOUNTING_OBJECTS {
            match accounting.ensure(name) {
                Err(error) if !is_unsupported(&error) => return Err(error.into()),
                _ => {}
            }
        }
        let processes = processes.to_vec();
        let start = Instant::now();
        for process in processes {
            run(process)?;
        }
        Ok(start.elapsed())
    })
}

/// The median times of the change of one endpoint.
struct Change {
    sync: Duration,
    restore: Duration,
}

/// Replaces an endpoint of many Services, and restores it. Then the same inputs are passed to the tool without the proxier: the kernel is in
/// the same state, and ends in the same state.
fn one_change(variant: Variant, cluster: &Cluster) -> Result<Change> {
    let name = format!("{}.{}x{ENDPOINTS}", label(variant), cluster.size);
    let (mut syncs, mut floors) = (Vec::new(), Vec::new());
    let (mut user, mut system) = (Vec::new(), Vec::new());
    in_new_namespace(|_| {
        let record = Record::default();
        let mut proxier = proxier(variant, cluster, record.runner(LocalRunner::new()))?;
        sync(&mut proxier)?;
        let changes = cluster.replacements();
        let every = changes.len() / CHANGED;
        for pair in changes.into_iter().step_by(every).take(CHANGED) {
            record.take();
            for slice in pair {
                let start = Instant::now();
                change(&mut proxier, slice);
                let changed = start.elapsed();
                syncs.push(changed + sync(&mut proxier)?.0);
            }
            for restore in restores(record.take()) {
                let before = tool_times()?;
                let start = Instant::now();
                run(restore)?;
                floors.push(start.elapsed());
                let after = tool_times()?;
                user.push(after[0].saturating_sub(before[0]));
                system.push(after[1].saturating_sub(before[1]));
            }
        }
        if syncs.len() != floors.len() {
            return Err(format!("{} changes wrote {} inputs", syncs.len(), floors.len()).into());
        }
        // The kernel is in the state that the proxier recorded.
        proxier.resync();
        record.take();
        sync(&mut proxier)?;
        match restores(record.take()).len() {
            0 => Ok(()),
            number => Err(format!("a sync without changes wrote {number} inputs").into()),
        }
    })?;
    let (sync, restore) = (median(syncs), median(floors));
    println!(
        "{name}: one endpoint changed {sync:.2?}, the same input {restore:.2?}, of which processor time of the tool {:.2?} in user \
         space, {:.2?} in the kernel",
        median(user),
        median(system)
    );
    figure(
        &format!("iptables_mode.one_change_over_restore.{name}"),
        ratio(sync, restore),
        "ratio",
    )?;
    figure(
        &format!("iptables_mode.one_change_ms.{name}"),
        sync.as_secs_f64() * 1e3,
        "ms",
    )?;
    Ok(Change { sync, restore })
}

/// The child process: prints its resident memory some time after a first sync and the change of an endpoint, in KiB.
fn print_resident(size: u32) -> Result<()> {
    let kib = in_new_namespace(|_| {
        let cluster = Cluster::new(size);
        let mut proxier = proxier(Variant::Nft, &cluster, Box::new(LocalRunner::new()))?;
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

/// A proxier on the calling thread's network namespace with the complete model, before its first sync.
fn proxier(variant: Variant, cluster: &Cluster, runner: Box<dyn Runner>) -> Result<Proxier> {
    let mut kernel = Kernel::open()?;
    // Of its own: other programs on this machine may hold the common one.
    let lock = PathBuf::from(format!("/dev/shm/kernlink-bench-{}.lock", std::process::id()));
    let client = Client::with_runner(runner)
        .with_variant(variant)
        .with_timeout(Duration::from_secs(600))
        .with_lock_file(lock);
    kernel.rules = Box::new(client);
    let mut proxier = cluster.proxier(&cluster::iptables_config()?, kernel)?;
    proxier.set_clock(Instant::now);
    Ok(proxier)
}

/// The time of a sync, all of whose steps must succeed, and that of its stages.
fn sync(proxier: &mut Proxier) -> Result<(Duration, Durations)> {
    let start = Instant::now();
    let synced = proxier.sync(start)?;
    let time = start.elapsed();
    if synced.is_success() {
        return Ok((time, synced.durations));
    }
    let text = synced.to_string();
    let lines: Vec<&str> = text.lines().take(5).collect();
    Err(lines.join("\n").into())
}

/// The recorded processes that write.
fn restores(entries: Vec<Entry>) -> Vec<Invocation> {
    let processes = entries.into_iter().filter_map(|entry| match entry {
        Entry::Process(invocation) => Some(invocation),
        Entry::WriteSysctl(_) | Entry::ReadSysctl(_) => None,
    });
    processes
        .filter(|invocation| !invocation.stdin.is_empty())
        .collect()
}

/// For each family, what `iptables-save` prints now as the input of one restore.
fn saved(restores: &[Invocation]) -> Result<Vec<Invocation>> {
    let mut saved: Vec<Invocation> = Vec::new();
    for restore in restores {
        if saved.iter().any(|of_family| of_family.program == restore.program) {
            continue;
        }
        let save = Invocation {
            program: restore.program.replace("restore", "save"),
            arguments: Vec::new(),
            stdin: Vec::new(),
            ..restore.clone()
        };
        saved.push(Invocation {
            stdin: run(save)?,
            ..restore.clone()
        });
    }
    Ok(saved)
}

/// Runs a process, which must end with 0, and returns its standard output.
fn run(invocation: Invocation) -> Result<Vec<u8>> {
    let program = invocation.program.clone();
    let completion = LocalRunner::new().run(invocation)?;
    if completion.status == Some(0) {
        Ok(completion.stdout)
    } else {
        let errors = String::from_utf8_lossy(&completion.stderr);
        Err(format!("{program}: {errors}").into())
    }
}

/// The processor time of all processes that this one started and that ended: in user space and in the kernel.
fn tool_times() -> Result<[Duration; 2]> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let times = [usage.user_time(), usage.system_time()];
    Ok(times.map(|time| Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or_default())))
}
