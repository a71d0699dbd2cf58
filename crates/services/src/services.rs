//! The entry point of the crate: takes objects and returns arbitrated frontends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use kernlink_base::Family;

use crate::arbitration::{
    ArbitratedFrontend, Arbitration, Changes, FrontendKey, ServicePortId, UpdateReport,
};
use crate::config::Config;
use crate::event::{Event, Precedence};
use crate::model::{
    ExclusionReason, ExplainedEndpoints, Frontend, FrontendKind, HealthCheck, InterfaceAddress, Model,
    NodeFacts, ServicePort, ServicePortKey,
};
use crate::source::{Change, Kind, Node, ObjectName, Service, SourceId};

/// The Services of a cluster, resolved for one node: every frontend with its owner and its endpoints.
///
/// Sources call [`change`](Self::change). [`update`](Self::update) resolves the Services that the changes affect and decides
/// conflicts; its cost depends on the changes, not on the number of Services. [`take_changes`](Self::take_changes) returns the keys
/// that changed. This type performs no I/O and reads no clock.
#[derive(Clone, Debug)]
pub struct Services {
    model: Model,
    arbitration: Arbitration,
    /// The events about the configuration that were returned.
    reported: BTreeSet<Event>,
    /// The events about Services since the configuration changed.
    of_new_config: Vec<Event>,
}

impl Services {
    /// Creates an instance without objects, sources and interface addresses.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            model: Model::new(config),
            arbitration: Arbitration::default(),
            reported: BTreeSet::new(),
            of_new_config: Vec::new(),
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        self.model.config()
    }

    /// Replaces the configuration. The next update resolves all Services again, unless the configuration is the same, and returns the new
    /// events about them.
    pub fn set_config(&mut self, config: Config) {
        self.of_new_config.extend(self.model.set_config(config));
    }

    /// The facts of this node.
    #[must_use]
    pub fn node_facts(&self) -> &NodeFacts {
        self.model.node_facts()
    }

    /// Sets the addresses of this node's interfaces, without those that the service proxy itself added. Node ports are served at these
    /// addresses, so call it before the first update.
    pub fn set_interface_addresses(&mut self, addresses: Vec<InterfaceAddress>) {
        self.model.set_interface_addresses(addresses);
    }

    /// Declares that a source delivers a kind of object, so that [`has_synced`](Self::has_synced) waits for its first full list.
    /// A source that delivers an object is registered automatically.
    pub fn register_source(&mut self, source: SourceId, kind: Kind) {
        self.model.register_source(source, kind);
    }

    /// Removes a source with all its objects. [`has_synced`](Self::has_synced) no longer waits for it. Returns new events.
    pub fn remove_source(&mut self, source: SourceId) -> Vec<Event> {
        self.model.remove_source(source)
    }

    /// Whether a source of Services and one of EndpointSlices exist and every source has delivered its first full list of every
    /// kind it is registered for. A data path must not change anything before that, because it would delete Services that were not
    /// delivered yet.
    #[must_use]
    pub fn has_synced(&self) -> bool {
        self.not_synced().is_none()
    }

    /// The sources and kinds that [`has_synced`](Self::has_synced) waits for. `None` if it returns true.
    #[must_use]
    pub fn not_synced(&self) -> Option<NotSynced> {
        let not_synced = NotSynced {
            sources: self.model.not_synced(),
            missing: self.model.without_source(),
        };
        (!not_synced.sources.is_empty() || !not_synced.missing.is_empty()).then_some(not_synced)
    }

    /// Applies a change of a source. Returns new events about the changed objects; [`update`](Self::update) returns those about service
    /// ports and conflicts.
    pub fn change(&mut self, source: SourceId, change: Change) -> Vec<Event> {
        self.model.change(source, change)
    }

    /// Whether a change of an EndpointSlice since the last call must not wait for others: one of its endpoints does not accept traffic any more,
    /// or it has the first one that does.
    pub fn take_urgent(&mut self) -> bool {
        self.model.take_urgent()
    }

    /// Resolves the Services that were affected by changes since the last update, and decides conflicts.
    pub fn update(&mut self) -> UpdateReport {
        let affected = self.model.take_affected();
        let is_node_changed = affected.node;
        let mut updated = self.arbitration.update(&self.model, affected);
        if !self.of_new_config.is_empty() {
            // Of several configurations since the last update only the last one matters.
            let present: BTreeSet<Event> = self.model.object_events().into_iter().collect();
            let events = std::mem::take(&mut self.of_new_config).into_iter();
            updated
                .events
                .extend(events.filter(|event| present.contains(event)));
        }
        if is_node_changed {
            let now: BTreeSet<Event> = self.model.configuration_events().into_iter().collect();
            updated.events.extend(now.difference(&self.reported).cloned());
            self.reported = now;
        }
        updated
    }

    /// The changes since the last call. The first call returns everything.
    pub fn take_changes(&mut self) -> Changes {
        self.arbitration.take_changes()
    }

    /// Changes that name everything, as the first ones do: for a data path that begins after others took the changes. Call it after
    /// [`update`](Self::update).
    #[must_use]
    pub fn everything(&self) -> Changes {
        Changes {
            ports: self.ports().map(|(id, _)| id).collect(),
            services: self.services().map(|service| service.name.clone()).collect(),
            frontends: self.frontends().map(|frontend| frontend.key).collect(),
            health_checks: Family::ALL
                .into_iter()
                .flat_map(|family| {
                    let checks = self.health_checks(family).into_iter();
                    checks.map(move |check| (family, check.port.get()))
                })
                .collect(),
            node: true,
        }
    }

    /// The owner of a frontend key. `None` if no service port defines it.
    #[must_use]
    pub fn frontend(&self, key: &FrontendKey) -> Option<ArbitratedFrontend<'_>> {
        self.arbitration.frontend(key)
    }

    /// The number of frontend keys that several service ports define: one of them owns the key, and is served.
    #[must_use]
    pub fn number_of_conflicts(&self) -> usize {
        self.arbitration.conflicting()
    }

    /// The service ports that define a frontend key and do not own it, the next owner first, each with the kind of its frontend and the reason
    /// why the owner takes precedence.
    pub fn contenders(
        &self,
        key: &FrontendKey,
    ) -> impl Iterator<Item = (&ServicePort, FrontendKind, Precedence)> {
        self.arbitration.contenders(key)
    }

    /// The decision about each endpoint of a service port, with the reason if it receives no traffic. `None` if the service port does not
    /// exist. The cost is that of the endpoints of the Service.
    #[must_use]
    pub fn explain_endpoints(&self, key: &ServicePortKey) -> Option<ExplainedEndpoints> {
        self.model.explain_endpoints(key)
    }

    /// Why a Service is not served. `None` if it does not exist, or is served.
    #[must_use]
    pub fn exclusion(&self, service: &ObjectName) -> Option<ExclusionReason> {
        self.model.exclusion(service)
    }

    /// The events that apply to a Service and its EndpointSlices now, except those about conflicts, sorted, each once.
    #[must_use]
    pub fn events_of(&self, service: &ObjectName) -> Vec<Event> {
        let mut events = self.model.events_of(service);
        events.extend(self.ports_of(service).flat_map(|(_, port)| &port.events).cloned());
        events.sort();
        events.dedup();
        events
    }

    /// All frontend keys with their owners, in no particular order.
    pub fn frontends(&self) -> impl Iterator<Item = ArbitratedFrontend<'_>> {
        self.arbitration.frontends()
    }

    /// The service port with this id. `None` if it does not exist.
    #[must_use]
    pub fn port(&self, id: ServicePortId) -> Option<&ServicePort> {
        self.arbitration.port(id)
    }

    /// All service ports, in the order of their ids.
    pub fn ports(&self) -> impl Iterator<Item = (ServicePortId, &ServicePort)> {
        self.arbitration.ports()
    }

    /// The ports of a Service with their ids. Empty if the Service does not exist or is not served.
    pub fn ports_of(&self, service: &ObjectName) -> impl Iterator<Item = (ServicePortId, &ServicePort)> {
        self.arbitration.ports_of(service)
    }

    /// The service port with this key. `None` if it does not exist.
    #[must_use]
    pub fn port_by_key(&self, key: &ServicePortKey) -> Option<&ServicePort> {
        self.arbitration.port_by_key(key)
    }

    /// The frontends of a service port whose keys it owns, in the order of [`ServicePort::frontends`].
    pub fn owned_frontends(&self, id: ServicePortId) -> impl Iterator<Item = &Frontend> {
        self.arbitration.owned_frontends(id)
    }

    /// The health-check node ports of a family, sorted by port.
    #[must_use]
    pub fn health_checks(&self, family: Family) -> Vec<&HealthCheck> {
        self.arbitration.health_checks(family)
    }

    /// The health-check node port with this number. `None` if no Service has it.
    #[must_use]
    pub fn health_check(&self, family: Family, port: u16) -> Option<&HealthCheck> {
        self.arbitration.health_check(family, port)
    }

    /// This node as delivered by its source. `None` if its object does not exist, or was deleted.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.model.node()
    }

    /// The number of Services as delivered by their sources.
    #[must_use]
    pub fn number_of_services(&self) -> usize {
        self.model.number_of_services()
    }

    /// A Service as delivered by its source. `None` if it does not exist.
    #[must_use]
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.model.service(name)
    }

    /// All Services as delivered by their sources, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.model.services()
    }

    /// The number of Services that are not served, by reason.
    #[must_use]
    pub fn excluded(&self) -> BTreeMap<ExclusionReason, usize> {
        self.model.excluded()
    }

    /// All events that apply to the present state, sorted, each once.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.model.configuration_events();
        events.extend(self.model.object_events());
        events.extend(self.arbitration.events());
        events.sort();
        events.dedup();
        events
    }
}

/// The first full lists that are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotSynced {
    /// The sources that have not delivered their first full list, by kind.
    pub sources: Vec<(SourceId, Kind)>,
    /// The required kinds for which no source is registered.
    pub missing: Vec<Kind>,
}

impl fmt::Display for NotSynced {
    /// `waiting for the first full list of Service from source 0; no source delivers EndpointSlice`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (source, kind) in &self.sources {
            write!(
                f,
                "{separator}waiting for the first full list of {kind} from {source}"
            )?;
            separator = "; ";
        }
        for kind in &self.missing {
            write!(f, "{separator}no source delivers {kind}")?;
            separator = "; ";
        }
        Ok(())
    }
}
