//! The choice of endpoints for each traffic policy, as in kube-proxy's `CategorizeEndpoints`.

use super::endpoint::Endpoint;
use super::port_spec::PortSpec;

/// The endpoints chosen for a service port.
#[derive(Debug, Default)]
pub(crate) struct Choice<'a> {
    /// For the policy `Cluster`; also empty if no traffic of the port has this policy.
    pub(crate) cluster: Vec<&'a Endpoint<'a>>,
    /// For the policy `Local`; also empty if no traffic of the port has this policy.
    pub(crate) local: Vec<&'a Endpoint<'a>>,
    /// Whether any endpoint, on any node, accepts traffic.
    pub(crate) has_any: bool,
}

/// The endpoints that hints prefer on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preference {
    SameNode,
    SameZone,
    None,
}

/// Chooses the ready endpoints; for the policy `Cluster`, hints restrict them to those for this node or zone. If no endpoint is left,
/// chooses those that are serving and terminating, without regard to hints.
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
        let is_permitted = |endpoint: &Endpoint<'_>| match preference {
            Preference::SameNode => is_for_node(endpoint, this_node),
            Preference::SameZone => zone.is_some_and(|zone| is_for_zone(endpoint, zone)),
            Preference::None => true,
        };
        choice
            .cluster
            .extend(endpoints.iter().filter(|e| e.is_ready() && is_permitted(e)));
        if choice.cluster.is_empty() {
            choice
                .cluster
                .extend(endpoints.iter().filter(|e| e.is_serving_terminating()));
        }
    }
    if port.uses_local_endpoints() {
        choice
            .local
            .extend(endpoints.iter().filter(|e| e.is_local && e.is_ready()));
        if choice.local.is_empty() {
            choice.local.extend(
                endpoints
                    .iter()
                    .filter(|e| e.is_local && e.is_serving_terminating()),
            );
        }
    }
    choice.has_any = endpoints
        .iter()
        .any(|e| e.is_ready() || e.is_serving_terminating());
    choice
}

/// Hints are used only if every ready endpoint has them, and at least one endpoint is for this node or zone.
fn preference(endpoints: &[Endpoint<'_>], this_node: &str, zone: Option<&str>) -> Preference {
    let mut all_have_nodes = !this_node.is_empty();
    let mut all_have_zones = zone.is_some();
    let (mut any_for_node, mut any_for_zone) = (false, false);
    for endpoint in endpoints.iter().filter(|e| e.is_ready()) {
        let Some(hints) = endpoint.hints else {
            return Preference::None;
        };
        all_have_nodes &= !hints.nodes.is_empty();
        all_have_zones &= !hints.zones.is_empty();
        any_for_node |= is_for_node(endpoint, this_node);
        any_for_zone |= zone.is_some_and(|zone| is_for_zone(endpoint, zone));
        if !all_have_nodes && !all_have_zones {
            return Preference::None;
        }
    }
    if all_have_nodes && any_for_node {
        Preference::SameNode
    } else if all_have_zones && any_for_zone {
        Preference::SameZone
    } else {
        Preference::None
    }
}

fn is_for_node(endpoint: &Endpoint<'_>, node: &str) -> bool {
    endpoint
        .hints
        .is_some_and(|hints| hints.nodes.iter().any(|name| **name == *node))
}

fn is_for_zone(endpoint: &Endpoint<'_>, zone: &str) -> bool {
    endpoint
        .hints
        .is_some_and(|hints| hints.zones.iter().any(|name| **name == *zone))
}
