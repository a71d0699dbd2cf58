//! Reads Kubernetes manifests, programs a kernel, and sends requests to every virtual IP.
//!
//! `cargo run --example demo [-- FILE...]`
//!
//! As root on a kernel with IPVS, this program creates network namespaces for a node, two pods and a client (`network.rs`), starts a
//! server for every endpoint (`traffic.rs`), programs the node's kernel, and sends requests. Nothing outside these namespaces changes. On
//! other hosts it prints the plan and executes it on the in-memory kernel.

/// Like `println!`, but ends the program if the reader of its output is gone (`demo | head`).
macro_rules! print_line {
    ($($argument:tt)*) => {
        if std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($argument)*))).is_err() {
            std::process::exit(1);
        }
    };
}

mod network;
mod traffic;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kernlink_kubernetes::manifest::{self, Objects};
use kernlink_proxier::ipvs_mode::{Config, Kernel, Proxier, config::Conntrack};
use kernlink_proxier::services::{
    Change, EndpointSlice, Frontend, ObjectChange, Protocol, SourceId, TrafficPolicy,
};

use network::{Namespace, Network};

const SOURCE: SourceId = SourceId(0);
const REQUESTS: usize = 60;
const USAGE: &str = "usage: demo [FILE]...

Programs a kernel with the Services and EndpointSlices of the manifests (default: those in examples/manifests).
Needs root and a kernel with IPVS; otherwise an in-memory kernel is used.";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every operation and every request succeeded.
fn run() -> Result<bool> {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if let Some(option) = files
        .iter()
        .find(|file| file.as_os_str().as_encoded_bytes().starts_with(b"-"))
    {
        if option.as_os_str() == "--help" || option.as_os_str() == "-h" {
            print_line!("{USAGE}");
            return Ok(true);
        }
        bail!("unknown option {}\n{USAGE}", option.display());
    }
    let objects = read(files)?;
    match open_kernel() {
        Ok(node) => on_kernel(&node, objects),
        Err(error) => {
            print_line!("Using an in-memory kernel; the running kernel cannot be used: {error:#}.");
            print_line!(
                "`cargo xtask vm run -- cargo run --example demo` runs the demo on a kernel with IPVS.\n"
            );
            in_memory(objects)
        }
    }
}

/// Checks, in a network namespace of its own, that the kernel has what the proxier needs.
fn open_kernel() -> Result<Network> {
    Namespace::new()?.run(|| Ok(Kernel::open().map(drop)?))?;
    Network::new()
}

/// Reads the manifests. Invalid objects are reported and skipped.
fn read(mut files: Vec<PathBuf>) -> Result<Objects> {
    if files.is_empty() {
        files.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/cluster.yaml"));
    }
    let mut objects = Objects::default();
    for file in &files {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(|| format!("read {name}"))?;
        objects.extend(manifest::read(&name, &text));
    }
    for error in &objects.errors {
        print_line!("Skipped: {error}");
    }
    let (services, slices) = (objects.services.len(), objects.endpoint_slices.len());
    print_line!("Read {services} Services and {slices} EndpointSlices.");
    Ok(objects)
}

/// kube-proxy's defaults, except for the connection table, which all network namespaces share and which stays as it is.
fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack = Conntrack {
        max_per_core: 0,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        ..Conntrack::default()
    };
    config
}

fn proxier(kernel: Kernel, objects: Objects) -> Result<Proxier> {
    let mut proxier = Proxier::new(config(), kernel)?;
    // The kernel holds nothing yet, so nothing is deleted because of an object that could not be read.
    for change in objects.into_changes_without_missing() {
        for event in proxier.change(SOURCE, change) {
            print_line!("Event: {event}");
        }
    }
    let excluded = proxier.services().excluded();
    let skipped: Vec<String> = excluded
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    if !skipped.is_empty() {
        print_line!("Skipped: {}.", skipped.join(", "));
    }
    Ok(proxier)
}

/// Executes a sync and returns whether every operation succeeded.
fn sync(proxier: &mut Proxier) -> Result<bool> {
    let start = Instant::now();
    let synced = proxier.sync(start)?;
    for event in &synced.events {
        print_line!("Event: {event}");
    }
    print_line!(
        "Sync: {synced}, in {:.1} ms.",
        start.elapsed().as_secs_f64() * 1e3
    );
    Ok(synced.is_success())
}

fn in_memory(objects: Objects) -> Result<bool> {
    let mut proxier = proxier(Kernel::fake(), objects)?;
    print_line!("\nThe plan, as commands:\n\n{}", proxier.plan(Instant::now())?);
    let first = sync(&mut proxier)?;
    print_kernel(&mut proxier)?;
    print_line!("\nThe same manifests again:");
    Ok(sync(&mut proxier)? && first)
}

fn on_kernel(network: &Network, objects: Objects) -> Result<bool> {
    let slices = objects.endpoint_slices.clone();
    let servers = traffic::start_servers(network, &slices)?;
    print_line!("Two pods serve {servers} endpoints; a client is outside the node.");
    network.node.enter()?;
    let mut proxier = proxier(Kernel::open()?, objects)?;
    let mut success = sync(&mut proxier)?;
    print_kernel(&mut proxier)?;

    print_line!("\n{REQUESTS} requests from the client to each virtual IP, each on a connection of its own:");
    success &= send_requests(network, &proxier)?;

    print_line!("\nThe same manifests again:");
    success &= sync(&mut proxier)?;

    let Some((address, changes)) = without_endpoint(&proxier, &slices) else {
        print_line!("\nNo endpoint is removed: no service port has more than one.");
        return Ok(success);
    };
    print_line!("\nThe endpoint {address} is removed:");
    for change in changes {
        proxier.change(SOURCE, change);
    }
    success &= sync(&mut proxier)?;
    print_line!("{REQUESTS} requests to each virtual IP:");
    Ok(send_requests(network, &proxier)? && success)
}

/// Prints what the kernel holds, read back.
fn print_kernel(proxier: &mut Proxier) -> Result<()> {
    let kernel = proxier.kernel_mut();
    print_line!("\nVirtual servers and real servers (ipvsadm -S -n):");
    for (virtual_server, real_servers) in kernel.ipvs.list_all()? {
        print_line!("  {virtual_server}");
        for real_server in real_servers {
            print_line!("  -a {} {real_server}", virtual_server.key);
        }
    }
    print_line!("Entries of sets (ipset list):");
    for set in kernel.sets.list()?.iter().filter(|set| !set.entries.is_empty()) {
        print_line!("  {}: {}", set.header.set.name, set.entries.len());
    }
    Ok(())
}

/// Sends requests to every frontend that the client can use, and returns whether all were answered.
fn send_requests(network: &Network, proxier: &Proxier) -> Result<bool> {
    let mut frontends: Vec<_> = proxier.services().frontends().collect();
    frontends.sort_by_key(|frontend| frontend.key);
    let mut failed = 0;
    for frontend in frontends {
        let (key, port) = (frontend.key, frontend.owner);
        // Internal traffic policies, source ranges and missing endpoints can exclude the client.
        let is_open = |frontend: &Frontend| {
            frontend.policy == TrafficPolicy::Cluster && frontend.source_ranges.is_empty()
        };
        let is_usable = frontend.frontends().all(is_open) && !port.endpoints.cluster.is_empty();
        if key.protocol == Protocol::Sctp || !is_usable {
            print_line!("  {} {key}: no requests are sent", port.key.name);
            continue;
        }
        let target = SocketAddr::new(key.address, key.port);
        let answers = traffic::request(&network.client, target, key.protocol, REQUESTS)?;
        print_line!("  {} {key}: {answers}", port.key.name);
        failed += answers.failures.len();
    }
    print_line!("  {failed} requests failed.");
    Ok(failed == 0)
}

/// The changes that remove an endpoint from a service port that has others. `None` if there is no such port.
fn without_endpoint(proxier: &Proxier, slices: &[EndpointSlice]) -> Option<(IpAddr, Vec<Change>)> {
    let ports = proxier
        .services()
        .ports()
        .map(|(_, port)| &port.endpoints.cluster);
    let endpoints = ports
        .max_by_key(|endpoints| endpoints.len())
        .filter(|endpoints| endpoints.len() > 1);
    let address = endpoints?.first()?.address;
    let mut changed = slices.to_vec();
    changed.retain(|slice| slice.endpoints.iter().any(|endpoint| endpoint.address == address));
    for slice in &mut changed {
        slice.endpoints.retain(|endpoint| endpoint.address != address);
    }
    let changes = changed
        .into_iter()
        .map(|slice| Change::EndpointSlices(ObjectChange::Upsert(slice)));
    Some((address, changes.collect()))
}
