//! Counts the flows of connection tracking by Service and endpoint.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use kernlink_base::{ErrorChain, Protocol as Number};
use kernlink_proxier::ipvs_mode::conntrack::{
    Client, Conntrack, Filter, Flow, FlowKey, ProtocolPart, ProtocolState, SctpState, Status, TcpState,
};

use super::reading::{Counted, CountedTarget, directions};
use super::targets::Target;

/// The address, protocol and port of a frontend in the kernel.
type Destination = (IpAddr, Number, u16);

/// What a reading counted.
#[derive(Clone, Debug, Default)]
struct Before {
    /// The bytes of both directions by flow.
    bytes: HashMap<FlowKey, [u64; 2]>,
    /// The frontends whose flows it counted.
    frontends: HashSet<Destination>,
}

/// Reads flows, and keeps their counters until the next reading.
#[derive(Debug)]
pub(super) struct Flows {
    /// The largest table that is read, in flows.
    most: u32,
    /// Whether the process is the endpoint of all flows, as in userspace mode.
    is_proxied: bool,
    /// The counters of the reading before. `None`: there is none.
    before: Option<Before>,
}

/// What a reading found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) counted: Vec<CountedTarget>,
    pub(super) notes: Vec<String>,
}

impl Flows {
    pub(super) fn new(most: u32, is_proxied: bool) -> Self {
        Self {
            most,
            is_proxied,
            before: None,
        }
    }

    /// Reads the flows to the frontends of these targets, in one listing. `has_bytes`: whether the kernel counts bytes of flows.
    pub(super) fn read(&mut self, targets: &[Target], has_bytes: bool) -> Found {
        let read = Client::open().map_err(|error| ErrorChain(&error).to_string());
        let read = read.and_then(|mut client| self.read_from(&mut client, targets, has_bytes));
        read.unwrap_or_else(|why| {
            self.before = None;
            Found {
                counted: targets.iter().map(CountedTarget::unknown).collect(),
                notes: vec![format!("connections are not known: {why}")],
            }
        })
    }

    fn read_from(
        &mut self,
        client: &mut dyn Conntrack,
        targets: &[Target],
        has_bytes: bool,
    ) -> Result<Found, String> {
        let text = |error: &kernlink_proxier::ipvs_mode::conntrack::Error| ErrorChain(error).to_string();
        let size = client.totals().map_err(|error| text(&error))?.entries;
        if size > self.most {
            return Err(format!(
                "the connection table has {size} flows, more than --max-flows ({})",
                self.most
            ));
        }
        let mut listed = Listed::new(targets, self.before.take(), has_bytes, self.is_proxied);
        // The kernel compares the status; it does not copy flows that no rule leads to another address.
        let filter = Filter::new().with_status(Status::DST_NAT);
        for flow in client.flows(&filter).map_err(|error| text(&error))? {
            listed.add(&flow.map_err(|error| text(&error))?);
        }
        let (counted, now) = listed.end();
        // Without accounting nothing is known of this reading.
        self.before = has_bytes.then_some(now);
        let mut notes = Vec::new();
        if self.is_proxied {
            notes.push("connections of single endpoints are not known in userspace mode".to_owned());
        }
        if !has_bytes {
            notes.push("bytes are not known: net.netfilter.nf_conntrack_acct is not 1".to_owned());
        }
        Ok(Found { counted, notes })
    }
}

/// Flows that are being counted.
struct Listed {
    by_frontend: HashMap<Destination, usize>,
    counted: Vec<CountedTarget>,
    before: Option<Before>,
    now: HashMap<FlowKey, [u64; 2]>,
    has_bytes: bool,
    is_proxied: bool,
}

impl Listed {
    fn new(targets: &[Target], before: Option<Before>, has_bytes: bool, is_proxied: bool) -> Self {
        let keys = targets.iter().enumerate().flat_map(|(index, target)| {
            let frontends = target.frontends.iter();
            frontends
                .map(move |frontend| ((frontend.address, frontend.protocol.into(), frontend.port), index))
        });
        Self {
            by_frontend: keys.collect(),
            counted: targets.iter().map(CountedTarget::none).collect(),
            before,
            now: HashMap::new(),
            has_bytes,
            is_proxied,
        }
    }

    fn add(&mut self, flow: &Flow) {
        let ProtocolPart::Ports {
            destination: port, ..
        } = flow.original.part
        else {
            return;
        };
        let key = (flow.original.destination, flow.original.protocol, port);
        let target = self
            .by_frontend
            .get(&key)
            .and_then(|index| self.counted.get_mut(*index));
        let Some(target) = target else {
            return;
        };
        let is_active = match flow.protocol_state {
            Some(ProtocolState::Tcp { state, .. }) => state == TcpState::ESTABLISHED,
            Some(ProtocolState::Sctp { state, .. }) => state == SctpState::ESTABLISHED,
            _ => false,
        };
        let counters = flow.counters.filter(|_| self.has_bytes);
        let bytes = counters.map(|[original, reply]| [original.bytes, reply.bytes]);
        if let Some(bytes) = bytes {
            self.now.insert(flow.key(), bytes);
        }
        let difference = bytes.zip(self.before.as_ref()).and_then(|(now, before)| {
            let last = match before.bytes.get(&flow.key()) {
                Some(last) => *last,
                // It began after the reading before. One that ended is not counted any more.
                None if before.frontends.contains(&key) => [0, 0],
                // It may be older: that reading did not count this frontend.
                None => return None,
            };
            Some([now[0].saturating_sub(last[0]), now[1].saturating_sub(last[1])])
        });
        let counted = Counted {
            active: Some(u64::from(is_active)),
            inactive: Some(u64::from(!is_active)),
            bytes: directions(difference),
        };
        let endpoint: SocketAddr = flow.reply.source_socket();
        if self.is_proxied {
            target.total.add(counted);
        } else {
            target.add(endpoint, counted);
        }
    }

    fn end(mut self) -> (Vec<CountedTarget>, Before) {
        for target in &mut self.counted {
            if !self.has_bytes || self.before.is_none() {
                target.forget_bytes();
            }
            if self.is_proxied {
                target
                    .endpoints
                    .values_mut()
                    .for_each(|counted| *counted = Counted::UNKNOWN);
            }
        }
        let before = Before {
            bytes: self.now,
            frontends: self.by_frontend.into_keys().collect(),
        };
        (self.counted, before)
    }
}

#[cfg(test)]
mod tests {
    use kernlink_proxier::ipvs_mode::conntrack::{Counters, Tuple};
    use kernlink_services::{FrontendKey, Protocol};

    use super::*;

    fn target() -> Target {
        Target {
            name: "a/a".to_owned(),
            frontends: vec![FrontendKey {
                address: "10.96.0.1".parse().unwrap(),
                protocol: Protocol::Tcp,
                port: 80,
            }],
            endpoints: vec!["10.0.0.1:8080".parse().unwrap(), "10.0.0.2:8080".parse().unwrap()],
        }
    }

    /// A flow from this port to an address and port, which is translated to the first endpoint.
    fn flow(port: u16, to: &str, state: TcpState, bytes: Option<[u64; 2]>) -> Flow {
        let to: SocketAddr = to.parse().unwrap();
        let client: IpAddr = "192.0.2.9".parse().unwrap();
        let endpoint: IpAddr = "10.0.0.1".parse().unwrap();
        let tuple = |source, source_port, destination, destination_port| Tuple {
            source,
            destination,
            protocol: Number::TCP,
            part: ProtocolPart::Ports {
                source: source_port,
                destination: destination_port,
            },
        };
        let mut flow = Flow::new(
            tuple(client, port, to.ip(), to.port()),
            tuple(endpoint, 8080, client, port),
        );
        flow.protocol_state = Some(ProtocolState::Tcp {
            state,
            window_scale: [0, 0],
            flags: [0, 0],
        });
        flow.counters = bytes.map(|bytes| {
            bytes.map(|bytes| Counters {
                bytes,
                ..Counters::default()
            })
        });
        flow
    }

    fn count(
        before: Option<Before>,
        has_bytes: bool,
        is_proxied: bool,
        flows: &[Flow],
    ) -> (CountedTarget, Before) {
        let mut listed = Listed::new(&[target()], before, has_bytes, is_proxied);
        flows.iter().for_each(|flow| listed.add(flow));
        let (mut counted, now) = listed.end();
        (counted.remove(0), now)
    }

    const VIRTUAL: &str = "10.96.0.1:80";

    #[test]
    fn flows_are_counted_by_service_and_endpoint() {
        let flows = [
            flow(1, VIRTUAL, TcpState::ESTABLISHED, None),
            flow(2, VIRTUAL, TcpState::TIME_WAIT, None),
            flow(3, "10.96.0.1:81", TcpState::ESTABLISHED, None),
            flow(4, "10.96.0.2:80", TcpState::ESTABLISHED, None),
        ];
        let (counted, _) = count(None, false, false, &flows);
        assert_eq!((counted.total.active, counted.total.inactive), (Some(1), Some(1)));
        let of = |endpoint: &str| counted.endpoints[&endpoint.parse::<SocketAddr>().unwrap()];
        assert_eq!(of("10.0.0.1:8080").connections(), Some(2));
        assert_eq!(of("10.0.0.2:8080").connections(), Some(0));
        assert_eq!(
            (counted.total.bytes, of("10.0.0.2:8080").bytes),
            ([None; 2], [None; 2])
        );
        // The endpoints of the copies of userspace mode are not in these flows.
        let (counted, _) = count(None, false, true, &flows);
        assert_eq!(counted.total.connections(), Some(2));
        assert!(
            counted
                .endpoints
                .values()
                .all(|counted| *counted == Counted::UNKNOWN)
        );
        assert_eq!(counted.endpoints.len(), 2);
    }

    #[test]
    fn bytes_are_those_since_the_reading_before() {
        let first = [flow(1, VIRTUAL, TcpState::ESTABLISHED, Some([100, 1_000]))];
        let (counted, before) = count(None, true, false, &first);
        assert_eq!(counted.total.bytes, [None; 2], "there was no reading before");
        // Nor of this frontend: its flows may be old.
        let (counted, _) = count(Some(Before::default()), true, false, &first);
        assert_eq!((counted.total.active, counted.total.bytes), (Some(1), [None; 2]));
        let second = [
            flow(1, VIRTUAL, TcpState::ESTABLISHED, Some([150, 3_000])),
            flow(2, VIRTUAL, TcpState::ESTABLISHED, Some([7, 8])),
        ];
        let (counted, before) = count(Some(before), true, false, &second);
        assert_eq!(counted.total.bytes, [Some(57), Some(2_008)]);
        // The counters were set to zero, and the other flow ended.
        let third = [flow(1, VIRTUAL, TcpState::ESTABLISHED, Some([1, 1]))];
        let (counted, before) = count(Some(before), true, false, &third);
        assert_eq!(counted.total.bytes, [Some(0); 2]);
        let (counted, before) = count(Some(before), true, false, &[]);
        assert_eq!(counted.total.bytes, [Some(0); 2]);
        // A flow that is older than the accounting has no counters.
        let fifth = [flow(3, VIRTUAL, TcpState::ESTABLISHED, None)];
        let (counted, _) = count(Some(before), true, false, &fifth);
        assert_eq!((counted.total.active, counted.total.bytes), (Some(1), [None; 2]));
    }
}
