//! `kernlink-agent` with a real kube-apiserver and etcd. `cargo xtask e2e` builds and runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../tests/agent/api_objects.rs"]
mod api_objects;
mod cluster;
mod connection;
mod desired;
#[path = "../tests/agent/dist.rs"]
#[expect(dead_code, reason = "the other functions are for tests of the kustomization")]
mod dist;
mod encodings;
mod figures;
mod handover;
mod helm;
mod link;
mod mode;
mod nftables_tables;
mod process;
mod random_objects;
mod requests;
mod setup;
#[path = "../tests/agent/support.rs"]
#[expect(dead_code, reason = "the other functions are for tests with a folder")]
mod support;
mod traffic;
mod watchers;

use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::wait;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::api_objects::{api_service, api_slice};
use crate::setup::{Setup, api_node, signal};
use crate::support::{ask, get, wait_for_answer};
use crate::traffic::Traffic;

#[test]
fn an_agent_follows_a_cluster() {
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    network.node.run(|| follow(&network));
}

fn follow(network: &Network) {
    let mut setup = Setup::start();
    setup.add("lasting", "10.96.0.10", 0);
    setup.add("a", "10.96.0.11", 0);

    setup.next("the Node appears, with its address, while the agent waits");
    let agent = setup.agent();
    agent.wait_for("waiting: the Node node-a does not exist", 1);
    setup.cluster.create(&api_node());
    setup.cluster.set_node_address("192.0.2.1");
    wait_for_answer(network, "10.96.0.11", "pod0");
    wait_for_answer(network, "10.96.0.10", "pod0");
    let traffic = Traffic::start(network, "10.96.0.10:80".parse().unwrap(), "pod0");
    wait::until(|| match setup.cluster.node_events() {
        events if events.contains("\"Starting\"") => Ok(()),
        events => Err(events),
    });

    setup.next("create, change, delete");
    setup.add("b", "10.96.0.12", 1);
    wait_for_answer(network, "10.96.0.12", "pod1");
    let pod = Network::pod_ipv4(0).to_string();
    setup.cluster.patch(
        &api_slice("b", 1),
        &json!({"endpoints": [{"addresses": [pod], "conditions": {"ready": true}}]}),
    );
    wait_for_answer(network, "10.96.0.12", "pod0");
    let labels = json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}});
    setup.cluster.patch(&api_service("b", ""), &labels);
    setup.wait_until_gone("b", "10.96.0.12");
    setup.cluster.delete(&api_service("b", ""));
    setup.add("c", "10.96.0.13", 1);
    wait_for_answer(network, "10.96.0.13", "pod1");
    setup.assert_in_step();
    traffic.assert_goes_on();

    setup.next("all watches are cut in the middle; they continue without a list");
    setup.link.cut();
    agent.wait_for("cannot be read from the API server", 1);
    setup.add("f", "10.96.0.16", 0);
    wait_for_answer(network, "10.96.0.16", "pod0");
    agent.wait_for("read from the API server again", 3);
    assert!(!agent.log().contains("the list is read again"), "{}", agent.log());
    setup.assert_in_step();
    traffic.assert_goes_on();

    setup.next("the API server ends and comes back; what is known is served");
    setup.cluster.stop_api_server();
    setup.wait_until_stale(true);
    assert_eq!(ask(&network.client, "10.96.0.13").unwrap(), "pod1");
    setup.cluster.start_api_server();
    setup.cluster.delete(&api_service("c", ""));
    setup.wait_until_gone("c", "10.96.0.13");
    setup.wait_until_stale(false);
    setup.assert_in_step();
    traffic.assert_goes_on();

    setup.next("the agent is paused while etcd is compacted and the API server restarts: both forget the version (410 Gone)");
    signal(&agent, Signal::SIGSTOP);
    setup.add("d", "10.96.0.14", 0);
    setup.cluster.delete(&api_service("a", ""));
    setup.cluster.compact();
    setup.cluster.stop_api_server();
    setup.cluster.start_api_server_without_streams();
    signal(&agent, Signal::SIGCONT);
    agent.wait_for("the list is read again", 1);
    wait_for_answer(network, "10.96.0.14", "pod0");
    setup.wait_until_gone("a", "10.96.0.11");
    setup.cluster.create(&api_service("a", "10.96.0.11"));
    wait_for_answer(network, "10.96.0.11", "pod0");
    setup.assert_in_step();
    traffic.assert_goes_on();

    setup.next("etcd ends and comes back");
    setup.cluster.restart_etcd();
    setup.add("e", "10.96.0.15", 1);
    wait_for_answer(network, "10.96.0.15", "pod1");
    setup.assert_in_step();
    traffic.assert_goes_on();

    setup.next(
        "the agent is killed while many Services appear, which are several pages; the next one finishes",
    );
    let services = setup.create_many();
    agent.wait_for("synced", 3);
    // Kills it.
    drop(agent);
    setup.next(&format!("{services} Services are created"));
    setup.cluster.delete(&api_service("d", ""));
    let lists = setup.cluster.lists_of_services();
    let agent = setup.agent();
    setup.wait_until_gone("d", "10.96.0.14");
    setup.wait_for_count("many-", services);
    setup.next(&format!("{services} Services are in the kernel"));
    let pages = setup.cluster.lists_of_services() - lists;
    assert!(pages > services as u64 / 500, "{pages} pages");
    setup.assert_in_step();
    traffic.assert_goes_on();

    setup.next("a restart of the agent changes nothing; without its Node, a node is not eligible for traffic of load balancers, and serves");
    let (status, log) = agent.stop();
    assert!(status.success(), "{log}");
    let agent = setup.agent();
    let wait_for_health = |status: &str| {
        wait::until(|| match get("127.0.0.1:10256", "/healthz")? {
            answer if answer.starts_with(status) => Ok(()),
            answer => Err(answer),
        });
    };
    wait_for_health("HTTP/1.1 200");
    setup.cluster.delete(&api_node());
    wait_for_health("HTTP/1.1 503");
    assert_eq!(ask(&network.client, "10.96.0.15").unwrap(), "pod1");
    traffic.assert_goes_on();
    agent.stop();
    traffic.assert_goes_on();
    let (held, new) = traffic.answers();
    setup.next(&format!(
        "{held} answers on one connection and {new} on new ones, none missing"
    ));
}
