//! In-memory implementation of [`DummyLinks`].

mod addresses;
mod link;

use std::collections::BTreeMap;

use ipnet::IpNet;
use kernlink_base::Family;
use kernlink_netlink::{Errno, Refusal};

use self::link::{FakeLink, IPV6_MIN_MTU, update};
use crate::{
    AddressFlags, AddressKey, DummyLinks, Error, HostAddress, Link, LinkAddress, LinkFlags, LinkName,
    LinkState, LocalRoute, Operation, Scope, Selection,
};

/// Links and addresses in memory. Returns the same errors as the kernel.
///
/// A new fake is similar to a fresh network namespace: it contains the loopback link, here up and with its
/// addresses. Not implemented: routes other than local ones, expiry of lifetimes, and the IPv6 privacy and
/// link-local addresses that the kernel adds.
#[derive(Clone, Debug)]
pub struct Fake {
    links: BTreeMap<u32, FakeLink>,
    next_index: u32,
    has_module: bool,
    is_privileged: bool,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// A network namespace with the loopback link only.
    #[must_use]
    pub fn new() -> Self {
        let mut fake = Fake {
            links: BTreeMap::new(),
            next_index: 1,
            has_module: true,
            is_privileged: true,
        };
        if let Some(name) = LinkName::from_kernel(b"lo") {
            fake.insert_link(name, None, LinkFlags::LOOPBACK | LinkFlags::UP, 65_536);
            fake.insert_address(
                &name,
                LinkAddress::new(AddressKey::from_kernel([127, 0, 0, 1].into(), 8, None))
                    .with_scope(Scope::Host),
            );
            let loopback = AddressKey::from_kernel(std::net::Ipv6Addr::LOCALHOST.into(), 128, None);
            fake.insert_address(
                &name,
                LinkAddress::new(loopback)
                    .with_scope(Scope::Host)
                    .with_flags(AddressFlags::empty()),
            );
        }
        fake
    }

    /// Adds a link with addresses. `kind` is for example `veth`; `None` means hardware. Replaces an existing link of that
    /// name.
    #[must_use]
    pub fn with_link(mut self, name: LinkName, kind: Option<&str>, addresses: &[LinkAddress]) -> Self {
        self.set_link(name, kind, addresses);
        self
    }

    /// Adds or replaces a link with addresses, as another program would; see [`with_link`](Self::with_link).
    pub fn set_link(&mut self, name: LinkName, kind: Option<&str>, addresses: &[LinkAddress]) {
        self.links.retain(|_, found| found.link.name != name);
        self.insert_link(name, kind, LinkFlags::UP, 1500);
        for address in addresses {
            self.insert_address(&name, address.clone());
        }
    }

    /// Adds an alternative name to a link (`ip link property add`).
    #[must_use]
    pub fn with_alternative_name(mut self, link: &LinkName, name: LinkName) -> Self {
        if let Some(found) = self.find(link) {
            found.alternative_names.push(name);
        }
        self
    }

    /// Makes the kernel lack the dummy module.
    #[must_use]
    pub fn without_module(mut self) -> Self {
        self.has_module = false;
        self
    }

    /// Makes the caller lack `CAP_NET_ADMIN`.
    #[must_use]
    pub fn without_privilege(mut self) -> Self {
        self.is_privileged = false;
        self
    }

    fn insert_link(&mut self, name: LinkName, kind: Option<&str>, flags: LinkFlags, mtu: u32) {
        let index = self.next_index;
        self.next_index += 1;
        let mut link = Link::new(index, name, kind);
        link.flags = flags;
        link.mtu = mtu;
        self.links.insert(index, FakeLink::new(link));
    }

    /// Adds an address without checks.
    fn insert_address(&mut self, link: &LinkName, address: LinkAddress) {
        if let Some(found) = self.find(link) {
            found.insert_address(address);
        }
    }

    fn find(&mut self, name: &LinkName) -> Option<&mut FakeLink> {
        self.links.values_mut().find(|link| link.has_name(name))
    }

    fn execute_operation(&mut self, operation: &Operation) -> Result<(), Error> {
        operation.validate()?;
        let refuse = |errno, message: Option<&str>| {
            let mut refusal = Refusal::new(errno);
            refusal.message = message.map(Into::into);
            Err(Error::Refused {
                operation: operation.to_string().into(),
                refusal,
            })
        };
        let name = &self
            .find(operation.link())
            .map_or(*operation.link(), |found| found.link.name);
        let (is_privileged, has_module) = (self.is_privileged, self.has_module);
        match operation {
            Operation::AddLink(link) | Operation::EnsureLink(link) => {
                if let Some(found) = self.find(name) {
                    if matches!(operation, Operation::AddLink(_)) {
                        return refuse(
                            if is_privileged {
                                Errno::EEXIST
                            } else {
                                Errno::EPERM
                            },
                            None,
                        );
                    }
                    found.link.check_is_dummy(name, operation)?;
                    if !link.has_same_settings(&found.link) {
                        if !is_privileged {
                            return refuse(Errno::EPERM, None);
                        }
                        found.configure(link);
                    }
                    return Ok(());
                }
                if !is_privileged {
                    return refuse(Errno::EPERM, None);
                }
                if !has_module {
                    return refuse(Errno::EOPNOTSUPP, Some("Unknown device type"));
                }
                self.insert_link(
                    *name,
                    Some(Link::DUMMY),
                    LinkFlags::BROADCAST | LinkFlags::NO_ARP,
                    link.mtu.unwrap_or(1500),
                );
                if let Some(found) = self.find(name) {
                    found.configure(link);
                }
                return Ok(());
            }
            _ => {}
        }
        // A local route of another link conflicts with one of the same prefix, and so does the route that the
        // kernel adds for an IPv4 address (that of an IPv6 address has another metric).
        let is_routed = match operation {
            Operation::AddRoute(_, route) | Operation::EnsureRoute(_, route) => {
                self.links.values().any(|found| {
                    (found.link.name != *name && found.routes.contains(route))
                        || found.addresses.keys().any(|key| {
                            key.address().is_ipv4() && IpNet::from(key.address()) == route.prefix()
                        })
                })
            }
            _ => false,
        };
        let Some(found) = self.find(name) else {
            return Err(Error::LinkMissing {
                operation: operation.to_string().into(),
                link: *operation.link(),
            });
        };
        found.link.check_is_dummy(operation.link(), operation)?;
        if !is_privileged {
            return refuse(Errno::EPERM, None);
        }
        match operation {
            Operation::AddLink(_) | Operation::EnsureLink(_) => {}
            Operation::DeleteLink(_) => {
                let index = found.link.index;
                self.links.remove(&index);
            }
            Operation::AddAddress(_, address) | Operation::EnsureAddress(_, address) => {
                if !found.has_family(Family::of(address.key.address())) {
                    let errno = if address.key.address().is_ipv4() {
                        Errno::ENOBUFS
                    } else {
                        Errno::EINVAL
                    };
                    return refuse(errno, None);
                }
                if found.addresses.contains(&address.key) && matches!(operation, Operation::EnsureAddress(..))
                {
                    return Ok(());
                }
                if found.addresses.conflict(&address.key).is_some() {
                    return refuse(Errno::EEXIST, None);
                }
                if address.lifetime.valid == 0 || address.lifetime.preferred > address.lifetime.valid {
                    return refuse(Errno::EINVAL, Some("invalid lifetime"));
                }
                let has_other_scope = found
                    .addresses
                    .same_prefix(&address.key)
                    .any(|other| other.scope != address.scope);
                if has_other_scope {
                    return refuse(Errno::EINVAL, Some("Invalid scope value"));
                }
                let is_multicast = address.key.address().is_multicast()
                    && !address.flags.contains(AddressFlags::MULTICAST_AUTO_JOIN);
                if address.key.address().is_ipv6() && is_multicast {
                    return refuse(
                        Errno::EADDRNOTAVAIL,
                        Some("Cannot assign multicast address without \"IFA_F_MCAUTOJOIN\" flag"),
                    );
                }
                if address.key.address().is_ipv6() && address.key.address().is_loopback() {
                    return refuse(
                        Errno::EADDRNOTAVAIL,
                        Some("Cannot assign loopback address on this device"),
                    );
                }
                found.insert_address(address.clone());
            }
            Operation::UpdateAddress(_, address) => {
                if !found.addresses.contains(&address.key) {
                    return refuse(Errno::EADDRNOTAVAIL, None);
                }
                if address.lifetime.valid == 0 || address.lifetime.preferred > address.lifetime.valid {
                    return refuse(Errno::EINVAL, Some("invalid lifetime"));
                }
                if let Some(present) = found.addresses.get_mut(&address.key) {
                    update(present, address);
                }
            }
            Operation::DeleteAddress(_, key) => {
                let deleted = found.addresses.deletion(key);
                let Some(removed) = deleted.and_then(|deleted| found.addresses.remove(&deleted)) else {
                    return refuse(Errno::EADDRNOTAVAIL, None);
                };
                if !removed.flags.contains(AddressFlags::SECONDARY) {
                    found.addresses.remove_same_prefix(key);
                }
                if key.address().is_ipv4() && !found.addresses.has_family(Family::Ipv4) {
                    found.routes.retain(|route| route.prefix().addr().is_ipv6());
                }
            }
            Operation::AddRoute(_, route) | Operation::EnsureRoute(_, route) => {
                if found.routes.contains(route) && matches!(operation, Operation::EnsureRoute(..)) {
                    return Ok(());
                }
                if is_routed || found.routes.contains(route) {
                    return refuse(Errno::EEXIST, None);
                }
                if matches!(route.prefix(), IpNet::V6(_)) && found.link.mtu < IPV6_MIN_MTU {
                    return refuse(Errno::ENODEV, None);
                }
                if matches!(route.prefix(), IpNet::V6(_)) && found.link.state() == LinkState::Down {
                    return refuse(ENETDOWN, Some("Nexthop device is not up"));
                }
                found.routes.push(*route);
            }
            Operation::DeleteRoute(_, route) => {
                let Some(index) = found.routes.iter().position(|other| other == route) else {
                    return refuse(Errno::ESRCH, None);
                };
                found.routes.remove(index);
            }
        }
        Ok(())
    }
}

/// The kernel's error number for an IPv6 route over a link that is down
/// ([`errno.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/asm-generic/errno.h#L83)).
const ENETDOWN: Errno = Errno(100);

impl DummyLinks for Fake {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        operations
            .iter()
            .map(|operation| self.execute_operation(operation))
            .collect()
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        Ok(self.links.values().map(|found| found.link.clone()).collect())
    }

    fn link(&mut self, name: &LinkName) -> Result<Option<Link>, Error> {
        Ok(self.find(name).map(|found| found.link.clone()))
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
        // The first name of the link.
        let selection = match selection {
            Selection::On(name) => match self.find(&name) {
                Some(found) => Selection::On(found.link.name),
                None => {
                    return Err(Error::LinkMissing {
                        operation: selection.to_string().into(),
                        link: name,
                    });
                }
            },
            Selection::Except(name) => {
                Selection::Except(self.find(&name).map_or(name, |found| found.link.name))
            }
            Selection::All => Selection::All,
        };
        let all = self
            .links
            .values()
            .filter(|found| selection.includes(&found.link.name))
            .flat_map(|found| {
                found
                    .addresses
                    .values()
                    .map(|address| HostAddress::new(found.link.name, found.link.index, address.clone()))
            });
        // The kernel lists IPv4 of all links, then IPv6.
        let (mut ipv4, ipv6): (Vec<_>, Vec<_>) = all.partition(|seen| seen.address.key.address().is_ipv4());
        ipv4.extend(ipv6);
        Ok(ipv4)
    }

    fn routes(&mut self, link: &LinkName) -> Result<Vec<LocalRoute>, Error> {
        let Some(found) = self.find(link) else {
            let operation = format!("route show table local dev {link}").into();
            return Err(Error::LinkMissing {
                operation,
                link: *link,
            });
        };
        let mut routes = found.routes.clone();
        routes.sort();
        Ok(routes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DummyLink, contract};

    #[test]
    fn the_fake_passes_the_contract() {
        contract::run(|check| (check.run)(&mut Fake::new())).unwrap();
    }

    #[test]
    fn without_the_dummy_module_adding_a_link_fails() {
        let error = Fake::new()
            .without_module()
            .ensure_link(&DummyLink::new("d0".parse().unwrap()))
            .unwrap_err();
        assert!(error.is_module_missing() && error.is_unsupported(), "{error:?}");
    }

    /// Records the executed batches.
    struct Recorder(Fake, Vec<Vec<Operation>>);

    impl DummyLinks for Recorder {
        fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
            self.1.push(operations.to_vec());
            self.0.execute(operations)
        }
        fn links(&mut self) -> Result<Vec<Link>, Error> {
            self.0.links()
        }
        fn link(&mut self, name: &LinkName) -> Result<Option<Link>, Error> {
            self.0.link(name)
        }
        fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
            self.0.list(selection)
        }
        fn routes(&mut self, link: &LinkName) -> Result<Vec<LocalRoute>, Error> {
            self.0.routes(link)
        }
    }

    #[test]
    fn routes_are_added_again_in_the_batch_that_deletes_the_last_address() {
        let link: LinkName = "d0".parse().unwrap();
        let address = LinkAddress::host([10, 0, 0, 1].into()).unwrap();
        let route = LocalRoute::new("10.96.0.0/12".parse().unwrap());
        let mut fake = Fake::new().with_link(link, Some("dummy"), std::slice::from_ref(&address));
        fake.add_route(&link, &route).unwrap();
        let mut recorder = Recorder(fake, Vec::new());
        let report = recorder.replace(&link, &[], &crate::Ownership::All).unwrap();
        assert_eq!(report.restored, [route]);
        let batch = vec![
            Operation::DeleteAddress(link, address.key),
            Operation::EnsureRoute(link, route),
        ];
        assert_eq!(recorder.1, [batch]);
    }

    #[test]
    fn a_link_is_found_by_its_alternative_names_and_listed_with_its_first_name() {
        let (link, other): (LinkName, LinkName) = ("d0".parse().unwrap(), "kube-ipvs0".parse().unwrap());
        let mut fake = Fake::new()
            .with_link(link, Some("dummy"), &[])
            .with_alternative_name(&link, other);
        let desired = [LinkAddress::host([10, 0, 0, 1].into()).unwrap()];
        let report = fake.replace(&other, &desired, &crate::Ownership::All).unwrap();
        assert_eq!((report.done, report.failures.len()), (1, 0));
        let again = fake.replace(&other, &desired, &crate::Ownership::All).unwrap();
        assert_eq!((again.done, again.failures.len()), (0, 0));
        assert_eq!(fake.list(Selection::On(other)).unwrap()[0].link, link);
        let others = fake.list(Selection::Except(other)).unwrap();
        assert!(others.iter().all(|seen| seen.link != link), "{others:?}");
        fake.ensure_link(&DummyLink::new(other)).unwrap();
        assert!(
            fake.add_link(&DummyLink::new(other))
                .unwrap_err()
                .is_already_exists()
        );
    }

    #[test]
    fn without_privilege_only_reading_is_permitted() {
        let link: LinkName = "d0".parse().unwrap();
        let mut fake = Fake::new()
            .with_link(link, Some("dummy"), &[])
            .without_privilege();
        let address = LinkAddress::host([10, 0, 0, 1].into()).unwrap();
        assert!(fake.add(&link, &address).unwrap_err().is_permission_denied());
        assert!(fake.delete_link(&link).unwrap_err().is_permission_denied());
        assert_eq!(fake.list(Selection::On(link)).unwrap(), []);
    }
}
