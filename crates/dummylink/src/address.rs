//! Addresses of links.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use crate::{AddressKey, InvalidAddress, Label, LinkName, Scope, uapi};

/// An address of a link with its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LinkAddress {
    /// The address, its prefix length and its peer.
    #[doc(alias = "IFA_LOCAL")]
    pub key: AddressKey,
    /// Scope.
    pub scope: Scope,
    /// Flags. In a listing also those that the kernel sets, such as
    /// [`AddressFlags::PERMANENT`].
    #[doc(alias = "IFA_FLAGS")]
    pub flags: AddressFlags,
    /// IPv4 only: label (alias name of `ifconfig`). The kernel's default is the name of the link, which
    /// is read as `None`.
    #[doc(alias = "IFA_LABEL")]
    pub label: Option<Label>,
    /// IPv4 only: the broadcast address of the prefix; `None` if there is none.
    #[doc(alias = "IFA_BROADCAST")]
    pub broadcast: Option<Ipv4Addr>,
    /// Lifetimes.
    #[doc(alias = "IFA_CACHEINFO")]
    pub lifetime: Lifetime,
    /// Metric of the prefix route; 0 is the kernel's default.
    #[doc(alias = "IFA_RT_PRIORITY")]
    pub metric: u32,
    /// The program that added the address (`proto` of `ip address`). Kernels before 5.18 ignore it, and it is then read as
    /// [`AddressProtocol::UNSPECIFIED`].
    #[doc(alias = "IFA_PROTO")]
    pub protocol: AddressProtocol,
}

impl LinkAddress {
    /// An address with defaults for a virtual IP: global scope, no broadcast address, infinite lifetime, and
    /// no duplicate address detection (IPv6).
    #[must_use]
    pub fn new(key: AddressKey) -> Self {
        let flags = if key.address().is_ipv6() {
            AddressFlags::NO_DAD
        } else {
            AddressFlags::empty()
        };
        LinkAddress {
            key,
            scope: Scope::Universe,
            flags,
            label: None,
            broadcast: None,
            lifetime: Lifetime::FOREVER,
            metric: 0,
            protocol: AddressProtocol::UNSPECIFIED,
        }
    }

    /// [`new`](Self::new) with prefix length 32 (IPv4) or 128 (IPv6).
    ///
    /// # Errors
    /// [`InvalidAddress`] for the unspecified address.
    pub fn host(address: IpAddr) -> Result<Self, InvalidAddress> {
        AddressKey::host(address).map(Self::new)
    }

    /// Sets the scope.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets all flags.
    #[must_use]
    pub fn with_flags(mut self, flags: AddressFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the label (IPv4).
    #[must_use]
    pub fn with_label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// Sets the broadcast address (IPv4).
    #[must_use]
    pub fn with_broadcast(mut self, broadcast: Ipv4Addr) -> Self {
        self.broadcast = Some(broadcast);
        self
    }

    /// Sets the lifetimes.
    #[must_use]
    pub fn with_lifetime(mut self, lifetime: Lifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Sets the metric of the prefix route.
    #[must_use]
    pub fn with_metric(mut self, metric: u32) -> Self {
        self.metric = metric;
        self
    }

    /// Sets the protocol (`proto` of `ip address`).
    #[must_use]
    pub fn with_protocol(mut self, protocol: AddressProtocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// Removes the label if it is the name of the link, which is the kernel's default.
    pub(crate) fn without_default_label(mut self, link: &LinkName) -> Self {
        self.label = self.label.filter(|label| label.as_bytes() != link.as_bytes());
        self
    }
}

/// As the arguments of `ip address add`, without the link.
impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)?;
        if let Some(broadcast) = self.broadcast {
            write!(f, " broadcast {broadcast}")?;
        }
        if self.scope != Scope::Universe {
            write!(f, " scope {}", self.scope)?;
        }
        if let Some(label) = self.label {
            write!(f, " label {label}")?;
        }
        if self.metric != 0 {
            write!(f, " metric {}", self.metric)?;
        }
        for (flag, word) in FLAG_WORDS {
            if self.flags.contains(*flag) {
                write!(f, " {word}")?;
            }
        }
        if self.protocol != AddressProtocol::UNSPECIFIED {
            write!(f, " proto {}", self.protocol)?;
        }
        if self.lifetime != Lifetime::FOREVER {
            write!(f, " {}", self.lifetime)?;
        }
        Ok(())
    }
}

/// The flags that `ip address add` supports, with their keywords.
const FLAG_WORDS: &[(AddressFlags, &str)] = &[
    (AddressFlags::HOME_ADDRESS, "home"),
    (AddressFlags::MANAGE_TEMPORARY, "mngtmpaddr"),
    (AddressFlags::NO_DAD, "nodad"),
    (AddressFlags::OPTIMISTIC, "optimistic"),
    (AddressFlags::NO_PREFIX_ROUTE, "noprefixroute"),
    (AddressFlags::MULTICAST_AUTO_JOIN, "autojoin"),
];

bitflags::bitflags! {
    /// Flags of an address (`IFA_F_*`). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct AddressFlags: u32 {
        /// IPv4: not the first address of its prefix; the kernel deletes it together with the first one
        /// (unless `promote_secondaries` is set). IPv6: a temporary address. Set by the kernel.
        #[doc(alias = "IFA_F_SECONDARY")]
        const SECONDARY = uapi::IFA_F_SECONDARY;
        /// IPv6: no duplicate address detection.
        #[doc(alias = "IFA_F_NODAD")]
        const NO_DAD = uapi::IFA_F_NODAD;
        /// IPv6: usable during duplicate address detection.
        #[doc(alias = "IFA_F_OPTIMISTIC")]
        const OPTIMISTIC = uapi::IFA_F_OPTIMISTIC;
        /// IPv6: a neighbour has the same address. Set by the kernel.
        #[doc(alias = "IFA_F_DADFAILED")]
        const DAD_FAILED = uapi::IFA_F_DADFAILED;
        /// IPv6: a mobile node's home address.
        #[doc(alias = "IFA_F_HOMEADDRESS")]
        const HOME_ADDRESS = uapi::IFA_F_HOMEADDRESS;
        /// The preferred lifetime has ended. Set by the kernel.
        #[doc(alias = "IFA_F_DEPRECATED")]
        const DEPRECATED = uapi::IFA_F_DEPRECATED;
        /// IPv6: duplicate address detection is in progress. Set by the kernel.
        #[doc(alias = "IFA_F_TENTATIVE")]
        const TENTATIVE = uapi::IFA_F_TENTATIVE;
        /// The valid lifetime is infinite. Set by the kernel.
        #[doc(alias = "IFA_F_PERMANENT")]
        const PERMANENT = uapi::IFA_F_PERMANENT;
        /// IPv6: the kernel creates temporary addresses of this prefix.
        #[doc(alias = "IFA_F_MANAGETEMPADDR")]
        const MANAGE_TEMPORARY = uapi::IFA_F_MANAGETEMPADDR;
        /// The kernel adds no route to the prefix. It always adds the local route of the address
        /// itself.
        #[doc(alias = "IFA_F_NOPREFIXROUTE")]
        const NO_PREFIX_ROUTE = uapi::IFA_F_NOPREFIXROUTE;
        /// Join the multicast group of this address.
        #[doc(alias = "IFA_F_MCAUTOJOIN")]
        const MULTICAST_AUTO_JOIN = uapi::IFA_F_MCAUTOJOIN;
        /// IPv6: generated by the kernel from a secret (RFC 7217). Set by the kernel.
        #[doc(alias = "IFA_F_STABLE_PRIVACY")]
        const STABLE_PRIVACY = uapi::IFA_F_STABLE_PRIVACY;
        const _ = !0;
    }
}

/// Lifetimes of an address in seconds; [`Lifetime::INFINITY`] is infinite.
///
/// After the preferred lifetime the address is [deprecated](AddressFlags::DEPRECATED), after the
/// valid lifetime the kernel deletes it. The kernel refuses a valid lifetime of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifetime {
    /// Valid lifetime in seconds.
    pub valid: u32,
    /// Preferred lifetime in seconds, at most `valid`.
    pub preferred: u32,
}

impl Lifetime {
    /// Infinite (`INFINITY_LIFE_TIME`).
    pub const INFINITY: u32 = u32::MAX;
    /// Infinite valid and preferred lifetime.
    pub const FOREVER: Lifetime = Lifetime {
        valid: Self::INFINITY,
        preferred: Self::INFINITY,
    };
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (word, seconds) in [("valid_lft", self.valid), (" preferred_lft", self.preferred)] {
            match seconds {
                Self::INFINITY => write!(f, "{word} forever")?,
                seconds => write!(f, "{word} {seconds}")?,
            }
        }
        Ok(())
    }
}

/// The program that added an address (`proto` of `ip address`). The kernel stores the number since 5.18 and does not
/// interpret it.
#[doc(alias = "IFA_PROTO")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressProtocol(pub u8);

impl AddressProtocol {
    /// Not specified.
    #[doc(alias = "IFAPROT_UNSPEC")]
    pub const UNSPECIFIED: AddressProtocol = AddressProtocol(0);
    /// The kernel, address of the loopback link.
    #[doc(alias = "IFAPROT_KERNEL_LO")]
    pub const KERNEL_LOOPBACK: AddressProtocol = AddressProtocol(1);
    /// The kernel, from a router advertisement.
    #[doc(alias = "IFAPROT_KERNEL_RA")]
    pub const KERNEL_ROUTER_ADVERTISEMENT: AddressProtocol = AddressProtocol(2);
    /// The kernel, link-local address.
    #[doc(alias = "IFAPROT_KERNEL_LL")]
    pub const KERNEL_LINK_LOCAL: AddressProtocol = AddressProtocol(3);
    /// kernlink: the letter `K`.
    pub const KERNLINK: AddressProtocol = AddressProtocol(b'K');
}

/// As `proto` of `ip address`.
impl fmt::Display for AddressProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AddressProtocol::KERNEL_LOOPBACK => f.write_str("kernel_lo"),
            AddressProtocol::KERNEL_ROUTER_ADVERTISEMENT => f.write_str("kernel_ra"),
            AddressProtocol::KERNEL_LINK_LOCAL => f.write_str("kernel_ll"),
            AddressProtocol(number) => write!(f, "{number:#x}"),
        }
    }
}

/// An address and its link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HostAddress {
    /// Name of the link.
    pub link: LinkName,
    /// Index of the link, unique in its network namespace.
    #[doc(alias = "ifindex")]
    pub link_index: u32,
    /// The address.
    pub address: LinkAddress,
}

impl HostAddress {
    /// An address on a link.
    #[must_use]
    pub fn new(link: LinkName, link_index: u32, address: LinkAddress) -> Self {
        HostAddress {
            link,
            link_index,
            address,
        }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dev {}", self.address, self.link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_prints_as_the_arguments_of_ip_address_add() {
        let address = LinkAddress::new("10.1.2.3/24".parse().unwrap())
            .with_scope(Scope::Link)
            .with_flags(AddressFlags::NO_PREFIX_ROUTE)
            .with_label(Label::new("d0:x").unwrap())
            .with_broadcast([10, 1, 2, 255].into())
            .with_metric(7)
            .with_lifetime(Lifetime {
                valid: 100,
                preferred: 50,
            })
            .with_protocol(AddressProtocol::KERNLINK);
        assert_eq!(
            address.to_string(),
            "10.1.2.3/24 broadcast 10.1.2.255 scope link label d0:x metric 7 noprefixroute proto 0x4b \
             valid_lft 100 preferred_lft 50"
        );
        assert_eq!(
            LinkAddress::host("fd00::1".parse().unwrap()).unwrap().to_string(),
            "fd00::1/128 nodad"
        );
    }
}
