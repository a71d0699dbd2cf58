#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

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
mod flow_update;
mod flows;
mod forward;
mod kernel_filter;
mod new_flow;
mod notation;
mod operation;
mod port_range;
mod protocol_state;
#[cfg(feature = "serde")]
mod serialization;
mod stale_filter;
mod statistics;
mod status;
mod tuple;
mod tuple_filter;
pub mod uapi;
mod wire;
mod zone;

pub use client::{Client, Conntrack, KernelFiltering};
pub use deletion::Deletion;
pub use error::{Cause, Error, InvalidOperation};
pub use events::{Event, EventKinds, EventOptions, Events};
pub use expectation::{Expectation, ExpectationFlags, NewExpectation};
#[cfg(feature = "fake")]
pub use fake::Fake;
pub use filter::{Filter, LabelFilter, MarkFilter, StatusFilter};
pub use flow::{Counters, Flow, FlowKey, Labels, ParseFlowKeyError, SequenceAdjustment, Synproxy};
pub use flow_update::FlowUpdate;
pub use flows::Flows;
pub use kernlink_base::{Family, Protocol};
#[cfg(feature = "tokio")]
pub use kernlink_netlink::EventStream;
pub use kernlink_netlink::{Connection, Errno, Namespace};
pub use new_flow::{NatTarget, NewFlow};
pub use operation::{FlushScope, Operation};
pub use port_range::PortRange;
pub use protocol_state::{DccpState, ProtocolState, SctpState, TcpState};
pub use stale_filter::StaleFilter;
pub use statistics::{CpuStatistics, ExpectationStatistics, Totals};
pub use status::Status;
pub use tuple::{Direction, ProtocolPart, Tuple};
pub use tuple_filter::TupleFilter;
pub use zone::{Zone, ZoneDirection};
