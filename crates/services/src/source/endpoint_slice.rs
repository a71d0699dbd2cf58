//! The EndpointSlice, as far as a service proxy needs it.

use std::net::IpAddr;
use std::sync::Arc;

use kernlink_base::Family;

use super::{ObjectName, Protocol};

/// A `discovery.k8s.io/v1` EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace and name.
    pub name: ObjectName,
    /// The label `kubernetes.io/service-name`: the Service, in the same namespace. A slice without one is of no use.
    pub service: Option<Arc<str>>,
    /// Whether the label `service.kubernetes.io/headless` is there; such a slice is left out.
    pub is_headless: bool,
    /// `addressType`.
    pub address_type: AddressType,
    /// `ports`; every endpoint has each of them.
    pub ports: Vec<EndpointPort>,
    /// `endpoints`, in their order.
    pub endpoints: Vec<Endpoint>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressType {
    /// Addresses of one family.
    Ip(Family),
    /// Something else (`FQDN`); such a slice is left out.
    Other,
}

/// One port of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPort {
    /// The name of the Service's port this belongs to; empty for a port without a name. `None` (absent in the object) makes
    /// the port belong to no Service port.
    pub name: Option<Arc<str>>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port the endpoint listens on; 0 (absent in the object) means that no endpoint has it.
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

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The first of `addresses`; Kubernetes gives the others no meaning.
    pub address: IpAddr,
    /// `conditions`.
    pub conditions: Conditions,
    /// `nodeName`: where the endpoint runs.
    pub node: Option<Arc<str>>,
    /// `zone`: where that node is.
    pub zone: Option<Arc<str>>,
    /// `hints`; `None` where the object has none.
    pub hints: Option<Box<Hints>>,
}

impl Endpoint {
    /// A ready endpoint, on no known node.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Takes new connections.
    pub ready: bool,
    /// Would take connections, were it not about to go.
    pub serving: bool,
    /// About to go.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// `forZones`: names of the zones whose clients should use the endpoint.
    pub zones: Vec<Arc<str>>,
    /// `forNodes`: names of the nodes whose clients should use the endpoint.
    pub nodes: Vec<Arc<str>>,
}
