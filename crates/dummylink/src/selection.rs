//! Which addresses a listing holds.

use std::fmt;

use crate::LinkName;

/// Whose addresses to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Selection {
    /// Those of all links.
    All,
    /// Those of one link, of whatever kind.
    On(LinkName),
    /// Those of all links but one, which need not be there. An address that lies on that link and
    /// on another one is listed, for the other one.
    Except(LinkName),
}

impl Selection {
    /// Whether the addresses of a link are listed, by the first name of the link.
    pub fn includes(&self, link: &LinkName) -> bool {
        match self {
            Selection::All => true,
            Selection::On(name) => name == link,
            Selection::Except(name) => name != link,
        }
    }
}

/// As `ip` takes it, which cannot leave a link out.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selection::All => f.write_str("address show"),
            Selection::On(name) => write!(f, "address show dev {name}"),
            Selection::Except(name) => write!(f, "address show except dev {name}"),
        }
    }
}
