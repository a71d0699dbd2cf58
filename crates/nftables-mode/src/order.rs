//! The order of the phases.

use std::fmt;

/// A phase of a plan, in the order of execution.
///
/// What a Service needs is written by one transaction: no packet meets a half of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Sysctls.
    Sysctls,
    /// The tables with their chains, rules and empty sets. A table that replaces another one has no base chains yet: no packet reaches it.
    Tables,
    /// The elements of Services, those of withdrawn Services included.
    Services,
    /// Tables that replace others get their base chains, in the transaction that deletes the others.
    Switch,
    /// Stale UDP flows, after the elements by which the next packet begins a new flow.
    DeleteFlows,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Sysctls => "sysctls",
            Phase::Tables => "tables",
            Phase::Services => "Services",
            Phase::Switch => "switch of tables",
            Phase::DeleteFlows => "stale UDP flows",
        })
    }
}
