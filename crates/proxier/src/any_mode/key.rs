//! The identity of a kernel object of either mode.

use std::fmt;

use crate::{iptables_mode, ipvs_mode};

/// A kernel object of either mode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Key {
    /// An object of IPVS mode.
    Ipvs(ipvs_mode::Key),
    /// An object of iptables mode.
    Iptables(iptables_mode::Key),
}

/// Those of IPVS mode.
pub(super) fn ipvs(keys: &[Key]) -> Vec<ipvs_mode::Key> {
    let of_mode = |key: &Key| match key {
        Key::Ipvs(key) => Some(key.clone()),
        Key::Iptables(_) => None,
    };
    keys.iter().filter_map(of_mode).collect()
}

/// Those of iptables mode.
pub(super) fn iptables(keys: &[Key]) -> Vec<iptables_mode::Key> {
    let of_mode = |key: &Key| match key {
        Key::Iptables(key) => Some(key.clone()),
        Key::Ipvs(_) => None,
    };
    keys.iter().filter_map(of_mode).collect()
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

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Ipvs(key) => key.fmt(f),
            Key::Iptables(key) => key.fmt(f),
        }
    }
}
