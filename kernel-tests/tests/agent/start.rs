//! The flags and the environment with which the agent is started.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{requires, tools, wait};

use crate::service_manager::ServiceManager;
use crate::support::{Agent, Manifests, command, service, wait_for_answer};

#[test]
fn each_network_of_repeated_flags_accepts_node_ports() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    let open = service("a", "10.96.0.1", &[0])
        .replace("spec: {clusterIP", "spec: {type: NodePort, clusterIP")
        .replace("{port: 80}", "{port: 80, nodePort: 30080}");
    manifests.replace("a.yaml", &open);
    let ask = |address: &str| {
        let target: SocketAddr = format!("{address}:30080").parse().unwrap();
        let opened = Connection::open(&network.client, Protocol::Tcp, target);
        opened.and_then(|mut connection| connection.ask().map(|answer| answer.server))
    };
    network.node.run(|| {
        for address in ["198.51.100.9/32", "203.0.113.9/32"] {
            tools::ip(&["address", "add", address, "dev", "lo"]);
        }
        let networks = ["192.0.2.0/24,2001:db8:1::/64", "198.51.100.0/24"];
        let flags = networks.map(|network| ["--nodeport-addresses", network]).concat();
        let arguments = [&["--proxy-mode", "iptables"][..], &flags].concat();
        let _agent = Agent::start(&manifests.0, &arguments);
        wait_for_answer(&network, "10.96.0.1", "pod0");
        assert_eq!(ask("192.0.2.1").unwrap(), "pod0");
        assert_eq!(ask("198.51.100.9").unwrap(), "pod0");
        assert!(ask("203.0.113.9").is_err());
    });
}

#[test]
fn the_watchdog_of_the_service_manager_is_notified_as_long_as_the_agent_works() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        let manager = ServiceManager::start(&manifests.0);
        let start = |process: Option<&str>| {
            let mut command = command(&manifests.0, &["--proxy-mode", "iptables"]);
            command
                .env("NOTIFY_SOCKET", &manager.socket)
                .env("WATCHDOG_USEC", "200000");
            if let Some(process) = process {
                command.env("WATCHDOG_PID", process);
            }
            Agent::spawn(command)
        };
        let notices = || manager.number_of("WATCHDOG=1");
        let wait_for_more = || {
            let before = notices();
            wait::until(|| match notices() {
                now if now > before + 5 => Ok(()),
                now => Err(now),
            });
        };
        let agent = start(None);
        agent.wait_for(" synced ", 1);
        wait_for_more();
        wait::until(|| match manager.number_of("READY=1\nSTATUS=running") {
            0 => Err("the service manager was not notified that the agent is ready"),
            _ => Ok(()),
        });
        manifests.replace("b.yaml", &service("b", "10.96.0.2", &[0]));
        wait_for_more();
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
        // After all others.
        manager.wait_for("STOPPING=1");

        // The watchdog of another process.
        let before = notices();
        let agent = start(Some("1"));
        agent.wait_for(" synced ", 1);
        agent.stop();
        assert_eq!(notices(), before);
    });
}

/// The first number after this text in a file of the repository.
fn number_after(file: &str, text: &str) -> u64 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let content = fs::read_to_string(path).unwrap();
    let (_, rest) = content
        .split_once(text)
        .unwrap_or_else(|| panic!("no {text} in {file}"));
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
    rest[..end].parse().unwrap()
}

#[test]
fn the_limits_of_memory_in_the_manifests_are_twice_the_highest_documented_value_or_more() {
    let measured = number_after("docs/benchmarks.md", "resident (at most ");
    let unit = "dist/kernlink-agent.service";
    assert!(number_after(unit, "\nMemoryHigh=") >= 2 * measured);
    assert!(number_after(unit, "\nMemoryMax=") * 1024 >= 2 * measured);
    let daemonset = number_after("dist/kubernetes/daemonset.yaml", "limits: {memory: ");
    assert!(daemonset * 1024 >= 2 * measured);
    // Of the exit status, only that of an invalid configuration prevents another start.
    assert_eq!(number_after(unit, "\nRestartPreventExitStatus="), 2);
}
