//! What can be asked of a kernel.

use std::fmt;

use crate::{AddressKey, DummyLink, LinkAddress, LinkName, LocalRoute};

/// One change. Prints as the line that `ip -batch` takes for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Adds a dummy link; fails if a link of that name is there.
    AddLink(DummyLink),
    /// Adds a dummy link, or gives the one that is there the settings asked for; fails if a link
    /// of that name is of another kind.
    EnsureLink(DummyLink),
    /// Deletes a dummy link with its addresses; fails if there is none of that name, or one of
    /// another kind.
    DeleteLink(LinkName),
    /// Adds an address; fails if it is there.
    AddAddress(LinkName, LinkAddress),
    /// Adds an address unless its key is there; one that is there stays as it is.
    EnsureAddress(LinkName, LinkAddress),
    /// Changes an address in place; fails if its key is not there. Lifetime, metric and owner become those
    /// given, of an IPv6 address the flags too. An IPv4 address keeps scope, label, broadcast address and flags.
    UpdateAddress(LinkName, LinkAddress),
    /// Deletes an address; fails if it is not there.
    ///
    /// With the link's last IPv4 address the kernel also deletes its IPv4 [`LocalRoute`]s
    /// ([`fib_inetaddr_event`](https://github.com/torvalds/linux/blob/v6.12/net/ipv4/fib_frontend.c)):
    /// [`EnsureRoute`](Self::EnsureRoute) behind it in the same batch adds them again.
    /// [`replace`](crate::DummyLinks::replace) does that by itself.
    DeleteAddress(LinkName, AddressKey),
    /// Adds a local route; fails if a route to that prefix is there.
    AddRoute(LinkName, LocalRoute),
    /// Adds a local route unless it is there; fails if the prefix is local by another link.
    EnsureRoute(LinkName, LocalRoute),
    /// Deletes a local route; fails if it is not there.
    DeleteRoute(LinkName, LocalRoute),
}

impl Operation {
    /// Name of the link that the operation is about.
    pub fn link(&self) -> &LinkName {
        match self {
            Operation::AddLink(link) | Operation::EnsureLink(link) => &link.name,
            Operation::DeleteLink(name)
            | Operation::AddAddress(name, _)
            | Operation::EnsureAddress(name, _)
            | Operation::UpdateAddress(name, _)
            | Operation::DeleteAddress(name, _)
            | Operation::AddRoute(name, _)
            | Operation::EnsureRoute(name, _)
            | Operation::DeleteRoute(name, _) => name,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::AddLink(link) => write!(f, "link add {link} type dummy"),
            Operation::EnsureLink(link) => write!(f, "link replace {link} type dummy"),
            Operation::DeleteLink(name) => write!(f, "link delete {name} type dummy"),
            Operation::AddAddress(name, address) => write!(f, "address add {address} dev {name}"),
            Operation::EnsureAddress(name, address) => write!(f, "address replace {address} dev {name}"),
            Operation::UpdateAddress(name, address) => write!(f, "address change {address} dev {name}"),
            Operation::DeleteAddress(name, key) => write!(f, "address delete {key} dev {name}"),
            Operation::AddRoute(name, route) => {
                write!(f, "route add {route} dev {name} table local proto static")
            }
            Operation::EnsureRoute(name, route) => {
                write!(f, "route replace {route} dev {name} table local proto static")
            }
            Operation::DeleteRoute(name, route) => {
                write!(f, "route delete {route} dev {name} table local proto static")
            }
        }
    }
}
