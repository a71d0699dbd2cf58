//! Clients that hold connections to the socket for questions. They are root, or members of the group of the socket: a program with a fault.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{programs, tools, wait};

use crate::support::{Agent, Manifests, service, text};

/// The clients at once; the agent has places for 16.
const CLIENTS: usize = 100;

/// What a client does with its connection.
#[derive(Clone, Copy)]
enum Client {
    /// Sends nothing.
    Silent,
    /// Sends a request that does not end.
    Half,
    /// Sends a line that is longer than the agent reads.
    Large,
    /// Closes the connection before the answer.
    Gone,
}

/// Connects again and again until the end.
fn hold(path: &Path, client: Client, is_over: &AtomicBool, closed: &AtomicUsize) {
    while !is_over.load(Ordering::Relaxed) {
        // The agent may have ended.
        let Ok(mut stream) = UnixStream::connect(path) else {
            continue;
        };
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        stream
            .set_write_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        // What is not read cannot be sent.
        let _ = match client {
            Client::Silent => Ok(()),
            Client::Half => stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: age"),
            Client::Large => stream.write_all(format!("GET /{}", "x".repeat(1 << 20)).as_bytes()),
            Client::Gone => {
                let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: agent\r\n\r\n");
                drop(stream);
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let mut answer = [0; 1024];
        while !is_over.load(Ordering::Relaxed) {
            match stream.read(&mut answer) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Ok(read) if read > 0 => {}
                _ => {
                    closed.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        }
    }
}

/// Set when it is dropped, so that a failed test ends too.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn clients_that_hold_the_socket_delay_neither_syncs_nor_other_clients_for_ever() {
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    let socket = manifests.0.join("agent.sock");
    let path = socket.to_str().unwrap();
    let arguments = ["--proxy-mode", "nftables", "--socket", path];
    NetNs::new().run(|| {
        let ask = |question: &[&str]| {
            let output = programs::agent().args(question).args(["--socket", path]).output();
            let output = output.unwrap();
            match output.status.code() {
                Some(0) => Ok(text(&output)),
                _ => Err(text(&output)),
            }
        };
        let agent = Agent::start(&manifests.0, &arguments);
        agent.wait_for(" synced done=", 1);
        wait::until(|| ask(&["status"]));
        let (is_over, closed) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            let over = Over(&is_over);
            let kinds = [Client::Silent, Client::Half, Client::Large, Client::Gone];
            for client in kinds.into_iter().cycle().take(CLIENTS) {
                let (is_over, closed, socket) = (&is_over, &closed, &socket);
                scope.spawn(move || hold(socket, client, is_over, closed));
            }
            // All places were taken, and given back.
            wait::until(|| match closed.load(Ordering::Relaxed) {
                closed if closed > CLIENTS => Ok(()),
                closed => Err(format!("{closed} connections were closed")),
            });
            manifests.replace("b.yaml", &service("b", "10.96.0.2", &[0]));
            wait::until(
                || match tools::run("nft", &["list", "map", "ip", "kernlink", "frontends"]) {
                    Ok(listing) if listing.contains("10.96.0.2") => Ok(()),
                    other => Err(format!("{other:?}")),
                },
            );
            wait::until(|| ask(&["status"]));
            drop(over);
        });
        let services = wait::until(|| ask(&["services"]));
        assert!(services.contains("10.96.0.2:80/TCP"), "{services}");
        let log = agent.log();
        assert!(!log.contains("panicked"), "{log}");
    });
}
