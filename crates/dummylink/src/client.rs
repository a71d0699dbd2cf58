//! The trait that the kernel and its in-memory twin share, and the kernel's implementation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kernlink_netlink::flags::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use kernlink_netlink::{Batch, Connection, Errno, Namespace, Protocol, Refusal};

use crate::difference::{Ours, Replaced, difference};
use crate::{AddressKey, selection::Selection};
use crate::{DummyLink, Error, HostAddress, Link, LinkAddress, LinkName, LocalRoute, Operation, uapi, wire};

/// Dummy links and the addresses of a network namespace: the kernel's through [`Client`], or links in memory through `Fake`
/// (feature `fake`).
///
/// Your own implementation needs three methods: [`execute`](Self::execute), [`links`](Self::links) and [`list`](Self::list).
/// The provided methods use these three, except [`routes`](Self::routes), which returns [`Error::NotImplemented`]. A wrapper
/// around another implementation should forward `routes` and [`link`](Self::link) too: without `routes`,
/// [`replace`](Self::replace) deletes no IPv4 address; the provided `link` does not know alternative names. [`Error::custom`]
/// is for errors that do not come from the kernel.
///
/// ```
/// use kernlink_dummylink::{DummyLinks, Error, HostAddress, Link, Operation, Selection};
///
/// /// Deletes no link.
/// struct Keeping<L>(L);
///
/// impl<L: DummyLinks> DummyLinks for Keeping<L> {
///     fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
///         let execute = |operation: &Operation| match operation {
///             Operation::DeleteLink(_) => Err(Error::custom(operation, "no link may be deleted on this host")),
///             operation => self.0.execute_one(operation.clone()),
///         };
///         operations.iter().map(execute).collect()
///     }
///
///     fn links(&mut self) -> Result<Vec<Link>, Error> {
///         self.0.links()
///     }
///
///     fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
///         self.0.list(selection)
///     }
/// }
/// ```
pub trait DummyLinks: Send {
    /// Executes operations in order and returns one outcome for each, in order. A failed operation does not stop those
    /// behind it.
    ///
    /// Only dummy links are changed: an operation on a link of another kind fails with
    /// [`Error::is_wrong_kind`] and one on a missing link with [`Error::is_link_missing`].
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// All links, ordered by index. As `ip -details link show`.
    fn links(&mut self) -> Result<Vec<Link>, Error>;

    /// The link of this name, of whatever kind; `None` if there is none. As `ip -details link show NAME`.
    ///
    /// [`Client`] and every operation on it also find a link by its alternative names
    /// (`ip link property add dev LINK altname NAME`); the link returned has its first name. The provided method looks in
    /// [`links`](Self::links), which has first names only.
    fn link(&mut self, name: &LinkName) -> Result<Option<Link>, Error> {
        let links = self.links()?;
        Ok(links.into_iter().find(|link| link.name == *name))
    }

    /// Addresses of both families with their links. As `ip address show`.
    ///
    /// The addresses of each family are in the order of their links; the order of the families is not defined. The same
    /// address may be on several links. [`Client`] lists the addresses of all links at once.
    ///
    /// # Errors
    /// [`Error::is_link_missing`] if the addresses of one link are asked for and it is not there.
    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error>;

    /// The local routes over a dummy link that were added by a program, ordered by prefix, without those that the kernel adds
    /// for each address. As `ip route show table local proto static dev LINK`.
    ///
    /// # Errors
    /// [`Error::is_link_missing`] if the link is not there; [`Error::NotImplemented`] from the provided method. An
    /// implementation that supports no local routes can return an empty list.
    fn routes(&mut self, link: &LinkName) -> Result<Vec<LocalRoute>, Error> {
        Err(Error::NotImplemented {
            operation: format!("route show table local dev {link}").into(),
        })
    }

    /// Whether a dummy link of this name is there.
    ///
    /// # Errors
    /// [`Error::is_wrong_kind`] if a link of this name is of another kind.
    fn exists(&mut self, name: &LinkName) -> Result<bool, Error> {
        match self.link(name)? {
            Some(link) => must_be_dummy(&link, name, format_args!("link show {name}")).map(|()| true),
            None => Ok(false),
        }
    }

    /// Adds a dummy link. As `ip link add NAME type dummy`.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if a link of that name is there, [`Error::is_module_missing`]
    /// if the kernel has no dummy links.
    fn add_link(&mut self, link: &DummyLink) -> Result<(), Error> {
        self.execute_one(Operation::AddLink(link.clone()))
    }

    /// Adds a dummy link unless it exists, and applies the given settings. May be repeated.
    ///
    /// # Errors
    /// [`Error::is_wrong_kind`] if a link of that name is of another kind; that link is not
    /// changed. [`Error::is_module_missing`] if the kernel has no dummy links.
    fn ensure_link(&mut self, link: &DummyLink) -> Result<(), Error> {
        self.execute_one(Operation::EnsureLink(link.clone()))
    }

    /// Deletes a dummy link with its addresses. As `ip link delete NAME type dummy`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if there is none, [`Error::is_wrong_kind`] if the link of that name
    /// is of another kind.
    fn delete_link(&mut self, name: &LinkName) -> Result<(), Error> {
        self.execute_one(Operation::DeleteLink(*name))
    }

    /// Adds an address to a dummy link. As `ip address add ADDRESS dev LINK`.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if its key is there.
    fn add(&mut self, link: &LinkName, address: &LinkAddress) -> Result<(), Error> {
        self.execute_one(Operation::AddAddress(*link, address.clone()))
    }

    /// Adds an address to a dummy link unless its key is there.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if an IPv6 address is there with another prefix length, which
    /// the kernel allows once a link.
    fn ensure(&mut self, link: &LinkName, address: &LinkAddress) -> Result<(), Error> {
        self.execute_one(Operation::EnsureAddress(*link, address.clone()))
    }

    /// Deletes an address of a dummy link. As `ip address delete ADDRESS dev LINK`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it is not there, also if it is there with another prefix length.
    fn delete(&mut self, link: &LinkName, key: &AddressKey) -> Result<(), Error> {
        self.execute_one(Operation::DeleteAddress(*link, *key))
    }

    /// Makes every address of a prefix local by one route. As
    /// `ip route add local PREFIX dev LINK table local proto static`; see [`LocalRoute`].
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if the prefix is local already.
    fn add_route(&mut self, link: &LinkName, route: &LocalRoute) -> Result<(), Error> {
        self.execute_one(Operation::AddRoute(*link, *route))
    }

    /// [`add_route`](Self::add_route) unless the route is there.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if the prefix is local by another link.
    fn ensure_route(&mut self, link: &LinkName, route: &LocalRoute) -> Result<(), Error> {
        self.execute_one(Operation::EnsureRoute(*link, *route))
    }

    /// Deletes a local route. Routes of the kernel and of other programs are not found.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it is not there.
    fn delete_route(&mut self, link: &LinkName, route: &LocalRoute) -> Result<(), Error> {
        self.execute_one(Operation::DeleteRoute(*link, *route))
    }

    /// Changes an address in place: its lifetime, metric and owner, and the flags of an IPv6 address. As
    /// `ip address change ADDRESS dev LINK`, which also adds the address if it is not there.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it is not there, also if it is there with another prefix length or peer.
    fn update(&mut self, link: &LinkName, address: &LinkAddress) -> Result<(), Error> {
        self.execute_one(Operation::UpdateAddress(*link, address.clone()))
    }

    /// Makes the owned addresses of a dummy link the wanted ones: adds the missing ones, then deletes owned addresses that
    /// are not wanted. `ours` says which addresses are owned; [`Difference`](crate::Difference) lists what is not changed.
    ///
    /// With the first IPv4 address of a prefix the kernel also deletes the later ones of that prefix
    /// ([`AddressFlags::SECONDARY`](crate::AddressFlags::SECONDARY)); wanted ones among them are added again.
    ///
    /// With the last IPv4 address of the link the kernel also deletes its IPv4 [`LocalRoute`]s; they are added again
    /// in the same batch. Packets to their prefixes that arrive in between are not local.
    ///
    /// # Errors
    /// Those of [`link`](Self::link) and [`list`](Self::list), and of [`routes`](Self::routes) if an IPv4 address is to be
    /// deleted; nothing was changed then, except if reading again after a change fails. Errors of single operations are in
    /// the result.
    fn replace(&mut self, link: &LinkName, wanted: &[LinkAddress], ours: &Ours) -> Result<Replaced, Error> {
        // By its first name, which listings carry; it may be known by others.
        let link = match self.link(link)? {
            Some(found) => found.name,
            None => {
                return Err(Error::LinkMissing {
                    operation: Selection::On(*link).to_string().into(),
                    link: *link,
                });
            }
        };
        let mut replaced = Replaced::default();
        let mut routes = Vec::new();
        for round in 0..2 {
            let observed = self.list(Selection::All)?;
            let difference = difference(&link, &observed, wanted, ours);
            let mut operations = difference.operations(&link);
            if round == 0 {
                if difference.deletes_ipv4() {
                    routes = self.routes(&link)?;
                    routes.retain(|route| route.prefix().addr().is_ipv4());
                }
                if difference.deletes_last_ipv4(&observed, &link) {
                    operations.extend(routes.iter().map(|route| Operation::EnsureRoute(link, *route)));
                }
                replaced.difference = difference;
            }
            // A second round only for what a deletion took along.
            let operations: Vec<_> = operations
                .into_iter()
                .filter(|operation| {
                    round == 0 || !replaced.failures.iter().any(|(failed, _)| failed == operation)
                })
                .collect();
            if operations.is_empty() {
                break;
            }
            replaced.execute(self, operations);
            if !replaced.difference.deletes_primary(&observed, &link) {
                break;
            }
        }
        // Also after a deletion that turned out to be of the last address, by what others did meanwhile.
        if !routes.is_empty() {
            let present = self.routes(&link)?;
            let lost = routes
                .iter()
                .filter(|route| !present.contains(route) && !replaced.restored.contains(route))
                .map(|route| Operation::EnsureRoute(link, *route))
                .collect();
            replaced.execute(self, lost);
        }
        Ok(replaced)
    }

    /// [`execute`](Self::execute) with one operation.
    fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
        self.execute(std::slice::from_ref(&operation))
            .pop()
            .unwrap_or(Err(Error::OutcomeMissing))
    }
}

/// An error if the link of a name is of another kind.
pub(crate) fn must_be_dummy(link: &Link, name: &LinkName, operation: impl ToString) -> Result<(), Error> {
    if link.is_dummy() {
        return Ok(());
    }
    let kind = link.kind.as_deref().unwrap_or("(none)").into();
    Err(Error::WrongKind {
        operation: operation.to_string().into(),
        link: *name,
        kind,
    })
}

/// What the kernel would take for something else.
pub(crate) fn validate(operation: &Operation) -> Result<(), Error> {
    let reason = match operation {
        Operation::AddLink(link) | Operation::EnsureLink(link) => match link.alias.as_deref() {
            Some(alias) if alias.len() >= uapi::IFALIASZ => {
                "the alias has more than the 255 bytes that IFALIASZ allows"
            }
            Some(alias) if alias.contains('\0') => "the alias holds a zero byte",
            _ => return Ok(()),
        },
        Operation::AddAddress(_, address)
        | Operation::EnsureAddress(_, address)
        | Operation::UpdateAddress(_, address) => {
            let is_ipv6 = address.key.address().is_ipv6();
            match address {
                address if is_ipv6 && address.label.is_some() => "the label is for IPv4 only",
                address if is_ipv6 && address.broadcast.is_some() => "the broadcast address is for IPv4 only",
                _ => return Ok(()),
            }
        }
        _ => return Ok(()),
    };
    Err(Error::Invalid {
        operation: operation.to_string().into(),
        reason,
    })
}

/// The kernel's links and addresses, over a route-netlink socket.
#[doc(alias = "rtnetlink")]
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    batch: Batch,
}

impl Client {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// Only if there are no file descriptors left: opening takes no privilege.
    pub fn open() -> Result<Self, Error> {
        Connection::open(Protocol::Route)
            .map(Self::from)
            .map_err(|error| Error::netlink("open a socket", error))
    }

    /// Opens a socket in another network namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`] if the namespace may not be entered.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Connection::open_in(Protocol::Route, namespace)
            .map(Self::from)
            .map_err(|error| Error::netlink("open a socket", error))
    }

    /// Changes how long to wait for each answer of the kernel; `None` waits for ever. 30 seconds unless set.
    /// An operation that timed out may have been executed: [`Error::is_outcome_unknown`].
    ///
    /// # Errors
    /// If the socket cannot be configured.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.connection
            .set_timeout(timeout)
            .map_err(|error| Error::netlink("set the timeout", error))
    }

    fn link_operation(&mut self, operation: &Operation) -> Result<(), Error> {
        validate(operation)?;
        match operation {
            Operation::AddLink(link) => self.create_link(link, operation),
            Operation::EnsureLink(link) => {
                let Some(existing) = self.link(&link.name)? else {
                    return match self.create_link(link, operation) {
                        // Somebody was faster: take theirs, if it is a dummy link.
                        Err(error) if error.is_already_exists() => match self.link(&link.name)? {
                            Some(existing) => self.adapt_link(&existing, link, operation),
                            None => Err(error),
                        },
                        outcome => outcome,
                    };
                };
                self.adapt_link(&existing, link, operation)
            }
            Operation::DeleteLink(name) => {
                let index = dummy_index(self.link(name)?.as_ref(), operation)?;
                self.request(operation, uapi::RTM_DELLINK, 0, &wire::delete_link(index))
            }
            _ => Ok(()),
        }
    }

    fn create_link(&mut self, link: &DummyLink, operation: &Operation) -> Result<(), Error> {
        self.request(
            operation,
            uapi::RTM_NEWLINK,
            NLM_F_CREATE | NLM_F_EXCL,
            &wire::new_link(link),
        )?;
        // The kernel takes no alias for a link that it creates.
        if link.alias.as_deref().is_none_or(str::is_empty) {
            return Ok(());
        }
        match self.link(&link.name)? {
            Some(created) => self.adapt_link(&created, link, operation),
            None => Err(Error::LinkMissing {
                operation: operation.to_string().into(),
                link: link.name,
            }),
        }
    }

    fn adapt_link(&mut self, existing: &Link, link: &DummyLink, operation: &Operation) -> Result<(), Error> {
        must_be_dummy(existing, &link.name, operation)?;
        if link.has_its_settings(existing) {
            return Ok(());
        }
        self.request(
            operation,
            uapi::RTM_NEWLINK,
            0,
            &wire::change_link(existing, link),
        )
    }

    fn request(&mut self, operation: &Operation, kind: u16, flags: u16, payload: &[u8]) -> Result<(), Error> {
        self.connection
            .execute_one(kind, flags, |w| {
                w.header(payload);
            })
            .map_err(|error| Error::netlink(operation, error))
    }

    /// Addresses and routes: one message each, many messages a system call.
    fn execute_run(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = vec![Ok(()); operations.len()];
        let mut links: BTreeMap<LinkName, Result<Option<Link>, Error>> = BTreeMap::new();
        let mut present: BTreeMap<LinkName, Result<BTreeSet<AddressKey>, Error>> = BTreeMap::new();
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let mut sent = Vec::with_capacity(operations.len());
        for (operation, outcome) in operations.iter().zip(&mut outcomes) {
            let link = links
                .entry(*operation.link())
                .or_insert_with(|| self.link(operation.link()));
            let index = match link {
                Ok(found) => dummy_index(found.as_ref(), operation),
                Err(error) => Err(error.clone()),
            };
            *outcome = validate(operation).and(index).and_then(|index| {
                let exclusive = NLM_F_CREATE | NLM_F_EXCL;
                let (kind, flags, payload) = match operation {
                    Operation::AddAddress(_, address) | Operation::EnsureAddress(_, address) => {
                        (uapi::RTM_NEWADDR, exclusive, wire::new_address(index, address))
                    }
                    Operation::UpdateAddress(link, address) => {
                        let keys = present.entry(*link).or_insert_with(|| self.keys(link));
                        if !keys.as_ref().map_err(Error::clone)?.contains(&address.key) {
                            // The kernel would add it.
                            return Err(Error::Refused {
                                operation: operation.to_string().into(),
                                refusal: Refusal::new(Errno::EADDRNOTAVAIL),
                            });
                        }
                        (
                            uapi::RTM_NEWADDR,
                            NLM_F_REPLACE,
                            wire::new_address(index, address),
                        )
                    }
                    Operation::DeleteAddress(_, key) => {
                        (uapi::RTM_DELADDR, 0, wire::delete_address(index, key))
                    }
                    Operation::AddRoute(_, route) | Operation::EnsureRoute(_, route) => {
                        (uapi::RTM_NEWROUTE, exclusive, wire::route(index, route))
                    }
                    Operation::DeleteRoute(_, route) => (uapi::RTM_DELROUTE, 0, wire::route(index, route)),
                    Operation::AddLink(_) | Operation::EnsureLink(_) | Operation::DeleteLink(_) => {
                        return Ok(());
                    }
                };
                batch
                    .push(kind, flags, |w| {
                        w.header(&payload);
                    })
                    .map_err(|error| Error::netlink(operation, error))
            });
            sent.push(outcome.is_ok());
        }
        let mut answers = self.connection.execute(&mut batch).into_iter();
        self.batch = batch;
        for ((operation, outcome), sent) in operations.iter().zip(&mut outcomes).zip(sent) {
            if sent {
                let answer = answers.next().unwrap_or(Err(kernlink_netlink::Error::TimedOut));
                *outcome = answer.map_err(|error| Error::netlink(operation, error));
            }
        }
        self.forgive(operations, &mut outcomes);
        outcomes
    }

    /// The keys of the addresses on a link.
    fn keys(&mut self, link: &LinkName) -> Result<BTreeSet<AddressKey>, Error> {
        let listed = self.list(Selection::On(*link))?;
        Ok(listed.into_iter().map(|seen| seen.address.key).collect())
    }

    /// Turns "already exists" into success for what is to be ensured and is really there: the kernel
    /// says so of an IPv6 address for any prefix length and peer, of an IPv4 address for any peer of the same
    /// network, of a route for any link.
    fn forgive(&mut self, operations: &[Operation], outcomes: &mut [Result<(), Error>]) {
        let mut addresses: BTreeMap<LinkName, BTreeSet<AddressKey>> = BTreeMap::new();
        let mut routes: BTreeMap<LinkName, Vec<LocalRoute>> = BTreeMap::new();
        for (operation, outcome) in operations.iter().zip(outcomes) {
            if !outcome.as_ref().is_err_and(Error::is_already_exists) {
                continue;
            }
            let is_there = match operation {
                // The network of an IPv4 address for itself is that address: no listing is needed.
                Operation::EnsureAddress(_, address)
                    if address.key.address().is_ipv4() && address.key.prefix_length() == 32 =>
                {
                    true
                }
                Operation::EnsureAddress(link, address) => addresses
                    .entry(*link)
                    .or_insert_with(|| self.keys(link).unwrap_or_default())
                    .contains(&address.key),
                Operation::EnsureRoute(link, route) => routes
                    .entry(*link)
                    .or_insert_with(|| self.routes(link).unwrap_or_default())
                    .binary_search(route)
                    .is_ok(),
                _ => false,
            };
            if is_there {
                *outcome = Ok(());
            }
        }
    }

    /// Always of all links: the kernel marks a listing that was interrupted by a change as such
    /// (`NLM_F_DUMP_INTR`) only if it is not of one link
    /// ([`inet_dump_ifaddr`](https://github.com/torvalds/linux/blob/v6.12/net/ipv4/devinet.c)).
    fn dump_addresses(&mut self, operation: &str) -> Result<Vec<(u32, LinkAddress)>, Error> {
        let payload = wire::addresses_query();
        self.connection
            .dump_all(
                uapi::RTM_GETADDR,
                0,
                |w| {
                    w.header(&payload);
                },
                |message| match message.message_type {
                    uapi::RTM_NEWADDR => wire::decode_address(&message),
                    _ => Ok(None),
                },
            )
            .map_err(|error| Error::netlink(operation, error))
    }
}

impl From<Connection> for Client {
    /// Over an open connection of [`Protocol::Route`].
    fn from(connection: Connection) -> Self {
        Client {
            connection,
            batch: Batch::new(),
        }
    }
}

impl DummyLinks for Client {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(operations.len());
        // What is changed has to be there, so changes look at what the operations before them have left.
        let is_change = |operation: &Operation| matches!(operation, Operation::UpdateAddress(..));
        let is_of_link = |operation: &Operation| {
            matches!(
                operation,
                Operation::AddLink(_) | Operation::EnsureLink(_) | Operation::DeleteLink(_)
            )
        };
        while let Some([first, behind @ ..]) = operations.get(outcomes.len()..) {
            if is_of_link(first) {
                outcomes.push(self.link_operation(first));
                continue;
            }
            let alike =
                |operation: &&Operation| !is_of_link(operation) && is_change(operation) == is_change(first);
            let count = 1 + behind.iter().take_while(alike).count();
            let run = operations.get(outcomes.len()..outcomes.len() + count);
            outcomes.extend(self.execute_run(run.unwrap_or(&[])));
        }
        outcomes
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        let payload = wire::links_query();
        let mut links = self
            .connection
            .dump_all(
                uapi::RTM_GETLINK,
                0,
                |w| {
                    w.header(&payload);
                },
                |message| match message.message_type {
                    uapi::RTM_NEWLINK => wire::decode_link(&message),
                    _ => Ok(None),
                },
            )
            .map_err(|error| Error::netlink("link show", error))?;
        links.sort_by_key(|link| link.index);
        Ok(links)
    }

    fn link(&mut self, name: &LinkName) -> Result<Option<Link>, Error> {
        let payload = wire::link_query(name);
        let found = self.connection.request(
            uapi::RTM_GETLINK,
            0,
            |w| {
                w.header(&payload);
            },
            |message| match message.message_type {
                uapi::RTM_NEWLINK => wire::decode_link(&message),
                _ => Ok(None),
            },
        );
        match found {
            Ok(mut links) => Ok(links.pop()),
            Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(None),
            Err(error) => Err(Error::netlink(format_args!("link show {name}"), error)),
        }
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
        let operation = selection.to_string();
        let named = match selection {
            Selection::All => None,
            Selection::On(name) | Selection::Except(name) => self.link(&name)?,
        };
        let except = match (selection, named) {
            (Selection::On(_), Some(link)) => {
                return Ok(self
                    .dump_addresses(&operation)?
                    .into_iter()
                    .filter(|(index, _)| *index == link.index)
                    .map(|(index, address)| {
                        HostAddress::new(link.name, index, without_own_label(address, &link.name))
                    })
                    .collect());
            }
            (Selection::On(name), None) => {
                return Err(Error::LinkMissing {
                    operation: operation.into(),
                    link: name,
                });
            }
            (_, link) => link.map(|link| link.index),
        };
        let mut links = self.link_names()?;
        let addresses = self.dump_addresses(&operation)?;
        if addresses.iter().any(|(index, _)| !links.contains_key(index)) {
            // A link that came between the listings. Those that this one lacks too are gone, and
            // their addresses with them.
            links = self.link_names()?;
        }
        Ok(addresses
            .into_iter()
            .filter(|(index, _)| except != Some(*index))
            .filter_map(|(index, address)| {
                let name = *links.get(&index)?;
                Some(HostAddress::new(name, index, without_own_label(address, &name)))
            })
            .collect())
    }

    fn routes(&mut self, link: &LinkName) -> Result<Vec<LocalRoute>, Error> {
        let operation = format!("route show table local dev {link}");
        let Some(Link { index, .. }) = self.link(link)? else {
            return Err(Error::LinkMissing {
                operation: operation.into(),
                link: *link,
            });
        };
        let mut routes = Vec::new();
        for family in [uapi::AF_INET, uapi::AF_INET6] {
            let payload = wire::routes_query(index, family);
            let listed = self.connection.dump_all(
                uapi::RTM_GETROUTE,
                0,
                |w| {
                    w.header(&payload);
                },
                |message| match message.message_type {
                    uapi::RTM_NEWROUTE => wire::decode_route(&message),
                    _ => Ok(None),
                },
            );
            match listed {
                Ok(listed) => routes.extend(listed),
                // A strict filter for a table that has never been used.
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                Err(error) => return Err(Error::netlink(&operation, error)),
            }
        }
        let mut routes: Vec<_> = routes
            .into_iter()
            .filter(|(over, _)| *over == index)
            .map(|(_, route)| route)
            .collect();
        routes.sort();
        Ok(routes)
    }
}

impl Client {
    pub(crate) fn link_names(&mut self) -> Result<BTreeMap<u32, LinkName>, Error> {
        Ok(self
            .links()?
            .into_iter()
            .map(|link| (link.index, link.name))
            .collect())
    }
}

/// The number of a link that is to be changed.
fn dummy_index(found: Option<&Link>, operation: &Operation) -> Result<u32, Error> {
    let name = operation.link();
    match found {
        None => Err(Error::LinkMissing {
            operation: operation.to_string().into(),
            link: *name,
        }),
        Some(link) => must_be_dummy(link, name, operation).map(|()| link.index),
    }
}

/// The kernel labels an IPv4 address with the link's name unless told otherwise.
pub(crate) fn without_own_label(mut address: LinkAddress, link: &LinkName) -> LinkAddress {
    address.label = address.label.filter(|label| label.as_bytes() != link.as_bytes());
    address
}
