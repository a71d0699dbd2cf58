#![doc = include_str!("../README.md")]

mod chain;
mod client;
mod condition;
#[cfg(feature = "fake")]
pub mod contract;
mod error;
#[cfg(feature = "fake")]
mod fake;
mod family;
pub mod matches;
mod model;
mod network;
mod normal_form;
mod options;
mod parse;
mod render;
mod restore;
mod rule;
mod ruleset;
mod table;
pub mod targets;
mod text;
mod words;

pub use chain::ChainName;
pub use client::{Iptables, Operation, Save};
pub use condition::Condition;
pub use error::{Error, LockHolder, Refused, RefusedKind};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use family::Family;
pub use matches::Match;
pub use network::{InterfacePattern, Mask, Network, PortRange, Protocol};
pub use render::{MarkStyle, Style, TextStyle};
pub use restore::{Edit, Line, Restore, RestoreMode};
pub use rule::Rule;
pub use ruleset::{Chain, CountedRule, Ruleset, TableRules};
pub use table::{Counters, Policy, Table};
pub use targets::Target;
pub use text::{
    Comment, ConntrackName, EventList, HashlimitName, LogPrefix, NflogPrefix, RecentName, SetName,
};
pub use words::Word;
