#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

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

pub use kernlink_base::Family;

pub use self::arbitration::{ArbitratedFrontend, Changes, FrontendKey, ServicePortId, UpdateReport};
pub use self::config::{Config, NodePortAddresses};
pub use self::event::{AddressScope, Event, Precedence, Reason, Subject};
pub use self::model::{
    AffinityMask, AnnotationPolicy, ChosenEndpoint, ChosenEndpoints, ExclusionReason, ExplainedEndpoint,
    ExplainedEndpoints, Frontend, FrontendKind, HealthCheck, InterfaceAddress, NodeFacts, NotChosen, Options,
    ServicePort, ServicePortKey, ServicePortName, UnusedReason, UnusedSlice, Weights,
};
pub use self::name_map::{NameMap, NameSet};
pub use self::services::{NotSynced, Services};
pub use self::source::{
    AddressType, Change, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints, Ingress, IngressMode,
    Kind, MergedChanges, Node, NodeAddress, NodeAddressType, ObjectChange, ObjectName, ParseProtocolError,
    Port, Protocol, Service, ServiceType, SessionAffinity, SourceId, TrafficPolicy,
};
