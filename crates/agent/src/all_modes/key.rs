//! The identity of what one operation changes, in any mode.

use std::fmt;

use kernlink_proxier::any_mode::{self, AnyMode};
use kernlink_proxier::data_path::Class;
use kernlink_proxier::{DataPath, ipvs_mode};
use kernlink_userspace::{UserspaceMode, data_path as userspace};

/// What one operation changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// An object of iptables or IPVS mode.
    InKernel(any_mode::Key),
    /// An object of userspace mode.
    Userspace(userspace::Key),
    /// What another mode left, apart from IPVS mode, whose objects have keys of their own.
    Leftovers,
}

impl Key {
    pub(super) fn class(&self) -> Class {
        match self {
            Key::InKernel(key) => AnyMode::class(key),
            Key::Userspace(key) => UserspaceMode::class(key),
            Key::Leftovers => Class {
                kind: "leftovers",
                family: None,
                is_shared: false,
            },
        }
    }
}

/// Those of iptables and IPVS mode.
pub(super) fn in_kernel(keys: &[Key]) -> Vec<any_mode::Key> {
    let of_mode = |key: &Key| match key {
        Key::InKernel(key) => Some(key.clone()),
        _ => None,
    };
    keys.iter().filter_map(of_mode).collect()
}

/// Those of IPVS mode.
pub(super) fn ipvs(keys: &[Key]) -> Vec<ipvs_mode::Key> {
    let of_mode = |key: &Key| match key {
        Key::InKernel(any_mode::Key::Ipvs(key)) => Some(key.clone()),
        _ => None,
    };
    keys.iter().filter_map(of_mode).collect()
}

/// Those of userspace mode.
pub(super) fn userspace(keys: &[Key]) -> Vec<userspace::Key> {
    let of_mode = |key: &Key| match key {
        Key::Userspace(key) => Some(key.clone()),
        _ => None,
    };
    keys.iter().filter_map(of_mode).collect()
}

impl From<any_mode::Key> for Key {
    fn from(key: any_mode::Key) -> Self {
        Key::InKernel(key)
    }
}

impl From<ipvs_mode::Key> for Key {
    fn from(key: ipvs_mode::Key) -> Self {
        Key::InKernel(key.into())
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
            Key::InKernel(key) => key.fmt(f),
            Key::Userspace(key) => key.fmt(f),
            Key::Leftovers => f.write_str("objects of another mode"),
        }
    }
}
