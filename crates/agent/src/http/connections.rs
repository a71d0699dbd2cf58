//! The open connections of all servers, whose number has a limit.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kernlink_proxier::metrics::prometheus::{self, IntCounterVec, IntGauge, Opts, Registry};
use tokio::sync::oneshot;

/// The largest number of connections of all servers.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// The least time between two lines of the log about closed connections.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The connections of all servers. A new one is always served: if there are too many, the oldest one of the client that has the most is
/// closed. So a client with many connections makes room with its own; with many clients, a connection is closed only after this number of
/// others were opened. What a client sends does not keep its connection open.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    open: Arc<Mutex<Open>>,
    number: IntGauge,
    closed: IntCounterVec,
}

/// Why a server closed a connection before the end of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// There were too many.
    Limit,
    /// The request was not complete, or the answer not read, in time.
    Timeout,
}

impl Reason {
    /// The value of the metric's label.
    fn label(self) -> &'static str {
        match self {
            Reason::Limit => "limit",
            Reason::Timeout => "timeout",
        }
    }
}

/// The place of a connection among those that may be open, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    connections: Connections,
    id: u64,
    /// Completes when the connection has to be closed.
    pub(super) withdrawn: oneshot::Receiver<()>,
}

impl Connections {
    /// No connection, at most `limit`.
    ///
    /// # Errors
    /// None in practice: the names are valid.
    pub(super) fn new(limit: usize, registry: &Registry) -> Result<Self, prometheus::Error> {
        let number = IntGauge::new(
            "kernlink_http_connections",
            "Open connections to the health server, the metrics server and health-check node ports",
        )?;
        let closed = IntCounterVec::new(
            Opts::new(
                "kernlink_http_connections_closed_total",
                "Connections that were closed before the end of the answer, by reason: limit, timeout",
            ),
            &["reason"],
        )?;
        for reason in [Reason::Limit, Reason::Timeout] {
            closed.with_label_values(&[reason.label()]);
        }
        registry.register(Box::new(number.clone()))?;
        registry.register(Box::new(closed.clone()))?;
        Ok(Self {
            open: Arc::new(Mutex::new(Open::new(limit))),
            number,
            closed,
        })
    }

    /// The place of a new connection. Closes another one if there are too many.
    pub(super) fn add(&self, address: IpAddr) -> Place {
        let mut open = self.open();
        let (id, withdrawn) = open.insert(Client::new(address));
        if let Some(excess) = open.remove_excess() {
            self.count(Reason::Limit);
            if let Some(closed) = open.report(Instant::now()) {
                let Excess { client, connections } = excess;
                tracing::warn!(
                    "more than {} HTTP connections; of the client with the most the oldest is closed: {closed} since the last such line, \
                     the last one of {client}, which has {connections}",
                    open.limit,
                );
            }
        }
        self.show(&open);
        Place {
            connections: self.clone(),
            id,
            withdrawn,
        }
    }

    /// Counts a connection that a server closes.
    pub(super) fn count(&self, reason: Reason) {
        self.closed.with_label_values(&[reason.label()]).inc();
    }

    fn show(&self, open: &Open) {
        self.number
            .set(i64::try_from(open.connections.len()).unwrap_or(i64::MAX));
    }

    /// A thread that panicked leaves it valid.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        open.remove(self.id);
        self.connections.show(&open);
    }
}

/// Whose connections are counted together: those of an IPv4 address, or of a /64 network of IPv6, of which one host has all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client(IpAddr);

impl Client {
    fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}

/// A connection that was closed because there were too many.
#[derive(Debug, PartialEq, Eq)]
struct Excess {
    client: Client,
    /// The number that the client still has.
    connections: usize,
}

#[derive(Debug)]
struct Open {
    limit: usize,
    next_id: u64,
    /// The oldest first. Dropping the sender closes the connection.
    connections: BTreeMap<u64, (Client, oneshot::Sender<()>)>,
    /// How many of them each client has.
    clients: HashMap<Client, usize>,
    /// Closed since the last report.
    unreported: u64,
    reported: Option<Instant>,
}

impl Open {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            next_id: 0,
            connections: BTreeMap::new(),
            clients: HashMap::new(),
            unreported: 0,
            reported: None,
        }
    }

    fn insert(&mut self, client: Client) -> (u64, oneshot::Receiver<()>) {
        let (sender, withdrawn) = oneshot::channel();
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.connections.insert(id, (client, sender));
        *self.clients.entry(client).or_default() += 1;
        (id, withdrawn)
    }

    fn remove(&mut self, id: u64) -> Option<Excess> {
        let (client, _) = self.connections.remove(&id)?;
        let connections = self.clients.get_mut(&client)?;
        *connections = connections.saturating_sub(1);
        let connections = *connections;
        if connections == 0 {
            self.clients.remove(&client);
        }
        Some(Excess { client, connections })
    }

    /// Removes the oldest connection of the client that has the most, if there are too many. It is not the newest of all: the client has
    /// an older one, or no client has more than one.
    fn remove_excess(&mut self) -> Option<Excess> {
        if self.connections.len() <= self.limit {
            return None;
        }
        let most = self.clients.values().max();
        let oldest = self
            .connections
            .iter()
            .find(|(_, (client, _))| self.clients.get(client) == most);
        let id = *oldest?.0;
        self.unreported = self.unreported.saturating_add(1);
        self.remove(id)
    }

    /// The number of connections that were closed since the last report, if one is due.
    fn report(&mut self, now: Instant) -> Option<u64> {
        let is_due = self
            .reported
            .is_none_or(|reported| now.saturating_duration_since(reported) >= REPORT_INTERVAL);
        is_due.then(|| {
            self.reported = Some(now);
            std::mem::take(&mut self.unreported)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> Client {
        Client::new(address.parse().unwrap())
    }

    /// The connections that remain after one of each address was opened, in this order.
    fn remaining(limit: usize, addresses: &[&str]) -> Vec<u64> {
        let mut open = Open::new(limit);
        for address in addresses {
            open.insert(client(address));
            open.remove_excess();
        }
        open.connections.into_keys().collect()
    }

    #[test]
    fn the_oldest_connection_of_the_client_with_the_most_is_closed() {
        let (a, b, c) = ("192.0.2.1", "192.0.2.2", "192.0.2.3");
        assert_eq!(remaining(3, &[a, b, b, b]), [0, 2, 3]);
        assert_eq!(remaining(3, &[a, b, b, c]), [0, 2, 3]);
        // With one of each client, the oldest of all.
        assert_eq!(remaining(2, &[a, b, c]), [1, 2]);
        assert_eq!(remaining(1, &[a, b]), [1], "a new connection is always served");
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        assert_eq!(client("2001:db8:0:1::1"), client("2001:db8:0:1:ffff::2"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_eq!(client("2001:db8:0:1::1").to_string(), "2001:db8:0:1::/64");
    }

    #[test]
    fn a_connection_that_ended_leaves_its_place() {
        let registry = Registry::new();
        let connections = Connections::new(1, &registry).unwrap();
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let mut first = connections.add(address);
        let second = connections.add(address);
        assert!(
            first
                .withdrawn
                .try_recv()
                .is_err_and(|error| error == oneshot::error::TryRecvError::Closed)
        );
        drop(first);
        assert_eq!(connections.number.get(), 1);
        drop(second);
        let mut third = connections.add(address);
        assert_eq!(
            third.withdrawn.try_recv(),
            Err(oneshot::error::TryRecvError::Empty)
        );
        assert_eq!(connections.closed.with_label_values(&["limit"]).get(), 1);
        drop(third);
        assert_eq!(connections.number.get(), 0);
        assert!(connections.open().clients.is_empty());
    }

    #[test]
    fn closed_connections_are_reported_once_a_minute() {
        let mut open = Open::new(1);
        let start = Instant::now();
        let mut reports = Vec::new();
        for second in 0..150 {
            open.insert(client("192.0.2.1"));
            if open.remove_excess().is_some() {
                reports.extend(open.report(start + Duration::from_secs(second)));
            }
        }
        // The first connection has room.
        assert_eq!(reports, [1, 60, 60]);
    }
}
