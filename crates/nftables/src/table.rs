//! Tables.

use std::fmt;

use crate::table_family::TableFamily;
use crate::user_data::{self, UserData};
use crate::wire::flags_field;

/// A table: family and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct TableKey {
    /// The family.
    pub family: TableFamily,
    /// The name, at most 255 bytes.
    pub name: Box<str>,
}

impl TableKey {
    /// The table of this name.
    #[must_use]
    pub fn new(family: impl Into<TableFamily>, name: impl Into<Box<str>>) -> Self {
        TableKey {
            family: family.into(),
            name: name.into(),
        }
    }

    /// A chain in the table.
    #[must_use]
    pub fn chain(&self, name: impl Into<Box<str>>) -> crate::ChainKey {
        crate::ChainKey::new(self.clone(), name)
    }

    /// A set or map in the table.
    #[must_use]
    pub fn set(&self, name: impl Into<Box<str>>) -> crate::SetKey {
        crate::SetKey::new(self.clone(), name)
    }
}

/// As in `nft` commands: `ip filter`.
impl fmt::Display for TableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

bitflags::bitflags! {
    /// Flags of a table.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TableFlags: u32 {
        /// Its base chains are not registered: no packet reaches them.
        const DORMANT = crate::uapi::NFT_TABLE_F_DORMANT;
        /// Only the socket that made it may change it, and it is deleted when the socket is closed (Linux 5.12).
        const OWNER = crate::uapi::NFT_TABLE_F_OWNER;
        /// It remains when the socket of its owner is closed (Linux 6.9).
        const PERSIST = crate::uapi::NFT_TABLE_F_PERSIST;
        const _ = !0;
    }
}

flags_field!(TableFlags);

/// A table, which contains all other objects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// Family and name.
    pub key: TableKey,
    /// Flags.
    pub flags: TableFlags,
    /// User data.
    pub user_data: UserData,
    /// The kernel's number of the table; only read.
    pub handle: Option<u64>,
    /// Number of chains, sets, objects and flowtables; only read.
    pub use_count: u32,
    /// The netlink port of the socket that owns it; only read.
    pub owner: Option<u32>,
}

impl Table {
    /// A table without flags.
    #[must_use]
    pub fn new(key: TableKey) -> Self {
        Table {
            key,
            flags: TableFlags::empty(),
            user_data: UserData::new(),
            handle: None,
            use_count: 0,
            owner: None,
        }
    }

    /// Sets the flags.
    #[must_use]
    pub fn with_flags(mut self, flags: TableFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Adds a comment, of at most 128 bytes for `nft`. One of more than 254 bytes is not added.
    #[must_use]
    pub fn with_comment(mut self, comment: &str) -> Self {
        self.user_data.push_text(user_data::COMMENT, comment);
        self
    }

    /// The comment.
    #[must_use]
    pub fn comment(&self) -> Option<&str> {
        self.user_data.text(user_data::COMMENT)
    }

    /// What was configured, without handle, use count and owner.
    #[must_use]
    pub fn configuration(mut self) -> Self {
        self.handle = None;
        self.use_count = 0;
        self.owner = None;
        self
    }
}
