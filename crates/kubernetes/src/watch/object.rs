//! What lists and watches of all kinds have in common.

use kernlink_services::{Change, EndpointSlice, Node, ObjectChange, ObjectName, Service};
use prost::Message;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::objects::partial::{self, Metadata};
use crate::objects::{Converted, Converter, value};

/// A partial object.
pub(super) trait ApiObject: Message + Default + DeserializeOwned {
    /// What it is converted to.
    type Target;

    fn metadata(&self) -> Option<&Metadata>;

    fn convert(&self, converter: &mut Converter) -> Converted<Self::Target>;

    /// Converts a tree of values, which may have fields of wrong types.
    fn convert_value(converter: &mut Converter, value: &mut Value) -> Converted<Self::Target>;

    fn upsert(target: Self::Target) -> (ObjectName, Change);

    /// The version; empty if it has none.
    fn version(&self) -> String {
        let version = self
            .metadata()
            .and_then(|metadata| metadata.resource_version.clone());
        version.unwrap_or_default()
    }
}

impl ApiObject for partial::Service {
    type Target = Service;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn convert(&self, converter: &mut Converter) -> Converted<Service> {
        converter.service_after(self, Vec::new())
    }

    fn convert_value(converter: &mut Converter, value: &mut Value) -> Converted<Service> {
        value::service(converter, value)
    }

    fn upsert(target: Service) -> (ObjectName, Change) {
        (
            target.name.clone(),
            Change::Services(ObjectChange::Upsert(target)),
        )
    }
}

impl ApiObject for partial::EndpointSlice {
    type Target = EndpointSlice;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn convert(&self, converter: &mut Converter) -> Converted<EndpointSlice> {
        converter.whole_endpoint_slice(self)
    }

    fn convert_value(converter: &mut Converter, value: &mut Value) -> Converted<EndpointSlice> {
        value::endpoint_slice(converter, value)
    }

    fn upsert(target: EndpointSlice) -> (ObjectName, Change) {
        (
            target.name.clone(),
            Change::EndpointSlices(ObjectChange::Upsert(target)),
        )
    }
}

impl ApiObject for partial::Node {
    type Target = Node;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn convert(&self, converter: &mut Converter) -> Converted<Node> {
        converter.whole_node(self)
    }

    fn convert_value(converter: &mut Converter, value: &mut Value) -> Converted<Node> {
        value::node(converter, value)
    }

    fn upsert(target: Node) -> (ObjectName, Change) {
        (target.name.clone(), Change::Nodes(ObjectChange::Upsert(target)))
    }
}
