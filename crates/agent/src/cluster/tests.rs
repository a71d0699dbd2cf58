//! The source, with servers that do not work.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_services::{Change, Kind};

use super::transport::Limits;
use super::{Access, Cluster, Options, Traffic, Update};

/// The longest time that a test waits for what must happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

fn options(address: SocketAddr) -> Options {
    Options {
        access: Access {
            kubeconfig: None,
            master: Some(format!("http://{address}")),
        },
        node_name: "node-a".into(),
        service_proxy_name: None,
        has_all_nodes: false,
        has_service_cidrs: false,
        needs_address: false,
        needs_pod_cidr: false,
    }
}

/// Reads from this server. Returns the source, which ends when it is dropped, and its updates.
fn start(address: SocketAddr, limits: Limits) -> (Cluster, Receiver<Update>) {
    let (sender, updates) = mpsc::channel();
    let on_update = move |update| {
        let _ = sender.send(update);
    };
    let cluster =
        Cluster::start_with(&options(address), &Traffic::new().unwrap(), limits, on_update).unwrap();
    (cluster, updates)
}

/// What a server does with a request.
pub(super) enum Reply {
    /// Answers with a status and an empty body.
    Status(u16),
    /// Answers with this body.
    Body(String),
    /// Refuses, and names the time after which the request may be repeated, in seconds.
    Busy(u32),
    /// Begins an answer, and then hangs with an open connection.
    Begin,
    /// Hangs with an open connection.
    Nothing,
}

/// A server without TLS. Passes on the head of each request, with its body, before it is answered.
pub(super) fn server(
    reply: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel();
    let reply = Arc::new(reply);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (reply, sender) = (Arc::clone(&reply), sender.clone());
            thread::spawn(move || serve(stream, &*reply, &sender));
        }
    });
    (address, requests)
}

/// Returns when the client closed the connection.
fn serve(mut stream: TcpStream, reply: &dyn Fn(&str) -> Reply, requests: &Sender<String>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            if reader.read_line(&mut request)? == 0 {
                return Ok(());
            }
        }
        let length = request
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.parse().unwrap());
        reader.by_ref().take(length).read_to_string(&mut request)?;
        let _ = requests.send(request.clone());
        match reply(&request) {
            Reply::Status(code) => write!(stream, "HTTP/1.1 {code} Status\r\nContent-Length: 0\r\n\r\n")?,
            Reply::Body(body) => {
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
                )?;
            }
            Reply::Busy(seconds) => write!(
                stream,
                "HTTP/1.1 429 Status\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\n\r\n"
            )?,
            Reply::Nothing => {}
            Reply::Begin => stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?,
        }
    }
}

/// Has empty lists. Watches are accepted, and hang.
fn hang(request: &str) -> Reply {
    let kind = match request.split([' ', '?']).nth(1) {
        Some("/api/v1/services") => "ServiceList",
        Some("/api/v1/nodes") => "NodeList",
        _ => "EndpointSliceList",
    };
    if request.contains("sendInitialEvents") {
        Reply::Status(422)
    } else if request.contains("watch=1") {
        Reply::Begin
    } else {
        Reply::Body(format!(
            r#"{{"kind": "{kind}", "metadata": {{"resourceVersion": "1"}}, "items": []}}"#
        ))
    }
}

#[test]
fn a_watch_without_pings_that_does_not_end_is_stale_and_continues_on_another_connection() {
    let (address, requests) = server(hang);
    let limits = Limits {
        watch_without_pings: Duration::from_millis(5),
        // Long enough for the server to begin its answer.
        margin: Duration::from_millis(500),
        ..Limits::default()
    };
    let (_cluster, updates) = start(address, limits);
    let mut has_failed = false;
    loop {
        match updates.recv_timeout(PATIENCE).unwrap() {
            Update::Failed {
                kind: Kind::Service,
                received,
                ..
            } => {
                assert!(received.is_some(), "the server answered the watch");
                has_failed = true;
            }
            // On a busy machine more than one watch is not answered in time before.
            Update::Recovered(Kind::Service) => break,
            _ => {}
        }
    }
    assert!(has_failed, "a watch that hangs was not reported");
    // The connection of a watch that hangs has no further request: each one was the last of its connection.
    let is_watch = |request: &String| {
        request.starts_with("GET /api/v1/services?watch=1") && !request.contains("sendInitialEvents")
    };
    let watches = requests.iter().filter(is_watch);
    assert_eq!(watches.take(2).count(), 2);
}

#[test]
fn a_watch_without_an_event_and_a_bookmark_begins_again() {
    let (address, requests) = server(hang);
    let limits = Limits {
        watch_without_pings: Duration::from_hours(1),
        silence: Duration::from_millis(5),
        ..Limits::default()
    };
    let (_cluster, updates) = start(address, limits);
    let is_watch = |request: &String| {
        request.starts_with("GET /api/v1/services?watch=1") && request.contains("resourceVersion=1&")
    };
    let next = || requests.recv_timeout(PATIENCE).unwrap();
    let watches = std::iter::repeat_with(next).filter(is_watch);
    assert_eq!(watches.take(3).count(), 3);
    // Nothing failed: the server may send none.
    let is_failed = |update: &Update| matches!(update, Update::Failed { .. });
    assert!(!updates.try_iter().any(|update| is_failed(&update)));
}

#[test]
fn a_request_is_not_repeated_before_the_time_that_the_server_names() {
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let seen = Arc::clone(&times);
    let (address, _requests) = server(move |request| {
        if !request.starts_with("GET /api/v1/services?limit=") {
            return hang(request);
        }
        let mut times = seen.lock().unwrap();
        times.push(Instant::now());
        if times.len() < 3 {
            Reply::Busy(1)
        } else {
            hang(request)
        }
    });
    let (sender, updates) = mpsc::channel();
    let _cluster = Cluster::start(&options(address), &Traffic::new().unwrap(), move |update| {
        let _ = sender.send(update);
    });
    let synced = Change::synced(Kind::Service);
    let mut updates = std::iter::repeat_with(|| updates.recv_timeout(PATIENCE).unwrap());
    assert!(updates.any(|update| matches!(update, Update::Changes(changes) if changes.contains(&synced))));
    // At most 0.8 s would pass without the header before the second one.
    let times = times.lock().unwrap();
    let delays: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        delays.iter().all(|delay| *delay >= Duration::from_secs(1)),
        "{delays:?}"
    );
}

#[test]
fn a_server_without_pings_that_does_not_answer_a_watch_is_stale_although_lists_may_take_long() {
    let (address, _requests) = server(|request| match hang(request) {
        Reply::Begin => Reply::Nothing,
        other => other,
    });
    let limits = Limits {
        answer: Duration::from_hours(1),
        watch_without_pings: Duration::from_millis(5),
        margin: Duration::from_millis(5),
        ..Limits::default()
    };
    let (_cluster, updates) = start(address, limits);
    let is_failed = |update: &Update| {
        matches!(
            update,
            Update::Failed {
                kind: Kind::Service,
                received: Some(_),
                ..
            }
        )
    };
    let updates = std::iter::repeat_with(|| updates.recv_timeout(PATIENCE).unwrap());
    assert!(updates.into_iter().any(|update| is_failed(&update)));
}

#[test]
fn requests_pass_through_the_proxy_of_the_kubeconfig_file_without_compression_where_it_is_disabled() {
    // A tunnel through the proxy, which is also the server.
    let (address, requests) = server(|request| {
        if request.starts_with("CONNECT ") {
            Reply::Status(200)
        } else {
            hang(request)
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {
            "server": "http://api.example.org:6443", "disable-compression": true,
            "proxy-url": format!("http://user:secret@{address}")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
    });
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let mut options = options(address);
    options.access = Access {
        kubeconfig: Some(path),
        master: None,
    };
    let _cluster = Cluster::start(&options, &Traffic::new().unwrap(), |_| {});
    let connect = requests.recv_timeout(PATIENCE).unwrap();
    assert!(
        connect.starts_with("CONNECT api.example.org:6443 HTTP/1.1\r\n"),
        "{connect}"
    );
    assert!(
        connect.to_lowercase().contains("\r\nproxy-authorization: basic "),
        "{connect}"
    );
    let is_list = |request: &String| request.starts_with("GET /api/v1/services?limit=");
    let list = std::iter::repeat_with(|| requests.recv_timeout(PATIENCE).unwrap()).find(is_list);
    let list = list.unwrap().to_lowercase();
    assert!(
        list.contains("\r\nhost: api.example.org:6443") && !list.contains("accept-encoding"),
        "{list}"
    );
}

#[test]
fn a_server_without_tls_and_without_a_port_is_reached_at_port_80_through_a_proxy() {
    let (address, requests) = server(|request| {
        if request.starts_with("CONNECT ") {
            Reply::Status(200)
        } else {
            hang(request)
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {
            "server": "http://api.example.org", "proxy-url": format!("http://{address}")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
    });
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let mut options = options(address);
    options.access = Access {
        kubeconfig: Some(path),
        master: None,
    };
    let _cluster = Cluster::start(&options, &Traffic::new().unwrap(), |_| {});
    let connect = requests.recv_timeout(PATIENCE).unwrap();
    assert!(
        connect.starts_with("CONNECT api.example.org:80 HTTP/1.1\r\n"),
        "{connect}"
    );
}
