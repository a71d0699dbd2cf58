//! From objects to the desired state: everything at once, and one endpoint more or less, for 1 000 to 50 000 Services with
//! ten endpoints each.
//!
//! Nothing here touches a kernel. What a change costs must not depend on how much there is, so the figure for it is the ratio of
//! its times with 50 000 and with 1 000 Services.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernlink_benches::{figure, median};
use kernlink_proxier::config::Config;
use kernlink_proxier::desired::{Changes, DesiredState};
use kernlink_proxier::family::Family;
use kernlink_proxier::model::{InterfaceAddress, Model};
use kernlink_proxier::source::{
    Change, Endpoint, EndpointPort, EndpointSlice, ObjectChange, ObjectName, Port, Service, SourceId,
};

const SIZES: [u32; 4] = [1_000, 5_000, 10_000, 50_000];
const ENDPOINTS: u32 = 10;
const SOURCE: SourceId = SourceId(0);
/// Set in the child that only builds and says how much memory that took.
const CHILD: &str = "KERNLINK_BENCH_PEAK_OF";

fn main() -> Result<(), String> {
    if let Ok(size) = std::env::var(CHILD) {
        let size = size.parse().map_err(|error| format!("{CHILD}: {error}"))?;
        let built = build(objects(size))?;
        println!("{}", peak_kib()?);
        drop(built);
        return Ok(());
    }
    let mut one_change = Vec::new();
    for size in SIZES {
        let runs = if size > 10_000 { 3 } else { 7 };
        let time = median(runs, || Ok::<_, String>(objects(size)), build)?;
        let each = time.as_nanos() as f64 / f64::from(size * ENDPOINTS);
        println!("{size} Services: {time:.1?} from nothing, {each:.0} ns an endpoint");
        figure(
            &format!("proxier.build_ns_per_endpoint.{size}x{ENDPOINTS}"),
            each,
            "ns",
        )?;
        let change = change(size)?;
        println!("{size} Services: {change:.1?} for one endpoint");
        one_change.push(change);
    }
    if let [least, .., most] = one_change[..] {
        let ratio = most.as_secs_f64() / least.as_secs_f64();
        figure("proxier.one_change_50000_over_1000", ratio, "ratio")?;
    }
    let size = 10_000;
    figure(
        &format!("proxier.peak_mib.{size}x{ENDPOINTS}"),
        peak_of_child(size)? / 1_024.0,
        "MiB",
    )
}

/// What a cluster of so many Services would hand in.
fn objects(size: u32) -> (Vec<Service>, Vec<EndpointSlice>) {
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
        let slice = EndpointSlice::new(slice, service.name, Family::V4)
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
    // Not in the order of the addresses, as in a real slice.
    let number = service * ENDPOINTS + (endpoint * 7) % ENDPOINTS;
    Ipv4Addr::from(0x0b00_0000 + number).into()
}

fn build((services, slices): (Vec<Service>, Vec<EndpointSlice>)) -> Result<(Model, DesiredState), String> {
    let wanted = services.len();
    let mut model = Model::new(Config::new("node-0"));
    model.set_interface_addresses(vec![InterfaceAddress::new("eth0", [192, 0, 2, 1].into())]);
    for change in [
        Change::Services(ObjectChange::ReplaceAll(services)),
        Change::Services(ObjectChange::Complete),
        Change::EndpointSlices(ObjectChange::ReplaceAll(slices)),
        Change::EndpointSlices(ObjectChange::Complete),
    ] {
        model.change(SOURCE, change);
    }
    let mut desired = DesiredState::new(&model);
    let touched = model.take_touched();
    desired.fold(&model, &touched);
    let servers = desired.virtual_servers(Family::V4).count();
    if servers != wanted {
        return Err(format!("{servers} virtual servers of {wanted}"));
    }
    Ok((model, desired))
}

/// The time of one endpoint leaving or coming back, up to the keys that a planner has to look at.
fn change(size: u32) -> Result<Duration, String> {
    let (services, slices) = objects(size);
    let samples: Vec<EndpointSlice> = slices.iter().step_by((size / 500) as usize).cloned().collect();
    let (mut model, mut desired) = build((services, slices))?;
    desired.take_changes();
    let mut times = Vec::new();
    for mut slice in samples {
        slice.endpoints.pop();
        let change = Change::EndpointSlices(ObjectChange::Upsert(slice));
        let start = Instant::now();
        model.change(SOURCE, change);
        let touched = model.take_touched();
        let folded = desired.fold(&model, &touched);
        let changes = desired.take_changes();
        times.push(start.elapsed());
        let one = matches!(changes, Changes::Keys(keys) if keys.virtual_servers.len() == 1);
        if folded.contributions != 1 || !one {
            return Err(format!(
                "one endpoint recomputed {} contributions",
                folded.contributions
            ));
        }
    }
    times.sort();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}

fn peak_of_child(size: u32) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .env(CHILD, size.to_string())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim()
        .parse()
        .map_err(|_| format!("the child said {text:?}"))
}

/// The most memory that this process ever had, in KiB.
fn peak_kib() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .ok_or("no VmHWM")?;
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .map_err(|error| format!("{line:?}: {error}"))
}
