//! Encodes operations on one core, without a kernel.

use std::net::Ipv4Addr;
use std::time::Instant;

use kernlink_benches::figure;
use kernlink_ipvs::{Operation, RealServer, RealServerKey, VirtualServerKey};
use kernlink_netlink::Batch;

const MESSAGES: u32 = 10_000;
const RUNS: usize = 200;

fn main() -> Result<(), String> {
    let operations: Vec<_> = (0..MESSAGES)
        .map(|n| Operation::AddRealServer {
            virtual_server: VirtualServerKey::tcp(Ipv4Addr::from(0x0a60_0000 + n / 10), 80),
            real_server: RealServer::new(RealServerKey::new(Ipv4Addr::from(0x0a01_0000 + n), 8080)),
        })
        .collect();
    let mut batch = Batch::new();
    let mut times = Vec::with_capacity(RUNS);
    // The first run allocates the memory of the batch.
    for run in 0..=RUNS {
        batch.clear();
        let start = Instant::now();
        for operation in std::hint::black_box(&operations) {
            operation
                .encode(30, &mut batch)
                .map_err(|error| error.to_string())?;
        }
        let time = start.elapsed();
        std::hint::black_box(&batch);
        if run > 0 {
            times.push(time);
        }
    }
    times.sort();
    let middle = times.get(RUNS / 2).copied().unwrap_or_default();
    println!(
        "{MESSAGES} real-server messages of {} bytes: {middle:?} (middle of {RUNS} runs)",
        batch.byte_len() / batch.len().max(1)
    );
    figure(
        "ipvs.encode_messages_per_second",
        f64::from(MESSAGES) / middle.as_secs_f64(),
        "messages/s",
    )
}
