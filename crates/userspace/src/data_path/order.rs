//! The order of the phases, and the outage that each position in it avoids.

use std::fmt;

/// A phase of a plan, in the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Listening ports are opened and their endpoints changed: before rules lead to them.
    Listeners,
    /// Ports are claimed: before rules lead traffic of them away.
    Claims,
    /// Chains and jumps.
    Chains,
    /// Rules are added: before those that they replace are deleted, so that no frontend is without a rule.
    Additions,
    /// Rules are deleted: before the listening port that they lead to is closed.
    Deletions,
    /// UDP flows that connection tracking still translates as previous rules did are deleted: after the rules by which the next packet begins
    /// a new flow, and before the listening ports are closed that these flows lead to.
    DeleteFlows,
    /// Listening ports are closed.
    Closing,
    /// Claims are released.
    Releases,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Listeners => "listening ports",
            Phase::Claims => "claims",
            Phase::Chains => "chains",
            Phase::Additions => "rules",
            Phase::Deletions => "rules that are not needed",
            Phase::DeleteFlows => "stale UDP flows",
            Phase::Closing => "listening ports that are not needed",
            Phase::Releases => "claims that are not needed",
        })
    }
}
