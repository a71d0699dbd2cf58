#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod apply;
mod argument;
mod chain;
mod chain_reader;
mod client;
mod condition;
#[cfg(feature = "fake")]
pub mod contract;
mod desired;
mod diff;
mod error;
#[cfg(feature = "fake")]
mod fake;
mod forward;
mod joined;
mod lock;
pub mod matches;
mod names;
mod network;
mod normal_form;
mod operation;
mod ownership;
mod protocol;
mod restore;
mod rule;
mod ruleset;
mod runner;
mod save;
mod style;
mod table;
pub mod targets;
mod text;
pub mod uapi;
mod unreadable;
mod variant;
mod wire;

pub use kernlink_base::Family;

pub use argument::Argument;
pub use chain::ChainName;
pub use chain_reader::ChainReader;
pub use client::{Client, Iptables, RefusalSearch};
pub use condition::Condition;
pub use desired::{Desired, Jump, Position};
pub use diff::{diff, diff_operations};
pub use error::{Cause, Error, LockHolder, Refused, RefusedKind};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use joined::{EditSource, Joined};
pub use matches::Match;
pub use names::Names;
pub use network::{InterfacePattern, Mask, Network, PortRange};
pub use operation::Operation;
pub use ownership::Ownership;
pub use protocol::Protocol;
pub use restore::{Edit, Line, Restore, RestoreMode};
pub use rule::Rule;
pub use ruleset::{Chain, CountedRule, Ruleset, TableRules};
pub use runner::{Completion, Invocation, LocalRunner, Runner, end_tools};
pub use save::Save;
pub use style::{MarkStyle, Style, TextStyle};
pub use table::{Counters, Policy, Table};
pub use targets::Target;
pub use text::{
    Comment, ConntrackName, EventList, HashlimitName, LogPrefix, NflogPrefix, RecentName, SetName,
};
pub use unreadable::UnreadableLine;
pub use variant::{DetectedVariants, Variant, VariantInUse, VariantUsage, Version, tool};
