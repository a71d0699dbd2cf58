//! The order of the phases.

use std::fmt;

use crate::{iptables_mode, ipvs_mode};

/// A phase of a plan, in the order of execution. A plan has the phases of one mode, or those of iptables mode and then those that remove
/// what IPVS mode left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// A phase of iptables mode.
    Iptables(iptables_mode::Phase),
    /// A phase of IPVS mode.
    Ipvs(ipvs_mode::Phase),
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

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Phase::Ipvs(phase) => phase.fmt(f),
            Phase::Iptables(phase) => phase.fmt(f),
        }
    }
}
