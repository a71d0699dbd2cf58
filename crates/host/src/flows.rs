//! Stale UDP flows: which flows one pass over the table of connection tracking deletes, and reading the flows that exist.

mod frontends;
mod tracked;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use kernlink_conntrack::{Conntrack, Error, Filter, Flow, FlowKey, Protocol, StaleFilter, Status};
use kernlink_services::Family;

pub use self::frontends::{UdpFrontends, endpoints};
pub use self::tracked::{Reading, TrackedFlows};

/// The zone of the flows that IPVS and the rules use. Flows of other zones are foreign.
const ZONE: u16 = 0;

/// Deletes the stale UDP flows to destinations of one family, in one pass over the table.
///
/// The kernel uses the address translation of the first packet of a flow for all of its packets. A flow to a removed endpoint, or one that
/// began before the Service had endpoints, loses its packets or their replies as long as the client sends. After it is deleted, the next
/// packet begins a new flow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeleteFlows {
    /// The family.
    pub family: Family,
    /// Sorted by address, each once; never empty.
    pub destinations: Vec<FlowDestination>,
    /// Whether a flow is valid if a rule translated its destination. IPVS does not use such flows; another mode does, after it began to
    /// serve the node.
    pub keeps_translated: bool,
}

/// The address of a UDP frontend, and which flows to it are valid. All others of zone 0 are stale. Flows to other addresses, also with the
/// same port, are never stale.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowDestination {
    /// The address and port that clients send to.
    pub address: SocketAddr,
    /// A flow is valid if its reply source is one of these endpoints. Sorted.
    pub endpoints: Arc<[SocketAddr]>,
    /// Whether a flow without translation of the destination is valid: the frontend is withdrawn, or its packets are forwarded unchanged
    /// (direct routing, tunnel).
    pub admits_untranslated: bool,
}

impl DeleteFlows {
    /// A pass over at least one destination, each once, in any order. Flows that a rule translated are valid only if their reply source is an endpoint.
    pub fn new(family: Family, destinations: impl IntoIterator<Item = FlowDestination>) -> Self {
        let mut destinations: Vec<FlowDestination> = destinations.into_iter().collect();
        destinations.sort_by_key(|destination| destination.address);
        Self {
            family,
            destinations,
            keeps_translated: false,
        }
    }

    /// The same pass, after which a flow that a rule translated is valid. See [`keeps_translated`](Self::keeps_translated).
    #[must_use]
    pub fn keeping_translated(self) -> Self {
        Self {
            keeps_translated: true,
            ..self
        }
    }

    /// Lists the table once and deletes the stale flows. It is not an error if no flow is stale.
    ///
    /// # Errors
    /// If the table cannot be listed; [`Error::Incomplete`] if a flow cannot be deleted.
    pub fn execute(&self, conntrack: &mut (impl Conntrack + ?Sized)) -> Result<(), Error> {
        let filter = self.filter();
        if !self.keeps_translated {
            return conntrack.delete_stale(&filter)?.into_result();
        }
        let is_stale = |flow: &Flow| !flow.status.contains(Status::DST_NAT);
        let listed = conntrack.list_stale(&filter)?.into_iter();
        let stale: Vec<FlowKey> = listed.filter(is_stale).map(|flow| flow.key()).collect();
        conntrack.delete_many(&stale).into_result()
    }

    /// The stale flows.
    #[must_use]
    pub fn filter(&self) -> StaleFilter {
        let filter = StaleFilter::new().with_zone(ZONE);
        self.destinations.iter().fold(filter, |filter, destination| {
            filter.with_destination(Protocol::UDP, destination.address, destination.reply_sources())
        })
    }
}

impl FlowDestination {
    /// The destination of a frontend with these endpoints, which must be sorted.
    #[must_use]
    pub fn served(address: SocketAddr, endpoints: Arc<[SocketAddr]>, admits_untranslated: bool) -> Self {
        Self {
            address,
            endpoints,
            admits_untranslated,
        }
    }

    /// The destination of a withdrawn frontend. A flow without translation began after the frontend was removed.
    #[must_use]
    pub fn withdrawn(address: SocketAddr) -> Self {
        Self {
            address,
            endpoints: Arc::new([]),
            admits_untranslated: true,
        }
    }

    /// Whether a flow to this destination with this reply source is valid.
    #[must_use]
    pub fn admits(&self, reply_source: SocketAddr) -> bool {
        let is_untranslated = reply_source == self.address;
        (is_untranslated && self.admits_untranslated) || self.endpoints.binary_search(&reply_source).is_ok()
    }

    fn reply_sources(&self) -> impl Iterator<Item = SocketAddr> {
        let endpoints = self.endpoints.iter().copied();
        endpoints.chain(self.admits_untranslated.then_some(self.address))
    }
}

/// Reads destination and reply source of the UDP flows to the destinations for which `is_relevant` is true, in zone 0.
///
/// # Errors
/// If the table cannot be listed.
pub fn read_flows(
    conntrack: &mut (impl Conntrack + ?Sized),
    is_relevant: impl Fn(SocketAddr) -> bool,
) -> Result<BTreeSet<(SocketAddr, SocketAddr)>, Error> {
    let mut found = BTreeSet::new();
    let udp = Filter::new().with_protocol(Protocol::UDP).with_zone(ZONE);
    for flow in conntrack.flows(&udp)? {
        let flow = flow?;
        let destination = flow.original.destination_socket();
        if is_relevant(destination) {
            found.insert((destination, flow.reply.source_socket()));
        }
    }
    Ok(found)
}

impl fmt::Display for DeleteFlows {
    /// `conntrack` has no option for such a pass, so all lines are comments: the destinations, with the reply sources of valid flows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.destinations.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(
            f,
            "# conntrack: delete the stale {} UDP flows to {count} destination{plural}",
            self.family
        )?;
        if self.keeps_translated {
            f.write_str(", except those that rules translated")?;
        }
        for destination in &self.destinations {
            write!(f, "\n#   {}, valid reply sources:", destination.address)?;
            let mut separator = " ";
            for source in destination.reply_sources() {
                write!(f, "{separator}{source}")?;
                separator = ", ";
            }
            if separator == " " {
                f.write_str(" none")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(addresses: &[&str]) -> Arc<[SocketAddr]> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn a_pass_prints_its_destinations_as_comments() {
        let served = |address: &str, of: &[&str]| {
            FlowDestination::served(address.parse().unwrap(), endpoints(of), false)
        };
        let pass = DeleteFlows {
            family: Family::Ipv4,
            destinations: vec![
                served("10.96.0.10:53", &["10.244.0.2:5353", "10.244.1.2:5353"]),
                served("10.96.0.11:53", &[]),
                FlowDestination::withdrawn("192.0.2.1:30053".parse().unwrap()),
            ],
            keeps_translated: false,
        };
        assert_eq!(
            pass.to_string(),
            "# conntrack: delete the stale IPv4 UDP flows to 3 destinations\n\
             #   10.96.0.10:53, valid reply sources: 10.244.0.2:5353, 10.244.1.2:5353\n\
             #   10.96.0.11:53, valid reply sources: none\n\
             #   192.0.2.1:30053, valid reply sources: 192.0.2.1:30053"
        );
    }

    #[test]
    fn untranslated_flows_are_valid_only_if_packets_are_forwarded_unchanged() {
        let address = "203.0.113.1:53".parse().unwrap();
        let translated = FlowDestination::served(address, endpoints(&["10.244.0.2:53"]), false);
        assert!(!translated.admits(address));
        let unchanged = FlowDestination::served(address, endpoints(&["10.244.0.2:53"]), true);
        assert!(unchanged.admits(address));
        assert!(unchanged.admits("10.244.0.2:53".parse().unwrap()));
        assert!(!unchanged.admits("10.244.0.3:53".parse().unwrap()));
    }
}
