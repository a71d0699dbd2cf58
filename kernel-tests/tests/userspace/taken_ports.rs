//! Ports that other programs have.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Protocol, ask_many};
use kernlink_kernel_tests::{requires, wait};

use super::support::*;

#[test]
fn a_port_that_another_program_has_withholds_its_portal_only_until_the_program_ends() {
    requires!(Feature::Iptables);
    for variant in VARIANTS {
        let place = Place::new(1);
        let [node_ipv4, node_ipv6] = node_ips();
        // A node port, and an external IP that is an address of the node.
        let tcp = TcpListener::bind("0.0.0.0:30080").unwrap();
        let udp = UdpSocket::bind(SocketAddr::new(node_ipv4, 53)).unwrap();
        let mut service = with_node_ports();
        service.external_ips = vec![node_ipv4.to_string()];
        let mut process = Process::serving(variant, service, &[0]);
        let now = Instant::now();
        let synced = process.proxier.sync(now).unwrap();
        assert_eq!(synced.report.counts().failed, 2, "{synced}");
        let served = || {
            let cluster_ips = cluster_ips().into_iter().flat_map(|ip| targets(ip, 80, 53));
            let node_ports = targets(node_ipv6, 30_080, 30_053).into_iter();
            let others = [
                (Protocol::Udp, SocketAddr::new(node_ipv4, 30_053)),
                (Protocol::Tcp, SocketAddr::new(node_ipv4, 80)),
            ];
            cluster_ips.chain(node_ports).chain(others)
        };
        for (protocol, target) in served() {
            ask_many(place.client(), protocol, target, 1).assert_balanced(&["pod0"], 0);
        }
        drop((tcp, udp));
        // A program that another test starts has copies of the sockets until it is executed. Each attempt is after the next retry.
        let mut attempts = 0;
        wait::until(|| {
            attempts += 1;
            let synced = process.proxier.sync(now + Duration::from_secs(600) * attempts);
            let synced = synced.unwrap();
            if synced.is_success() {
                Ok(())
            } else {
                Err(synced.to_string())
            }
        });
        let withheld = [
            (Protocol::Tcp, SocketAddr::new(node_ipv4, 30_080)),
            (Protocol::Udp, SocketAddr::new(node_ipv4, 53)),
        ];
        for (protocol, target) in served().chain(withheld) {
            ask_many(place.client(), protocol, target, 1).assert_balanced(&["pod0"], 0);
        }
        process.proxier.resync();
        assert!(process.proxier.plan(Instant::now()).unwrap().is_empty());
    }
}
