//! What a listening port is and what it serves.

use std::fmt;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ipnet::IpNet;

use crate::balance::{Affinity, Attempt, Backend, Balancer};

/// The protocols that can be proxied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// The name as in iptables rules: `tcp`, `udp`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Identifies a listening port or a claim: protocol, local address and port.
///
/// The unspecified address means all addresses of its family; IPv6 sockets do not accept IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerKey {
    /// The protocol.
    pub transport: Transport,
    /// The local address and port.
    pub address: SocketAddr,
}

impl fmt::Display for ListenerKey {
    /// `tcp 0.0.0.0:20000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport, self.address)
    }
}

/// What a listening port serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// The endpoints, in any order. Without endpoints, TCP connections are reset and datagrams dropped.
    pub backends: Vec<Backend>,
    /// Session affinity by client address.
    pub affinity: Option<Affinity>,
    /// The sources that are admitted; if empty, all are. Other connections are reset, other datagrams dropped.
    pub source_ranges: Arc<[IpNet]>,
    /// Whether TCP connections are reset that were made to the listening port itself, not to an address that a rule translates to it.
    pub translated_only: bool,
}

impl Serving {
    /// Whether the source ranges admit a client.
    pub(super) fn admits(&self, client: IpAddr) -> bool {
        admits(&self.source_ranges, client)
    }
}

/// What a listening port serves, for its tasks.
#[derive(Debug)]
pub(super) struct Served(Mutex<State>);

#[derive(Debug)]
pub(super) struct State {
    pub(super) balancer: Balancer,
    source_ranges: Arc<[IpNet]>,
    pub(super) translated_only: bool,
    /// The number of changes.
    generation: u64,
}

/// An endpoint that was chosen for a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) endpoint: SocketAddr,
    client: IpAddr,
    generation: u64,
}

impl Served {
    pub(super) fn new(serving: &Serving, affinity_records: usize) -> Self {
        // A new hasher has random keys: the hash of anything is a random number.
        let seed = foldhash::quality::RandomState::default().hash_one(0u8);
        let mut balancer = Balancer::new(seed);
        balancer.set_affinity_capacity(affinity_records);
        let served = Self(Mutex::new(State {
            balancer,
            source_ranges: Arc::default(),
            translated_only: false,
            generation: 0,
        }));
        served.set(serving);
        served
    }

    pub(super) fn set(&self, serving: &Serving) {
        let mut state = self.lock();
        state.balancer.set_backends(&serving.backends);
        state.balancer.set_affinity(serving.affinity);
        state.source_ranges = Arc::clone(&serving.source_ranges);
        state.translated_only = serving.translated_only;
        state.generation += 1;
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether the source ranges admit a client.
    pub(super) fn admits(&self, client: IpAddr) -> bool {
        admits(&self.source_ranges, client)
    }

    /// Chooses the endpoint for a client. `None`: there is no endpoint.
    pub(super) fn choose(&mut self, client: IpAddr, attempt: Attempt, now: Instant) -> Option<Choice> {
        let endpoint = self.balancer.choose(client, attempt, now)?;
        Some(Choice {
            endpoint,
            client,
            generation: self.generation,
        })
    }

    /// Whether the endpoint could still be chosen for the client.
    pub(super) fn permits(&self, choice: Choice) -> bool {
        choice.generation == self.generation
            || (self.admits(choice.client) && self.balancer.contains(choice.endpoint))
    }
}

fn admits(ranges: &[IpNet], client: IpAddr) -> bool {
    ranges.is_empty() || ranges.iter().any(|range| range.contains(&client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_permitted_until_its_endpoint_leaves_or_its_client_is_not_admitted() {
        let client = IpAddr::from([192, 0, 2, 1]);
        let endpoint = SocketAddr::from(([10, 0, 0, 1], 80));
        let mut serving = Serving {
            backends: vec![Backend::new(endpoint)],
            ..Serving::default()
        };
        let served = Served::new(&serving, 1);
        let chosen = served.lock().choose(client, Attempt::First, Instant::now());
        let choice = chosen.expect("there is an endpoint");
        assert!(served.lock().permits(choice));
        serving
            .backends
            .push(Backend::new(SocketAddr::from(([10, 0, 0, 2], 80))));
        served.set(&serving);
        assert!(served.lock().permits(choice), "both are as before");
        serving.source_ranges = ["198.51.100.0/24".parse().expect("a network")].into();
        served.set(&serving);
        assert!(!served.lock().permits(choice), "the client is not admitted");
        serving.source_ranges = Arc::default();
        serving.backends.remove(0);
        served.set(&serving);
        assert!(!served.lock().permits(choice), "the endpoint left");
    }
}
