//! API servers that hang behind a load balancer, in iptables mode.

use std::time::SystemTime;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{requires, tools, wait};
use serde_json::json;

use crate::api_server::ApiServer;
use crate::cluster::{ADDRESS, add, api_node, wait_until_stale};
use crate::http2;
use crate::load_balancer::LoadBalancer;
use crate::support::{Agent, Manifests, api_command, get, wait_for_answer};
use crate::tls::Certificates;

const WITHOUT_TLS: &str = "127.0.0.1:6444";
const HTTP2: &str = "127.0.0.1:6445";

/// When objects of Services became stale, according to the metrics.
fn stale_since() -> f64 {
    let page = get("127.0.0.1:10249", "/metrics").unwrap();
    let name = "kernlink_api_server_stale_since_seconds{kind=\"Service\"} ";
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().parse().unwrap()
}

/// Without pings, the watches would wait for the load balancer until they had to end.
#[test]
fn a_server_that_hangs_behind_a_load_balancer_is_left_for_another_connection() {
    requires!(Feature::Iptables);
    hang(true);
}

/// HTTP/1.1 has no pings: the watches are short.
#[test]
fn a_server_without_tls_that_hangs_behind_a_load_balancer_is_left_for_another_connection() {
    requires!(Feature::Iptables);
    hang(false);
}

/// Neither end closes the connection, and nothing answers a new one.
#[test]
fn watches_go_on_after_packets_to_the_server_were_dropped() {
    requires!(Feature::Iptables);
    with_servers(|network, server, files| {
        let agent = start(network, server, files, &format!("https://{HTTP2}"));
        let (_, port) = HTTP2.rsplit_once(':').unwrap();
        let drop = |action| {
            let rule = ["INPUT", "-p", "tcp", "--dport", port, "-j", "DROP"];
            tools::run("iptables", &[&[action], &rule[..]].concat()).unwrap();
        };
        drop("-I");
        add(server, "b", "10.96.0.2", 1);
        // Noticed by a ping without an answer.
        agent.wait_for("what is known stays: ", 1);
        wait_for_answer(network, "10.96.0.1", "pod0");
        drop("-D");
        wait_for_answer(network, "10.96.0.2", "pod1");
        agent.wait_for("read from the API server again", 1);
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
    });
}

fn hang(has_tls: bool) {
    with_servers(|network, server, files| {
        let (scheme, target) = if has_tls {
            ("https", HTTP2)
        } else {
            ("http", WITHOUT_TLS)
        };
        let balancer = LoadBalancer::start(ADDRESS, target);
        let agent = start(network, server, files, &format!("{scheme}://{ADDRESS}"));
        add(server, "b", "10.96.0.2", 1);
        wait_for_answer(network, "10.96.0.2", "pod1");
        let connections = balancer.accepted();

        // The connections stay open, and what is sent to them is acknowledged.
        balancer.hang();
        add(server, "c", "10.96.0.3", 1);
        wait_for_answer(network, "10.96.0.3", "pod1");
        assert!(balancer.accepted() > connections);
        agent.wait_for("what is known stays: ", 1);
        // A short watch that had ended just then began again on a connection that does not hang.
        let least = if has_tls { 3 } else { 1 };
        agent.wait_for("read from the API server again", least);

        // No other server answers either: stale since the last byte, not since it was noticed, which takes 15 seconds or more.
        balancer.hang_for_ever();
        let since = wait::until(|| match stale_since() {
            since if since > 0.0 => Ok(since),
            _ => Err("objects of Services are not stale"),
        });
        let noticed = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        assert!(since + 10.0 < noticed, "{since} {noticed}\n{}", agent.log());
        wait_until_stale(true);
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
    });
}

/// Runs a test on a node with an API server without TLS, and with HTTP/2 in front of it.
fn with_servers(test: impl FnOnce(&Network, &ApiServer, &Manifests) + Send) {
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let certificates = Certificates(files.0.clone());
    certificates.authority("servers");
    certificates.sign("server", "servers");
    network.node.run(|| {
        let server = ApiServer::start(WITHOUT_TLS, true);
        http2::start(HTTP2, WITHOUT_TLS, &certificates.path("server"));
        test(&network, &server, &files);
    });
}

/// An agent that reads from this server, after it programmed its first Service.
fn start(network: &Network, server: &ApiServer, files: &Manifests, url: &str) -> Agent {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": "servers.pem"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    files.replace("kubeconfig", &text.to_string());
    server.apply(api_node(&["192.0.2.1"]));
    add(server, "a", "10.96.0.1", 0);
    let agent = Agent::spawn(api_command(&files.0.join("kubeconfig"), &[]));
    wait_for_answer(network, "10.96.0.1", "pod0");
    agent
}
