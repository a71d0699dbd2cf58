#![doc = include_str!("../README.md")]

mod batch;
mod client;
#[cfg(feature = "fake")]
pub mod contract;
mod element;
mod entry;
mod entry_options;
mod error;
#[cfg(feature = "fake")]
mod fake;
mod family;
mod forward;
mod inline;
mod mac;
mod membership;
mod name;
mod network;
pub mod notation;
mod operation;
mod parse;
mod protocol;
mod range;
mod services;
mod set;
mod set_type;
mod support;
pub mod uapi;
mod wire;

pub use client::{Client, IpSets};
pub use element::{Element, Interface, InterfaceMatching, InterfaceSide, Mismatch};
pub use entry::Entry;
pub use entry_options::{Comment, EntryOptions, Position, SkbMark, SkbPriority, Timeout};
pub use error::{Cause, Error, Reason, Refusal, Unsupported, WrongOption};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use family::Family;
pub use mac::MacAddress;
pub use name::{InterfaceName, NameError, SetName, TypeName};
pub use network::Network;
pub use operation::{Attempt, OnRepeat, Operation};
pub use parse::ParseError;
pub use protocol::{Protocol, ProtocolPort};
pub use range::EntryRange;
pub use set::{Set, SetContents, SetHeader, SetOptions, SetRange, SetStats};
pub use set_type::{Dimension, SetType};
pub use support::Revisions;
