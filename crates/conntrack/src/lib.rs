#![doc = include_str!("../README.md")]

mod client;
#[cfg(feature = "fake")]
pub mod contract;
mod deletion;
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
mod protocol_state;
mod stale_filter;
mod statistics;
mod tuple;
mod uapi;
mod wire;

pub use client::{Client, KernelFiltering};
pub use deletion::{Conntrack, Deletion, Flows};
pub use error::{Cause, Error, InvalidOperation};
pub use events::{Event, EventKinds, EventOptions, Events};
pub use expectation::{Expectation, ExpectationFlags, NewExpectation};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use filter::{Filter, LabelFilter, MarkFilter, PortRange, StatusFilter, TupleFilter};
pub use flow::{Counters, Flow, FlowKey, Labels, SequenceAdjustment, Status, Synproxy};
pub use operation::{Changes, NatTarget, NewFlow, Operation, Scope};
pub use protocol_state::{DccpState, Family, Protocol, ProtocolState, SctpState, TcpState};
pub use stale_filter::StaleFlows;
pub use statistics::{CpuStatistics, ExpectationStatistics, Totals};
pub use tuple::{Direction, ProtocolPart, Tuple, Zone, ZoneScope};
