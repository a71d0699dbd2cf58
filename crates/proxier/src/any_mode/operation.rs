//! `Operation`: one change of a kernel object of either mode.

use std::fmt;

use super::mode::Mode;
use crate::{iptables_mode, ipvs_mode};

/// A change of a kernel object of either mode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// An operation of IPVS mode.
    Ipvs(ipvs_mode::Operation),
    /// An operation of iptables mode.
    Iptables(iptables_mode::Operation),
}

impl Operation {
    /// The mode whose kernel APIs execute it.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Operation::Ipvs(_) => Mode::Ipvs,
            Operation::Iptables(_) => Mode::Iptables,
        }
    }
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

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Ipvs(operation) => operation.fmt(f),
            Operation::Iptables(operation) => operation.fmt(f),
        }
    }
}
