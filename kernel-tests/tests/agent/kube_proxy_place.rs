//! The agent with the configuration file and the command line with which kubeadm starts kube-proxy.

use std::process::Command;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, requires, tools, wait};
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::cluster::{ADDRESS, add, api_node};
use crate::support::{Agent, Manifests, ask, get, text, wait_for_answer};

/// The Node with this pod network.
fn node(pod_network: &str) -> Value {
    let mut node = api_node(&["192.0.2.1"]);
    node["spec"] = json!({"podCIDR": pod_network, "podCIDRs": [pod_network]});
    node
}

/// Waits until health reports this status.
fn wait_for_health(status: &str) {
    wait::until(|| match get("127.0.0.1:10256", "/healthz")? {
        answer if answer.starts_with(&format!("HTTP/1.1 {status} ")) => Ok(()),
        other => Err(other),
    });
}

/// Table `nat`, without comments, which have the time, and counters.
fn rules() -> String {
    let saved = tools::run("iptables-save", &["-t", "nat"]).unwrap();
    let lines = saved.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split(" [").next().unwrap_or_default().to_owned() + "\n")
        .collect()
}

#[test]
fn an_agent_takes_the_place_of_kube_proxy_with_its_configuration() {
    requires!(Feature::Iptables);
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let config = files.0.join("config.conf");
    let kubeconfig = files.0.join("kubeconfig.conf");
    let kube_proxy = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "bindAddress": "0.0.0.0", "clientConnection": {"kubeconfig": kubeconfig}, "clusterCIDR": "",
        "detectLocalMode": "NodeCIDR", "mode": "", "iptables": {"syncPeriod": "10m", "minSyncPeriod": "1ms"},
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    });
    files.replace("config.conf", &kube_proxy.to_string());
    let command = |arguments: &[&str]| -> Command {
        let mut command = programs::agent();
        command
            .arg(format!("--config={}", config.display()))
            .arg("--hostname-override=node-a")
            .args(arguments);
        command
    };
    network.node.run(|| {
        // The day before: the configuration needs no API server, and a dry run changes nothing.
        let printed = command(&["--print-config"]).output().unwrap();
        assert!(printed.status.success(), "{}", text(&printed));
        let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
        assert_eq!(printed["clientConnection"]["kubeconfig"], json!(kubeconfig));
        assert_eq!(printed["mode"], "iptables");
        assert_eq!(printed["hostnameOverride"], "node-a");
        let server = ApiServer::start(ADDRESS, true);
        files.replace("kubeconfig.conf", &server.kubeconfig("secret"));
        server.apply(node("10.0.0.0/8"));
        add(&server, "a", "10.96.0.1", 0);
        let before = rules();
        let planned = command(&["--dry-run"]).output().unwrap();
        assert!(planned.status.success(), "{}", text(&planned));
        assert!(text(&planned).contains("-d 10.96.0.1/32"), "{}", text(&planned));
        assert_eq!(rules(), before);

        // A change of the Node takes effect at run time.
        let agent = Agent::spawn(command(&[]));
        wait_for_answer(&network, "10.96.0.1", "pod0");
        wait_for_health("200");
        let wait_for_network = |network: &str| {
            wait::until(|| match rules() {
                rules if rules.contains(&format!("! -s {network} -d 10.96.0.1/32")) => Ok(()),
                rules => Err(rules),
            });
        };
        wait_for_network("10.0.0.0/8");
        server.apply(node("10.64.0.0/10"));
        wait_for_network("10.64.0.0/10");

        // Without its Node the node gets no traffic of load balancers, and serves what it knows and learns.
        server.delete(&node(""));
        wait_for_health("503");
        add(&server, "b", "10.96.0.2", 1);
        wait_for_answer(&network, "10.96.0.2", "pod1");
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");
        wait_for_network("10.64.0.0/10");
        server.apply(node("10.64.0.0/10"));
        wait_for_health("200");
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");

        // The init container finds everything as it should be; cleanup removes it.
        let once = command(&["--init-only", "--logging-format=json"])
            .output()
            .unwrap();
        assert!(once.status.success(), "{}", text(&once));
        // All of its output is the log.
        let lines: Vec<String> = [&once.stdout, &once.stderr]
            .into_iter()
            .flat_map(|output| {
                String::from_utf8_lossy(output)
                    .lines()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        assert!(lines.iter().any(|line| line.contains("synced")), "{lines:?}");
        for line in &lines {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
        assert_eq!(ask(&network.client, "10.96.0.2").unwrap(), "pod1");
        let cleanup = command(&["--cleanup"]).output().unwrap();
        assert!(cleanup.status.success(), "{}", text(&cleanup));
        assert!(!rules().contains("KUBE-"), "{}", rules());
        ask(&network.client, "10.96.0.1").unwrap_err();
        // It waits for an API server that refuses it, and then serves.
        server.set_token("other");
        let mut init = Agent::spawn(command(&["--init-only"]));
        init.wait_for("kubeconfig.conf are not accepted; tried again", 3);
        files.replace("kubeconfig.conf", &server.kubeconfig("other"));
        assert!(init.child.wait().unwrap().success(), "{}", init.log());
        assert_eq!(ask(&network.client, "10.96.0.2").unwrap(), "pod1");
    });
}
