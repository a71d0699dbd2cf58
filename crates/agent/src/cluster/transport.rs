//! Connections to the API server.
//!
//! HTTP/2 where the server supports it, as every API server does over TLS: all requests share a connection, pings show whether the server is
//! there, and the server can have a client connect anew, maybe to another server (`--goaway-chance`). HTTP/1.1 has no pings.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::Uri;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::Client;
use kube::client::{ConfigExt, RustlsTlsError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceBuilder};

use super::proxy::Way;

/// The longest time to connect to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time without data after which the system checks that the server is there.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The number of such checks, at intervals of `KEEPALIVE`, until the connection is closed.
const KEEPALIVE_RETRIES: u32 = 2;

/// When a server is taken for one that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The longest time until a connection is established, with TLS.
    pub(super) connect: Duration,
    /// The time without data after which a ping is sent, over HTTP/2. As in client-go.
    pub(super) ping: Duration,
    /// The longest time until a ping is answered. As in client-go.
    pub(super) pong: Duration,
    /// The longest time until the headers of an answer, and between two parts of a list.
    pub(super) answer: Duration,
    /// The shortest time of a watch with pings, as in client-go; the longest is twice as long. The server ends it then.
    pub(super) watch: Duration,
    /// The same, without pings: its end shows that the server is there.
    pub(super) watch_without_pings: Duration,
    /// The time that a watch may be late to end.
    pub(super) margin: Duration,
    /// The longest time of a watch without an event and without a bookmark, of which a server sends one a minute. Another watch begins then,
    /// because pings may be answered by a proxy on the way.
    pub(super) silence: Duration,
    /// The longest delay that a server may ask for.
    pub(super) retry_after: Duration,
}

impl Limits {
    /// The time of a watch. The fraction, from 0 to 1, is random, so that the watches of a cluster do not end together.
    pub(super) fn watch_time(&self, has_pings: bool, fraction: f64) -> Duration {
        let shortest = if has_pings {
            self.watch
        } else {
            self.watch_without_pings
        };
        shortest.mul_f64(1.0 + fraction)
    }

    /// The delay before a request is repeated: this one, or the one that the server asked for if that is longer. The fraction, from 0 to 1, is
    /// random, so that the nodes of a cluster do not return together.
    pub(super) fn retry_delay(
        &self,
        delay: Duration,
        requested: Option<Duration>,
        fraction: f64,
    ) -> Duration {
        let requested = requested.unwrap_or_default().min(self.retry_after);
        delay.max(requested.mul_f64(1.0 + fraction / 4.0))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            ping: Duration::from_secs(30),
            pong: Duration::from_secs(15),
            answer: Duration::from_secs(60),
            watch: Duration::from_secs(300),
            watch_without_pings: Duration::from_secs(15),
            margin: Duration::from_secs(15),
            silence: Duration::from_secs(200),
            retry_after: Duration::from_secs(120),
        }
    }
}

/// A client that notices a server that vanished or hangs, and neither logs nor repeats requests by itself.
pub(super) fn build(
    config: kube::Config,
    proxy: Option<&Intercept>,
    limits: &Limits,
) -> Result<Client, kube::Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let builder = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?);
    let mut builder = builder.https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        let name = name.try_into().map_err(RustlsTlsError::InvalidServerName);
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(
            name.map_err(kube::Error::RustlsTls)?,
        ));
    }
    let connector = builder
        .enable_all_versions()
        .wrap_connector(Way::new(proxy, Recording(connector)));
    let limit = limits.connect;
    let connector = ServiceBuilder::new()
        .map_future(move |connecting| Box::pin(within(limit, connecting)))
        .service(connector);
    let mut client = legacy::Client::builder(TokioExecutor::new());
    client
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(limits.ping)
        .http2_keep_alive_timeout(limits.pong)
        .http2_keep_alive_while_idle(true);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client.build(connector));
    Ok(Client::new(service, config.default_namespace))
}

async fn within<T>(
    limit: Duration,
    connecting: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    match tokio::time::timeout(limit, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(format!("no connection is established within {limit:?}").into()),
    }
}

/// When the last byte of a connection was received. Answers have it in their extensions.
#[derive(Clone, Debug)]
pub(super) struct Received(Arc<AtomicU64>);

impl Received {
    fn now() -> Self {
        let this = Self(Arc::default());
        this.set();
        this
    }

    fn set(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.store(
            u64::try_from(now.as_millis()).unwrap_or_default(),
            Ordering::Relaxed,
        );
    }

    pub(super) fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Establishes connections that record when they receive something.
#[derive(Clone, Debug)]
struct Recording<C>(C);

impl<C> Service<Uri> for Recording<C>
where
    C: Service<Uri, Response = TokioIo<TcpStream>>,
    C::Future: Send + 'static,
{
    type Response = TokioIo<Stream>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move {
            let inner = connecting.await?.into_inner();
            let received = Received::now();
            Ok(TokioIo::new(Stream { inner, received }))
        })
    }
}

/// A connection that records when it receives something.
#[derive(Debug)]
struct Stream {
    inner: TcpStream,
    received: Received,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.inner.connected().extra(self.received.clone())
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(context, buffer);
        if buffer.filled().len() > length {
            self.received.set();
        }
        result
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
