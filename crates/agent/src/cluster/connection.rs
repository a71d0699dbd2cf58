//! Requests to the API server.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::http::request;
use hyper::{Request, Response};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kernlink_kubernetes::watch::{Status, read_status};
use kernlink_services::Kind;
use kube::Client;
use kube::client::{Body, ConfigExt};
use tower::{BoxError, ServiceBuilder};

use super::access::{Access, describe, describe_chain};
use super::traffic::Traffic;

/// The longest time until the headers of an answer, and between two parts of a list.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time without data after which the system checks that the server is there.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The number of such checks, at intervals of `KEEPALIVE`, until the connection is closed.
const KEEPALIVE_RETRIES: u32 = 2;
/// The longest answer that is not a watch, in bytes: 512 MiB.
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

/// Sends requests. The client is built when it is needed, and again after a request without an answer: the files may have changed, such
/// as after a rotation of certificates.
pub(super) struct Connection {
    access: Access,
    client: Mutex<Slot>,
    traffic: Traffic,
}

#[derive(Default)]
struct Slot {
    client: Option<Numbered>,
    /// The number of clients that were built.
    built: u64,
}

#[derive(Clone)]
struct Numbered {
    client: Client,
    number: u64,
    /// The host and port of the server.
    host: Arc<str>,
}

impl Connection {
    pub(super) fn new(access: Access, traffic: Traffic) -> Self {
        Self {
            access,
            client: Mutex::default(),
            traffic,
        }
    }

    /// Sends a GET request for a path with a query.
    pub(super) async fn get(&self, path: &str) -> Result<Response<Body>, Failure> {
        self.send(Request::get(path), Body::empty()).await
    }

    /// Sends a POST request with an object.
    pub(super) async fn post(&self, path: &str, object: String) -> Result<(), Failure> {
        let request = Request::post(path).header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = self.send(request, Body::from(object.into_bytes())).await?;
        read(answer.into_body()).await.map(drop)
    }

    async fn send(&self, request: request::Builder, body: Body) -> Result<Response<Body>, Failure> {
        let Numbered { client, number, host } = self.client().await?;
        let request = request
            .header(ACCEPT, HeaderValue::from_static("application/json"))
            .header(USER_AGENT, HeaderValue::from_static(AGENT))
            .body(body)
            .map_err(|error| Failure::Invalid(describe_chain(&error)))?;
        let method = request.method().clone();
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, client.send(request)).await;
        let code = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok());
        let code = code.map(|answer| answer.status().as_u16());
        self.traffic.on_request(method.as_str(), &host, code);
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                self.discard(number);
                return Err(Failure::NoAnswer(describe(&error)));
            }
            Err(_) => {
                self.discard(number);
                return Err(timeout());
            }
        };
        let code = answer.status();
        if code.is_success() {
            return Ok(answer);
        }
        if code == hyper::StatusCode::UNAUTHORIZED {
            self.discard(number);
        }
        let body = read(answer.into_body()).await?;
        Err(Failure::Status(read_status(code.as_u16(), &body)))
    }

    /// Sends a GET request for objects of a kind, and reads the answer.
    pub(super) async fn read(&self, kind: Kind, path: &str) -> Result<Bytes, Failure> {
        let body = read(self.get(path).await?.into_body()).await?;
        self.on_received(kind, body.len());
        Ok(body)
    }

    /// Counts bytes of an answer to [`get`](Self::get).
    pub(super) fn on_received(&self, kind: Kind, bytes: usize) {
        self.traffic.on_received(kind, bytes);
    }

    async fn client(&self) -> Result<Numbered, Failure> {
        {
            let slot = self.client.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(client) = &slot.client {
                return Ok(client.clone());
            }
        }
        let config = self.access.read().await.map_err(Failure::NoAnswer)?;
        let host = config
            .cluster_url
            .authority()
            .map_or("", |authority| authority.as_str());
        let host = Arc::from(host);
        let client = build(config).map_err(|error| Failure::NoAnswer(describe(&error)))?;
        // Another task may have built one meanwhile; either is as good.
        let mut slot = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        slot.built += 1;
        let number = slot.built;
        let client = Numbered { client, number, host };
        slot.client = Some(client.clone());
        Ok(client)
    }

    /// Builds another client for the next request, unless that happened already.
    fn discard(&self, number: u64) {
        let mut slot = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.built == number {
            slot.client = None;
        }
    }
}

/// A client that notices a server that vanished, and neither logs nor repeats requests by itself.
fn build(config: kube::Config) -> Result<Client, kube::Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    Ok(Client::new(service, config.default_namespace))
}

async fn read(mut body: Body) -> Result<Bytes, Failure> {
    let mut all = Vec::new();
    while let Some(part) = next_part(&mut body, ANSWER_TIMEOUT).await? {
        if all.len() + part.len() > MAX_BODY {
            return Err(Failure::Invalid(format!(
                "an answer has more than {MAX_BODY} bytes"
            )));
        }
        all.extend_from_slice(&part);
    }
    Ok(all.into())
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
