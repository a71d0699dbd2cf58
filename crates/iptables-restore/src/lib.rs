#![doc = include_str!("../README.md")]

mod apply;
mod chain;
mod client;
mod condition;
#[cfg(feature = "fake")]
pub mod contract;
mod desired;
mod diff;
mod error;
#[cfg(feature = "fake")]
mod fake;
mod family;
mod forward;
mod lock;
pub mod matches;
mod names;
mod network;
mod normal_form;
mod operation;
mod restore;
mod rule;
mod ruleset;
mod runner;
mod table;
pub mod targets;
mod text;
mod unreadable;
mod variant;
mod wire;

pub use chain::ChainName;
pub use client::Command;
pub use client::refusal_search::Trial;
pub use condition::Condition;
pub use desired::{Jump, Owned, Place, Wanted};
pub use diff::{diff, diff_operations};
pub use error::{Cause, Error, LockHolder, Refused, RefusedKind};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use family::Family;
pub use matches::Match;
pub use names::Names;
pub use network::{InterfacePattern, Mask, Network, PortRange, Protocol};
pub use operation::{Iptables, Operation, Save};
pub use restore::{Edit, Line, Restore, RestoreMode};
pub use rule::Rule;
pub use ruleset::{Chain, CountedRule, Ruleset, TableRules};
pub use runner::{Completion, Invocation, Local, Runner};
pub use table::{Counters, Policy, Table};
pub use targets::Target;
pub use text::{
    Comment, ConntrackName, EventList, HashlimitName, LogPrefix, NflogPrefix, RecentName, SetName,
};
pub use unreadable::UnreadableLine;
pub use variant::{Backend, Detection, Holding, Verdict, Version};
pub use wire::render::{MarkStyle, Style, TextStyle};
pub use wire::token::Word;
