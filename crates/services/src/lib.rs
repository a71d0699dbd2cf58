#![doc = include_str!("../README.md")]

pub mod address;
pub mod arbitration;
pub mod config;
pub mod duration;
pub mod escape;
pub mod event;
pub mod model;
mod name_map;
pub mod services;
pub mod source;

pub use arbitration::{Arbitrated, Changes, FrontendKey, PortId};
pub use config::{Config, NodePortAddresses};
pub use event::{Event, Reason, Subject};
pub use kernlink_base::Family;
pub use model::{
    AffinityMask, ChosenEndpoint, ChosenEndpoints, Excluded, Frontend, FrontendKind, HealthCheck,
    InterfaceAddress, NodeFacts, Options, ServicePort, ServicePortKey, ServicePortName, Weights,
};
pub use name_map::{NameMap, NameSet};
pub use services::{NotSynced, Services};
pub use source::{
    AddressType, Change, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints, Ingress, IngressMode,
    Kind, Node, NodeAddress, NodeAddressType, ObjectChange, ObjectName, Policy, Port, Protocol, Service,
    ServiceType, SessionAffinity, SourceId,
};
