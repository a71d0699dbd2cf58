#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod accounting;
mod attributes;
mod batch;
mod connection;
mod consistent;
mod error;
#[cfg(feature = "tokio")]
mod event_stream;
pub mod generic;
mod message;
mod namespace;
pub mod netfilter;
pub mod nftables;
#[cfg(feature = "fake")]
mod script;
mod socket_filter;
mod subscription;
mod transport;

pub use attributes::{Attribute, AttributeReader, AttributeWriter};
pub use batch::{Batch, Reply};
pub use connection::{Connection, Datagram, Dump, RefusedRequest};
pub use consistent::{Listing, list_until_consistent};
pub use error::{Errno, Error, Refusal};
#[cfg(feature = "tokio")]
pub use event_stream::EventStream;
pub use message::Message;
pub use namespace::Namespace;
#[cfg(feature = "fake")]
pub use script::Script;
pub use socket_filter::{FilterInstruction, MAX_FILTER_INSTRUCTIONS};
pub use subscription::{Event, Events, Subscription};
pub use transport::Protocol;

/// Flags that the sender of a request can set
/// ([`netlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netlink.h#L52)).
pub mod flags {
    pub use netlink_packet_core::{
        NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP_FILTERED, NLM_F_EXCL, NLM_F_NONREC, NLM_F_REPLACE,
    };
}
