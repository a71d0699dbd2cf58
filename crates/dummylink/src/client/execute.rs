//! Execution of operations by the kernel client.

use std::collections::{BTreeMap, BTreeSet};

use kernlink_netlink::flags::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use kernlink_netlink::{Errno, Refusal};

use crate::{
    AddressKey, Client, DummyLink, DummyLinks, Error, Link, LinkName, LocalRoute, Operation, Selection, uapi,
    wire,
};

impl Client {
    pub(super) fn execute_link_operation(&mut self, operation: &Operation) -> Result<(), Error> {
        operation.validate()?;
        match operation {
            Operation::AddLink(link) => self.add_new_link(link, operation),
            Operation::EnsureLink(link) => {
                let Some(existing) = self.link(&link.name)? else {
                    return match self.add_new_link(link, operation) {
                        // Another program has added it in the meantime: use it, if it is a dummy link.
                        Err(error) if error.is_already_exists() => match self.link(&link.name)? {
                            Some(existing) => self.configure_link(&existing, link, operation),
                            None => Err(error),
                        },
                        outcome => outcome,
                    };
                };
                self.configure_link(&existing, link, operation)
            }
            Operation::DeleteLink(name) => {
                let index = dummy_index(self.link(name)?.as_ref(), operation)?;
                self.request(operation, uapi::RTM_DELLINK, 0, &wire::delete_link(index))
            }
            _ => Ok(()),
        }
    }

    fn add_new_link(&mut self, link: &DummyLink, operation: &Operation) -> Result<(), Error> {
        self.request(
            operation,
            uapi::RTM_NEWLINK,
            NLM_F_CREATE | NLM_F_EXCL,
            &wire::new_link(link),
        )?;
        // The kernel ignores the alias in the message that adds a link.
        if link.alias.as_deref().is_none_or(str::is_empty) {
            return Ok(());
        }
        match self.link(&link.name)? {
            Some(created) => self.configure_link(&created, link, operation),
            None => Err(Error::LinkMissing {
                operation: operation.to_string().into(),
                link: link.name,
            }),
        }
    }

    fn configure_link(
        &mut self,
        existing: &Link,
        link: &DummyLink,
        operation: &Operation,
    ) -> Result<(), Error> {
        existing.check_is_dummy(&link.name, operation)?;
        if link.has_same_settings(existing) {
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

    /// Operations on addresses and routes: one message each, many messages in one system call.
    pub(super) fn execute_batch(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
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
            *outcome = operation.validate().and(index).and_then(|index| {
                let exclusive = NLM_F_CREATE | NLM_F_EXCL;
                let (kind, flags, payload) = match operation {
                    Operation::AddAddress(_, address) | Operation::EnsureAddress(_, address) => {
                        (uapi::RTM_NEWADDR, exclusive, wire::new_address(index, address))
                    }
                    Operation::UpdateAddress(link, address) => {
                        let keys = present.entry(*link).or_insert_with(|| self.keys(link));
                        if !keys.as_ref().map_err(Error::clone)?.contains(&address.key) {
                            // The kernel would add it instead of failing.
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
        self.accept_existing(operations, &mut outcomes);
        outcomes
    }

    /// The keys of the addresses on a link.
    fn keys(&mut self, link: &LinkName) -> Result<BTreeSet<AddressKey>, Error> {
        let listed = self.list(Selection::On(*link))?;
        Ok(listed.into_iter().map(|seen| seen.address.key).collect())
    }

    /// Changes "already exists" to success for `Ensure...` operations if exactly this address or route exists. The kernel
    /// reports it also for an IPv6 address with another prefix length or peer, for an IPv4 address with another peer of the same
    /// network, and for a route over another link.
    fn accept_existing(&mut self, operations: &[Operation], outcomes: &mut [Result<(), Error>]) {
        let mut addresses: BTreeMap<LinkName, BTreeSet<AddressKey>> = BTreeMap::new();
        let mut routes: BTreeMap<LinkName, Vec<LocalRoute>> = BTreeMap::new();
        for (operation, outcome) in operations.iter().zip(outcomes) {
            if !outcome.as_ref().is_err_and(Error::is_already_exists) {
                continue;
            }
            let exists = match operation {
                // The network of an IPv4 address with /32 is that address: no listing is needed.
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
            if exists {
                *outcome = Ok(());
            }
        }
    }
}

/// The index of the link to change, which must be a dummy link.
fn dummy_index(found: Option<&Link>, operation: &Operation) -> Result<u32, Error> {
    let name = operation.link();
    match found {
        None => Err(Error::LinkMissing {
            operation: operation.to_string().into(),
            link: *name,
        }),
        Some(link) => link.check_is_dummy(name, operation).map(|()| link.index),
    }
}
