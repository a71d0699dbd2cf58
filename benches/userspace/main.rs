//! The userspace proxy compared with HAProxy, and userspace mode compared with iptables mode, on the same pairs of veth devices, on the
//! running kernel.
//!
//! Needs root, `haproxy` and the iptables tools. A client, a node and a pod are network namespaces. The proxies are processes of their own
//! in the namespace of the node, each with one thread for connections; they are measured in turn, several times. Client and endpoint are
//! the same for all.

mod endpoint;
mod load;
mod modes;
mod processes;
mod proxies;

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;
use std::{fs, io};

use kernlink_benches::figure;
use kernlink_benches::runs::middle;
use kernlink_kernel_tests::tools::set_sysctl;
use kernlink_kernel_tests::traffic::Network;

use self::processes::{processor_time, resident_bytes};
use self::proxies::{Proxies, Way};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// How often each way is measured. The median counts.
const ROUNDS: usize = 7;

/// The time of one measurement.
const ROUND: Duration = Duration::from_millis(700);

/// The number of connections that are open at once.
const OPEN: usize = 10_000;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("endpoint") => return endpoint::run(),
        Some("proxy") => return proxies::run_own(arguments),
        _ => {}
    }
    let limit = usize::try_from(kernlink_userspace::limits::raise_descriptor_limit(65_536)?)?;
    if limit < OPEN + 400 {
        return Err(format!("{limit} open files are permitted; {} are needed", OPEN + 400).into());
    }
    // Two descriptors for each connection, and one port may have 7/8 of those that a process has.
    let most = limit.saturating_sub(400) / 16 * 7;
    let processes = u16::try_from(OPEN.div_ceil(most))?;
    println!("{limit} open files: {processes} processes of each proxy have {OPEN} connections");
    print_load()?;
    let network = Network::new(1);
    for namespace in [&network.client, &network.node, &network.pods[0]] {
        namespace.run(|| {
            // Enough for the connections of all rounds, and for all that are open at once.
            set_sysctl("net.ipv4.ip_local_port_range", "10240 65535");
            set_sysctl("net.core.somaxconn", "16384");
        });
    }
    network
        .node
        .run(|| modes::serve_iptables().map_err(|error| error.to_string()))?;
    // The table of tracked connections has the size of the machine's, and tens of thousands of connections end in a second.
    let tracked = || set_sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", "2");
    network.node.run(tracked);
    let endpoint = network.pods[0].run(endpoint::start)?;
    let proxies = Proxies::start(&network, processes, most)?;
    let ways = proxies.ways(&network)?;
    let others = [std::process::id(), endpoint.0.id()];

    bulk(&network, &ways, &others)?;
    rate(&network, &ways, &others)?;
    datagrams(&network, &ways, &others)?;
    open_connections(&network, &proxies)?;
    print_load()
}

fn print_load() -> Outcome<()> {
    let load = fs::read_to_string("/proc/loadavg")?;
    println!("load of the machine: {}", load.trim_end());
    Ok(())
}

/// The measurements of one way, by round.
struct Samples {
    name: &'static str,
    has_process: bool,
    /// Units of work per second.
    rates: Vec<f64>,
    /// Processor time of the proxy per unit.
    costs: Vec<f64>,
    /// Processor time of the proxy, the client and the endpoint per unit.
    all_costs: Vec<f64>,
}

/// What is measured, and its units.
struct Work<'a> {
    name: &'a str,
    unit: &'a str,
    cost_unit: &'a str,
    /// Units of cost in a second.
    per_second: f64,
    /// Makes use of a target, and returns the number of units and the seconds that they took.
    run: &'a (dyn Fn(SocketAddr) -> io::Result<(f64, f64)> + Sync),
}

/// Measures ways in turn, and prints figures. The ratios are medians of ratios within a round.
fn measure(
    network: &Network,
    ways: &[(&Way, SocketAddr)],
    others: &[u32],
    work: &Work<'_>,
) -> Outcome<Vec<Samples>> {
    let mut all: Vec<Samples> = ways
        .iter()
        .map(|(way, _)| Samples {
            name: way.name,
            has_process: way.id.is_some(),
            rates: Vec::new(),
            costs: Vec::new(),
            all_costs: Vec::new(),
        })
        .collect();
    for round in 0..=ROUNDS {
        for ((way, target), samples) in ways.iter().zip(&mut all) {
            let proxy: Vec<u32> = way.id.into_iter().collect();
            let before = (processor_time(&proxy)?, processor_time(others)?);
            let (units, seconds) = network
                .client
                .run(|| (work.run)(*target))
                .map_err(|error| format!("{}: {error}", way.name))?;
            let cost = processor_time(&proxy)? - before.0;
            let of_others = processor_time(others)? - before.1;
            // The first round fills caches.
            if round > 0 {
                samples.rates.push(units / seconds);
                samples.costs.push(cost / units);
                samples.all_costs.push((cost + of_others) / units);
            }
        }
    }
    for samples in &all {
        let name = |of: &str| format!("userspace.{}{of}_{}", work.name, samples.name);
        let scale = |values: &[f64]| middle(values.to_vec()) * work.per_second;
        figure(&name(""), middle(samples.rates.clone()), work.unit)?;
        if samples.has_process {
            figure(&name("_processor"), scale(&samples.costs), work.cost_unit)?;
        }
        figure(&name("_all_processor"), scale(&samples.all_costs), work.cost_unit)?;
    }
    Ok(all)
}

/// Prints the ratio of two ways.
fn compare(work: &str, all: &[Samples], one: &str, other: &str) -> Outcome<()> {
    let find = |name: &str| {
        all.iter()
            .find(|samples| samples.name == name)
            .ok_or("not measured")
    };
    let (first, second) = (find(one)?, find(other)?);
    let ratios = first.rates.iter().zip(&second.rates).map(|(a, b)| a / b);
    let name = if one == "own" {
        format!("userspace.{work}_over_{other}")
    } else {
        format!("userspace.{work}_{one}_over_{other}")
    };
    figure(&name, middle(ratios.collect()), "ratio")?;
    Ok(())
}

fn bulk(network: &Network, ways: &[Way; 4], others: &[u32]) -> Outcome<()> {
    const GIB: f64 = (1u64 << 30) as f64;
    let work = Work {
        name: "bulk",
        unit: "GiB/s",
        cost_unit: "ms/GiB",
        per_second: 1e3,
        run: &|target| load::bulk(target, ROUND).map(|(bytes, seconds)| (bytes as f64 / GIB, seconds)),
    };
    compared(network, ways, others, &work)
}

fn rate(network: &Network, ways: &[Way; 4], others: &[u32]) -> Outcome<()> {
    let work = Work {
        name: "rate",
        unit: "connections/s",
        cost_unit: "us/connection",
        per_second: 1e6,
        run: &|target| load::rate(target, ROUND).map(|(number, seconds)| (number as f64, seconds)),
    };
    compared(network, ways, others, &work)
}

fn compared(network: &Network, ways: &[Way; 4], others: &[u32], work: &Work<'_>) -> Outcome<()> {
    let ways = ways.each_ref().map(|way| (way, way.tcp));
    let all = measure(network, &ways, others, work)?;
    compare(work.name, &all, "own", "haproxy")?;
    compare(work.name, &all, "own", "iptables_mode")?;
    compare(work.name, &all, "userspace_mode", "iptables_mode")
}

/// HAProxy does not proxy UDP.
fn datagrams(network: &Network, ways: &[Way; 4], others: &[u32]) -> Outcome<()> {
    let [own, _, portals, iptables] = ways.each_ref().map(|way| (way, way.udp));
    let work = Work {
        name: "datagrams",
        unit: "replies/s",
        cost_unit: "us/reply",
        per_second: 1e6,
        run: &|target| load::datagrams(target, ROUND).map(|(number, seconds)| (number as f64, seconds)),
    };
    let all = measure(network, &[own, portals, iptables], others, &work)?;
    compare(work.name, &all, "own", "iptables_mode")?;
    compare(work.name, &all, "userspace_mode", "iptables_mode")
}

fn open_connections(network: &Network, proxies: &Proxies) -> Outcome<()> {
    let mut bytes = Vec::new();
    for processes in [&proxies.own, &proxies.haproxy] {
        let (name, ids) = (processes.name, processes.ids());
        let before = (resident_bytes(&ids)?, processor_time(&ids)?);
        let held = network
            .client
            .run(|| load::hold(&processes.targets(), OPEN))
            .map_err(|error| format!("{name}: {error}"))?;
        let after = (resident_bytes(&ids)?, processor_time(&ids)?);
        // Every connection still works.
        load::ask_all(&held)?;
        let per_connection = (after.0 - before.0) / OPEN as f64;
        bytes.push(per_connection);
        figure(
            &format!("userspace.memory_per_connection_{name}"),
            per_connection,
            "bytes",
        )?;
        let cost = (after.1 - before.1) / OPEN as f64 * 1e6;
        figure(&format!("userspace.open_processor_{name}"), cost, "us/connection")?;
    }
    let [own, haproxy]: [f64; 2] = bytes.try_into().map_err(|_| "a proxy was not measured")?;
    figure("userspace.open_connections", OPEN as f64, "connections")?;
    figure("userspace.memory_over_haproxy", own / haproxy, "ratio")?;
    Ok(())
}
