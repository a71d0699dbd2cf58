//! The bytes that are allocated in a process of the proxier, by stage: decoded objects, model, desired tables, plan, and the peaks of a first
//! sync, of a process that finds its Services served, of a full pass, and of a list that is read again.
//!
//! nftables and iptables mode run on the running kernel, iptables mode with the legacy tools, each in its own network namespace. IPVS mode runs
//! on the in-memory kernel, whose own bytes are left out. Objects are read as pages of lists in JSON, of which only one is in memory.
//!
//! Needs root and the legacy tools.

use std::fs;
use std::mem;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use kernlink_benches::cluster::{Cluster, SOURCE, iptables_config, ipvs_config, nftables_config};
use kernlink_benches::runs::in_new_namespace;
use kernlink_benches::{Result, figure};
use kernlink_iptables_restore::{Client, Variant};
use kernlink_kernel_tests::programs;
use kernlink_kubernetes::Converter;
use kernlink_kubernetes::watch::read_page;
use kernlink_proxier::data_path::SyncedOf;
use kernlink_proxier::services::{Change, EndpointSlice, Kind, ObjectChange, Service, Services};
use kernlink_proxier::{DataPath, Proxier, iptables_mode, ipvs_mode, nftables_mode};
use peak_alloc::PeakAlloc;

/// Counts the bytes that are allocated. The bytes of a block that grows count twice while it is copied.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The mode and the number of Services of each process that measures.
const PARTS: [(&str, u32); 4] = [
    ("iptables", 10_000),
    ("ipvs", 10_000),
    ("nftables", 10_000),
    ("nftables_50000", 50_000),
];
/// The environment variable with the only part to run.
const PART: &str = "KERNLINK_BENCH_MEMORY";
/// Set for a process that measures a part.
const CHILD: &str = "KERNLINK_BENCH_MEMORY_CHILD";
/// The number of Services whose objects are in one page.
const PAGE: usize = 500;

fn main() -> Result<()> {
    let requested = std::env::var(PART).ok();
    let is_child = std::env::var_os(CHILD).is_some();
    for (part, size) in PARTS {
        if requested.as_deref().is_some_and(|requested| requested != part) {
            continue;
        }
        if is_child {
            return measure_part(part, size);
        }
        // A process of its own, so that no other part is in its memory.
        let status = in_new_namespace(|_| {
            let mut child = programs::this_program();
            Ok(child.env(PART, part).env(CHILD, "1").status()?)
        })?;
        if !status.success() {
            return Err(format!("{part}: {status}").into());
        }
    }
    Ok(())
}

fn measure_part(part: &str, size: u32) -> Result<()> {
    let lists = Lists::write(&Cluster::new(size))?;
    match part {
        "iptables" => {
            let open = || {
                let mut kernel = iptables_mode::Kernel::open()?;
                kernel.rules = Box::new(Client::new().with_variant(Variant::Legacy));
                Ok(kernel)
            };
            measure::<iptables_mode::State>(part, &lists, &iptables_config()?, open)
        }
        "ipvs" => {
            let open = || Ok(ipvs_mode::Kernel::fake());
            measure::<ipvs_mode::State>(part, &lists, &ipvs_config()?, open)
        }
        _ => {
            let open = || Ok(nftables_mode::Kernel::open()?);
            measure::<nftables_mode::State>(part, &lists, &nftables_config()?, open)
        }
    }
}

/// What was allocated between two readings of the clock of a proxier: at its end, and at most.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    end: usize,
    peak: usize,
}

/// The readings since they were taken last. A proxier reads its clock at the beginning of a sync and at the end of each stage.
static READINGS: Mutex<Vec<Reading>> = Mutex::new(Vec::new());

fn clock() -> Instant {
    let mut readings = READINGS.lock().unwrap_or_else(PoisonError::into_inner);
    readings.push(Reading {
        end: ALLOCATOR.current_usage(),
        peak: ALLOCATOR.peak_usage(),
    });
    ALLOCATOR.reset_peak_usage();
    Instant::now()
}

fn take_readings() -> Vec<Reading> {
    mem::take(&mut READINGS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Files with pages of lists. They are removed at the end.
struct Lists {
    services: Vec<PathBuf>,
    slices: Vec<PathBuf>,
}

impl Lists {
    /// Writes the pages of a cluster to a tmpfs.
    fn write(cluster: &Cluster) -> Result<Self> {
        let [services, slices] = cluster.json_items();
        let page = |kind: Kind, items: &[Vec<String>]| -> Result<Vec<PathBuf>> {
            let mut files = Vec::new();
            for (number, items) in items.iter().enumerate() {
                let name = format!("kernlink-bench-{}-{kind}-{number}.json", std::process::id());
                let file = PathBuf::from("/dev/shm").join(name);
                let items = items.join(",");
                let text = format!(
                    r#"{{"kind":"{kind}List","metadata":{{"resourceVersion":"1"}},"items":[{items}]}}"#
                );
                fs::write(&file, text)?;
                files.push(file);
            }
            Ok(files)
        };
        let pages =
            |items: Vec<String>| -> Vec<Vec<String>> { items.chunks(PAGE).map(<[String]>::to_vec).collect() };
        Ok(Self {
            services: page(Kind::Service, &pages(services))?,
            slices: page(Kind::EndpointSlice, &pages(slices))?,
        })
    }

    /// Decodes the objects, one page after the other.
    fn read(&self) -> Result<(Vec<Service>, Vec<EndpointSlice>)> {
        let (mut services, mut slices) = (Vec::new(), Vec::new());
        let mut converter = Converter::new();
        let of_kinds = [
            (Kind::Service, &self.services),
            (Kind::EndpointSlice, &self.slices),
        ];
        for (kind, files) in of_kinds {
            for file in files {
                let page = read_page(kind, &fs::read(file)?, &mut converter)?;
                for item in page.items {
                    match item.change {
                        Some(Change::Services(ObjectChange::Upsert(service))) => services.push(service),
                        Some(Change::EndpointSlices(ObjectChange::Upsert(slice))) => slices.push(slice),
                        other => return Err(format!("{kind}: {other:?} {:?}", item.errors).into()),
                    }
                }
            }
        }
        Ok((services, slices))
    }

    /// The changes that replace all objects.
    fn changes(&self) -> Result<Vec<Change>> {
        let (services, slices) = self.read()?;
        Ok(vec![
            Change::Services(ObjectChange::ReplaceAll(services)),
            Change::Services(ObjectChange::Synced),
            Change::EndpointSlices(ObjectChange::ReplaceAll(slices)),
            Change::EndpointSlices(ObjectChange::Synced),
        ])
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        for file in self.services.iter().chain(&self.slices) {
            let _ = fs::remove_file(file);
        }
    }
}

/// What was allocated before the process had objects.
#[derive(Clone, Copy)]
struct Floor(usize);

impl Floor {
    fn now() -> Self {
        ALLOCATOR.reset_peak_usage();
        Self(ALLOCATOR.current_usage())
    }

    fn current(self) -> usize {
        ALLOCATOR.current_usage().saturating_sub(self.0)
    }

    /// The most since the last call of this or of [`now`](Self::now), also by the readings of the clock in between.
    fn take_peak(self) -> usize {
        let readings = take_readings();
        let peak = readings.iter().map(|reading| reading.peak).max();
        let peak = peak.unwrap_or_default().max(ALLOCATOR.peak_usage());
        ALLOCATOR.reset_peak_usage();
        peak.saturating_sub(self.0)
    }
}

fn measure<M: DataPath>(
    part: &str,
    lists: &Lists,
    config: &M::Config,
    mut open: impl FnMut() -> Result<M::Kernel>,
) -> Result<()> {
    let show = |name: &str, bytes: usize| {
        figure(
            &format!("memory.{part}.{name}"),
            bytes as f64 / f64::from(1 << 20),
            "MiB",
        )
    };
    let floor = Floor::now();
    let objects = lists.changes()?;
    show("objects_mib", floor.current())?;
    let mut services = Services::new(M::services_config(config).clone());
    for change in objects {
        services.change(SOURCE, change);
    }
    services.update();
    show("model_mib", floor.current())?;
    drop(services);

    // A plan that is only printed.
    let mut proxier = new::<M>(config, open()?)?;
    change_all(&mut proxier, lists)?;
    take_readings();
    let plan = proxier.plan(Instant::now())?;
    let readings = take_readings();
    let [.., compiled, planned] = &readings[..] else {
        return Err("the proxier did not read its clock".into());
    };
    println!("{part}: {} steps", plan.len());
    show("tables_mib", compiled.end.saturating_sub(floor.0))?;
    show("plan_mib", floor.current())?;
    show("plan_peak_mib", planned.peak.saturating_sub(floor.0))?;
    drop((plan, proxier));

    // What an in-memory kernel allocates is subtracted at its end: it grows only while a plan is executed.
    let mut first = Vec::new();
    let _ = floor.take_peak();
    let mut proxier = new::<M>(config, open()?)?;
    change_all(&mut proxier, lists)?;
    let read = floor.take_peak();
    loop {
        let before_apply = floor.take_peak();
        let synced = proxier.sync(Instant::now())?;
        check::<M>(&synced)?;
        let mut readings = take_readings();
        let applied = readings.pop().unwrap_or_default();
        let planned = readings
            .iter()
            .map(|reading| reading.peak)
            .max()
            .unwrap_or_default();
        let with_plan = floor.current();
        let is_complete = !synced.is_partial;
        drop(synced);
        let without = floor.current();
        first.push((
            before_apply.max(planned.saturating_sub(floor.0)),
            applied.peak.saturating_sub(floor.0),
            with_plan.saturating_sub(without),
        ));
        if is_complete {
            break;
        }
    }
    let steady = floor.current();
    let kernel = proxier.into_kernel();
    let of_kernel = floor.current();
    let held = first.iter().map(|(_, _, held)| *held).max().unwrap_or_default();
    let planned = first
        .iter()
        .map(|(planned, ..)| *planned)
        .max()
        .unwrap_or_default();
    let applied = first
        .iter()
        .map(|(_, applied, _)| *applied)
        .max()
        .unwrap_or_default();
    let applied = applied.saturating_sub(of_kernel);
    println!("{part}: the in-memory kernel has {} MiB", of_kernel >> 20);
    show("synced_mib", held)?;
    show("execution_peak_mib", applied)?;
    show("empty.peak_mib", planned.max(applied).max(read))?;
    show("empty.steady_mib", steady.saturating_sub(of_kernel))?;

    // Another process on the same node.
    let floor = Floor::now();
    let mut proxier = new::<M>(config, kernel)?;
    change_all(&mut proxier, lists)?;
    sync_all(&mut proxier)?;
    show("served.peak_mib", floor.take_peak())?;
    show("served.steady_mib", floor.current())?;

    proxier.resync();
    sync_all(&mut proxier)?;
    show("full_pass.peak_mib", floor.take_peak())?;
    show("full_pass.steady_mib", floor.current())?;

    change_all(&mut proxier, lists)?;
    sync_all(&mut proxier)?;
    show("relist.peak_mib", floor.take_peak())?;
    show("relist.steady_mib", floor.current())?;
    Ok(())
}

fn new<M: DataPath>(config: &M::Config, kernel: M::Kernel) -> Result<Proxier<M>> {
    let mut proxier = Proxier::new(config, kernel)?;
    proxier.set_clock(clock);
    Ok(proxier)
}

fn change_all<M: DataPath>(proxier: &mut Proxier<M>, lists: &Lists) -> Result<()> {
    for change in lists.changes()? {
        proxier.change(SOURCE, change);
    }
    Ok(())
}

/// Syncs until the node has all Services.
fn sync_all<M: DataPath>(proxier: &mut Proxier<M>) -> Result<()> {
    loop {
        let synced = proxier.sync(Instant::now())?;
        check::<M>(&synced)?;
        println!("{} steps", synced.plan.len());
        if !synced.is_partial {
            return Ok(());
        }
    }
}

fn check<M: DataPath>(synced: &SyncedOf<M>) -> Result<()> {
    if synced.report.is_success() && synced.unread == 0 {
        return Ok(());
    }
    Err(format!("{synced}").into())
}
