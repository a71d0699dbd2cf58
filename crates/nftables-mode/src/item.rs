//! Elements of sets and maps, and what their fields are.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use kernlink_nftables::{Data, Element, ElementFlags, Value};
use kernlink_services::{Family, FrontendKey, Protocol};

use crate::layout::{SetName, Slot};

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) set: SetName,
    pub(crate) key: Value,
    pub(crate) value: Option<Value>,
    /// For which Service it is.
    pub(crate) comment: Option<Arc<str>>,
    /// Whether its key is the first one after an interval.
    pub(crate) is_end: bool,
}

impl Item {
    pub(crate) fn new(set: SetName, key: Value) -> Self {
        Self {
            set,
            key,
            value: None,
            comment: None,
            is_end: false,
        }
    }

    pub(crate) fn with_value(self, value: Value) -> Self {
        Self {
            value: Some(value),
            ..self
        }
    }

    /// As it was read.
    pub(crate) fn read(set: SetName, element: &Element) -> Self {
        let value = match &element.data {
            Some(Data::Value(value)) => Some(value.clone()),
            _ => None,
        };
        Self {
            set,
            key: element.key.clone(),
            value,
            comment: element.comment().map(Into::into),
            is_end: element.flags.contains(ElementFlags::INTERVAL_END),
        }
    }

    /// To add it.
    pub(crate) fn element(self) -> Element {
        let mut element = Element::new(self.key);
        if let Some(value) = self.value {
            element = element.with_value(value);
        }
        if let Some(comment) = self.comment {
            element = element.with_comment(&comment);
        }
        if self.is_end {
            element = element.with_flags(ElementFlags::INTERVAL_END);
        }
        element
    }
}

/// The table and the set or map of an element, and its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementKey {
    pub(crate) slot: Slot,
    pub(crate) set: SetName,
    pub(crate) key: Value,
}

impl ElementKey {
    pub(crate) fn new(slot: Slot, set: SetName, key: &[u8]) -> Self {
        Self {
            slot,
            set,
            key: Value::new(key),
        }
    }

    /// What it belongs to. `None`: this crate adds no such element.
    pub(crate) fn owner(&self, family: Family) -> Option<Owner> {
        if self.set == SetName::ServiceCidrs {
            Some(Owner::ServiceCidrs)
        } else if self.set.is_of_frontends() {
            read_frontend(family, &self.key).map(|(key, _)| Owner::Frontend(key))
        } else {
            Shared::read(family, self.set, &self.key).map(Owner::Shared)
        }
    }
}

impl fmt::Display for ElementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {{ {} }}", self.slot.name(), self.set, self.key)
    }
}

/// What an element belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Frontend(FrontendKey),
    Shared(Shared),
    /// The networks of cluster IPs.
    ServiceCidrs,
}

/// An address and port of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

impl Endpoint {
    pub(crate) fn value(self) -> Value {
        Value::concat([Value::from(self.address), Value::port(self.port)])
    }

    /// The value of an element.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let (address, rest) = read_address(value.as_bytes())?;
        let (port, _) = rest.split_first_chunk::<2>()?;
        Some(Self {
            address,
            port: u16::from_be_bytes(*port),
        })
    }
}

/// The address at the beginning of an IPv4 value of two fields, or of an IPv6 one.
fn read_address(bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    if bytes.len() < 16 {
        let (address, rest) = bytes.split_first_chunk::<4>()?;
        return Some((IpAddr::from(*address), rest));
    }
    let (address, rest) = bytes.split_first_chunk::<16>()?;
    Some((IpAddr::from(*address), rest))
}

/// The protocol with a number that a port of a Service may have.
pub(crate) fn protocol_of(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| kernlink_nftables::Protocol::from(*protocol).0 == number)
}

fn protocol_value(protocol: Protocol) -> Value {
    Value::from(kernlink_nftables::Protocol::from(protocol))
}

/// The key of a frontend as the first fields of keys.
pub(crate) fn frontend_value(key: &FrontendKey) -> Value {
    Value::concat([
        Value::from(key.address),
        protocol_value(key.protocol),
        Value::port(key.port),
    ])
}

/// The frontend with which the key of an element of a family begins, and what follows it.
pub(crate) fn read_frontend(family: Family, value: &Value) -> Option<(FrontendKey, &[u8])> {
    let bytes = value.as_bytes();
    let (address, rest): (IpAddr, &[u8]) = match family {
        Family::Ipv4 => {
            let (address, rest) = bytes.split_first_chunk::<4>()?;
            (IpAddr::from(*address), rest)
        }
        Family::Ipv6 => {
            let (address, rest) = bytes.split_first_chunk::<16>()?;
            (IpAddr::from(*address), rest)
        }
    };
    let (fields, rest) = rest.split_first_chunk::<8>()?;
    let [protocol, _, _, _, high, low, _, _] = *fields;
    let protocol = protocol_of(protocol)?;
    let key = FrontendKey {
        address,
        protocol,
        port: u16::from_be_bytes([high, low]),
    };
    Some((key, rest))
}

/// The index at the end of the key of an endpoint.
pub(crate) fn read_index(rest: &[u8]) -> Option<u32> {
    let index: [u8; 4] = rest.try_into().ok()?;
    Some(u32::from_ne_bytes(index))
}

/// The number of a service port with session affinity in the value of a frontend.
pub(crate) fn read_pool(value: &Value) -> Option<u32> {
    let (_, pool) = value.as_bytes().split_last_chunk::<4>()?;
    Some(u32::from_ne_bytes(*pool))
}

/// An element that several Services may have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Shared {
    /// A cluster IP.
    ClusterIp(IpAddr),
    /// An endpoint of this node: address, protocol and port.
    Hairpin(IpAddr, Protocol, u16),
}

impl Shared {
    pub(crate) fn item(self) -> Item {
        match self {
            Shared::ClusterIp(address) => Item::new(SetName::ClusterIps, Value::from(address)),
            Shared::Hairpin(address, protocol, port) => Item::new(
                SetName::HairpinEndpoints,
                Value::concat([
                    Value::from(address),
                    Value::from(address),
                    protocol_value(protocol),
                    Value::port(port),
                ]),
            ),
        }
    }

    /// An element as it was read. `None`: it is none that this crate adds.
    pub(crate) fn read(family: Family, set: SetName, key: &Value) -> Option<Self> {
        let bytes = key.as_bytes();
        match (set, family) {
            (SetName::ClusterIps, Family::Ipv4) => {
                Some(Shared::ClusterIp(<[u8; 4]>::try_from(bytes).ok()?.into()))
            }
            (SetName::ClusterIps, Family::Ipv6) => {
                Some(Shared::ClusterIp(<[u8; 16]>::try_from(bytes).ok()?.into()))
            }
            (SetName::HairpinEndpoints, family) => {
                let length = usize::from(family.address_bits() / 8);
                let (first, rest) = bytes.split_at_checked(length)?;
                let (key, _) = read_frontend(family, &Value::new(rest))?;
                let shared = Shared::Hairpin(key.address, key.protocol, key.port);
                (Value::from(key.address).as_bytes() == first).then_some(shared)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shared::ClusterIp(address) => write!(f, "{} {{ {address} }}", SetName::ClusterIps),
            Shared::Hairpin(address, protocol, port) => {
                let protocol = protocol.to_string().to_lowercase();
                write!(
                    f,
                    "{} {{ {address} . {address} . {protocol} . {port} }}",
                    SetName::HairpinEndpoints
                )
            }
        }
    }
}
