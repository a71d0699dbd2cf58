//! The choice of endpoints for each traffic policy, as in kube-proxy's `CategorizeEndpoints`.

use super::endpoint::Endpoint;
use super::not_chosen::NotChosen;
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
    let selections = Selections::new(endpoints, port, this_node, zone);
    let chosen = |selection: Option<Selection<'_>>| {
        let Some(selection) = selection else {
            return Vec::new();
        };
        let mut chosen = Vec::with_capacity(if selection.is_local { 0 } else { endpoints.len() });
        chosen.extend(endpoints.iter().filter(|e| selection.refusal(e).is_none()));
        chosen
    };
    Choice {
        cluster: chosen(selections.cluster),
        local: chosen(selections.local),
        has_any: endpoints
            .iter()
            .any(|e| e.is_ready() || e.is_serving_terminating()),
    }
}

/// Which endpoints of a service port each traffic policy uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selections<'a> {
    /// `None`: no traffic of the port has the policy `Cluster`.
    pub(crate) cluster: Option<Selection<'a>>,
    /// `None`: no traffic of the port has the policy `Local`.
    pub(crate) local: Option<Selection<'a>>,
}

/// Which endpoints a traffic policy uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection<'a> {
    is_local: bool,
    preference: Preference,
    /// Whether no ready endpoint is left, so that those that are serving and terminating are used.
    uses_terminating: bool,
    this_node: &'a str,
    zone: Option<&'a str>,
}

impl<'a> Selections<'a> {
    pub(crate) fn new(
        endpoints: &[Endpoint<'_>],
        port: &PortSpec,
        this_node: &'a str,
        zone: Option<&'a str>,
    ) -> Self {
        let selection = |is_local: bool, preference| {
            let ready = Selection {
                is_local,
                preference,
                uses_terminating: false,
                this_node,
                zone,
            };
            let has_ready = endpoints.iter().any(|e| ready.refusal(e).is_none());
            Selection {
                uses_terminating: !has_ready,
                ..ready
            }
        };
        Self {
            cluster: port
                .uses_cluster_endpoints()
                .then(|| selection(false, preference(endpoints, this_node, zone))),
            local: port
                .uses_local_endpoints()
                .then(|| selection(true, Preference::None)),
        }
    }
}

impl Selection<'_> {
    /// Why an endpoint receives no traffic of the policy. `None`: it is chosen.
    pub(crate) fn refusal(&self, endpoint: &Endpoint<'_>) -> Option<NotChosen> {
        if self.is_local && !endpoint.is_local {
            return Some(NotChosen::OtherNode);
        }
        if self.uses_terminating {
            return match endpoint.is_serving_terminating() {
                true => None,
                // No hint is used: an endpoint that is ready would have been chosen.
                false => Some(not_accepting(endpoint)),
            };
        }
        if !endpoint.is_ready() {
            return Some(not_accepting(endpoint));
        }
        match self.preference {
            Preference::SameNode if !is_for_node(endpoint, self.this_node) => {
                Some(NotChosen::HintsOfOtherNodes)
            }
            Preference::SameZone if !self.zone.is_some_and(|zone| is_for_zone(endpoint, zone)) => {
                Some(NotChosen::HintsOfOtherZones)
            }
            _ => None,
        }
    }
}

/// Why an endpoint that is not ready receives no traffic.
fn not_accepting(endpoint: &Endpoint<'_>) -> NotChosen {
    match (endpoint.conditions.terminating, endpoint.conditions.serving) {
        (true, true) => NotChosen::Terminating,
        (true, false) => NotChosen::TerminatingNotServing,
        (false, _) => NotChosen::NotReady,
    }
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
