//! A listening TCP port.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernlink_base::Family;
use socket2::{SockAddr, SockRef, Socket};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::listener::{Served, Serving, Transport};
use super::relay::{End, Relay};
use super::socket::{self, is_local, original_destination, reset_on_close};
use super::stats::Counters;
use crate::balance::Attempt;
use crate::budget::{Budget, Lease};

/// The number of connections that wait to be accepted; the kernel reduces it to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;
/// The kernel accepts one connection more than it was told.
const MAX_WAITING: usize = BACKLOG as usize + 1;

/// The pause after an error of accepting that another attempt would meet again.
const PAUSE: Duration = Duration::from_millis(10);

/// A listening TCP port. Dropping it closes the port; its connections live on, and those that the kernel has established are served.
#[derive(Debug)]
pub(super) struct TcpPort {
    port: Arc<Port>,
    listener: Arc<TcpListener>,
    accepting: AbortHandle,
    runtime: Handle,
}

#[derive(Debug)]
struct Port {
    served: Served,
    counters: Arc<Counters>,
    /// The descriptors that the port may use.
    budget: Budget,
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl TcpPort {
    pub(super) fn open(
        address: SocketAddr,
        serving: &Serving,
        shared: Arc<Shared>,
    ) -> io::Result<(Self, SocketAddr)> {
        let socket = socket::bind_listener(address)?;
        socket::configure(&socket, shared.limits.keepalive)?;
        socket.listen(BACKLOG)?;
        let listener = Arc::new(TcpListener::from_std(socket.into())?);
        let address = listener.local_addr()?;
        let port = Arc::new(Port {
            served: Served::new(serving, shared.limits.affinity_records),
            counters: shared.counters.open(),
            budget: shared.share(),
            shared,
            address,
        });
        let accepting = tokio::spawn(accept_all(Arc::clone(&listener), Arc::clone(&port))).abort_handle();
        let open = Self {
            port,
            listener,
            accepting,
            runtime: Handle::current(),
        };
        Ok((open, address))
    }

    pub(super) fn serve(&self, serving: &Serving) {
        self.port.served.set(serving);
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.port.counters
    }
}

impl Drop for TcpPort {
    fn drop(&mut self) {
        self.accepting.abort();
        let _on_runtime = self.runtime.enter();
        let listener = SockRef::from(&*self.listener);
        // Closing the socket would reset the connections that wait to be accepted.
        for (client, peer) in waiting(&listener, MAX_WAITING) {
            let client = client.set_nonblocking(true).map(|()| client.into());
            if let (Ok(client), Some(peer)) = (client.and_then(TcpStream::from_std), peer.as_socket()) {
                self.port.accepted(client, peer);
            }
        }
        // At once, not when the aborted task has ended. It fails if the port is closed already.
        let _ = listener.shutdown(Shutdown::Read);
    }
}

/// Accepts the connections that wait at a socket that does not block, at most `limit`: clients may open new ones faster than they are accepted.
fn waiting(listener: &Socket, limit: usize) -> impl Iterator<Item = (Socket, SockAddr)> {
    let attempts = (0..limit).map(|_| listener.accept());
    // One that ended while it waited does not mean that there are no others.
    let is_accepted = |attempt: &io::Result<_>| match attempt {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionAborted,
    };
    attempts.take_while(is_accepted).filter_map(Result::ok)
}

/// Accepts connections until the task is aborted. Nothing here waits for an endpoint.
async fn accept_all(listener: Arc<TcpListener>, port: Arc<Port>) {
    loop {
        match listener.accept().await {
            Ok((client, peer)) => port.accepted(client, peer),
            Err(error) if is_local(&error) => {
                port.counters.shed.add(1);
                if !port.shared.reserve.refuse_one(&*listener) {
                    sleep(PAUSE).await;
                }
            }
            // The connection ended while it waited.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(PAUSE).await,
        }
    }
}

impl Port {
    /// Begins to serve an accepted connection, or resets it.
    fn accepted(self: &Arc<Self>, client: TcpStream, peer: SocketAddr) {
        if let Some(lease) = self.admit(&client, peer) {
            tokio::spawn(Arc::clone(self).proxy(client, peer, lease));
        } else {
            reset_on_close(&client);
        }
    }

    /// The descriptors for a connection. `None`: it is to be reset.
    fn admit(&self, client: &TcpStream, peer: SocketAddr) -> Option<Lease> {
        let (is_admitted, translated_only) = {
            let served = self.served.lock();
            (served.admits(peer.ip()), served.translated_only)
        };
        let is_direct = || {
            let destination = original_destination(client, Family::of(self.address.ip()));
            destination
                .is_none_or(|destination| client.local_addr().is_ok_and(|local| is_same(local, destination)))
        };
        if !is_admitted || (translated_only && is_direct()) {
            self.counters.not_admitted.add(1);
            return None;
        }
        let lease = self.shared.lease(&self.budget, 2);
        if lease.is_none() {
            self.counters.shed.add(1);
        }
        lease
    }

    /// Connects to an endpoint and copies until both directions have ended.
    async fn proxy(self: Arc<Self>, client: TcpStream, peer: SocketAddr, _lease: Lease) {
        let Some(endpoint) = self.dial(peer).await else {
            reset_on_close(&client);
            return;
        };
        self.counters.opened.add(1);
        let relay = Relay {
            client: &client,
            endpoint: &endpoint,
            pipes: &self.shared.pipes,
            bytes_in: &self.counters.bytes_in,
            bytes_out: &self.counters.bytes_out,
            limits: &self.shared.limits,
        };
        let end = relay.run().await;
        if end == End::HalfClosedTimeout {
            self.counters.half_closed_timeouts.add(1);
        }
        if end != End::Both {
            reset_on_close(&client);
            reset_on_close(&endpoint);
        }
        self.counters.ended.add(1);
    }

    /// Connects to an endpoint; after a failure to the next one, as often as there are timeouts.
    async fn dial(&self, peer: SocketAddr) -> Option<TcpStream> {
        let mut attempt = Attempt::First;
        for &limit in &self.shared.limits.dial_timeouts {
            let chosen = self
                .served
                .lock()
                .balancer
                .choose(peer.ip(), attempt, Instant::now());
            let Some(endpoint) = chosen else {
                break;
            };
            match timeout(limit, self.connect(endpoint)).await {
                Ok(Ok(stream)) => {
                    if attempt == Attempt::Again {
                        self.served.lock().balancer.set_working(endpoint);
                    }
                    return Some(stream);
                }
                Ok(Err(error)) if is_local(&error) => self.counters.shed.add(1),
                _ => self.served.lock().balancer.set_failed(endpoint, Instant::now()),
            }
            self.counters.dial_failures.add(1);
            attempt = Attempt::Again;
        }
        self.counters.without_endpoint.add(1);
        None
    }

    async fn connect(&self, endpoint: SocketAddr) -> io::Result<TcpStream> {
        let socket = socket::new(Transport::Tcp, endpoint)?;
        socket::configure(&socket, self.shared.limits.keepalive)?;
        TcpSocket::from_std_stream(socket.into()).connect(endpoint).await
    }
}

/// Whether two addresses are the same, regardless of the scope of link-local ones.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn not_more_waiting_connections_are_accepted_than_the_limit() {
        let listener = socket::bind_listener("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(8).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(waiting(&listener, 2).count(), 0);
        let clients: Vec<_> = (0..5)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        let mut accepted = BTreeSet::new();
        // The kernel may need a moment after a client has connected.
        while accepted.len() < clients.len() {
            let batch: Vec<_> = waiting(&listener, 2).collect();
            assert!(batch.len() <= 2, "{batch:?}");
            accepted.extend(batch.iter().map(|(_, peer)| peer.as_socket().unwrap()));
        }
        let peers = clients.iter().map(|client| client.local_addr().unwrap());
        assert_eq!(accepted, peers.collect());
    }
}
