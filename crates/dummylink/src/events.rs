//! Events: changes of links and addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use kernlink_netlink::{Message, Namespace, Protocol, Subscription};

use crate::{Client, DummyLinks, Error, HostAddress, Link, LinkAddress, LinkName, Selection, uapi, wire};

/// A change of a link or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A link was added or changed; its state after the change. The kernel also sends this event for changes of
    /// attributes that are not in [`Link`].
    LinkChanged(Link),
    /// A link was deleted; its last state.
    LinkDeleted(Link),
    /// An address was added or changed; its state after the change.
    AddressChanged(HostAddress),
    /// An address was deleted; its last state.
    AddressDeleted(HostAddress),
    /// The receive buffer was full and an unknown number of events was lost: call [`resync`](Events::resync).
    Overrun,
}

impl fmt::Display for Event {
    /// The link or address; before it `deleted`, as `ip monitor` prints `Deleted`. An overrun is the sentence `events were lost: the receive buffer was full`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::LinkChanged(link) => write!(f, "link {link}"),
            Event::LinkDeleted(link) => write!(f, "deleted link {link}"),
            Event::AddressChanged(address) => write!(f, "address {address}"),
            Event::AddressDeleted(address) => write!(f, "deleted address {address}"),
            Event::Overrun => f.write_str("events were lost: the receive buffer was full"),
        }
    }
}

/// Iterator over changes of links and addresses in a network namespace, also those by this process. As
/// `ip monitor link address`.
///
/// `next` returns `None` if no event arrives within the timeout, and can be called again. An overrun of
/// the socket's receive buffer is an event.
#[doc(alias = "RTNLGRP_LINK")]
#[doc(alias = "RTNLGRP_IPV4_IFADDR")]
#[doc(alias = "RTNLGRP_IPV6_IFADDR")]
#[derive(Debug)]
pub struct Events {
    raw: kernlink_netlink::Events<RawEvent, Decode>,
    client: Client,
    timeout: Option<Duration>,
    names: BTreeMap<u32, LinkName>,
}

/// All links and addresses, returned by [`Events::resync`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// All links, ordered by index.
    pub links: Vec<Link>,
    /// All addresses, in the kernel's order.
    pub addresses: Vec<HostAddress>,
}

type Decode = fn(Message<'_>) -> Result<Option<RawEvent>, kernlink_netlink::Error>;

/// An event as sent by the kernel, which identifies links by index.
#[derive(Clone, Debug)]
enum RawEvent {
    LinkChanged(Link),
    LinkDeleted(Link),
    AddressChanged(u32, LinkAddress),
    AddressDeleted(u32, LinkAddress),
}

const GROUPS: [u32; 3] = [
    uapi::RTNLGRP_LINK,
    uapi::RTNLGRP_IPV4_IFADDR,
    uapi::RTNLGRP_IPV6_IFADDR,
];
const OPERATION: &str = "monitor link address";

impl Events {
    /// Subscribes in the calling thread's network namespace. `timeout` limits how long `next`
    /// waits: `None` waits forever, zero does not wait.
    ///
    /// Requires no privilege.
    pub fn open(timeout: Option<Duration>) -> Result<Self, Error> {
        let subscription = Subscription::open(Protocol::Route, &GROUPS);
        Self::with_subscription(subscription, Client::open()?, timeout)
    }

    /// Subscribes in another network namespace.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`] if the caller may not enter the namespace.
    pub fn open_in(namespace: &Namespace, timeout: Option<Duration>) -> Result<Self, Error> {
        let subscription = Subscription::open_in(Protocol::Route, &GROUPS, namespace);
        Self::with_subscription(subscription, Client::open_in(namespace)?, timeout)
    }

    fn with_subscription(
        subscription: Result<Subscription, kernlink_netlink::Error>,
        mut client: Client,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let subscription = subscription.map_err(|error| Error::netlink(OPERATION, error))?;
        let names = client.link_names()?;
        Ok(Events {
            raw: subscription.events(timeout, decode as Decode),
            client,
            timeout,
            names,
        })
    }

    /// Changes the timeout of `next`.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
        self.raw.set_timeout(timeout);
    }

    /// Sets the size of the receive buffer in bytes (`SO_RCVBUF`), which the kernel doubles; without `CAP_NET_ADMIN` at most
    /// `net.core.rmem_max`. Default: 4 MiB.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        self.raw
            .set_receive_buffer(bytes)
            .map_err(|error| Error::netlink(OPERATION, error))
    }

    /// Discards the queued events and lists everything. Required at the start and after
    /// [`Event::Overrun`].
    ///
    /// Later events apply to the listing. The first ones may repeat changes that the listing already
    /// contains, because both happen concurrently; applied in order they result in the current state.
    pub fn resync(&mut self) -> Result<Snapshot, Error> {
        self.raw.set_timeout(Some(Duration::ZERO));
        // Also errors and further overruns: the listing replaces them.
        while self.raw.next().is_some() {}
        self.raw.set_timeout(self.timeout);
        let links = self.client.links()?;
        let addresses = self.client.list(Selection::All)?;
        self.names = links.iter().map(|link| (link.index, link.name)).collect();
        Ok(Snapshot { links, addresses })
    }

    fn host_address(&mut self, index: u32, address: LinkAddress) -> Result<HostAddress, Error> {
        if !self.names.contains_key(&index) {
            self.names.append(&mut self.client.link_names()?);
        }
        let name = match self.names.get(&index) {
            Some(name) => *name,
            // Added and deleted between two listings. `ip` prints such a link by its index too.
            None => LinkName::new(&format!("if{index}")).map_err(|_| Error::Invalid {
                operation: OPERATION.into(),
                reason: "the index of a link has more than 13 digits",
            })?,
        };
        Ok(HostAddress::new(
            name,
            index,
            address.without_default_label(&name),
        ))
    }
}

fn decode(message: Message<'_>) -> Result<Option<RawEvent>, kernlink_netlink::Error> {
    let address = |make: fn(u32, LinkAddress) -> RawEvent| {
        Ok(wire::decode_address(&message)?.map(|(index, address)| make(index, address)))
    };
    match message.message_type {
        uapi::RTM_NEWLINK => Ok(wire::decode_link(&message)?.map(RawEvent::LinkChanged)),
        uapi::RTM_DELLINK => Ok(wire::decode_link(&message)?.map(RawEvent::LinkDeleted)),
        uapi::RTM_NEWADDR => address(RawEvent::AddressChanged),
        uapi::RTM_DELADDR => address(RawEvent::AddressDeleted),
        _ => Ok(None),
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
    /// For `poll`: readable when an event is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

impl Iterator for Events {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        use kernlink_netlink::Event::{Notification, Overrun};
        let event = match self.raw.next()? {
            Ok(Notification(RawEvent::LinkChanged(link))) => {
                self.names.insert(link.index, link.name);
                Ok(Event::LinkChanged(link))
            }
            Ok(Notification(RawEvent::LinkDeleted(link))) => {
                self.names.remove(&link.index);
                Ok(Event::LinkDeleted(link))
            }
            Ok(Notification(RawEvent::AddressChanged(index, address))) => {
                self.host_address(index, address).map(Event::AddressChanged)
            }
            Ok(Notification(RawEvent::AddressDeleted(index, address))) => {
                self.host_address(index, address).map(Event::AddressDeleted)
            }
            Ok(Overrun) => Ok(Event::Overrun),
            Ok(_) => return self.next(),
            Err(error) => Err(Error::netlink(OPERATION, error)),
        };
        Some(event)
    }
}
