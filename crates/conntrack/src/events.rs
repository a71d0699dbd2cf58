//! What happens to the table while one looks.

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
    /// Only events of flows that this filter accepts. It is applied in this process, after the event was received. No
    /// condition by default. It does not apply to expectations.
    pub filter: Filter,
    /// Only events of flows that one of these filters accepts, compared in the kernel before the event takes room in the
    /// receive buffer; see [`with_kernel_filters`](Self::with_kernel_filters). `None`, the default, is no kernel filter.
    pub kernel_filters: Option<Vec<Filter>>,
    /// Whether the kernel sends events of ended flows again until they are delivered; see
    /// [`with_reliable_delivery`](Self::with_reliable_delivery). False by default.
    pub is_reliable: bool,
    /// How long [`Events::next`] waits; `None`, the default, waits for ever, zero takes what is queued.
    pub timeout: Option<Duration>,
    /// Size of the receive buffer in bytes, as [`Events::set_receive_buffer`]; `None`, the default, is 4 MiB.
    pub receive_buffer: Option<usize>,
}

impl EventOptions {
    /// All events of these kinds, without filter, unreliable, waiting for ever.
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

    /// Only events of flows that this filter accepts, compared in this process.
    pub fn with_filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Only events of flows that one of these filters accepts, compared in the kernel by a program on the socket
    /// (`SO_ATTACH_FILTER`). Other events take no room in the receive buffer and do not wake this process. Of an empty list
    /// no event of a flow is received.
    ///
    /// The filters can have a family, a protocol, and networks of the original source and of the original destination;
    /// other conditions go into [`with_filter`](Self::with_filter). The program has at most 4096 instructions
    /// (`BPF_MAXINSNS`): 500 filters with a protocol and one IPv4 address, or 160 with a protocol and two IPv6
    /// networks. The kernel also limits its translated size to `net.core.optmem_max` bytes (by default 128 KiB in Linux 6.18, less in older kernels) and
    /// refuses a larger one with `ENOMEM`. Its cost grows with the number of filters, for every event of the network namespace.
    ///
    /// Every event that is received is compared with the filters once more, so that the result does not depend on the
    /// program. Events of expectations are not filtered.
    #[doc(alias = "SO_ATTACH_FILTER")]
    pub fn with_kernel_filters(mut self, filters: impl IntoIterator<Item = Filter>) -> Self {
        self.kernel_filters = Some(filters.into_iter().collect());
        self
    }

    /// The kernel keeps a flow that ended until its event was delivered here (`NETLINK_BROADCAST_ERROR`; the reliable mode of
    /// `conntrackd`). While the receive buffer is full, it tries again every 10 ms
    /// ([`ecache_work_evict_list`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_ecache.c)).
    ///
    /// What is guaranteed, for flows that have events at all (see [`Events`]) and as long as the subscription is open:
    ///
    /// - [`EventKinds::DESTROY`]: no event is lost because the receive buffer is full. It may come late.
    /// - [`EventKinds::NEW`], [`EventKinds::UPDATE`]: a lost event is not sent again by itself. It is part of the next
    ///   event of its flow, which shows the flow as it is then. If the flow ends before that, only its end is received.
    /// - [`EventKinds::EXPECTATIONS`]: nothing, they are lost as without this mode.
    ///
    /// [`Event::Overrun`] is still reported if `kinds` has more than [`EventKinds::DESTROY`], since the other kinds are lost.
    /// With [`EventKinds::DESTROY`] alone, nothing is lost and nothing is reported: `NETLINK_NO_ENOBUFS` is set. Only with that
    /// option the kernel also keeps the event if it has no memory for the message
    /// ([`netlink_set_err`](https://github.com/torvalds/linux/blob/v6.18/net/netlink/af_netlink.c)); otherwise an
    /// event of an ended flow is lost then, and [`Event::Overrun`] is reported. Events that a filter drops are not kept.
    ///
    /// An event is sent again to every subscription of the network namespace: those that had room the first time receive it
    /// twice. So a subscription can receive an event twice because of another reliable one.
    ///
    /// The cost: an ended flow keeps its memory and its place in
    /// `net.netfilter.nf_conntrack_max` until the event is delivered. If events are not read, the table fills and the kernel
    /// drops packets of new flows. [`Client::dying`](crate::Client::dying) lists the flows that wait. Closing the
    /// subscription releases them.
    #[doc(alias = "NETLINK_BROADCAST_ERROR")]
    pub fn with_reliable_delivery(mut self) -> Self {
        self.is_reliable = true;
        self
    }

    /// How long [`Events::next`] waits; `None` waits for ever, zero takes what is queued.
    pub fn with_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Size of the receive buffer in bytes, as [`Events::set_receive_buffer`].
    pub fn with_receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Subscribes in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::InvalidFilter`] for a contradictory filter, and for kernel filters that cannot be compared in the kernel;
    /// [`is_permission_denied`](Error::is_permission_denied); `ENOMEM` for kernel filters above `net.core.optmem_max`.
    pub fn open(&self) -> Result<Events, Error> {
        self.subscribe(Subscription::open(Protocol::Netfilter, &[]))
    }

    /// As [`open`](Self::open), in another network namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`open`](Self::open), and what goes wrong entering the namespace.
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
                    filter: format!("{} filters", filters.len()),
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
    /// (it is applied here), and to those of expectations if asked for. [`EventOptions`] has a filter in the kernel and a
    /// reliable mode.
    ///
    /// The iterator ends when nothing came for `timeout` (`None` waits for ever, zero takes what is
    /// queued); calling `next` again goes on waiting.
    ///
    /// # Errors
    /// A contradictory filter; [`is_permission_denied`](Error::is_permission_denied).
    pub fn open(kinds: EventKinds, filter: &Filter, timeout: Option<Duration>) -> Result<Self, Error> {
        let options = EventOptions::new(kinds).with_filter(filter.clone());
        options.with_timeout(timeout).open()
    }

    /// As [`open`](Self::open), in another network namespace; the calling thread stays where it is.
    pub fn open_in(
        kinds: EventKinds,
        filter: &Filter,
        timeout: Option<Duration>,
        namespace: &Namespace,
    ) -> Result<Self, Error> {
        let options = EventOptions::new(kinds).with_filter(filter.clone());
        options.with_timeout(timeout).open_in(namespace)
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
    // What the kernel filter accepts is compared again: it accepts what it cannot read.
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
