//! Building the desired state from objects, and syncs on the fake kernel: the first sync, the change of one endpoint, and a sync without
//! changes, for 1 000 to 50 000 Services with ten endpoints each.
//!
//! No kernel is changed. The time to build is measured as processor time, which depends least on other load of the machine. The cost of a
//! change must not depend on the number of Services, so its figure is the ratio of the times with 50 000 and with 1 000 Services. The two
//! are measured alternately, so that other load affects both alike.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernlink_benches::figure;
use kernlink_benches::memory::{child, of_child, peak_kib};
use kernlink_proxier::ipvs_mode::{Config, Kernel, Proxier, State};
use kernlink_proxier::services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, InterfaceAddress, ObjectChange, ObjectName, Port,
    Service, Services, SourceId,
};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

const SIZES: [u32; 4] = [1_000, 5_000, 10_000, 50_000];
const SMALL: u32 = 1_000;
const LARGE: u32 = 50_000;
const ENDPOINTS: u32 = 10;
/// The number of Services from which an endpoint is removed and added again.
const CHANGED: u32 = 500;
const SOURCE: SourceId = SourceId(0);
/// Environment variables that hold a number of Services in a child process. It prints its peak memory in KiB after building the desired
/// state, or after the first sync.
const BUILD_CHILD: &str = "KERNLINK_BENCH_PEAK_OF";
const SYNC_CHILD: &str = "KERNLINK_BENCH_SYNC_PEAK_OF";

type Objects = (Vec<Service>, Vec<EndpointSlice>);

fn main() -> Result<(), String> {
    if let Some(size) = child(BUILD_CHILD)? {
        let built = Built::new(objects(size))?;
        println!("{}", peak_kib()?);
        drop(built);
        return Ok(());
    }
    if let Some(size) = child(SYNC_CHILD)? {
        let proxier = synced(size)?;
        println!("{}", peak_kib()?);
        drop(proxier);
        return Ok(());
    }
    for size in SIZES {
        let runs = if size > 10_000 { 3 } else { 7 };
        let time = build_time(runs, size)?;
        let each = time.as_nanos() as f64 / f64::from(size * ENDPOINTS);
        println!("{size} Services: {time:.1?} of processor time to build, {each:.0} ns per endpoint");
        figure(
            &format!("proxier.build_ns_per_endpoint.{size}x{ENDPOINTS}"),
            each,
            "ns",
        )?;
    }
    let mut built = [Built::new(objects(SMALL))?, Built::new(objects(LARGE))?];
    compare("compile_one_change", &mut built, changes, Built::change)?;
    drop(built);
    let mut proxiers = [synced(SMALL)?, synced(LARGE)?];
    compare("sync_one_change", &mut proxiers, changes, sync_change)?;
    let nothing = |_| vec![(); 2 * CHANGED as usize];
    compare("sync_idle", &mut proxiers, nothing, |proxier, ()| {
        sync(proxier, 0)
    })?;
    drop(proxiers);
    let size = 10_000;
    for (name, variable) in [("peak_mib", BUILD_CHILD), ("first_sync_peak_mib", SYNC_CHILD)] {
        let mib = of_child(variable, size)? / 1_024.0;
        figure(&format!("proxier.{name}.{size}x{ENDPOINTS}"), mib, "MiB")?;
    }
    Ok(())
}

/// The median processor time of building the desired state.
fn build_time(runs: usize, size: u32) -> Result<Duration, String> {
    let mut times = Vec::new();
    for _ in 0..runs {
        let objects = objects(size);
        let start = processor_time()?;
        let built = Built::new(objects)?;
        times.push(processor_time()?.saturating_sub(start));
        drop(built);
    }
    times.sort();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}

/// The processor time of this process so far, in user space and in the kernel.
fn processor_time() -> Result<Duration, String> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(|error| error.to_string())?;
    [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| {
            let micros = u64::try_from(time.num_microseconds());
            micros
                .map(Duration::from_micros)
                .map_err(|error| error.to_string())
        })
        .sum()
}

/// Prints the figure `proxier.NAME_50000_over_1000`: the ratio of the median times of the same work at both sizes.
fn compare<T, I>(
    name: &str,
    [small, large]: &mut [T; 2],
    inputs: impl Fn(u32) -> Vec<I>,
    work: impl Fn(&mut T, I) -> Result<Duration, String>,
) -> Result<(), String> {
    let (mut small_times, mut large_times) = (Vec::new(), Vec::new());
    for (of_small, of_large) in inputs(SMALL).into_iter().zip(inputs(LARGE)) {
        small_times.push(work(small, of_small)?);
        large_times.push(work(large, of_large)?);
    }
    let [small, large] = [small_times, large_times].map(|mut times| {
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default()
    });
    println!("{name}: {small:.2?} with {SMALL} Services, {large:.2?} with {LARGE}");
    let ratio = large.as_secs_f64() / small.as_secs_f64();
    figure(&format!("proxier.{name}_{LARGE}_over_{SMALL}"), ratio, "ratio")
}

/// The objects of a cluster with this number of Services.
fn objects(size: u32) -> Objects {
    let namespace: Arc<str> = "default".into();
    let port: Arc<str> = "http".into();
    let nodes: Vec<Arc<str>> = (0..100).map(|node| format!("node-{node}").into()).collect();
    let zones: Vec<Arc<str>> = (0..3).map(|zone| format!("zone-{zone}").into()).collect();
    let name = |number: u32| ObjectName::new(Arc::clone(&namespace), format!("service-{number}"));
    let services = (0..size).map(|number| {
        let address = Ipv4Addr::from(0x0a60_0000 + number);
        Service::new(name(number))
            .with_cluster_ip(address.to_string())
            .with_port(Port::new(Arc::clone(&port), 80))
    });
    let slices = (0..size).map(|number| {
        let service = name(number);
        let slice = ObjectName::new(Arc::clone(&namespace), format!("service-{number}-abcde"));
        let slice = EndpointSlice::new(slice, service.name, Family::Ipv4)
            .with_port(EndpointPort::new(Arc::clone(&port), 8_080));
        (0..ENDPOINTS).fold(slice, |slice, endpoint| {
            let node = (number * ENDPOINTS + endpoint) as usize;
            let endpoint = Endpoint::new(endpoint_address(number, endpoint))
                .with_node(Arc::clone(&nodes[node % nodes.len()]))
                .with_zone(Arc::clone(&zones[node % zones.len()]));
            slice.with_endpoint(endpoint)
        })
    });
    (services.collect(), slices.collect())
}

fn endpoint_address(service: u32, endpoint: u32) -> IpAddr {
    // Endpoints of a real slice are not sorted by address.
    let number = service * ENDPOINTS + (endpoint * 7) % ENDPOINTS;
    Ipv4Addr::from(0x0b00_0000 + number).into()
}

/// The removal and the addition of one endpoint each of many Services. None is on this node.
fn changes(size: u32) -> Vec<EndpointSlice> {
    let (_, slices) = objects(size);
    let changed = slices.into_iter().skip(1).step_by((size / CHANGED) as usize);
    changed
        .flat_map(|slice| {
            let mut without = slice.clone();
            without.endpoints.pop();
            [without, slice]
        })
        .collect()
}

fn full_lists((services, slices): Objects) -> [Change; 4] {
    [
        Change::Services(ObjectChange::ReplaceAll(services)),
        Change::Services(ObjectChange::Synced),
        Change::EndpointSlices(ObjectChange::ReplaceAll(slices)),
        Change::EndpointSlices(ObjectChange::Synced),
    ]
}

fn config() -> Config {
    Config::new("node-0")
}

/// The Services and the desired state, without a kernel.
struct Built {
    services: Services,
    state: State,
}

impl Built {
    fn new(objects: Objects) -> Result<Self, String> {
        let expected = objects.0.len();
        let config = config();
        let mut built = Self {
            state: State::new(&config),
            services: Services::new(config.services),
        };
        let eth0 = InterfaceAddress::new("eth0", [192, 0, 2, 1].into());
        built.services.set_interface_addresses(vec![eth0]);
        for change in full_lists(objects) {
            built.services.change(SOURCE, change);
        }
        built.services.update();
        let changes = built.services.take_changes();
        built.state.compile(&built.services, &changes);
        let ports = built.services.ports().count();
        if changes.ports.len() != expected || ports != expected {
            return Err(format!("{ports} service ports instead of {expected}"));
        }
        Ok(built)
    }

    /// The time from a change of an object to the dirty kernel objects.
    fn change(&mut self, slice: EndpointSlice) -> Result<Duration, String> {
        let change = Change::EndpointSlices(ObjectChange::Upsert(slice));
        let start = Instant::now();
        self.services.change(SOURCE, change);
        self.services.update();
        let changes = self.services.take_changes();
        self.state.compile(&self.services, &changes);
        let time = start.elapsed();
        match changes.ports.len() {
            1 => Ok(time),
            number => Err(format!("one endpoint changed {number} service ports")),
        }
    }
}

/// A proxier after its first sync, on the fake kernel.
fn synced(size: u32) -> Result<Proxier, String> {
    let mut proxier = Proxier::new(&config(), Kernel::fake()).map_err(|error| error.to_string())?;
    for change in full_lists(objects(size)) {
        proxier.change(SOURCE, change);
    }
    let start = Instant::now();
    let synced = proxier.sync(start).map_err(|error| error.to_string())?;
    // To standard error: a child process prints only its peak memory to standard output.
    eprintln!("{size} Services: {synced}, in {:.1?}", start.elapsed());
    let min_steps = size * (1 + ENDPOINTS);
    if !synced.is_success() || synced.plan.len() < min_steps as usize {
        return Err(format!("the first sync with {size} Services: {synced}"));
    }
    Ok(proxier)
}

/// The time of a change with its sync: one real server is added or deleted.
fn sync_change(proxier: &mut Proxier, slice: EndpointSlice) -> Result<Duration, String> {
    let change = Change::EndpointSlices(ObjectChange::Upsert(slice));
    let start = Instant::now();
    proxier.change(SOURCE, change);
    let time = start.elapsed();
    Ok(time + sync(proxier, 1)?)
}

/// The time of a sync, which must have this number of steps.
fn sync(proxier: &mut Proxier, steps: usize) -> Result<Duration, String> {
    let start = Instant::now();
    let synced = proxier.sync(start).map_err(|error| error.to_string())?;
    let time = start.elapsed();
    if synced.is_success() && synced.plan.len() == steps {
        Ok(time)
    } else {
        Err(format!(
            "a sync with {} steps instead of {steps}: {synced}",
            synced.plan.len()
        ))
    }
}
