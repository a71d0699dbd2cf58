//! Requests over TCP. The expected answers were recorded from kube-proxy 1.36.3.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::sync::mpsc;
use std::time::Duration;

use kernlink_proxier::metrics::prometheus::Registry;
use kernlink_proxier::runner::Notice;
use kernlink_proxier::{Intervals, Proxier, Runner, Schedule};
use kernlink_services::{Change, HealthCheck, Node, ObjectChange, ObjectName, SourceId};

use super::server::Families;
use super::*;
use crate::flags::Flags;
use crate::modes::{self, AnyRunner, Served, Task};
use crate::once;

const ANY_PORT: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn settings(line: &str) -> Settings {
    let line = format!("--watch /m --node-name n {line}");
    let flags = Flags::parse(line.split_whitespace().map(OsString::from)).unwrap();
    Settings::new(&flags).unwrap()
}

/// The options for each mode, iptables by default.
const MODES: [(&str, &str); 3] = [
    ("", "iptables"),
    ("--proxy-mode ipvs", "ipvs"),
    ("--proxy-mode userspace", "userspace"),
];

fn shared() -> Arc<Mutex<State>> {
    Arc::new(Mutex::new(State::new(&settings("").config).unwrap()))
}

/// The routes of the health and the metrics server.
fn routes(state: &Arc<Mutex<State>>) -> [Routes; 2] {
    routes_with("", state)
}

fn routes_with(line: &str, state: &Arc<Mutex<State>>) -> [Routes; 2] {
    let (sender, _messages) = mpsc::channel();
    let servers = servers(&settings(line), state, &sender);
    let routes: Vec<_> = servers.into_iter().map(Server::into_routes).collect();
    routes.try_into().ok().unwrap()
}

fn connections(limit: usize) -> Connections {
    Connections::new(limit, &Registry::new()).unwrap()
}

/// Serves on a port that the kernel chooses, on a thread that ends with the test program.
fn serve(routes: Routes) -> SocketAddr {
    let (sender, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = server::listen(ANY_PORT.into(), Families::OfAddress).unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            server::accept(&listener, &routes, &connections(MAX_CONNECTIONS)).await;
        });
    });
    address.recv().unwrap()
}

fn get(address: SocketAddr, path: &str) -> String {
    try_get(address, path).unwrap()
}

fn try_get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The answer without the time.
fn lines(answer: &str) -> Vec<&str> {
    let lines = answer.split("\r\n");
    let mut lines: Vec<_> = lines
        .filter(|line| !line.to_lowercase().starts_with("date: "))
        .collect();
    // The order of headers has no meaning.
    let end = lines.iter().position(|line| line.is_empty()).unwrap();
    lines[1..end].sort_unstable();
    lines
}

/// A runner on fakes, after its first sync.
fn runner(line: &str, changes: Vec<Change>) -> Box<dyn AnyRunner> {
    modes::run(&settings(line).config, StartRunner(changes))
}

struct StartRunner(Vec<Change>);

impl Task for StartRunner {
    type Output = Box<dyn AnyRunner>;

    fn run<M: Served>(self, settings: &M::Settings) -> Box<dyn AnyRunner> {
        Box::new(runner_of::<M>(M::of_settings(settings), self.0))
    }
}

fn runner_of<M: Served>(config: &M::Config, changes: Vec<Change>) -> Runner<M> {
    let proxier = Proxier::<M>::new(config, M::fake_kernel()).unwrap();
    let (sender, notices) = mpsc::channel();
    let runner = Runner::start(proxier, Schedule::new(Intervals::default()), move |notice| {
        _ = sender.send(notice);
    });
    let runner = runner.unwrap();
    for change in changes {
        runner.change(SourceId(0), change);
    }
    while !matches!(notices.recv().unwrap(), Notice::Synced(_)) {}
    runner
}

#[test]
fn health_is_answered_as_by_kube_proxy_in_every_mode() {
    for (line, _) in MODES {
        let state = shared();
        let [health, _] = routes_with(line, &state);
        let address = serve(health);
        // The kernel was not programmed yet.
        assert!(get(address, "/healthz").starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
        assert!(get(address, "/livez").starts_with("HTTP/1.1 200 OK\r\n"));
        state::lock(&state).is_serving = true;
        state::lock(&state).runner = Some(runner(line, once::synced(false).collect()));
        let answer = get(address, "/healthz");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains("\r\ncontent-type: application/json\r\n"),
            "{answer}"
        );
        assert!(
            answer.contains("\r\nx-content-type-options: nosniff\r\n"),
            "{answer}"
        );
        let body = r#""nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":""#;
        assert!(answer.contains(body), "{answer}");
        assert!(!get(address, "/livez").contains("nodeEligible"));
        assert!(get(address, "/metrics").starts_with("HTTP/1.1 404 Not Found\r\n"));
    }
}

#[test]
fn a_node_that_is_leaving_is_not_eligible() {
    for (is_leaving, status) in [(false, "200 OK"), (true, "503 Service Unavailable")] {
        let mut node = Node::new("n");
        node.is_leaving = is_leaving;
        let mut changes = vec![Change::Nodes(ObjectChange::Upsert(node))];
        changes.extend(once::synced(true));
        let state = shared();
        state::lock(&state).is_serving = true;
        state::lock(&state).runner = Some(runner("", changes));
        let [health, _] = routes(&state);
        let address = serve(health);
        assert!(get(address, "/healthz").starts_with(&format!("HTTP/1.1 {status}\r\n")));
        assert!(get(address, "/livez").starts_with("HTTP/1.1 200 OK\r\n"));
    }
}

#[test]
fn the_metrics_server_answers_mode_health_and_configuration() {
    for (line, name) in MODES {
        let [_, metrics] = routes_with(line, &shared());
        let address = serve(metrics);
        let mode = get(address, "/proxyMode");
        let length = format!("content-length: {}", name.len());
        let expected = [
            "HTTP/1.1 200 OK",
            "connection: close",
            &length,
            "content-type: text/plain; charset=utf-8",
            "x-content-type-options: nosniff",
            "",
            name,
        ];
        assert_eq!(lines(&mode), expected);
        assert_eq!(lines(&get(address, "/healthz")).last(), Some(&"ok"));
        let configuration = get(address, "/configz");
        let (_, body) = configuration.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let body = &body["kubeproxy.config.k8s.io"];
        assert_eq!(
            (&body["hostnameOverride"], &body["mode"]),
            (&"n".into(), &name.into())
        );
    }
}

#[test]
fn metrics_are_those_of_the_runner_and_count_answers_in_either_mode() {
    for (line, _) in MODES {
        let state = shared();
        let [health, metrics] = routes_with(line, &state);
        let (health, metrics) = (serve(health), serve(metrics));
        // Before the first sync.
        get(health, "/healthz");
        let page = get(metrics, "/metrics");
        assert!(
            page.contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"),
            "{page}"
        );
        assert!(
            page.contains("\nkubeproxy_proxy_healthz_total{code=\"503\"} 1\n"),
            "{page}"
        );
        state::lock(&state).is_serving = true;
        state::lock(&state).runner = Some(runner(line, once::synced(false).collect()));
        get(health, "/healthz");
        let page = get(metrics, "/metrics");
        assert!(
            page.contains("\nkubeproxy_proxy_healthz_total{code=\"200\"} 1\n"),
            "{page}"
        );
        let syncs = "\nkubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1\n";
        assert!(page.contains(syncs), "{page}");
    }
}

#[test]
fn a_health_check_node_port_answers_on_every_path_while_it_exists() {
    let state = shared();
    let port = NonZeroU16::new(32_001).unwrap();
    let address: SocketAddr = "127.0.0.1:32001".parse().unwrap();
    let routes = checks::routes(address, Arc::clone(&state));
    let server = serve(routes);
    let check = HealthCheck {
        port,
        service: ObjectName::new("default", "lb2"),
        local_endpoints: 1,
    };
    state::lock(&state).checks = [(address, check)].into();
    let answer = get(server, "/any/path");
    let expected = [
        "HTTP/1.1 200 OK",
        "connection: close",
        "content-length: 114",
        "content-type: application/json",
        "x-content-type-options: nosniff",
        "x-load-balancing-endpoint-weight: 1",
        "",
        "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"lb2\"\n\t},\n\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": true\n}",
    ];
    assert_eq!(lines(&answer), expected);
    state::lock(&state).checks.clear();
    assert!(get(server, "/").starts_with("HTTP/1.1 404 "));
}

#[test]
fn the_unspecified_ipv4_address_accepts_both_families() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let _context = runtime.enter();
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
    let one = server::listen(any, Families::OfAddress).unwrap();
    assert!(one.local_addr().unwrap().is_ipv4());
    let both = server::listen(any, Families::All).unwrap();
    let port = both.local_addr().unwrap().port();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
    }
}

#[test]
fn a_port_that_is_in_use_is_tried_again() {
    let other = TcpListener::bind(ANY_PORT).unwrap();
    let address = other.local_addr().unwrap();
    let routes: Routes = Arc::new(|_| text("served"));
    let (sender, problems) = mpsc::channel();
    let server = Server::new("server", address, routes)
        .retry(Duration::from_millis(10))
        .on_failure(move |problem| _ = sender.send(problem));
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(server.serve(connections(MAX_CONNECTIONS)));
    });
    let problem = problems.recv().unwrap();
    assert!(
        problem.starts_with(&format!("server: cannot listen on {address}: ")),
        "{problem}"
    );
    drop(other);
    // A program that another test starts has the other listener too, until it is executed: a connection to it ends without an answer.
    let is_served = |_: &u32| {
        thread::sleep(Duration::from_millis(10));
        try_get(address, "/").is_ok_and(|answer| answer.ends_with("\r\n\r\nserved"))
    };
    assert!((0..30_000).any(|attempt| is_served(&attempt)));
    assert!(problems.try_recv().is_err(), "it is reported once");
}
