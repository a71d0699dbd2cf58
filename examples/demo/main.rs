//! Reads Kubernetes manifests, programs a kernel, and sends requests to every virtual IP.
//!
//! `cargo xtask demo` installs what it needs, and runs it. `cargo run --example demo [-- [--mode MODE] [--in-memory] PATH...]`
//!
//! As root, this program creates network namespaces for a node, two pods and a client (`network.rs`, `links.rs`), starts a server for every
//! endpoint (`traffic.rs`), programs the node's kernel in one of the modes (`mode.rs`), and sends requests. Then it removes an endpoint and sends
//! requests again. Nothing outside these namespaces changes, and the kernel removes them when the program ends, however it ends.
//!
//! In mode nftables any Linux kernel with nf_tables will do, and no other program is needed; in mode iptables any Linux kernel. In mode ipvs,
//! the default, on a host without IPVS or without root, it prints the plan and executes it on the in-memory kernel.

/// Like `println!`, but ends the program if the reader of its output is gone (`demo | head`).
macro_rules! print_line {
    ($($argument:tt)*) => {
        if std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($argument)*))).is_err() {
            std::process::exit(1);
        }
    };
}

mod links;
#[path = "../manifest_files.rs"]
mod manifest_files;
mod mode;
mod network;
mod traffic;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kernlink_kubernetes::manifest::Objects;
use kernlink_proxier::Proxier;
use kernlink_proxier::iptables_mode::IptablesMode;
use kernlink_proxier::ipvs_mode::{self, IpvsMode};
use kernlink_proxier::nftables_mode::NftablesMode;
use kernlink_proxier::services::{
    Change, EndpointSlice, Frontend, ObjectChange, Protocol, SourceId, TrafficPolicy,
};

use mode::{Mode, Usable};
use network::Network;

const SOURCE: SourceId = SourceId(0);
const REQUESTS: usize = 60;
const USAGE: &str = "usage: demo [--mode MODE] [--in-memory] [PATH]...

Programs a kernel with the Services and EndpointSlices of manifests, files or folders (default: examples/manifests), in network namespaces
that it creates and that end with it.

  --mode nftables  needs root
  --mode iptables  needs root and the iptables tools
  --mode ipvs      the default; needs root and a kernel with IPVS, otherwise an in-memory kernel is used
  --in-memory      use an in-memory kernel in any case";

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

/// Returns whether every object was read, and every operation and every request succeeded.
fn run() -> Result<bool> {
    let mut mode = "ipvs".to_owned();
    let mut is_in_memory = false;
    let mut files: Vec<PathBuf> = Vec::new();
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--help" | "-h") => {
                print_line!("{USAGE}");
                return Ok(true);
            }
            Some("--in-memory") => is_in_memory = true,
            Some("--mode") => {
                let value = arguments.next().and_then(|value| value.into_string().ok());
                mode = value.with_context(|| format!("--mode requires a value\n{USAGE}"))?;
            }
            Some(option) if option.starts_with("--mode=") => {
                mode = option.trim_start_matches("--mode=").to_owned();
            }
            _ if argument.as_encoded_bytes().starts_with(b"-") => {
                bail!("unknown option {}\n{USAGE}", argument.display());
            }
            _ => files.push(argument.into()),
        }
    }
    let (is_complete, is_success) = match mode.as_str() {
        "ipvs" if is_in_memory => {
            let objects = read(files)?;
            (objects.missing.is_empty(), in_memory(objects)?)
        }
        _ if is_in_memory => bail!("--in-memory is for --mode ipvs only"),
        "nftables" => {
            let usable = mode::usable::<NftablesMode>()?;
            let objects = read(files)?;
            (objects.missing.is_empty(), on_kernel(usable, objects)?)
        }
        "iptables" => {
            let usable = mode::usable::<IptablesMode>()?;
            let objects = read(files)?;
            (objects.missing.is_empty(), on_kernel(usable, objects)?)
        }
        "ipvs" => {
            let objects = read(files)?;
            let is_complete = objects.missing.is_empty();
            let is_success = match mode::usable::<IpvsMode>() {
                Ok(usable) => on_kernel(usable, objects)?,
                Err(error) => {
                    print_line!("Using an in-memory kernel; the running kernel cannot be used: {error:#}.");
                    print_line!(
                        "`cargo run --example demo -- --mode nftables` needs no IPVS;\n\
                         `cargo xtask vm run -- cargo run --example demo` runs the demo on a kernel with IPVS.\n"
                    );
                    in_memory(objects)?
                }
            };
            (is_complete, is_success)
        }
        _ => bail!("unknown mode {mode:?}; known: nftables, iptables, ipvs"),
    };
    if !is_complete {
        print_line!("\nSome objects of the manifests cannot be read; they are skipped.");
    }
    Ok(is_complete && is_success)
}

/// Reads the manifests. Invalid objects are reported and skipped.
fn read(mut paths: Vec<PathBuf>) -> Result<Objects> {
    if paths.is_empty() {
        paths.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests"));
    }
    let objects = manifest_files::read(&paths)?;
    for error in &objects.errors {
        print_line!("Skipped: {error}");
    }
    let (services, slices) = (objects.services.len(), objects.endpoint_slices.len());
    print_line!("Read {services} Services and {slices} EndpointSlices.");
    Ok(objects)
}

fn proxier<M: Mode>(config: &M::Config, kernel: M::Kernel, objects: Objects) -> Result<Proxier<M>> {
    let mut proxier = Proxier::new(config, kernel)?;
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

/// Executes a sync and returns whether every operation succeeded. After a sync of the first Services it executes the one of all others.
fn sync<M: Mode>(proxier: &mut Proxier<M>) -> Result<bool> {
    let mut is_success = true;
    loop {
        let start = Instant::now();
        let synced = proxier.sync(start)?;
        for event in &synced.events {
            print_line!("Event: {event}");
        }
        print_line!(
            "Sync: {synced}, in {:.1} ms.",
            start.elapsed().as_secs_f64() * 1e3
        );
        if !synced.is_partial {
            return Ok(is_success && synced.is_success());
        }
        is_success &= synced.report.is_success();
    }
}

fn in_memory(objects: Objects) -> Result<bool> {
    let (config, kernel) = (<IpvsMode as Mode>::config(), ipvs_mode::Kernel::fake());
    let mut proxier = proxier::<IpvsMode>(&config, kernel, objects)?;
    print_line!("\nThe plan, as commands:\n\n{}", proxier.plan(Instant::now())?);
    let first = sync(&mut proxier)?;
    IpvsMode::print_kernel(&mut proxier)?;
    print_line!("\nThe same manifests again:");
    Ok(sync(&mut proxier)? && first)
}

fn on_kernel<M: Mode>(usable: Usable<M>, objects: Objects) -> Result<bool> {
    let network = &Network::new(usable.has_ipv6)?;
    let slices = objects.endpoint_slices.clone();
    let servers = traffic::start_servers(network, &slices)?;
    print_line!("Two pods serve {servers} endpoints; a client is outside the node.");
    network.node.enter()?;
    let mut proxier = proxier::<M>(&usable.config, M::open()?, objects)?;
    let mut success = sync(&mut proxier)?;
    M::print_kernel(&mut proxier)?;

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

/// Sends requests to every frontend that the client can use, and returns whether all were answered.
fn send_requests<M: Mode>(network: &Network, proxier: &Proxier<M>) -> Result<bool> {
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
fn without_endpoint<M: Mode>(
    proxier: &Proxier<M>,
    slices: &[EndpointSlice],
) -> Option<(IpAddr, Vec<Change>)> {
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
