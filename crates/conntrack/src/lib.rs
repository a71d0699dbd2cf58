#![doc = include_str!("../README.md")]

mod client;
#[cfg(feature = "fake")]
pub mod contract;
mod error;
mod event_filter;
mod events;
mod expectation;
#[cfg(feature = "fake")]
mod fake;
mod filter;
mod flow;
mod forward;
mod kernel_filter;
mod operation;
mod protocol;
mod stale;
mod statistics;
mod table;
mod tuple;
mod uapi;
mod wire;

pub use client::{Client, KernelFiltering};
pub use error::{Cause, Error, InvalidOperation};
pub use events::{Event, EventKinds, EventOptions, Events};
pub use expectation::{Expectation, ExpectationFlags, NewExpectation};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use filter::{Filter, LabelFilter, MarkFilter, PortRange, StatusFilter, TupleFilter};
pub use flow::{Counters, Flow, FlowKey, Labels, SequenceAdjustment, Status, Synproxy};
pub use operation::{Changes, NatTarget, NewFlow, Operation, Scope};
pub use protocol::{DccpState, Family, Protocol, ProtocolState, SctpState, TcpState};
pub use stale::StaleFlows;
pub use statistics::{CpuStatistics, ExpectationStatistics, Totals};
pub use table::{Conntrack, Deletion, Flows};
pub use tuple::{Direction, ProtocolPart, Tuple, Zone, ZoneScope};
