//! What an operator asks a running agent: its pages, its metrics about the API server and the configuration, and the level of its log.

use std::fs;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{requires, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::api_objects::{api_service, api_slice};
use crate::api_server::ApiServer;
use crate::cluster::{ADDRESS, api_node};
use crate::support::{Agent, Manifests, api_command, get, wait_for_answer};

const METRICS: &str = "127.0.0.1:10249";

fn page(path: &str) -> String {
    get(METRICS, path).unwrap()
}

/// The value of the first sample that begins with this text.
fn sample(begin: &str) -> f64 {
    let page = page("/metrics");
    let line = page.lines().find(|line| line.starts_with(begin));
    let line = line.unwrap_or_else(|| panic!("no {begin} in {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_pages_and_metrics_of_an_agent_answer_what_an_operator_asks() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    let config = files.0.join("config.conf");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n";
    fs::write(&config, text).unwrap();
    network.node.run(|| {
        let server = ApiServer::start(ADDRESS, false);
        files.replace("kubeconfig", &server.kubeconfig("secret"));
        server.apply(api_node(&["192.0.2.1"]));
        server.apply(api_service("a", "10.96.0.1"));
        server.apply(api_slice("a", 0));
        // Of two Services with one address, one is served.
        let mut other = api_service("b", "10.96.0.2");
        other["spec"]["externalIPs"] = serde_json::json!(["10.96.0.1"]);
        server.apply(other);
        let agent = Agent::spawn(api_command(&kubeconfig, &["--config", config.to_str().unwrap()]));
        wait_for_answer(&network, "10.96.0.1", "pod0");
        // The metrics are those of a sync that has ended.
        agent.wait_for(" synced done=", 1);

        let statusz = page("/statusz");
        for expected in ["kernlink-agent statusz", "Started: ", "Mode: iptables", "/flagz"] {
            assert!(statusz.contains(expected), "{expected}: {statusz}");
        }
        let flagz = page("/flagz");
        for expected in [
            "hostname-override=node-a\n",
            "conntrack-max-per-core=0\n",
            "v=0\n",
        ] {
            assert!(flagz.contains(expected), "{expected}: {flagz}");
        }
        assert_eq!(sample("kubernetes_build_info{"), 1.0);
        assert_eq!(sample("kernlink_build_info{"), 1.0);
        for name in [
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_threads",
        ] {
            assert!(sample(&format!("{name} ")) > 0.0, "{name}");
        }
        // In steps of 10 ms.
        assert!(sample("process_cpu_seconds_total ") >= 0.0);
        assert_eq!(sample("kernlink_conflicts"), 1.0);
        assert_eq!(sample("kernlink_failing_services"), 0.0);
        assert!(sample("rest_client_request_duration_seconds_count{") >= 1.0);
        for kind in ["Service", "EndpointSlice", "Node"] {
            let last = sample(&format!(
                "kernlink_api_server_last_received_timestamp_seconds{{kind=\"{kind}\"}}"
            ));
            assert!(last > 1e9, "{kind}: {last}");
        }

        // The level of the log.
        let pid = Pid::from_raw(i32::try_from(agent.child.id()).unwrap());
        kill(pid, Signal::SIGUSR1).unwrap();
        agent.wait_for("the log has the level debug from now on", 1);
        kill(pid, Signal::SIGUSR1).unwrap();
        agent.wait_for("the log has the level trace from now on", 1);
        // Two of them could be one.
        kill(pid, Signal::SIGUSR2).unwrap();
        agent.wait_for("the log has the level debug from now on", 2);
        kill(pid, Signal::SIGUSR2).unwrap();
        agent.wait_for("the log has the level info from now on", 1);

        // The configuration file.
        let hashes = || {
            let page = page("/metrics");
            let lines = page
                .lines()
                .filter(|line| line.starts_with("kernlink_configuration_file_info{"));
            let hash = |line: &str| line.split('"').nth(1).unwrap().to_owned();
            lines.map(hash).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!(hashes(), 1);
        fs::write(&config, format!("{text}metricsBindAddress: 127.0.0.1:1\n")).unwrap();
        agent.wait_for("it has an effect after a restart of the agent", 1);
        wait::until(|| match hashes() {
            2 => Ok(()),
            number => Err(format!("{number} hashes")),
        });
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
    });
}
