//! Conversion of objects as trees of values, which may have fields of wrong types.

use kernlink_services::{EndpointSlice, Kind, Node, ObjectName, Service};
use serde_json::Value;

use super::partial::{self, Object};
use super::{Converted, Converter, DEFAULT_NAMESPACE, used};
use crate::deserialize::from_value;
use crate::error::FieldError;

/// Deserializes the fields of an object that are used.
#[cfg(feature = "watch")]
pub(crate) fn read(kind: Kind, text: &str) -> serde_json::Result<Value> {
    match kind {
        Kind::Service => used::SERVICE.read(text),
        Kind::EndpointSlice => used::ENDPOINT_SLICE.read(text),
        Kind::Node => used::NODE.read(text),
    }
}

/// The version of an object; empty if it has none.
#[cfg(feature = "watch")]
pub(crate) fn version(text: &str) -> String {
    let value = used::VERSION.read(text).unwrap_or_default();
    let version = value.pointer("/metadata/resourceVersion");
    version.and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Converts a Service. A field of a wrong type makes it invalid.
pub(crate) fn service(converter: &mut Converter, value: &mut Value) -> Converted<Service> {
    used::SERVICE.reduce(value);
    match from_value::<Object<partial::Service>>(value) {
        (Some(Object(object)), errors) => converter.service_after(&object, errors),
        (None, errors) => rejected(errors),
    }
}

/// Converts an EndpointSlice. Endpoints are deserialized one by one, so that a wrong type in one does not affect the others.
pub(crate) fn endpoint_slice(converter: &mut Converter, value: &mut Value) -> Converted<EndpointSlice> {
    used::ENDPOINT_SLICE.reduce(value);
    let endpoints = take_list(value.get_mut("endpoints"));
    let (object, errors) = from_value::<Object<partial::EndpointSlice>>(value);
    let Some(Object(object)) = object else {
        return rejected(errors);
    };
    let mut part = converter.endpoint_slice_after(&object, errors);
    let used = if part.uses_endpoints() {
        endpoints
    } else {
        Vec::new()
    };
    for (position, mut endpoint) in used.into_iter().enumerate() {
        match from_value(&mut endpoint) {
            (Some(Object(endpoint)), errors) if errors.is_empty() => part.add(converter, position, &endpoint),
            (_, errors) => errors.into_iter().for_each(|error| part.reject(position, error)),
        }
    }
    part.finish()
}

/// Converts a Node. Addresses and pod networks are deserialized one by one, as endpoints are.
pub(crate) fn node(converter: &mut Converter, value: &mut Value) -> Converted<Node> {
    used::NODE.reduce(value);
    let addresses = take_list(value.pointer_mut("/status/addresses"));
    let networks = take_networks(value);
    let (object, errors) = from_value::<Object<partial::Node>>(value);
    let Some(Object(object)) = object else {
        return rejected(errors);
    };
    let mut part = converter.node_after(&object, errors);
    for (field, mut network) in networks {
        match from_value::<String>(&mut network) {
            (Some(text), errors) if errors.is_empty() => part.add_network(&field, &text),
            (_, errors) => errors.into_iter().for_each(|error| part.reject(&field, error)),
        }
    }
    for (position, mut address) in addresses.into_iter().enumerate() {
        let field = format_args!("status.addresses[{position}]");
        match from_value(&mut address) {
            (Some(Object(address)), errors) if errors.is_empty() => part.add(position, &address),
            (_, errors) => errors.into_iter().for_each(|error| part.reject(field, error)),
        }
    }
    part.finish()
}

/// Takes the pod networks of a Node, each with its field: those of the list, or that of the older field if there is none.
fn take_networks(node: &mut Value) -> Vec<(String, Value)> {
    let single = node.pointer_mut("/spec/podCIDR").map(Value::take);
    let list = take_list(node.pointer_mut("/spec/podCIDRs"));
    if list.is_empty() {
        let is_absent = |value: &Value| value.is_null() || *value == "";
        let single = single.filter(|value| !is_absent(value));
        return single
            .map(|value| ("spec.podCIDR".to_owned(), value))
            .into_iter()
            .collect();
    }
    let list = list.into_iter().enumerate();
    list.map(|(position, value)| (format!("spec.podCIDRs[{position}]"), value))
        .collect()
}

/// The namespace and name, if they are valid.
pub(crate) fn name(kind: Kind, value: &Value) -> Option<ObjectName> {
    let name = value
        .pointer("/metadata/name")?
        .as_str()
        .filter(|name| !name.is_empty())?;
    let namespace = match value.pointer("/metadata/namespace") {
        _ if kind == Kind::Node => "",
        None | Some(Value::Null) => DEFAULT_NAMESPACE,
        Some(namespace) => match namespace.as_str()? {
            "" => DEFAULT_NAMESPACE,
            namespace => namespace,
        },
    };
    Some(ObjectName::new(namespace, name))
}

/// Whether the name of an object with these errors is known: one of a wrong type was removed.
pub(crate) fn has_valid_name(errors: &[FieldError]) -> bool {
    let names = ["metadata", "metadata.name", "metadata.namespace"];
    !errors.iter().any(|error| names.contains(&&*error.field))
}

fn rejected<T>(errors: Vec<FieldError>) -> Converted<T> {
    Converted { object: None, errors }
}

/// Takes the items of a list. A value that is not a list is unchanged, so that it causes a type error.
fn take_list(value: Option<&mut Value>) -> Vec<Value> {
    value
        .and_then(Value::as_array_mut)
        .map(std::mem::take)
        .unwrap_or_default()
}
