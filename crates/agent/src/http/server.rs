//! A server on one address.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use super::Answer;
use super::connections::{Connections, Place, Reason};

/// The families of the connections that a server on an unspecified address accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Families {
    /// Both, also on `0.0.0.0`, as in Go.
    All,
    /// That of the address.
    OfAddress,
}

/// The answer to a path.
pub(super) type Routes = Arc<dyn Fn(&str) -> Answer + Send + Sync>;

/// A server on one address.
pub(super) struct Server {
    /// What it is, for the log.
    name: String,
    address: SocketAddr,
    families: Families,
    /// The time between attempts to listen.
    retry: Duration,
    routes: Routes,
    on_failure: Option<Box<dyn Fn(String) + Send + Sync>>,
}

/// The time between attempts to listen, as in kube-proxy.
const RETRY: Duration = Duration::from_secs(5);
/// The longest time until a request is complete, regardless of how much of it was received.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time of a connection, until its answer was read.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest request line with headers, in bytes. A longer one is answered with 431.
const MAX_REQUEST: usize = 16 << 10;
/// The connections that wait to be accepted.
const BACKLOG: i32 = 1024;

impl Server {
    pub(super) fn new(name: impl Into<String>, address: SocketAddr, routes: Routes) -> Self {
        Self {
            name: name.into(),
            address,
            families: Families::All,
            retry: RETRY,
            routes,
            on_failure: None,
        }
    }

    /// Accepts connections of the family of the address only.
    pub(super) fn one_family(mut self) -> Self {
        self.families = Families::OfAddress;
        self
    }

    /// Tries to listen again after this time.
    #[cfg(test)]
    pub(super) fn retry(mut self, retry: Duration) -> Self {
        self.retry = retry;
        self
    }

    #[cfg(test)]
    pub(super) fn into_routes(self) -> Routes {
        self.routes
    }

    /// Calls `on_failure` with the problem, instead of logging it, if the address cannot be listened on.
    pub(super) fn on_failure(mut self, on_failure: impl Fn(String) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Box::new(on_failure));
        self
    }

    /// Serves until the future is dropped.
    pub(super) async fn serve(self, connections: Connections) {
        let (name, address) = (&self.name, self.address);
        let mut is_reported = false;
        let listener = loop {
            match listen(self.address, self.families) {
                Ok(listener) => break listener,
                Err(error) if !is_reported => {
                    is_reported = true;
                    let problem = format!("{name}: cannot listen on {address}: {error}");
                    match &self.on_failure {
                        Some(on_failure) => on_failure(problem),
                        None => {
                            tracing::error!("{problem}; tried again every {} seconds", self.retry.as_secs())
                        }
                    }
                }
                Err(_) => {}
            }
            tokio::time::sleep(self.retry).await;
        };
        tracing::info!("{name}: listening on {address}");
        accept(&listener, &self.routes, &connections).await;
    }
}

/// Serves connections until the future is dropped.
pub(super) async fn accept(listener: &TcpListener, routes: &Routes, connections: &Connections) {
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            // The client is gone already, or the process has no file descriptor left.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let place = connections.add(client.ip());
        tokio::spawn(serve(stream, Arc::clone(routes), connections.clone(), place));
        // One that has to be closed is closed, and this one read, before more are accepted.
        tokio::task::yield_now().await;
    }
}

/// Answers one request. A connection that stays open for more would be idle most of the time.
async fn serve(stream: TcpStream, routes: Routes, connections: Connections, mut place: Place) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = routes(request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_REQUEST)
        .serve_connection(TokioIo::new(stream), service);
    let reason = tokio::select! {
        outcome = &mut connection => match outcome {
            Err(error) if error.is_timeout() => Reason::Timeout,
            // An error is one of the client, which is gone.
            _ => return,
        },
        () = tokio::time::sleep(CONNECTION_TIMEOUT) => Reason::Timeout,
        // Counted where it is chosen.
        _ = &mut place.withdrawn => Reason::Limit,
    };
    if reason == Reason::Timeout {
        connections.count(reason);
    }
    // Reset, so that the kernel keeps nothing of it. An error is that of a connection that is closed already.
    let _ = connection.into_parts().io.into_inner().set_zero_linger();
}

/// Listens on an address. On a host without IPv6, on the IPv4 address.
pub(super) fn listen(address: SocketAddr, families: Families) -> io::Result<TcpListener> {
    if families == Families::All && address.ip() == IpAddr::from(Ipv4Addr::UNSPECIFIED) {
        let all = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
        match listen_on(all, false) {
            Err(error) if has_no_ipv6(&error) => {}
            outcome => return outcome,
        }
    }
    listen_on(address, families == Families::OfAddress)
}

fn has_no_ipv6(error: &io::Error) -> bool {
    let without = [Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL];
    error
        .raw_os_error()
        .is_some_and(|code| without.contains(&Errno::from_raw(code)))
}

fn listen_on(address: SocketAddr, is_ipv6_only: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of an earlier process do not prevent listening.
    socket.set_reuse_address(true)?;
    // Connections inherit it: the kernel keeps no more of what a client sends.
    socket.set_recv_buffer_size(MAX_REQUEST)?;
    if address.is_ipv6() {
        socket.set_only_v6(is_ipv6_only)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
