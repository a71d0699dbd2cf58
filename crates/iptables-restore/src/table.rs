//! Tables, their built-in chains, policies and counters.

use std::fmt;
use std::str::FromStr;

use crate::chain::ChainName;
use crate::error::Error;

/// A table. A restore is atomic for each table, not across tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// `raw`: before connection tracking.
    Raw,
    /// `mangle`: changes of packets and marks.
    Mangle,
    /// `nat`: address translation; sees the first packet of a flow.
    Nat,
    /// `filter`: accepts and drops packets; the default table of `iptables`.
    Filter,
    /// `security`: mandatory access control.
    Security,
}

impl Table {
    /// All tables, in the order in which a packet passes them at a hook.
    pub const ALL: &[Table] = &[
        Table::Raw,
        Table::Mangle,
        Table::Nat,
        Table::Filter,
        Table::Security,
    ];

    /// The name after `*` in restore text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Table::Raw => "raw",
            Table::Mangle => "mangle",
            Table::Nat => "nat",
            Table::Filter => "filter",
            Table::Security => "security",
        }
    }

    /// Names of the built-in chains, in the order in which `iptables-legacy-save` prints them. They cannot be created or deleted.
    ///
    /// Source: `valid_hooks` of the tables in `net/ipv4/netfilter/iptable_*.c`, Linux 6.1.
    #[must_use]
    pub fn builtin_chains(self) -> &'static [&'static str] {
        match self {
            Table::Raw => &["PREROUTING", "OUTPUT"],
            Table::Mangle => &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
            Table::Nat => &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"],
            Table::Filter | Table::Security => &["INPUT", "FORWARD", "OUTPUT"],
        }
    }

    /// Whether `chain` is one of [`builtin_chains`](Self::builtin_chains).
    #[must_use]
    pub fn is_builtin(self, chain: &ChainName) -> bool {
        self.builtin_chains().contains(&chain.as_str())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Table {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Table::ALL
            .iter()
            .copied()
            .find(|table| table.as_str() == text)
            .ok_or_else(|| Error::invalid("table", text, "expected raw, mangle, nat, filter or security"))
    }
}

/// What happens to a packet that reaches the end of a built-in chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// It is accepted.
    Accept,
    /// It is dropped.
    Drop,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Accept => "ACCEPT",
            Policy::Drop => "DROP",
        })
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "ACCEPT" => Ok(Policy::Accept),
            "DROP" => Ok(Policy::Drop),
            _ => Err(Error::invalid("policy", text, "expected ACCEPT or DROP")),
        }
    }
}

/// Packets and bytes that matched a rule or reached a policy, printed as `[packets:bytes]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Counters {
    /// Packets since the rule was added or the counter was reset.
    pub packets: u64,
    /// Bytes of these packets, including the IP header.
    pub bytes: u64,
}

impl Counters {
    /// Counters with these values.
    #[must_use]
    pub fn new(packets: u64, bytes: u64) -> Self {
        Counters { packets, bytes }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}:{}]", self.packets, self.bytes)
    }
}

impl FromStr for Counters {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::invalid("counters", text, "expected [packets:bytes]");
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let (packets, bytes) = inner.and_then(|pair| pair.split_once(':')).ok_or_else(invalid)?;
        Ok(Counters {
            packets: packets.parse().map_err(|_| invalid())?,
            bytes: bytes.parse().map_err(|_| invalid())?,
        })
    }
}
