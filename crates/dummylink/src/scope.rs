//! Scopes of addresses.

use std::fmt;

use crate::uapi;

/// Scope in which an address is valid (`RT_SCOPE_*`). For IPv6 the kernel ignores a given scope and derives it
/// from the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// Global.
    #[doc(alias = "RT_SCOPE_UNIVERSE")]
    #[doc(alias = "global")]
    Universe,
    /// The site (IPv6, deprecated).
    #[doc(alias = "RT_SCOPE_SITE")]
    Site,
    /// The link.
    #[doc(alias = "RT_SCOPE_LINK")]
    Link,
    /// This host.
    #[doc(alias = "RT_SCOPE_HOST")]
    Host,
    /// Nowhere.
    #[doc(alias = "RT_SCOPE_NOWHERE")]
    Nowhere,
    /// Another number.
    Unknown(u8),
}

impl Scope {
    /// The kernel's number.
    #[must_use]
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
