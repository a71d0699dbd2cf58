//! `Operation`: one change in any mode, and the order of the phases.

use std::fmt;

use kernlink_proxier::{any_mode, ipvs_mode};
use kernlink_userspace::data_path as userspace;

use super::removal::Removal;

/// A change in any mode.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// An operation of iptables or IPVS mode.
    InKernel(any_mode::Operation),
    /// An operation of userspace mode.
    Userspace(userspace::Operation),
    /// Removes what another mode left.
    RemoveLeftovers(Box<Removal>),
}

impl Operation {
    pub(super) fn in_kernel(&self) -> Option<&any_mode::Operation> {
        match self {
            Operation::InKernel(operation) => Some(operation),
            _ => None,
        }
    }

    pub(super) fn userspace(&self) -> Option<&userspace::Operation> {
        match self {
            Operation::Userspace(operation) => Some(operation),
            _ => None,
        }
    }

    pub(super) fn removal(&self) -> Option<&Removal> {
        match self {
            Operation::RemoveLeftovers(removal) => Some(removal),
            _ => None,
        }
    }
}

impl From<any_mode::Operation> for Operation {
    fn from(operation: any_mode::Operation) -> Self {
        Operation::InKernel(operation)
    }
}

impl From<ipvs_mode::Operation> for Operation {
    fn from(operation: ipvs_mode::Operation) -> Self {
        Operation::InKernel(operation.into())
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
            Operation::InKernel(operation) => operation.fmt(f),
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
    /// A phase of iptables or IPVS mode.
    InKernel(any_mode::Phase),
    /// What another mode left is removed.
    Leftovers,
}

impl From<any_mode::Phase> for Phase {
    fn from(phase: any_mode::Phase) -> Self {
        Phase::InKernel(phase)
    }
}

impl From<ipvs_mode::Phase> for Phase {
    fn from(phase: ipvs_mode::Phase) -> Self {
        Phase::InKernel(phase.into())
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
            Phase::InKernel(phase) => phase.fmt(f),
            Phase::Leftovers => f.write_str("what another mode left"),
        }
    }
}
