//! EndpointSlices, with the fields that a service proxy uses.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use kernlink_base::Family;

use super::{ObjectName, Protocol};

/// A `discovery.k8s.io/v1` EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointSlice {
    /// Namespace and name.
    pub name: ObjectName,
    /// The label `kubernetes.io/service-name`: the Service, in the same namespace. A slice without it is ignored.
    pub service: Option<Arc<str>>,
    /// Whether the label `service.kubernetes.io/headless` exists; such a slice is ignored.
    pub is_headless: bool,
    /// `addressType`.
    pub address_type: AddressType,
    /// `ports`; they apply to every endpoint.
    pub ports: Vec<EndpointPort>,
    /// `endpoints`, in their order.
    pub endpoints: Vec<Endpoint>,
    /// The annotation `endpoints.kubernetes.io/last-change-trigger-time`: when the change of a pod or Service happened that led to the
    /// present endpoints. It is only measured.
    pub trigger_time: Option<SystemTime>,
}

impl EndpointSlice {
    /// A slice of a Service in the slice's namespace, without ports and endpoints.
    #[must_use]
    pub fn new(name: ObjectName, service: impl Into<Arc<str>>, family: Family) -> Self {
        Self {
            name,
            service: Some(service.into()),
            is_headless: false,
            address_type: AddressType::Ip(family),
            ports: Vec::new(),
            endpoints: Vec::new(),
            trigger_time: None,
        }
    }

    /// With one more port.
    #[must_use]
    pub fn with_port(mut self, port: EndpointPort) -> Self {
        self.ports.push(port);
        self
    }

    /// With one more endpoint.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: Endpoint) -> Self {
        self.endpoints.push(endpoint);
        self
    }
}

/// `addressType` of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressType {
    /// Addresses of one family.
    Ip(Family),
    /// `FQDN` or another type; such a slice is ignored.
    Other,
}

/// A port of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointPort {
    /// The name of the port of the Service; empty for a port without a name. `None` (absent in the object) belongs to no port, and is
    /// ignored.
    pub name: Option<Arc<str>>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port on which the endpoints listen; 0 (absent in the object) is ignored.
    pub port: u16,
}

impl EndpointPort {
    /// A TCP port.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, port: u16) -> Self {
        Self {
            name: Some(name.into()),
            protocol: Protocol::Tcp,
            port,
        }
    }

    /// With this protocol.
    #[must_use]
    pub fn with_protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The first of `addresses`; Kubernetes does not use the others.
    pub address: IpAddr,
    /// `conditions`.
    pub conditions: Conditions,
    /// `nodeName`: the node on which the endpoint runs.
    pub node: Option<Arc<str>>,
    /// `zone`: the zone of that node.
    pub zone: Option<Arc<str>>,
    /// `hints`; `None` if the object has none.
    pub hints: Option<Box<Hints>>,
}

impl Endpoint {
    /// A ready endpoint without node, zone and hints.
    #[must_use]
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            conditions: Conditions::default(),
            node: None,
            zone: None,
            hints: None,
        }
    }

    /// With these conditions.
    #[must_use]
    pub fn with_conditions(mut self, conditions: Conditions) -> Self {
        self.conditions = conditions;
        self
    }

    /// On this node.
    #[must_use]
    pub fn with_node(mut self, node: impl Into<Arc<str>>) -> Self {
        self.node = Some(node.into());
        self
    }

    /// In this zone.
    #[must_use]
    pub fn with_zone(mut self, zone: impl Into<Arc<str>>) -> Self {
        self.zone = Some(zone.into());
        self
    }

    /// With these hints.
    #[must_use]
    pub fn with_hints(mut self, hints: Hints) -> Self {
        self.hints = Some(Box::new(hints));
        self
    }
}

/// `conditions` of an endpoint. A condition absent in the object has the value of [`Conditions::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// Whether the endpoint accepts new connections. Default: true.
    pub ready: bool,
    /// As [`ready`](Self::ready), but also true while the endpoint terminates. Default: true.
    pub serving: bool,
    /// Whether the endpoint terminates. Default: false.
    pub terminating: bool,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            ready: true,
            serving: true,
            terminating: false,
        }
    }
}

/// `hints` of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// `forZones`: the zones whose clients should use the endpoint.
    pub zones: Vec<Arc<str>>,
    /// `forNodes`: the nodes whose clients should use the endpoint.
    pub nodes: Vec<Arc<str>>,
}
