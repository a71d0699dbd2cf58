#![doc = include_str!("../README.md")]

mod backend;
mod blame;
mod chain;
mod client;
mod command;
mod condition;
#[cfg(feature = "fake")]
pub mod contract;
mod diff;
mod error;
#[cfg(feature = "fake")]
mod fake;
mod family;
mod forward;
mod lock;
pub mod matches;
mod model;
mod names;
mod network;
mod normal_form;
mod options;
mod outcome;
mod parse;
mod render;
mod restore;
mod rule;
mod ruleset;
mod runner;
mod table;
pub mod targets;
mod text;
mod tolerant;
mod trial;
mod unreadable;
mod wanted;
mod words;

pub use backend::{Backend, Detection, Holding, Verdict, Version};
pub use chain::ChainName;
pub use client::{Iptables, Operation, Save};
pub use command::Command;
pub use condition::Condition;
pub use diff::{diff, diff_operations};
pub use error::{Cause, Error, LockHolder, Refused, RefusedKind};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use family::Family;
pub use matches::Match;
pub use names::Names;
pub use network::{InterfacePattern, Mask, Network, PortRange, Protocol};
pub use render::{MarkStyle, Style, TextStyle};
pub use restore::{Edit, Line, Restore, RestoreMode};
pub use rule::Rule;
pub use ruleset::{Chain, CountedRule, Ruleset, TableRules};
pub use runner::{Completion, Invocation, Local, Runner};
pub use table::{Counters, Policy, Table};
pub use targets::Target;
pub use text::{
    Comment, ConntrackName, EventList, HashlimitName, LogPrefix, NflogPrefix, RecentName, SetName,
};
pub use trial::Trial;
pub use unreadable::UnreadableLine;
pub use wanted::{Jump, Owned, Place, Wanted};
pub use words::Word;
