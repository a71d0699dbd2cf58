//! Chains.

use std::fmt;

use crate::expression::Counter;
use crate::table::TableKey;
use crate::table_family::TableFamily;
use crate::user_data::{self, UserData};
use crate::wire::{flags_field, open_enum};

/// A chain: table and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct ChainKey {
    /// The table.
    pub table: TableKey,
    /// The name, at most 255 bytes.
    pub name: Box<str>,
}

impl ChainKey {
    /// The chain of this name.
    #[must_use]
    pub fn new(table: TableKey, name: impl Into<Box<str>>) -> Self {
        ChainKey {
            table,
            name: name.into(),
        }
    }
}

/// As in `nft` commands: `ip filter input`.
impl fmt::Display for ChainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

bitflags::bitflags! {
    /// Flags of a chain.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ChainFlags: u32 {
        /// It is a base chain; the kernel sets it.
        const BASE = crate::uapi::NFT_CHAIN_BASE;
        /// Its rules are evaluated by the device.
        const HARDWARE_OFFLOAD = crate::uapi::NFT_CHAIN_HW_OFFLOAD;
        /// It belongs to the rule that jumps to it, has no name that the user chose, and is deleted with the rule (Linux 5.9).
        const BINDING = crate::uapi::NFT_CHAIN_BINDING;
        const _ = !0;
    }
}

flags_field!(ChainFlags);

/// The type of a base chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ChainType {
    /// Sees every packet.
    Filter,
    /// Sees the first packet of each connection, and may translate addresses.
    Nat,
    /// As filter in the output hook; packets whose routing may have changed are routed again.
    Route,
    /// Another one.
    Other(Box<str>),
}

impl ChainType {
    /// The name in the kernel.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
            ChainType::Route => "route",
            ChainType::Other(name) => name,
        }
    }
}

impl From<&str> for ChainType {
    fn from(name: &str) -> Self {
        match name {
            "filter" => ChainType::Filter,
            "nat" => ChainType::Nat,
            "route" => ChainType::Route,
            name => ChainType::Other(name.into()),
        }
    }
}

/// The hook at which a base chain is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Hook {
    /// Before routing.
    Prerouting,
    /// To the local host.
    Input,
    /// Routed to another host.
    Forward,
    /// From the local host.
    Output,
    /// After routing.
    Postrouting,
    /// Received by a device; families netdev and inet.
    Ingress,
    /// Sent by a device; family netdev (Linux 5.16).
    Egress,
    /// Another number.
    Unknown(u32),
}

impl Hook {
    /// The number in the kernel, which depends on the family.
    #[must_use]
    pub fn number(self, family: TableFamily) -> u32 {
        match (family, self) {
            (_, Hook::Unknown(number)) => number,
            (TableFamily::Netdev, Hook::Ingress) | (TableFamily::Arp, Hook::Input) => 0,
            (TableFamily::Netdev, Hook::Egress) | (TableFamily::Arp, Hook::Output) => 1,
            (_, Hook::Prerouting) => 0,
            (_, Hook::Input) => 1,
            (_, Hook::Forward) => 2,
            (_, Hook::Output) => 3,
            (_, Hook::Postrouting) => 4,
            (_, Hook::Ingress) => 5,
            // No other family has this hook: the kernel refuses it.
            (_, Hook::Egress) => u32::MAX,
        }
    }

    /// The hook of a number in the kernel.
    #[must_use]
    pub fn from_number(family: TableFamily, number: u32) -> Self {
        match (family, number) {
            (TableFamily::Netdev, 0) => Hook::Ingress,
            (TableFamily::Netdev, 1) => Hook::Egress,
            (TableFamily::Arp, 0) => Hook::Input,
            (TableFamily::Arp, 1) => Hook::Output,
            (TableFamily::Netdev, number) => Hook::Unknown(number),
            (_, 0) => Hook::Prerouting,
            (_, 1) => Hook::Input,
            (_, 2) => Hook::Forward,
            (_, 3) => Hook::Output,
            (_, 4) => Hook::Postrouting,
            (TableFamily::Inet, 5) => Hook::Ingress,
            (_, number) => Hook::Unknown(number),
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hook::Prerouting => f.pad("prerouting"),
            Hook::Input => f.pad("input"),
            Hook::Forward => f.pad("forward"),
            Hook::Output => f.pad("output"),
            Hook::Postrouting => f.pad("postrouting"),
            Hook::Ingress => f.pad("ingress"),
            Hook::Egress => f.pad("egress"),
            Hook::Unknown(number) => write!(f, "{number}"),
        }
    }
}

open_enum! {
    /// What happens to a packet for which no rule of a base chain decided.
    Policy: u32 {
        /// It is dropped.
        Drop = NF_DROP_POLICY "drop",
        /// It continues.
        Accept = NF_ACCEPT_POLICY "accept",
    }
}

/// Where a base chain is evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BaseChain {
    /// The type.
    pub chain_type: ChainType,
    /// The hook.
    pub hook: Hook,
    /// Chains of a hook are evaluated in the order of their priorities, the lowest first.
    pub priority: i32,
    /// What happens to packets that reach the end. `None` when written: unchanged, or accept for a new chain.
    pub policy: Option<Policy>,
    /// The devices, for ingress and egress.
    pub devices: Vec<Box<str>>,
    /// Packets and bytes that reached the end, of chains with such a counter.
    pub counter: Option<Counter>,
}

impl BaseChain {
    /// Priority of destination NAT in the hooks prerouting and output.
    pub const DSTNAT: i32 = -100;
    /// Priority of filters.
    pub const FILTER: i32 = 0;
    /// Priority of source NAT in the hook postrouting.
    pub const SRCNAT: i32 = 100;

    /// A base chain with the policy accept.
    #[must_use]
    pub fn new(chain_type: ChainType, hook: Hook, priority: i32) -> Self {
        BaseChain {
            chain_type,
            hook,
            priority,
            policy: Some(Policy::Accept),
            devices: Vec::new(),
            counter: None,
        }
    }

    /// Sets the policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets the devices.
    #[must_use]
    pub fn with_devices<T: Into<Box<str>>>(mut self, devices: impl IntoIterator<Item = T>) -> Self {
        self.devices = devices.into_iter().map(Into::into).collect();
        self
    }
}

/// A chain, which contains rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chain {
    /// Table and name.
    pub key: ChainKey,
    /// Where it is evaluated; `None` for a regular chain, which is reached only by jumps.
    pub base: Option<BaseChain>,
    /// Flags.
    pub flags: ChainFlags,
    /// User data.
    pub user_data: UserData,
    /// The kernel's number of the chain; only read.
    pub handle: Option<u64>,
    /// Number of rules in it and of jumps to it; only read.
    pub use_count: u32,
}

impl Chain {
    /// A regular chain.
    #[must_use]
    pub fn new(key: ChainKey) -> Self {
        Chain {
            key,
            base: None,
            flags: ChainFlags::empty(),
            user_data: UserData::new(),
            handle: None,
            use_count: 0,
        }
    }

    /// Makes it a base chain.
    #[must_use]
    pub fn with_base(mut self, base: BaseChain) -> Self {
        self.base = Some(base);
        self
    }

    /// Sets the flags.
    #[must_use]
    pub fn with_flags(mut self, flags: ChainFlags) -> Self {
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

    /// What was configured, without handle, use count, counter and the flag that the kernel sets.
    #[must_use]
    pub fn configuration(mut self) -> Self {
        self.handle = None;
        self.use_count = 0;
        self.flags.remove(ChainFlags::BASE);
        if let Some(base) = &mut self.base {
            base.counter = None;
        }
        self
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.flags.contains(ChainFlags::BINDING)
    }
}
