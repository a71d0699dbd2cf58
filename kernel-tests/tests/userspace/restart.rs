//! A new process on a node whose rules still lead to the ports of the earlier one.

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::traffic::{Connection, Protocol, ask_many};

use super::support::*;

#[test]
fn a_new_process_serves_at_the_same_ports_and_changes_no_rule() {
    requires!(Feature::Iptables);
    for variant in VARIANTS {
        let place = Place::new(1);
        let mut earlier = Process::serving(variant, web(), &[0]);
        earlier.sync();
        let [ip, _] = cluster_ips();
        let [(_, tcp), (_, udp)] = targets(ip, 80, 53);
        let mut old = Connection::open(place.client(), Protocol::Tcp, tcp).unwrap();
        old.ask().unwrap();
        let mut flow = Connection::open(place.client(), Protocol::Udp, udp).unwrap();
        flow.ask().unwrap();
        drop(earlier);
        // Connections end with the process.
        assert!(old.ask().is_err());
        let mut new = Process::serving(variant, web(), &[0]);
        // The listening ports only: two for each family.
        assert_eq!(new.sync(), 4);
        // The client's flow goes on: tracked connections translate to the same port.
        flow.ask().unwrap();
        for (protocol, target) in [(Protocol::Tcp, tcp), (Protocol::Udp, udp)] {
            ask_many(place.client(), protocol, target, 2).assert_balanced(&["pod0"], 0);
        }
    }
}
