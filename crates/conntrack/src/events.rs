//! Events of the table.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use kernlink_netlink::{Message, Namespace, Protocol, Subscription, flags, netfilter};

use crate::client::Conntrack;
use crate::error::Error;
use crate::event_filter;
use crate::expectation::Expectation;
use crate::filter::Filter;
use crate::flow::Flow;
use crate::{uapi, wire};

bitflags::bitflags! {
    /// Kinds of events (`conntrack -E -e`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EventKinds: u8 {
        /// New flows.
        const NEW = 1;
        /// Updated flows: status, state, mark, labels, helper.
        const UPDATE = 2;
        /// Ended flows.
        const DESTROY = 4;
        /// New and ended expectations (`conntrack -E expect`).
        const EXPECTATIONS = 8;
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A flow began.
    New(Flow),
    /// A flow was updated; it has the new values. Fields that did not change may be missing, such as the timeout and the
    /// protocol state.
    Update(Flow),
    /// A flow ended. It has counters and times if the kernel keeps them.
    Destroy(Flow),
    /// An expectation was added.
    ExpectationNew(Expectation),
    /// An expectation ended.
    ExpectationDestroy(Expectation),
    /// The receive buffer was full and an unknown number of events is lost. A copy of the table that is kept by events must be
    /// read again: [`Events::resync`].
    Overrun,
}

impl fmt::Display for Event {
    /// Similar to `conntrack -E -o extended`: `[NEW] ipv4 2 tcp 6 ...`. An overrun is the sentence `events were lost: the receive buffer was full`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::New(flow) => write!(f, "[NEW] {flow}"),
            Event::Update(flow) => write!(f, "[UPDATE] {flow}"),
            Event::Destroy(flow) => write!(f, "[DESTROY] {flow}"),
            Event::ExpectationNew(expectation) => write!(f, "[NEW] expectation {expectation}"),
            Event::ExpectationDestroy(expectation) => write!(f, "[DESTROY] expectation {expectation}"),
            Event::Overrun => f.write_str("events were lost: the receive buffer was full"),
        }
    }
}

/// Which events to receive, and how: opens [`Events`].
///
/// ```no_run
/// # use kernlink_conntrack::{EventKinds, EventOptions, Filter, Protocol};
/// # use ipnet::IpNet;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let dns = Filter::new()
///     .with_protocol(Protocol::UDP)
///     .with_destination("10.96.0.10/32".parse::<IpNet>()?);
/// let events = EventOptions::new(EventKinds::DESTROY)
///     .with_kernel_filters([dns])
///     .with_reliable_delivery()
///     .open()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventOptions {
    /// Which kinds of events.
    pub kinds: EventKinds,
    /// Only events of flows that match this filter, compared in this process. No condition by default. It does not apply to
    /// expectations.
    pub filter: Filter,
    /// Only events of flows that match one of these filters, compared in the kernel before the event is put into the
    /// receive buffer; see [`with_kernel_filters`](Self::with_kernel_filters). `None`, the default, is no kernel filter.
    pub kernel_filters: Option<Vec<Filter>>,
    /// Whether the kernel sends events of ended flows again until they are delivered; see
    /// [`with_reliable_delivery`](Self::with_reliable_delivery). False by default.
    pub is_reliable: bool,
    /// How long [`Events::next`] waits. `None`, the default, waits without limit; zero returns queued events only.
    pub timeout: Option<Duration>,
    /// Size of the receive buffer in bytes, as [`Events::set_receive_buffer`]; `None`, the default, is 4 MiB.
    pub receive_buffer: Option<usize>,
}

impl EventOptions {
    /// All events of these kinds: no filter, no reliable delivery, no timeout.
    #[must_use]
    pub fn new(kinds: EventKinds) -> Self {
        EventOptions {
            kinds,
            filter: Filter::new(),
            kernel_filters: None,
            is_reliable: false,
            timeout: None,
            receive_buffer: None,
        }
    }

    /// Only events of flows that match this filter, compared in this process.
    #[must_use]
    pub fn with_filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Only events of flows that match one of these filters, compared in the kernel by a program on the socket
    /// (`SO_ATTACH_FILTER`). Other events take no room in the receive buffer and do not wake this process. With an empty list,
    /// no event of a flow is received.
    ///
    /// The filters can have a family, a protocol, and networks of the original source and of the original destination;
    /// other conditions go into [`with_filter`](Self::with_filter). The program has at most 4096 instructions
    /// (`BPF_MAXINSNS`): 500 filters with a protocol and one IPv4 address, or 160 with a protocol and two IPv6
    /// networks. The kernel also limits its translated size to `net.core.optmem_max` bytes (by default 128 KiB in Linux 6.18, less
    /// in older kernels) and refuses a larger one with `ENOMEM`. Its cost grows with the number of filters, for every event of the
    /// network namespace.
    ///
    /// Every received event is compared with the filters again, so the result does not depend on the program. Events of
    /// expectations are not filtered.
    #[doc(alias = "SO_ATTACH_FILTER")]
    #[must_use]
    pub fn with_kernel_filters(mut self, filters: impl IntoIterator<Item = Filter>) -> Self {
        self.kernel_filters = Some(filters.into_iter().collect());
        self
    }

    /// The kernel keeps an ended flow until its event is delivered to this subscription (`NETLINK_BROADCAST_ERROR`; the reliable
    /// mode of `conntrackd`). While the receive buffer is full, it retries every 10 ms
    /// ([`ecache_work_evict_list`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_ecache.c)).
    ///
    /// The guarantees, for flows that have events (see [`Events`]), while the subscription is open:
    ///
    /// - [`EventKinds::DESTROY`]: no event is lost because of a full receive buffer. Events may be late.
    /// - [`EventKinds::NEW`], [`EventKinds::UPDATE`]: a lost event is not sent again. The next event of its flow includes
    ///   the change. If the flow ends before that, only its end is received.
    /// - [`EventKinds::EXPECTATIONS`]: none; events are lost as without this mode.
    ///
    /// [`Event::Overrun`] is still reported if `kinds` has more than [`EventKinds::DESTROY`], since the other kinds are lost.
    /// With [`EventKinds::DESTROY`] alone, nothing is lost and nothing is reported: `NETLINK_NO_ENOBUFS` is set. Only with that
    /// option the kernel also keeps the event if it has no memory for the message
    /// ([`netlink_set_err`](https://github.com/torvalds/linux/blob/v6.18/net/netlink/af_netlink.c)); otherwise an
    /// event of an ended flow is lost then, and [`Event::Overrun`] is reported. Events that a filter drops are not kept.
    ///
    /// An event is sent again to every subscription of the network namespace, so a subscription can receive an event twice because
    /// another reliable subscription had no room.
    ///
    /// An ended flow uses memory and counts towards `net.netfilter.nf_conntrack_max` until the event is delivered. If events are
    /// not read, the table fills and the kernel drops packets of new flows. [`Client::dying`](crate::Client::dying) lists these
    /// flows. Closing the subscription releases them.
    #[doc(alias = "NETLINK_BROADCAST_ERROR")]
    #[must_use]
    pub fn with_reliable_delivery(mut self) -> Self {
        self.is_reliable = true;
        self
    }

    /// How long [`Events::next`] waits. `None` waits without limit; zero returns queued events only.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Size of the receive buffer in bytes, as [`Events::set_receive_buffer`].
    #[must_use]
    pub fn with_receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Subscribes in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::InvalidFilter`] for a contradictory filter, and for kernel filters with conditions that the kernel cannot compare;
    /// [`is_permission_denied`](Error::is_permission_denied); `ENOMEM` for kernel filters above `net.core.optmem_max`.
    pub fn open(&self) -> Result<Events, Error> {
        self.subscribe(Subscription::open(Protocol::Netfilter, &[]))
    }

    /// As [`open`](Self::open), in another network namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`open`](Self::open), and errors of entering the namespace.
    pub fn open_in(&self, namespace: &Namespace) -> Result<Events, Error> {
        self.subscribe(Subscription::open_in(Protocol::Netfilter, &[], namespace))
    }

    fn subscribe(
        &self,
        subscription: Result<Subscription, kernlink_netlink::Error>,
    ) -> Result<Events, Error> {
        let invalid = |filter: &Filter| {
            let filter = filter.to_string();
            |problem| Error::InvalidFilter { filter, problem }
        };
        self.filter.check().map_err(invalid(&self.filter))?;
        let program = match &self.kernel_filters {
            Some(filters) => {
                for filter in filters {
                    event_filter::check(filter).map_err(invalid(filter))?;
                }
                let program = event_filter::compile(filters).map_err(|problem| Error::InvalidFilter {
                    filter: format!("list of {} filters", filters.len()),
                    problem,
                })?;
                Some(program)
            }
            None => None,
        };
        let configure = |mut subscription: Subscription| {
            if let Some(bytes) = self.receive_buffer {
                subscription.set_receive_buffer(bytes)?;
            }
            if let Some(program) = &program {
                subscription.attach_filter(program)?;
            }
            if self.is_reliable {
                subscription.set_broadcast_error(true)?;
                subscription.set_no_enobufs(self.kinds == EventKinds::DESTROY)?;
            }
            for group in groups(self.kinds) {
                subscription.join_group(group)?;
            }
            Ok(subscription)
        };
        let subscription = subscription
            .and_then(configure)
            .map_err(|source| Error::Request {
                attempt: "subscribe to events",
                source,
            })?;
        let filter = self.filter.clone();
        let kernel_filters = self.kernel_filters.clone();
        let decode: Decode = Box::new(move |message| decode(&message, &filter, kernel_filters.as_deref()));
        Ok(Events {
            inner: subscription.events(self.timeout, decode),
            timeout: self.timeout,
        })
    }
}

/// A subscription to events of the table, as an iterator (`conntrack -E`).
///
/// With `net.netfilter.nf_conntrack_events` at its default, 2, the kernel sends events only of flows that began while a
/// subscription was open; with 1, of all flows; with 0, of none.
pub struct Events {
    inner: kernlink_netlink::Events<Event, Decode>,
    timeout: Option<Duration>,
}

type Decode = Box<dyn FnMut(Message<'_>) -> Result<Option<Event>, kernlink_netlink::Error> + Send>;

/// The maximum number of events that a resync discards, more than a receive buffer holds.
const MAX_DRAINED: usize = 1 << 16;

impl Events {
    /// Subscribes in the calling thread's network namespace to events of flows that match `filter`, compared in this process, and
    /// to events of expectations if `kinds` has them. [`EventOptions`] also has a filter in the kernel and a reliable mode.
    ///
    /// The iterator ends when no event arrived for `timeout`. `None` waits without limit; zero returns queued events only.
    /// `next` can be called again.
    ///
    /// # Errors
    /// [`Error::InvalidFilter`] for a contradictory filter; [`is_permission_denied`](Error::is_permission_denied).
    pub fn open(kinds: EventKinds, filter: &Filter, timeout: Option<Duration>) -> Result<Self, Error> {
        let options = EventOptions::new(kinds).with_filter(filter.clone());
        options.with_timeout(timeout).open()
    }

    /// As [`open`](Self::open), in another network namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`open`](Self::open), and errors of entering the namespace.
    pub fn open_in(
        kinds: EventKinds,
        filter: &Filter,
        timeout: Option<Duration>,
        namespace: &Namespace,
    ) -> Result<Self, Error> {
        let options = EventOptions::new(kinds).with_filter(filter.clone());
        options.with_timeout(timeout).open_in(namespace)
    }

    /// Sets how long `next` waits. `None` waits without limit; zero returns queued events only.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
        self.inner.set_timeout(timeout);
    }

    /// Sets the size of the receive buffer in bytes. The kernel doubles it; without `CAP_NET_ADMIN` it is limited to
    /// `net.core.rmem_max`. The default is 4 MiB.
    ///
    /// # Errors
    /// If the socket cannot be configured.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        self.inner
            .set_receive_buffer(bytes)
            .map_err(|source| Error::Request {
                attempt: "set the receive buffer",
                source,
            })
    }

    /// Discards queued events and lists the table, after [`Event::Overrun`]. The list and the later events together are complete.
    ///
    /// A change during the listing is in the list, in an event, or in both: an event may report a new flow that the list has
    /// already, or the end of a flow that the list does not have.
    ///
    /// # Errors
    /// Errors of the listing and of the subscription's socket.
    pub fn resync(&mut self, table: &mut dyn Conntrack, filter: &Filter) -> Result<Vec<Flow>, Error> {
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

fn decode(
    message: &Message<'_>,
    filter: &Filter,
    kernel_filters: Option<&[Filter]>,
) -> Result<Option<Event>, kernlink_netlink::Error> {
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
    // The program of the kernel filter accepts messages that it cannot parse, so the filters are compared again.
    let is_accepted = kernel_filters.is_none_or(|filters| filters.iter().any(|filter| filter.matches(&flow)));
    if !is_accepted || !filter.matches(&flow) {
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

#[cfg(feature = "tokio")]
impl Events {
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

impl AsFd for Events {
    /// For `poll`: readable when an event or the report of an overrun is queued.
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
