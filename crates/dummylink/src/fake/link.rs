//! One link of the fake.

use std::net::IpAddr;

use kernlink_base::Family;

use super::addresses::Addresses;
use crate::{
    AddressFlags, AddressKey, DummyLink, Lifetime, Link, LinkAddress, LinkFlags, LinkName, LinkState,
    LocalRoute, Scope,
};

/// A link with its addresses and local routes.
#[derive(Clone, Debug)]
pub(super) struct FakeLink {
    pub(super) link: Link,
    pub(super) alternative_names: Vec<LinkName>,
    /// False after the MTU was set to a value below [`IPV4_MIN_MTU`].
    has_ipv4: bool,
    pub(super) addresses: Addresses,
    pub(super) routes: Vec<LocalRoute>,
}

impl FakeLink {
    pub(super) fn new(link: Link) -> Self {
        FakeLink {
            link,
            alternative_names: Vec::new(),
            has_ipv4: true,
            addresses: Addresses::default(),
            routes: Vec::new(),
        }
    }

    pub(super) fn has_name(&self, name: &LinkName) -> bool {
        self.link.name == *name || self.alternative_names.contains(name)
    }

    /// Adds an address without checks.
    pub(super) fn insert_address(&mut self, mut address: LinkAddress) {
        address.flags |= lifetime_flags(address.lifetime);
        if address.key.address().is_ipv6() {
            address.scope = ipv6_scope(&address.key);
        } else if self.addresses.same_prefix(&address.key).next().is_some() {
            address.flags |= AddressFlags::SECONDARY;
        }
        self.addresses
            .insert(address.without_default_label(&self.link.name));
    }

    /// Whether the MTU allows addresses of a family.
    pub(super) fn has_family(&self, family: Family) -> bool {
        match family {
            Family::Ipv4 => self.has_ipv4,
            Family::Ipv6 => self.link.mtu >= IPV6_MIN_MTU,
        }
    }

    fn remove_family(&mut self, family: Family) {
        self.addresses.remove_family(family);
        self.routes
            .retain(|route| Family::of(route.prefix().addr()) != family);
    }

    /// Sets the desired state, MTU and alias.
    pub(super) fn configure(&mut self, desired: &DummyLink) {
        self.link.flags |= LinkFlags::NO_ARP;
        if let Some(mtu) = desired.mtu.filter(|mtu| *mtu != self.link.mtu) {
            self.link.mtu = mtu;
            if mtu < IPV6_MIN_MTU {
                self.remove_family(Family::Ipv6);
            }
            self.has_ipv4 = mtu >= IPV4_MIN_MTU;
            // The kernel deletes the routes with the last address, not because of the MTU.
            if !self.has_ipv4 && self.addresses.has_family(Family::Ipv4) {
                self.remove_family(Family::Ipv4);
            }
        }
        if let Some(state) = desired.state.filter(|state| *state != self.link.state()) {
            self.link.flags.set(LinkFlags::UP, state == LinkState::Up);
            if state == LinkState::Down {
                self.remove_family(Family::Ipv6);
            }
        }
        if let Some(alias) = &desired.alias {
            self.link.alias = Some(alias.clone()).filter(|alias| !alias.is_empty());
        }
    }
}

/// The smallest MTU with which a link supports IPv6
/// ([`ipv6.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/ipv6.h)).
pub(super) const IPV6_MIN_MTU: u32 = 1280;

/// The smallest MTU with which a link supports IPv4
/// ([`ip.h`](https://github.com/torvalds/linux/blob/v6.12/include/net/ip.h)).
const IPV4_MIN_MTU: u32 = 68;

/// The flags that the kernel derives from the lifetime.
fn lifetime_flags(lifetime: Lifetime) -> AddressFlags {
    let mut flags = AddressFlags::empty();
    flags.set(AddressFlags::PERMANENT, lifetime.valid == Lifetime::INFINITY);
    flags.set(AddressFlags::DEPRECATED, lifetime.preferred == 0);
    flags
}

/// Changes an address as the kernel does in place
/// ([`inet_rtm_newaddr`](https://github.com/torvalds/linux/blob/v6.12/net/ipv4/devinet.c),
/// [`inet6_addr_modify`](https://github.com/torvalds/linux/blob/v6.12/net/ipv6/addrconf.c)).
pub(super) fn update(present: &mut LinkAddress, desired: &LinkAddress) {
    const CHANGED: AddressFlags = AddressFlags::NO_DAD
        .union(AddressFlags::HOME_ADDRESS)
        .union(AddressFlags::MANAGE_TEMPORARY)
        .union(AddressFlags::NO_PREFIX_ROUTE);
    present.flags -= AddressFlags::PERMANENT | AddressFlags::DEPRECATED;
    present.flags |= lifetime_flags(desired.lifetime);
    present.lifetime = desired.lifetime;
    present.protocol = desired.protocol;
    if present.key.address().is_ipv4() {
        present.metric = desired.metric;
    } else {
        present.flags = (present.flags - CHANGED) | (desired.flags & CHANGED);
        if desired.metric != 0 {
            present.metric = desired.metric;
        }
    }
}

/// The scope of an IPv6 address, which the kernel derives from the address.
fn ipv6_scope(key: &AddressKey) -> Scope {
    match key.address() {
        IpAddr::V6(address) if address.is_loopback() => Scope::Host,
        IpAddr::V6(address) if address.is_unicast_link_local() => Scope::Link,
        _ => Scope::Universe,
    }
}
