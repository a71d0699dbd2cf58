//! What separates the addresses a link has from those it should have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    AddressFlags, AddressKey, DummyLinks, Error, HostAddress, LinkAddress, LinkName, LocalRoute, Operation,
    Owner,
};

/// Which addresses of our link are ours to delete when they are not wanted. All others are
/// foreign: reported and left alone.
///
/// The link-local IPv6 address that the kernel adds when the link is set up is foreign unless it is listed
/// or in a prefix inside `fe80::/10`. It is recognised by [`Owner::KERNEL_LINK_LOCAL`] (kernel 5.18 and later)
/// and [`AddressFlags::STABLE_PRIVACY`]; on older kernels, an address of `fe80::/64` with that prefix length, no
/// owner and without [`AddressFlags::NO_DAD`] is taken for one.
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
    pub fn contains(&self, address: &LinkAddress) -> bool {
        match self {
            Ours::Everything => !is_kernel_made(address),
            Ours::Within(prefixes) => prefixes.iter().any(|prefix| {
                prefix.contains(&address.key.address())
                    && (!is_kernel_made(address) || is_link_local(&prefix.addr(), prefix.prefix_len()))
            }),
            Ours::Listed(keys) => keys.contains(&address.key),
        }
    }
}

/// Whether the kernel added a link-local address by itself.
fn is_kernel_made(address: &LinkAddress) -> bool {
    is_link_local(&address.key.address(), 128)
        && match address.owner {
            Owner::KERNEL_LINK_LOCAL => true,
            Owner::UNSPECIFIED => {
                address.flags.contains(AddressFlags::STABLE_PRIVACY)
                    || (address.key.prefix_length() == 64 && !address.flags.contains(AddressFlags::NO_DAD))
            }
            _ => false,
        }
}

/// Whether a prefix lies in `fe80::/10`.
fn is_link_local(address: &IpAddr, prefix_length: u8) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) && prefix_length >= 10
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
    /// What removes the difference: additions first, so that no address is missing in between. Only an
    /// address of which the kernel takes one on a link is deleted before it is added: an IPv6 address that
    /// changes its prefix length, an address that changes its peer inside one network.
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
                .is_some_and(|wanted| wanted.iter().any(|wanted| key.excludes(wanted)))
        });
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
        let surplus: BTreeSet<_> = self.surplus.iter().collect();
        let secondaries: BTreeSet<_> = observed
            .iter()
            .filter(|seen| seen.link == *link && seen.address.flags.contains(AddressFlags::SECONDARY))
            .map(|seen| &seen.address.key)
            // What was added just now came behind what was there.
            .chain(self.missing.iter().map(|address| &address.key))
            .filter(|key| key.address().is_ipv4())
            .filter(|key| !surplus.contains(key))
            .map(AddressKey::network)
            .collect();
        self.surplus
            .iter()
            .any(|key| key.address().is_ipv4() && secondaries.contains(&key.network()))
    }

    /// Whether an IPv4 address is to be deleted, and with it, if it is the last one, the link's IPv4 routes.
    pub(crate) fn deletes_ipv4(&self) -> bool {
        self.surplus.iter().any(|key| key.address().is_ipv4())
    }

    /// Whether no IPv4 address stays on the link.
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
            if ours.contains(&seen.address) {
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
    /// Number of operations that succeeded, without those on routes.
    pub done: usize,
    /// Local routes that the kernel deleted with the link's last IPv4 address and that were added again.
    pub restored: Vec<LocalRoute>,
    /// Operations that failed, in order.
    pub failures: Vec<(Operation, Error)>,
}

impl Replaced {
    /// Executes operations and records what became of them.
    pub(crate) fn execute(&mut self, host: &mut (impl DummyLinks + ?Sized), operations: Vec<Operation>) {
        if operations.is_empty() {
            return;
        }
        let missing = std::iter::repeat_with(|| Err(Error::OutcomeMissing));
        let outcomes = host.execute(&operations).into_iter().chain(missing);
        for (operation, outcome) in operations.into_iter().zip(outcomes) {
            match (&operation, outcome) {
                (Operation::EnsureRoute(_, route), Ok(())) => self.restored.push(*route),
                (_, Ok(())) => self.done += 1,
                // Gone meanwhile, or taken along: what was wanted is so.
                (_, Err(error)) if error.is_not_found() && !error.is_link_missing() => {}
                (_, Err(error)) => self.failures.push((operation, error)),
            }
        }
    }
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

    /// The link-local address of a link that was set up, as kernels before 5.18 list it.
    fn made_by_the_kernel() -> HostAddress {
        let mut seen = on("kube-ipvs0", "fe80::1/64");
        seen.address.flags = AddressFlags::PERMANENT;
        seen
    }

    #[test]
    fn of_link_local_addresses_only_the_one_of_the_kernel_is_foreign() {
        let kernel = made_by_the_kernel().address;
        let with = |owner, flags| kernel.clone().with_owner(owner).with_flags(flags);
        let kernel_made = [
            kernel.clone(),
            with(Owner::KERNEL_LINK_LOCAL, AddressFlags::NO_DAD),
            with(
                Owner::UNSPECIFIED,
                AddressFlags::STABLE_PRIVACY | AddressFlags::NO_DAD,
            ),
        ];
        let others = [
            with(Owner::UNSPECIFIED, AddressFlags::NO_DAD),
            with(Owner::KERNLINK, AddressFlags::PERMANENT),
            LinkAddress::new(key("fe80::1/128")).with_flags(AddressFlags::PERMANENT),
            LinkAddress::new(key("fd00::1/64")).with_flags(AddressFlags::PERMANENT),
        ];
        let wide = Ours::Within(vec!["::/0".parse().unwrap()]);
        let narrow = Ours::Within(vec!["fe80::/10".parse().unwrap(), "fd00::/8".parse().unwrap()]);
        for address in &kernel_made {
            assert!(
                !Ours::Everything.contains(address) && !wide.contains(address),
                "{address:?}"
            );
            assert!(narrow.contains(address), "{address:?}");
            assert!(Ours::Listed([address.key].into()).contains(address));
        }
        for address in &others {
            for ours in [&Ours::Everything, &wide, &narrow] {
                assert!(ours.contains(address), "{ours:?} {address:?}");
            }
        }
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
            made_by_the_kernel(),
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
            [on("kube-ipvs0", "172.16.0.1/32"), made_by_the_kernel()]
        );
        assert_eq!(
            found.elsewhere,
            [on("eth0", "10.0.0.1/24"), on("eth0", "192.0.2.7/24")]
        );
        let everything = difference(&ours, &observed, &wanted, &Ours::Everything);
        assert_eq!(everything.foreign, [made_by_the_kernel()]);
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
