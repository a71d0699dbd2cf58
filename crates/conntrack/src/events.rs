//! What happens to the table while one looks.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use kernlink_netlink::{Message, Namespace, Protocol, Subscription, flags, netfilter};

use crate::error::Error;
use crate::expectation::Expectation;
use crate::filter::Filter;
use crate::flow::Flow;
use crate::table::Conntrack;
use crate::{uapi, wire};

bitflags::bitflags! {
    /// Which news to hear (`conntrack -E -e`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EventKinds: u8 {
        /// Flows that begin.
        const NEW = 1;
        /// Flows that change: status, state, mark, labels, helper.
        const UPDATE = 2;
        /// Flows that end.
        const DESTROY = 4;
        /// Expectations that are created and deleted (`conntrack -E expect`).
        const EXPECTATIONS = 8;
    }
}

/// One piece of news.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A flow began.
    New(Flow),
    /// A flow changed; this is how it is now. What did not change may be left out: the time-out of
    /// most, the state.
    Update(Flow),
    /// A flow ended; counters and times are there if they are kept.
    Destroy(Flow),
    /// An expectation was created.
    ExpectationNew(Expectation),
    /// An expectation ended.
    ExpectationDestroy(Expectation),
    /// The receive buffer was full and news were lost, nobody knows how many. Whoever keeps a
    /// picture of the table has to list it anew: [`Events::resynchronise`].
    Overrun,
}

/// News of the table as an iterator (`conntrack -E`).
///
/// By default (`net.netfilter.nf_conntrack_events` 2) the kernel makes news only of flows that began
/// while somebody was listening; with 1, of all.
pub struct Events {
    inner: kernlink_netlink::Events<Event, Decode>,
    timeout: Option<Duration>,
}

type Decode = Box<dyn FnMut(Message<'_>) -> Result<Option<Event>, kernlink_netlink::Error> + Send>;

/// The most news that a resynchronisation throws away, more than any receive buffer holds.
const MAX_DRAINED: usize = 1 << 16;

impl Events {
    /// Subscribes in the calling thread's network namespace to news of flows that `filter` accepts
    /// (it is applied here), and to those of expectations if asked for.
    ///
    /// The iterator ends when nothing came for `timeout` (`None` waits for ever, zero takes what is
    /// queued); calling `next` again goes on waiting.
    ///
    /// # Errors
    /// A contradictory filter; [`is_permission_denied`](Error::is_permission_denied).
    pub fn open(kinds: EventKinds, filter: &Filter, timeout: Option<Duration>) -> Result<Self, Error> {
        Self::over(filter, timeout, || {
            Subscription::open(Protocol::Netfilter, &groups(kinds))
        })
    }

    /// As [`open`](Self::open), in another network namespace; the calling thread stays where it is.
    pub fn open_in(
        kinds: EventKinds,
        filter: &Filter,
        timeout: Option<Duration>,
        namespace: &Namespace,
    ) -> Result<Self, Error> {
        Self::over(filter, timeout, || {
            Subscription::open_in(Protocol::Netfilter, &groups(kinds), namespace)
        })
    }

    fn over(
        filter: &Filter,
        timeout: Option<Duration>,
        open: impl FnOnce() -> Result<Subscription, kernlink_netlink::Error>,
    ) -> Result<Self, Error> {
        filter.check().map_err(|problem| Error::InvalidFilter {
            filter: filter.to_string(),
            problem,
        })?;
        let subscription = open().map_err(|source| Error::Request {
            attempt: "subscribe to events",
            source,
        })?;
        let filter = filter.clone();
        let decode: Decode = Box::new(move |message| decode(&message, &filter));
        Ok(Events {
            inner: subscription.events(timeout, decode),
            timeout,
        })
    }

    /// Changes how long `next` waits.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
        self.inner.set_timeout(timeout);
    }

    /// Asks for a receive buffer of this many bytes, which the kernel doubles; without
    /// `CAP_NET_ADMIN` at most `net.core.rmem_max`. 4 MiB are asked for unless set.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        self.inner
            .set_receive_buffer(bytes)
            .map_err(|source| Error::Request {
                attempt: "set the receive buffer",
                source,
            })
    }

    /// After [`Event::Overrun`]: throws away what is queued and lists the table, so that the list and
    /// the events from now on are the whole picture again.
    ///
    /// What happens during the listing is in the list, in events, or in both: an event may tell of a
    /// flow that the list has already, or of the end of one that it does not have.
    ///
    /// # Errors
    /// What goes wrong listing, or on the subscription's socket.
    pub fn resynchronise(&mut self, table: &mut dyn Conntrack, filter: &Filter) -> Result<Vec<Flow>, Error> {
        self.inner.set_timeout(Some(Duration::ZERO));
        let drained = self
            .inner
            .by_ref()
            .take(MAX_DRAINED)
            .try_for_each(|event| event.map(drop));
        self.inner.set_timeout(self.timeout);
        drained.map_err(receive_failed)?;
        table.list(filter)
    }
}

fn receive_failed(source: kernlink_netlink::Error) -> Error {
    Error::Request {
        attempt: "receive events",
        source,
    }
}

fn groups(kinds: EventKinds) -> Vec<u32> {
    [
        (EventKinds::NEW, uapi::NFNLGRP_CONNTRACK_NEW),
        (EventKinds::UPDATE, uapi::NFNLGRP_CONNTRACK_UPDATE),
        (EventKinds::DESTROY, uapi::NFNLGRP_CONNTRACK_DESTROY),
        (EventKinds::EXPECTATIONS, uapi::NFNLGRP_CONNTRACK_EXP_NEW),
        (EventKinds::EXPECTATIONS, uapi::NFNLGRP_CONNTRACK_EXP_UPDATE),
        (EventKinds::EXPECTATIONS, uapi::NFNLGRP_CONNTRACK_EXP_DESTROY),
    ]
    .into_iter()
    .filter_map(|(kind, group)| kinds.contains(kind).then_some(group))
    .collect()
}

fn decode(message: &Message<'_>, filter: &Filter) -> Result<Option<Event>, kernlink_netlink::Error> {
    let command = netfilter::command(message.message_type);
    let [subsystem, _] = message.message_type.to_be_bytes();
    let is_new = message.flags & flags::NLM_F_CREATE != 0;
    if subsystem == netfilter::NFNL_SUBSYS_CTNETLINK_EXP {
        let expectation = wire::read_expectation(message.payload)?;
        return Ok(match command {
            uapi::IPCTNL_MSG_EXP_NEW => Some(Event::ExpectationNew(expectation)),
            uapi::IPCTNL_MSG_EXP_DELETE => Some(Event::ExpectationDestroy(expectation)),
            _ => None,
        });
    }
    let flow = wire::read_flow(message.payload)?;
    if !filter.matches(&flow) {
        return Ok(None);
    }
    Ok(match command {
        uapi::IPCTNL_MSG_CT_NEW if is_new => Some(Event::New(flow)),
        uapi::IPCTNL_MSG_CT_NEW => Some(Event::Update(flow)),
        uapi::IPCTNL_MSG_CT_DELETE => Some(Event::Destroy(flow)),
        _ => None,
    })
}

impl Iterator for Events {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(match self.inner.next()? {
            Ok(kernlink_netlink::Event::Notification(event)) => Ok(event),
            Ok(_) => Ok(Event::Overrun),
            Err(source) => Err(receive_failed(source)),
        })
    }
}

impl AsFd for Events {
    /// For `poll`: readable when news, or the news of an overrun, waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
