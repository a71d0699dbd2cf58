//! The sockets: accepts, connects and copies.

mod listener;
mod open_flows;
mod pipe;
mod relay;
mod scratch;
mod socket;
mod stats;
mod tcp;
mod udp;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use socket2::Socket;
use tokio::runtime::Handle;

pub use self::listener::{ListenerKey, Serving, Transport};
use self::pipe::Pipes;
use self::socket::Reserve;
use self::stats::{AllCounters, Counters};
pub use self::stats::{AllStats, Stats};
use crate::budget::{Budget, Lease};
use crate::limits::{Limits, available_descriptors, half_of_local_ports};

/// Listening ports that accept connections and datagrams and copy them to endpoints.
///
/// All tasks run on the given runtime. Its threads must be in the network namespace in which the endpoints are reachable; listening
/// sockets belong to the namespace of the thread that calls [`listen`](Self::listen).
#[derive(Debug)]
pub struct Proxy {
    runtime: Handle,
    shared: Arc<Shared>,
    open: HashMap<ListenerKey, Open>,
    claims: HashMap<ListenerKey, Claim>,
}

/// What all listening ports share.
#[derive(Debug)]
struct Shared {
    limits: Limits,
    counters: AllCounters,
    budget: Budget,
    /// The UDP flows of all ports.
    flows: Budget,
    pipes: Pipes,
    reserve: Reserve,
}

impl Shared {
    /// Descriptors of the whole budget or a share of it. Unused pipes are closed for them.
    fn lease(&self, budget: &Budget, count: usize) -> Option<Lease> {
        budget.take(count).or_else(|| {
            self.pipes.close_unused();
            budget.take(count)
        })
    }

    /// What one port may use of the descriptors.
    fn share(&self) -> Budget {
        self.budget.share(self.limits.port_share)
    }
}

#[derive(Debug)]
struct Open {
    port: Port,
    address: SocketAddr,
    _lease: Lease,
}

#[derive(Debug)]
enum Port {
    Tcp(tcp::TcpPort),
    Udp(udp::UdpPort),
}

/// A bound socket that is never read.
#[derive(Debug)]
struct Claim {
    _socket: Socket,
    _lease: Lease,
}

impl Proxy {
    /// A proxy without listening ports.
    ///
    /// # Errors
    /// The limit of open files or the number of open ones could not be read, or no descriptor is left.
    pub fn new(runtime: Handle, limits: Limits) -> io::Result<Self> {
        let descriptors = match limits.descriptors {
            Some(descriptors) => descriptors,
            None => available_descriptors()?,
        };
        let budget = Budget::new(descriptors);
        let shared = Shared {
            pipes: Pipes::new(budget.clone(), pipe::MOST),
            reserve: Reserve::open()?,
            flows: Budget::new(limits.all_flows.unwrap_or_else(half_of_local_ports)),
            budget,
            limits,
            counters: AllCounters::default(),
        };
        Ok(Self {
            runtime,
            shared: Arc::new(shared),
            open: HashMap::new(),
            claims: HashMap::new(),
        })
    }

    /// Opens a listening port, or changes what an open one serves. Returns its address: with port 0 in the key, the kernel chooses the
    /// port.
    ///
    /// New connections are made to the new endpoints at once. Open TCP connections stay as they are; UDP flows end if their endpoint is
    /// gone.
    ///
    /// # Errors
    /// The port could not be bound, or no descriptor is left.
    pub fn listen(&mut self, key: ListenerKey, serving: &Serving) -> io::Result<SocketAddr> {
        if let Some(open) = self.open.get(&key) {
            match &open.port {
                Port::Tcp(port) => port.serve(serving),
                Port::Udp(port) => port.serve(serving),
            }
            return Ok(open.address);
        }
        let lease = self.lease()?;
        let _on_runtime = self.runtime.enter();
        let shared = Arc::clone(&self.shared);
        let (port, address) = match key.transport {
            Transport::Tcp => {
                let (port, address) = tcp::TcpPort::open(key.address, serving, shared)?;
                (Port::Tcp(port), address)
            }
            Transport::Udp => {
                let (port, address) = udp::UdpPort::open(key.address, serving, shared)?;
                (Port::Udp(port), address)
            }
        };
        let open = Open {
            port,
            address,
            _lease: lease,
        };
        self.open.insert(key, open);
        Ok(address)
    }

    /// Closes a listening port. Open TCP connections live on, and those that the kernel has established are served; UDP flows end. Nothing
    /// happens if it is not open.
    pub fn close(&mut self, key: &ListenerKey) {
        self.open.remove(key);
    }

    /// The open listening ports, in no particular order.
    pub fn listeners(&self) -> impl Iterator<Item = ListenerKey> + '_ {
        self.open.keys().copied()
    }

    /// Binds an address and port without using it, so that no other program gets it. A TCP socket does not listen.
    ///
    /// # Errors
    /// The port could not be bound, or no descriptor is left.
    pub fn claim(&mut self, key: ListenerKey) -> io::Result<()> {
        if !self.claims.contains_key(&key) {
            let claim = Claim {
                _lease: self.lease()?,
                _socket: socket::bind(key.transport, key.address)?,
            };
            self.claims.insert(key, claim);
        }
        Ok(())
    }

    /// Releases a claim. Nothing happens if there is none.
    pub fn release(&mut self, key: &ListenerKey) {
        self.claims.remove(key);
    }

    /// The claimed addresses and ports, in no particular order.
    pub fn claims(&self) -> impl Iterator<Item = ListenerKey> + '_ {
        self.claims.keys().copied()
    }

    /// The counters of a listening port. `None` if it is not open.
    #[must_use]
    pub fn stats(&self, key: &ListenerKey) -> Option<Stats> {
        let counters: &Counters = match &self.open.get(key)?.port {
            Port::Tcp(port) => port.counters(),
            Port::Udp(port) => port.counters(),
        };
        Some(counters.read())
    }

    /// The file descriptors that may be used, and those in use.
    #[must_use]
    pub fn descriptors(&self) -> (usize, usize) {
        self.all_stats().descriptors()
    }

    /// The counters of all listening ports, for any thread.
    #[must_use]
    pub fn all_stats(&self) -> AllStats {
        AllStats(Arc::clone(&self.shared))
    }

    fn lease(&self) -> io::Result<Lease> {
        let none_left = || io::Error::from(nix::errno::Errno::EMFILE);
        self.shared.lease(&self.shared.budget, 1).ok_or_else(none_left)
    }
}
