//! The kernel's in-memory twin.

mod addresses;

use std::collections::BTreeMap;

use ipnet::IpNet;
use kernlink_netlink::{Errno, Refusal};

use addresses::Addresses;

use crate::client::{must_be_dummy, validate, without_own_label};
use crate::{
    AddressFlags, AddressKey, DummyLink, DummyLinks, Error, HostAddress, Lifetime, Link, LinkAddress,
    LinkFlags, LinkName, LinkState, LocalRoute, Operation, Scope, Selection,
};

/// Links and addresses in memory, refusing what the kernel refuses with the same errors.
///
/// A new one holds what a fresh network namespace holds: the loopback link, here with its
/// addresses. Not there: routes other than local ones, lifetimes that run out, IPv6 privacy and
/// link-local addresses that the kernel makes.
#[derive(Clone, Debug)]
pub struct Fake {
    links: BTreeMap<u32, Held>,
    next_index: u32,
    has_module: bool,
    is_privileged: bool,
}

#[derive(Clone, Debug)]
struct Held {
    link: Link,
    /// Further names that the link is found by.
    alternative_names: Vec<LinkName>,
    /// Whether the link takes IPv4 addresses: not after its MTU was made too small.
    has_ipv4: bool,
    addresses: Addresses,
    routes: Vec<LocalRoute>,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// A host with a loopback link.
    pub fn new() -> Self {
        let mut fake = Fake {
            links: BTreeMap::new(),
            next_index: 1,
            has_module: true,
            is_privileged: true,
        };
        if let Some(name) = LinkName::from_kernel(b"lo") {
            fake.insert(name, None, LinkFlags::LOOPBACK | LinkFlags::UP, 65_536);
            fake.put(
                &name,
                LinkAddress::new(AddressKey::from_kernel([127, 0, 0, 1].into(), 8, None))
                    .with_scope(Scope::Host),
            );
            let loopback = AddressKey::from_kernel(std::net::Ipv6Addr::LOCALHOST.into(), 128, None);
            fake.put(
                &name,
                LinkAddress::new(loopback)
                    .with_scope(Scope::Host)
                    .with_flags(AddressFlags::empty()),
            );
        }
        fake
    }

    /// The same host with a link of a kind such as `veth`, or of none (hardware), that carries
    /// these addresses. A link of that name is replaced.
    pub fn with_link(mut self, name: LinkName, kind: Option<&str>, addresses: &[LinkAddress]) -> Self {
        self.set_link(name, kind, addresses);
        self
    }

    /// What somebody else does to the host: adds or replaces a link with its addresses.
    pub fn set_link(&mut self, name: LinkName, kind: Option<&str>, addresses: &[LinkAddress]) {
        self.links.retain(|_, held| held.link.name != name);
        self.insert(name, kind, LinkFlags::UP, 1500);
        for address in addresses {
            self.put(&name, address.clone());
        }
    }

    /// The same host with another name by which a link is found (`ip link property add`).
    pub fn with_alternative_name(mut self, link: &LinkName, name: LinkName) -> Self {
        if let Some(held) = self.held(link) {
            held.alternative_names.push(name);
        }
        self
    }

    /// The same host on a kernel without the dummy module.
    pub fn without_module(mut self) -> Self {
        self.has_module = false;
        self
    }

    /// The same host for a caller without `CAP_NET_ADMIN`.
    pub fn without_privilege(mut self) -> Self {
        self.is_privileged = false;
        self
    }

    fn insert(&mut self, name: LinkName, kind: Option<&str>, flags: LinkFlags, mtu: u32) {
        let index = self.next_index;
        self.next_index += 1;
        let mut link = Link::new(index, name, kind);
        link.flags = flags;
        link.mtu = mtu;
        self.links.insert(
            index,
            Held {
                link,
                alternative_names: Vec::new(),
                has_ipv4: true,
                addresses: Addresses::default(),
                routes: Vec::new(),
            },
        );
    }

    /// Adds an address without any check.
    fn put(&mut self, link: &LinkName, mut address: LinkAddress) {
        let Some(held) = self.held(link) else { return };
        address.flags |= lifetime_flags(address.lifetime);
        if address.key.address().is_ipv6() {
            address.scope = ipv6_scope(&address.key);
        } else if held.addresses.neighbours(&address.key).next().is_some() {
            address.flags |= AddressFlags::SECONDARY;
        }
        held.addresses.insert(without_own_label(address, link));
    }

    fn held(&mut self, name: &LinkName) -> Option<&mut Held> {
        self.links
            .values_mut()
            .find(|held| held.link.name == *name || held.alternative_names.contains(name))
    }

    fn execute_operation(&mut self, operation: &Operation) -> Result<(), Error> {
        validate(operation)?;
        let refuse = |errno, message: Option<&str>| {
            let mut refusal = Refusal::new(errno);
            refusal.message = message.map(Into::into);
            Err(Error::Refused {
                operation: operation.to_string().into(),
                refusal,
            })
        };
        let name = &self
            .held(operation.link())
            .map_or(*operation.link(), |held| held.link.name);
        let (is_privileged, has_module) = (self.is_privileged, self.has_module);
        match operation {
            Operation::AddLink(link) | Operation::EnsureLink(link) => {
                if let Some(held) = self.held(name) {
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
                    must_be_dummy(&held.link, name, operation)?;
                    if !link.has_its_settings(&held.link) {
                        if !is_privileged {
                            return refuse(Errno::EPERM, None);
                        }
                        held.configure(link);
                    }
                    return Ok(());
                }
                if !is_privileged {
                    return refuse(Errno::EPERM, None);
                }
                if !has_module {
                    return refuse(Errno::EOPNOTSUPP, Some("Unknown device type"));
                }
                self.insert(
                    *name,
                    Some(Link::DUMMY),
                    LinkFlags::BROADCAST | LinkFlags::NO_ARP,
                    link.mtu.unwrap_or(1500),
                );
                if let Some(held) = self.held(name) {
                    held.configure(link);
                }
                return Ok(());
            }
            _ => {}
        }
        // A route of any link stands in the way of another of the same prefix, and so does the one that the
        // kernel makes for an IPv4 address (that of an IPv6 address has another metric).
        let is_routed = match operation {
            Operation::AddRoute(_, route) | Operation::EnsureRoute(_, route) => {
                self.links.values().any(|held| {
                    (held.link.name != *name && held.routes.contains(route))
                        || held.addresses.keys().any(|key| {
                            key.address().is_ipv4() && IpNet::from(key.address()) == route.prefix()
                        })
                })
            }
            _ => false,
        };
        let Some(held) = self.held(name) else {
            return Err(Error::LinkMissing {
                operation: operation.to_string().into(),
                link: *operation.link(),
            });
        };
        must_be_dummy(&held.link, operation.link(), operation)?;
        if !is_privileged {
            return refuse(Errno::EPERM, None);
        }
        match operation {
            Operation::AddLink(_) | Operation::EnsureLink(_) => {}
            Operation::DeleteLink(_) => {
                let index = held.link.index;
                self.links.remove(&index);
            }
            Operation::AddAddress(_, address) | Operation::EnsureAddress(_, address) => {
                if !held.takes(&address.key) {
                    let errno = if address.key.address().is_ipv4() {
                        Errno::ENOBUFS
                    } else {
                        Errno::EINVAL
                    };
                    return refuse(errno, None);
                }
                if held.addresses.contains(&address.key) && matches!(operation, Operation::EnsureAddress(..))
                {
                    return Ok(());
                }
                if held.addresses.excluded_by(&address.key).is_some() {
                    return refuse(Errno::EEXIST, None);
                }
                if address.lifetime.valid == 0 || address.lifetime.preferred > address.lifetime.valid {
                    return refuse(Errno::EINVAL, Some("invalid lifetime"));
                }
                let has_other_scope = held
                    .addresses
                    .neighbours(&address.key)
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
                self.put(name, address.clone());
            }
            Operation::UpdateAddress(_, address) => {
                if !held.addresses.contains(&address.key) {
                    return refuse(Errno::EADDRNOTAVAIL, None);
                }
                if address.lifetime.valid == 0 || address.lifetime.preferred > address.lifetime.valid {
                    return refuse(Errno::EINVAL, Some("invalid lifetime"));
                }
                if let Some(present) = held.addresses.get_mut(&address.key) {
                    change(present, address);
                }
            }
            Operation::DeleteAddress(_, key) => {
                let found = held.addresses.deleted_by(key);
                let Some(removed) = found.and_then(|found| held.addresses.remove(&found)) else {
                    return refuse(Errno::EADDRNOTAVAIL, None);
                };
                if !removed.flags.contains(AddressFlags::SECONDARY) {
                    held.addresses.remove_neighbours(key);
                }
                if key.address().is_ipv4() && !held.addresses.has_family(true) {
                    held.routes.retain(|route| route.prefix().addr().is_ipv6());
                }
            }
            Operation::AddRoute(_, route) | Operation::EnsureRoute(_, route) => {
                if held.routes.contains(route) && matches!(operation, Operation::EnsureRoute(..)) {
                    return Ok(());
                }
                if is_routed || held.routes.contains(route) {
                    return refuse(Errno::EEXIST, None);
                }
                if matches!(route.prefix(), IpNet::V6(_)) && held.link.mtu < IPV6_MIN_MTU {
                    return refuse(Errno::ENODEV, None);
                }
                if matches!(route.prefix(), IpNet::V6(_)) && held.link.state() == LinkState::Down {
                    return refuse(ENETDOWN, Some("Nexthop device is not up"));
                }
                held.routes.push(*route);
            }
            Operation::DeleteRoute(_, route) => {
                let Some(index) = held.routes.iter().position(|other| other == route) else {
                    return refuse(Errno::ESRCH, None);
                };
                held.routes.remove(index);
            }
        }
        Ok(())
    }
}

/// What the kernel says of an IPv6 route over a link that is down
/// ([`errno.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/asm-generic/errno.h#L83)).
const ENETDOWN: Errno = Errno(100);

/// The smallest MTU of a link that has IPv6
/// ([`ipv6.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/ipv6.h)).
const IPV6_MIN_MTU: u32 = 1280;

/// The smallest MTU of a link that has IPv4
/// ([`ip.h`](https://github.com/torvalds/linux/blob/v6.12/include/net/ip.h)).
const IPV4_MIN_MTU: u32 = 68;

/// The flags that the kernel sets by the lifetime.
fn lifetime_flags(lifetime: Lifetime) -> AddressFlags {
    let mut flags = AddressFlags::empty();
    flags.set(AddressFlags::PERMANENT, lifetime.valid == Lifetime::INFINITY);
    flags.set(AddressFlags::DEPRECATED, lifetime.preferred == 0);
    flags
}

/// What the kernel changes of an address that is there
/// ([`inet_rtm_newaddr`](https://github.com/torvalds/linux/blob/v6.12/net/ipv4/devinet.c),
/// [`inet6_addr_modify`](https://github.com/torvalds/linux/blob/v6.12/net/ipv6/addrconf.c)).
fn change(present: &mut LinkAddress, wanted: &LinkAddress) {
    const CHANGED: AddressFlags = AddressFlags::NO_DAD
        .union(AddressFlags::HOME_ADDRESS)
        .union(AddressFlags::MANAGE_TEMPORARY)
        .union(AddressFlags::NO_PREFIX_ROUTE);
    present.flags -= AddressFlags::PERMANENT | AddressFlags::DEPRECATED;
    present.flags |= lifetime_flags(wanted.lifetime);
    present.lifetime = wanted.lifetime;
    present.owner = wanted.owner;
    if present.key.address().is_ipv4() {
        present.metric = wanted.metric;
    } else {
        present.flags = (present.flags - CHANGED) | (wanted.flags & CHANGED);
        if wanted.metric != 0 {
            present.metric = wanted.metric;
        }
    }
}

impl Held {
    /// Whether the MTU allows an address of this family.
    fn takes(&self, key: &AddressKey) -> bool {
        if key.address().is_ipv4() {
            self.has_ipv4
        } else {
            self.link.mtu >= IPV6_MIN_MTU
        }
    }

    fn remove_family(&mut self, is_ipv4: bool) {
        self.addresses.remove_family(is_ipv4);
        self.routes
            .retain(|route| route.prefix().addr().is_ipv4() != is_ipv4);
    }

    fn configure(&mut self, wanted: &DummyLink) {
        self.link.flags |= LinkFlags::NO_ARP;
        if let Some(mtu) = wanted.mtu.filter(|mtu| *mtu != self.link.mtu) {
            self.link.mtu = mtu;
            if mtu < IPV6_MIN_MTU {
                self.remove_family(false);
            }
            self.has_ipv4 = mtu >= IPV4_MIN_MTU;
            // The routes go with the last address, not by the MTU.
            if !self.has_ipv4 && self.addresses.has_family(true) {
                self.remove_family(true);
            }
        }
        if let Some(state) = wanted.state.filter(|state| *state != self.link.state()) {
            self.link.flags.set(LinkFlags::UP, state == LinkState::Up);
            if state == LinkState::Down {
                self.remove_family(false);
            }
        }
        if let Some(alias) = &wanted.alias {
            self.link.alias = Some(alias.clone()).filter(|alias| !alias.is_empty());
        }
    }
}

/// The kernel derives the scope of an IPv6 address from the address.
fn ipv6_scope(key: &AddressKey) -> Scope {
    match key.address() {
        std::net::IpAddr::V6(address) if address.is_loopback() => Scope::Host,
        std::net::IpAddr::V6(address) if address.is_unicast_link_local() => Scope::Link,
        _ => Scope::Universe,
    }
}

impl DummyLinks for Fake {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        operations
            .iter()
            .map(|operation| self.execute_operation(operation))
            .collect()
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        Ok(self.links.values().map(|held| held.link.clone()).collect())
    }

    fn link(&mut self, name: &LinkName) -> Result<Option<Link>, Error> {
        Ok(self.held(name).map(|held| held.link.clone()))
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
        // By the first name of the link.
        let selection = match selection {
            Selection::On(name) => match self.held(&name) {
                Some(held) => Selection::On(held.link.name),
                None => {
                    return Err(Error::LinkMissing {
                        operation: selection.to_string().into(),
                        link: name,
                    });
                }
            },
            Selection::Except(name) => {
                Selection::Except(self.held(&name).map_or(name, |held| held.link.name))
            }
            Selection::All => Selection::All,
        };
        let all = self
            .links
            .values()
            .filter(|held| selection.includes(&held.link.name))
            .flat_map(|held| {
                held.addresses
                    .values()
                    .map(|address| HostAddress::new(held.link.name, held.link.index, address.clone()))
            });
        // The kernel lists IPv4 of all links, then IPv6.
        let (mut ipv4, ipv6): (Vec<_>, Vec<_>) = all.partition(|seen| seen.address.key.address().is_ipv4());
        ipv4.extend(ipv6);
        Ok(ipv4)
    }

    fn routes(&mut self, link: &LinkName) -> Result<Vec<LocalRoute>, Error> {
        let Some(held) = self.held(link) else {
            let operation = format!("route show table local dev {link}").into();
            return Err(Error::LinkMissing {
                operation,
                link: *link,
            });
        };
        let mut routes = held.routes.clone();
        routes.sort();
        Ok(routes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;

    #[test]
    fn the_fake_keeps_the_contract() {
        for (name, check) in contract::CHECKS {
            println!("{name}");
            check(&mut Fake::new());
        }
    }

    #[test]
    fn a_kernel_without_the_module_says_so() {
        let error = Fake::new()
            .without_module()
            .ensure_link(&DummyLink::new("d0".parse().unwrap()))
            .unwrap_err();
        assert!(error.is_module_missing() && error.is_unsupported(), "{error:?}");
    }

    /// Records what it is asked to execute.
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
        let replaced = recorder.replace(&link, &[], &crate::Ours::Everything).unwrap();
        assert_eq!(replaced.restored, [route]);
        let batch = vec![
            Operation::DeleteAddress(link, address.key),
            Operation::EnsureRoute(link, route),
        ];
        assert_eq!(recorder.1, [batch]);
    }

    #[test]
    fn a_link_is_found_by_its_alternative_names_and_listed_by_its_first() {
        let (link, other): (LinkName, LinkName) = ("d0".parse().unwrap(), "kube-ipvs0".parse().unwrap());
        let mut fake = Fake::new()
            .with_link(link, Some("dummy"), &[])
            .with_alternative_name(&link, other);
        let wanted = [LinkAddress::host([10, 0, 0, 1].into()).unwrap()];
        let replaced = fake.replace(&other, &wanted, &crate::Ours::Everything).unwrap();
        assert_eq!((replaced.done, replaced.failures.len()), (1, 0));
        let again = fake.replace(&other, &wanted, &crate::Ours::Everything).unwrap();
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
    fn without_privilege_reading_works_and_changing_does_not() {
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
