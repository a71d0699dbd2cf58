//! Connections of an administrator to the API server that stay open, so that a request takes no more than the server needs.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use kernlink_kernel_tests::{programs, wait};

use crate::requests::ADMIN;

/// Sends requests through `openssl s_client`.
pub(crate) struct AdminConnection {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl AdminConnection {
    /// Connects in the namespace of the calling thread.
    pub(crate) fn open() -> Self {
        let mut child = programs::from_variable("KERNLINK_OPENSSL")
            .args(["s_client", "-quiet", "-connect", "127.0.0.1:6443"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// Sends a request. Returns when the answer was received; panics if it is not a success.
    pub(crate) fn send(&mut self, method: &str, path: &str, content_type: &str, body: &str) {
        let head = self.request(method, path, content_type, body);
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse().unwrap())
        });
        let mut answer = vec![0; length.unwrap_or_else(|| panic!("expected Content-Length: {head}"))];
        self.output.read_exact(&mut answer).unwrap();
    }

    /// Sends a request, and returns the head of the answer.
    fn request(&mut self, method: &str, path: &str, content_type: &str, body: &str) -> String {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:6443\r\nAuthorization: Bearer {ADMIN}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.input.write_all(request.as_bytes()).unwrap();
        self.input.flush().unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(
                self.output.read_line(&mut head).unwrap() > 0,
                "the connection ended: {head}"
            );
        }
        assert!(head.starts_with("HTTP/1.1 20"), "{head}");
        head
    }

    /// Reads the chunks of an event, which ends with a line feed.
    fn read_event(&mut self) -> io::Result<String> {
        let mut event = Vec::new();
        while !event.ends_with(b"\n") {
            let mut length = String::new();
            self.output.read_line(&mut length)?;
            let length = usize::from_str_radix(length.trim(), 16).map_err(io::Error::other)?;
            // With the end of the line that follows.
            let mut chunk = vec![0; length + 2];
            self.output.read_exact(&mut chunk)?;
            event.extend_from_slice(&chunk[..length]);
        }
        String::from_utf8(event).map_err(io::Error::other)
    }
}

impl Drop for AdminConnection {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A watch of a collection, which receives all events after a version.
pub(crate) struct Watch(Arc<Mutex<Vec<(Instant, String)>>>);

impl Watch {
    /// Connects in the namespace of the calling thread.
    pub(crate) fn start(collection: &str, version: &str) -> Self {
        let mut connection = AdminConnection::open();
        let path = format!("{collection}?watch=true&resourceVersion={version}");
        connection.request("GET", &path, "application/json", "");
        let events = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::downgrade(&events);
        thread::spawn(move || {
            while let Ok(event) = connection.read_event() {
                let Some(events) = received.upgrade() else {
                    return;
                };
                events.lock().unwrap().push((Instant::now(), event));
            }
        });
        Self(events)
    }

    /// When the first event with this text was received. It and earlier ones are forgotten.
    pub(crate) fn wait_for(&self, text: &str) -> Instant {
        wait::until(|| {
            let mut events = self.0.lock().unwrap();
            let found = events.iter().position(|(_, event)| event.contains(text));
            let found = found.ok_or_else(|| format!("no event with {text}"))?;
            Ok::<_, String>(events.drain(..=found).next_back().unwrap().0)
        })
    }
}
