//! The trait [`DummyLinks`] and the client of the kernel.

mod execute;

use std::collections::BTreeMap;
use std::time::Duration;

use kernlink_netlink::{Batch, Connection, Errno, Namespace, Protocol};

use crate::replace::replace;
use crate::{
    AddressKey, DummyLink, Error, HostAddress, Link, LinkAddress, LinkName, LocalRoute, Operation, Ownership,
    ReplaceReport, Selection, uapi, wire,
};

/// Dummy links and addresses of a network namespace. Implemented by [`Client`] (the kernel) and by `Fake` (in memory, feature
/// `fake`).
///
/// Another implementation needs three methods: [`execute`](Self::execute), [`links`](Self::links) and [`list`](Self::list).
/// The provided methods use these three, except [`routes`](Self::routes), which returns [`Error::NotImplemented`]. A wrapper
/// of another implementation should also forward `routes` and [`link`](Self::link): without `routes`,
/// [`replace`](Self::replace) fails if an IPv4 address has to be deleted; the provided `link` does not find alternative names.
/// [`Error::custom`] is for errors that do not come from the kernel.
///
/// ```
/// use kernlink_dummylink::{DummyLinks, Error, HostAddress, Link, Operation, Selection};
///
/// /// Deletes no link.
/// struct WithoutDeletion<L>(L);
///
/// impl<L: DummyLinks> DummyLinks for WithoutDeletion<L> {
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
    /// Executes operations in order and returns one outcome for each, in order. A failed operation does not stop the
    /// following ones.
    ///
    /// Only dummy links are changed: an operation on a link of another kind fails with
    /// [`Error::is_wrong_kind`] and one on a missing link with [`Error::is_link_missing`].
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// All links, ordered by index. As `ip -details link show`.
    fn links(&mut self) -> Result<Vec<Link>, Error>;

    /// The link of this name, of any kind; `None` if it does not exist. As `ip -details link show NAME`.
    ///
    /// [`Client`] and every operation on it also find a link by its alternative names
    /// (`ip link property add dev LINK altname NAME`); the returned link has its first name. The provided method searches
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
    /// [`Error::is_link_missing`] for [`Selection::On`] a link that does not exist.
    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error>;

    /// The local routes over a link that were added with `proto static`, ordered by prefix; not the route that the kernel adds
    /// for each address. As `ip route show table local proto static dev LINK`.
    ///
    /// # Errors
    /// [`Error::is_link_missing`] if the link does not exist; [`Error::NotImplemented`] from the provided method. An
    /// implementation without support for local routes can return an empty list.
    fn routes(&mut self, link: &LinkName) -> Result<Vec<LocalRoute>, Error> {
        Err(Error::NotImplemented {
            operation: format!("route show table local dev {link}").into(),
        })
    }

    /// Whether a dummy link of this name exists.
    ///
    /// # Errors
    /// [`Error::is_wrong_kind`] if a link of this name is of another kind.
    fn exists(&mut self, name: &LinkName) -> Result<bool, Error> {
        match self.link(name)? {
            Some(link) => link
                .check_is_dummy(name, format_args!("link show {name}"))
                .map(|()| true),
            None => Ok(false),
        }
    }

    /// Adds a dummy link. As `ip link add NAME type dummy`.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if a link of that name exists, [`Error::is_module_missing`]
    /// if the kernel does not support dummy links.
    fn add_link(&mut self, link: &DummyLink) -> Result<(), Error> {
        self.execute_one(Operation::AddLink(link.clone()))
    }

    /// Adds a dummy link unless it exists, and applies the given state, MTU and alias. Idempotent.
    ///
    /// # Errors
    /// [`Error::is_wrong_kind`] if a link of that name is of another kind; that link is not
    /// changed. [`Error::is_module_missing`] if the kernel does not support dummy links.
    fn ensure_link(&mut self, link: &DummyLink) -> Result<(), Error> {
        self.execute_one(Operation::EnsureLink(link.clone()))
    }

    /// Deletes a dummy link with its addresses. As `ip link delete NAME type dummy`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it does not exist, [`Error::is_wrong_kind`] if the link of that name
    /// is of another kind.
    fn delete_link(&mut self, name: &LinkName) -> Result<(), Error> {
        self.execute_one(Operation::DeleteLink(*name))
    }

    /// Adds an address to a dummy link. As `ip address add ADDRESS dev LINK`.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if the link has an address with this key.
    fn add(&mut self, link: &LinkName, address: &LinkAddress) -> Result<(), Error> {
        self.execute_one(Operation::AddAddress(*link, address.clone()))
    }

    /// Adds an address to a dummy link unless the link has one with this key.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if the link has the IPv6 address with another prefix length: the kernel
    /// accepts each IPv6 address once per link.
    fn ensure(&mut self, link: &LinkName, address: &LinkAddress) -> Result<(), Error> {
        self.execute_one(Operation::EnsureAddress(*link, address.clone()))
    }

    /// Deletes an address of a dummy link. As `ip address delete ADDRESS dev LINK`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if the link does not have it, or has it with another prefix length.
    fn delete(&mut self, link: &LinkName, key: &AddressKey) -> Result<(), Error> {
        self.execute_one(Operation::DeleteAddress(*link, *key))
    }

    /// Makes every address of a prefix local by one route. As
    /// `ip route add local PREFIX dev LINK table local proto static`; see [`LocalRoute`].
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if the prefix already has a local route.
    fn add_route(&mut self, link: &LinkName, route: &LocalRoute) -> Result<(), Error> {
        self.execute_one(Operation::AddRoute(*link, *route))
    }

    /// [`add_route`](Self::add_route) unless the route exists.
    ///
    /// # Errors
    /// [`Error::is_already_exists`] if the prefix has a local route over another link.
    fn ensure_route(&mut self, link: &LinkName, route: &LocalRoute) -> Result<(), Error> {
        self.execute_one(Operation::EnsureRoute(*link, *route))
    }

    /// Deletes a local route with `proto static`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it does not exist; also for routes with another `proto`, such as those of the kernel.
    fn delete_route(&mut self, link: &LinkName, route: &LocalRoute) -> Result<(), Error> {
        self.execute_one(Operation::DeleteRoute(*link, *route))
    }

    /// Changes an address in place: its lifetime, metric and protocol, and the flags of an IPv6 address. As
    /// `ip address change ADDRESS dev LINK`, which also adds the address if the link does not have it.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if the link does not have it, or has it with another prefix length or peer.
    fn update(&mut self, link: &LinkName, address: &LinkAddress) -> Result<(), Error> {
        self.execute_one(Operation::UpdateAddress(*link, address.clone()))
    }

    /// Replaces the owned addresses of a dummy link by the desired ones: adds missing addresses, then deletes owned addresses
    /// that are not desired. The report contains the [`Difference`](crate::Difference), which also lists foreign addresses.
    ///
    /// With the first IPv4 address of a prefix the kernel also deletes the later ones of that prefix
    /// ([`AddressFlags::SECONDARY`](crate::AddressFlags::SECONDARY)); desired ones among them are added again.
    ///
    /// With the last IPv4 address of the link the kernel also deletes its IPv4 [`LocalRoute`]s; they are added again
    /// in the same batch. Packets to their prefixes that arrive in between are not local.
    ///
    /// # Errors
    /// Those of [`link`](Self::link) and [`list`](Self::list), and of [`routes`](Self::routes) if an IPv4 address has to be
    /// deleted. Nothing has been changed then, except if reading again after a change failed. Errors of single operations are in
    /// the report.
    fn replace(
        &mut self,
        link: &LinkName,
        desired: &[LinkAddress],
        ownership: &Ownership,
    ) -> Result<ReplaceReport, Error> {
        replace(self, link, desired, ownership)
    }

    /// [`execute`](Self::execute) with one operation.
    fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
        self.execute(std::slice::from_ref(&operation))
            .pop()
            .unwrap_or(Err(Error::OutcomeMissing))
    }
}

/// Links and addresses of the kernel, over a route netlink socket.
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
    /// If the socket cannot be opened, for example because the limit of file descriptors is reached. Requires no privilege.
    pub fn open() -> Result<Self, Error> {
        Connection::open(Protocol::Route)
            .map(Self::from)
            .map_err(|error| Error::netlink("socket open", error))
    }

    /// Opens a socket in another network namespace. The calling thread does not change its namespace.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`] if the caller may not enter the namespace.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        Connection::open_in(Protocol::Route, namespace)
            .map(Self::from)
            .map_err(|error| Error::netlink("socket open", error))
    }

    /// Sets the time to wait for each answer of the kernel; `None` waits forever. Default: 30 seconds.
    /// An operation that timed out may have been executed: [`Error::is_outcome_unknown`].
    ///
    /// # Errors
    /// If the socket cannot be configured.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.connection
            .set_timeout(timeout)
            .map_err(|error| Error::netlink("socket configuration", error))
    }
}

impl From<Connection> for Client {
    /// Uses an open connection of [`Protocol::Route`].
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
        // An update reads the link's addresses first, so it is not in one batch with preceding operations of other kinds.
        let is_update = |operation: &Operation| matches!(operation, Operation::UpdateAddress(..));
        let is_of_link = |operation: &Operation| {
            matches!(
                operation,
                Operation::AddLink(_) | Operation::EnsureLink(_) | Operation::DeleteLink(_)
            )
        };
        while let Some([first, following @ ..]) = operations.get(outcomes.len()..) {
            if is_of_link(first) {
                outcomes.push(self.execute_link_operation(first));
                continue;
            }
            let is_same_batch =
                |operation: &&Operation| !is_of_link(operation) && is_update(operation) == is_update(first);
            let count = 1 + following.iter().take_while(is_same_batch).count();
            let batch = operations.get(outcomes.len()..outcomes.len() + count);
            outcomes.extend(self.execute_batch(batch.unwrap_or(&[])));
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
                        HostAddress::new(link.name, index, address.without_default_label(&link.name))
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
            // A link was added between the listings. A link that is missing in the second listing too was deleted
            // together with its addresses.
            links = self.link_names()?;
        }
        Ok(addresses
            .into_iter()
            .filter(|(index, _)| except != Some(*index))
            .filter_map(|(index, address)| {
                let name = *links.get(&index)?;
                Some(HostAddress::new(
                    name,
                    index,
                    address.without_default_label(&name),
                ))
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
                // Strict checking: the routing table has never been used.
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                Err(error) => return Err(Error::netlink(&operation, error)),
            }
        }
        let mut routes: Vec<_> = routes
            .into_iter()
            .filter(|(link_index, _)| *link_index == index)
            .map(|(_, route)| route)
            .collect();
        routes.sort();
        Ok(routes)
    }
}

impl Client {
    /// Always lists all links: the kernel does not set `NLM_F_DUMP_INTR` in a dump of one link
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

    pub(crate) fn link_names(&mut self) -> Result<BTreeMap<u32, LinkName>, Error> {
        Ok(self
            .links()?
            .into_iter()
            .map(|link| (link.index, link.name))
            .collect())
    }
}
