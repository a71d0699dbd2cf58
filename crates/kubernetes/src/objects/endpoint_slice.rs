//! Conversion of EndpointSlices.

use std::net::IpAddr;
use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;
use kernlink_services::address::parse_address;
use kernlink_services::{AddressType, Conditions, Endpoint, EndpointPort, EndpointSlice, Family, Hints};

use super::partial::{self as api, Label, Time};
use super::{Converted, Converter, Names, not_a_port, protocol, quoted};
use crate::error::{FieldError, FieldErrors};

/// Converts all fields except the endpoints. All invalid fields are reported.
pub(super) fn convert(
    object: &api::EndpointSlice,
    names: &mut Names,
    errors: &mut FieldErrors,
) -> Option<EndpointSlice> {
    let default = api::Metadata::default();
    let metadata = object.metadata.as_ref().unwrap_or(&default);
    let name = names.object_name(metadata, errors);
    let address_type = match object.address_type.as_deref().unwrap_or_default() {
        "IPv4" => Some(AddressType::Ip(Family::Ipv4)),
        "IPv6" => Some(AddressType::Ip(Family::Ipv6)),
        "FQDN" => Some(AddressType::Other),
        "" => {
            errors.add("addressType", "is missing");
            None
        }
        other => {
            let reason = format!(
                "{} is not IPv4, IPv6 or FQDN; the endpoints are ignored",
                quoted(other)
            );
            errors.ignore("addressType", reason);
            Some(AddressType::Other)
        }
    };
    let ports = object.ports.iter().enumerate();
    let ports = ports.filter_map(|(position, port)| endpoint_port(port, position, names, errors));
    let ports = ports.collect();
    let label = |name| Label::find(&metadata.labels, name);
    Some(EndpointSlice {
        name: name?,
        service: names.intern_some(label("kubernetes.io/service-name").as_deref()),
        is_headless: label("service.kubernetes.io/headless").is_some(),
        address_type: address_type?,
        ports,
        endpoints: Vec::new(),
        trigger_time: trigger_time(metadata),
    })
}

/// `None` if the protocol is unknown, or the number is out of range, which the API server does not check: the port is ignored.
fn endpoint_port(
    object: &api::EndpointPort,
    position: usize,
    names: &mut Names,
    errors: &mut FieldErrors,
) -> Option<EndpointPort> {
    let field = format_args!("ports[{position}].protocol");
    let protocol = protocol(object.protocol.as_ref(), field, errors)?;
    let number = object.port.unwrap_or_default();
    let Ok(port) = u16::try_from(number) else {
        let reason = format!("{}; the port is ignored", not_a_port(number));
        errors.ignore(format_args!("ports[{position}].port"), reason);
        return None;
    };
    let name = object.name.as_deref().map(|name| names.intern(name));
    Some(EndpointPort { name, protocol, port })
}

/// `None` if the annotation is missing or is not an RFC 3339 time: kube-proxy ignores such a value too.
fn trigger_time(metadata: &api::Metadata) -> Option<SystemTime> {
    let text = Label::find(
        &metadata.annotations,
        "endpoints.kubernetes.io/last-change-trigger-time",
    )?;
    let time: Timestamp = text.parse().ok()?;
    Time::from(time).time()
}

/// A slice to which endpoints are added.
pub(crate) struct SliceBuilder {
    slice: Option<EndpointSlice>,
    errors: Vec<FieldError>,
}

impl SliceBuilder {
    pub(super) fn new(slice: Option<EndpointSlice>, errors: FieldErrors) -> Self {
        let is_valid = errors.is_usable();
        Self {
            slice: slice.filter(|_| is_valid),
            errors: errors.into_vec(),
        }
    }

    /// Whether the endpoints are used: the slice is valid, and its address type is IPv4 or IPv6.
    #[cfg(any(feature = "manifest", feature = "watch"))]
    pub(crate) fn uses_endpoints(&self) -> bool {
        self.slice
            .as_ref()
            .is_some_and(|slice| slice.address_type != AddressType::Other)
    }

    /// Adds an endpoint that is valid, and reports one that is not.
    pub(crate) fn add(&mut self, converter: &mut Converter, position: usize, object: &api::Endpoint) {
        if let Some(slice) = &mut self.slice
            && let AddressType::Ip(family) = slice.address_type
        {
            match endpoint(object, family, &mut converter.names) {
                Ok(endpoint) => slice.endpoints.push(endpoint),
                Err(error) => self.reject(position, error),
            }
        }
    }

    pub(crate) fn reject(&mut self, position: usize, error: FieldError) {
        self.errors
            .push(error.inside(format_args!("endpoints[{position}]")));
    }

    pub(crate) fn finish(self) -> Converted<EndpointSlice> {
        Converted {
            object: self.slice,
            errors: self.errors,
        }
    }
}

fn endpoint(object: &api::Endpoint, family: Family, names: &mut Names) -> Result<Endpoint, FieldError> {
    let conditions = object.conditions.as_ref();
    let condition = |value: fn(&api::EndpointConditions) -> Option<bool>| conditions.and_then(value);
    let default = Conditions::default();
    let hints = object.hints.as_ref().map(|hints| {
        let mut all = |list: &[api::Named]| {
            let list = list.iter();
            list.map(|item| names.intern(item.name.as_deref().unwrap_or_default()))
                .collect()
        };
        Box::new(Hints {
            zones: all(&hints.for_zones),
            nodes: all(&hints.for_nodes),
        })
    });
    Ok(Endpoint {
        address: first_address(&object.addresses, family)?,
        conditions: Conditions {
            ready: condition(|conditions| conditions.ready).unwrap_or(default.ready),
            serving: condition(|conditions| conditions.serving).unwrap_or(default.serving),
            terminating: condition(|conditions| conditions.terminating).unwrap_or(default.terminating),
        },
        node: names.intern_some(object.node_name.as_deref()),
        zone: names.intern_some(object.zone.as_deref()),
        hints,
    })
}

fn first_address(addresses: &[String], family: Family) -> Result<IpAddr, FieldError> {
    let error = |field: &str, reason| FieldError {
        field: field.to_owned(),
        reason,
    };
    let Some(text) = addresses.first() else {
        return Err(error("addresses", "must not be empty".to_owned()));
    };
    let reason = match parse_address(text) {
        Some(address) if Family::of(address) == family => return Ok(address),
        Some(address) => format!("{address} is not an {family} address"),
        None => format!("{} is not an IP address", quoted(text)),
    };
    Err(error("addresses[0]", reason))
}
