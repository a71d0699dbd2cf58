#![doc = include_str!("../README.md")]

mod element;
mod entry;
mod entry_options;
mod family;
mod inline;
mod mac;
mod name;
mod network;
mod notation;
mod parse;
mod protocol;
mod range;
mod set;
mod set_type;
pub mod uapi;

pub use element::{Element, Interface, InterfaceMatching, InterfaceSide, Mismatch};
pub use entry::Entry;
pub use entry_options::{Comment, EntryOptions, Position, SkbMark, SkbPriority, Timeout};
pub use family::Family;
pub use mac::MacAddress;
pub use name::{InterfaceName, NameError, SetName, TypeName};
pub use network::Network;
pub use parse::ParseError;
pub use protocol::{Protocol, ProtocolPort};
pub use range::EntryRange;
pub use set::{Set, SetContents, SetHeader, SetOptions, SetRange, SetStats};
pub use set_type::{Dimension, SetType};
