//! Endpoints that do not answer.

use std::time::{Duration, Instant};

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_services::Family;

use super::support::*;

#[test]
fn an_endpoint_that_does_not_answer_is_replaced_by_the_next_one_and_then_avoided() {
    requires!(Feature::Iptables);
    let place = Place::new(1);
    let holes = black_hole(&place);
    let mut process = Process::serving(VARIANTS[1], web(), &[]);
    for (family, hole) in Family::ALL.into_iter().zip(holes) {
        let pod = match family {
            Family::Ipv4 => Network::pod_ipv4(0).into(),
            Family::Ipv6 => Network::pod_ipv6(0).into(),
        };
        process.addresses(family, &[hole, pod]);
    }
    process.sync();
    for ip in cluster_ips() {
        let [(_, tcp), _] = targets(ip, 80, 53);
        for _ in 0..4 {
            let mut connection = Connection::open(place.client(), Protocol::Tcp, tcp).unwrap();
            assert_eq!(connection.ask().unwrap().server, "pod0");
        }
    }
}

#[test]
fn a_connection_that_waits_for_an_endpoint_does_not_delay_others() {
    requires!(Feature::Iptables);
    let place = Place::new(1);
    let [hole, _] = black_hole(&place);
    let mut process = Process::serving(VARIANTS[1], web(), &[]);
    process.addresses(Family::Ipv4, &[hole]);
    process.sync();
    let [(_, tcp), _] = targets(cluster_ips()[0], 80, 53);
    let start = Instant::now();
    // It is accepted at once, and its attempts take 3.75 seconds.
    let mut waiting = Connection::open(place.client(), Protocol::Tcp, tcp).unwrap();
    process.endpoints(&[0]);
    process.sync();
    let mut next = Connection::open(place.client(), Protocol::Tcp, tcp).unwrap();
    assert_eq!(next.ask().unwrap().server, "pod0");
    let answered = start.elapsed();
    // The one that waited tries the present endpoints.
    assert_eq!(waiting.ask().unwrap().server, "pod0");
    eprintln!(
        "answered after {answered:?}, the waiting one after {:?}",
        start.elapsed()
    );
    assert!(start.elapsed() < Duration::from_secs(60));
}
