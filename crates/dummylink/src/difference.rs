//! What separates the addresses a link has from those it should have.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::{AddressFlags, AddressKey, Error, HostAddress, LinkAddress, LinkName, Operation};

/// Which addresses of our link are ours to delete when they are not wanted. All others are
/// foreign: reported and left alone.
///
/// IPv6 link-local addresses that the kernel made are ours in [`Ours::Listed`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ours {
    /// All of them: nobody else uses the link.
    Everything,
    /// Those in one of these prefixes, such as the ranges of virtual IPs.
    Within(Vec<IpNet>),
    /// These.
    Listed(BTreeSet<AddressKey>),
}

impl Ours {
    /// Whether an address of our link is ours.
    pub fn contains(&self, key: &AddressKey) -> bool {
        let is_kernel_made =
            matches!(key.address(), std::net::IpAddr::V6(address) if address.is_unicast_link_local());
        match self {
            Ours::Everything => !is_kernel_made,
            Ours::Within(prefixes) => {
                !is_kernel_made && prefixes.iter().any(|prefix| prefix.contains(&key.address()))
            }
            Ours::Listed(keys) => keys.contains(key),
        }
    }
}

/// What separates the addresses a link has from those it should have. A change is by key only:
/// the owner tag, lifetimes and flags of an address that is there are not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Wanted and not there, in the order in which they are wanted, each once.
    pub missing: Vec<LinkAddress>,
    /// Ours, there and not wanted, in the order of the listing.
    pub surplus: Vec<AddressKey>,
    /// On our link, neither wanted nor ours: left alone.
    pub foreign: Vec<HostAddress>,
    /// Wanted addresses that also lie on other links, where they are left alone. They are added to
    /// our link all the same.
    pub elsewhere: Vec<HostAddress>,
}

impl Difference {
    /// What removes the difference: additions first, so that no address is missed in between. Only
    /// an IPv6 address that changes its prefix length goes before it comes: the kernel takes one
    /// prefix length a link.
    pub fn operations(&self, link: &LinkName) -> Vec<Operation> {
        let missing: BTreeSet<_> = self.missing.iter().map(|address| address.key.address()).collect();
        let (first, last): (Vec<_>, Vec<_>) = self
            .surplus
            .iter()
            .partition(|key| key.address().is_ipv6() && missing.contains(&key.address()));
        let delete = |key: &AddressKey| Operation::DeleteAddress(*link, *key);
        let add = |address: &LinkAddress| Operation::AddAddress(*link, address.clone());
        let mut operations: Vec<_> = first.into_iter().map(delete).collect();
        operations.extend(self.missing.iter().map(add));
        operations.extend(last.into_iter().map(delete));
        operations
    }

    /// Whether a deletion may take addresses along that are wanted: it is of an IPv4 address that
    /// came first in its prefix, and another one of the prefix stays.
    pub(crate) fn deletes_primary(&self, observed: &[HostAddress], link: &LinkName) -> bool {
        let network = |key: &AddressKey| {
            IpNet::new(key.address(), key.prefix_length())
                .map(|net| net.trunc())
                .ok()
        };
        let surplus: BTreeSet<_> = self.surplus.iter().collect();
        let secondaries: BTreeSet<_> = observed
            .iter()
            .filter(|seen| seen.link == *link && seen.address.flags.contains(AddressFlags::SECONDARY))
            .map(|seen| &seen.address.key)
            // What was added just now came behind what was there.
            .chain(self.missing.iter().map(|address| &address.key))
            .filter(|key| key.address().is_ipv4() && key.prefix_length() < 32)
            .filter(|key| !surplus.contains(key))
            .map(network)
            .collect();
        self.surplus
            .iter()
            .any(|key| key.address().is_ipv4() && secondaries.contains(&network(key)))
    }
}

/// Compares the addresses of all links with those wanted on one of them.
pub fn difference(
    link: &LinkName,
    observed: &[HostAddress],
    wanted: &[LinkAddress],
    ours: &Ours,
) -> Difference {
    let present: BTreeSet<_> = observed
        .iter()
        .filter(|seen| seen.link == *link)
        .map(|seen| seen.address.key)
        .collect();
    let mut by_key = BTreeMap::new();
    let mut result = Difference::default();
    for address in wanted {
        if by_key.insert(address.key, ()).is_none() && !present.contains(&address.key) {
            result.missing.push(address.clone());
        }
    }
    let wanted_addresses: BTreeSet<_> = by_key.keys().map(AddressKey::address).collect();
    for seen in observed {
        let key = seen.address.key;
        if seen.link != *link {
            if wanted_addresses.contains(&key.address()) {
                result.elsewhere.push(seen.clone());
            }
        } else if !by_key.contains_key(&key) {
            if ours.contains(&key) {
                result.surplus.push(key);
            } else {
                result.foreign.push(seen.clone());
            }
        }
    }
    result
}

/// What [`DummyLinks::replace`](crate::DummyLinks::replace) found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replaced {
    /// What separated the link's addresses from the wanted ones before.
    pub difference: Difference,
    /// Number of operations that succeeded.
    pub done: usize,
    /// Operations that failed, in order.
    pub failures: Vec<(Operation, Error)>,
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

    #[test]
    fn missing_and_surplus_are_found_and_the_rest_is_left_alone() {
        let ours: LinkName = "kube-ipvs0".parse().unwrap();
        let observed = [
            on("eth0", "10.0.0.1/24"),
            on("eth0", "192.0.2.7/24"),
            on("kube-ipvs0", "10.0.0.1/32"),
            on("kube-ipvs0", "10.0.0.2/32"),
            on("kube-ipvs0", "172.16.0.1/32"),
            on("kube-ipvs0", "fe80::1/64"),
        ];
        let wanted = ["10.0.0.1/32", "10.0.0.3/32", "10.0.0.3/32", "192.0.2.7/32"]
            .map(|text| LinkAddress::new(key(text)));
        let within = Ours::Within(vec!["10.0.0.0/8".parse().unwrap()]);
        let found = difference(&ours, &observed, &wanted, &within);
        assert_eq!(
            found.missing,
            ["10.0.0.3/32", "192.0.2.7/32"].map(|text| LinkAddress::new(key(text)))
        );
        assert_eq!(found.surplus, [key("10.0.0.2/32")]);
        assert_eq!(
            found.foreign,
            [on("kube-ipvs0", "172.16.0.1/32"), on("kube-ipvs0", "fe80::1/64")]
        );
        assert_eq!(
            found.elsewhere,
            [on("eth0", "10.0.0.1/24"), on("eth0", "192.0.2.7/24")]
        );
        let everything = difference(&ours, &observed, &wanted, &Ours::Everything);
        assert_eq!(everything.foreign, [on("kube-ipvs0", "fe80::1/64")]);
        assert_eq!(everything.surplus, [key("10.0.0.2/32"), key("172.16.0.1/32")]);
    }

    #[test]
    fn an_owner_tag_is_not_compared() {
        let ours: LinkName = "d0".parse().unwrap();
        let wanted = [LinkAddress::new(key("10.0.0.1/32")).with_owner(crate::Owner::KERNLINK)];
        let found = difference(&ours, &[on("d0", "10.0.0.1/32")], &wanted, &Ours::Everything);
        assert_eq!(found, Difference::default());
    }
}
