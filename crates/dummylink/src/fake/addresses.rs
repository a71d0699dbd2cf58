//! The addresses of one link of the fake.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::{AddressKey, LinkAddress};

/// Addresses by key, and the keys of IPv4 addresses by prefix: adding and removing an address looks only at those with the same address
/// or prefix.
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

    /// The first key that the kernel does not take together with this one.
    pub(super) fn excluded_by(&self, key: &AddressKey) -> Option<AddressKey> {
        let mut others = self.with_address(key.address());
        others.find(|other| other.excludes(key)).copied()
    }

    /// The first key that the kernel deletes when it is asked for this one. It compares the networks of IPv4 peers, and does not look
    /// at IPv6 peers.
    pub(super) fn deleted_by(&self, key: &AddressKey) -> Option<AddressKey> {
        let mut others = self.with_address(key.address());
        let is_deleted =
            |other: &&AddressKey| other.excludes(key) && other.prefix_length() == key.prefix_length();
        others.find(is_deleted).copied()
    }

    /// The keys with this address.
    fn with_address(&self, address: IpAddr) -> impl Iterator<Item = &AddressKey> {
        // Longer than any prefix.
        let after = AddressKey::from_kernel(address, u8::MAX, None);
        let keys = self
            .by_key
            .range(AddressKey::from_kernel(address, 0, None)..after);
        keys.map(|(key, _)| key)
    }

    /// The IPv4 addresses of the prefix of a key. They hang together: all but the first are secondary.
    pub(super) fn neighbours<'a>(
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

    /// Removes the IPv4 addresses of the prefix of a key.
    pub(super) fn remove_neighbours(&mut self, key: &AddressKey) {
        let keys = ipv4_prefix(key).and_then(|prefix| self.by_prefix.remove(&prefix));
        for key in keys.into_iter().flatten() {
            self.by_key.remove(&key);
        }
    }

    pub(super) fn remove_family(&mut self, is_ipv4: bool) {
        self.by_key.retain(|key, _| key.address().is_ipv4() != is_ipv4);
        if is_ipv4 {
            self.by_prefix.clear();
        }
    }

    /// Whether an address of the family is there.
    pub(super) fn has_family(&self, is_ipv4: bool) -> bool {
        // IPv4 comes first.
        let key = if is_ipv4 {
            self.by_key.first_key_value()
        } else {
            self.by_key.last_key_value()
        };
        key.is_some_and(|(key, _)| key.address().is_ipv4() == is_ipv4)
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

    fn neighbours(addresses: &Addresses, key: &str) -> Vec<String> {
        let keys = addresses.neighbours(&key.parse().unwrap());
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
            neighbours(&addresses, "10.0.0.9/24"),
            ["10.0.0.1/24", "10.0.0.2/24"]
        );
        assert_eq!(neighbours(&addresses, "2001:db8::2/64"), [""; 0]);
        addresses.remove(&"10.0.0.1/24".parse().unwrap());
        assert_eq!(neighbours(&addresses, "10.0.0.9/24"), ["10.0.0.2/24"]);
        addresses.remove_neighbours(&"10.0.0.9/24".parse().unwrap());
        assert_eq!(neighbours(&addresses, "10.0.0.9/24"), [""; 0]);
        let left: Vec<String> = addresses.keys().map(ToString::to_string).collect();
        assert_eq!(left, ["10.0.0.2/25", "10.0.1.1/24", "2001:db8::1/64"]);
        assert!(addresses.has_family(true) && addresses.has_family(false));
        addresses.remove_family(true);
        assert!(!addresses.has_family(true) && addresses.has_family(false));
        assert_eq!(neighbours(&addresses, "10.0.1.1/24"), [""; 0]);
    }

    #[test]
    fn an_address_is_compared_with_those_of_the_same_address() {
        let mut addresses = Addresses::default();
        for text in ["10.0.0.1/24", "10.0.0.1/25", "10.0.0.2/24", "2001:db8::1/64"] {
            addresses.insert(address(text));
        }
        let excluded = |key: &str| {
            let key = addresses.excluded_by(&key.parse().unwrap());
            key.map(|key| key.to_string())
        };
        assert_eq!(excluded("10.0.0.1/24").as_deref(), Some("10.0.0.1/24"));
        assert_eq!(excluded("10.0.0.1/26"), None);
        assert_eq!(excluded("2001:db8::1/128").as_deref(), Some("2001:db8::1/64"));
        assert_eq!(addresses.deleted_by(&"2001:db8::1/128".parse().unwrap()), None);
    }
}
