//! Changes of the ruleset and traces of packets, as they happen.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernlink_netlink::{Events as NetlinkEvents, Message, Namespace, Protocol, Subscription, netfilter};

use crate::element::Elements;
use crate::error::Error;
use crate::event_filter::EventFilter;
use crate::generation::Generation;
use crate::operation::{Item, Operation};
use crate::table_family::TableFamily;
use crate::trace::Trace;
use crate::uapi::{
    NFNLGRP_NFTABLES, NFNLGRP_NFTRACE, NFT_MSG_DELCHAIN, NFT_MSG_DELFLOWTABLE, NFT_MSG_DELOBJ,
    NFT_MSG_DELRULE, NFT_MSG_DELSET, NFT_MSG_DELSETELEM, NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWFLOWTABLE, NFT_MSG_NEWGEN, NFT_MSG_NEWOBJ, NFT_MSG_NEWRULE, NFT_MSG_NEWSET,
    NFT_MSG_NEWSETELEM, NFT_MSG_NEWTABLE, NFT_MSG_TRACE,
};
use crate::wire::{self, ElementList};

/// An event of a [`Monitor`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Something was added or changed. Elements are one event for each.
    Added(Item),
    /// Something was deleted. The kernel sends its names; not the elements of a set that is deleted or flushed with its table.
    Deleted(Item),
    /// The end of a transaction, whose changes are the events before. The generation has the process that executed it.
    Generation(Generation),
    /// A step of a traced packet.
    Trace(Trace),
    /// The receive buffer was full and an unknown number of events was lost. A copy of the ruleset must be read again.
    Overrun,
}

impl fmt::Display for Event {
    /// As `nft monitor` prints it: a command, or `# new generation 7 by process 4242 (nft)`; a step of a trace as [`Trace`] prints. The types of
    /// elements are known to the set only, so elements and lookups are printed as [`Operation`] prints them. What was deleted prints by its
    /// key. An overrun is the sentence `events were lost: the receive buffer was full`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Added(item) => Operation::Add(item.clone()).fmt(f),
            Event::Deleted(item) => write!(f, "delete {}", DeletedItem(item)),
            Event::Generation(generation) => generation.fmt(f),
            Event::Trace(trace) => trace.fmt(f),
            Event::Overrun => f.write_str("events were lost: the receive buffer was full"),
        }
    }
}

/// The kind and key of what was deleted.
struct DeletedItem<'a>(&'a Item);

impl fmt::Display for DeletedItem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Item::Table(table) => write!(f, "table {}", table.key),
            Item::Chain(chain) => write!(f, "chain {}", chain.key),
            Item::Set(set) => write!(f, "set {}", set.key),
            Item::Elements(elements) => {
                write!(f, "element {} {{ ", elements.set)?;
                for (index, element) in elements.elements.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{}", element.key)?;
                }
                f.write_str(" }")
            }
            Item::Rule(rule) => match rule.handle {
                Some(handle) => write!(f, "rule {} handle {handle}", rule.chain),
                None => write!(f, "rule {}", rule.chain),
            },
            Item::Object(object) => object.key.fmt(f),
            Item::Flowtable(flowtable) => write!(f, "flowtable {}", flowtable.key),
        }
    }
}

/// Receives events (`nft monitor`, `nft monitor trace`). Iterate over it; `next` returns `None` after the timeout and may be called
/// again.
pub struct Monitor {
    events: NetlinkEvents<Event, Decode>,
    filter: Arc<Mutex<Filtering>>,
}

type Decode = Box<dyn FnMut(Message<'_>) -> Result<Option<Event>, kernlink_netlink::Error> + Send + Sync>;

/// What the monitor and the decoder of its events share.
#[derive(Debug, Default)]
struct Filtering {
    filter: EventFilter,
    /// Whether the end of the current transaction is returned although none of its changes were.
    is_end_returned: bool,
    /// Whether a change of the current transaction was returned.
    is_changed: bool,
}

impl Filtering {
    fn decode(&mut self, message: Message<'_>) -> Result<Option<Event>, kernlink_netlink::Error> {
        let [subsystem, command] = message.message_type.to_be_bytes();
        if subsystem != netfilter::NFNL_SUBSYS_NFTABLES {
            return Ok(None);
        }
        if command == NFT_MSG_NEWGEN {
            let is_changed = std::mem::take(&mut self.is_changed);
            let is_end_returned = std::mem::take(&mut self.is_end_returned);
            if !is_changed && !is_end_returned && self.filter != EventFilter::default() {
                return Ok(None);
            }
        } else if !self.filter.matches(&message)? {
            return Ok(None);
        } else {
            self.is_changed |= command != NFT_MSG_TRACE;
        }
        Event::decode(message)
    }
}

/// Which events are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MonitorScope {
    /// Changes of the ruleset.
    Changes,
    /// Traces of the packets whose `nftrace` a rule has set.
    Traces,
    /// Both.
    All,
}

impl Monitor {
    /// Subscribes in the calling thread's network namespace. `timeout` is that of `next`; `None` waits forever.
    ///
    /// # Errors
    /// [`Error::Request`] if the kernel refuses; `CAP_NET_ADMIN` is required.
    pub fn open(scope: MonitorScope, timeout: Option<Duration>) -> Result<Self, Error> {
        Subscription::open(Protocol::Netfilter, groups(scope))
            .map(|subscription| Self::new(subscription, timeout))
            .map_err(failed)
    }

    /// Subscribes in another network namespace.
    ///
    /// # Errors
    /// As [`open`](Self::open); or the namespace cannot be entered.
    pub fn open_in(
        scope: MonitorScope,
        timeout: Option<Duration>,
        namespace: &Namespace,
    ) -> Result<Self, Error> {
        Subscription::open_in(Protocol::Netfilter, groups(scope), namespace)
            .map(|subscription| Self::new(subscription, timeout))
            .map_err(failed)
    }

    fn new(subscription: Subscription, timeout: Option<Duration>) -> Self {
        let filter = Arc::new(Mutex::new(Filtering::default()));
        let shared = Arc::clone(&filter);
        let decode: Decode = Box::new(move |message| locked(&shared).decode(message));
        Monitor {
            events: subscription.events(timeout, decode),
            filter,
        }
    }

    /// Returns only the events that match a filter, from the next one on; and the generations of transactions with such an event, and
    /// of the first one after an [`Overrun`](Event::Overrun), which is always returned.
    #[must_use]
    pub fn with_filter(self, filter: EventFilter) -> Self {
        locked(&self.filter).filter = filter;
        self
    }

    /// Changes the timeout of `next`.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.events.set_timeout(timeout);
    }

    /// Sets the size of the receive buffer in bytes, which the kernel doubles. Default: 4 MiB. 100 000 added elements are about 15 MB of
    /// notifications.
    ///
    /// # Errors
    /// [`Error::Request`] if the kernel refuses.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        self.events.set_receive_buffer(bytes).map_err(failed)
    }
}

fn locked(filter: &Mutex<Filtering>) -> MutexGuard<'_, Filtering> {
    filter.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("filter", &locked(&self.filter).filter)
            .finish_non_exhaustive()
    }
}

fn groups(scope: MonitorScope) -> &'static [u32] {
    match scope {
        MonitorScope::Changes => &[NFNLGRP_NFTABLES],
        MonitorScope::Traces => &[NFNLGRP_NFTRACE],
        MonitorScope::All => &[NFNLGRP_NFTABLES, NFNLGRP_NFTRACE],
    }
}

fn failed(source: kernlink_netlink::Error) -> Error {
    Error::Request {
        attempt: "receive events of nf_tables".into(),
        source,
    }
}

#[cfg(feature = "tokio")]
impl Monitor {
    /// The events as an asynchronous stream, instead of the timeout.
    ///
    /// # Errors
    /// As [`EventStream::new`](crate::EventStream::new).
    ///
    /// # Panics
    /// As [`EventStream::new`](crate::EventStream::new).
    pub fn into_stream(mut self) -> std::io::Result<crate::EventStream<Self>> {
        self.set_timeout(Some(Duration::ZERO));
        crate::EventStream::new(self)
    }
}

impl AsFd for Monitor {
    /// For `poll`: readable when an event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Iterator for Monitor {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(match self.events.next()? {
            Ok(kernlink_netlink::Event::Notification(event)) => Ok(event),
            Ok(_) => {
                locked(&self.filter).is_end_returned = true;
                Ok(Event::Overrun)
            }
            Err(error) => Err(failed(error)),
        })
    }
}

impl Event {
    /// Decodes a notification of the groups `NFNLGRP_NFTABLES` and `NFNLGRP_NFTRACE`; `None` for those of other subsystems and unknown
    /// ones. [`Monitor`] does this.
    ///
    /// # Errors
    /// An attribute is missing, or has an invalid length.
    pub fn decode(message: Message<'_>) -> Result<Option<Self>, kernlink_netlink::Error> {
        let [subsystem, command] = message.message_type.to_be_bytes();
        if subsystem != netfilter::NFNL_SUBSYS_NFTABLES {
            return Ok(None);
        }
        let item = match command {
            NFT_MSG_NEWGEN => {
                return wire::decode_generation(&message)
                    .map(|generation| Some(Event::Generation(generation)));
            }
            NFT_MSG_TRACE => return Trace::decode(&message).map(|trace| Some(Event::Trace(trace))),
            NFT_MSG_NEWTABLE | NFT_MSG_DELTABLE => Item::Table(wire::decode_table(&message)?),
            NFT_MSG_NEWCHAIN | NFT_MSG_DELCHAIN => Item::Chain(wire::decode_chain(&message)?),
            NFT_MSG_NEWRULE | NFT_MSG_DELRULE => Item::Rule(wire::decode_rule(&message)?),
            NFT_MSG_NEWSET | NFT_MSG_DELSET => Item::Set(wire::decode_set(&message)?),
            NFT_MSG_NEWOBJ | NFT_MSG_DELOBJ => Item::Object(wire::decode_object(&message)?),
            NFT_MSG_NEWFLOWTABLE | NFT_MSG_DELFLOWTABLE => Item::Flowtable(wire::decode_flowtable(&message)?),
            NFT_MSG_NEWSETELEM | NFT_MSG_DELSETELEM => {
                let list = ElementList::decode(&message)?;
                let set = list.set.clone();
                let elements = list.collect::<Result<Vec<_>, _>>()?;
                Item::Elements(Elements::new(set, elements))
            }
            _ => return Ok(None),
        };
        let is_added = matches!(
            command,
            NFT_MSG_NEWTABLE
                | NFT_MSG_NEWCHAIN
                | NFT_MSG_NEWRULE
                | NFT_MSG_NEWSET
                | NFT_MSG_NEWOBJ
                | NFT_MSG_NEWFLOWTABLE
                | NFT_MSG_NEWSETELEM
        );
        Ok(Some(if is_added {
            Event::Added(item)
        } else {
            Event::Deleted(item)
        }))
    }

    /// The family of the table that the event concerns.
    #[must_use]
    pub fn family(&self) -> Option<TableFamily> {
        match self {
            Event::Added(item) | Event::Deleted(item) => Some(item.table().family),
            Event::Trace(trace) => Some(trace.table.family),
            Event::Generation(_) | Event::Overrun => None,
        }
    }
}
