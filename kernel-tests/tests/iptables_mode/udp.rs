//! Clients that send UDP packets from one socket all the time, while endpoints, Services and node ports come and go.

use std::net::SocketAddr;
use std::time::Instant;

use kernlink_kernel_tests::expectations::on_node_of;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::udp_clients::{Clients, OtherFlows, flows_to, keep_flows};
use kernlink_kernel_tests::{requires, wait};
use kernlink_proxier::iptables_mode::Proxier;

use crate::support::{proxier, replace_objects};

const NODE_PORT: u16 = 30_053;

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
    requires!(Feature::Iptables);
    // The flows do not depend on the variant of the tools.
    let variant = kernlink_iptables_restore::Variant::Nft;
    let network = Network::new(3);
    let _on_node = on_node_of(&network);
    keep_flows();
    // The port of the other Service is the number of the node port.
    let other = service("other", 2, "type: ClusterIP", ["", ""], &[]).replace("port: 53,", "port: 30053,")
        + &slices("other", &[(1, "node-a")]);
    let ask = |pods: &[(u8, &str)]| {
        let ports = [", nodePort: 30080", ", nodePort: 30053"];
        service("ask", 1, "type: NodePort", ports, &[]) + &slices("ask", pods) + &other
    };
    let mut proxier = proxier(variant, &ask(&[(0, "node-a")]));
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
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
    clients.assert_not_translated();
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
    let first = sync(&clients, &mut proxier, &ask(&[(0, "node-a")]));
    clients.assert_served_by(0, &first);
    others.assert_unchanged();
}

#[test]
fn a_new_process_deletes_the_flows_that_the_one_before_left() {
    requires!(Feature::Iptables);
    let variant = kernlink_iptables_restore::Variant::Nft;
    let network = Network::new(3);
    let _on_node = on_node_of(&network);
    keep_flows();
    let ports = [", nodePort: 30080", ", nodePort: 30053"];
    let ask = |pods: &[(u8, &str)]| service("ask", 1, "type: NodePort", ports, &[]) + &slices("ask", pods);
    assert!(
        proxier(variant, &ask(&[(0, "node-a")]))
            .sync(Instant::now())
            .unwrap()
            .is_success()
    );
    wait::for_ipv6_addresses();
    let clients = Clients::start(&network, cluster_ips(1), NODE_PORT);
    clients.wait_for_replies();
    // The endpoint was replaced while no process ran.
    let mut second = proxier(variant, &ask(&[(1, "node-a")]));
    let first = sync(&clients, &mut second, &ask(&[(1, "node-a")]));
    clients.assert_served_by(1, &first);
    // The Service was deleted while no process ran.
    let other = service("other", 2, "type: ClusterIP", ["", ""], &[]);
    let mut third = proxier(variant, &other);
    let first = sync(&clients, &mut third, &other);
    clients.assert_refused(&first);
    clients.assert_not_translated();
}
