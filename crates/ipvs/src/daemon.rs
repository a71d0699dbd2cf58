//! Connection synchronization daemons, which send the connections of one director to others, so that these can take over.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::name::{InvalidName, ShortName};
use crate::uapi;

/// The role of a daemon. A network namespace has at most one daemon of each role.
#[doc(alias = "IPVS_DAEMON_ATTR_STATE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DaemonRole {
    /// Sends the connections of this host.
    #[doc(alias = "IP_VS_STATE_MASTER")]
    Master,
    /// Receives the connections of other hosts.
    #[doc(alias = "IP_VS_STATE_BACKUP")]
    Backup,
}

impl DaemonRole {
    /// The kernel's number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Master => uapi::IP_VS_STATE_MASTER,
            Self::Backup => uapi::IP_VS_STATE_BACKUP,
        }
    }

    /// The role with the kernel's number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            uapi::IP_VS_STATE_MASTER => Some(Self::Master),
            uapi::IP_VS_STATE_BACKUP => Some(Self::Backup),
            _ => None,
        }
    }
}

impl fmt::Display for DaemonRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Master => "master",
            Self::Backup => "backup",
        })
    }
}

/// The name of a network interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(ShortName);

impl InterfaceName {
    /// An interface name.
    ///
    /// # Errors
    /// The name is empty, is longer than 15 bytes, or contains white space or a control character.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        ShortName::new("interface", "IP_VS_IFNAME_MAXLEN", name).map(Self)
    }

    /// The name as a string slice.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InterfaceName({:?})", self.0)
    }
}

impl FromStr for InterfaceName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

/// A connection synchronization daemon and its configuration.
///
/// For a field that is `None` the kernel chooses the value. A listed daemon has all fields.
#[doc(alias = "--start-daemon")]
#[doc(alias = "IPVS_CMD_ATTR_DAEMON")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Daemon {
    /// The role.
    pub role: DaemonRole,
    /// The interface to send and receive on. It must exist, be up and have an address of the group's family.
    #[doc(alias = "IPVS_DAEMON_ATTR_MCAST_IFN")]
    #[doc(alias = "--mcast-interface")]
    pub interface: InterfaceName,
    /// Distinguishes groups of directors on one network: 0 to 255. A backup with 0 receives from all groups.
    #[doc(alias = "IPVS_DAEMON_ATTR_SYNC_ID")]
    #[doc(alias = "--syncid")]
    pub sync_id: u32,
    /// The largest UDP payload in bytes. With `None` (or 0) it is derived from a packet size by subtracting the headers (28 bytes
    /// with an IPv4 group, 48 bytes with an IPv6 group). The packet size is 1500 bytes for a master, and the interface's MTU, but
    /// 1500 to 65 535 bytes, for a backup. The kernel limits the value to what fits into a packet of 65 535 bytes, and raises the
    /// value of a backup to at least 1024. Since Linux 4.3.
    #[doc(alias = "IPVS_DAEMON_ATTR_SYNC_MAXLEN")]
    #[doc(alias = "--sync-maxlen")]
    pub max_length: Option<u16>,
    /// The multicast group, IPv4 or IPv6; `None` is 224.0.0.81. Since Linux 4.3.
    #[doc(alias = "IPVS_DAEMON_ATTR_MCAST_GROUP")]
    #[doc(alias = "IPVS_DAEMON_ATTR_MCAST_GROUP6")]
    #[doc(alias = "--mcast-group")]
    pub group: Option<IpAddr>,
    /// The first UDP port; `None` (or 0) is 8848. Since Linux 4.3.
    #[doc(alias = "IPVS_DAEMON_ATTR_MCAST_PORT")]
    #[doc(alias = "--mcast-port")]
    pub port: Option<u16>,
    /// Time to live or hop limit of what it sends; `None` (or 0) is 1. Since Linux 4.3.
    #[doc(alias = "IPVS_DAEMON_ATTR_MCAST_TTL")]
    #[doc(alias = "--mcast-ttl")]
    pub ttl: Option<u8>,
}

impl Daemon {
    /// A daemon with sync id 0. The kernel chooses group, port, time to live and payload size.
    #[must_use]
    pub fn new(role: DaemonRole, interface: InterfaceName) -> Self {
        Self {
            role,
            interface,
            sync_id: 0,
            max_length: None,
            group: None,
            port: None,
            ttl: None,
        }
    }

    /// Sets the sync id, 0 to 255.
    #[must_use]
    pub fn with_sync_id(mut self, sync_id: u32) -> Self {
        self.sync_id = sync_id;
        self
    }

    /// Sets the largest UDP payload, in bytes.
    #[must_use]
    pub fn with_max_length(mut self, max_length: u16) -> Self {
        self.max_length = Some(max_length);
        self
    }

    /// Sets the multicast group.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<IpAddr>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets the first UDP port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets the time to live.
    #[must_use]
    pub fn with_ttl(mut self, ttl: u8) -> Self {
        self.ttl = Some(ttl);
        self
    }
}
