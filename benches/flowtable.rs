//! What a flowtable (software offload) gains for established connections through a Service in nftables mode: the throughput of one connection and the
//! processor time of the whole machine, with it and without it in turn, on the kernel of the VM.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use kernlink_benches::cluster::{self, Cluster};
use kernlink_benches::runs::middle;
use kernlink_benches::traffic::listen_at_endpoints;
use kernlink_benches::{Result, exit_code, figure};
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::Network;
use kernlink_proxier::nftables_mode::{Kernel, Proxier};

const SERVICES: u32 = 10;
/// The cluster IP and port of one of them.
const SERVICE: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 97, 0, 1), 80);
const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_secs(3);
/// Of `USER_HZ`, the unit of `/proc/stat`.
const TICKS_PER_SECOND: f64 = 100.0;
const GIB: f64 = (1_u64 << 30) as f64;
/// All connections that pass the node take the flowtable once they are established.
const FLOWTABLE: &str = "table inet bench {
  flowtable fast { hook ingress priority 0; devices = { client, pod0 }; }
  chain forward { type filter hook forward priority 0; ct state established counter flow add @fast; }
}
";

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let network = Network::new(1);
    let listener = listen_at_endpoints(&network)?;
    // Ends with the process.
    thread::spawn(move || listener.incoming().for_each(|stream| drop(stream.map(sink))));
    // Its socket is the owner of the tables.
    let _served = network.node.run(|| -> Result<Proxier> {
        let cluster = Cluster::new(SERVICES);
        let mut proxier = cluster.proxier(&cluster::nftables_config()?, Kernel::open()?)?;
        proxier.set_clock(Instant::now);
        cluster::sync(&mut proxier)?;
        Ok(proxier)
    })?;
    let [mut rates, mut costs] = [const { [Vec::new(), Vec::new()] }; 2];
    for round in 0..=ROUNDS {
        for has_flowtable in [false, true] {
            let (rate, cost) = if has_flowtable {
                send_with_flowtable(&network)?
            } else {
                send(&network)?
            };
            // The first round is not counted.
            if round > 0 {
                rates[usize::from(has_flowtable)].push(rate);
                costs[usize::from(has_flowtable)].push(cost);
            }
        }
    }
    let ratios = |of: &[Vec<f64>; 2]| {
        let [without, with] = of;
        middle(
            with.iter()
                .zip(without)
                .map(|(with, without)| with / without)
                .collect(),
        )
    };
    for (name, rates, costs) in [("without", &rates[0], &costs[0]), ("with", &rates[1], &costs[1])] {
        let (rate, cost) = (middle(rates.clone()), middle(costs.clone()));
        println!("{name}: {rate:.3} GiB/s, {cost:.2} s of all processors for a GiB");
    }
    figure("flowtable.bulk_with_over_without", ratios(&rates), "ratio")?;
    figure("flowtable.processor_with_over_without", ratios(&costs), "ratio")?;
    Ok(())
}

/// Reads until the connection ends.
fn sink(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 16];
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}

/// As [`send`], with a flowtable meanwhile.
fn send_with_flowtable(network: &Network) -> Result<(f64, f64)> {
    let nft = |arguments: &[&str], input: &str| {
        network
            .node
            .run(|| tools::run_with_input("nft", arguments, input))
    };
    nft(&["-f", "-"], FLOWTABLE)?;
    let sent = send(network)?;
    // Packets of the connection that passed the chain of the table, before the flowtable took it.
    let table = nft(&["list", "table", "inet", "bench"], "")?;
    table
        .lines()
        .filter(|line| line.contains("counter"))
        .for_each(|line| println!("{}", line.trim()));
    nft(&["delete", "table", "inet", "bench"], "")?;
    Ok(sent)
}

/// Sends on one connection of the client for some time. Returns GiB a second, and the processor time of all processors in seconds for a GiB.
fn send(network: &Network) -> Result<(f64, f64)> {
    let target = SERVICE.into();
    let connect = || TcpStream::connect_timeout(&target, Duration::from_secs(10));
    let mut stream = network.client.run(connect)?;
    // A broken connection is an error.
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let buffer = vec![0; 1 << 16];
    let (start, before) = (Instant::now(), busy()?);
    let mut bytes = 0;
    while start.elapsed() < TIME {
        bytes += stream.write(&buffer)?;
    }
    let (time, cost) = (start.elapsed().as_secs_f64(), busy()? - before);
    let sent = bytes as f64 / GIB;
    Ok((sent / time, cost / sent))
}

/// The seconds that all processors worked since the start of the machine.
fn busy() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq
    let busy = [0, 1, 2, 5, 6].into_iter().filter_map(|index| ticks.get(index));
    Ok(busy.sum::<f64>() / TICKS_PER_SECOND)
}
