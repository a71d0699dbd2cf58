//! A node passes from the agent to kube-proxy and back, both in the same mode: `cargo xtask e2e --kube-proxy FILE`.

use std::fs;
use std::net::IpAddr;
use std::process::{Child, Stdio};

use kernlink_kernel_tests::manifests::cluster_ips;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, tools, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::api_objects::{api_service, api_slice};
use crate::mode::Mode;
use crate::nftables_tables::TABLES;
use crate::setup::{Setup, api_node};
use crate::support::{api_command, ask, text, wait_for_answer};
use crate::traffic::Traffic;

/// How often each of them takes over.
const ROUNDS: u8 = 3;
/// The networks of cluster IPs.
const SERVICE_NETWORKS: &str = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112";

#[test]
#[ignore = "needs kube-proxy: cargo xtask e2e --kube-proxy FILE"]
fn connections_go_on_while_the_agent_and_kube_proxy_take_turns() {
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    network.node.run(|| take_turns(&network));
}

fn take_turns(network: &Network) {
    let setup = Setup::start_with(&[SERVICE_NETWORKS]);
    setup.cluster.create(&api_node());
    setup.cluster.set_node_address("192.0.2.1");
    let lasting = Service::create(&setup, "lasting", 10, 0);
    let moving = Service::create(&setup, "moving", 11, 0);
    let mut agent = setup.agent();
    lasting.wait_for(network, 0);
    moving.wait_for(network, 0);
    let traffic = lasting
        .addresses()
        .map(|address| Traffic::start(network, format!("{address}:80").parse().unwrap(), "pod0"));
    let assert_goes_on = || traffic.iter().for_each(Traffic::assert_goes_on);
    for round in 1..=ROUNDS {
        // Each learns what has changed while it did not run, and what changes then.
        setup.next("kube-proxy takes over");
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
        moving.assert_answered_by(network, "pod0");
        moving.move_to(&setup, 1);
        let proxy = KubeProxy::start(&setup);
        if setup.mode == Mode::Nftables {
            hand_back(&setup);
        }
        moving.wait_for(network, 1);
        let added = Service::create(&setup, &format!("of-kube-proxy-{round}"), 100 + round, 1);
        added.wait_for(network, 1);
        assert_goes_on();

        setup.next("the agent takes over");
        proxy.stop();
        moving.assert_answered_by(network, "pod1");
        moving.move_to(&setup, 0);
        setup.cluster.delete(&api_service(&added.name, ""));
        agent = setup.agent();
        moving.wait_for(network, 0);
        setup.wait_until_gone(&added.name, &added.cluster_ips()[0].to_string());
        setup.assert_in_step();
        assert_goes_on();
    }
    agent.stop();
    for (family, traffic) in ["IPv4", "IPv6"].into_iter().zip(&traffic) {
        let (held, new) = traffic.answers();
        setup.next(&format!(
            "{family}: {held} answers on one connection and {new} on new ones, none missing"
        ));
    }
}

/// A Service of both families with one endpoint, a pod.
struct Service {
    name: String,
    /// The last part of its cluster IPs.
    number: u8,
}

impl Service {
    fn create(setup: &Setup, name: &str, number: u8, pod: u8) -> Self {
        let this = Self {
            name: name.to_owned(),
            number,
        };
        let ips = this.cluster_ips().map(|ip| ip.to_string());
        let mut object = api_service(name, &ips[0]);
        object["spec"]["clusterIPs"] = json!(ips);
        object["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
        object["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
        setup.cluster.create(&object);
        this.slices(pod)
            .iter()
            .for_each(|slice| setup.cluster.create(slice));
        this
    }

    fn cluster_ips(&self) -> [IpAddr; 2] {
        cluster_ips(self.number)
    }

    /// Its cluster IPs as they are written before a port.
    fn addresses(&self) -> [String; 2] {
        let [v4, v6] = self.cluster_ips();
        [v4.to_string(), format!("[{v6}]")]
    }

    /// A slice for each family.
    fn slices(&self, pod: u8) -> [Value; 2] {
        let of_ipv4 = api_slice(&self.name, pod);
        let mut of_ipv6 = of_ipv4.clone();
        of_ipv6["metadata"]["name"] = json!(format!("{}-6", self.name));
        of_ipv6["addressType"] = json!("IPv6");
        of_ipv6["endpoints"][0]["addresses"] = json!([Network::pod_ipv6(pod).to_string()]);
        [of_ipv4, of_ipv6]
    }

    /// Replaces its endpoint by a pod.
    fn move_to(&self, setup: &Setup, pod: u8) {
        for slice in self.slices(pod) {
            let endpoints = &slice["endpoints"];
            setup.cluster.patch(&slice, &json!({"endpoints": endpoints}));
        }
    }

    /// Waits until this pod answers at both addresses.
    fn wait_for(&self, network: &Network, pod: u8) {
        for address in self.addresses() {
            wait_for_answer(network, &address, &format!("pod{pod}"));
        }
    }

    fn assert_answered_by(&self, network: &Network, server: &str) {
        for address in self.addresses() {
            assert_eq!(ask(&network.client, &address).unwrap(), server, "{address}");
        }
    }
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
