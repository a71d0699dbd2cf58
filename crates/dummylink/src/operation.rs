//! Changes of links, addresses and local routes.

use std::fmt;

use crate::{AddressKey, DummyLink, Error, LinkAddress, LinkName, LocalRoute, uapi};

/// One change. Printed as a line for `ip -batch`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Adds a dummy link. Fails if a link of that name exists.
    AddLink(DummyLink),
    /// Adds a dummy link, or changes state, MTU and alias of the existing one. Fails if a link
    /// of that name is of another kind.
    EnsureLink(DummyLink),
    /// Deletes a dummy link with its addresses. Fails if no link of that name exists, or if it is of
    /// another kind.
    DeleteLink(LinkName),
    /// Adds an address. Fails if its key exists.
    AddAddress(LinkName, LinkAddress),
    /// Adds an address unless its key exists. An existing address is not changed.
    EnsureAddress(LinkName, LinkAddress),
    /// Changes an address in place. Fails if its key does not exist. Sets lifetime, metric and protocol, and the flags of an
    /// IPv6 address. An IPv4 address keeps scope, label, broadcast address and flags.
    UpdateAddress(LinkName, LinkAddress),
    /// Deletes an address. Fails if it does not exist.
    ///
    /// With the link's last IPv4 address the kernel also deletes its IPv4 [`LocalRoute`]s
    /// ([`fib_inetaddr_event`](https://github.com/torvalds/linux/blob/v6.12/net/ipv4/fib_frontend.c)):
    /// a following [`EnsureRoute`](Self::EnsureRoute) in the same batch adds them again.
    /// [`replace`](crate::DummyLinks::replace) does that automatically.
    DeleteAddress(LinkName, AddressKey),
    /// Adds a local route. Fails if a local route to that prefix exists.
    AddRoute(LinkName, LocalRoute),
    /// Adds a local route unless it exists. Fails if the prefix has a local route over another link.
    EnsureRoute(LinkName, LocalRoute),
    /// Deletes a local route. Fails if it does not exist.
    DeleteRoute(LinkName, LocalRoute),
}

impl Operation {
    /// Name of the link that is added, changed or deleted.
    #[must_use]
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

    /// Fails with [`Error::Invalid`] if the kernel would accept this operation and do something else.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let reason = match self {
            Operation::AddLink(link) | Operation::EnsureLink(link) => match link.alias.as_deref() {
                Some(alias) if alias.len() >= uapi::IFALIASZ => {
                    "the alias is longer than 255 bytes (IFALIASZ - 1)"
                }
                Some(alias) if alias.contains('\0') => "the alias contains a NUL byte",
                _ => return Ok(()),
            },
            Operation::AddAddress(_, address)
            | Operation::EnsureAddress(_, address)
            | Operation::UpdateAddress(_, address) => {
                let is_ipv6 = address.key.address().is_ipv6();
                match address {
                    address if is_ipv6 && address.label.is_some() => "only IPv4 addresses can have a label",
                    address if is_ipv6 && address.broadcast.is_some() => {
                        "only IPv4 addresses can have a broadcast address"
                    }
                    _ => return Ok(()),
                }
            }
            _ => return Ok(()),
        };
        Err(Error::Invalid {
            operation: self.to_string().into(),
            reason,
        })
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
