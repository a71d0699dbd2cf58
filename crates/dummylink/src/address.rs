//! Addresses as they lie on a link.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use ipnet::IpNet;

use crate::{Label, LinkName, uapi};

/// What tells one address of a link from another: the address, its prefix length and its peer.
///
/// Ordered by address, IPv4 first. The whole key of an address on a host is this and the link. The
/// same address of either family may lie on several links. On one link the kernel takes
/// - an IPv6 address once, whatever its prefix length and peer;
/// - an IPv4 address several times, if the prefix lengths or the networks of the peers differ (without
///   a peer, the network of the address itself). It compares the networks also when an address is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressKey {
    address: IpAddr,
    prefix_length: u8,
    peer: Option<IpAddr>,
}

impl AddressKey {
    /// An address with a prefix length of at most 32 (IPv4) or 128 (IPv6).
    ///
    /// # Errors
    /// [`InvalidAddress`] if the prefix is too long, or the address the unspecified one: the
    /// kernel takes `0.0.0.0` without an error and adds nothing.
    pub fn new(address: IpAddr, prefix_length: u8) -> Result<Self, InvalidAddress> {
        let refuse = |reason| {
            Err(InvalidAddress {
                text: format!("{address}/{prefix_length}").into(),
                reason,
            })
        };
        if prefix_length > host_prefix_length(address) {
            return refuse("the prefix is longer than the address");
        }
        if address.is_unspecified() {
            return refuse("the unspecified address cannot lie on a link");
        }
        Ok(AddressKey {
            address,
            prefix_length,
            peer: None,
        })
    }

    /// The same address with another address at the other end of the link. The prefix length is
    /// then that of the other end. As `ip address add ADDRESS peer PEER/LENGTH`. A peer equal to the
    /// address is no peer.
    ///
    /// # Errors
    /// [`InvalidAddress`] if the peer is of the other family or the unspecified address.
    pub fn with_peer(self, peer: IpAddr) -> Result<Self, InvalidAddress> {
        let refuse = |reason| {
            Err(InvalidAddress {
                text: format!("{} peer {peer}/{}", self.address, self.prefix_length).into(),
                reason,
            })
        };
        if peer.is_ipv4() != self.address.is_ipv4() {
            return refuse("the peer is of another address family");
        }
        if peer.is_unspecified() {
            return refuse("the unspecified address cannot be a peer");
        }
        Ok(AddressKey {
            peer: (peer != self.address).then_some(peer),
            ..self
        })
    }

    /// An address for itself alone: `/32` or `/128`.
    ///
    /// # Errors
    /// [`InvalidAddress`] for the unspecified address.
    pub fn host(address: IpAddr) -> Result<Self, InvalidAddress> {
        Self::new(address, host_prefix_length(address))
    }

    /// A key as the kernel sent it.
    pub(crate) fn from_kernel(address: IpAddr, prefix_length: u8, remote: Option<IpAddr>) -> Self {
        AddressKey {
            address,
            prefix_length,
            peer: remote.filter(|remote| *remote != address),
        }
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Number of leading bits that the link's neighbours share; 32 or 128 if there are none. With a
    /// peer, those of the peer.
    pub fn prefix_length(&self) -> u8 {
        self.prefix_length
    }

    /// The address at the other end of a point-to-point link; `None` elsewhere.
    #[doc(alias = "IFA_ADDRESS")]
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// What the prefix length belongs to (`IFA_ADDRESS`): the peer, or the address itself.
    pub(crate) fn remote(&self) -> IpAddr {
        self.peer.unwrap_or(self.address)
    }

    /// The network that the prefix stands for. `None` of a prefix that the kernel should not have sent.
    pub(crate) fn network(&self) -> Option<IpNet> {
        IpNet::new(self.remote(), self.prefix_length)
            .ok()
            .map(|net| net.trunc())
    }

    /// Whether the kernel takes only one of the two on a link, and deletes one when it is asked for
    /// the other
    /// ([`__inet_insert_ifa`](https://github.com/torvalds/linux/blob/v6.12/net/ipv4/devinet.c),
    /// [`ipv6_add_addr`](https://github.com/torvalds/linux/blob/v6.12/net/ipv6/addrconf.c)).
    pub(crate) fn excludes(&self, other: &AddressKey) -> bool {
        self.address == other.address
            && (self.address.is_ipv6()
                || (self.prefix_length == other.prefix_length && self.network() == other.network()))
    }
}

fn host_prefix_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// As `ip address` takes it: `192.0.2.1/24`, `192.0.2.1 peer 192.0.2.2/32`.
impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "{} peer {peer}/{}", self.address, self.prefix_length),
            None => write!(f, "{}/{}", self.address, self.prefix_length),
        }
    }
}

impl FromStr for AddressKey {
    type Err = InvalidAddress;

    /// Reads `192.0.2.1/24`, `2001:db8::1/64`, `192.0.2.1 peer 192.0.2.2/32`, or an address alone,
    /// which means the address for itself.
    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if let Some((address, remote)) = text.split_once(" peer ") {
            let invalid = |reason| InvalidAddress {
                text: text.into(),
                reason,
            };
            let address: IpAddr = address
                .parse()
                .map_err(|_| invalid("it does not start with an address"))?;
            let remote: AddressKey = remote.parse()?;
            let peer = remote.address;
            if remote.peer.is_some() {
                return Err(invalid("it has two peers"));
            }
            if peer.is_ipv4() != address.is_ipv4() {
                return Err(invalid("the peer is of another address family"));
            }
            return AddressKey::new(address, remote.prefix_length)?.with_peer(peer);
        }
        let invalid = |reason| InvalidAddress {
            text: text.into(),
            reason,
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address = address
            .parse()
            .map_err(|_| invalid("it does not start with an address"))?;
        match length {
            None => Self::host(address),
            Some(length) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                let length = length
                    .parse()
                    .map_err(|_| invalid("its prefix length is no number up to 128"))?;
                Self::new(address, length)
            }
            Some(_) => Err(invalid("its prefix length is no number up to 128")),
        }
    }
}

/// A text or a pair that is not an address of a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address with prefix length: {reason}")]
pub struct InvalidAddress {
    /// What was given.
    pub text: Box<str>,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// An address of a link with all its settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LinkAddress {
    /// The address, its prefix length and its peer.
    #[doc(alias = "IFA_LOCAL")]
    pub key: AddressKey,
    /// How far the address is valid.
    pub scope: Scope,
    /// Flags. An address that is listed also has those that the kernel set, such as
    /// [`AddressFlags::PERMANENT`].
    #[doc(alias = "IFA_FLAGS")]
    pub flags: AddressFlags,
    /// IPv4 only: the name that old tools show. The kernel's own choice is the link's name, which
    /// is read as `None`.
    #[doc(alias = "IFA_LABEL")]
    pub label: Option<Label>,
    /// IPv4 only: the broadcast address of the prefix; `None` if there is none.
    #[doc(alias = "IFA_BROADCAST")]
    pub broadcast: Option<Ipv4Addr>,
    /// For how long the address is valid and preferred.
    #[doc(alias = "IFA_CACHEINFO")]
    pub lifetime: Lifetime,
    /// Metric of the prefix route; 0 is the kernel's own choice.
    #[doc(alias = "IFA_RT_PRIORITY")]
    pub metric: u32,
    /// Who added the address, for people to see (`ip address` prints it as `proto`); never compared
    /// here. Kernels before 5.18 ignore it, and it is then read as [`Owner::UNSPECIFIED`].
    #[doc(alias = "IFA_PROTO")]
    pub owner: Owner,
}

impl LinkAddress {
    /// An address with what suits a virtual IP: global scope, no broadcast address, for ever, and
    /// for IPv6 no duplicate address detection.
    pub fn new(key: AddressKey) -> Self {
        let flags = if key.address.is_ipv6() {
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
            owner: Owner::UNSPECIFIED,
        }
    }

    /// [`new`](Self::new) for an address for itself alone (`/32`, `/128`).
    ///
    /// # Errors
    /// [`InvalidAddress`] for the unspecified address.
    pub fn host(address: IpAddr) -> Result<Self, InvalidAddress> {
        AddressKey::host(address).map(Self::new)
    }

    /// Sets the scope.
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets all flags.
    pub fn with_flags(mut self, flags: AddressFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the label (IPv4).
    pub fn with_label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// Sets the broadcast address (IPv4).
    pub fn with_broadcast(mut self, broadcast: Ipv4Addr) -> Self {
        self.broadcast = Some(broadcast);
        self
    }

    /// Sets the lifetimes.
    pub fn with_lifetime(mut self, lifetime: Lifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Sets the metric of the prefix route.
    pub fn with_metric(mut self, metric: u32) -> Self {
        self.metric = metric;
        self
    }

    /// Sets the owner tag.
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }
}

/// As `ip address add` takes it, without the link.
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
        if self.owner != Owner::UNSPECIFIED {
            write!(f, " proto {}", self.owner)?;
        }
        if self.lifetime != Lifetime::FOREVER {
            write!(f, " {}", self.lifetime)?;
        }
        Ok(())
    }
}

/// The flags that `ip address add` takes, in its words.
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
        /// IPv4: another address of the prefix came first, and this one goes when that one goes
        /// (unless `promote_secondaries` is set). IPv6: a temporary address. Set by the kernel.
        #[doc(alias = "IFA_F_SECONDARY")]
        const SECONDARY = uapi::IFA_F_SECONDARY;
        /// IPv6: use at once, without asking the neighbours whether they have it.
        #[doc(alias = "IFA_F_NODAD")]
        const NO_DAD = uapi::IFA_F_NODAD;
        /// IPv6: use while still asking the neighbours.
        #[doc(alias = "IFA_F_OPTIMISTIC")]
        const OPTIMISTIC = uapi::IFA_F_OPTIMISTIC;
        /// IPv6: a neighbour has the address. Set by the kernel.
        #[doc(alias = "IFA_F_DADFAILED")]
        const DAD_FAILED = uapi::IFA_F_DADFAILED;
        /// IPv6: a mobile node's home address.
        #[doc(alias = "IFA_F_HOMEADDRESS")]
        const HOME_ADDRESS = uapi::IFA_F_HOMEADDRESS;
        /// Its preferred lifetime is over. Set by the kernel.
        #[doc(alias = "IFA_F_DEPRECATED")]
        const DEPRECATED = uapi::IFA_F_DEPRECATED;
        /// IPv6: the neighbours are still being asked. Set by the kernel.
        #[doc(alias = "IFA_F_TENTATIVE")]
        const TENTATIVE = uapi::IFA_F_TENTATIVE;
        /// Valid for ever. Set by the kernel.
        #[doc(alias = "IFA_F_PERMANENT")]
        const PERMANENT = uapi::IFA_F_PERMANENT;
        /// IPv6: the kernel makes temporary addresses from this prefix.
        #[doc(alias = "IFA_F_MANAGETEMPADDR")]
        const MANAGE_TEMPORARY = uapi::IFA_F_MANAGETEMPADDR;
        /// No route to the prefix comes with the address. The route that makes the address itself
        /// local always does.
        #[doc(alias = "IFA_F_NOPREFIXROUTE")]
        const NO_PREFIX_ROUTE = uapi::IFA_F_NOPREFIXROUTE;
        /// Join the multicast group of this address.
        #[doc(alias = "IFA_F_MCAUTOJOIN")]
        const MULTICAST_AUTO_JOIN = uapi::IFA_F_MCAUTOJOIN;
        /// IPv6: made by the kernel from a secret. Set by the kernel.
        #[doc(alias = "IFA_F_STABLE_PRIVACY")]
        const STABLE_PRIVACY = uapi::IFA_F_STABLE_PRIVACY;
        const _ = !0;
    }
}

/// How far an address is valid (`RT_SCOPE_*`). IPv6 ignores what is written and derives the scope
/// from the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// Everywhere.
    #[doc(alias = "RT_SCOPE_UNIVERSE")]
    #[doc(alias = "global")]
    Universe,
    /// Inside the site (IPv6, deprecated).
    #[doc(alias = "RT_SCOPE_SITE")]
    Site,
    /// On the link.
    #[doc(alias = "RT_SCOPE_LINK")]
    Link,
    /// On this host.
    #[doc(alias = "RT_SCOPE_HOST")]
    Host,
    /// Nowhere.
    #[doc(alias = "RT_SCOPE_NOWHERE")]
    Nowhere,
    /// A number without a name.
    Unknown(u8),
}

impl Scope {
    /// The kernel's number.
    pub fn number(self) -> u8 {
        match self {
            Scope::Universe => uapi::RT_SCOPE_UNIVERSE,
            Scope::Site => uapi::RT_SCOPE_SITE,
            Scope::Link => uapi::RT_SCOPE_LINK,
            Scope::Host => uapi::RT_SCOPE_HOST,
            Scope::Nowhere => uapi::RT_SCOPE_NOWHERE,
            Scope::Unknown(number) => number,
        }
    }
}

impl From<u8> for Scope {
    fn from(number: u8) -> Self {
        match number {
            uapi::RT_SCOPE_UNIVERSE => Scope::Universe,
            uapi::RT_SCOPE_SITE => Scope::Site,
            uapi::RT_SCOPE_LINK => Scope::Link,
            uapi::RT_SCOPE_HOST => Scope::Host,
            uapi::RT_SCOPE_NOWHERE => Scope::Nowhere,
            other => Scope::Unknown(other),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Universe => f.write_str("global"),
            Scope::Site => f.write_str("site"),
            Scope::Link => f.write_str("link"),
            Scope::Host => f.write_str("host"),
            Scope::Nowhere => f.write_str("nowhere"),
            Scope::Unknown(number) => number.fmt(f),
        }
    }
}

/// For how many seconds an address is valid and preferred; [`Lifetime::INFINITY`] is for ever.
///
/// When the preferred time is over the address is [deprecated](AddressFlags::DEPRECATED), when the
/// valid time is over it goes. A valid time of 0 is refused by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifetime {
    /// Seconds for which the address is valid.
    pub valid: u32,
    /// Seconds for which it is preferred, at most `valid`.
    pub preferred: u32,
}

impl Lifetime {
    /// The number that means "for ever" (`INFINITY_LIFE_TIME`).
    pub const INFINITY: u32 = u32::MAX;
    /// Valid and preferred for ever.
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

/// Who added an address: a number kept by the kernel since 5.18 for people to see.
#[doc(alias = "IFA_PROTO")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u8);

impl Owner {
    /// Nobody said.
    #[doc(alias = "IFAPROT_UNSPEC")]
    pub const UNSPECIFIED: Owner = Owner(0);
    /// The kernel, for the loopback link.
    #[doc(alias = "IFAPROT_KERNEL_LO")]
    pub const KERNEL_LOOPBACK: Owner = Owner(1);
    /// The kernel, from a router's announcement.
    #[doc(alias = "IFAPROT_KERNEL_RA")]
    pub const KERNEL_ROUTER: Owner = Owner(2);
    /// The kernel, as a link-local address.
    #[doc(alias = "IFAPROT_KERNEL_LL")]
    pub const KERNEL_LINK_LOCAL: Owner = Owner(3);
    /// kernlink: the letter `K`, a number that nobody else is known to use.
    pub const KERNLINK: Owner = Owner(b'K');
}

/// As `ip address` prints and takes it.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Owner::KERNEL_LOOPBACK => f.write_str("kernel_lo"),
            Owner::KERNEL_ROUTER => f.write_str("kernel_ra"),
            Owner::KERNEL_LINK_LOCAL => f.write_str("kernel_ll"),
            Owner(number) => write!(f, "{number:#x}"),
        }
    }
}

/// An address of the host, and the link it lies on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HostAddress {
    /// Name of the link.
    pub link: LinkName,
    /// Number of the link, unique in its network namespace.
    #[doc(alias = "ifindex")]
    pub link_index: u32,
    /// The address.
    pub address: LinkAddress,
}

impl HostAddress {
    /// An address on a link.
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
    fn a_key_reads_what_it_prints() {
        for text in [
            "192.0.2.1/32",
            "10.1.2.3/0",
            "2001:db8::1/64",
            "::ffff:1.2.3.4/128",
            "10.1.0.1 peer 10.1.0.2/32",
            "fd00::1 peer fd00::2/64",
        ] {
            assert_eq!(text.parse::<AddressKey>().unwrap().to_string(), text);
        }
        assert_eq!("192.0.2.1".parse::<AddressKey>().unwrap().prefix_length(), 32);
        assert_eq!("::1".parse::<AddressKey>().unwrap().prefix_length(), 128);
    }

    #[test]
    fn a_peer_equal_to_the_address_is_none() {
        let key: AddressKey = "10.1.0.1/32".parse().unwrap();
        assert_eq!(key.with_peer(key.address()), Ok(key));
        let error = key.with_peer("fd00::1".parse().unwrap()).unwrap_err();
        assert!(error.reason.contains("another address family"), "{error}");
    }

    #[test]
    fn a_key_says_what_is_wrong() {
        for (text, reason) in [
            ("192.0.2.1/33", "longer"),
            ("2001:db8::1/129", "longer"),
            ("192.0.2.1/256", "no number"),
            ("192.0.2.1/+8", "no number"),
            ("192.0.2.1/", "no number"),
            ("0.0.0.0/32", "unspecified"),
            ("::/128", "unspecified"),
            ("10.0.0.1 peer fd00::1/128", "another address family"),
            ("10.0.0.1 peer 0.0.0.0/32", "unspecified"),
            ("10.0.0.1 peer 10.0.0.2 peer 10.0.0.3/32", "two peers"),
            ("10.0.0.1/32 peer 10.0.0.2/32", "start with an address"),
            ("kube", "start with an address"),
            ("", "start with an address"),
        ] {
            let error = text.parse::<AddressKey>().unwrap_err();
            assert!(error.reason.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn an_address_prints_as_ip_address_add_takes_it() {
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
            .with_owner(Owner::KERNLINK);
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
