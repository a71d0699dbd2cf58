//! The agent in userspace mode, with the legacy and the nft tools.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{requires, tools, wait};

use crate::hanging_tool::replace_by;
use crate::iptables_mode::{MULTI, choose, rules};
use crate::support::{Agent, Manifests, ask, command, get, run, service, text, wait_for_answer};

pub(crate) const MODE: &[&str] = &[
    "--proxy-mode",
    "userspace",
    "--iptables-sync-period",
    "10m",
    "--iptables-min-sync-period",
    "1ms",
    "--proxy-port-range",
    "20000-20099",
    "--udp-timeout",
    "30s",
];

pub(crate) const IPTABLES_MODE: &[&str] = &["--proxy-mode", "iptables", "--iptables-sync-period", "10m"];

/// The rules of table `nat` that lead to listening ports.
fn portals() -> BTreeSet<String> {
    let rules = rules();
    let portals = rules.lines().filter(|line| line.contains("\"default/"));
    portals.map(str::to_owned).collect()
}

/// The pod that answers a process of the node. As on every node, the address is routed somewhere until rules translate it; not longer than
/// needed, because other packets to it would be forwarded too.
fn ask_on_node(network: &Network, address: &str) -> Result<String, String> {
    let gateway = Network::client_ipv4().to_string();
    network.node.run(|| {
        tools::ip(&["route", "add", address, "via", &gateway]);
        let answer = ask(&network.node, address);
        tools::ip(&["route", "delete", address]);
        answer
    })
}

/// A Service with a node port, and a UDP port 53.
pub(crate) fn with_node_port(name: &str, address: &str) -> String {
    let object = service(name, address, &[0]);
    let ports = "type: NodePort, ports: [{name: web, port: 80, nodePort: 31080}, {name: ask, port: 53, protocol: UDP}]";
    let object = object.replace("ports: [{port: 80}]", ports);
    let ports = "ports: [{port: 8080, name: web}, {port: 5353, name: ask, protocol: UDP}]";
    object.replace("ports: [{port: 8080, name: \"\"}]", ports)
}

#[test]
fn an_agent_in_userspace_mode_follows_its_folder_and_repairs_its_rules() {
    requires!(Feature::Iptables);
    for variant in MULTI {
        let network = Network::new(2);
        let _servers = network.serve(Protocol::Tcp, 8080);
        let manifests = Manifests::new();
        manifests.replace("a.yaml", &with_node_port("a", "10.96.0.1"));
        network.node.run(|| {
            choose(variant);
            let plan = run(&manifests.0, &[MODE, &["--dry-run"]].concat());
            assert!(text(&plan).contains("] listen tcp 0.0.0.0:20"), "{}", text(&plan));
            assert!(portals().is_empty());
            let once = run(&manifests.0, &[MODE, &["--once"]].concat());
            assert_eq!(once.status.code(), Some(2), "{}", text(&once));

            let agent = Agent::start(&manifests.0, MODE);
            agent.wait_for(" synced done=", 1);
            assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");
            assert_eq!(ask_on_node(&network, "10.96.0.1").unwrap(), "pod0");
            let node_port: SocketAddr = (Network::node_ipv4(), 31080).into();
            let mut kept = Connection::open(&network.client, Protocol::Tcp, node_port).unwrap();
            assert_eq!(kept.ask().unwrap().server, "pod0");
            let mode = get("127.0.0.1:10249", "/proxyMode").unwrap();
            assert!(mode.ends_with("\r\n\r\nuserspace"), "{mode}");
            let health = get("127.0.0.1:10256", "/healthz").unwrap();
            assert!(health.starts_with("HTTP/1.1 200 OK\r\n"), "{health}");
            let page = get("127.0.0.1:10249", "/metrics").unwrap();
            for line in [
                "\nkernlink_userspace_opened_total 3\n",
                "\nkernlink_listening_ports 2\n",
                "\nkubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} ",
            ] {
                assert!(page.contains(line), "{line}: {page}");
            }
            // Two processes of one node exclude each other.
            let second = run(&manifests.0, MODE);
            assert_eq!(second.status.code(), Some(3), "{}", text(&second));

            // A new Service, a changed one, and one that is deleted.
            manifests.replace("b.yaml", &service("b", "10.96.0.2", &[1]));
            wait_for_answer(&network, "10.96.0.2", "pod1");
            manifests.replace("b.yaml", &service("b", "10.96.0.2", &[0]));
            wait_for_answer(&network, "10.96.0.2", "pod0");
            let portals_of_both = portals();
            fs::remove_file(manifests.0.join("b.yaml")).unwrap();
            wait::until(|| match portals() {
                portals if portals.iter().any(|rule| rule.contains("default/b")) => {
                    Err(format!("{portals:#?}"))
                }
                _ => Ok(()),
            });
            assert!(ask(&network.client, "10.96.0.2").is_err());

            // What a firewall that reloads removes is repaired, although the period is ten minutes: the agent noticed it. The ports stay.
            let before = portals();
            assert!(
                before.is_subset(&portals_of_both) && before.len() >= 4,
                "{before:?}"
            );
            tools::flush_tables("iptables-restore");
            wait::until(|| match portals() {
                portals if portals == before => Ok(()),
                portals => Err(format!("{portals:#?}")),
            });
            wait_for_answer(&network, "10.96.0.1", "pod0");
            assert_eq!(kept.ask().unwrap().server, "pod0");

            let (status, log) = agent.stop();
            assert!(status.success(), "{log}");
            assert_eq!(portals(), before);
            let cleanup = command(&manifests.0, &[MODE, &["--cleanup"]].concat())
                .output()
                .unwrap();
            assert!(cleanup.status.success(), "{}", text(&cleanup));
            assert!(!rules().contains("KUBE-"), "{}", rules());
        });
    }
}

#[test]
fn an_agent_that_starts_again_listens_at_the_ports_to_which_the_rules_lead() {
    requires!(Feature::Iptables);
    for variant in MULTI {
        let network = Network::new(2);
        let mut servers = network.serve(Protocol::Tcp, 8080);
        servers.extend(network.serve(Protocol::Udp, 5353));
        let manifests = Manifests::new();
        manifests.replace("a.yaml", &with_node_port("a", "10.96.0.1"));
        manifests.replace("b.yaml", &service("b", "10.96.0.2", &[1]));
        network.node.run(|| {
            choose(variant);
            let mut agent = Agent::start(&manifests.0, MODE);
            agent.wait_for(" synced done=", 1);
            let before = portals();
            let mut flow =
                Connection::open(&network.client, Protocol::Udp, "10.96.0.1:53".parse().unwrap()).unwrap();
            assert_eq!(flow.ask().unwrap().server, "pod0");
            // Ended by a signal that it handles, and by one that it cannot handle.
            for is_killed in [false, true] {
                if is_killed {
                    drop(agent);
                } else {
                    let (status, log) = agent.stop();
                    assert!(status.success(), "{log}");
                }
                assert_eq!(portals(), before);
                assert!(ask(&network.client, "10.96.0.1").is_err());
                agent = Agent::start(&manifests.0, MODE);
                wait_for_answer(&network, "10.96.0.1", "pod0");
                wait_for_answer(&network, "10.96.0.2", "pod1");
                agent.wait_for(" synced done=", 1);
                assert_eq!(portals(), before);
                // Tracked datagrams of the client lead to the same port.
                assert_eq!(flow.ask().unwrap().server, "pod0");
            }
            agent.stop();
        });
    }
}

#[test]
fn failed_restores_of_userspace_mode_are_in_the_metrics_of_kube_proxy() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        choose("iptables-nft");
        let script = "#!/bin/sh
case \"$*\" in *--version*) exec /usr/sbin/iptables-restore \"$@\";; esac
[ -e /run/refuses ] || exec /usr/sbin/iptables-restore \"$@\"
echo 'iptables-restore: line 2 failed' >&2
exit 1
";
        replace_by("iptables-restore", script);
        fs::write("/run/refuses", "").unwrap();
        let agent = Agent::start(&manifests.0, &["--proxy-mode", "userspace"]);
        let failures = |family: &str| {
            let page = get("127.0.0.1:10249", "/metrics")?;
            let name = format!(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{{ip_family=\"{family}\"}} "
            );
            let value = page
                .lines()
                .find_map(|line| line.strip_prefix(&name).map(str::to_owned));
            value.ok_or(page)
        };
        // The first restore is that of the chains, without which no rule is written.
        wait::until(|| match failures("IPv4")? {
            zero if zero == "0" => Err(zero),
            _ => Ok(()),
        });
        assert_eq!(failures("IPv6").unwrap(), "0");
        fs::remove_file("/run/refuses").unwrap();
        wait_for_answer(&network, "10.96.0.1", "pod0");
        agent.stop();
    });
}
