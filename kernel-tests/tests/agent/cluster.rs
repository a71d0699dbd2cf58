//! The agent with an API server, in iptables mode.

use std::fs;
use std::path::Path;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{requires, tools, wait};
use serde_json::{Value, json};

use crate::api_objects::{api_service, api_slice};
use crate::api_server::ApiServer;
use crate::service_manager::ServiceManager;
use crate::support::{
    Agent, Manifests, api_command, ask, get, service, text, wait_for_answer, wait_until_gone,
};

/// Leads to an event about the configuration: there is no IPv6 network.
const ONE_NETWORK: [&str; 2] = ["--nodeport-addresses", "192.0.2.0/24"];
pub(crate) const ADDRESS: &str = "127.0.0.1:6443";

/// The Node of the agent, with these internal addresses.
pub(crate) fn api_node(addresses: &[&str]) -> Value {
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"type": "InternalIP", "address": address}))
        .collect();
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-a"}, "status": {"addresses": addresses}})
}

/// Runs a test on the node of a network with so many pods, which answer on port 8080, with the configuration of a client of an API server that has
/// the Node of the agent.
pub(crate) fn with_api_server(
    pods: u8,
    has_streamed_lists: bool,
    test: impl FnOnce(&Network, &ApiServer, &Path) + Send,
) {
    let network = Network::new(pods);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    network.node.run(|| {
        let server = ApiServer::start(ADDRESS, has_streamed_lists);
        files.replace("kubeconfig", &server.kubeconfig("secret"));
        server.apply(api_node(&["192.0.2.1"]));
        test(&network, &server, &kubeconfig);
    });
}

pub(crate) fn add(server: &ApiServer, name: &str, address: &str, pod: u8) {
    server.apply(api_service(name, address));
    server.apply(api_slice(name, pod));
}

pub(crate) fn delete(server: &ApiServer, name: &str) {
    server.delete(&api_service(name, ""));
    server.delete(&api_slice(name, 0));
}

pub(crate) fn lists(requests: &[String]) -> usize {
    let is_list = |request: &&String| !request.contains("watch=1") || request.contains("sendInitialEvents");
    requests.iter().filter(is_list).count()
}

/// Waits until health and metrics name all kinds as those that cannot be read, or none.
pub(crate) fn wait_until_stale(is_stale: bool) {
    wait::until(|| check_staleness(is_stale));
}

/// Whether health and metrics name all kinds as those that cannot be read, or none. The node keeps the traffic of load balancers.
pub(crate) fn check_staleness(is_stale: bool) -> Result<(), String> {
    let [healthz, livez] = ["/healthz", "/livez"].map(|path| get("127.0.0.1:10256", path).unwrap());
    assert!(
        healthz.starts_with("HTTP/1.1 200") && livez.starts_with("HTTP/1.1 200"),
        "{healthz}{livez}"
    );
    let page = get("127.0.0.1:10249", "/metrics").unwrap();
    for kind in ["EndpointSlice", "Node", "Service"] {
        for answer in [&healthz, &livez] {
            let (_, stale) = answer.split_once("\"staleSince\":").unwrap_or_default();
            if stale.contains(&format!("\"{kind}\":\"20")) != is_stale {
                return Err(answer.clone());
            }
        }
        let fresh = format!("\nkernlink_api_server_stale_since_seconds{{kind=\"{kind}\"}} 0\n");
        if page.contains(&fresh) == is_stale {
            return Err(page);
        }
        let received = format!("\nkernlink_api_server_received_bytes_total{{kind=\"{kind}\"}} ");
        assert!(page.contains(&received), "{page}");
    }
    Ok(())
}

/// Waits until exactly these events about the Node were written: types and reasons, in any order.
fn wait_for_events(server: &ApiServer, expected: &[(&str, &str)]) {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    wait::until(|| {
        let events = server.node_events();
        let regarding = json!({"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"});
        assert!(
            events.iter().all(|event| event["regarding"] == regarding),
            "{events:?}"
        );
        let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
        let mut found: Vec<_> = events
            .iter()
            .map(|event| (text(event, "type"), text(event, "reason")))
            .collect();
        found.sort_unstable();
        let found: Vec<_> = found
            .iter()
            .map(|(kind, reason)| (kind.as_str(), reason.as_str()))
            .collect();
        if found == expected {
            return Ok(());
        }
        Err(format!("{events:?}"))
    });
}

/// An agent follows an API server through everything that interrupts it. One connection lasts the whole time.
fn follow(has_streamed_lists: bool) {
    requires!(Feature::Iptables);
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    network.node.run(|| {
        let mut server = ApiServer::start(ADDRESS, has_streamed_lists);
        files.replace("kubeconfig", &server.kubeconfig("secret"));
        let manager = ServiceManager::start(&files.0);
        let start = || {
            let mut command = api_command(&kubeconfig, &ONE_NETWORK);
            command.env("NOTIFY_SOCKET", &manager.socket);
            Agent::spawn(command)
        };

        // The agent waits for the Node, and for its address. Several pages of objects.
        for (name, pod) in [("a", 0), ("b", 1), ("c", 0), ("d", 1), ("e", 0)] {
            add(&server, name, &format!("10.96.0.{}", name.as_bytes()[0]), pod);
        }
        let agent = start();
        agent.wait_for("waiting: the Node node-a does not exist", 1);
        server.apply(api_node(&[]));
        assert!(
            !tools::run("iptables-save", &["-t", "nat"])
                .unwrap()
                .contains("shop/a")
        );
        server.apply(api_node(&["192.0.2.1"]));
        wait_for_answer(&network, "10.96.0.97", "pod0");
        wait_for_answer(&network, "10.96.0.101", "pod0");
        let waited = ("Warning", "NothingSynced");
        let started = [("Normal", "Starting"), ("Warning", "Configuration")];
        wait_for_events(&server, &[&started[..], &[waited]].concat());
        let requests = server.take_requests();
        assert!(
            requests
                .iter()
                .any(|request| request.contains("fieldSelector=metadata.name%3Dnode-a")),
            "{requests:?}"
        );
        let has_pages = requests.iter().any(|request| request.contains("&continue="));
        assert_eq!(has_pages, !has_streamed_lists, "{requests:?}");
        let target = "10.96.0.97:80".parse().unwrap();
        let mut lasting = Connection::open(&network.client, Protocol::Tcp, target).unwrap();
        assert_eq!(lasting.ask().unwrap().server, "pod0");

        // A new Service, a changed one, one that belongs to another proxy, and one that is deleted.
        add(&server, "f", "10.96.0.102", 1);
        wait_for_answer(&network, "10.96.0.102", "pod1");
        server.apply(api_slice("f", 0));
        wait_for_answer(&network, "10.96.0.102", "pod0");
        let mut other = api_service("f", "10.96.0.102");
        other["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
        server.apply(other);
        wait_until_gone("f");
        delete(&server, "e");
        wait_until_gone("e");

        // An invalid object is reported, stays as it was, and does not affect the others.
        let mut invalid = api_service("d", "10.96.0.100");
        invalid["spec"]["ports"][0]["port"] = json!("eighty");
        server.apply(invalid);
        agent.wait_for("Service shop/d: spec.ports[0].port: expected a whole number", 1);
        server.apply(api_slice("d", 0));
        wait_for_answer(&network, "10.96.0.100", "pod0");
        server.apply(api_service("d", "10.96.0.100"));

        // A watch is cut: it continues where it was, without a list.
        server.take_requests();
        server.cut();
        server.apply(api_slice("b", 0));
        wait_for_answer(&network, "10.96.0.98", "pod0");
        let requests = server.take_requests();
        assert_eq!(lists(&requests), 0, "{requests:?}");
        // A watch that had ended just then, and began again, was not cut.
        agent.wait_for("read from the API server again", 1);

        // The server is away and changes meanwhile. What is known is served.
        server.stop();
        agent.wait_for("cannot be read from the API server", 2);
        assert_eq!(ask(&network.client, "10.96.0.98").unwrap(), "pod0");
        wait_until_stale(true);
        for code in ["200", "<error>"] {
            let requests =
                format!("\nrest_client_requests_total{{code=\"{code}\",host=\"{ADDRESS}\",method=\"GET\"}} ");
            wait::until(|| match get("127.0.0.1:10249", "/metrics")? {
                page if page.contains(&requests) => Ok(()),
                page => Err(page),
            });
        }
        manager.wait_for("STATUS=objects cannot be read from the API server: Service, EndpointSlice, Node; the kernel keeps what was read before");
        let recovered = agent.log().matches("read from the API server again").count();
        delete(&server, "b");
        server.resume();
        wait_until_gone("b");
        agent.wait_for("read from the API server again", recovered + 3);
        wait_until_stale(false);
        manager.wait_for("STATUS=running");

        // The server forgets the version: the list is read again, and what vanished is deleted.
        server.stop();
        delete(&server, "c");
        add(&server, "g", "10.96.0.103", 1);
        server.compact();
        server.resume();
        wait_for_answer(&network, "10.96.0.103", "pod1");
        wait_until_gone("c");
        agent.wait_for("the list is read again", 1);

        // Another token is read from the file.
        files.replace("kubeconfig", &server.kubeconfig("other"));
        server.set_token("other");
        server.cut();
        server.apply(api_slice("g", 0));
        wait_for_answer(&network, "10.96.0.103", "pod0");

        // The end of the agent, and its start without the server, delete nothing.
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
        server.stop();
        delete(&server, "g");
        let agent = start();
        agent.wait_for("nothing is synced: ", 1);
        assert_eq!(ask(&network.client, "10.96.0.103").unwrap(), "pod0");
        agent.wait_for("health server: listening on ", 1);
        assert!(
            get("127.0.0.1:10256", "/healthz")
                .unwrap()
                .starts_with("HTTP/1.1 200")
        );
        server.resume();
        wait_until_gone("g");
        // What happened while the server was away is written later.
        wait_for_events(&server, &[&started[..], &started, &[waited]].concat());

        assert_eq!(
            lasting.ask().unwrap().server,
            "pod0",
            "no sync has interrupted it"
        );
        agent.stop();
        let arguments = [&ONE_NETWORK[..], &["--dry-run"]].concat();
        let plan = api_command(&kubeconfig, &arguments).output().unwrap();
        assert_eq!(text(&plan), "# nothing to do\n");

        // A folder is another source.
        let manifests = Manifests::new();
        manifests.replace("static.yaml", &service("static", "10.96.0.1", &[1]));
        let watch = manifests.0.display().to_string();
        let once = api_command(&kubeconfig, &["--watch", &watch, "--once"])
            .output()
            .unwrap();
        assert!(once.status.success(), "{}", text(&once));
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod1");
        assert_eq!(ask(&network.client, "10.96.0.97").unwrap(), "pod0");
        fs::remove_file(&kubeconfig).unwrap();
        let failed = api_command(&kubeconfig, &["--once"]).output().unwrap();
        assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
        assert_eq!(ask(&network.client, "10.96.0.97").unwrap(), "pod0");
    });
}

#[test]
fn an_agent_follows_an_api_server_that_streams_lists() {
    follow(true);
}

#[test]
fn an_agent_follows_an_api_server_with_lists_in_pages() {
    follow(false);
}
