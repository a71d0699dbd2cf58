//! EndpointSlices merged to the endpoints of a service port.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use kernlink_base::Family;

use super::endpoint::{Endpoint, without_duplicates};
use crate::event::{AddressScope, Reason};
use crate::source::{AddressType, Endpoint as SliceEndpoint, EndpointPort, EndpointSlice, Protocol};

/// Whether a slice holds addresses of this family for a service proxy.
fn is_of(slice: &EndpointSlice, family: Family) -> bool {
    !slice.is_headless && slice.address_type == AddressType::Ip(family)
}

/// Whether a slice's port exists.
fn is_open(port: &EndpointPort) -> bool {
    port.port != 0 && port.name.is_some()
}

/// Whether packets of this family can be sent to an endpoint. A source of its own making may mix families, and what the API
/// server refuses (loopback, link-local, multicast, unspecified) would have the kernel serve something else, or nothing.
fn is_reachable(endpoint: &SliceEndpoint, family: Family) -> bool {
    let address = endpoint.address.to_canonical();
    Family::of(address) == family && AddressScope::of(address).is_none()
}

/// What of a slice cannot be used, and why: ports, then addresses, in the order of the slice.
pub(crate) fn unusable(slice: &EndpointSlice) -> impl Iterator<Item = Reason> {
    let counts = !slice.is_headless && slice.address_type != AddressType::Other;
    let ports = slice.ports.iter().enumerate().filter(move |_| counts);
    let ports = ports.filter_map(|(position, port)| match port {
        EndpointPort { name: None, .. } => Some(Reason::EndpointPortWithoutName { position }),
        EndpointPort { port: 0, .. } => Some(Reason::EndpointPortWithoutNumber { position }),
        _ => None,
    });
    let endpoints = slice.endpoints.iter().filter(move |_| counts);
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

/// The endpoints of a service port, sorted by address and port, each once. Slices come in the order of their names.
pub(crate) fn of_port<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    family: Family,
    name: &str,
    protocol: Protocol,
    this_node: &str,
) -> Vec<Endpoint<'a>> {
    let mut endpoints = Vec::new();
    for slice in slices.filter(|slice| is_of(slice, family)) {
        let wanted = |port: &&EndpointPort| {
            is_open(port) && port.protocol == protocol && port.name.as_deref() == Some(name)
        };
        for port in slice.ports.iter().filter(wanted) {
            endpoints.reserve(slice.endpoints.len());
            for endpoint in &slice.endpoints {
                if is_reachable(endpoint, family) {
                    endpoints.push(Endpoint::new(endpoint, port.port, this_node));
                }
            }
        }
    }
    without_duplicates(&mut endpoints);
    endpoints
}

/// How many distinct addresses of a Service are on this node and ready, whatever their ports. Where several entries have the
/// same address and port, the one that counts for traffic counts here too.
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
    // For each address and port of the Service: the entry of the lowest rank, as in `without_duplicates`.
    let mut best: HashMap<(IpAddr, &str, Protocol, u16), Endpoint<'_>> = HashMap::new();
    let mut ready: HashSet<IpAddr> = HashSet::new();
    for slice in slices.filter(|slice| is_of(slice, family)) {
        for port in slice.ports.iter().filter(|port| is_open(port)) {
            let Some(name) = port.name.as_deref() else {
                continue;
            };
            let counts =
                |e: &&SliceEndpoint| local.contains(&e.address.to_canonical()) && is_reachable(e, family);
            for endpoint in slice.endpoints.iter().filter(counts) {
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
            .filter(|e| e.local && e.ready())
            .map(|e| e.address),
    );
    ready.len()
}
