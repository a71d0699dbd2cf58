//! Addresses that are frontends in more than one way, in the modes without virtual servers.

use std::net::SocketAddr;
use std::time::Duration;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{requires, tools, wait};
use serde_json::{Value, json};

use crate::api_objects::{api_service, api_slice};
use crate::cluster::{add, with_api_server};
use crate::support::{Agent, api_command, wait_for_answer};

/// How long a connection waits for an answer that does not come.
const SILENCE: Duration = Duration::from_secs(2);

/// The pod that answers the client at an address and port.
fn ask(network: &Network, target: &str) -> Result<String, String> {
    let target: SocketAddr = target.parse().unwrap();
    let opened = Connection::open_within(SILENCE, &network.client, Protocol::Tcp, target);
    let asked = opened.and_then(|mut connection| connection.ask());
    asked
        .map(|answer| answer.server)
        .map_err(|error| error.to_string())
}

fn wait_for(network: &Network, target: &str, pod: &str) {
    wait::until(|| match ask(network, target)? {
        answer if answer == pod => Ok(()),
        other => Err(other),
    });
}

/// Without endpoints of the Service, no rule of it is in table `nat`, so that its traffic reached the rules of node ports.
#[test]
fn a_node_port_gets_no_traffic_to_the_cluster_ip_of_another_service_at_an_address_of_the_node() {
    requires!(Feature::Iptables);
    for mode in ["iptables", "userspace"] {
        with_api_server(2, true, |network, server, kubeconfig| {
            // As a cache of DNS on the node has the cluster IP of the cluster's DNS.
            tools::ip(&["address", "add", "10.96.0.5/32", "dev", "lo"]);
            let mut at_node = api_service("a", "10.96.0.5");
            at_node["spec"]["ports"][0]["port"] = json!(30_080);
            server.apply(at_node);
            let mut open = api_service("b", "10.96.0.1");
            open["spec"]["type"] = json!("NodePort");
            open["spec"]["ports"][0]["nodePort"] = json!(30_080);
            server.apply(open);
            server.apply(api_slice("b", 0));
            let agent = Agent::spawn(api_command(kubeconfig, &["--proxy-mode", mode]));
            wait_for(network, "192.0.2.1:30080", "pod0");
            wait_for(network, "10.96.0.1:80", "pod0");
            assert!(ask(network, "10.96.0.5:30080").is_err(), "{mode}");
            // The node port is served at every other address, also at one that the node gets later.
            tools::ip(&["address", "add", "198.51.100.9/32", "dev", "lo"]);
            wait_for(network, "198.51.100.9:30080", "pod0");
            assert!(ask(network, "10.96.0.5:30080").is_err(), "{mode}");

            server.apply(api_slice("a", 1));
            wait_for(network, "10.96.0.5:30080", "pod1");
            wait_for(network, "192.0.2.1:30080", "pod0");
            server.delete(&api_slice("a", 1));
            wait::until(|| match ask(network, "10.96.0.5:30080") {
                Err(_) => Ok(()),
                Ok(pod) if pod == "pod1" => Err(pod),
                Ok(pod) => panic!("{mode}: {pod}"),
            });
            // Without the other Service, the node port is served there too.
            server.delete(&api_service("a", ""));
            wait_for(network, "10.96.0.5:30080", "pod0");
            let (status, log) = agent.stop();
            assert!(status.success(), "{log}");
        });
    }
}

/// A load balancer with these source ranges, whose address is an external IP too.
fn balanced(ranges: &[&str]) -> Value {
    let mut service = api_service("a", "10.96.0.1");
    service["spec"]["type"] = json!("LoadBalancer");
    service["spec"]["externalIPs"] = json!(["198.51.100.1"]);
    service["spec"]["loadBalancerSourceRanges"] = json!(ranges);
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}});
    service
}

#[test]
fn source_ranges_apply_to_a_load_balancer_whose_address_is_an_external_ip_too() {
    requires!(Feature::Iptables);
    for mode in ["iptables", "userspace"] {
        with_api_server(1, true, |network, server, kubeconfig| {
            server.apply(balanced(&["203.0.113.0/24"]));
            server.apply(api_slice("a", 0));
            let agent = Agent::spawn(api_command(kubeconfig, &["--proxy-mode", mode]));
            wait_for_answer(network, "10.96.0.1", "pod0");
            assert!(ask(network, "198.51.100.1:80").is_err(), "{mode}");
            // Added to and removed from a Service that is served.
            server.apply(balanced(&["192.0.2.0/24"]));
            wait_for(network, "198.51.100.1:80", "pod0");
            server.apply(balanced(&["203.0.113.0/24"]));
            add(server, "marker", "10.96.0.2", 0);
            wait_for_answer(network, "10.96.0.2", "pod0");
            wait::until(|| match ask(network, "198.51.100.1:80") {
                Err(_) => Ok(()),
                Ok(pod) => Err(pod),
            });
            server.apply(balanced(&[]));
            wait_for(network, "198.51.100.1:80", "pod0");
            let (status, log) = agent.stop();
            assert!(status.success(), "{log}");
        });
    }
}
