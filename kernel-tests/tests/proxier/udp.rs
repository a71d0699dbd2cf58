//! Clients that send UDP packets from one socket all the time, while endpoints, Services and node ports come and go.

use std::net::SocketAddr;
use std::time::Instant;

use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::udp_clients::{Clients, OtherFlows, flows_to, keep_flows};
use kernlink_kernel_tests::wait;
use kernlink_proxier::ipvs_mode::Proxier;

use crate::support::{cluster_ips, proxier, replace_objects, service, slices};

const NODE_PORT: u16 = 30_053;
const PORTS: &str = "[{name: ask, port: 5353, protocol: UDP}]";
const SPEC: &str = "type: NodePort, ports: [{name: ask, port: 53, protocol: UDP, nodePort: 30053}]";

/// Syncs, and returns the number of the first packet of each client that it sent afterwards.
fn sync(clients: &Clients, proxier: &mut Proxier, manifests: &str) -> Vec<u64> {
    replace_objects(proxier, manifests);
    clients.after(|| {
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
    })
}

#[test]
fn the_first_udp_packet_after_a_sync_reaches_a_current_endpoint() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(3);
    let _on_node = network.node.enter();
    keep_flows();
    let other = "type: ClusterIP, ports: [{name: ask, port: 30053, protocol: UDP}]";
    let other = service("other", 2, other, "") + &slices("other", PORTS, &[(1, "node-a")]);
    let ask = |pods: &[(u8, &str)]| service("ask", 1, SPEC, "") + &slices("ask", PORTS, pods) + &other;
    let mut proxier = proxier(&ask(&[(0, "node-a")]));
    proxier.sync(Instant::now()).unwrap();
    wait::for_ipv6_addresses();
    let clients = Clients::start(&network, cluster_ips(1), NODE_PORT);
    clients.wait_for_replies();
    // Flows that are not to the Service, but to the number of its node port.
    let others = OtherFlows::begin(&network, NODE_PORT, cluster_ips(2)[0]);

    // A second endpoint, and then the first one is removed.
    sync(&clients, &mut proxier, &ask(&[(0, "node-a"), (1, "node-a")]));
    let first = sync(&clients, &mut proxier, &ask(&[(1, "node-a")]));
    clients.assert_served_by(1, &first);
    // All endpoints are replaced at once.
    let first = sync(&clients, &mut proxier, &ask(&[(0, "node-a")]));
    clients.assert_served_by(0, &first);
    // To none and back.
    let first = sync(&clients, &mut proxier, &ask(&[]));
    clients.assert_refused(&first);
    let first = sync(&clients, &mut proxier, &ask(&[(1, "node-a")]));
    clients.assert_served_by(1, &first);
    // The Service is deleted.
    let first = sync(&clients, &mut proxier, &other);
    clients.assert_refused(&first);
    clients.assert_not_translated();
    // Meanwhile the clients of the node port have flows that are not translated.
    let node_port = SocketAddr::new(Network::node_ipv4().into(), NODE_PORT);
    wait::until(|| match flows_to(node_port).len() {
        0 => Err("no flow without translation"),
        _ => Ok(()),
    });
    sync(&clients, &mut proxier, &ask(&[(0, "node-a")]));
    wait::for_ipv6_addresses();
    let first = sync(&clients, &mut proxier, &ask(&[(0, "node-a")]));
    clients.assert_served_by(0, &first);
    others.assert_unchanged();
}
