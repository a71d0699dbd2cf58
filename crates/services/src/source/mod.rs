//! What a watcher hands in: Services, EndpointSlices and Nodes, as changes of one kind of object from one source.
//!
//! These are types of our own, with the fields that matter to a service proxy. A watcher of an API server fills them from
//! whatever client it uses; the crate `kernlink-kubernetes` fills them from Kubernetes API objects, YAML and JSON.

mod endpoint_slice;
mod node;
mod service;

use std::fmt::{self, Write};
use std::sync::Arc;

pub use self::endpoint_slice::{AddressType, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints};
pub use self::node::{Node, NodeAddress, NodeAddressType};
pub use self::service::{
    Ingress, IngressMode, ParseProtocolError, Port, Protocol, Service, ServiceType, SessionAffinity,
    TrafficPolicy,
};
use crate::escape::EscapeWriter;

/// The namespace and name of an object. The namespace of a Node is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The namespace; empty for objects that have none.
    pub namespace: Arc<str>,
    /// The name, unique for its kind in the namespace.
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
    /// `namespace/name`, or the name alone; on one line, whatever is in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = EscapeWriter(f);
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// Who handed an object in. Where two sources have an object of one name, the lower id wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u16);

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source {}", self.0)
    }
}

/// The kinds of object a source delivers.
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

/// One change of what a source has.
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
    /// The kind of object that changes.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Change::Services(_) => Kind::Service,
            Change::EndpointSlices(_) => Kind::EndpointSlice,
            Change::Nodes(_) => Kind::Node,
        }
    }

    /// The first full list of this kind has been delivered: [`ObjectChange::Synced`].
    #[must_use]
    pub fn synced(kind: Kind) -> Self {
        match kind {
            Kind::Service => Change::Services(ObjectChange::Synced),
            Kind::EndpointSlice => Change::EndpointSlices(ObjectChange::Synced),
            Kind::Node => Change::Nodes(ObjectChange::Synced),
        }
    }
}

/// One change of the objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectChange<T> {
    /// The object is there, in this form. Handing in the same form again changes nothing.
    Upsert(T),
    /// The object is gone. Naming one that was not there changes nothing.
    Delete(ObjectName),
    /// The source has exactly these objects: a list after a lost watch, or a file read again. Where a name occurs twice,
    /// the last object counts.
    ReplaceAll(Vec<T>),
    /// The source has delivered its first full list. No data path may act before every source has, see
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
