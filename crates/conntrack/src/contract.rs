//! The behaviour that every [`Conntrack`] must have.

#![expect(clippy::panic, reason = "a check fails by panicking")]

mod filters;
mod flows;
mod operations;
mod stale_flows;
mod updates;
mod zones;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_base::contract::{Check, Failures};

use crate::client::Conntrack;
use crate::error::Error;
use crate::filter::Filter;
use crate::flow::FlowKey;
use crate::new_flow::NewFlow;
use crate::tuple::Tuple;
use crate::zone::Zone;

/// Calls `each` with every check and collects all failures. `each` must call [`Check::run`] with an empty table that nothing else
/// changes: for the kernel, the table of a new network namespace. It may skip a check.
///
/// # Errors
///
/// The checks that failed.
///
/// ```
/// use kernlink_conntrack::{Fake, contract};
///
/// contract::run(|check| (check.run)(&mut Fake::new())).unwrap();
/// ```
pub fn run(each: impl FnMut(&Check<dyn Conntrack>)) -> Result<(), Failures> {
    let checks = [
        flows::CHECKS,
        operations::CHECKS,
        updates::CHECKS,
        zones::CHECKS,
        filters::CHECKS,
        stale_flows::CHECKS,
    ]
    .concat();
    kernlink_base::contract::run(&checks, each)
}

/// What a check runs on.
type Table = dyn Conntrack;

#[track_caller]
fn ok<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}: {error:?}"))
}

#[track_caller]
fn refused<T: Debug>(result: Result<T, Error>, is: fn(&Error) -> bool) {
    match result {
        Err(error) if is(&error) => {}
        other => panic!("unexpected outcome {other:?}"),
    }
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

fn network(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

fn udp(source: &str, destination: &str) -> Tuple {
    Tuple::udp(socket(source), socket(destination))
}

fn new(tuple: Tuple) -> NewFlow {
    NewFlow::new(tuple, Duration::from_secs(600))
}

/// The original tuples and zones of the flows that match a filter, sorted.
#[track_caller]
fn listed(table: &mut Table, filter: &Filter) -> Vec<String> {
    let mut tuples: Vec<String> = ok(table.list(filter))
        .iter()
        .map(|flow| flow.key().with_zone(flow.zone))
        .map(|key| FlowKey { id: None, ..key }.to_string())
        .collect();
    tuples.sort();
    tuples
}

/// Adds sixteen flows: two clients, two services, two ports, both families. The mark is the number of the client, the zone that of
/// the service.
fn population(table: &mut Table) {
    for (client, service) in [("10.0.0", "10.96.0"), ("[fd00::", "[fd96::")] {
        let close = if client.starts_with('[') { "]" } else { "" };
        let dot = if client.starts_with('[') { "" } else { "." };
        for host in [1, 2] {
            for target in [1, 2] {
                for port in [53, 54] {
                    let flow = new(udp(
                        &format!("{client}{dot}{host}{close}:4660"),
                        &format!("{service}{dot}{target}{close}:{port}"),
                    ));
                    ok(table.add(&flow.with_mark(host).with_zone(Zone::new(target))));
                }
            }
        }
    }
}
