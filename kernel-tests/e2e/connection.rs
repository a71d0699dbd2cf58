//! A connection of an administrator to the API server that stays open, so that a request takes no more than the server needs.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use kernlink_kernel_tests::programs;

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
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse().unwrap())
        });
        let mut answer = vec![0; length.unwrap_or_else(|| panic!("expected Content-Length: {head}"))];
        self.output.read_exact(&mut answer).unwrap();
    }
}

impl Drop for AdminConnection {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
