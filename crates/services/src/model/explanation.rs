//! Why each endpoint of a service port receives traffic, or does not.

use std::net::IpAddr;
use std::sync::Arc;

use super::Model;
use super::endpoints::{self, UnusedSlice};
use super::not_chosen::NotChosen;
use super::service_port_name::ServicePortKey;
use super::topology::Selections;
use crate::source::Conditions;

/// The endpoints of a service port, with the decision about each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedEndpoints {
    /// All endpoints, sorted by address and port, each once.
    pub endpoints: Vec<ExplainedEndpoint>,
    /// The EndpointSlices of the Service whose endpoints do not belong to the port, sorted by name.
    pub unused_slices: Vec<UnusedSlice>,
    /// Whether any traffic of the port has the policy `Cluster`.
    pub uses_cluster: bool,
    /// Whether any traffic of the port has the policy `Local`.
    pub uses_local: bool,
}

/// An endpoint, and whether it receives traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedEndpoint {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The node on which it runs.
    pub node: Option<Arc<str>>,
    /// The zone of that node.
    pub zone: Option<Arc<str>>,
    /// Whether it is on this node.
    pub is_local: bool,
    /// Its conditions.
    pub conditions: Conditions,
    /// The weight for new connections if it is chosen; 0 receives none.
    pub weight: u16,
    /// Why it receives no traffic of the policy `Cluster`. `None`: it is chosen, or [no traffic](ExplainedEndpoints::uses_cluster) has the policy.
    pub cluster: Option<NotChosen>,
    /// The same for the policy `Local`.
    pub local: Option<NotChosen>,
}

impl Model {
    /// The decisions about the endpoints of a service port, by the code that chooses them. `None` if it does not exist.
    pub(crate) fn explain_endpoints(&self, key: &ServicePortKey) -> Option<ExplainedEndpoints> {
        let resolvable = self.resolvable.get(&key.name.service)?;
        let ports = &resolvable.ports.as_ref()?.ports;
        let port = ports.iter().find(|port| port.key() == *key)?;
        let slices = || resolvable.slices.iter().map(Arc::as_ref);
        let this_node = &self.config.node_name;
        let (name, protocol) = (&port.name.port, port.name.protocol);
        let found = endpoints::of_port(slices(), key.family, name, protocol, this_node);
        let selections = Selections::new(&found, port, this_node, self.node_facts.zone());
        let explained = found.iter().map(|e| ExplainedEndpoint {
            address: e.address,
            port: e.port,
            node: e.node.map(Into::into),
            zone: e.zone.map(Into::into),
            is_local: e.is_local,
            conditions: e.conditions,
            weight: port.service.options.weights.of(e.node, e.zone),
            cluster: selections.cluster.and_then(|selection| selection.refusal(e)),
            local: selections.local.and_then(|selection| selection.refusal(e)),
        });
        Some(ExplainedEndpoints {
            endpoints: explained.collect(),
            unused_slices: endpoints::unused(slices(), key.family, name, protocol),
            uses_cluster: selections.cluster.is_some(),
            uses_local: selections.local.is_some(),
        })
    }
}
