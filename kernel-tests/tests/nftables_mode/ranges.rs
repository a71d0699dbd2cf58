//! Source ranges of load balancers.

use std::net::IpAddr;

use kernlink_kernel_tests::expectations::{assert_silent, ips, node_ips, targets};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::traffic::{Network, ask_many};
use kernlink_kernel_tests::{requires, tools, wait};

use crate::support::{change, on_network, proxier, sync};

const INGRESS: [&str; 2] = ["203.0.113.10", "2001:db8:ff::10"];
const EXTERNAL: [&str; 2] = ["203.0.113.20", "2001:db8:ff::20"];
const PORTS: [&str; 2] = [", nodePort: 30080", ", nodePort: 30053"];

fn outer(ranges: &str, slices: &str) -> String {
    let spec = format!(
        "type: LoadBalancer, loadBalancerSourceRanges: [{ranges}], externalIPs: ['{}', '{}']",
        EXTERNAL[0], EXTERNAL[1]
    );
    service("outer", 1, &spec, PORTS, &INGRESS) + slices
}

fn ingress() -> [IpAddr; 2] {
    ips(INGRESS[0], INGRESS[1])
}

/// All sources but a pod and the node are outside of this one.
const CLIENT: &str = "'192.0.2.2/32', '2001:db8:1::2/128'";
const ELSEWHERE: &str = "'198.51.100.0/24', '2001:db8:5::/48'";

fn assert_everything_else_is_served(network: &Network) {
    let others = [cluster_ips(1), ips(EXTERNAL[0], EXTERNAL[1])];
    for (_, protocol, target) in others.into_iter().flat_map(targets) {
        ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
    }
    for (_, protocol, mut target) in targets(node_ips()) {
        target.set_port(if target.port() == 80 { 30080 } else { 30053 });
        ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
    }
}

#[test]
fn sources_outside_the_ranges_are_dropped_at_load_balancer_ips_only() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let endpoints = slices("outer", &[(0, "node-a")]);
        let mut proxier = proxier(&outer(CLIENT, &endpoints));
        sync(&mut proxier);
        for (_, protocol, target) in targets(ingress()) {
            ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
            for from in [&network.pods[1], &network.node] {
                assert_silent(from, protocol, target);
            }
        }
        assert_everything_else_is_served(network);
        // Prefixes of other lengths, several of them, overlapping, and the longest and shortest ones.
        for ranges in [
            "'192.0.2.0/24', '2001:db8:1::/64'",
            "'198.51.100.0/24', '192.0.0.0/10', '192.0.2.0/31', '2001:db8:5::/48', '2001:db8::/32'",
            "'0.0.0.0/0', '::/0'",
        ] {
            change(&mut proxier, &outer(ranges, &endpoints));
            for (_, protocol, target) in targets(ingress()) {
                ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
            }
        }
        change(&mut proxier, &outer(ELSEWHERE, &endpoints));
        for (_, protocol, target) in targets(ingress()) {
            for from in [&network.client, &network.pods[1], &network.node] {
                assert_silent(from, protocol, target);
            }
        }
        assert_everything_else_is_served(network);
        // Without endpoints too: dropped, not refused.
        change(&mut proxier, &outer(ELSEWHERE, ""));
        for (_, protocol, target) in targets(ingress()) {
            assert_silent(&network.client, protocol, target);
        }
        // And without ranges everything is served again.
        change(&mut proxier, &outer("", &endpoints));
        for (_, protocol, target) in targets(ingress()) {
            for from in [&network.client, &network.pods[1], &network.node] {
                ask_many(from, protocol, target, 2).assert_balanced(&["pod0"], 0);
            }
        }
    });
}

#[test]
fn a_family_without_ranges_is_not_restricted() {
    requires!(Feature::Conntrack);
    on_network(1, |network| {
        for (ranges, restricted) in [("'198.51.100.0/24'", 0), ("'2001:db8:5::/48'", 1)] {
            sync(&mut proxier(&outer(ranges, &slices("outer", &[(0, "node-a")]))));
            for (family, protocol, target) in targets(ingress()) {
                if family == restricted {
                    assert_silent(&network.client, protocol, target);
                } else {
                    ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
                }
            }
        }
    });
}

/// Load-balancer IPs are addresses of the node if, for example, a bare-metal load balancer runs there. A connection of the node to its own
/// address has this address as its source.
#[test]
fn the_node_in_the_ranges_is_served_if_the_frontend_is_its_own_address() {
    requires!(Feature::Conntrack);
    on_network(1, |network| {
        let endpoints = slices("outer", &[(0, "node-a")]);
        for address in ingress() {
            let net = format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
            tools::ip(&["address", "add", &net, "dev", "lo"]);
        }
        wait::for_ipv6_addresses();
        let of_node = "'192.0.2.1/32', '2001:db8:1::1/128'";
        let mut proxier = proxier(&outer(of_node, &endpoints));
        sync(&mut proxier);
        for (_, protocol, target) in targets(ingress()) {
            ask_many(&network.node, protocol, target, 2).assert_balanced(&["pod0"], 0);
            assert_silent(&network.client, protocol, target);
        }
        change(&mut proxier, &outer(ELSEWHERE, &endpoints));
        for (_, protocol, target) in targets(ingress()) {
            assert_silent(&network.node, protocol, target);
        }
    });
}
