//! Selection of addresses to list.

use std::fmt;

use crate::LinkName;

/// The links whose addresses are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Selection {
    /// All links.
    All,
    /// One link, of any kind.
    On(LinkName),
    /// All links except one, which does not have to exist. An address that is on that link and
    /// on another one is listed for the other one.
    Except(LinkName),
}

impl Selection {
    /// Whether the addresses of a link are listed. `link` is its first name.
    #[must_use]
    pub fn includes(&self, link: &LinkName) -> bool {
        match self {
            Selection::All => true,
            Selection::On(name) => name == link,
            Selection::Except(name) => name != link,
        }
    }
}

/// As the arguments of `ip`, which does not support `except`.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selection::All => f.write_str("address show"),
            Selection::On(name) => write!(f, "address show dev {name}"),
            Selection::Except(name) => write!(f, "address show except dev {name}"),
        }
    }
}
