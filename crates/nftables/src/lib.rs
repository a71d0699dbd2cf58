#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod chain;
mod client;
#[cfg(feature = "fake")]
pub mod contract;
mod data_type;
mod element;
mod error;
mod event_filter;
mod events;
mod expression;
#[cfg(feature = "fake")]
mod fake;
mod flowtable;
mod forward;
mod generation;
mod key_notation;
mod names;
mod notation;
mod object;
mod operation;
mod reason;
mod register;
mod requirement;
mod rule;
mod rule_builder;
mod ruleset;
#[cfg(feature = "serde")]
mod serialization;
mod set;
mod table;
mod table_family;
mod trace;
mod type_of;
pub mod uapi;
mod user_data;
mod validation;
mod value;
mod verdict;
mod wire;

pub use chain::{BaseChain, Chain, ChainFlags, ChainKey, ChainType, Hook, Policy};
pub use client::{Client, ElementIter, Nftables};
pub use data_type::{DataType, DataTypes};
pub use element::{Element, ElementFlags, Elements};
pub use error::{Cause, Error};
pub use event_filter::{EventFilter, ItemKinds};
pub use events::{Event, Monitor, MonitorScope};
pub use expression::{
    Bitwise, BitwiseOperation, ByteOrder, ByteOrderOperation, Compare, CompareOperator, ConnectionLimit,
    ConnectionTracking, ConnectionTrackingKey, ConnectionTrackingSet, Counter, Duplicate, Dynset,
    DynsetOperation, Expression, ExtensionHeader, ExtensionHeaderKind, ExtensionHeaderRemoval,
    ExtensionHeaderSet, Fib, FibFlags, FibResult, FlowOffload, Forward, Hash, HashKind, Immediate, Inner,
    InvertFlags, Last, Limit, LimitKind, Log, LogFlags, LogLevel, Lookup, LookupFlags, Masquerade, Meta,
    MetaKey, MetaSet, Nat, NatFlags, NatKind, Notrack, NumberGenerator, NumberGeneratorKind, ObjectMap,
    ObjectReference, Opaque, OsFingerprint, OsFingerprintFlags, Payload, PayloadBase, PayloadChecksum,
    PayloadSet, Queue, QueueFlags, Quota, QuotaFlags, Range, Redirect, Reject, RejectKind, Route, RouteKey,
    Socket, SocketKey, Synproxy, SynproxyFlags, Tproxy, Tunnel, TunnelKey, TunnelMode, Xfrm, XfrmKey,
};
#[cfg(feature = "fake")]
pub use fake::{Fake, Packet, PacketFate, PacketOutcome};
pub use flowtable::{Flowtable, FlowtableFlags, FlowtableKey};
pub use generation::Generation;
pub use kernlink_base::{Family, KernelRelease, Protocol};
#[cfg(feature = "tokio")]
pub use kernlink_netlink::EventStream;
pub use kernlink_netlink::{Connection, Errno, Namespace};
pub use key_notation::ParseKeyError;
pub use names::Names;
pub use notation::{Commands, Listing};
pub use object::{
    ConnectionExpectation, ConnectionTimeout, Helper, HostU32, Object, ObjectData, ObjectKey, ObjectKind,
    SecurityMark, Timeouts,
};
pub use operation::{Flush, Item, ItemKey, Operation};
pub use reason::Reason;
pub use register::Register;
pub use requirement::Requirement;
pub use rule::{Rule, RuleCompat, RuleKey};
pub use rule_builder::{RuleBuilder, RuleError};
pub use ruleset::{ChainContents, Ruleset, SetContents, TableContents};
pub use set::{MapData, Set, SetFlags, SetKey, SetPolicy};
pub use table::{Table, TableFlags, TableKey};
pub use table_family::TableFamily;
pub use trace::{Trace, TraceConnection, TraceKind};
pub use type_of::TypeOf;
pub use user_data::UserData;
pub use validation::InvalidOperation;
pub use value::Value;
pub use verdict::{Data, Verdict};
