//! Rolling updates of Deployments: how long the removal of each endpoint waits.

use std::thread;
use std::time::{Duration, Instant};

use kernlink_benches::cluster::{Cluster, SOURCE, endpoint_slice, service_of};
use kernlink_benches::runs::in_new_namespace;
use kernlink_benches::{Result, figure};
use kernlink_proxier::Runner;
use kernlink_proxier::schedule::Schedule;

use super::neighbours::{Clock, FirstSync, Kind, intervals, percentile};
use super::proxier;

const SIZE: u32 = 10_000;
/// The numbers of Deployments that are updated at the same time.
const DEPLOYMENTS: [usize; 3] = [1, 10, 100];
/// The pods of each.
const PODS: usize = 10;
/// How long a new pod of a Deployment needs until it is ready: the next old one ends then.
const READY: Duration = Duration::from_millis(1_500);

/// A pod of each Deployment is replaced after the other: a new one is added when it is ready, then an old one is removed at once.
pub(crate) fn run() -> Result<()> {
    let cluster = Cluster::new(SIZE);
    for deployments in DEPLOYMENTS {
        let delays = in_new_namespace(|_| {
            let removals = Clock::default();
            let runner = Runner::start(proxier(&cluster)?, Schedule::new(intervals()?), removals.notify())?;
            runner.wait_for_first_sync()?;
            thread::sleep(Duration::from_secs(15));
            // The replacement of each Service has the new pod; the original one the old pods.
            let pairs: Vec<_> = cluster.replacements().into_iter().take(deployments).collect();
            // The changes by time: the Deployments began at different moments.
            let mut changes = Vec::new();
            for (number, [replacement, original]) in pairs.iter().enumerate() {
                let Some(new) = replacement.endpoints.last() else {
                    continue;
                };
                let mut slice = original.clone();
                let offset = READY * number as u32 / deployments as u32;
                for pod in 0..PODS.min(original.endpoints.len()) {
                    let time = offset + READY * pod as u32;
                    let mut added = new.clone();
                    added.address = next_address(new.address, pod as u32);
                    slice.endpoints.push(added);
                    changes.push((time, false, slice.clone()));
                    slice.endpoints.remove(0);
                    changes.push((time + Duration::from_millis(50), true, slice.clone()));
                }
            }
            changes.sort_by_key(|(time, ..)| *time);
            let start = Instant::now();
            for (time, is_removal, slice) in changes {
                thread::sleep((start + time).saturating_duration_since(Instant::now()));
                if is_removal {
                    removals.begin(&service_of(&slice), Kind::Removal);
                }
                runner.change(SOURCE, endpoint_slice(slice));
            }
            removals.wait()?;
            Ok(removals.written(Kind::Removal))
        })?;
        let (half, most) = (percentile(&delays, 0.5), percentile(&delays, 1.0));
        println!(
            "{deployments} Deployments: {} removals, {half:.2?}, at most {most:.2?}",
            delays.len()
        );
        for (what, time) in [("median", half), ("most", most)] {
            let name = format!("nftables_mode.rolling_{what}_ms.{deployments}x{PODS}");
            figure(&name, time.as_secs_f64() * 1e3, "ms")?;
        }
    }
    Ok(())
}

/// Another address of the network of the pods.
fn next_address(address: std::net::IpAddr, number: u32) -> std::net::IpAddr {
    match address {
        std::net::IpAddr::V4(address) => {
            std::net::Ipv4Addr::from_bits(address.to_bits() + 0x1000 + number).into()
        }
        other => other,
    }
}
