//! The difference between the observed and the desired addresses of a link.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::{AddressFlags, AddressKey, HostAddress, LinkAddress, LinkName, Operation, Ownership};

/// The difference between the observed and the desired addresses of a link. Only keys are compared, not
/// the protocol, lifetime and flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Desired and not on the link, in the order of the desired addresses, without duplicates.
    pub missing: Vec<LinkAddress>,
    /// Owned, on the link and not desired, in the order of the listing.
    pub surplus: Vec<AddressKey>,
    /// On the link, neither desired nor owned; not changed.
    pub foreign: Vec<HostAddress>,
    /// Desired addresses that are also on other links, where they are not changed. They are added to
    /// the link nevertheless.
    pub elsewhere: Vec<HostAddress>,
}

impl Difference {
    /// The operations that remove the difference. Additions come first, so that no desired address is missing in between. Exception:
    /// a surplus address that conflicts with a missing one in the kernel is deleted before: the same IPv6 address with another prefix
    /// length, or the same IPv4 address with another peer of the same network.
    #[must_use]
    pub fn operations(&self, link: &LinkName) -> Vec<Operation> {
        let mut missing: BTreeMap<IpAddr, Vec<&AddressKey>> = BTreeMap::new();
        for address in &self.missing {
            missing
                .entry(address.key.address())
                .or_default()
                .push(&address.key);
        }
        let (first, last): (Vec<_>, Vec<_>) = self.surplus.iter().partition(|key| {
            missing
                .get(&key.address())
                .is_some_and(|desired| desired.iter().any(|desired| key.conflicts_with(desired)))
        });
        let delete = |key: &AddressKey| Operation::DeleteAddress(*link, *key);
        let add = |address: &LinkAddress| Operation::AddAddress(*link, address.clone());
        let mut operations: Vec<_> = first.into_iter().map(delete).collect();
        operations.extend(self.missing.iter().map(add));
        operations.extend(last.into_iter().map(delete));
        operations
    }

    /// Whether the kernel may delete desired addresses together with a surplus one: this is an IPv4 address that
    /// was the first of its prefix, and another one of the prefix remains.
    pub(crate) fn deletes_primary(&self, observed: &[HostAddress], link: &LinkName) -> bool {
        let surplus: BTreeSet<_> = self.surplus.iter().collect();
        let secondaries: BTreeSet<_> = observed
            .iter()
            .filter(|seen| seen.link == *link && seen.address.flags.contains(AddressFlags::SECONDARY))
            .map(|seen| &seen.address.key)
            // Addresses that are added now are secondary to those on the link.
            .chain(self.missing.iter().map(|address| &address.key))
            .filter(|key| key.address().is_ipv4())
            .filter(|key| !surplus.contains(key))
            .map(AddressKey::network)
            .collect();
        self.surplus
            .iter()
            .any(|key| key.address().is_ipv4() && secondaries.contains(&key.network()))
    }

    /// Whether an IPv4 address is deleted. With the last one the kernel deletes the link's IPv4 routes.
    pub(crate) fn deletes_ipv4(&self) -> bool {
        self.surplus.iter().any(|key| key.address().is_ipv4())
    }

    /// Whether an IPv4 address is deleted and none remains on the link.
    pub(crate) fn deletes_last_ipv4(&self, observed: &[HostAddress], link: &LinkName) -> bool {
        let surplus: BTreeSet<_> = self.surplus.iter().collect();
        self.deletes_ipv4()
            && !self.missing.iter().any(|address| address.key.address().is_ipv4())
            && !observed.iter().any(|seen| {
                seen.link == *link
                    && seen.address.key.address().is_ipv4()
                    && !surplus.contains(&seen.address.key)
            })
    }
}

/// Compares the observed addresses of all links with the desired addresses of one link.
#[must_use]
pub fn difference(
    link: &LinkName,
    observed: &[HostAddress],
    desired: &[LinkAddress],
    ownership: &Ownership,
) -> Difference {
    let present: BTreeSet<_> = observed
        .iter()
        .filter(|seen| seen.link == *link)
        .map(|seen| seen.address.key)
        .collect();
    let mut by_key = BTreeMap::new();
    let mut result = Difference::default();
    for address in desired {
        if by_key.insert(address.key, ()).is_none() && !present.contains(&address.key) {
            result.missing.push(address.clone());
        }
    }
    let desired_addresses: BTreeSet<_> = by_key.keys().map(AddressKey::address).collect();
    for seen in observed {
        let key = seen.address.key;
        if seen.link != *link {
            if desired_addresses.contains(&key.address()) {
                result.elsewhere.push(seen.clone());
            }
        } else if !by_key.contains_key(&key) {
            if ownership.is_owned(&seen.address) {
                result.surplus.push(key);
            } else {
                result.foreign.push(seen.clone());
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> AddressKey {
        text.parse().unwrap()
    }

    fn on(link: &str, text: &str) -> HostAddress {
        HostAddress::new(link.parse().unwrap(), 2, LinkAddress::new(key(text)))
    }

    /// The link-local address that the kernel adds to a link that is up, as kernels before 5.18 list it.
    fn added_by_kernel() -> HostAddress {
        let mut seen = on("kube-ipvs0", "fe80::1/64");
        seen.address.flags = AddressFlags::PERMANENT;
        seen
    }

    #[test]
    fn missing_surplus_foreign_and_duplicate_addresses_are_distinguished() {
        let link: LinkName = "kube-ipvs0".parse().unwrap();
        let observed = [
            on("eth0", "10.0.0.1/24"),
            on("eth0", "192.0.2.7/24"),
            on("kube-ipvs0", "10.0.0.1/32"),
            on("kube-ipvs0", "10.0.0.2/32"),
            on("kube-ipvs0", "172.16.0.1/32"),
            added_by_kernel(),
        ];
        let desired = ["10.0.0.1/32", "10.0.0.3/32", "10.0.0.3/32", "192.0.2.7/32"]
            .map(|text| LinkAddress::new(key(text)));
        let within = Ownership::Within(vec!["10.0.0.0/8".parse().unwrap()]);
        let found = difference(&link, &observed, &desired, &within);
        assert_eq!(
            found.missing,
            ["10.0.0.3/32", "192.0.2.7/32"].map(|text| LinkAddress::new(key(text)))
        );
        assert_eq!(found.surplus, [key("10.0.0.2/32")]);
        assert_eq!(
            found.foreign,
            [on("kube-ipvs0", "172.16.0.1/32"), added_by_kernel()]
        );
        assert_eq!(
            found.elsewhere,
            [on("eth0", "10.0.0.1/24"), on("eth0", "192.0.2.7/24")]
        );
        let everything = difference(&link, &observed, &desired, &Ownership::All);
        assert_eq!(everything.foreign, [added_by_kernel()]);
        assert_eq!(everything.surplus, [key("10.0.0.2/32"), key("172.16.0.1/32")]);
    }

    #[test]
    fn the_protocol_is_not_compared() {
        let link: LinkName = "d0".parse().unwrap();
        let desired = [LinkAddress::new(key("10.0.0.1/32")).with_protocol(crate::AddressProtocol::KERNLINK)];
        let found = difference(&link, &[on("d0", "10.0.0.1/32")], &desired, &Ownership::All);
        assert_eq!(found, Difference::default());
    }
}
