//! The source, with servers that do not work.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use kernlink_services::Kind;

use super::transport::Limits;
use super::{Access, Cluster, Options, Traffic, Update};

/// The longest time that a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(address: SocketAddr) -> Options {
    Options {
        access: Access {
            kubeconfig: None,
            master: Some(format!("http://{address}")),
        },
        node_name: "node-a".into(),
        service_proxy_name: None,
        has_all_nodes: false,
        needs_address: false,
        needs_pod_cidr: false,
    }
}

/// A server of empty lists whose watches are accepted, and then hang with an open connection. Passes on the path of each watch.
fn hanging_server() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, watches) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            thread::spawn(move || answer(stream, &sender));
        }
    });
    (address, watches)
}

/// Returns when the client closed the connection.
fn answer(mut stream: TcpStream, watches: &mpsc::Sender<String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let path = head.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
        if head.contains("sendInitialEvents") {
            stream.write_all(b"HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: 0\r\n\r\n")?;
        } else if head.contains("watch=1") {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            let _ = watches.send(path);
        } else {
            let kind = match path.rsplit('/').next() {
                Some("services") => "ServiceList",
                Some("nodes") => "NodeList",
                _ => "EndpointSliceList",
            };
            let list =
                format!(r#"{{"kind": "{kind}", "metadata": {{"resourceVersion": "1"}}, "items": []}}"#);
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{list}",
                list.len()
            )?;
        }
    }
}

#[test]
fn a_watch_without_pings_that_does_not_end_is_stale_and_continues_on_another_connection() {
    let (address, watches) = hanging_server();
    let limits = Limits {
        watch_without_pings: Duration::from_millis(5),
        margin: Duration::from_millis(5),
        ..Limits::default()
    };
    let (sender, updates) = mpsc::channel();
    let _cluster = Cluster::start_with(
        &options(address),
        &Traffic::new().unwrap(),
        limits,
        move |update| {
            let _ = sender.send(update);
        },
    );
    let mut steps = Vec::new();
    while steps.len() < 2 {
        match updates.recv_timeout(PATIENCE).unwrap() {
            Update::Failed {
                kind: Kind::Service,
                received,
                ..
            } => {
                assert!(received.is_some(), "the server answered the watch");
                steps.push("failed");
            }
            Update::Recovered(Kind::Service) => steps.push("recovered"),
            _ => {}
        }
    }
    assert_eq!(steps, ["failed", "recovered"]);
    // The connection of a watch that hangs has no further request: each one was the last of its connection.
    let of_services = watches.iter().filter(|path| path == "/api/v1/services");
    assert_eq!(of_services.take(2).count(), 2);
}
