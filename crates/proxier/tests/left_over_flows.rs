//! UDP flows to frontends whose virtual servers an earlier process removed before it ended: their entries are left.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/node.rs"]
mod node;
#[path = "support/udp.rs"]
mod udp;

use std::time::Instant;

use kernlink_dummylink::{Fake, LinkAddress, LinkName};
use kernlink_proxier::ipvs_mode::{Config, Kernel};
use kernlink_services::NodePortAddresses;

use crate::faulty::Faults;
use crate::node::{ipv4_config, kernel, proxier, upsert};
use crate::udp::{NODE_PORT, add, clients, udp, udp_endpoints, udp_service, with_node_port};

/// A kernel with the entries of a UDP Service with a node port and without its virtual servers, at two addresses of the node.
fn without_servers(config: Config) -> Kernel {
    let mut kernel = kernel();
    let eth0 = LinkName::new("eth0").unwrap();
    let addresses = ["192.0.2.1", "192.0.2.9"].map(|a| LinkAddress::host(a.parse().unwrap()).unwrap());
    kernel.links = Box::new(Fake::new().with_link(eth0, None, &addresses));
    let mut proxier = proxier(config, kernel);
    upsert(
        &mut proxier,
        with_node_port(udp_service("dns", "10.96.0.10"), NODE_PORT),
    );
    udp_endpoints(&mut proxier, "dns", &[1]);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let mut kernel = proxier.into_kernel();
    for (server, _) in kernel.ipvs.list_all().unwrap() {
        kernel.ipvs.delete_virtual_server(&server.key).unwrap();
    }
    kernel
}

#[test]
fn a_pass_over_left_over_flows_that_fails_is_repeated_although_the_entries_are_gone() {
    let (mut kernel, faults) = Faults::of_kernel(without_servers(ipv4_config()));
    add(
        &mut kernel,
        &[
            udp(1, "10.96.0.10:53", "10.244.0.1:5353"),
            udp(2, "192.0.2.1:30053", "10.244.0.1:5353"),
        ],
    );
    faults.refuse("conntrack -L");
    let mut proxier = proxier(ipv4_config(), kernel);
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.plan.len()),
        (1, 1),
        "{}",
        synced.plan
    );
    faults.end();
    assert_eq!(clients(proxier.kernel_mut()), [1, 2]);
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(clients(proxier.kernel_mut()), [0; 0]);
    assert_eq!(synced.next, None);
}

#[test]
fn a_left_over_node_port_is_one_of_the_addresses_that_accept_node_ports() {
    let mut config = ipv4_config();
    config.services.node_port_addresses = NodePortAddresses::Networks(vec!["192.0.2.1/32".parse().unwrap()]);
    let mut kernel = without_servers(config.clone());
    add(
        &mut kernel,
        &[
            udp(1, "192.0.2.1:30053", "10.244.0.1:5353"),
            // Another program translates this one: node ports are not served at this address.
            udp(2, "192.0.2.9:30053", "10.244.0.1:5353"),
        ],
    );
    let mut proxier = proxier(config, kernel);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    assert_eq!(clients(proxier.kernel_mut()), [2]);
}
