//! The addresses of one link of the fake.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_base::Family;

use crate::{AddressKey, LinkAddress};

/// Addresses by key, and the keys of IPv4 addresses by prefix. Adding and removing an address compares it only with those of the same
/// address or prefix.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    by_key: BTreeMap<AddressKey, LinkAddress>,
    by_prefix: HashMap<IpNet, Vec<AddressKey>>,
}

impl Addresses {
    pub(super) fn contains(&self, key: &AddressKey) -> bool {
        self.by_key.contains_key(key)
    }

    pub(super) fn get_mut(&mut self, key: &AddressKey) -> Option<&mut LinkAddress> {
        self.by_key.get_mut(key)
    }

    /// The keys, in order: IPv4 first.
    pub(super) fn keys(&self) -> impl Iterator<Item = &AddressKey> {
        self.by_key.keys()
    }

    /// The addresses, in the order of their keys.
    pub(super) fn values(&self) -> impl Iterator<Item = &LinkAddress> {
        self.by_key.values()
    }

    /// The first key that conflicts with this one in the kernel.
    pub(super) fn conflict(&self, key: &AddressKey) -> Option<AddressKey> {
        let mut others = self.with_address(key.address());
        others.find(|other| other.conflicts_with(key)).copied()
    }

    /// The key that the kernel deletes on a request to delete this one. It compares the networks of IPv4 peers, and ignores IPv6
    /// peers.
    pub(super) fn deletion(&self, key: &AddressKey) -> Option<AddressKey> {
        let mut others = self.with_address(key.address());
        let is_deleted =
            |other: &&AddressKey| other.conflicts_with(key) && other.prefix_length() == key.prefix_length();
        others.find(is_deleted).copied()
    }

    /// The keys with this address.
    fn with_address(&self, address: IpAddr) -> impl Iterator<Item = &AddressKey> {
        // Greater than every prefix length.
        let after = AddressKey::from_kernel(address, u8::MAX, None);
        let keys = self
            .by_key
            .range(AddressKey::from_kernel(address, 0, None)..after);
        keys.map(|(key, _)| key)
    }

    /// The IPv4 addresses with the prefix of a key, in the order of insertion. All except the first are secondary.
    pub(super) fn same_prefix<'a>(
        &'a self,
        key: &AddressKey,
    ) -> impl Iterator<Item = &'a LinkAddress> + use<'a> {
        let prefix = ipv4_prefix(key);
        let keys = prefix.and_then(|prefix| self.by_prefix.get(&prefix));
        keys.into_iter().flatten().filter_map(|key| self.by_key.get(key))
    }

    pub(super) fn insert(&mut self, address: LinkAddress) {
        let key = address.key;
        if self.by_key.insert(key, address).is_none()
            && let Some(prefix) = ipv4_prefix(&key)
        {
            self.by_prefix.entry(prefix).or_default().push(key);
        }
    }

    pub(super) fn remove(&mut self, key: &AddressKey) -> Option<LinkAddress> {
        let removed = self.by_key.remove(key)?;
        if let Some(prefix) = ipv4_prefix(key)
            && let Some(keys) = self.by_prefix.get_mut(&prefix)
        {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.by_prefix.remove(&prefix);
            }
        }
        Some(removed)
    }

    /// Removes the IPv4 addresses with the prefix of a key.
    pub(super) fn remove_same_prefix(&mut self, key: &AddressKey) {
        let keys = ipv4_prefix(key).and_then(|prefix| self.by_prefix.remove(&prefix));
        for key in keys.into_iter().flatten() {
            self.by_key.remove(&key);
        }
    }

    pub(super) fn remove_family(&mut self, family: Family) {
        self.by_key.retain(|key, _| Family::of(key.address()) != family);
        if family == Family::Ipv4 {
            self.by_prefix.clear();
        }
    }

    /// Whether there is an address of the family.
    pub(super) fn has_family(&self, family: Family) -> bool {
        // Keys are ordered: IPv4 first.
        let key = match family {
            Family::Ipv4 => self.by_key.first_key_value(),
            Family::Ipv6 => self.by_key.last_key_value(),
        };
        key.is_some_and(|(key, _)| Family::of(key.address()) == family)
    }
}

fn ipv4_prefix(key: &AddressKey) -> Option<IpNet> {
    key.network().filter(|_| key.address().is_ipv4())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> LinkAddress {
        LinkAddress::new(text.parse().unwrap())
    }

    fn same_prefix(addresses: &Addresses, key: &str) -> Vec<String> {
        let keys = addresses.same_prefix(&key.parse().unwrap());
        keys.map(|address| address.key.to_string()).collect()
    }

    #[test]
    fn ipv4_addresses_are_found_by_their_prefix_until_they_are_removed() {
        let mut addresses = Addresses::default();
        let texts = [
            "10.0.0.1/24",
            "10.0.0.2/24",
            "10.0.0.2/25",
            "10.0.1.1/24",
            "2001:db8::1/64",
        ];
        for text in texts.into_iter().chain(["10.0.0.2/24"]) {
            addresses.insert(address(text));
        }
        assert_eq!(
            same_prefix(&addresses, "10.0.0.9/24"),
            ["10.0.0.1/24", "10.0.0.2/24"]
        );
        assert_eq!(same_prefix(&addresses, "2001:db8::2/64"), [""; 0]);
        addresses.remove(&"10.0.0.1/24".parse().unwrap());
        assert_eq!(same_prefix(&addresses, "10.0.0.9/24"), ["10.0.0.2/24"]);
        addresses.remove_same_prefix(&"10.0.0.9/24".parse().unwrap());
        assert_eq!(same_prefix(&addresses, "10.0.0.9/24"), [""; 0]);
        let left: Vec<String> = addresses.keys().map(ToString::to_string).collect();
        assert_eq!(left, ["10.0.0.2/25", "10.0.1.1/24", "2001:db8::1/64"]);
        assert!(addresses.has_family(Family::Ipv4) && addresses.has_family(Family::Ipv6));
        addresses.remove_family(Family::Ipv4);
        assert!(!addresses.has_family(Family::Ipv4) && addresses.has_family(Family::Ipv6));
        assert_eq!(same_prefix(&addresses, "10.0.1.1/24"), [""; 0]);
    }

    #[test]
    fn conflicts_are_found_among_the_keys_with_the_same_address() {
        let mut addresses = Addresses::default();
        for text in ["10.0.0.1/24", "10.0.0.1/25", "10.0.0.2/24", "2001:db8::1/64"] {
            addresses.insert(address(text));
        }
        let conflict = |key: &str| {
            let key = addresses.conflict(&key.parse().unwrap());
            key.map(|key| key.to_string())
        };
        assert_eq!(conflict("10.0.0.1/24").as_deref(), Some("10.0.0.1/24"));
        assert_eq!(conflict("10.0.0.1/26"), None);
        assert_eq!(conflict("2001:db8::1/128").as_deref(), Some("2001:db8::1/64"));
        assert_eq!(addresses.deletion(&"2001:db8::1/128".parse().unwrap()), None);
    }
}
