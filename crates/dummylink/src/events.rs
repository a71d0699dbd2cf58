//! Links and addresses that change under us.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use kernlink_netlink::{Message, Namespace, Protocol, Subscription};

use crate::client::without_own_label;
use crate::{Client, DummyLinks, Error, HostAddress, Link, LinkAddress, LinkName, Selection, uapi, wire};

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A link was added or changed; this is how it is now. The kernel also says so when nothing
    /// that is in [`Link`] has changed.
    LinkChanged(Link),
    /// A link is gone; this is how it was.
    LinkDeleted(Link),
    /// An address was added or changed; this is how it is now.
    AddressChanged(HostAddress),
    /// An address is gone; this is how it was.
    AddressDeleted(HostAddress),
    /// Events were lost, nobody knows which: ask for a [resynchronisation](Events::resynchronise).
    Overrun,
}

/// Iterates over changes of links and addresses in a network namespace, our own ones included.
///
/// It ends when nothing came for the time-out; calling `next` again goes on waiting. An overrun of
/// the socket's receive buffer is an event, never a silent gap. As `ip monitor link address`.
#[doc(alias = "RTNLGRP_LINK")]
#[doc(alias = "RTNLGRP_IPV4_IFADDR")]
#[doc(alias = "RTNLGRP_IPV6_IFADDR")]
#[derive(Debug)]
pub struct Events {
    raw: kernlink_netlink::Events<Raw, Decode>,
    client: Client,
    timeout: Option<Duration>,
    names: BTreeMap<u32, LinkName>,
}

/// Everything at one time, and a stream of events that goes on from there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// All links, ordered by index.
    pub links: Vec<Link>,
    /// All addresses, in the order of the kernel.
    pub addresses: Vec<HostAddress>,
}

type Decode = fn(Message<'_>) -> Result<Option<Raw>, kernlink_netlink::Error>;

/// An event as the kernel tells it: of a link it names only the number.
#[derive(Clone, Debug)]
enum Raw {
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
    /// Starts listening in the calling thread's network namespace. `timeout` is how long `next`
    /// waits: `None` for ever, zero not at all.
    ///
    /// Takes no privilege.
    pub fn open(timeout: Option<Duration>) -> Result<Self, Error> {
        let subscription = Subscription::open(Protocol::Route, &GROUPS);
        Self::over(subscription, Client::open()?, timeout)
    }

    /// Starts listening in another network namespace.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`] if the namespace may not be entered.
    pub fn open_in(namespace: &Namespace, timeout: Option<Duration>) -> Result<Self, Error> {
        let subscription = Subscription::open_in(Protocol::Route, &GROUPS, namespace);
        Self::over(subscription, Client::open_in(namespace)?, timeout)
    }

    fn over(
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

    /// Changes how long `next` waits.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
        self.raw.set_timeout(timeout);
    }

    /// Asks for a receive buffer of this many bytes; without `CAP_NET_ADMIN` at most
    /// `net.core.rmem_max`. 4 MiB unless set, which the kernel doubles.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        self.raw
            .set_receive_buffer(bytes)
            .map_err(|error| Error::netlink(OPERATION, error))
    }

    /// Forgets the events that are queued and lists everything: what to do after
    /// [`Event::Overrun`], and at the start.
    ///
    /// Events that come later apply on top of the listing. One of them may tell what the listing
    /// already shows, since both go on side by side; applied in order they lead to the truth.
    pub fn resynchronise(&mut self) -> Result<Snapshot, Error> {
        self.raw.set_timeout(Some(Duration::ZERO));
        // Also what cannot be decoded and further overruns: the listing tells all.
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
            // Came and went between two looks. `ip` calls such a link by its number too.
            None => LinkName::new(&format!("if{index}")).map_err(|_| Error::Invalid {
                operation: OPERATION.into(),
                reason: "the number of a link has more than 13 digits",
            })?,
        };
        Ok(HostAddress::new(name, index, without_own_label(address, &name)))
    }
}

fn decode(message: Message<'_>) -> Result<Option<Raw>, kernlink_netlink::Error> {
    let address = |make: fn(u32, LinkAddress) -> Raw| {
        Ok(wire::decode_address(&message)?.map(|(index, address)| make(index, address)))
    };
    match message.message_type {
        uapi::RTM_NEWLINK => Ok(wire::decode_link(&message)?.map(Raw::LinkChanged)),
        uapi::RTM_DELLINK => Ok(wire::decode_link(&message)?.map(Raw::LinkDeleted)),
        uapi::RTM_NEWADDR => address(Raw::AddressChanged),
        uapi::RTM_DELADDR => address(Raw::AddressDeleted),
        _ => Ok(None),
    }
}

impl AsFd for Events {
    /// For `poll`: readable when an event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

impl Iterator for Events {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        use kernlink_netlink::Event::{Notification, Overrun};
        let event = match self.raw.next()? {
            Ok(Notification(Raw::LinkChanged(link))) => {
                self.names.insert(link.index, link.name);
                Ok(Event::LinkChanged(link))
            }
            Ok(Notification(Raw::LinkDeleted(link))) => {
                self.names.remove(&link.index);
                Ok(Event::LinkDeleted(link))
            }
            Ok(Notification(Raw::AddressChanged(index, address))) => {
                self.host_address(index, address).map(Event::AddressChanged)
            }
            Ok(Notification(Raw::AddressDeleted(index, address))) => {
                self.host_address(index, address).map(Event::AddressDeleted)
            }
            Ok(Overrun) => Ok(Event::Overrun),
            Ok(_) => return self.next(),
            Err(error) => Err(Error::netlink(OPERATION, error)),
        };
        Some(event)
    }
}
