//! Traffic policies: which endpoints serve which client.

use std::net::SocketAddr;

use kernlink_kernel_tests::expectations::{
    NO_PORTS, assert_refused, assert_served, assert_silent, client_ips, gateway_ips, ips, node_ips, pod_ips,
    targets,
};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::traffic::{Protocol, ask_many};

use crate::support::{change, on_network, proxier, sync};

#[test]
fn with_internal_policy_local_the_endpoints_of_this_node_serve_cluster_ips() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        let near = |name: &str, number: u8| {
            service(
                name,
                number,
                "type: ClusterIP, internalTrafficPolicy: Local",
                NO_PORTS,
                &[],
            )
        };
        let manifests = [
            near("near", 1),
            slices("near", &[(0, "node-a"), (1, "node-b")]),
            near("elsewhere", 2),
            slices("elsewhere", &[(1, "node-b")]),
            near("empty", 3),
        ]
        .concat();
        sync(&mut proxier(&manifests));
        for (family, protocol, target) in targets(cluster_ips(1)) {
            let gateway = gateway_ips(0);
            let pod = pod_ips(2);
            assert_served(
                &network.pods[2],
                protocol,
                target,
                &["pod0"],
                &pod[family..=family],
            );
            for from in [&network.client, &network.node] {
                assert_served(from, protocol, target, &["pod0"], &gateway[family..=family]);
            }
        }
        for from in [&network.client, &network.pods[2], &network.node] {
            for (_, protocol, target) in targets(cluster_ips(2)) {
                assert_silent(from, protocol, target);
            }
            for (_, protocol, target) in targets(cluster_ips(3)) {
                assert_refused(from, protocol, target);
            }
        }
    });
}

const EXTERNAL: [&str; 2] = ["203.0.113.21", "2001:db8:ff::21"];
const INGRESS: [&str; 2] = ["203.0.113.11", "2001:db8:ff::11"];

/// A Service with external policy `Local` and all kinds of frontends.
fn near() -> String {
    let spec = format!(
        "type: LoadBalancer, externalTrafficPolicy: Local, externalIPs: ['{}', '{}'], healthCheckNodePort: 32000",
        EXTERNAL[0], EXTERNAL[1]
    );
    service(
        "near",
        1,
        &spec,
        [", nodePort: 30081", ", nodePort: 30054"],
        &INGRESS,
    )
}

/// All external frontends, with the index of the family.
fn external() -> Vec<(usize, Protocol, SocketAddr)> {
    let node_ports = (0..2).flat_map(|family| {
        [(Protocol::Tcp, 30081), (Protocol::Udp, 30054)]
            .map(|(protocol, port)| (family, protocol, SocketAddr::new(node_ips()[family], port)))
    });
    let addresses = [ips(EXTERNAL[0], EXTERNAL[1]), ips(INGRESS[0], INGRESS[1])];
    addresses
        .into_iter()
        .flat_map(targets)
        .chain(node_ports)
        .collect()
}

#[test]
fn with_external_policy_local_an_endpoint_of_this_node_sees_the_client_and_pods_and_the_node_use_all() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        sync(&mut proxier(
            &(near() + &slices("near", &[(0, "node-a"), (1, "node-b")])),
        ));
        for (family, protocol, target) in external() {
            let gateways = [gateway_ips(0)[family], gateway_ips(1)[family]];
            let (client, pod) = (client_ips()[family], pod_ips(2)[family]);
            assert_served(&network.client, protocol, target, &["pod0"], &[client]);
            assert_served(&network.pods[2], protocol, target, &["pod0", "pod1"], &[pod]);
            assert_served(&network.node, protocol, target, &["pod0", "pod1"], &gateways);
        }
        // The internal policy is another one.
        for (_, protocol, target) in targets(cluster_ips(1)) {
            let tally = ask_many(&network.client, protocol, target, 40);
            tally.assert_balanced(&["pod0", "pod1"], 40);
        }
    });
}

#[test]
fn with_external_policy_local_and_no_endpoint_on_this_node_clients_outside_are_dropped() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        let mut proxier = proxier(&(near() + &slices("near", &[(1, "node-b")])));
        sync(&mut proxier);
        for (family, protocol, target) in external() {
            assert_silent(&network.client, protocol, target);
            let (gateway, pod) = (gateway_ips(1)[family], pod_ips(2)[family]);
            assert_served(&network.pods[2], protocol, target, &["pod1"], &[pod]);
            assert_served(&network.node, protocol, target, &["pod1"], &[gateway]);
        }
        // Nowhere.
        change(&mut proxier, &near());
        for (_, protocol, target) in external() {
            for from in [&network.client, &network.pods[2], &network.node] {
                assert_refused(from, protocol, target);
            }
        }
        // On this node.
        change(&mut proxier, &(near() + &slices("near", &[(0, "node-a")])));
        for (family, protocol, target) in external() {
            assert_served(
                &network.client,
                protocol,
                target,
                &["pod0"],
                &[client_ips()[family]],
            );
        }
    });
}

/// A pod that reaches itself through a frontend with policy `Local`: all endpoints, its own address only for itself.
#[test]
fn a_pod_reaches_itself_through_a_frontend_with_external_policy_local() {
    requires!(Feature::Conntrack);
    on_network(1, |network| {
        sync(&mut proxier(&(near() + &slices("near", &[(0, "node-a")]))));
        for (family, protocol, target) in external() {
            assert_served(
                &network.pods[0],
                protocol,
                target,
                &["pod0"],
                &[gateway_ips(0)[family]],
            );
        }
    });
}
