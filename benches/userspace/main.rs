//! The userspace proxy compared with HAProxy and with plain DNAT rules, on the same pairs of veth devices, on the running kernel.
//!
//! Needs root, `haproxy` and `iptables`. A client, a node and a pod are network namespaces. The proxies are processes of their own in the
//! namespace of the node, each with one thread for connections; they are measured in turn, several times. Client and endpoint are the same
//! for all.

mod endpoint;
mod load;
mod proxies;

use std::error::Error;
use std::time::Duration;

use kernlink_benches::figure;
use kernlink_kernel_tests::tools::set_sysctl;
use kernlink_kernel_tests::traffic::Network;

use self::proxies::{Proxies, Proxy};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// How often each proxy is measured. The median counts.
const ROUNDS: usize = 7;

/// The time of one measurement.
const ROUND: Duration = Duration::from_millis(700);

/// The number of connections that are kept open, if the limit of open files permits it.
const OPEN: usize = 10_000;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("endpoint") => return endpoint::run(),
        Some("proxy") => return proxies::run_own(),
        _ => {}
    }
    let limit = usize::try_from(kernlink_userspace::limits::raise_descriptor_limit(65_536)?)?;
    // A proxy needs two for each connection, and some others.
    let most = limit.saturating_sub(400) / 2;
    let network = Network::new(1);
    for namespace in [&network.client, &network.node, &network.pods[0]] {
        namespace.run(|| {
            // Enough for the connections of all rounds, and for all that are open at once.
            set_sysctl("net.ipv4.ip_local_port_range", "10240 65535");
            set_sysctl("net.core.somaxconn", "16384");
        });
    }
    let _endpoint = network.pods[0].run(endpoint::start)?;
    let proxies = Proxies::start(&network, most)?;

    bulk(&network, &proxies)?;
    rate(&network, &proxies)?;
    open_connections(&network, &proxies, OPEN.min(most))?;
    datagrams(&network, &proxies)?;
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The results of one proxy: units of work per second, and processor time of the proxy per unit.
#[derive(Default)]
struct Samples {
    rates: Vec<f64>,
    costs: Vec<f64>,
}

/// Measures each proxy in turn. `work` returns the number of units and the seconds that they took.
fn measure(
    proxies: &[&Proxy],
    mut work: impl FnMut(&Proxy) -> Outcome<(f64, f64)>,
) -> Outcome<Vec<(f64, f64)>> {
    let mut samples: Vec<Samples> = proxies.iter().map(|_| Samples::default()).collect();
    for round in 0..=ROUNDS {
        for (proxy, samples) in proxies.iter().zip(&mut samples) {
            let before = proxy.processor_time()?;
            let (units, seconds) = work(proxy)?;
            let used = proxy.processor_time()? - before;
            if round > 0 {
                samples.rates.push(units / seconds);
                samples.costs.push(used / units);
            }
        }
    }
    let medians = samples
        .into_iter()
        .map(|samples| (median(samples.rates), median(samples.costs)));
    Ok(medians.collect())
}

fn bulk(network: &Network, proxies: &Proxies) -> Outcome<()> {
    const GIB: f64 = (1u64 << 30) as f64;
    let work = |proxy: &Proxy| {
        let (bytes, seconds) = network
            .client
            .run(|| load::bulk(proxy.tcp, ROUND))
            .map_err(|error| error.to_string())?;
        Ok((bytes as f64 / GIB, seconds))
    };
    let all = [&proxies.own, &proxies.haproxy, &proxies.dnat];
    let [own, haproxy, dnat] = results(measure(&all, work)?)?;
    figure("userspace.bulk_over_haproxy", own.0 / haproxy.0, "ratio")?;
    figure("userspace.bulk_over_dnat", own.0 / dnat.0, "ratio")?;
    for (name, result) in [("own", own), ("haproxy", haproxy), ("dnat", dnat)] {
        figure(&format!("userspace.bulk_{name}"), result.0, "GiB/s")?;
    }
    for (name, result) in [("own", own), ("haproxy", haproxy)] {
        figure(
            &format!("userspace.bulk_processor_{name}"),
            result.1 * 1000.0,
            "ms/GiB",
        )?;
    }
    Ok(())
}

fn rate(network: &Network, proxies: &Proxies) -> Outcome<()> {
    let work = |proxy: &Proxy| {
        let (connections, seconds) = network
            .client
            .run(|| load::rate(proxy.tcp, ROUND))
            .map_err(|error| error.to_string())?;
        Ok((connections as f64, seconds))
    };
    let all = [&proxies.own, &proxies.haproxy, &proxies.dnat];
    let [own, haproxy, dnat] = results(measure(&all, work)?)?;
    figure("userspace.rate_over_haproxy", own.0 / haproxy.0, "ratio")?;
    figure("userspace.rate_over_dnat", own.0 / dnat.0, "ratio")?;
    for (name, result) in [("own", own), ("haproxy", haproxy), ("dnat", dnat)] {
        figure(&format!("userspace.rate_{name}"), result.0, "connections/s")?;
    }
    for (name, result) in [("own", own), ("haproxy", haproxy)] {
        let cost = result.1 * 1e6;
        figure(&format!("userspace.rate_processor_{name}"), cost, "us/connection")?;
    }
    Ok(())
}

fn open_connections(network: &Network, proxies: &Proxies, open: usize) -> Outcome<()> {
    let mut bytes = Vec::new();
    for proxy in [&proxies.own, &proxies.haproxy] {
        let before = proxy.resident_bytes()?;
        let held = network
            .client
            .run(|| load::hold(proxy.tcp, open))
            .map_err(|error| error.to_string())?;
        let after = proxy.resident_bytes()?;
        // Every connection still works.
        load::ask_all(&held)?;
        bytes.push((after - before) / open as f64);
    }
    let [own, haproxy] = results(bytes)?;
    figure("userspace.open_connections", open as f64, "connections")?;
    figure("userspace.memory_over_haproxy", own / haproxy, "ratio")?;
    figure("userspace.memory_per_connection_own", own, "bytes")?;
    figure("userspace.memory_per_connection_haproxy", haproxy, "bytes")?;
    Ok(())
}

/// HAProxy does not proxy UDP.
fn datagrams(network: &Network, proxies: &Proxies) -> Outcome<()> {
    let work = |proxy: &Proxy| {
        let (replies, seconds) = network
            .client
            .run(|| load::datagrams(proxy.udp, ROUND))
            .map_err(|error| error.to_string())?;
        Ok((replies as f64, seconds))
    };
    let [own, dnat] = results(measure(&[&proxies.own, &proxies.dnat], work)?)?;
    figure("userspace.datagrams_over_dnat", own.0 / dnat.0, "ratio")?;
    figure("userspace.datagrams_own", own.0, "replies/s")?;
    figure("userspace.datagrams_dnat", dnat.0, "replies/s")?;
    figure("userspace.datagrams_processor_own", own.1 * 1e6, "us/reply")?;
    Ok(())
}

fn results<T, const N: usize>(values: Vec<T>) -> Outcome<[T; N]> {
    values.try_into().map_err(|_| "a proxy was not measured".into())
}
