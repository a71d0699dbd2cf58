//! Requests to the API server.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::http::request;
use hyper::{HeaderMap, Request, Response, Version};
use hyper_util::client::legacy;
use jiff::{SignedDuration, Timestamp};
use kernlink_base::Backoff as Delays;
use kernlink_kubernetes::watch::Status;
use kernlink_services::Kind;
use kube::Client;
use kube::client::Body;

use super::access::{Access, Credentials, Login, describe, describe_chain};
use super::backoff::Backoff;
use super::certificates::{advice, describe_identity};
use super::encoding;
use super::files::Files;
use super::format::{self, Format};
use super::traffic::Traffic;
use super::transport::{self, Limits, Received};

/// The time before the end of credentials at which others are obtained.
const EXPIRY_MARGIN: SignedDuration = SignedDuration::from_secs(10);
/// The longest answer that is not a watch, in bytes, also after decompression: 512 MiB.
const MAX_BODY: usize = 512 << 20;

const AGENT: &str = concat!("kernlink-agent/", env!("CARGO_PKG_VERSION"));

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no answer: credentials cannot be read, the server cannot be reached, the connection broke.
    NoAnswer(String),
    /// The server refused the request.
    Status(Status),
    /// The answer is not what an API server sends.
    Invalid(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoAnswer(text) | Failure::Invalid(text) => f.write_str(text),
            Failure::Status(status) => status.fmt(f),
        }
    }
}

/// Sends requests. The client is built when it is needed, and again when its files change, such as in a rotation of certificates, when its
/// credentials end, and after a request without an answer. What changed and cannot be used does not replace a client that works; it is tried
/// again after a delay that grows, because a credential plugin may need long to fail.
pub(super) struct Connection {
    access: Access,
    /// Locked while a client is built, so that a credential plugin runs once.
    building: tokio::sync::Mutex<()>,
    slot: Mutex<Slot>,
    traffic: Traffic,
    limits: Limits,
    /// Whether the last answer was one of HTTP/2.
    has_pings: AtomicBool,
}

/// An answer that was read.
pub(super) struct Answer {
    /// When its connection received something.
    pub(super) connection: Option<Received>,
    pub(super) format: Format,
    pub(super) body: Vec<u8>,
}

#[derive(Default)]
struct Slot {
    client: Option<Numbered>,
    /// What a credential plugin gave, with the files that name it. It outlives a client whose requests got no answer.
    login: Option<(Login, Arc<Files>)>,
    /// The number of clients that were built, or could not be built.
    attempts: u64,
    /// Why the last one could not be built.
    problem: Option<String>,
    /// The next attempt to replace a client that works, after one failed.
    retry: Option<Retry>,
}

/// When another client is built from files that could not be used.
struct Retry {
    /// The versions that could not be used. With others, it is tried at once.
    files: Files,
    backoff: Backoff,
    due: Instant,
}

impl Retry {
    /// After the first failure with these files.
    fn new(files: Files, now: Instant) -> Self {
        let mut backoff = Backoff::new(Delays::default());
        let due = now + backoff.next();
        Self { files, backoff, due }
    }

    /// After one more failure, with these files.
    fn after(previous: Option<Self>, files: Files, now: Instant) -> Self {
        match previous.filter(|previous| previous.files == files) {
            Some(mut retry) => {
                retry.due = now + retry.backoff.next();
                retry
            }
            None => Self::new(files, now),
        }
    }
}

#[derive(Clone)]
struct Numbered {
    client: Client,
    number: u64,
    /// The host and port of the server.
    host: Arc<str>,
    expiry: Option<Timestamp>,
    files: Arc<Files>,
    accepts_compression: bool,
}

impl Numbered {
    /// Whether its credentials do not end soon.
    fn is_valid(&self) -> bool {
        is_valid(self.expiry)
    }
}

/// Whether credentials do not end soon.
fn is_valid(expiry: Option<Timestamp>) -> bool {
    expiry.is_none_or(|expiry| expiry.duration_since(Timestamp::now()) > EXPIRY_MARGIN)
}

impl Connection {
    pub(super) fn new(access: Access, traffic: Traffic, limits: Limits) -> Self {
        Self {
            access,
            building: tokio::sync::Mutex::default(),
            slot: Mutex::default(),
            traffic,
            limits,
            has_pings: AtomicBool::new(false),
        }
    }

    /// Sends a GET request for a path with a query, such as of a watch, whose headers have to arrive within `limit`. The answer is not
    /// compressed: a proxy that compresses it might keep events back.
    pub(super) async fn get(&self, path: &str, limit: Duration) -> Result<Response<Body>, Failure> {
        self.send(Request::get(path), Body::empty(), limit).await
    }

    /// Sends a GET request as [`get`](Self::get), of which the answer is in JSON.
    pub(super) async fn get_json(&self, path: &str, limit: Duration) -> Result<Response<Body>, Failure> {
        let request = Request::get(path).header(ACCEPT, format::JSON);
        self.send(request, Body::empty(), limit).await
    }

    /// Sends a GET request, and reads the answer, which is in JSON and may be compressed.
    pub(super) async fn read_json(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let mut request = Request::get(path).header(ACCEPT, format::JSON);
        if self.client().await?.accepts_compression {
            request = request.header(ACCEPT_ENCODING, encoding::ACCEPTED);
        }
        let answer = self.send(request, Body::empty(), self.limits.answer).await?;
        Ok(self.read_body(answer).await?.1)
    }

    /// Sends a POST request with an object.
    pub(super) async fn post(&self, path: &str, object: String) -> Result<(), Failure> {
        let request = Request::post(path).header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = self
            .send(request, Body::from(object.into_bytes()), self.limits.answer)
            .await?;
        self.read_body(answer).await.map(drop)
    }

    async fn send(
        &self,
        request: request::Builder,
        body: Body,
        limit: Duration,
    ) -> Result<Response<Body>, Failure> {
        let Numbered {
            client, number, host, ..
        } = self.client().await?;
        let is_any = request
            .headers_ref()
            .is_none_or(|headers| !headers.contains_key(ACCEPT));
        let request = if is_any {
            request.header(ACCEPT, format::ACCEPTED)
        } else {
            request
        };
        let request = request
            .header(USER_AGENT, HeaderValue::from_static(AGENT))
            .body(body)
            .map_err(|error| Failure::Invalid(describe_chain(&error)))?;
        let method = request.method().clone();
        let start = Instant::now();
        let answer = tokio::time::timeout(limit, client.send(request)).await;
        let code = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok());
        let code = code.map(|answer| answer.status().as_u16());
        self.traffic
            .on_request(method.as_str(), &host, code, start.elapsed());
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                if is_refused(&error) {
                    self.log_out(number);
                } else {
                    self.discard(number);
                }
                return Err(Failure::NoAnswer(describe_request(&host, &error)));
            }
            Err(_) => {
                self.discard(number);
                return Err(Failure::NoAnswer(format!("{host} does not answer")));
            }
        };
        self.has_pings.store(has_pings(&answer), Ordering::Relaxed);
        let code = answer.status();
        if code.is_success() {
            return Ok(answer);
        }
        if code == hyper::StatusCode::UNAUTHORIZED {
            self.log_out(number);
        }
        let format = Format::of(answer.headers());
        let retry_after = retry_after(answer.headers());
        let (_, body) = self.read_body(answer).await?;
        let status = format.read_status(code.as_u16(), body);
        Err(Failure::Status(Status {
            retry_after: retry_after.or(status.retry_after),
            ..status
        }))
    }

    /// Sends a GET request for objects of a kind, and reads the answer, which may be compressed.
    pub(super) async fn read(&self, kind: Kind, path: &str) -> Result<Answer, Failure> {
        let mut request = Request::get(path);
        if self.client().await?.accepts_compression {
            request = request.header(ACCEPT_ENCODING, encoding::ACCEPTED);
        }
        let answer = self.send(request, Body::empty(), self.limits.answer).await?;
        let connection = answer.extensions().get::<Received>().cloned();
        let format = Format::of(answer.headers());
        let (received, body) = self.read_body(answer).await?;
        self.on_received(kind, received);
        Ok(Answer {
            connection,
            format,
            body,
        })
    }

    /// Reads an answer. Returns the number of bytes that were received, and the content.
    async fn read_body(&self, answer: Response<Body>) -> Result<(usize, Vec<u8>), Failure> {
        let (head, mut body) = answer.into_parts();
        let mut all = Vec::new();
        while let Some(part) = next_part(&mut body, self.limits.answer).await? {
            if all.len() + part.len() > MAX_BODY {
                return Err(Failure::Invalid(format!(
                    "an answer has more than {MAX_BODY} bytes"
                )));
            }
            all.extend_from_slice(&part);
        }
        let received = all.len();
        let content = encoding::decode(head.headers.get(CONTENT_ENCODING), all, MAX_BODY);
        Ok((received, content.map_err(Failure::Invalid)?))
    }

    /// Counts bytes of an answer to [`get`](Self::get).
    pub(super) fn on_received(&self, kind: Kind, bytes: usize) {
        self.traffic.on_received(kind, bytes);
    }

    async fn client(&self) -> Result<Numbered, Failure> {
        let attempts = self.slot().attempts;
        let _building = self.building.lock().await;
        let previous = self.slot().client.clone().filter(Numbered::is_valid);
        let changed = match &previous {
            Some(client) => match client.files.changed() {
                Some(changed) => changed,
                None => return Ok(client.clone()),
            },
            None => String::new(),
        };
        let problem = {
            let slot = self.slot();
            // An attempt that began meanwhile, or ended.
            let is_tried = slot.attempts != attempts;
            slot.problem.clone().filter(|_| is_tried)
        };
        if let Some(problem) = problem {
            return previous.ok_or(Failure::NoAnswer(problem));
        }
        // Before they are read: what changes meanwhile is tried at once.
        let files = previous.as_ref().map(|previous| previous.files.now());
        if let (Some(previous), Some(files)) = (&previous, &files) {
            let slot = self.slot();
            let retry = slot.retry.as_ref().filter(|retry| retry.files == *files);
            if retry.is_some_and(|retry| Instant::now() < retry.due) {
                return Ok(previous.clone());
            }
        }
        let result = self.build(previous.is_some()).await;
        let mut slot = self.slot();
        slot.attempts += 1;
        let number = slot.attempts;
        match (result, previous) {
            (Ok(client), previous) => {
                if previous.is_some() {
                    tracing::info!(
                        "what is used for the API server was read again, because files changed: {changed}"
                    );
                }
                let client = Numbered { number, ..client };
                slot.client = Some(client.clone());
                slot.problem = None;
                slot.retry = None;
                Ok(client)
            }
            (Err(problem), Some(previous)) => {
                if slot.problem.as_ref() != Some(&problem) {
                    tracing::warn!(
                        "files changed and cannot be used, what was read before stays in use: {problem}"
                    );
                }
                slot.problem = Some(problem);
                let files = files.unwrap_or_default();
                slot.retry = Some(Retry::after(slot.retry.take(), files, Instant::now()));
                Ok(previous)
            }
            (Err(problem), None) => {
                slot.client = None;
                slot.problem = Some(problem.clone());
                slot.retry = None;
                Err(Failure::NoAnswer(problem))
            }
        }
    }

    /// A client without a number. `has_former` is whether there is one that works.
    async fn build(&self, has_former: bool) -> Result<Numbered, String> {
        let Credentials {
            config,
            proxy,
            expiry,
            files,
            has_plugin,
        } = self.access.read(has_former, self.login()).await?;
        let files = Arc::new(files);
        let host = config.cluster_url.authority();
        let host = Arc::from(host.map_or("", |authority| authority.as_str()));
        let user = config.auth_info.clone();
        let accepts_compression = !config.disable_compression;
        let client = transport::build(config, proxy.as_ref(), &self.limits).map_err(|error| {
            let problem = describe_identity(&error, &user).unwrap_or_else(|| describe(&error));
            format!("{}: {problem}", self.access.place())
        })?;
        let login = has_plugin.then(|| (Login { user, expiry }, Arc::clone(&files)));
        self.slot().login = login;
        Ok(Numbered {
            client,
            number: 0,
            host,
            expiry,
            files,
            accepts_compression,
        })
    }

    /// What requests are sent to, and with which credentials.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// When a server is taken for one that hangs.
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether the server supports pings, as far as it is known.
    pub(super) fn has_pings(&self) -> bool {
        self.has_pings.load(Ordering::Relaxed)
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a credential plugin gave, if it is still valid and no file has changed.
    fn login(&self) -> Option<Login> {
        let (login, files) = self.slot().login.clone()?;
        (is_valid(login.expiry) && files.changed().is_none()).then_some(login)
    }

    /// The credentials were refused: a credential plugin runs again before the next request, unless that happened already.
    fn log_out(&self, number: u64) {
        let mut slot = self.slot();
        if slot.client.take_if(|client| client.number == number).is_some() {
            slot.login = None;
        }
    }

    /// Builds another client for the next request, unless that happened already.
    fn discard(&self, number: u64) {
        self.slot().client.take_if(|client| client.number == number);
    }
}

/// Whether certificates are the reason, such as one of the client that is refused.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(cause) if advice(&**cause).is_some())
}

/// Why a request to a host has no answer.
fn describe_request(host: &str, error: &kube::Error) -> String {
    let kube::Error::Service(cause) = error else {
        return format!("{host}: {}", describe(error));
    };
    let connecting = cause
        .downcast_ref::<legacy::Error>()
        .filter(|error| error.is_connect());
    let text = match connecting.and_then(Error::source) {
        Some(source) => format!("cannot connect to {host}: {}", describe_chain(source)),
        None => format!("{host}: {}", describe_chain(&**cause)),
    };
    match advice(&**cause) {
        Some(advice) => format!("{text}; {advice}"),
        None => text,
    }
}

/// The time after which the server wants the request to be repeated. An API server sends a number of seconds, and no date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero())
}

/// Whether the server of an answer is asked by pings whether it is there.
pub(super) fn has_pings(answer: &Response<Body>) -> bool {
    answer.version() == Version::HTTP_2
}

/// The next part of a body. `None` at its end.
pub(super) async fn next_part(body: &mut Body, limit: Duration) -> Result<Option<Bytes>, Failure> {
    loop {
        match tokio::time::timeout(limit, body.frame()).await {
            Err(_) => return Err(timeout()),
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => {
                return Err(Failure::NoAnswer(format!(
                    "the connection broke: {}",
                    describe_body(&error)
                )));
            }
            Ok(Some(Ok(frame))) => {
                // Another kind of frame has trailers.
                if let Ok(part) = frame.into_data() {
                    return Ok(Some(part));
                }
            }
        }
    }
}

fn describe_body(error: &kube::Error) -> String {
    describe(error)
}

fn timeout() -> Failure {
    Failure::NoAnswer("the API server does not answer".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    /// A connection whose credential plugin counts its runs in the file `runs`, prints the file `answer`, and fails without it.
    fn connection() -> (TempDir, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let script = format!(
            "cd {} && echo >> runs && read -r line < answer && echo \"$line\"",
            folder.path().display()
        );
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "http://192.0.2.1:6443"}}],
            "users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", script]}}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(&path, kubeconfig.to_string()).unwrap();
        let access = Access {
            kubeconfig: Some(path),
            master: None,
        };
        (
            folder,
            Connection::new(access, Traffic::new().unwrap(), Limits::default()),
        )
    }

    /// The answer of the plugin, valid for this time.
    fn answer(folder: &TempDir, valid: SignedDuration) {
        let expiry = Timestamp::now() + valid;
        let answer = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {"token": "secret", "expirationTimestamp": expiry.to_string()},
        });
        fs::write(folder.path().join("answer"), format!("{answer}\n")).unwrap();
    }

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    }

    fn runs(folder: &TempDir) -> usize {
        let runs = fs::read_to_string(folder.path().join("runs"));
        runs.map_or(0, |runs| runs.lines().count())
    }

    #[test]
    fn a_credential_plugin_runs_when_its_credentials_end_or_are_refused() {
        runtime().block_on(async {
            let (folder, connection) = connection();
            answer(&folder, SignedDuration::from_hours(1));
            let first = connection.client().await.unwrap();
            let second = connection.client().await.unwrap();
            assert_eq!((second.number, runs(&folder)), (first.number, 1));
            assert_eq!(&*first.host, "192.0.2.1:6443");
            // The server is away.
            connection.discard(first.number);
            let second = connection.client().await.unwrap();
            assert_eq!((second.number > first.number, runs(&folder)), (true, 1));
            connection.log_out(first.number);
            assert!(connection.slot().login.is_some(), "that was another client");
            connection.log_out(second.number);
            answer(&folder, SignedDuration::from_secs(1));
            connection.client().await.unwrap();
            assert_eq!(runs(&folder), 2);
            connection.client().await.unwrap();
            assert_eq!(runs(&folder), 3, "the credentials end within the margin");
            connection.discard(first.number);
            assert!(connection.slot().client.is_some(), "that was another client");
        });
    }

    #[test]
    fn requests_that_wait_for_a_credential_plugin_share_its_failure() {
        runtime().block_on(async {
            let (folder, connection) = connection();
            let client = || connection.client();
            let (first, second, third) = tokio::join!(client(), client(), client());
            let failure = first.err().unwrap();
            assert_eq!(second.err().unwrap(), failure);
            assert_eq!(third.err().unwrap(), failure);
            assert_eq!(runs(&folder), 1);
            answer(&folder, SignedDuration::from_hours(1));
            assert!(client().await.is_ok());
            assert_eq!(runs(&folder), 2);
        });
    }

    #[test]
    fn files_that_cannot_be_used_are_tried_again_after_a_delay_or_when_they_change() {
        runtime().block_on(async {
            let (folder, connection) = connection();
            answer(&folder, SignedDuration::from_hours(1));
            let number = async || connection.client().await.unwrap().number;
            let set_due = |due: Instant| connection.slot().retry.as_mut().unwrap().due = due;
            let later = Instant::now() + Duration::from_hours(1);
            let change_kubeconfig = || {
                let path = folder.path().join("kubeconfig");
                let text = fs::read_to_string(&path).unwrap();
                fs::write(&path, text + "\n").unwrap();
            };
            assert_eq!((number().await, runs(&folder)), (1, 1));
            // The plugin of the file that changed fails.
            fs::remove_file(folder.path().join("answer")).unwrap();
            change_kubeconfig();
            assert_eq!((number().await, runs(&folder)), (1, 2));
            set_due(later);
            for _ in 0..5 {
                assert_eq!((number().await, runs(&folder)), (1, 2));
            }
            set_due(Instant::now());
            assert_eq!((number().await, runs(&folder)), (1, 3));
            let failures = || {
                connection
                    .slot()
                    .retry
                    .as_ref()
                    .map(|retry| retry.backoff.failures())
            };
            assert_eq!(failures(), Some(2));
            // The delay is not that of other files.
            set_due(later);
            change_kubeconfig();
            assert_eq!((number().await, runs(&folder)), (1, 4));
            assert_eq!(failures(), Some(1));
            set_due(later);
            assert_eq!((number().await, runs(&folder)), (1, 4));
            // What does not work any more is not kept.
            connection.discard(1);
            assert!(connection.client().await.is_err());
            answer(&folder, SignedDuration::from_hours(1));
            let next = number().await;
            assert_eq!((next > 1, runs(&folder)), (true, 6));
            assert!(connection.slot().retry.is_none());
        });
    }

    #[test]
    fn a_file_that_changed_is_used_unless_it_is_invalid() {
        runtime().block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let [path, token] = ["kubeconfig", "token"].map(|name| folder.path().join(name));
            let kubeconfig = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://192.0.2.1:6443"}}],
                "users": [{"name": "u", "user": {"tokenFile": "token"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            });
            fs::write(&path, kubeconfig.to_string()).unwrap();
            fs::write(&token, "a").unwrap();
            let access = Access {
                kubeconfig: Some(path.clone()),
                master: None,
            };
            let connection = Connection::new(access, Traffic::new().unwrap(), Limits::default());
            let number = async || connection.client().await.unwrap().number;
            assert_eq!((number().await, number().await), (1, 1));
            fs::write(&token, "other").unwrap();
            assert_eq!((number().await, number().await), (2, 2));
            // Invalid, incomplete, and absent.
            fs::write(&token, "").unwrap();
            assert_eq!((number().await, number().await), (2, 2));
            fs::remove_file(&path).unwrap();
            assert_eq!(number().await, 2);
            // What does not work any more is not kept.
            connection.discard(2);
            assert!(connection.client().await.is_err());
            fs::write(&path, kubeconfig.to_string()).unwrap();
            fs::write(&token, "third").unwrap();
            assert!(number().await > 2);
        });
    }
}
