//! Which endpoints serve internal and external traffic.

use super::endpoint::Endpoint;
use super::port_spec::PortSpec;

/// The endpoints chosen for a service port.
#[derive(Debug, Default)]
pub(crate) struct Choice<'a> {
    /// For a policy of `Cluster`; empty also where no traffic of the port has this policy.
    pub(crate) cluster: Vec<&'a Endpoint<'a>>,
    /// For a policy of `Local`; empty also where no traffic of the port has this policy.
    pub(crate) local: Vec<&'a Endpoint<'a>>,
    /// Whether any endpoint, here or elsewhere, could take traffic.
    pub(crate) has_any: bool,
}

/// What the endpoints' hints ask for on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preference {
    SameNode,
    SameZone,
    None,
}

/// Chooses endpoints: ready ones, where hints prefer those of this node or zone; where none is ready, those that still serve
/// while terminating, wherever they are.
pub(crate) fn choose<'a>(
    endpoints: &'a [Endpoint<'a>],
    port: &PortSpec,
    this_node: &str,
    zone: Option<&str>,
) -> Choice<'a> {
    let mut choice = Choice::default();
    if port.uses_cluster_endpoints() {
        let preference = preference(endpoints, this_node, zone);
        choice.cluster.reserve(endpoints.len());
        let permitted = |endpoint: &Endpoint<'_>| match preference {
            Preference::SameNode => for_node(endpoint, this_node),
            Preference::SameZone => zone.is_some_and(|zone| for_zone(endpoint, zone)),
            Preference::None => true,
        };
        choice
            .cluster
            .extend(endpoints.iter().filter(|e| e.ready() && permitted(e)));
        if choice.cluster.is_empty() {
            choice
                .cluster
                .extend(endpoints.iter().filter(|e| e.serves_while_terminating()));
        }
    }
    if port.uses_local_endpoints() {
        choice
            .local
            .extend(endpoints.iter().filter(|e| e.local && e.ready()));
        if choice.local.is_empty() {
            choice.local.extend(
                endpoints
                    .iter()
                    .filter(|e| e.local && e.serves_while_terminating()),
            );
        }
    }
    choice.has_any = endpoints
        .iter()
        .any(|e| e.ready() || e.serves_while_terminating());
    choice
}

/// Hints count only if every ready endpoint has them and one of them is meant for here.
fn preference(endpoints: &[Endpoint<'_>], this_node: &str, zone: Option<&str>) -> Preference {
    let mut nodes_known = !this_node.is_empty();
    let mut zones_known = zone.is_some();
    let (mut node_named, mut zone_named) = (false, false);
    for endpoint in endpoints.iter().filter(|e| e.ready()) {
        let Some(hints) = endpoint.hints else {
            return Preference::None;
        };
        nodes_known &= !hints.nodes.is_empty();
        zones_known &= !hints.zones.is_empty();
        node_named |= for_node(endpoint, this_node);
        zone_named |= zone.is_some_and(|zone| for_zone(endpoint, zone));
        if !nodes_known && !zones_known {
            return Preference::None;
        }
    }
    if nodes_known && node_named {
        Preference::SameNode
    } else if zones_known && zone_named {
        Preference::SameZone
    } else {
        Preference::None
    }
}

fn for_node(endpoint: &Endpoint<'_>, node: &str) -> bool {
    endpoint
        .hints
        .is_some_and(|hints| hints.nodes.iter().any(|name| **name == *node))
}

fn for_zone(endpoint: &Endpoint<'_>, zone: &str) -> bool {
    endpoint
        .hints
        .is_some_and(|hints| hints.zones.iter().any(|name| **name == *zone))
}
