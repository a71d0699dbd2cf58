//! The UDP frontends of a data path that translates the destination of packets, and which of their flows became stale.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;

use kernlink_engine::{Need, StaleFlows, Subject};
use kernlink_services::{Family, ObjectName, ServicePortId};

use super::{DeleteFlows, FlowDestination, TrackedFlows};

/// The UDP frontends with the endpoints of their flows, and the destinations whose flows are to be compared.
#[derive(Clone, Debug, Default)]
pub struct UdpFrontends {
    desired: HashMap<SocketAddr, Destination>,
    /// The destinations whose flows become stale when the changes of these Services are written.
    changed: BTreeMap<SocketAddr, BTreeSet<ObjectName>>,
    /// All UDP flows were read: which of them are to frontends is known after the Services were compiled.
    pub tracked: TrackedFlows,
}

#[derive(Clone, Debug)]
struct Destination {
    port: ServicePortId,
    /// Sorted.
    endpoints: Arc<[SocketAddr]>,
}

impl UdpFrontends {
    /// Replaces the addresses of a service port, and notes those whose flows become stale: the frontend or one of its endpoints is removed,
    /// or it gets the first ones. `endpoints` are [sorted](endpoints).
    pub fn replace(
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
                self.changed.entry(*address).or_default().insert(service.clone());
            } else {
                self.add_to_changed(address, service);
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
            if !self.desired.get(address).is_some_and(is_of_port) {
                self.add_to_changed(address, service);
            } else if let Some(removed) = self.desired.remove(address)
                && !removed.endpoints.is_empty()
            {
                self.changed.entry(*address).or_default().insert(service.clone());
            }
        }
    }

    /// Where a frontend passes from one Service to another, either may be written first: what the first one leaves is compared again after the
    /// other one.
    fn add_to_changed(&mut self, address: &SocketAddr, service: &ObjectName) {
        if let Some(services) = self.changed.get_mut(address) {
            services.insert(service.clone());
        }
    }

    /// Keeps the destinations of Services for which `is_pending` is true. Those of others were compared by the first listing.
    pub fn retain_changed(&mut self, is_pending: impl Fn(&ObjectName) -> bool) {
        self.changed.retain(|_, services| {
            services.retain(&is_pending);
            !services.is_empty()
        });
    }

    /// The destinations of a family whose flows are stale, or become stale by steps of a plan. `steps` returns those that write a Service; one
    /// without a step is in the kernel already, and was compared by the first listing.
    pub fn stale<K: Clone + Hash + Ord>(
        &self,
        family: Family,
        steps: impl Fn(&ObjectName) -> Vec<Need<K>>,
    ) -> StaleFlows<K> {
        let mut stale = StaleFlows::default();
        stale.stale(self.tracked.stale(family));
        let of_family = self.changed.iter();
        for (address, services) in of_family.filter(|(address, _)| Family::of(address.ip()) == family) {
            for service in services {
                for step in steps(service) {
                    stale.change([*address], Some(&Subject::Service(service.clone())), step);
                }
            }
        }
        stale
    }

    /// Records that it is not known whether the step was done after which [`stale_after`](Self::stale_after) compares: if it was, no step follows with which
    /// these destinations of a family would be compared.
    pub fn outcome_unknown(&mut self, family: Family) {
        let addresses = self.changed.keys().copied();
        addresses
            .filter(|address| Family::of(address.ip()) == family)
            .for_each(|address| self.tracked.add_stale(address));
    }

    /// The same for writes that no packet meets before another step was done, such as those to a table that is to replace another one: all
    /// stale destinations are compared after that step, and not before it. Those of Services that were written by an earlier plan are too.
    pub fn stale_after<K: Clone + Hash + Ord>(&self, family: Family, step: &Need<K>) -> StaleFlows<K> {
        let mut stale = StaleFlows::default();
        let known = self.tracked.stale(family).iter().copied();
        stale.change(known, Some(&Subject::DataPath), step.clone());
        let of_family = self.changed.iter();
        for (address, services) in of_family.filter(|(address, _)| Family::of(address.ip()) == family) {
            for service in services {
                let subject = Subject::Service(service.clone());
                stale.change([*address], Some(&subject), step.clone());
            }
        }
        stale
    }

    /// The pass over these destinations.
    #[must_use]
    pub fn pass(&self, family: Family, destinations: BTreeSet<SocketAddr>) -> DeleteFlows {
        let destination = |address: SocketAddr| match self.desired.get(&address) {
            Some(served) => FlowDestination::served(address, Arc::clone(&served.endpoints), false),
            None => FlowDestination::withdrawn(address),
        };
        DeleteFlows::new(family, destinations.into_iter().map(destination))
    }

    /// Compares the flows that were read with the desired endpoints.
    pub fn compare_observed(&mut self) {
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
    pub fn record(&mut self, pass: &DeleteFlows, is_written: impl Fn(&ObjectName) -> bool) {
        self.tracked.record(pass);
        for destination in &pass.destinations {
            if let Some(services) = self.changed.get_mut(&destination.address) {
                services.retain(|service| !is_written(service));
                if services.is_empty() {
                    self.changed.remove(&destination.address);
                }
            }
        }
    }
}

/// The endpoints that flows of a UDP service port may have, as [`UdpFrontends::replace`] expects them: those of either policy, because the
/// sources to which a frontend applies one or the other are not known.
pub fn endpoints(chosen: impl IntoIterator<Item = SocketAddr>) -> Arc<[SocketAddr]> {
    let endpoints: BTreeSet<SocketAddr> = chosen.into_iter().collect();
    endpoints.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use kernlink_services::{
        Change, Config, Kind, ObjectChange, Port, Protocol, Service, Services, SourceId,
    };

    use super::*;

    const FRONTEND: &str = "10.96.0.10:53";
    const ENDPOINT: &str = "10.244.0.1:53";

    /// The ids of two service ports.
    fn ids() -> [ServicePortId; 2] {
        let mut services = Services::new(Config::new("node-a"));
        let service = Service::new(service("a"))
            .with_cluster_ip("10.96.0.10")
            .with_port(Port::new("dns", 53).with_protocol(Protocol::Udp))
            .with_port(Port::new("other", 54).with_protocol(Protocol::Udp));
        services.change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
        for kind in [Kind::Service, Kind::EndpointSlice] {
            services.change(SourceId(0), Change::synced(kind));
        }
        services.update();
        let ids: Vec<ServicePortId> = services.ports().map(|(id, _)| id).collect();
        ids.try_into().unwrap()
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn service(name: &str) -> ObjectName {
        ObjectName::new("ns", name)
    }

    /// A frontend of Service `a` with an endpoint, whose flows were compared.
    fn served() -> UdpFrontends {
        let mut frontends = UdpFrontends::default();
        set(&mut frontends, 0, "a", &[], &[FRONTEND], &[ENDPOINT]);
        pass(&mut frontends, &["a"]);
        assert!(frontends.changed.is_empty());
        frontends
    }

    fn set(frontends: &mut UdpFrontends, id: usize, name: &str, before: &[&str], now: &[&str], to: &[&str]) {
        let all = |texts: &[&str]| -> Vec<SocketAddr> { texts.iter().map(|text| address(text)).collect() };
        let endpoints = endpoints(all(to));
        frontends.replace(ids()[id], &service(name), &all(before), &all(now), &endpoints);
    }

    /// Records a pass after these Services were written. Returns the Services after whose writes there is another one.
    fn pass(frontends: &mut UdpFrontends, written: &[&str]) -> Vec<String> {
        let pass = frontends.pass(Family::Ipv4, [address(FRONTEND)].into());
        frontends.record(&pass, |name| {
            written.iter().any(|written| *name == service(written))
        });
        let services = frontends.changed.values().flatten();
        services.map(ToString::to_string).collect()
    }

    #[test]
    fn a_frontend_that_passes_to_a_service_without_endpoints_is_compared_after_the_write_of_either() {
        let gone = |frontends: &mut UdpFrontends| set(frontends, 0, "a", &[FRONTEND], &[], &[]);
        let taken = |frontends: &mut UdpFrontends| set(frontends, 1, "b", &[], &[FRONTEND], &[]);
        for is_gone_first in [true, false] {
            let mut frontends = served();
            if is_gone_first {
                gone(&mut frontends);
                taken(&mut frontends);
            } else {
                taken(&mut frontends);
                gone(&mut frontends);
            }
            for (written, other) in [("a", "b"), ("b", "a")] {
                let mut frontends = frontends.clone();
                assert_eq!(
                    pass(&mut frontends, &[written]),
                    [format!("ns/{other}")],
                    "gone first: {is_gone_first}"
                );
                assert!(pass(&mut frontends, &[other]).is_empty());
            }
        }
    }

    #[test]
    fn the_same_endpoints_make_no_flow_stale() {
        let mut frontends = served();
        set(&mut frontends, 0, "a", &[FRONTEND], &[FRONTEND], &[ENDPOINT]);
        assert!(frontends.changed.is_empty());
    }
}
