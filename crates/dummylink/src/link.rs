//! Links: the dummy link that is wanted, and links as the kernel has them.

use std::fmt;

use crate::{LinkName, uapi};

/// A dummy link as it is wanted. What is `None` stays as it is, or as the kernel makes it.
#[doc(alias = "dummy")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DummyLink {
    /// Its name.
    pub name: LinkName,
    /// Up or down. A link that is created without this is down, which is enough for its addresses
    /// to be local to the host and keeps the kernel from adding a link-local IPv6 address.
    ///
    /// Setting a link down that was up deletes its IPv6 addresses and IPv6 routes (addresses unless the sysctl
    /// `net.ipv6.conf.LINK.keep_addr_on_down` keeps them); IPv4 stays. Addresses that are added while the link is
    /// down stay when it is set up.
    pub state: Option<LinkState>,
    /// Largest packet in bytes; a dummy link has 1500 unless set.
    ///
    /// A change to less than 1280 deletes the link's IPv6 addresses and IPv6 routes and a change to less than 68 its
    /// IPv4 addresses, and with these its IPv4 routes; the link then takes no new addresses of that family (`EINVAL` and
    /// `ENOBUFS`). Raising the MTU does not bring them back.
    #[doc(alias = "IFLA_MTU")]
    pub mtu: Option<u32>,
    /// Free text of at most 255 bytes for people to see; empty removes it.
    #[doc(alias = "IFLA_IFALIAS")]
    pub alias: Option<Box<str>>,
}

impl DummyLink {
    /// A dummy link of this name, down when it is created.
    pub fn new(name: LinkName) -> Self {
        DummyLink {
            name,
            state: None,
            mtu: None,
            alias: None,
        }
    }

    /// Wants it up or down.
    pub fn with_state(mut self, state: LinkState) -> Self {
        self.state = Some(state);
        self
    }

    /// Wants this MTU.
    pub fn with_mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Wants this alias.
    pub fn with_alias(mut self, alias: &str) -> Self {
        self.alias = Some(alias.into());
        self
    }

    /// Whether a link of the kernel has what is wanted here, and answers no ARP request.
    pub fn is_met_by(&self, link: &Link) -> bool {
        self.name == link.name && link.is_dummy() && self.has_its_settings(link)
    }

    /// The same of a link that was found by an alternative name.
    pub(crate) fn has_its_settings(&self, link: &Link) -> bool {
        link.flags.contains(LinkFlags::NO_ARP)
            && self.state.is_none_or(|state| state == link.state())
            && self.mtu.is_none_or(|mtu| mtu == link.mtu)
            && self
                .alias
                .as_deref()
                .is_none_or(|alias| alias == link.alias.as_deref().unwrap_or_default())
    }
}

/// As `ip link add` takes it, without what `ip` needs a second command for.
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
    /// Off.
    Down,
    /// On.
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

/// A link as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Link {
    /// Its number, unique in the network namespace and never 0.
    #[doc(alias = "ifindex")]
    pub index: u32,
    /// Its name.
    pub name: LinkName,
    /// Its kind, such as `dummy` or `veth`; `None` for hardware and the loopback link.
    #[doc(alias = "IFLA_INFO_KIND")]
    pub kind: Option<Box<str>>,
    /// Its flags.
    pub flags: LinkFlags,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Free text that somebody gave it.
    pub alias: Option<Box<str>>,
}

impl Link {
    /// The kind that this crate manages.
    pub const DUMMY: &str = "dummy";

    /// A link without flags, of the usual MTU.
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
    pub fn is_dummy(&self) -> bool {
        self.kind.as_deref() == Some(Self::DUMMY)
    }

    /// Whether it is administratively up.
    pub fn state(&self) -> LinkState {
        if self.flags.contains(LinkFlags::UP) {
            LinkState::Up
        } else {
            LinkState::Down
        }
    }
}

/// One line, in the manner of `ip link`.
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
        /// Has a broadcast address.
        #[doc(alias = "IFF_BROADCAST")]
        const BROADCAST = uapi::IFF_BROADCAST;
        /// The loopback link.
        #[doc(alias = "IFF_LOOPBACK")]
        const LOOPBACK = uapi::IFF_LOOPBACK;
        /// Has one neighbour.
        #[doc(alias = "IFF_POINTOPOINT")]
        const POINT_TO_POINT = uapi::IFF_POINTOPOINT;
        /// Can carry packets now.
        #[doc(alias = "IFF_RUNNING")]
        const RUNNING = uapi::IFF_RUNNING;
        /// Asks and answers no ARP requests and does no neighbour discovery.
        #[doc(alias = "IFF_NOARP")]
        const NO_ARP = uapi::IFF_NOARP;
        /// Receives what is not for it.
        #[doc(alias = "IFF_PROMISC")]
        const PROMISCUOUS = uapi::IFF_PROMISC;
        /// Receives all multicast.
        #[doc(alias = "IFF_ALLMULTI")]
        const ALL_MULTICAST = uapi::IFF_ALLMULTI;
        /// Can send multicast.
        #[doc(alias = "IFF_MULTICAST")]
        const MULTICAST = uapi::IFF_MULTICAST;
        /// Has a carrier.
        #[doc(alias = "IFF_LOWER_UP")]
        const LOWER_UP = uapi::IFF_LOWER_UP;
        const _ = !0;
    }
}
