#![doc = include_str!("../README.md")]

mod address;
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
mod route;
mod selection;
pub mod uapi;
mod wire;

pub use address::{
    AddressFlags, AddressKey, HostAddress, InvalidAddress, Lifetime, LinkAddress, Owner, Scope,
};
pub use client::{Client, DummyLinks};
pub use difference::{Difference, Ours, Replaced, difference};
pub use error::{Cause, Error};
pub use events::{Event, Events, Snapshot};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use link::{DummyLink, Link, LinkFlags, LinkState};
pub use name::{InvalidLinkName, Label, LinkName};
pub use operation::Operation;
pub use route::LocalRoute;
pub use selection::Selection;
