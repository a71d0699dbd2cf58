#![doc = include_str!("../README.md")]

pub mod duration;
pub mod family;
pub mod one_line;
pub mod source;

pub use family::Family;
pub use source::{
    AddressType, Change, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints, Ingress, IngressMode,
    Kind, Node, NodeAddress, NodeAddressType, ObjectChange, ObjectName, Policy, Port, Protocol, Service,
    ServiceType, SessionAffinity, SourceId,
};
