//! Certificates that change while the agent runs, in iptables mode.

use std::fs;
use std::os::unix::fs::symlink;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{requires, wait};
use serde_json::json;

use crate::api_server::ApiServer;
use crate::cluster::{ADDRESS, add, api_node, check_staleness, delete};
use crate::support::{Agent, Manifests, api_command, ask, wait_for_answer, wait_until_gone};
use crate::tls::{Certificates, TlsServer};

const WITHOUT_TLS: &str = "127.0.0.1:6444";

#[test]
fn certificates_that_are_replaced_are_used_without_a_restart() {
    requires!(Feature::Iptables);
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    let certificates = Certificates(files.0.clone());
    for (authority, signed) in [
        ("clients-1", "client-1"),
        ("clients-2", "client-2"),
        ("servers-1", "server-1"),
        ("servers-2", "server-2"),
    ] {
        certificates.authority(authority);
        certificates.sign(signed, authority);
    }
    // A link to a file with certificate and key, as that of the kubelet.
    let use_client = |name: &str| {
        symlink(certificates.path(name), files.0.join("next")).unwrap();
        fs::rename(files.0.join("next"), files.0.join("current.pem")).unwrap();
    };
    let use_authorities = |names: &[&str]| {
        let read = |name: &&str| fs::read_to_string(certificates.path(name)).unwrap();
        files.replace("authorities.pem", &names.iter().map(read).collect::<String>());
    };
    let [clients_1, clients_2, server_1, server_2] =
        ["clients-1", "clients-2", "server-1", "server-2"].map(|name| certificates.path(name));
    network.node.run(|| {
        let server = ApiServer::start(WITHOUT_TLS, true);
        let tls = TlsServer::start(ADDRESS, WITHOUT_TLS, &server_1, &[&clients_1]);
        use_client("client-1");
        use_authorities(&["servers-1"]);
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("https://{ADDRESS}"), "certificate-authority": "authorities.pem"}}],
            "users": [{"name": "u", "user": {"token": "secret", "client-certificate": "current.pem", "client-key": "current.pem"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        files.replace("kubeconfig", &text.to_string());
        server.apply(api_node(&["192.0.2.1"]));
        add(&server, "a", "10.96.0.1", 0);
        add(&server, "b", "10.96.0.2", 0);
        let agent = Agent::spawn(api_command(&kubeconfig, &[]));
        // A connection that was accepted with the earlier certificates can reach the server after the first cut.
        let cut_until_stale = || {
            wait::until(|| {
                server.cut();
                check_staleness(true)
            });
        };
        wait_for_answer(&network, "10.96.0.1", "pod0");

        // The client gets another certificate; then the first one is no longer accepted.
        tls.replace(&server_1, &[&clients_1, &clients_2]);
        use_client("client-2");
        tls.replace(&server_1, &[&clients_2]);
        server.cut();
        add(&server, "c", "10.96.0.3", 1);
        wait_for_answer(&network, "10.96.0.3", "pod1");
        agent.wait_for("because files changed: ", 1);

        // The client accepts another authority for servers, then the server gets a certificate of that one.
        use_authorities(&["servers-1", "servers-2"]);
        server.cut();
        add(&server, "d", "10.96.0.4", 1);
        wait_for_answer(&network, "10.96.0.4", "pod1");
        tls.replace(&server_2, &[&clients_2]);
        server.cut();
        delete(&server, "b");
        wait_until_gone("b");
        agent.wait_for("because files changed: ", 2);
        let log = agent.log();
        assert!(!log.contains("certificate;") && !log.contains("peer certificate"), "{log}");

        // A file that cannot be used does not replace what works.
        files.replace("authorities.pem", "no certificate\n");
        server.cut();
        add(&server, "e", "10.96.0.5", 1);
        wait_for_answer(&network, "10.96.0.5", "pod1");
        agent.wait_for(
            "files changed and cannot be used, what was read before stays in use: ",
            1,
        );
        agent.wait_for("certificate-authority: has no certificate (PEM)", 1);

        // Too late: the server refuses the certificate, or has one that the client does not accept. The kernel stays as it is.
        use_authorities(&["servers-2"]);
        tls.replace(&server_2, &[&clients_1]);
        server.cut();
        agent.wait_for("; the server does not accept the client certificate", 1);
        cut_until_stale();
        delete(&server, "c");
        assert_eq!(ask(&network.client, "10.96.0.3").unwrap(), "pod1");
        use_client("client-1");
        wait_until_gone("c");
        tls.replace(&server_1, &[&clients_1]);
        server.cut();
        agent.wait_for("; the server's certificate is not signed by certificate-authority", 1);
        cut_until_stale();
        delete(&server, "d");
        assert_eq!(ask(&network.client, "10.96.0.4").unwrap(), "pod1");
        use_authorities(&["servers-1"]);
        wait_until_gone("d");
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
        assert!(!log.contains("secret"), "{log}");
    });
}
