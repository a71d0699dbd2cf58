//! `Operation`: one change in any mode, and the order of the phases.

use std::fmt;

use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_userspace::data_path as userspace;

use super::removal::Removal;

/// A change in any mode.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// An operation of IPVS mode.
    Ipvs(ipvs_mode::Operation),
    /// An operation of iptables mode.
    Iptables(iptables_mode::Operation),
    /// An operation of userspace mode.
    Userspace(userspace::Operation),
    /// Removes what another mode left.
    RemoveLeftovers(Box<Removal>),
}

impl From<ipvs_mode::Operation> for Operation {
    fn from(operation: ipvs_mode::Operation) -> Self {
        Operation::Ipvs(operation)
    }
}

impl From<iptables_mode::Operation> for Operation {
    fn from(operation: iptables_mode::Operation) -> Self {
        Operation::Iptables(operation)
    }
}

impl From<userspace::Operation> for Operation {
    fn from(operation: userspace::Operation) -> Self {
        Operation::Userspace(operation)
    }
}

impl From<Removal> for Operation {
    fn from(removal: Removal) -> Self {
        Operation::RemoveLeftovers(Box::new(removal))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Ipvs(operation) => operation.fmt(f),
            Operation::Iptables(operation) => operation.fmt(f),
            Operation::Userspace(operation) => operation.fmt(f),
            Operation::RemoveLeftovers(removal) => f.write_str(removal.to_string().trim_end()),
        }
    }
}

/// A phase of a plan, in the order of execution: those of the mode, then those that remove what another mode left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// A phase of userspace mode.
    Userspace(userspace::Phase),
    /// A phase of iptables mode.
    Iptables(iptables_mode::Phase),
    /// A phase of IPVS mode, also of its removal.
    Ipvs(ipvs_mode::Phase),
    /// What another mode left is removed.
    Leftovers,
}

impl From<ipvs_mode::Phase> for Phase {
    fn from(phase: ipvs_mode::Phase) -> Self {
        Phase::Ipvs(phase)
    }
}

impl From<iptables_mode::Phase> for Phase {
    fn from(phase: iptables_mode::Phase) -> Self {
        Phase::Iptables(phase)
    }
}

impl From<userspace::Phase> for Phase {
    fn from(phase: userspace::Phase) -> Self {
        Phase::Userspace(phase)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Phase::Userspace(phase) => phase.fmt(f),
            Phase::Iptables(phase) => phase.fmt(f),
            Phase::Ipvs(phase) => phase.fmt(f),
            Phase::Leftovers => f.write_str("what another mode left"),
        }
    }
}
