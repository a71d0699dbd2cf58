//! Ownership of addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::{AddressFlags, AddressKey, AddressProtocol, LinkAddress};

/// Which addresses of a dummy link [`replace`](crate::DummyLinks::replace) may delete. The others are foreign: they are reported and
/// not changed.
///
/// The link-local IPv6 address that the kernel adds when the link is set up is foreign unless its key is listed
/// or an owned prefix is inside `fe80::/10`. It is recognised by [`AddressProtocol::KERNEL_LINK_LOCAL`] (kernel 5.18 and later)
/// or [`AddressFlags::STABLE_PRIVACY`]. On older kernels, every address of `fe80::/64` with that prefix length, an unspecified
/// protocol and without [`AddressFlags::NO_DAD`] is treated as added by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ownership {
    /// All addresses: no other program uses the link.
    All,
    /// Addresses in one of these prefixes, such as the ranges of virtual IPs.
    Within(Vec<IpNet>),
    /// Addresses with these keys.
    Listed(BTreeSet<AddressKey>),
}

impl Ownership {
    /// Whether an address of the link is owned.
    #[must_use]
    pub fn is_owned(&self, address: &LinkAddress) -> bool {
        match self {
            Ownership::All => !is_added_by_kernel(address),
            Ownership::Within(prefixes) => prefixes.iter().any(|prefix| {
                prefix.contains(&address.key.address())
                    && (!is_added_by_kernel(address) || is_link_local(&prefix.addr(), prefix.prefix_len()))
            }),
            Ownership::Listed(keys) => keys.contains(&address.key),
        }
    }
}

/// Whether the kernel added the link-local address.
fn is_added_by_kernel(address: &LinkAddress) -> bool {
    is_link_local(&address.key.address(), 128)
        && match address.protocol {
            AddressProtocol::KERNEL_LINK_LOCAL => true,
            AddressProtocol::UNSPECIFIED => {
                address.flags.contains(AddressFlags::STABLE_PRIVACY)
                    || (address.key.prefix_length() == 64 && !address.flags.contains(AddressFlags::NO_DAD))
            }
            _ => false,
        }
}

/// Whether a prefix is inside `fe80::/10`.
fn is_link_local(address: &IpAddr, prefix_length: u8) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) && prefix_length >= 10
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> AddressKey {
        text.parse().unwrap()
    }

    #[test]
    fn a_link_local_address_is_foreign_only_if_the_kernel_added_it() {
        // As kernels before 5.18 list it.
        let kernel = LinkAddress::new(key("fe80::1/64")).with_flags(AddressFlags::PERMANENT);
        let with = |protocol, flags| kernel.clone().with_protocol(protocol).with_flags(flags);
        let added_by_kernel = [
            kernel.clone(),
            with(AddressProtocol::KERNEL_LINK_LOCAL, AddressFlags::NO_DAD),
            with(
                AddressProtocol::UNSPECIFIED,
                AddressFlags::STABLE_PRIVACY | AddressFlags::NO_DAD,
            ),
        ];
        let others = [
            with(AddressProtocol::UNSPECIFIED, AddressFlags::NO_DAD),
            with(AddressProtocol::KERNLINK, AddressFlags::PERMANENT),
            LinkAddress::new(key("fe80::1/128")).with_flags(AddressFlags::PERMANENT),
            LinkAddress::new(key("fd00::1/64")).with_flags(AddressFlags::PERMANENT),
        ];
        let wide = Ownership::Within(vec!["::/0".parse().unwrap()]);
        let narrow = Ownership::Within(vec!["fe80::/10".parse().unwrap(), "fd00::/8".parse().unwrap()]);
        for address in &added_by_kernel {
            assert!(
                !Ownership::All.is_owned(address) && !wide.is_owned(address),
                "{address:?}"
            );
            assert!(narrow.is_owned(address), "{address:?}");
            assert!(Ownership::Listed([address.key].into()).is_owned(address));
        }
        for address in &others {
            for ownership in [&Ownership::All, &wide, &narrow] {
                assert!(ownership.is_owned(address), "{ownership:?} {address:?}");
            }
        }
    }
}
