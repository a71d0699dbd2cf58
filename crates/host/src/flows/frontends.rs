//! The UDP frontends, and which of their flows became stale.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use kernlink_host::DeleteFlows;
use kernlink_host::flows::{FlowDestination, TrackedFlows};
use kernlink_services::{Family, ObjectName, Protocol, ServicePort, ServicePortId};

/// The UDP frontends with the endpoints of their flows, and the destinations whose flows are to be compared.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    desired: HashMap<SocketAddr, Destination>,
    /// The destinations that a change of a Service makes stale when it is written.
    pub(super) changed: BTreeMap<SocketAddr, ObjectName>,
    /// All UDP flows were read: which of them are to frontends is known after the Services were compiled.
    pub(super) tracked: TrackedFlows,
}

#[derive(Clone, Debug)]
struct Destination {
    port: ServicePortId,
    /// Sorted.
    endpoints: Arc<[SocketAddr]>,
}

impl Flows {
    /// Replaces the addresses of a service port, and notes those whose flows become stale: the frontend or one of its endpoints is removed,
    /// or it gets the first ones.
    pub(super) fn replace(
        &mut self,
        id: ServicePortId,
        service: &ObjectName,
        before: &[SocketAddr],
        now: &[SocketAddr],
        endpoints: &Arc<[SocketAddr]>,
    ) {
        for address in now {
            let is_stale = match self.desired.get(address) {
                None => !endpoints.is_empty(),
                Some(before) => {
                    let is_gone = |endpoint: &SocketAddr| endpoints.binary_search(endpoint).is_err();
                    let is_first = before.endpoints.is_empty() && !endpoints.is_empty();
                    is_first || before.endpoints.iter().any(is_gone)
                }
            };
            if is_stale {
                self.changed.insert(*address, service.clone());
            }
            let destination = Destination {
                port: id,
                endpoints: Arc::clone(endpoints),
            };
            self.desired.insert(*address, destination);
        }
        for address in before.iter().filter(|address| !now.contains(address)) {
            // Another service port may have it now.
            let is_of_port = |destination: &Destination| destination.port == id;
            if self.desired.get(address).is_some_and(is_of_port)
                && let Some(removed) = self.desired.remove(address)
                && !removed.endpoints.is_empty()
            {
                self.changed.insert(*address, service.clone());
            }
        }
    }

    /// The pass over these destinations.
    pub(super) fn pass(&self, family: Family, destinations: BTreeSet<SocketAddr>) -> DeleteFlows {
        let destination = |address: SocketAddr| match self.desired.get(&address) {
            Some(served) => FlowDestination::served(address, Arc::clone(&served.endpoints), false),
            None => FlowDestination::withdrawn(address),
        };
        DeleteFlows::new(family, destinations.into_iter().map(destination))
    }

    /// Compares the flows that were read with the desired endpoints.
    pub(super) fn compare_observed(&mut self) {
        for (address, reply_source) in self.tracked.take_observed() {
            let is_stale = self.desired.get(&address).is_some_and(|destination| {
                let endpoints = Arc::clone(&destination.endpoints);
                !FlowDestination::served(address, endpoints, false).admits(reply_source)
            });
            if is_stale {
                self.tracked.add_stale(address);
            }
        }
    }

    /// Records that a pass was done. A Service for which `is_written` is false makes flows stale when it is written.
    pub(super) fn record(&mut self, pass: &DeleteFlows, is_written: impl Fn(&ObjectName) -> bool) {
        self.tracked.record(pass);
        for destination in &pass.destinations {
            if self.changed.get(&destination.address).is_some_and(&is_written) {
                self.changed.remove(&destination.address);
            }
        }
    }
}

/// The endpoints that flows of a UDP service port may have: those of either policy, because the sources to which a frontend applies one or
/// the other are not known here. `None` for other protocols.
pub(super) fn endpoints(port: &ServicePort) -> Option<Arc<[SocketAddr]>> {
    if port.key.name.protocol != Protocol::Udp {
        return None;
    }
    let chosen = port.endpoints.cluster.iter().chain(&port.endpoints.local);
    let endpoints: BTreeSet<SocketAddr> = chosen
        .map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port))
        .collect();
    Some(endpoints.into_iter().collect())
}
