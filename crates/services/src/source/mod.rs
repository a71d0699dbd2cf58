//! Input: Services, EndpointSlices and Nodes, as changes of the objects of one kind from one source.
//!
//! These types have only the fields that a service proxy uses, and do not depend on an API client. The crate `kernlink-kubernetes`
//! converts Kubernetes API objects, YAML and JSON to them.

mod endpoint_slice;
mod merged;
mod node;
mod service;

use std::fmt::{self, Write};
use std::sync::Arc;

pub use self::endpoint_slice::{AddressType, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints};
pub use self::merged::MergedChanges;
pub use self::node::{Node, NodeAddress, NodeAddressType};
pub use self::service::{
    Ingress, IngressMode, ParseProtocolError, Port, Protocol, Service, ServiceType, SessionAffinity,
    TrafficPolicy,
};
use crate::escape::EscapeWriter;

/// The namespace and name of an object. The namespace of a Node is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The namespace; empty for objects without a namespace.
    pub namespace: Arc<str>,
    /// The name; unique in its namespace among the objects of a kind.
    pub name: Arc<str>,
}

impl ObjectName {
    /// The name of an object in a namespace.
    #[must_use]
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectName {
    /// `namespace/name`, or the name if the namespace is empty; on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = EscapeWriter(f);
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// Identifies a source. If two sources deliver an object of one name, that of the lower id is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u16);

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source {}", self.0)
    }
}

/// The kinds of objects that a source delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `v1` Node.
    Node,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Node => "Node",
        })
    }
}

/// A change of the objects of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A change of Services.
    Services(ObjectChange<Service>),
    /// A change of EndpointSlices.
    EndpointSlices(ObjectChange<EndpointSlice>),
    /// A change of Nodes.
    Nodes(ObjectChange<Node>),
}

impl Change {
    /// The kind of the objects.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Change::Services(_) => Kind::Service,
            Change::EndpointSlices(_) => Kind::EndpointSlice,
            Change::Nodes(_) => Kind::Node,
        }
    }

    /// The changes after which a source has exactly these Services and EndpointSlices, and has delivered its first full list of both. Apply all
    /// of them before the next sync.
    #[must_use]
    pub fn replace_all(services: Vec<Service>, slices: Vec<EndpointSlice>) -> [Self; 4] {
        [
            Change::Services(ObjectChange::ReplaceAll(services)),
            Change::EndpointSlices(ObjectChange::ReplaceAll(slices)),
            Change::Services(ObjectChange::Synced),
            Change::EndpointSlices(ObjectChange::Synced),
        ]
    }

    /// [`ObjectChange::Synced`] for this kind.
    #[must_use]
    pub fn synced(kind: Kind) -> Self {
        match kind {
            Kind::Service => Change::Services(ObjectChange::Synced),
            Kind::EndpointSlice => Change::EndpointSlices(ObjectChange::Synced),
            Kind::Node => Change::Nodes(ObjectChange::Synced),
        }
    }
}

/// A change of the objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectChange<T> {
    /// The object was created or updated. An object equal to the present one has no effect.
    Upsert(T),
    /// The object was deleted. The name of an object that does not exist has no effect.
    Delete(ObjectName),
    /// The source has exactly these objects: a list after a watch ended, or a file that was read again. Of several objects with one
    /// name the last one is used.
    ReplaceAll(Vec<T>),
    /// The source has delivered its first full list, see
    /// [`Services::has_synced`](crate::Services::has_synced).
    Synced,
}

/// An object with a name.
pub(crate) trait Object: PartialEq {
    const KIND: Kind;
    fn name(&self) -> &ObjectName;
}

impl Object for Service {
    const KIND: Kind = Kind::Service;
    fn name(&self) -> &ObjectName {
        &self.name
    }
}

impl Object for EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;
    fn name(&self) -> &ObjectName {
        &self.name
    }
}

impl Object for Node {
    const KIND: Kind = Kind::Node;
    fn name(&self) -> &ObjectName {
        &self.name
    }
}
