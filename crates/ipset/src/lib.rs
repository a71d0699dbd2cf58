#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// `contract/examples.rs` refers to this crate by its name.
#[cfg(feature = "fake")]
extern crate self as kernlink_ipset;

mod client;
#[cfg(feature = "fake")]
pub mod contract;
mod element;
mod entry;
mod entry_options;
mod entry_range;
mod error;
#[cfg(feature = "fake")]
mod fake;
mod forward;
mod inline_bytes;
mod mac;
mod matching;
mod name;
mod network;
pub mod notation;
mod operation;
mod parse;
mod protocol_port;
mod reason;
mod revisions;
#[cfg(feature = "serde")]
mod serialization;
mod service_names;
mod set;
mod set_family;
mod set_type;
pub mod uapi;
mod validation;
mod wire;

pub use client::{Client, IpSets};
pub use element::{Element, Interface, InterfaceMatching, InterfaceSide, Mismatch};
pub use entry::Entry;
pub use entry_options::{Comment, EntryOptions, Position, SkbMark, SkbPriority, Timeout};
pub use entry_range::EntryRange;
pub use error::{Cause, Error, InvalidOption, Refusal, Unsupported};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use kernlink_base::{Family, Protocol};
pub use kernlink_netlink::{Connection, Errno, Namespace};
pub use mac::MacAddress;
pub use name::{InterfaceName, NameError, SetName, TypeName};
pub use network::Network;
pub use operation::{Action, IfExists, Operation};
pub use parse::ParseError;
pub use protocol_port::ProtocolPort;
pub use reason::Reason;
pub use revisions::Revisions;
pub use set::{Set, SetContents, SetHeader, SetOptions, SetRange, SetStats};
pub use set_family::SetFamily;
pub use set_type::{Dimension, SetType};
