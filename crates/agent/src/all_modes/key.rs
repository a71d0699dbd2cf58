//! The identity of what one operation changes, in any mode.

use std::fmt;

use kernlink_proxier::DataPath;
use kernlink_proxier::data_path::Class;
use kernlink_proxier::iptables_mode::{self, IptablesMode};
use kernlink_proxier::ipvs_mode::{self, IpvsMode};
use kernlink_userspace::{UserspaceMode, data_path as userspace};

/// What one operation changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// An object of IPVS mode.
    Ipvs(ipvs_mode::Key),
    /// An object of iptables mode.
    Iptables(iptables_mode::Key),
    /// An object of userspace mode.
    Userspace(userspace::Key),
    /// What another mode left, apart from IPVS mode, whose objects have keys of their own.
    Leftovers,
}

impl Key {
    pub(super) fn class(&self) -> Class {
        match self {
            Key::Ipvs(key) => IpvsMode::class(key),
            Key::Iptables(key) => IptablesMode::class(key),
            Key::Userspace(key) => UserspaceMode::class(key),
            Key::Leftovers => Class {
                kind: "leftovers",
                family: None,
                is_shared: false,
            },
        }
    }

    pub(super) fn consequence(&self) -> Option<&'static str> {
        match self {
            Key::Ipvs(key) => IpvsMode::consequence(key),
            Key::Iptables(key) => IptablesMode::consequence(key),
            Key::Userspace(key) => UserspaceMode::consequence(key),
            Key::Leftovers => None,
        }
    }
}

impl From<ipvs_mode::Key> for Key {
    fn from(key: ipvs_mode::Key) -> Self {
        Key::Ipvs(key)
    }
}

impl From<iptables_mode::Key> for Key {
    fn from(key: iptables_mode::Key) -> Self {
        Key::Iptables(key)
    }
}

impl From<userspace::Key> for Key {
    fn from(key: userspace::Key) -> Self {
        Key::Userspace(key)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Ipvs(key) => key.fmt(f),
            Key::Iptables(key) => key.fmt(f),
            Key::Userspace(key) => key.fmt(f),
            Key::Leftovers => f.write_str("objects of another mode"),
        }
    }
}
