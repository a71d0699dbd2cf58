#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod address_key;
mod client;
#[cfg(feature = "fake")]
pub mod contract;
mod difference;
mod error;
mod events;
#[cfg(feature = "fake")]
mod fake;
mod forward;
mod link;
mod name;
mod operation;
mod ownership;
mod replace;
mod route;
mod scope;
mod selection;
#[cfg(feature = "serde")]
mod serialization;
pub mod uapi;
mod wire;

pub use address::{AddressFlags, AddressProtocol, HostAddress, Lifetime, LinkAddress};
pub use address_key::{AddressKey, InvalidAddress};
pub use client::{Client, DummyLinks};
pub use difference::{Difference, difference};
pub use error::{Cause, Error};
pub use events::{Event, Events, Snapshot};
#[cfg(feature = "fake")]
pub use fake::Fake;
#[cfg(feature = "tokio")]
pub use kernlink_netlink::EventStream;
pub use kernlink_netlink::{Connection, Errno, Namespace};
pub use link::{DummyLink, Link, LinkFlags, LinkState};
pub use name::{InvalidLinkName, Label, LinkName};
pub use operation::Operation;
pub use ownership::Ownership;
pub use replace::ReplaceReport;
pub use route::LocalRoute;
pub use scope::Scope;
pub use selection::Selection;
