//! Flows to endpoints that no longer serve a destination.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use kernlink_base::{Family, Protocol};

use crate::filter::Filter;
use crate::flow::Flow;

/// Destinations with their endpoints. A flow to one of the destinations is stale if its reply source is not one of the endpoints.
///
/// Stale flows must be deleted after the endpoints of a UDP service change: the kernel sends all packets of a flow to the endpoint
/// of its first packet. So a flow to a removed endpoint, or a flow that began before the service existed, does not reach the new
/// endpoints. All destinations are compared in one listing of the table.
///
/// The scope id and the flow information of an IPv6 address are ignored, and an IPv4-mapped IPv6 address is the IPv4 address, as in
/// the kernel's tuples.
///
/// A destination takes precedence over a port of any address. (kube-proxy compares the port even if the flow is valid for its
/// destination, and so deletes valid flows of a service whose port is the node port of another service.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleFilter {
    destinations: HashMap<(Protocol, SocketAddr), HashSet<SocketAddr>>,
    ports: HashMap<(Protocol, u16), HashSet<SocketAddr>>,
    zone: Option<u16>,
}

impl StaleFilter {
    /// A filter without destinations: no flow is stale.
    #[must_use]
    pub fn new() -> Self {
        StaleFilter::default()
    }

    /// Adds a destination: flows to it are stale unless their reply source is one of `endpoints`. Without endpoints, all flows to
    /// it are stale. A further call for the same destination adds endpoints.
    #[must_use]
    pub fn with_destination(
        mut self,
        protocol: Protocol,
        destination: SocketAddr,
        endpoints: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        self.destinations
            .entry((protocol, canonical(destination)))
            .or_default()
            .extend(endpoints.into_iter().map(canonical));
        self
    }

    /// Adds a port of any address that is not a destination of this filter; see [`with_destination`](Self::with_destination).
    #[must_use]
    pub fn with_port(
        mut self,
        protocol: Protocol,
        port: u16,
        endpoints: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        self.ports
            .entry((protocol, port))
            .or_default()
            .extend(endpoints.into_iter().map(canonical));
        self
    }

    /// Requires the zone id. Flows of all zones are compared by default.
    #[must_use]
    pub fn with_zone(mut self, zone: u16) -> Self {
        self.zone = Some(zone);
        self
    }

    /// Whether the filter has no destination and no port.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.destinations.is_empty() && self.ports.is_empty()
    }

    /// Whether a flow is stale.
    #[must_use]
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let destination = flow.original.destination_socket();
        let endpoints = self
            .destinations
            .get(&(flow.protocol(), destination))
            .or_else(|| self.ports.get(&(flow.protocol(), destination.port())));
        self.zone.is_none_or(|zone| flow.zone.id == zone)
            && endpoints.is_some_and(|endpoints| !endpoints.contains(&flow.reply.source_socket()))
    }

    /// The conditions that all stale flows fulfil, for the kernel to list fewer flows.
    #[must_use]
    pub fn common_filter(&self) -> Filter {
        fn only<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
            let first = values.next()?;
            values.all(|value| value == first).then_some(first)
        }
        let keys = self.destinations.keys().map(|(protocol, _)| *protocol);
        Filter {
            protocol: only(keys.chain(self.ports.keys().map(|(protocol, _)| *protocol))),
            family: self
                .ports
                .is_empty()
                .then(|| {
                    only(
                        self.destinations
                            .keys()
                            .map(|(_, address)| Family::of(address.ip())),
                    )
                })
                .flatten(),
            zone: self.zone,
            ..Filter::new()
        }
    }
}

/// The address as in a tuple of the kernel.
fn canonical(socket: SocketAddr) -> SocketAddr {
    SocketAddr::new(socket.ip().to_canonical(), socket.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuple::Tuple;

    fn flow(destination: &str, endpoint: &str) -> Flow {
        let client = "192.0.2.1:4660".parse().unwrap();
        Flow::new(
            Tuple::udp(client, destination.parse().unwrap()),
            Tuple::udp(endpoint.parse().unwrap(), client),
        )
    }

    #[test]
    fn a_destination_takes_precedence_over_a_port() {
        let filter = StaleFilter::new()
            .with_destination(
                Protocol::UDP,
                "10.96.0.10:53".parse().unwrap(),
                ["10.0.0.1:53".parse().unwrap()],
            )
            .with_destination(Protocol::UDP, "10.96.0.11:53".parse().unwrap(), [])
            .with_port(Protocol::UDP, 53, ["10.0.0.9:53".parse().unwrap()]);
        assert!(!filter.is_stale(&flow("10.96.0.10:53", "10.0.0.1:53")));
        assert!(filter.is_stale(&flow("10.96.0.10:53", "10.0.0.2:53")));
        assert!(filter.is_stale(&flow("10.96.0.11:53", "10.0.0.1:53")));
        assert!(!filter.is_stale(&flow("172.16.0.1:53", "10.0.0.9:53")));
        assert!(filter.is_stale(&flow("172.16.0.1:53", "172.16.0.1:53")));
        assert!(!filter.is_stale(&flow("172.16.0.1:54", "10.0.0.2:53")));
        assert_eq!(filter.common_filter(), Filter::new().with_protocol(Protocol::UDP));
    }

    #[test]
    fn addresses_are_compared_in_their_canonical_form() {
        let filter = StaleFilter::new()
            .with_destination(
                Protocol::UDP,
                "[fe80::10%3]:53".parse().unwrap(),
                ["[fe80::1%7]:53".parse().unwrap()],
            )
            .with_destination(
                Protocol::UDP,
                "[::ffff:10.96.0.10]:53".parse().unwrap(),
                ["[::ffff:10.0.0.1]:53".parse().unwrap()],
            )
            .with_port(Protocol::UDP, 54, ["[::ffff:10.0.0.9]:53".parse().unwrap()]);
        assert!(!filter.is_stale(&flow("[fe80::10]:53", "[fe80::1]:53")));
        assert!(filter.is_stale(&flow("[fe80::10]:53", "[fe80::2]:53")));
        assert!(!filter.is_stale(&flow("10.96.0.10:53", "10.0.0.1:53")));
        assert!(filter.is_stale(&flow("10.96.0.10:53", "10.0.0.2:53")));
        assert!(!filter.is_stale(&flow("172.16.0.1:54", "10.0.0.9:53")));
        let mapped =
            StaleFilter::new().with_destination(Protocol::UDP, "[::ffff:10.96.0.10]:53".parse().unwrap(), []);
        assert_eq!(mapped.common_filter().family, Some(Family::Ipv4));
    }
}
