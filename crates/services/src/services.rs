//! The facade: objects in, arbitrated frontends out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use kernlink_base::Family;

use crate::arbitration::{
    ArbitratedFrontend, Arbitration, Changes, FrontendKey, ServicePortId, UpdateReport,
};
use crate::config::Config;
use crate::event::Event;
use crate::model::{
    ExclusionReason, Frontend, HealthCheck, InterfaceAddress, Model, NodeFacts, ServicePort, ServicePortKey,
};
use crate::source::{Change, Kind, ObjectName, Service, SourceId};

/// The Services of a cluster as one node serves them: every frontend with its owner and its endpoints.
///
/// Sources call [`change`](Self::change). [`update`](Self::update) resolves what the changes affect and decides conflicts; its
/// cost depends on what changed, not on the number of Services. [`take_changes`](Self::take_changes) names the keys to look up
/// afterwards. There is no I/O and no clock.
#[derive(Clone, Debug)]
pub struct Services {
    model: Model,
    arbitration: Arbitration,
    /// The configuration events that were returned.
    reported: BTreeSet<Event>,
}

impl Services {
    /// No objects, on a node whose interfaces are not known.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            model: Model::new(config),
            arbitration: Arbitration::default(),
            reported: BTreeSet::new(),
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        self.model.config()
    }

    /// Replaces the configuration. All Services are resolved again at the next update, unless it is the same.
    pub fn set_config(&mut self, config: Config) {
        self.model.set_config(config);
    }

    /// The facts of this node.
    #[must_use]
    pub fn node_facts(&self) -> &NodeFacts {
        self.model.node_facts()
    }

    /// Sets the addresses of this node's interfaces, without those that a service proxy bound itself. Call it before the first
    /// update: node ports are served at these addresses.
    pub fn set_interface_addresses(&mut self, addresses: Vec<InterfaceAddress>) {
        self.model.set_interface_addresses(addresses);
    }

    /// Declares that a source delivers a kind of object, so that [`has_synced`](Self::has_synced) waits for its first full list.
    /// A source that delivers an object is registered by that.
    pub fn register_source(&mut self, source: SourceId, kind: Kind) {
        self.model.register_source(source, kind);
    }

    /// Removes a source with all its objects. [`has_synced`](Self::has_synced) does not wait for it any more.
    pub fn remove_source(&mut self, source: SourceId) -> Vec<Event> {
        self.model.remove_source(source)
    }

    /// Whether a source of Services and one of EndpointSlices exist and every source has delivered its first full list of every
    /// kind it is registered for. A data path must not act before: a partial model would delete working Services.
    #[must_use]
    pub fn has_synced(&self) -> bool {
        self.not_synced().is_none()
    }

    /// The sources that [`has_synced`](Self::has_synced) waits for. `None` if there are none.
    #[must_use]
    pub fn not_synced(&self) -> Option<NotSynced> {
        let not_synced = NotSynced {
            sources: self.model.not_synced(),
            missing: self.model.without_source(),
        };
        (!not_synced.sources.is_empty() || !not_synced.missing.is_empty()).then_some(not_synced)
    }

    /// Applies a change of a source. Returns new events about the objects by themselves; events about service ports and conflicts
    /// are returned by the next [`update`](Self::update).
    pub fn change(&mut self, source: SourceId, change: Change) -> Vec<Event> {
        self.model.change(source, change)
    }

    /// Resolves what was affected by changes since the last update, and decides conflicts.
    pub fn update(&mut self) -> UpdateReport {
        let affected = self.model.take_affected();
        let mut updated = self.arbitration.update(&self.model, &affected);
        if affected.node {
            let now: BTreeSet<Event> = self.model.configuration_events().into_iter().collect();
            updated.events.extend(now.difference(&self.reported).cloned());
            self.reported = now;
        }
        updated
    }

    /// What changed since this was called last. The first call names everything.
    pub fn take_changes(&mut self) -> Changes {
        self.arbitration.take_changes()
    }

    /// The owner of a frontend key. `None` if no service port defines it.
    #[must_use]
    pub fn frontend(&self, key: &FrontendKey) -> Option<ArbitratedFrontend<'_>> {
        self.arbitration.frontend(key)
    }

    /// All frontend keys with their owners, in no particular order.
    pub fn frontends(&self) -> impl Iterator<Item = ArbitratedFrontend<'_>> {
        self.arbitration.frontends()
    }

    /// The service port with this id. `None` if it is gone.
    #[must_use]
    pub fn port(&self, id: ServicePortId) -> Option<&ServicePort> {
        self.arbitration.port(id)
    }

    /// All service ports, in the order of their ids.
    pub fn ports(&self) -> impl Iterator<Item = (ServicePortId, &ServicePort)> {
        self.arbitration.ports()
    }

    /// The ports of a Service with their ids; none if it is gone or not served.
    pub fn ports_of(&self, service: &ObjectName) -> impl Iterator<Item = (ServicePortId, &ServicePort)> {
        self.arbitration.ports_of(service)
    }

    /// The service port with this name and family.
    #[must_use]
    pub fn port_by_key(&self, key: &ServicePortKey) -> Option<&ServicePort> {
        self.arbitration.port_by_key(key)
    }

    /// The frontends of a service port that it owns, in their order.
    pub fn owned_frontends(&self, id: ServicePortId) -> impl Iterator<Item = &Frontend> {
        self.arbitration.owned_frontends(id)
    }

    /// The health-check node ports of a family, sorted by port.
    #[must_use]
    pub fn health_checks(&self, family: Family) -> Vec<&HealthCheck> {
        self.arbitration.health_checks(family)
    }

    /// A Service as its source delivered it.
    #[must_use]
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.model.service(name)
    }

    /// All Services as their sources delivered them, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.model.services()
    }

    /// The number of Services that are not served, by reason.
    #[must_use]
    pub fn excluded(&self) -> BTreeMap<ExclusionReason, usize> {
        self.model.excluded()
    }

    /// All events that describe the present state, sorted, each once.
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

/// What has to be delivered before a data path may act.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotSynced {
    /// The sources that have not delivered their first full list, by kind.
    pub sources: Vec<(SourceId, Kind)>,
    /// The kinds that no source delivers.
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
