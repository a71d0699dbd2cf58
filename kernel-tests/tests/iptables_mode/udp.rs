//! Clients that send UDP packets from one socket all the time, while endpoints, Services and node ports come and go.

use std::net::SocketAddr;
use std::time::Instant;

use kernlink_conntrack::{Client, Conntrack, Filter, Flow};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server};
use kernlink_kernel_tests::udp_clients::{Clients, bind};
use kernlink_kernel_tests::{requires, tools, wait};
use kernlink_proxier::iptables_mode::Proxier;

use crate::support::{cluster_ips, on_node_of, proxier, replace_objects, service, slices};

const NODE_PORT: u16 = 30_053;

/// Syncs, and returns the number of the first packet of each client that it sent afterwards.
fn sync(clients: &Clients, proxier: &mut Proxier, manifests: &str) -> Vec<u64> {
    replace_objects(proxier, manifests);
    clients.after(|| {
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
    })
}

/// The flows to an address, in the calling thread's namespace.
fn flows_to(target: SocketAddr) -> Vec<Flow> {
    let mut flows = Client::open().unwrap().list(&Filter::new()).unwrap();
    flows.retain(|flow| flow.original.destination_socket() == target);
    flows
}

/// The only flow to an address.
fn flow_to(target: SocketAddr) -> (u32, String) {
    let flows = flows_to(target);
    let [flow] = &flows[..] else {
        panic!("flows to {target}: {flows:#?}")
    };
    (flow.id, format!("{} {}", flow.original, flow.reply))
}

fn assert_not_translated(clients: &Clients) {
    for target in clients.targets() {
        let mut flows = flows_to(target);
        flows.retain(|flow| flow.reply.source_socket() != target);
        assert_eq!(flows, []);
    }
}

#[test]
fn the_first_udp_packet_after_a_sync_reaches_a_current_endpoint() {
    requires!(Feature::Iptables);
    // The flows do not depend on the variant of the tools.
    let variant = kernlink_iptables_restore::Variant::Nft;
    let network = Network::new(3);
    let _on_node = on_node_of(&network);
    // No flow ends by itself during the test.
    tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout", "600");
    tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout_stream", "600");
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
    // Flows that are not to the Service, but to the number of its node port: to a server outside, and to another Service.
    let foreign = SocketAddr::new(Network::client_ipv4().into(), NODE_PORT);
    let _server = Server::start(&network.client, "foreign", Protocol::Udp, foreign);
    let mut connection = Connection::open(&network.pods[2], Protocol::Udp, foreign).unwrap();
    connection.ask().unwrap();
    let of_other = SocketAddr::new(cluster_ips(2)[0], NODE_PORT);
    let other_client = bind(&network.pods[2], "0.0.0.0:0".parse().unwrap());
    other_client.send_to(&[0xff; 16], of_other).unwrap();
    other_client.recv_from(&mut [0; 16]).unwrap();
    let others = [foreign, of_other].map(flow_to);

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
    assert_not_translated(&clients);
    let first = sync(&clients, &mut proxier, &ask(&[(1, "node-a")]));
    clients.assert_served_by(1, &first);
    // The Service is deleted.
    let first = sync(&clients, &mut proxier, &other);
    clients.assert_refused(&first);
    assert_not_translated(&clients);
    // Meanwhile the clients of the node port have flows that are not translated.
    let node_port = SocketAddr::new(Network::node_ipv4().into(), NODE_PORT);
    wait::until(|| match flows_to(node_port).len() {
        0 => Err("no flow without translation"),
        _ => Ok(()),
    });
    let first = sync(&clients, &mut proxier, &ask(&[(0, "node-a")]));
    clients.assert_served_by(0, &first);
    // The other flows are the same as before.
    assert_eq!([foreign, of_other].map(flow_to), others);
}

#[test]
fn a_new_process_deletes_the_flows_that_the_one_before_left() {
    requires!(Feature::Iptables);
    let variant = kernlink_iptables_restore::Variant::Nft;
    let network = Network::new(3);
    let _on_node = on_node_of(&network);
    tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout", "600");
    tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout_stream", "600");
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
    assert_not_translated(&clients);
}
