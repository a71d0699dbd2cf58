//! A node passes from the agent to kube-proxy and back, both in the same mode: `cargo xtask e2e --kube-proxy FILE`.

use std::fs;
use std::process::{Child, Stdio};

use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, tools, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::api_objects::{api_service, api_slice};
use crate::mode::Mode;
use crate::nftables_tables::TABLES;
use crate::setup::{Setup, api_node};
use crate::support::{api_command, ask, text, wait_for_answer};
use crate::traffic::Traffic;

/// How often each of them takes over.
const ROUNDS: u8 = 3;

#[test]
#[ignore = "needs kube-proxy: cargo xtask e2e --kube-proxy FILE"]
fn connections_go_on_while_the_agent_and_kube_proxy_take_turns() {
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    network.node.run(|| take_turns(&network));
}

fn take_turns(network: &Network) {
    let setup = Setup::start();
    setup.cluster.create(&api_node());
    setup.cluster.set_node_address("192.0.2.1");
    setup.add("lasting", "10.96.0.10", 0);
    setup.add("moving", "10.96.0.11", 0);
    let mut agent = setup.agent();
    wait_for_answer(network, "10.96.0.10", "pod0");
    wait_for_answer(network, "10.96.0.11", "pod0");
    let traffic = Traffic::start(network, "10.96.0.10:80".parse().unwrap(), "pod0");
    for round in 1..=ROUNDS {
        // Each learns what has changed while it did not run, and what changes then.
        setup.next("kube-proxy takes over");
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
        assert_eq!(ask(&network.client, "10.96.0.11").unwrap(), "pod0");
        move_to(&setup, 1);
        let proxy = KubeProxy::start(&setup);
        if setup.mode == Mode::Nftables {
            hand_back(&setup);
        }
        wait_for_answer(network, "10.96.0.11", "pod1");
        let (name, address) = (format!("of-kube-proxy-{round}"), format!("10.96.1.{round}"));
        setup.add(&name, &address, 1);
        wait_for_answer(network, &address, "pod1");
        traffic.assert_goes_on();

        setup.next("the agent takes over");
        proxy.stop();
        assert_eq!(ask(&network.client, "10.96.0.11").unwrap(), "pod1");
        move_to(&setup, 0);
        setup.cluster.delete(&api_service(&name, ""));
        agent = setup.agent();
        wait_for_answer(network, "10.96.0.11", "pod0");
        setup.wait_until_gone(&name, &address);
        setup.assert_in_step();
        traffic.assert_goes_on();
    }
    agent.stop();
    let (held, new) = traffic.answers();
    setup.next(&format!(
        "{held} answers on one connection and {new} on new ones, none missing"
    ));
}

/// kube-proxy does not remove the tables of kernlink: this does, as soon as kube-proxy serves.
fn hand_back(setup: &Setup) {
    let arguments = [&setup.mode.flags()[..], &["--hand-back"]].concat();
    wait::until(|| {
        let output = api_command(setup.kubeconfig(), &arguments).output().unwrap();
        if output.status.success() {
            return Ok(());
        }
        Err(text(&output))
    });
    let left = tools::must("nft", &["list", "tables"]);
    assert!(!TABLES.iter().any(|table| left.contains(table)), "{left}");
}

/// Replaces the endpoint of the Service `moving` by a pod.
fn move_to(setup: &Setup, pod: u8) {
    let endpoints = api_slice("moving", pod)["endpoints"].clone();
    setup
        .cluster
        .patch(&api_slice("moving", pod), &json!({"endpoints": endpoints}));
}

/// kube-proxy that runs. It is killed at the end.
struct KubeProxy(Child);

impl KubeProxy {
    /// Starts kube-proxy in the namespace of the calling thread.
    fn start(setup: &Setup) -> Self {
        let log = fs::File::create(setup.cluster.folder().join("kube-proxy.log")).unwrap();
        let child = programs::from_variable("KERNLINK_KUBE_PROXY")
            .args(setup.mode.common_flags())
            .arg("--kubeconfig")
            .arg(setup.kubeconfig())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    fn stop(mut self) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
