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
mod figures;
mod link;
mod requests;
mod setup;
#[path = "../tests/agent/support.rs"]
#[expect(dead_code, reason = "the other functions are for tests with a folder")]
mod support;

use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::wait;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::api_objects::{api_service, api_slice};
use crate::setup::{Setup, signal};
use crate::support::{ask, get, wait_for_answer};

fn node() -> Value {
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-a"}})
}

#[test]
fn an_agent_follows_a_cluster() {
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    network.node.run(|| follow(&network));
}

fn follow(network: &Network) {
    let mut setup = Setup::start();
    setup.add("a", "10.96.0.11", 0);

    // The Node appears, with its address, while the agent waits.
    let agent = setup.agent();
    agent.wait_for("waiting: the Node node-a does not exist", 1);
    setup.cluster.create(&node());
    setup.cluster.set_node_address("192.0.2.1");
    wait_for_answer(network, "10.96.0.11", "pod0");
    let target = "10.96.0.11:80".parse().unwrap();
    let mut lasting = Connection::open(&network.client, Protocol::Tcp, target).unwrap();
    assert_eq!(lasting.ask().unwrap().server, "pod0");
    let mut assert_lasts = || {
        assert_eq!(
            lasting.ask().unwrap().server,
            "pod0",
            "no sync has interrupted it"
        )
    };
    wait::until(|| match setup.cluster.node_events() {
        events if events.contains("\"Starting\"") => Ok(()),
        events => Err(events),
    });

    // Create, change, delete.
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

    // All watches are cut in the middle; they continue without a list.
    setup.link.cut();
    agent.wait_for("cannot be read from the API server", 3);
    setup.add("f", "10.96.0.16", 0);
    wait_for_answer(network, "10.96.0.16", "pod0");
    agent.wait_for("read from the API server again", 3);
    assert!(!agent.log().contains("the list is read again"), "{}", agent.log());

    // The API server ends and comes back; what is known is served.
    setup.cluster.stop_api_server();
    setup.wait_until_stale(true);
    assert_eq!(ask(&network.client, "10.96.0.13").unwrap(), "pod1");
    setup.cluster.start_api_server();
    setup.cluster.delete(&api_service("c", ""));
    setup.wait_until_gone("c", "10.96.0.13");
    setup.wait_until_stale(false);
    assert_lasts();

    // The agent is paused while etcd is compacted and the server restarts: both have forgotten the version (410 Gone).
    signal(&agent, Signal::SIGSTOP);
    setup.add("d", "10.96.0.14", 0);
    setup.cluster.delete(&api_service("a", ""));
    setup.cluster.compact();
    setup.cluster.stop_api_server();
    setup.cluster.start_api_server();
    signal(&agent, Signal::SIGCONT);
    agent.wait_for("the list is read again", 1);
    wait_for_answer(network, "10.96.0.14", "pod0");
    setup.wait_until_gone("a", "10.96.0.11");
    setup.cluster.create(&api_service("a", "10.96.0.11"));
    wait_for_answer(network, "10.96.0.11", "pod0");
    setup.assert_in_step();

    // etcd ends and comes back.
    setup.cluster.restart_etcd();
    setup.add("e", "10.96.0.15", 1);
    wait_for_answer(network, "10.96.0.15", "pod1");
    assert_lasts();

    // The agent is killed while many Services appear, which are more than a page; the next one finishes.
    let services = setup.create_many();
    agent.wait_for("synced", 3);
    // Kills it.
    drop(agent);
    setup.cluster.delete(&api_service("d", ""));
    let agent = setup.agent();
    setup.wait_until_gone("d", "10.96.0.14");
    wait::until(|| match setup.count("many-") {
        count if count == services => Ok(()),
        count => Err(format!("{count} of {services} Services")),
    });
    setup.assert_in_step();
    assert_lasts();

    // A restart of the agent changes nothing. Without its Node, a node is not eligible for traffic of load balancers, and serves.
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
    setup.cluster.delete(&node());
    wait_for_health("HTTP/1.1 503");
    assert_eq!(ask(&network.client, "10.96.0.15").unwrap(), "pod1");
    assert_lasts();
    agent.stop();
}
