//! Merging of EndpointSlices to the endpoints of a service port.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use kernlink_base::Family;

use super::endpoint::{Endpoint, sort_and_deduplicate};
use crate::event::{AddressScope, Reason};
use crate::source::{
    AddressType, Endpoint as SliceEndpoint, EndpointPort, EndpointSlice, ObjectName, Protocol,
};

/// Whether a slice has endpoints of this family that a service proxy uses.
fn is_of(slice: &EndpointSlice, family: Family) -> bool {
    !slice.is_headless && slice.address_type == AddressType::Ip(family)
}

/// Whether a port of a slice has a name and a number.
fn is_complete(port: &EndpointPort) -> bool {
    port.port != 0 && port.name.is_some()
}

/// Whether an endpoint has a valid address of this family. The API server ensures it, but another source may not: it may mix families,
/// or deliver loopback, link-local, multicast or unspecified addresses.
fn is_reachable(endpoint: &SliceEndpoint, family: Family) -> bool {
    let address = endpoint.address.to_canonical();
    Family::of(address) == family && AddressScope::of(address).is_none()
}

/// The reasons why parts of a slice are ignored: those of ports, then those of endpoints, in the order of the slice.
pub(crate) fn unusable(slice: &EndpointSlice) -> impl Iterator<Item = Reason> {
    let is_used = !slice.is_headless && slice.address_type != AddressType::Other;
    let ports = slice.ports.iter().enumerate().filter(move |_| is_used);
    let ports = ports.filter_map(|(position, port)| match port {
        EndpointPort { name: None, .. } => Some(Reason::EndpointPortWithoutName { position }),
        EndpointPort { port: 0, .. } => Some(Reason::EndpointPortWithoutNumber { position }),
        _ => None,
    });
    let endpoints = slice.endpoints.iter().filter(move |_| is_used);
    let endpoints = endpoints.filter_map(|endpoint| {
        let address = endpoint.address.to_canonical();
        if let Some(scope) = AddressScope::of(address) {
            return Some(Reason::UnusableEndpoint { address, scope });
        }
        match slice.address_type {
            AddressType::Ip(family) if family != Family::of(address) => {
                Some(Reason::EndpointFamilyMismatch { address, family })
            }
            _ => None,
        }
    });
    ports.chain(endpoints)
}

/// Whether a port of a slice belongs to a port of the Service with this name and protocol.
fn is_of_port(port: &EndpointPort, name: &str, protocol: Protocol) -> bool {
    is_complete(port) && port.protocol == protocol && port.name.as_deref() == Some(name)
}

/// An EndpointSlice of a Service whose endpoints do not belong to a port of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnusedSlice {
    /// The slice.
    pub name: ObjectName,
    /// The number of its endpoints.
    pub endpoints: usize,
    /// Why they do not belong to the port.
    pub reason: UnusedReason,
}

/// Why the endpoints of a slice do not belong to a port of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnusedReason {
    /// The slice has no port with the name and protocol.
    NoPort,
    /// The slice has the label `service.kubernetes.io/headless`.
    Headless,
    /// `addressType` is no IP family.
    AddressType,
}

impl fmt::Display for UnusedReason {
    /// `it has no port with this name and protocol`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnusedReason::NoPort => "it has no port with this name and protocol",
            UnusedReason::Headless => "it has the label service.kubernetes.io/headless",
            UnusedReason::AddressType => "its addressType is neither IPv4 nor IPv6",
        })
    }
}

/// The slices of a Service that [`of_port`] takes no endpoints from, although they have some, except those of the other family.
pub(crate) fn unused<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    family: Family,
    name: &str,
    protocol: Protocol,
) -> Vec<UnusedSlice> {
    let reason = |slice: &EndpointSlice| match slice.address_type {
        AddressType::Other => Some(UnusedReason::AddressType),
        AddressType::Ip(of_slice) if of_slice != family => None,
        _ if !is_of(slice, family) => Some(UnusedReason::Headless),
        _ => {
            let has_port = slice.ports.iter().any(|port| is_of_port(port, name, protocol));
            (!has_port).then_some(UnusedReason::NoPort)
        }
    };
    slices
        .filter(|slice| !slice.endpoints.is_empty())
        .filter_map(|slice| {
            Some(UnusedSlice {
                name: slice.name.clone(),
                endpoints: slice.endpoints.len(),
                reason: reason(slice)?,
            })
        })
        .collect()
}

/// The endpoints of a service port, sorted by address and port, each once. `slices` are sorted by name.
pub(crate) fn of_port<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    family: Family,
    name: &str,
    protocol: Protocol,
    this_node: &str,
) -> Vec<Endpoint<'a>> {
    let mut endpoints = Vec::new();
    for slice in slices.filter(|slice| is_of(slice, family)) {
        for port in slice.ports.iter().filter(|port| is_of_port(port, name, protocol)) {
            endpoints.reserve(slice.endpoints.len());
            for endpoint in &slice.endpoints {
                if is_reachable(endpoint, family) {
                    endpoints.push(Endpoint::new(endpoint, port.port, this_node));
                }
            }
        }
    }
    sort_and_deduplicate(&mut endpoints);
    endpoints
}

/// The number of distinct addresses of a Service that are on this node and ready on any port. Of several entries with one address and
/// port, the one that is used for traffic is counted.
pub(crate) fn local_ready_addresses<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    family: Family,
    this_node: &str,
) -> usize {
    let local: HashSet<IpAddr> = slices
        .clone()
        .filter(|slice| is_of(slice, family))
        .flat_map(|slice| &slice.endpoints)
        .filter(|e| e.node.as_deref() == Some(this_node))
        .map(|e| e.address.to_canonical())
        .collect();
    if local.is_empty() || this_node.is_empty() {
        return 0;
    }
    // The entry of the lowest rank of each address and port, as in `sort_and_deduplicate`.
    let mut best: HashMap<(IpAddr, &str, Protocol, u16), Endpoint<'_>> = HashMap::new();
    let mut ready: HashSet<IpAddr> = HashSet::new();
    for slice in slices.filter(|slice| is_of(slice, family)) {
        for port in slice.ports.iter().filter(|port| is_complete(port)) {
            let Some(name) = port.name.as_deref() else {
                continue;
            };
            let is_local =
                |e: &&SliceEndpoint| local.contains(&e.address.to_canonical()) && is_reachable(e, family);
            for endpoint in slice.endpoints.iter().filter(is_local) {
                let endpoint = Endpoint::new(endpoint, port.port, this_node);
                match best.entry((endpoint.address, name, port.protocol, port.port)) {
                    Entry::Vacant(entry) => _ = entry.insert(endpoint),
                    Entry::Occupied(mut entry) => {
                        if endpoint.rank() < entry.get().rank() {
                            entry.insert(endpoint);
                        }
                    }
                }
            }
        }
    }
    ready.extend(
        best.into_values()
            .filter(|e| e.is_local && e.is_ready())
            .map(|e| e.address),
    );
    ready.len()
}
