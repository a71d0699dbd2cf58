//! `kernlink-agent` in iptables mode with a real kube-apiserver and etcd. `cargo xtask e2e` builds and runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../tests/agent/api_objects.rs"]
mod api_objects;
mod cluster;
#[path = "../tests/agent/support.rs"]
#[expect(dead_code, reason = "the other functions are for tests with a folder")]
mod support;

use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{tools, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::api_objects::{api_service, api_slice};
use crate::cluster::Cluster;
use crate::support::{Agent, api_command, ask, get, text, wait_for_answer, wait_until_gone};

fn add(cluster: &Cluster, name: &str, address: &str, pod: u8) {
    cluster.create(&api_service(name, address));
    cluster.create(&api_slice(name, pod));
}

fn signal(agent: &Agent, signal: Signal) {
    kill(Pid::from_raw(agent.child.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn an_agent_follows_a_cluster() {
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    network.node.run(|| {
        let mut cluster = Cluster::start();
        cluster.create(&json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}}));
        let kubeconfig = cluster.kubeconfig();
        let start = || Agent::spawn(api_command(&kubeconfig, &[]));
        add(&cluster, "a", "10.96.0.11", 0);

        // The Node appears, with its address, while the agent waits.
        let agent = start();
        agent.wait_for("waiting: the Node node-a does not exist", 1);
        cluster.create(&json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-a"}}));
        cluster.set_node_address("192.0.2.1");
        wait_for_answer(&network, "10.96.0.11", "pod0");
        let target = "10.96.0.11:80".parse().unwrap();
        let mut lasting = Connection::open(&network.client, Protocol::Tcp, target).unwrap();
        assert_eq!(lasting.ask().unwrap().server, "pod0");

        // Create, change, delete.
        add(&cluster, "b", "10.96.0.12", 1);
        wait_for_answer(&network, "10.96.0.12", "pod1");
        let pod = Network::pod_ipv4(0).to_string();
        cluster.patch(
            &api_slice("b", 1),
            &json!({"endpoints": [{"addresses": [pod], "conditions": {"ready": true}}]}),
        );
        wait_for_answer(&network, "10.96.0.12", "pod0");
        let labels = json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}});
        cluster.patch(&api_service("b", ""), &labels);
        wait_until_gone("b");
        cluster.delete(&api_service("b", ""));
        add(&cluster, "c", "10.96.0.13", 1);
        wait_for_answer(&network, "10.96.0.13", "pod1");

        // The API server ends and comes back; what is known is served.
        cluster.stop_api_server();
        agent.wait_for("cannot be read from the API server", 3);
        assert_eq!(ask(&network.client, "10.96.0.13").unwrap(), "pod1");
        cluster.start_api_server();
        cluster.delete(&api_service("c", ""));
        wait_until_gone("c");

        // The agent is paused while the server restarts: it has forgotten the version, and the list is read again.
        signal(&agent, Signal::SIGSTOP);
        add(&cluster, "d", "10.96.0.14", 0);
        cluster.delete(&api_service("a", ""));
        cluster.stop_api_server();
        cluster.start_api_server();
        signal(&agent, Signal::SIGCONT);
        agent.wait_for("the list is read again", 1);
        wait_for_answer(&network, "10.96.0.14", "pod0");
        wait_until_gone("a");
        cluster.create(&api_service("a", "10.96.0.11"));

        // etcd ends and comes back.
        cluster.restart_etcd();
        add(&cluster, "e", "10.96.0.15", 1);
        wait_for_answer(&network, "10.96.0.15", "pod1");
        assert_eq!(
            lasting.ask().unwrap().server,
            "pod0",
            "no sync has interrupted it"
        );

        // A restart of the agent, and a dry run, change nothing.
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
        let plan = api_command(&kubeconfig, &["--dry-run"]).output().unwrap();
        assert!(text(&plan).contains("# nothing to do"), "{}", text(&plan));
        let agent = start();
        wait::until(|| match get("127.0.0.1:10256", "/healthz")? {
            answer if answer.starts_with("HTTP/1.1 200") => Ok(()),
            answer => Err(answer),
        });
        cluster.delete(&json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-a"}}));
        wait::until(|| match get("127.0.0.1:10256", "/healthz")? {
            answer if answer.starts_with("HTTP/1.1 503") => Ok(()),
            answer => Err(answer),
        });
        assert_eq!(ask(&network.client, "10.96.0.15").unwrap(), "pod1");
        agent.stop();
    });
}
