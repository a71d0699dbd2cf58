//! Links.

use std::fmt;

use crate::{Error, LinkName, uapi};

/// Desired state of a dummy link. `None` leaves an existing link unchanged, and uses the kernel's default for a new one.
#[doc(alias = "dummy")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DummyLink {
    /// Name.
    pub name: LinkName,
    /// Up or down. Default of a new link: down. Its addresses are local to the host also while it is down,
    /// and the kernel then adds no link-local IPv6 address.
    ///
    /// Changing a link from up to down deletes its IPv6 addresses and IPv6 routes (not the addresses if the sysctl
    /// `net.ipv6.conf.LINK.keep_addr_on_down` is set), but not IPv4. Addresses that are added while the link is
    /// down remain when it is set up.
    pub state: Option<LinkState>,
    /// MTU in bytes. Default of a new link: 1500.
    ///
    /// A change to less than 1280 deletes the link's IPv6 addresses and IPv6 routes and a change to less than 68 its
    /// IPv4 addresses, and with these its IPv4 routes; the kernel then refuses new addresses of that family (`EINVAL` for IPv6,
    /// `ENOBUFS` for IPv4). Increasing the MTU does not restore them.
    #[doc(alias = "IFLA_MTU")]
    pub mtu: Option<u32>,
    /// Free text of at most 255 bytes; empty removes it.
    #[doc(alias = "IFLA_IFALIAS")]
    pub alias: Option<Box<str>>,
}

impl DummyLink {
    /// A dummy link of this name with the kernel's defaults.
    #[must_use]
    pub fn new(name: LinkName) -> Self {
        DummyLink {
            name,
            state: None,
            mtu: None,
            alias: None,
        }
    }

    /// Sets the state.
    #[must_use]
    pub fn with_state(mut self, state: LinkState) -> Self {
        self.state = Some(state);
        self
    }

    /// Sets the MTU in bytes.
    #[must_use]
    pub fn with_mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Sets the alias.
    #[must_use]
    pub fn with_alias(mut self, alias: &str) -> Self {
        self.alias = Some(alias.into());
        self
    }

    /// Whether the kernel's link has this name and the desired state, MTU and alias, is a dummy link, and has `IFF_NOARP`.
    #[must_use]
    pub fn is_satisfied_by(&self, link: &Link) -> bool {
        self.name == link.name && link.is_dummy() && self.has_same_settings(link)
    }

    /// [`is_satisfied_by`](Self::is_satisfied_by) without the name and the kind, for a link that was found by an alternative name.
    pub(crate) fn has_same_settings(&self, link: &Link) -> bool {
        link.flags.contains(LinkFlags::NO_ARP)
            && self.state.is_none_or(|state| state == link.state())
            && self.mtu.is_none_or(|mtu| mtu == link.mtu)
            && self
                .alias
                .as_deref()
                .is_none_or(|alias| alias == link.alias.as_deref().unwrap_or_default())
    }
}

/// As the arguments of `ip link add`.
impl fmt::Display for DummyLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)?;
        if let Some(mtu) = self.mtu {
            write!(f, " mtu {mtu}")?;
        }
        if let Some(alias) = &self.alias {
            write!(f, " alias {alias:?}")?;
        }
        match self.state {
            Some(state) => write!(f, " {state}"),
            None => Ok(()),
        }
    }
}

/// Whether a link is administratively up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkState {
    /// Down.
    Down,
    /// Up.
    Up,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkState::Down => "down",
            LinkState::Up => "up",
        })
    }
}

/// A link of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Link {
    /// Index, unique in the network namespace and never 0.
    #[doc(alias = "ifindex")]
    pub index: u32,
    /// Name.
    pub name: LinkName,
    /// Kind, such as `dummy` or `veth`; `None` for hardware and the loopback link.
    #[doc(alias = "IFLA_INFO_KIND")]
    pub kind: Option<Box<str>>,
    /// Flags.
    pub flags: LinkFlags,
    /// MTU in bytes.
    pub mtu: u32,
    /// Free text; `None` if it has none.
    pub alias: Option<Box<str>>,
}

impl Link {
    /// The kind of dummy links.
    pub const DUMMY: &str = "dummy";

    /// A link without flags and with MTU 1500.
    pub fn new(index: u32, name: LinkName, kind: Option<&str>) -> Self {
        Link {
            index,
            name,
            kind: kind.map(Into::into),
            flags: LinkFlags::empty(),
            mtu: 1500,
            alias: None,
        }
    }

    /// Whether it is a dummy link.
    #[must_use]
    pub fn is_dummy(&self) -> bool {
        self.kind.as_deref() == Some(Self::DUMMY)
    }

    /// Fails with [`Error::WrongKind`] unless this link, found by `name`, is a dummy link.
    pub(crate) fn check_is_dummy(&self, name: &LinkName, operation: impl ToString) -> Result<(), Error> {
        if self.is_dummy() {
            return Ok(());
        }
        Err(Error::WrongKind {
            operation: operation.to_string().into(),
            link: *name,
            kind: self.kind.as_deref().unwrap_or("(none)").into(),
        })
    }

    /// Whether it is administratively up.
    #[must_use]
    pub fn state(&self) -> LinkState {
        if self.flags.contains(LinkFlags::UP) {
            LinkState::Up
        } else {
            LinkState::Down
        }
    }
}

/// One line, similar to `ip link`.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} mtu {} {}",
            self.index,
            self.name,
            self.mtu,
            self.state()
        )?;
        if let Some(kind) = &self.kind {
            write!(f, " {kind}")?;
        }
        match &self.alias {
            Some(alias) => write!(f, " alias {alias:?}"),
            None => Ok(()),
        }
    }
}

bitflags::bitflags! {
    /// Flags of a link (`IFF_*`). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct LinkFlags: u32 {
        /// Administratively up.
        #[doc(alias = "IFF_UP")]
        const UP = uapi::IFF_UP;
        /// Supports broadcast.
        #[doc(alias = "IFF_BROADCAST")]
        const BROADCAST = uapi::IFF_BROADCAST;
        /// The loopback link.
        #[doc(alias = "IFF_LOOPBACK")]
        const LOOPBACK = uapi::IFF_LOOPBACK;
        /// Point-to-point link.
        #[doc(alias = "IFF_POINTOPOINT")]
        const POINT_TO_POINT = uapi::IFF_POINTOPOINT;
        /// Operational: can transmit packets.
        #[doc(alias = "IFF_RUNNING")]
        const RUNNING = uapi::IFF_RUNNING;
        /// Uses neither ARP nor neighbour discovery.
        #[doc(alias = "IFF_NOARP")]
        const NO_ARP = uapi::IFF_NOARP;
        /// Receives all packets (promiscuous mode).
        #[doc(alias = "IFF_PROMISC")]
        const PROMISCUOUS = uapi::IFF_PROMISC;
        /// Receives all multicast.
        #[doc(alias = "IFF_ALLMULTI")]
        const ALL_MULTICAST = uapi::IFF_ALLMULTI;
        /// Supports multicast.
        #[doc(alias = "IFF_MULTICAST")]
        const MULTICAST = uapi::IFF_MULTICAST;
        /// Has a carrier.
        #[doc(alias = "IFF_LOWER_UP")]
        const LOWER_UP = uapi::IFF_LOWER_UP;
        const _ = !0;
    }
}
