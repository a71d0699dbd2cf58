//! The program `kernlink-agent` in network namespaces of its own, in IPVS mode unless the module is that of another mode.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod api_objects;
mod api_server;
mod certificates;
mod chart;
mod cluster;
mod cluster_failures;
mod command_line;
mod dist;
mod explain;
mod hand_back;
mod hanging_server;
mod hanging_tool;
mod hostile_clients;
mod hostile_users;
mod http2;
mod http_proxy;
mod iptables_mode;
mod kube_proxy_place;
mod kubeadm;
mod kustomization;
mod load_balancer;
mod log_level;
mod mode_round_trip;
mod object_fields;
mod pages;
mod preflight;
mod privileges;
mod service_cidrs;
mod service_manager;
mod shared_addresses;
mod socket_clients;
mod start;
mod support;
mod support_bundle;
mod tls;
mod top;
#[path = "../../e2e/traffic.rs"]
mod traffic;
mod userspace_mode;

use std::fs;
use std::net::Ipv4Addr;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, tools, wait};

use crate::support::{Agent, Manifests, ask, command, get, run, service, text};

/// Waits until the virtual servers are these, as `ipvsadm -S -n` prints them.
fn wait_for_servers(expected: &str) {
    wait::until(|| match tools::ipvsadm_save() {
        found if found == expected => Ok(()),
        found => Err(found),
    });
}

/// The listing of a virtual server with these pods.
fn listing(address: &str, pods: &[u8]) -> String {
    let servers = pods
        .iter()
        .map(|pod| format!("-a -t {address}:80 -r {}:8080 -m -w 1\n", Network::pod_ipv4(*pod)));
    format!("-A -t {address}:80 -s rr\n{}", servers.collect::<String>())
}

#[test]
fn an_agent_follows_its_folder_and_leaves_the_kernel_working() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        let agent = Agent::start(&manifests.0, &[]);
        let both = listing("10.96.0.1", &[0]);
        wait_for_servers(&both);
        // The address is bound last.
        agent.wait_for(" synced done=", 1);
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");

        // Another file, and a file that is replaced as a whole.
        manifests.replace("b.yaml", &service("b", "10.96.0.2", &[0, 1]));
        wait_for_servers(&(listing("10.96.0.1", &[0]) + &listing("10.96.0.2", &[0, 1])));
        manifests.replace("a.yaml", &service("a", "10.96.0.1", &[1]));
        wait::until(|| match ask(&network.client, "10.96.0.1")?.as_str() {
            "pod1" => Ok(()),
            other => Err(other.to_owned()),
        });

        // What another program removes is repaired, although the period is ten minutes.
        tools::ip(&["link", "delete", "kube-ipvs0"]);
        wait::until(|| ask(&network.client, "10.96.0.1"));

        // A broken file keeps its objects, and does not affect others.
        manifests.replace("b.yaml", "kind: [");
        agent.wait_for("ERROR b.yaml: document 1 (line 1): ", 1);
        manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0, 1]));
        let all = listing("10.96.0.1", &[0, 1]) + &listing("10.96.0.2", &[0, 1]);
        wait_for_servers(&all);
        manifests.replace("b.yaml", &service("b", "10.96.0.2", &[0, 1]));
        agent.wait_for("solved: b.yaml: ", 1);

        // One writer.
        let second = run(&manifests.0, &[]);
        assert_eq!(second.status.code(), Some(3), "{}", text(&second));
        let holder = format!("programmed by process {}", agent.child.id());
        assert!(text(&second).contains(&holder), "{}", text(&second));
        println!(
            "resident memory of an agent with 2 Services: {} KiB",
            agent.resident()
        );

        // The end of the agent changes nothing.
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
        assert_eq!(tools::ipvsadm_save(), all);
        assert!(ask(&network.client, "10.96.0.2").is_ok());
        let plan = run(&manifests.0, &["--dry-run"]);
        assert_eq!(text(&plan), "# nothing to do\n");

        // A file that is deleted while no agent runs.
        fs::remove_file(manifests.0.join("b.yaml")).unwrap();
        let once = run(&manifests.0, &["--once"]);
        assert!(once.status.success(), "{}", text(&once));
        assert_eq!(tools::ipvsadm_save(), listing("10.96.0.1", &[0, 1]));
    });
}

#[test]
fn objects_that_are_unknown_at_the_start_are_not_deleted() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    manifests.replace("b.yaml", "kind: [");
    NetNs::new().run(|| {
        // A kernel without virtual servers: what is known is programmed.
        let agent = Agent::start(&manifests.0, &[]);
        wait_for_servers(&listing("10.96.0.1", &[0]));
        agent.wait_for(
            "some objects of the folder are not known; the others are programmed",
            1,
        );
        manifests.replace("b.yaml", &service("b", "10.96.0.2", &[0]));
        let both = listing("10.96.0.1", &[0]) + &listing("10.96.0.2", &[0]);
        wait_for_servers(&both);
        agent.stop();

        // Now nothing is done until the file is repaired.
        manifests.replace("b.yaml", "");
        manifests.replace("a.yaml", &service("a", "10.96.0.1", &[1]));
        let agent = Agent::start(&manifests.0, &[]);
        agent.wait_for("nothing is synced: some objects of the folder are not known", 1);
        for option in ["--once", "--dry-run"] {
            let output = run(&manifests.0, &[option]);
            // The agent has the lock.
            let expected = if option == "--once" { 3 } else { 1 };
            assert_eq!(output.status.code(), Some(expected), "{}", text(&output));
        }
        assert_eq!(tools::ipvsadm_save(), both);
        manifests.replace("b.yaml", &service("b", "10.96.0.2", &[1]));
        wait_for_servers(&(listing("10.96.0.1", &[1]) + &listing("10.96.0.2", &[1])));
    });
}

#[test]
fn a_dry_run_prints_commands_and_changes_nothing() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        let output = run(&manifests.0, &["--dry-run"]);
        assert!(output.status.success(), "{}", text(&output));
        for command in [
            "ip link replace kube-ipvs0 type dummy",
            "ipvsadm -A -t 10.96.0.1:80 -s rr",
        ] {
            assert!(text(&output).contains(command), "{}", text(&output));
        }
        assert_eq!(tools::ipvsadm_save(), "");
        assert!(!tools::ip_addresses().contains("kube-ipvs0"));
        assert_eq!(tools::ipset_save(), "");
    });
}

/// The capabilities in `dist/kernlink-agent.service`.
#[test]
fn an_agent_needs_two_capabilities() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        let agent = command(&manifests.0, &["--once"]);
        let output = programs::command("setpriv")
            .args(["--bounding-set", "-all,+net_admin,+net_raw", "--no-new-privs"])
            .arg(agent.get_program())
            .args(agent.get_args())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(tools::ipvsadm_save(), listing("10.96.0.1", &[0]));
        // With one less, the agent cannot use the kernel.
        let output = programs::command("setpriv")
            .args(["--bounding-set", "-all,+net_raw", "--no-new-privs"])
            .arg(agent.get_program())
            .args(agent.get_args())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    });
}

#[test]
fn a_node_is_eligible_if_the_kernel_has_virtual_servers_and_the_first_node_object_permits_it() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let manifests = Manifests::new();
    NetNs::new().run(|| {
        let agent = Agent::start(&manifests.0, &[]);
        agent.wait_for("health server: listening on ", 1);
        agent.wait_for("nothing is synced: there is no manifest", 1);
        let healthz = || get("127.0.0.1:10256", "/healthz").unwrap();
        let not_eligible = |answer: &str| {
            answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n")
                && answer.contains("\"nodeEligible\":false")
        };
        assert!(not_eligible(&healthz()), "{}", healthz());
        let node = |metadata: &str| {
            let node = format!("---\napiVersion: v1\nkind: Node\nmetadata: {{name: node-a{metadata}}}\n");
            service("a", "10.96.0.1", &[0]) + &node
        };
        manifests.replace("a.yaml", &node(", deletionTimestamp: \"2026-01-01T00:00:00Z\""));
        agent.wait_for(" synced done=", 1);
        assert_eq!(tools::ipvsadm_save(), listing("10.96.0.1", &[0]));
        assert!(not_eligible(&healthz()), "{}", healthz());
        manifests.replace("a.yaml", &node(""));
        wait::until(|| match healthz() {
            answer if answer.starts_with("HTTP/1.1 200 OK\r\n") => Ok(()),
            answer => Err(answer),
        });
    });
}

#[test]
fn health_and_health_check_node_ports_are_answered() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(1);
    let manifests = Manifests::new();
    let balanced = |pods: &[u8]| {
        let text = service("lb", "10.96.0.1", pods);
        let spec = "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32001, clusterIP";
        text.replace("spec: {clusterIP", &format!("spec: {{{spec}"))
            .replace("{port: 80}", "{port: 80, nodePort: 30080}")
    };
    manifests.replace("a.yaml", &balanced(&[0]));
    let node = Network::node_ipv4();
    network.node.run(|| {
        let agent = Agent::start(&manifests.0, &[]);
        agent.wait_for(" synced done=", 1);
        agent.wait_for(" server: listening on ", 2);
        let healthz = network
            .client
            .run(|| get(&format!("{node}:10256"), "/healthz"))
            .unwrap();
        assert!(healthz.starts_with("HTTP/1.1 200 OK\r\n"), "{healthz}");
        assert!(healthz.contains("\"status\":{\"IPv4\":"), "{healthz}");
        let ipv6 = get("[::1]:10256", "/healthz").unwrap();
        assert!(
            ipv6.starts_with("HTTP/1.1 200 OK\r\n"),
            "0.0.0.0 is both families: {ipv6}"
        );
        let metrics = get("127.0.0.1:10249", "/metrics").unwrap();
        let answered = "\nkubeproxy_proxy_healthz_total{code=\"200\"} 2\n";
        assert!(metrics.contains(answered), "{metrics}");
        let mode = get("127.0.0.1:10249", "/proxyMode").unwrap();
        assert!(mode.ends_with("\r\n\r\nipvs"), "{mode}");
        assert!(
            network
                .client
                .run(|| get(&format!("{node}:10249"), "/proxyMode"))
                .is_err()
        );

        let check = |expected: &str| {
            wait::until(|| {
                let ipv6 = get("[::1]:32001", "/").map(drop);
                assert!(ipv6.is_err(), "the Service has no IPv6 address");
                let answer = network.client.run(|| get(&format!("{node}:32001"), "/"))?;
                if answer.contains(expected) {
                    Ok(answer)
                } else {
                    Err(answer)
                }
            })
        };
        let answer = check("\"localEndpoints\": 1");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer
                .to_lowercase()
                .contains("x-load-balancing-endpoint-weight: 1\r\n"),
            "{answer}"
        );
        manifests.replace("a.yaml", &balanced(&[]));
        let answer = check("\"localEndpoints\": 0");
        assert!(
            answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
            "{answer}"
        );
        // The Service is gone, and its port is closed.
        manifests.replace("a.yaml", &service("a", "10.96.0.2", &[0]));
        wait::until(|| match get(&format!("{}:32001", Ipv4Addr::LOCALHOST), "/") {
            Err(_) => Ok(()),
            Ok(answer) => Err(answer),
        });
        // An agent without servers.
        drop(agent);
        let none = ["--healthz-bind-address", "none", "--metrics-bind-address", "none"];
        let agent = Agent::start(&manifests.0, &none);
        agent.wait_for("started", 1);
        let (_, log) = agent.stop();
        assert!(!log.contains("listening"), "{log}");
    });
}

/// Needs no feature of the kernel: what is invalid is found before the kernel is used.
#[test]
fn invalid_arguments_and_configurations_end_the_program() {
    let manifests = Manifests::new();
    // An agent that does not end would program this machine.
    let network = NetNs::new();
    for (arguments, expected) in [
        (
            &["--write-config-to", "f"][..],
            "--write-config-to: this flag of kube-proxy is not supported: ",
        ),
        (&["--ipvs-scheduler", "x"], "--ipvs-scheduler: \"x\": "),
        (
            &["--proxy-mode", "kernelspace"],
            "--proxy-mode: must be iptables, ipvs, nftables, userspace or empty (empty means iptables)",
        ),
    ] {
        let output = network.run(|| run(&manifests.0, arguments));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(expected), "{}", text(&output));
    }
    // Another attempt may find the file, so a service manager starts the agent again.
    let file = manifests.0.join("config");
    let path = file.to_str().unwrap();
    let missing = format!("cannot read {path}: ");
    let empty = format!("{path} is empty; ");
    for (content, status, expected) in [
        (None, 1, missing.as_str()),
        (Some(""), 1, empty.as_str()),
        (Some("\n"), 1, empty.as_str()),
        (Some("mode: ipvs\n"), 2, "invalid configuration: "),
    ] {
        if let Some(content) = content {
            fs::write(&file, content).unwrap();
        }
        let output = network.run(|| run(&manifests.0, &["--config", path]));
        assert_eq!(output.status.code(), Some(status), "{}", text(&output));
        assert!(text(&output).contains(expected), "{}", text(&output));
    }
    let printed = run(&manifests.0, &["--print-config", "--ipvs-scheduler", "lc"]);
    assert!(
        printed.status.success() && text(&printed).contains("\"scheduler\": \"lc\""),
        "{}",
        text(&printed)
    );
}

/// As when the program that collects the log was started again.
#[test]
fn a_log_that_cannot_be_written_does_not_end_the_program() {
    let manifests = Manifests::new();
    manifests.replace("a.yaml", "kind: [");
    NetNs::new().run(|| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut once = command(&manifests.0, &["--proxy-mode", "iptables", "--once"]);
        let status = once.stderr(writer).status().unwrap();
        assert_eq!(
            status.code(),
            Some(1),
            "the manifest is invalid; a panic ends with 101"
        );
    });
}

/// Needs no IPVS: on a kernel without it the agent waits.
#[test]
fn an_agent_is_ended_by_a_signal_also_before_it_can_use_the_kernel() {
    let manifests = Manifests::new();
    NetNs::new().run(|| {
        let agent = Agent::start(&manifests.0, &["--logging-format", "json"]);
        agent.wait_for(": the folder has no manifest\"", 1);
        agent.wait_for("health server: listening on 0.0.0.0:10256", 1);
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
        assert!(
            log.lines()
                .all(|line| line.starts_with('{') && line.ends_with('}')),
            "{log}"
        );
    });
}
