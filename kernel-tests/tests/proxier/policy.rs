//! The external traffic policy of a Service changes while clients connect: after every step of the change each new connection succeeds.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Network, Protocol, ask_many};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier};

use crate::clusters::WEB_PORTS;
use crate::support::{
    assert_in_desired_state_while_draining, draining_config, load_balancer, proxier_with, replace_objects,
    slices, sync,
};

const INGRESS: [&str; 2] = ["203.0.113.10", "2001:db8:ff::10"];
const EXTERNAL: [&str; 2] = ["203.0.113.20", "2001:db8:ff::20"];

/// A Service with a node port, an external IP and a load-balancer IP, one local endpoint and one on another node.
fn manifests(policy: &str) -> String {
    let spec = format!(
        "type: LoadBalancer, externalTrafficPolicy: {policy}, externalIPs: ['{}', '{}'], \
         ports: [{{name: web, port: 80, nodePort: 30080, protocol: TCP}}]",
        EXTERNAL[0], EXTERNAL[1]
    );
    load_balancer("web", 1, &spec, INGRESS) + &slices("web", WEB_PORTS, &[(0, "node-a"), (1, "node-b")])
}

/// Connects to every frontend from outside, often enough to reach each endpoint. Returns the servers that replied.
fn ask_everywhere(network: &Network, what: &str) -> Vec<String> {
    let nodes: [IpAddr; 2] = [Network::node_ipv4().into(), Network::node_ipv6().into()];
    let frontends = [INGRESS, EXTERNAL].concat().into_iter();
    let targets = frontends.map(|address| SocketAddr::new(address.parse().unwrap(), 80));
    let targets = targets.chain(nodes.map(|node| SocketAddr::new(node, 30080)));
    let mut servers = Vec::new();
    for target in targets {
        let tally = ask_many(&network.client, Protocol::Tcp, target, 2);
        assert!(tally.failures.is_empty(), "{target} {what}: {tally:#?}");
        servers.extend(tally.answers.into_keys());
    }
    servers.sort();
    servers.dedup();
    servers
}

/// Applies the plan for these manifests step by step, with connections after each step.
fn change(network: &Network, proxier: &mut Proxier, manifests: &str) {
    replace_objects(proxier, manifests);
    let plan = proxier.plan(Instant::now()).unwrap();
    assert!(plan.len() >= 12, "{plan}");
    for (id, step) in plan.steps() {
        proxier.kernel_mut().execute(&step.operation).unwrap();
        ask_everywhere(network, &format!("after step {id} of\n{plan}"));
    }
    proxier.resync();
    let rest = sync(proxier);
    // Only draining endpoints without connections are left to do.
    let mut rest = rest.plan.steps().map(|(_, step)| step.operation.to_string());
    assert!(rest.all(|command| command.starts_with("ipvsadm -d ")), "{plan}");
    // Others that left still have connections.
    assert_in_desired_state_while_draining(proxier);
}

#[test]
fn every_connection_succeeds_while_the_external_traffic_policy_changes() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    // As on another node: its replies to the client do not pass this node, so only masqueraded connections work.
    let ways = "route add blackhole 192.0.2.2/32\nroute add blackhole 2001:db8:1::2/128\n";
    network.pods[1].run(|| tools::ip_batch(ways));
    let _on_node = network.node.enter();
    let kernel = Kernel::open().unwrap();
    let mut proxier = proxier_with(draining_config(), kernel, &manifests("Cluster"));
    sync(&mut proxier);
    assert_eq!(ask_everywhere(&network, "at first"), ["pod0", "pod1"]);
    change(&network, &mut proxier, &manifests("Local"));
    assert_eq!(ask_everywhere(&network, "with the local policy"), ["pod0"]);
    change(&network, &mut proxier, &manifests("Cluster"));
    assert_eq!(ask_everywhere(&network, "at the end"), ["pod0", "pod1"]);
}
