//! Asks the running agent over its Unix socket.

use std::os::unix::net;
use std::path::PathBuf;
use std::time::Duration;
use std::{io, thread};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use kernlink_base::ErrorChain;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::query::documents::Problem;
use crate::query::socket;

/// The longest time until an answer was read.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The largest answer, in bytes.
const MAX_ANSWER: usize = 256 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Failed(pub(super) String);

/// Reads the body of an answer.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failed> {
    serde_json::from_slice(body).map_err(|error| {
        Failed(format!(
            "the answer of the agent is not valid: {error}; is it of another version?"
        ))
    })
}

/// The socket of the agent.
pub(super) struct Client {
    path: PathBuf,
}

impl Client {
    /// The agent at a socket; default: that of this network namespace.
    pub(super) fn new(path: Option<PathBuf>) -> Result<Self, Failed> {
        let path = match path {
            Some(path) => path,
            None => socket::default_path().map_err(Failed)?,
        };
        Ok(Self { path })
    }

    /// The body of an answer.
    pub(super) fn send(&self, method: &Method, path: &str) -> Result<Vec<u8>, Failed> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failed(format!("cannot start: {error}")))?;
        runtime.block_on(async {
            match tokio::time::timeout(TIMEOUT, self.ask(method, path)).await {
                Ok(answer) => answer,
                Err(_) => Err(self.failed(&format!("no answer within {} seconds", TIMEOUT.as_secs()))),
            }
        })
    }

    async fn ask(&self, method: &Method, path: &str) -> Result<Vec<u8>, Failed> {
        let stream = self.connect().await.map_err(|error| self.not_connected(&error))?;
        let failed = |error: hyper::Error| self.failed(&ErrorChain(&error).to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "agent")
            .body(Empty::<Bytes>::new())
            .map_err(|error| self.failed(&error.to_string()))?;
        // It ends when the sender is dropped.
        tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(failed)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| self.failed(&error.to_string()))?.to_bytes();
        if status == StatusCode::OK {
            return Ok(body.into());
        }
        let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
        Err(if problem.error.is_empty() {
            self.failed(&format!("the answer has the status {status}"))
        } else {
            Failed(problem.error)
        })
    }

    /// Waits for a place in the queue of the socket, which a connection that does not block would not. The thread ends with this process at the
    /// latest.
    async fn connect(&self) -> io::Result<UnixStream> {
        let (sender, connected) = oneshot::channel();
        let path = self.path.clone();
        thread::Builder::new().spawn(move || sender.send(net::UnixStream::connect(path)))?;
        let stream = connected.await.map_err(io::Error::other)??;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }

    fn failed(&self, why: &str) -> Failed {
        Failed(format!(
            "the agent at {} does not answer: {why}",
            self.path.display()
        ))
    }

    fn not_connected(&self, error: &io::Error) -> Failed {
        let path = self.path.display();
        Failed(match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
                "no agent listens on {path}: {error}; an agent of another network namespace, or one with --socket, has another socket \
                 (--socket PATH)"
            ),
            io::ErrorKind::PermissionDenied => {
                format!("cannot connect to {path}: {error}; only root and the members of --socket-group may")
            }
            _ => format!("cannot connect to {path}: {error}"),
        })
    }
}
