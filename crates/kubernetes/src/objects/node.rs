//! Conversion of Nodes.

use std::fmt;

use kernlink_services::address::{parse_address, parse_net};
use kernlink_services::{Node, NodeAddress, NodeAddressType};

use super::partial::{self as api, Label, Time};
use super::{Converted, Names, quoted};
use crate::error::{FieldError, FieldErrors};

/// Converts all fields except the addresses and pod networks.
pub(super) fn convert(object: &api::Node, names: &mut Names, errors: &mut FieldErrors) -> Option<Node> {
    let default = api::Metadata::default();
    let metadata = object.metadata.as_ref().unwrap_or(&default);
    let mut node = Node::new(names.own_name(metadata, errors)?);
    let zone = Label::find(&metadata.labels, "topology.kubernetes.io/zone");
    node.zone = names.intern_some(zone.as_deref());
    let taints = object.spec.iter().flat_map(|spec| &spec.taints);
    let is_to_be_deleted = taints
        .into_iter()
        .any(|taint| taint.key.as_deref() == Some("ToBeDeletedByClusterAutoscaler"));
    node.is_leaving = metadata.deletion_timestamp.as_ref().is_some_and(Time::is_present) || is_to_be_deleted;
    Some(node)
}

/// A Node to which pod networks and addresses are added.
pub(crate) struct NodeBuilder {
    node: Option<Node>,
    errors: Vec<FieldError>,
}

impl NodeBuilder {
    pub(super) fn new(node: Option<Node>, errors: FieldErrors) -> Self {
        let is_valid = errors.is_usable();
        Self {
            node: node.filter(|_| is_valid),
            errors: errors.into_vec(),
        }
    }

    /// Adds the pod networks of an object: those of the list, or that of the older field if there is none.
    pub(super) fn add_networks(&mut self, spec: &api::NodeSpec) {
        for (position, text) in spec.pod_cidrs.iter().enumerate() {
            self.add_network(&format!("spec.podCIDRs[{position}]"), text);
        }
        let single = spec.pod_cidr.iter().filter(|text| !text.is_empty());
        if spec.pod_cidrs.is_empty() {
            single.for_each(|text| self.add_network("spec.podCIDR", text));
        }
    }

    /// Adds a pod network that is valid, and reports one that is not.
    pub(super) fn add_network(&mut self, field: &str, text: &str) {
        let Some(node) = &mut self.node else {
            return;
        };
        match parse_net(text) {
            Some(net) => node.pod_cidrs.push(net),
            None => self.errors.push(FieldError {
                field: field.to_owned(),
                reason: format!("{} is not a network such as 10.244.1.0/24", quoted(text)),
            }),
        }
    }

    /// Adds an address that is valid, and reports one that is not.
    pub(crate) fn add(&mut self, position: usize, object: &api::NodeAddress) {
        let address_type = match object.type_.as_deref().unwrap_or_default() {
            "InternalIP" => NodeAddressType::Internal,
            "ExternalIP" => NodeAddressType::External,
            _ => return,
        };
        let Some(node) = &mut self.node else {
            return;
        };
        let text = object.address.as_deref().unwrap_or_default();
        match parse_address(text) {
            Some(address) => node.addresses.push(NodeAddress {
                address,
                address_type,
            }),
            None => {
                let reason = format!("{} is not an IP address", quoted(text));
                let field = "address".to_owned();
                self.reject(
                    format_args!("status.addresses[{position}]"),
                    FieldError { field, reason },
                );
            }
        }
    }

    /// Reports a part that cannot be added.
    pub(super) fn reject(&mut self, part: impl fmt::Display, error: FieldError) {
        self.errors.push(error.inside(part));
    }

    pub(crate) fn finish(self) -> Converted<Node> {
        Converted {
            object: self.node,
            errors: self.errors,
        }
    }
}
