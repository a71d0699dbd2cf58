//! The identity of what one operation of userspace mode changes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use kernlink_engine::data_path::Class;
use kernlink_iptables_restore::Table;
use kernlink_services::Family;

use super::chains::PortalChain;
use crate::proxy::{ListenerKey, Transport};

/// What one operation changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Key {
    /// A listening port.
    Listener(ListenerKey),
    /// A port that is kept free of other programs.
    Claim(ListenerKey),
    /// The portal chains of a table and the jumps to them.
    Chains(Family, Table),
    /// Rules.
    Rules(RulesKey),
    /// The stale UDP flows of a family in connection tracking. Not a table: there are too many to hold.
    Flows(Family),
}

/// Rules that are written together: those of one address and port, or those about one listening port. A rule is replaced in the write that adds
/// its successor, so that the kernel has either of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RulesKey {
    /// The family.
    pub family: Family,
    /// Which rules.
    pub part: Part,
    /// The protocol that they match.
    pub transport: Transport,
    /// The address that they match; `None`: every address.
    pub address: Option<IpAddr>,
    /// The port that they match: that of the frontend, or the listening port; 0 for rules that this data path does not write.
    pub port: u16,
}

/// Which rules. Each part is in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Those that admit or drop what was led to a listening port.
    Admission,
    /// Those of cluster IPs, external IPs and load-balancer IPs.
    Portals,
    /// Those of node ports.
    NodePorts,
}

impl Part {
    /// The part to which the rules of a chain belong.
    #[must_use]
    pub fn of(chain: PortalChain) -> Self {
        match chain {
            PortalChain::PortalsContainer | PortalChain::PortalsHost => Part::Portals,
            PortalChain::NodeportContainer | PortalChain::NodeportHost => Part::NodePorts,
            PortalChain::NodeportNonLocal => Part::Admission,
        }
    }

    /// The table of the chains.
    #[must_use]
    pub fn table(self) -> Table {
        match self {
            Part::Admission => Table::Filter,
            Part::Portals | Part::NodePorts => Table::Nat,
        }
    }
}

impl Key {
    pub(super) fn class(&self) -> Class {
        let (kind, family, is_shared) = match self {
            Key::Listener(key) => ("listener", Some(Family::of(key.address.ip())), false),
            Key::Claim(key) => ("claim", Some(Family::of(key.address.ip())), false),
            Key::Chains(family, _) => ("chains", Some(*family), true),
            Key::Rules(key) => ("rules", Some(key.family), false),
            Key::Flows(family) => ("flows", Some(*family), false),
        };
        Class {
            kind,
            family,
            is_shared,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Listener(key) => write!(f, "listener {key}"),
            Key::Claim(key) => write!(f, "claim {key}"),
            Key::Chains(family, table) => write!(f, "{family} chains in table {table}"),
            Key::Rules(key) => key.fmt(f),
            Key::Flows(family) => write!(f, "stale {family} UDP flows"),
        }
    }
}

impl fmt::Display for RulesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Admission => "admission rules",
            Part::Portals => "portal rules",
            Part::NodePorts => "node-port rules",
        };
        write!(f, "{} {part} of {} ", self.family, self.transport)?;
        match self.address {
            Some(address) => SocketAddr::new(address, self.port).fmt(f),
            None => write!(f, "port {}", self.port),
        }
    }
}
