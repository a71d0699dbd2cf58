//! Flowtables.

use std::fmt;

use crate::table::TableKey;
use crate::wire::flags_field;

/// A flowtable: table and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct FlowtableKey {
    /// The table.
    pub table: TableKey,
    /// The name, at most 255 bytes.
    pub name: Box<str>,
}

impl FlowtableKey {
    /// The flowtable of this name.
    #[must_use]
    pub fn new(table: TableKey, name: impl Into<Box<str>>) -> Self {
        FlowtableKey {
            table,
            name: name.into(),
        }
    }
}

/// As in `nft` commands: `inet filter fast`.
impl fmt::Display for FlowtableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

bitflags::bitflags! {
    /// Flags of a flowtable.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlowtableFlags: u32 {
        /// The devices forward the packets (Linux 5.6).
        const HARDWARE_OFFLOAD = crate::uapi::NFT_FLOWTABLE_HW_OFFLOAD;
        /// Packets are counted in connection tracking (Linux 5.7).
        const COUNTER = crate::uapi::NFT_FLOWTABLE_COUNTER;
        const _ = !0;
    }
}

flags_field!(FlowtableFlags);

/// A flowtable: connections that a rule adds to it are forwarded at the ingress hook of its devices, without evaluation of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flowtable {
    /// Table and name.
    pub key: FlowtableKey,
    /// The hook; 0 is ingress, the only one.
    pub hook: u32,
    /// The priority in the hook.
    pub priority: i32,
    /// The devices.
    pub devices: Vec<Box<str>>,
    /// Flags.
    pub flags: FlowtableFlags,
    /// The kernel's number of the flowtable; only read.
    pub handle: Option<u64>,
    /// Number of rules that refer to it; only read.
    pub use_count: u32,
}

impl Flowtable {
    /// A flowtable at the ingress hook of these devices.
    #[must_use]
    pub fn new<T: Into<Box<str>>>(
        key: FlowtableKey,
        priority: i32,
        devices: impl IntoIterator<Item = T>,
    ) -> Self {
        Flowtable {
            key,
            hook: 0,
            priority,
            devices: devices.into_iter().map(Into::into).collect(),
            flags: FlowtableFlags::empty(),
            handle: None,
            use_count: 0,
        }
    }

    /// Sets the flags.
    #[must_use]
    pub fn with_flags(mut self, flags: FlowtableFlags) -> Self {
        self.flags = flags;
        self
    }
}
