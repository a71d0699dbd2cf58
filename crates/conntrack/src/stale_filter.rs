//! Flows that lead to where nobody shall be led any more.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use kernlink_base::{Family, Protocol};

use crate::filter::Filter;
use crate::flow::Flow;

/// For many destinations, who may answer; a flow to one of them that is answered by anybody else
/// is stale.
///
/// That is the question after a change of endpoints behind a UDP service: the kernel keeps sending
/// the packets of a known flow to where its first packet went, so a flow to an endpoint that left,
/// or one that began before there was a service, has to be deleted. All destinations are asked
/// about in one pass over the table.
///
/// Addresses are compared as the kernel has them: scope and flow information of an IPv6 address are left out, and
/// an IPv4-mapped IPv6 address means the IPv4 address.
///
/// An exact destination wins over a port on any address. (kube-proxy looks at the port also when
/// the destination was found good, and so deletes live flows of a service whose port equals another
/// service's node port.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleFlows {
    destinations: HashMap<(Protocol, SocketAddr), HashSet<SocketAddr>>,
    ports: HashMap<(Protocol, u16), HashSet<SocketAddr>>,
    zone: Option<u16>,
}

impl StaleFlows {
    /// Asks about no destination: no flow is stale.
    pub fn new() -> Self {
        StaleFlows::default()
    }

    /// Flows to `destination` may be answered by `answerers` and by nobody else; by nobody at all if
    /// there are none. A further call for the same destination adds to them.
    pub fn with_destination(
        mut self,
        protocol: Protocol,
        destination: SocketAddr,
        answerers: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        self.destinations
            .entry((protocol, plain(destination)))
            .or_default()
            .extend(answerers.into_iter().map(plain));
        self
    }

    /// As [`with_destination`](Self::with_destination), for a port on any address that is not named
    /// as a destination itself.
    pub fn with_port(
        mut self,
        protocol: Protocol,
        port: u16,
        answerers: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        self.ports
            .entry((protocol, port))
            .or_default()
            .extend(answerers.into_iter().map(plain));
        self
    }

    /// Only in this zone; in all zones unless set.
    pub fn with_zone(mut self, zone: u16) -> Self {
        self.zone = Some(zone);
        self
    }

    /// Whether there is no destination and no port.
    pub fn is_empty(&self) -> bool {
        self.destinations.is_empty() && self.ports.is_empty()
    }

    /// Whether a flow is to one of the destinations and answered by somebody who may not.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let destination = flow.original.destination_socket();
        let answerers = self
            .destinations
            .get(&(flow.protocol(), destination))
            .or_else(|| self.ports.get(&(flow.protocol(), destination.port())));
        self.zone.is_none_or(|zone| flow.zone.id == zone)
            && answerers.is_some_and(|answerers| !answerers.contains(&flow.reply.source_socket()))
    }

    /// What all flows in question have in common, so that the kernel need not send others.
    pub fn filter(&self) -> Filter {
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

/// As a tuple of the kernel has it.
fn plain(socket: SocketAddr) -> SocketAddr {
    SocketAddr::new(socket.ip().to_canonical(), socket.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuple::Tuple;

    fn flow(destination: &str, answerer: &str) -> Flow {
        let client = "192.0.2.1:4660".parse().unwrap();
        Flow::new(
            Tuple::udp(client, destination.parse().unwrap()),
            Tuple::udp(answerer.parse().unwrap(), client),
        )
    }

    #[test]
    fn who_may_answer_is_asked_by_destination_first_and_then_by_port() {
        let question = StaleFlows::new()
            .with_destination(
                Protocol::UDP,
                "10.96.0.10:53".parse().unwrap(),
                ["10.0.0.1:53".parse().unwrap()],
            )
            .with_destination(Protocol::UDP, "10.96.0.11:53".parse().unwrap(), [])
            .with_port(Protocol::UDP, 53, ["10.0.0.9:53".parse().unwrap()]);
        assert!(!question.is_stale(&flow("10.96.0.10:53", "10.0.0.1:53")));
        assert!(question.is_stale(&flow("10.96.0.10:53", "10.0.0.2:53")));
        assert!(question.is_stale(&flow("10.96.0.11:53", "10.0.0.1:53")));
        assert!(!question.is_stale(&flow("172.16.0.1:53", "10.0.0.9:53")));
        assert!(question.is_stale(&flow("172.16.0.1:53", "172.16.0.1:53")));
        assert!(!question.is_stale(&flow("172.16.0.1:54", "10.0.0.2:53")));
        assert_eq!(question.filter(), Filter::new().with_protocol(Protocol::UDP));
    }

    #[test]
    fn addresses_are_compared_as_the_kernel_has_them() {
        let question = StaleFlows::new()
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
        assert!(!question.is_stale(&flow("[fe80::10]:53", "[fe80::1]:53")));
        assert!(question.is_stale(&flow("[fe80::10]:53", "[fe80::2]:53")));
        assert!(!question.is_stale(&flow("10.96.0.10:53", "10.0.0.1:53")));
        assert!(question.is_stale(&flow("10.96.0.10:53", "10.0.0.2:53")));
        assert!(!question.is_stale(&flow("172.16.0.1:54", "10.0.0.9:53")));
        let mapped =
            StaleFlows::new().with_destination(Protocol::UDP, "[::ffff:10.96.0.10]:53".parse().unwrap(), []);
        assert_eq!(mapped.filter().family, Some(Family::Ipv4));
    }
}
