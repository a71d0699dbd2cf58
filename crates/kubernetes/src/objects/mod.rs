//! Conversion of API objects to the types of [`kernlink_services`], for manifests and for watchers of an API server.
//!
//! The objects are those of [`k8s_openapi`] with any of its Kubernetes versions from 1.33 to 1.37.
//!
//! ```
//! use k8s_openapi::api::core::v1;
//! use kernlink_kubernetes::objects::Converter;
//!
//! let mut object = v1::Service::default();
//! object.metadata.namespace = Some("shop".to_owned());
//! object.metadata.name = Some("web".to_owned());
//! let port = v1::ServicePort { port: 80, ..Default::default() };
//! object.spec = Some(v1::ServiceSpec { ports: Some(vec![port]), ..Default::default() });
//!
//! let converted = Converter::new().service(&object);
//! let service = converted.object.ok_or("invalid")?;
//! assert_eq!(service.name.to_string(), "shop/web");
//! assert_eq!(service.ports[0].port, 80);
//! # Ok::<(), &str>(())
//! ```

mod endpoint_slice;
mod node;
pub(crate) mod partial;
mod service;
#[cfg(any(feature = "manifest", feature = "watch"))]
mod used;
#[cfg(any(feature = "manifest", feature = "watch"))]
pub(crate) mod value;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::{core, discovery};
use kernlink_services::{EndpointSlice, Node, ObjectName, Protocol, Service};

pub(crate) use self::endpoint_slice::SliceBuilder;
pub(crate) use self::node::NodeBuilder;
use crate::error::{FieldError, FieldErrors};

/// The outcome of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted<T> {
    /// The object. `None` if a field of the object as a whole is invalid. An invalid endpoint, Node address or pod network, a port with an
    /// unknown protocol, an endpoint port that is out of range, and an unknown value of a policy or type are ignored, and the object is converted without them.
    pub object: Option<T>,
    /// All invalid fields: those of the object as a whole, then those of its endpoints, addresses and networks.
    pub errors: Vec<FieldError>,
}

/// Converts API objects.
///
/// Many objects of a cluster contain the same names of namespaces, nodes, zones and ports. A converter shares one allocation per name
/// between all objects that it returns, so using one converter for all objects of a cluster saves memory.
#[derive(Clone, Debug, Default)]
pub struct Converter {
    names: Names,
}

impl Converter {
    /// A converter that has not seen any name.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Converts a Service.
    ///
    /// - An unknown value of `type`, `sessionAffinity`, `internalTrafficPolicy` or `externalTrafficPolicy` is the default of the field, as in
    ///   kube-proxy. An address with an unknown `ipMode` is not served. A port with an unknown protocol is ignored, and so is an unknown item of `ipFamilies`
    ///   together with its cluster IP. Any other invalid field makes the whole Service invalid.
    /// - A missing namespace is `default`.
    /// - Cluster IPs, external IPs, load balancer addresses and source ranges are kept as written.
    /// - Labels and annotations are kept only if a service proxy may use them: their prefix is `kernlink.io` or `service.kubernetes.io`.
    /// - `sessionAffinity: ClientIP` without a timeout has the API server's default, 3 h.
    pub fn service(&mut self, object: &core::v1::Service) -> Converted<Service> {
        self.service_after(&object.into(), Vec::new())
    }

    /// Converts an EndpointSlice. An endpoint with an invalid field is ignored, and so is a port with an unknown protocol or with a number
    /// that is out of range.
    ///
    /// - A missing namespace is `default`.
    /// - Only the first address of an endpoint is used. An IPv4-mapped IPv6 address is converted to the IPv4 address.
    /// - A slice of the address type `FQDN`, or of an unknown one, is converted without its endpoints.
    pub fn endpoint_slice(&mut self, object: &discovery::v1::EndpointSlice) -> Converted<EndpointSlice> {
        self.whole_endpoint_slice(&object.into())
    }

    /// Converts a Node. An invalid address or pod network is ignored.
    ///
    /// Only addresses of the types `InternalIP` and `ExternalIP` are converted. `spec.podCIDR` is used if `spec.podCIDRs` is empty.
    pub fn node(&mut self, object: &core::v1::Node) -> Converted<Node> {
        self.whole_node(&object.into())
    }

    pub(crate) fn whole_endpoint_slice(
        &mut self,
        object: &partial::EndpointSlice,
    ) -> Converted<EndpointSlice> {
        let mut part = self.endpoint_slice_after(object, Vec::new());
        for (position, endpoint) in object.endpoints.iter().enumerate() {
            part.add(self, position, endpoint);
        }
        part.finish()
    }

    pub(crate) fn whole_node(&mut self, object: &partial::Node) -> Converted<Node> {
        let mut part = self.node_after(object, Vec::new());
        object.spec.iter().for_each(|spec| part.add_networks(spec));
        let addresses = object.status.iter().flat_map(|status| &status.addresses);
        for (position, address) in addresses.enumerate() {
            part.add(position, address);
        }
        part.finish()
    }

    /// Converts a Service as the API server sends it. Of the object only the fields that a service proxy uses are read: nothing in any other
    /// field, of any type, has an effect. The type of [`k8s_openapi`] is stricter: a condition without `lastTransitionTime`, which the API
    /// server stores, is an error there.
    #[cfg(any(feature = "manifest", feature = "watch"))]
    pub fn service_from_json(&mut self, object: serde_json::Value) -> Converted<Service> {
        value::service(self, &mut { object })
    }

    /// Converts an EndpointSlice as the API server sends it; see [`service_from_json`](Self::service_from_json).
    #[cfg(any(feature = "manifest", feature = "watch"))]
    pub fn endpoint_slice_from_json(&mut self, object: serde_json::Value) -> Converted<EndpointSlice> {
        value::endpoint_slice(self, &mut { object })
    }

    /// Converts a Node as the API server sends it; see [`service_from_json`](Self::service_from_json).
    #[cfg(any(feature = "manifest", feature = "watch"))]
    pub fn node_from_json(&mut self, object: serde_json::Value) -> Converted<Node> {
        value::node(self, &mut { object })
    }

    /// As [`Self::service`], for an object whose fields with these type errors were reset to defaults.
    pub(crate) fn service_after(
        &mut self,
        object: &partial::Service,
        type_errors: Vec<FieldError>,
    ) -> Converted<Service> {
        let mut errors = FieldErrors::of_types(type_errors);
        let object = service::convert(object, &mut self.names, &mut errors);
        let is_valid = errors.is_usable();
        Converted {
            object: object.filter(|_| is_valid),
            errors: errors.into_vec(),
        }
    }

    /// As [`Self::endpoint_slice`], without the endpoints, for an object whose fields with these type errors were reset to defaults.
    pub(crate) fn endpoint_slice_after(
        &mut self,
        object: &partial::EndpointSlice,
        type_errors: Vec<FieldError>,
    ) -> SliceBuilder {
        let mut errors = FieldErrors::of_types(type_errors);
        let slice = endpoint_slice::convert(object, &mut self.names, &mut errors);
        SliceBuilder::new(slice, errors)
    }

    /// As [`Self::node`], without the addresses and pod networks, for an object whose fields with these type errors were reset to defaults.
    pub(crate) fn node_after(&mut self, object: &partial::Node, type_errors: Vec<FieldError>) -> NodeBuilder {
        let mut errors = FieldErrors::of_types(type_errors);
        let node = node::convert(object, &mut self.names, &mut errors);
        NodeBuilder::new(node, errors)
    }
}

/// Shares one allocation per distinct text.
#[derive(Clone, Debug, Default)]
struct Names {
    known: HashSet<Arc<str>>,
    /// Unused names are removed when the set has this many.
    limit: usize,
}

impl Names {
    const MIN_LIMIT: usize = 1_024;

    fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.limit {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.limit = (self.known.len() * 2).max(Self::MIN_LIMIT);
        }
        let new: Arc<str> = Arc::from(text);
        self.known.insert(Arc::clone(&new));
        new
    }

    /// The name; `None` if it is absent or empty.
    fn intern_some(&mut self, text: Option<&str>) -> Option<Arc<str>> {
        text.filter(|text| !text.is_empty()).map(|text| self.intern(text))
    }

    /// The namespace and name of a namespaced object. `None`, with an error, if it has no name.
    fn object_name(&mut self, metadata: &partial::Metadata, errors: &mut FieldErrors) -> Option<ObjectName> {
        let name = self.own_name(metadata, errors)?;
        let namespace = metadata.namespace.as_deref().filter(|text| !text.is_empty());
        let namespace = self.intern(namespace.unwrap_or(DEFAULT_NAMESPACE));
        Some(ObjectName { namespace, name })
    }

    /// The name of an object without a name, which is checked but not returned.
    fn empty_name(&mut self) -> ObjectName {
        let empty = self.intern("");
        ObjectName::new(Arc::clone(&empty), empty)
    }

    fn own_name(&mut self, metadata: &partial::Metadata, errors: &mut FieldErrors) -> Option<Arc<str>> {
        let reason = match metadata.name.as_deref() {
            None => "is missing",
            Some("") => "must not be empty",
            Some(name) => return Some(self.intern(name)),
        };
        errors.add("metadata.name", reason);
        None
    }
}

/// The namespace of an object without one, as for `kubectl apply`.
pub(crate) const DEFAULT_NAMESPACE: &str = "default";

/// Parses a text with a fixed set of values. The default if it is absent, empty or unknown: later versions of Kubernetes may have more values, for
/// which kube-proxy uses the default too.
fn one_of<T: Copy + Default>(
    text: Option<&String>,
    field: impl fmt::Display,
    values: &[(&str, T)],
    expected: &str,
    errors: &mut FieldErrors,
) -> T {
    let text = match text.map_or("", String::as_str) {
        "" => return T::default(),
        text => text,
    };
    let found = values.iter().find(|(name, _)| *name == text);
    if found.is_none() {
        let reason = format!("{} is not {expected}; the default is used", quoted(text));
        errors.ignore(field, reason);
    }
    found.map_or_else(T::default, |(_, value)| *value)
}

/// Parses the protocol of a port; TCP if absent or empty. `None` if it is unknown: the port is ignored.
fn protocol(text: Option<&String>, field: impl fmt::Display, errors: &mut FieldErrors) -> Option<Protocol> {
    match text.map_or("", String::as_str) {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        text => {
            let reason = format!("{} is not TCP, UDP or SCTP; the port is ignored", quoted(text));
            errors.ignore(field, reason);
            None
        }
    }
}

/// Checks the range of a port of a Service; 0 if absent, 0 or invalid.
fn port(number: Option<i32>, field: impl fmt::Display, errors: &mut FieldErrors) -> u16 {
    let number = number.unwrap_or_default();
    u16::try_from(number).unwrap_or_else(|_| {
        errors.add(field, not_a_port(number));
        0
    })
}

fn not_a_port(number: i32) -> String {
    format!("{number} is not a port (1 to 65535)")
}

/// The text in quotation marks; a long text is cut after 80 characters.
fn quoted(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_unused_names_are_removed() {
        let mut names = Names::default();
        let zone = names.intern("z1");
        assert!(Arc::ptr_eq(&zone, &names.intern("z1")));
        for number in 0..100_000 {
            names.intern(&format!("pod-{number}"));
        }
        assert!(names.known.len() <= Names::MIN_LIMIT, "{}", names.known.len());
        assert!(Arc::ptr_eq(&zone, &names.intern("z1")));
        // Names in use are never removed.
        let used: Vec<_> = (0..5_000)
            .map(|number| names.intern(&format!("node-{number}")))
            .collect();
        assert!(used.iter().all(|name| Arc::ptr_eq(name, &names.intern(name))));
    }
}
