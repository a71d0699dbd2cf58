//! An API server that refuses requests, and credential plugins that fail, in iptables mode.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{requires, wait};
use nix::sys::stat::Mode;
use serde_json::json;

use crate::api_objects::{api_service, api_slice};
use crate::api_server::ApiServer;
use crate::cluster::{ADDRESS, add, api_node, delete, lists, with_api_server};
use crate::service_manager::ServiceManager;
use crate::support::{Agent, Manifests, api_command, ask, get, service, wait_for_answer, wait_until_gone};

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

#[test]
fn watches_that_are_refused_are_repeated_or_their_list_is_read_again() {
    requires!(Feature::Iptables);
    with_api_server(2, false, |network, server, kubeconfig| {
        add(server, "a", "10.96.0.1", 0);
        add(server, "b", "10.96.0.2", 0);
        // The role permits lists, and no watch of slices.
        server.refuse_watches(SLICES, Some(403));
        let agent = Agent::spawn(api_command(kubeconfig, &[]));
        wait_for_answer(network, "10.96.0.1", "pod0");
        agent.wait_for(
            "watch of endpointslices.discovery.k8s.io is refused: a message (403)",
            1,
        );
        // The watch is permitted: it continues at the version of the list.
        server.take_requests();
        server.apply(api_slice("a", 1));
        server.refuse_watches(SLICES, None);
        wait_for_answer(network, "10.96.0.1", "pod1");
        agent.wait_for("read from the API server again", 1);
        assert_eq!(lists(&server.take_requests()), 0);

        // The watch is refused as no permission is: the list is read, and has what happened. This is reported once.
        server.refuse_watches(SERVICES, Some(400));
        server.cut();
        delete(server, "b");
        wait_until_gone("b");
        add(server, "c", "10.96.0.3", 1);
        wait_for_answer(network, "10.96.0.3", "pod1");
        agent.wait_for("the list is read again: a message (400)", 2);
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod1");
        let (_, log) = agent.stop();
        let reports = log.matches("watch of services is refused: a message (400)");
        assert_eq!(reports.count(), 1, "{log}");
    });
}

#[test]
fn the_service_manager_gives_more_time_while_the_first_list_is_slow() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    files.replace(
        "kubeconfig",
        "apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: \"http://127.0.0.1:6443\"}}]
users: [{name: u, user: {}}]
",
    );
    network.node.run(|| {
        // It accepts connections, and does not answer.
        let _server = TcpListener::bind(ADDRESS).unwrap();
        let manager = ServiceManager::start(&files.0);
        let mut command = api_command(&kubeconfig, &[]);
        command.env("NOTIFY_SOCKET", &manager.socket);
        let _agent = Agent::spawn(command);
        manager.wait_for(
            "EXTEND_TIMEOUT_USEC=90000000\nSTATUS=waiting for the first lists of Service, EndpointSlice, Node",
        );
    });
}

#[test]
fn many_annotations_of_one_service_are_a_few_short_lines_of_the_log() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    network.node.run(|| {
        let server = ApiServer::start(ADDRESS, false);
        files.replace("kubeconfig", &server.kubeconfig("secret"));
        server.apply(api_node(&["192.0.2.1"]));
        let mut service = api_service("a", "10.96.0.1");
        let mut annotations = serde_json::Map::new();
        for number in 0..14_000 {
            annotations.insert(format!("kernlink.io/x{number}"), json!(""));
        }
        annotations.insert("kernlink.io/weights".to_owned(), json!("\u{1}".repeat(200_000)));
        service["metadata"]["annotations"] = json!(annotations);
        server.apply(service);
        let agent = Agent::spawn(api_command(&kubeconfig, &[]));
        agent.wait_for("subject=\"Service shop/a\"", 11);
        agent.wait_for("13991 more events about this object", 1);
        let (_, log) = agent.stop();
        assert!(log.len() < 30_000, "{} bytes", log.len());
        assert!(log.lines().all(|line| line.len() < 4_000), "{log}");
    });
}

#[test]
fn a_credential_plugin_that_fails_or_hangs_leaves_the_kernel_as_it_is() {
    requires!(Feature::Iptables);
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    let folder = files.0.display();
    // It prints the token of a file. Without the file it fails; with the file `hang` it never ends.
    nix::unistd::mkfifo(&files.0.join("fifo"), Mode::S_IRWXU).unwrap();
    let script = format!(
        "#!/bin/sh
cd {folder} && echo >> runs
[ -e hang ] && echo $$ > pid && read line < fifo
read token < token || exit 1
echo \"{{\\\"apiVersion\\\": \\\"client.authentication.k8s.io/v1\\\", \\\"kind\\\": \\\"ExecCredential\\\", \\\"status\\\": {{\\\"token\\\": \\\"$token\\\"}}}}\"
"
    );
    let plugin = files.0.join("login");
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o700)).unwrap();
    let runs = || fs::read_to_string(files.0.join("runs")).map_or(0, |runs| runs.lines().count());
    network.node.run(|| {
        let server = ApiServer::start(ADDRESS, true);
        let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login", "interactiveMode": "Never"}});
        files.replace("kubeconfig", &server.kubeconfig_of(&user));
        server.apply(api_node(&["192.0.2.1"]));
        add(&server, "a", "10.96.0.1", 0);
        let agent = Agent::spawn(api_command(&kubeconfig, &[]));
        wait::until(|| match runs() {
            0..5 => Err(agent.log()),
            _ => Ok(()),
        });
        files.replace("token", "secret\n");
        wait_for_answer(&network, "10.96.0.1", "pod0");
        let failed = format!("the credential plugin \"{folder}/./login\" failed (exit status: 1)");
        let log = agent.log();
        let reports = log
            .lines()
            .filter(|line| line.contains("what is known stays") && line.contains(&failed));
        assert_eq!(reports.count(), 1, "one line for a cause: {log}");

        // Another token is necessary: the plugin runs again.
        files.replace("token", "other\n");
        server.set_token("other");
        server.cut();
        server.apply(api_slice("a", 1));
        wait_for_answer(&network, "10.96.0.1", "pod1");

        // The plugin hangs. What is known is served, and the agent ends without waiting for it.
        files.replace("hang", "");
        server.set_token("third");
        server.cut();
        let pid = files.0.join("pid");
        wait::until(|| match fs::read_to_string(&pid) {
            Ok(text) if text.ends_with('\n') => Ok(()),
            _ => Err(agent.log()),
        });
        delete(&server, "a");
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod1");
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
        let pid = fs::read_to_string(pid).unwrap();
        wait::until(|| match fs::read_to_string(format!("/proc/{}/stat", pid.trim())) {
            Ok(state) if !state.contains(") Z ") => Err(state),
            _ => Ok(()),
        });
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod1");
    });
}

#[test]
fn after_a_boot_the_services_of_the_folder_are_programmed_while_the_api_server_is_away() {
    requires!(Feature::Iptables);
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    let manifests = Manifests::new();
    manifests.replace("static.yaml", &service("static", "10.96.0.10", &[0]));
    // A file that cannot be read withholds its own Services only.
    manifests.replace("broken.yaml", "kind: [");
    let watch = manifests.0.display().to_string();
    network.node.run(|| {
        let mut server = ApiServer::start(ADDRESS, true);
        files.replace("kubeconfig", &server.kubeconfig("secret"));
        server.apply(api_node(&["192.0.2.1"]));
        add(&server, "a", "10.96.0.1", 1);
        server.stop();
        let start = || Agent::spawn(api_command(&kubeconfig, &["--watch", &watch]));
        let agent = start();
        wait_for_answer(&network, "10.96.0.10", "pod0");
        agent.wait_for(
            "the Services of the folder are programmed without those of the API server",
            1,
        );
        let healthz = || get("127.0.0.1:10256", "/healthz").unwrap();
        assert!(
            healthz().starts_with("HTTP/1.1 503"),
            "load balancers wait: {}",
            healthz()
        );
        manifests.replace("static.yaml", &service("static", "10.96.0.10", &[1]));
        wait_for_answer(&network, "10.96.0.10", "pod1");

        // With the API server, everything is programmed.
        manifests.replace("broken.yaml", &service("repaired", "10.96.0.12", &[0]));
        wait_for_answer(&network, "10.96.0.12", "pod0");
        server.resume();
        wait_for_answer(&network, "10.96.0.1", "pod1");
        assert_eq!(ask(&network.client, "10.96.0.10").unwrap(), "pod1");
        wait::until(|| match healthz() {
            answer if answer.starts_with("HTTP/1.1 200") => Ok(()),
            answer => Err(answer),
        });
        agent.stop();

        // The kernel serves Services now: what is not known is not deleted.
        server.stop();
        manifests.replace("static.yaml", &service("other", "10.96.0.11", &[0]));
        let agent = start();
        agent.wait_for("nothing is synced: ", 1);
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod1");
        assert_eq!(ask(&network.client, "10.96.0.10").unwrap(), "pod1");
        server.resume();
        wait_for_answer(&network, "10.96.0.11", "pod0");
        wait_until_gone("static");
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod1");
        agent.stop();
    });
}
